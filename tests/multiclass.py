"""Several classes on the Tape: six records, a neighbour that differs in the last, losses that meet
their bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpcore.accounting import Events
from dpcore.accounting.curves import curve_of
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.problem import Adjacency, Problem
from tests.tape import Tape, ratio

CLASSES, COLUMNS, RECORDS = 3, 4, 6


class AlwaysWrong(Softmax):
    """Gradient in the scores of norm sqrt 2 at any weights, so that bounds on neighbours are
    met.
    """

    __slots__ = ()

    smoothness = 1e-9

    def slope(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        gradient = np.zeros_like(z)
        gradient[np.arange(len(z)), y] = -1.0
        gradient[np.arange(len(z)), (y + 1) % z.shape[1]] = 1.0
        return gradient


def joint_problem(adjacency: Adjacency | str = Adjacency.ADD_REMOVE, **facts: Any) -> Problem:
    settings = {
        "n": RECORDS,
        "dimension": COLUMNS,
        "loss": Softmax(),
        "outputs": CLASSES,
        "norm_bound": 1.0,
    }
    return Problem(adjacency=Adjacency(adjacency), **(settings | facts))


def neighbours(
    adjacency: Adjacency, loss: Any, seed: int = 0
) -> tuple[MulticlassObjective, MulticlassObjective]:
    """Records of full norm in one direction; the last is gone, opposite (even seed) or of another
    class (odd).
    """
    X = np.tile([0.5, 0.5, 0.5, 0.5], (RECORDS, 1)) * (1 - 1e-12)
    y = np.array([0.0, 1.0, 2.0, 0.0, 1.0, 0.0])
    first = MulticlassObjective(X, y, loss)
    if adjacency is Adjacency.ADD_REMOVE:
        return first, MulticlassObjective(X[:-1], y[:-1], loss)
    other, labels = X.copy(), y.copy()
    if seed % 2:
        labels[-1] = 1.0
    else:
        other[-1] *= -1.0
    return first, MulticlassObjective(other, labels, loss)


def replayed(algorithm: Any, facts: Problem, loss: Any, seed: int = 0) -> list[float]:
    """Ratios to the priced bound of each release; everything else must be the same bit for bit,
    within the plan.
    """
    first, second = neighbours(facts.adjacency, loss, seed)
    removed = facts.adjacency is Adjacency.ADD_REMOVE
    planned = Events.of(algorithm.plan(facts), adjacency=facts.adjacency)
    record = Tape(first, RECORDS - 1, planned, algorithm.adaptive, seed=seed)
    result = algorithm.fit(facts, record, np.random.default_rng(seed))
    again = Tape(second, RECORDS - 1, planned, algorithm.adaptive, removed, record.log, seed)
    assert np.array_equal(result, algorithm.fit(facts, again, np.random.default_rng(seed)))
    mechanisms = [item.mechanism for item in record.log]
    assert mechanisms == [item.mechanism for item in again.log]
    if algorithm.adaptive:
        assert np.all(sum(map(curve_of, mechanisms)) <= planned.price() * (1 + 1e-9))
    else:
        assert mechanisms == list(planned)[: len(mechanisms)]
    assert record.notes == again.notes and result.shape == (CLASSES * COLUMNS,)
    return [ratio(a, b, RECORDS - 1) for a, b in zip(record.log, again.log, strict=True)]
