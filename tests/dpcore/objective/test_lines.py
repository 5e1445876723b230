"""Candidates on a line cost two scores of a record, and have the losses that each has alone."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.losses import Array, Loss
from dpcore.objective import LinearObjective, base, compiled
from dpcore.objective.base import line_of
from tests.dpcore.objective.test_coded import LOSSES, Y, encoded, passes

__all__ = ["passes"]

RNG = np.random.default_rng(11)


def searched(width: int, size: float = 1.0) -> Array:
    """As a search makes them: w - eta v, eta = 0 first."""
    steps = np.concatenate([[0.0], np.geomspace(0.03, 3.0, 9)])
    return size * (RNG.normal(size=width) - np.outer(steps, RNG.normal(size=width)))


def storages(normalise: str) -> list[object]:
    _, X, coded = encoded(normalise)
    return [coded, X, X.toarray(), csr_array(X, dtype=np.float32)]


@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
def test_losses_along_a_line_are_those_of_each_point(normalise: str, passes: str) -> None:
    for stored in storages(normalise):
        for loss in LOSSES:
            made = LinearObjective(stored, Y, loss)
            shift, scale = RNG.random(made.dimension), RNG.uniform(0.5, 3.0, made.dimension)
            for one in (made, made.transform(shift, scale), made.take(np.arange(0, len(Y), 7))):
                W = searched(made.dimension)
                assert line_of(W) is not None
                for clip in (0.7, inf):
                    alone = [one.value_sum(w[None], clip)[0] for w in W]
                    assert np.allclose(one.value_sum(W, clip), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_record_moves_each_candidate_by_the_cap_and_no_more(loss: Loss, passes: str) -> None:
    cap, largest = 0.05, 0.0
    for stored in storages("none"):
        for size in (1.0, 1e3, 1e29):
            W = searched(stored.shape[1], size)
            some = LinearObjective(stored[:60], Y[:60], loss)
            rest = some.take(np.arange(1, 60))
            moved = some.value_sum(W, cap) - rest.value_sum(W, cap)
            assert moved.min() >= -1e-9 * cap and moved.max() <= cap * (1 + 1e-9)
            largest = max(largest, moved.max())
    assert largest >= 0.99 * cap


def test_what_is_no_line_is_asked_point_by_point(passes: str) -> None:
    W = searched(6)
    bent = W.copy()
    bent[4, 2] += 1e-9
    few, same, crowd = W[:3], np.repeat(W[:1], 9, axis=0), RNG.normal(size=(9, 6))
    for points in (bent, few, same, crowd, np.full((9, 6), np.nan), np.full((9, 6), inf)):
        assert line_of(base.readable(points)) is None
    made = LinearObjective(RNG.random((40, 6)), Y[:40], LOSSES[0])
    alone = [made.value_sum(w[None], 0.7)[0] for w in bent]
    assert np.allclose(made.value_sum(bent, 0.7), alone, rtol=1e-13)


def test_a_line_of_points_takes_two_scores_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.use(False)
    made, asked = LinearObjective(RNG.random((40, 6)), Y[:40], LOSSES[0]), []
    scores = made.rows.scores
    monkeypatch.setattr(made.rows, "scores", lambda W: asked.append(W.shape[1]) or scores(W))
    made.value_sum(searched(6), 0.7)
    made.value_sum(RNG.normal(size=(10, 6)), 0.7)
    assert asked == [2, 10]
