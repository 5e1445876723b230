"""Many fits on two worst-case neighbours; ``bounds`` tells from them about epsilon.

Synthetic neighbours on which the bounds of a proof are met: aligned records, full norm, a constant
slope.

An attacker who sees every noisy release and knows both neighbours: what each release says about
which one it was.

A release r of noise sigma with values a and b on the neighbours says <b - a, r - a> / sigma^2, the
log-likelihood ratio up to a constant of that fit. Queries follow from earlier releases, which the
attacker has, so a and b are known to it. The parts are kept apart by mechanism and time (a few
sums), so that noise which is missing in one of them, or shared by two, can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from math import sqrt
from multiprocessing import get_context
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget, open_door
from dpcore.accounting.limits import Target
from dpcore.accounting.observers import Call, Query
from dpcore.algorithms import registry
from dpcore.audit.bounds import Measured, lower_bounds
from dpcore.errors import AssumptionNotMet, require_below_one, require_count
from dpcore.losses import Array, MarginLoss
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.noise import plain_generator, secure_generator
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import Planned, plan

# Fits are many, so records are few: the differing record counts as much among six as among a
# million.
RECORDS = 6
DIMENSION = 4


@dataclass(frozen=True, slots=True)
class ConstantSlope(MarginLoss):
    """Loss -z of the margin z: every record's gradient is -y x at any w, so that bounds on
    neighbours are met.
    """

    name: ClassVar[str] = "constant_slope"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 1e-9

    def _value(self, t: Array) -> Array:
        return -t

    def _slope(self, t: Array) -> Array:
        return -np.ones_like(t)

    def _curvature(self, t: Array) -> Array:
        return np.zeros_like(t)


def worst_problem(
    problem: Problem | None, adjacencies: Iterable[Adjacency], bounded_by_blocks: bool = False
) -> Problem:
    """The public facts of the attack: those of ``problem`` with few records, else a small problem.

    Under add/remove n is a nominal divisor and stays; under replace-one it is the exact count and
    becomes ``RECORDS``. For algorithms that bound rows by their blocks there is a constant column,
    around whose means they turn. Raises ``AssumptionNotMet`` for what is no table of records.
    """
    known = set(adjacencies) & {Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE}
    if not known or (problem is not None and problem.kind != "linear"):
        raise AssumptionNotMet(
            "Expected an algorithm for tables of records, got one for sessions; audit the "
            "mechanism that it uses."
        )
    if problem is None:
        relation = Adjacency.ADD_REMOVE if Adjacency.ADD_REMOVE in known else Adjacency.REPLACE_ONE
        problem = Problem(n=RECORDS, dimension=DIMENSION, loss=ConstantSlope(), adjacency=relation)
    n = problem.n if problem.adjacency is Adjacency.ADD_REMOVE else min(problem.n, RECORDS)
    length = (
        max(problem.norm_bound, sqrt(problem.dimension))
        if bounded_by_blocks
        else problem.norm_bound
    )
    return replace(
        problem,
        n=n,
        loss=ConstantSlope(),
        norm_bound=length,
        blocks=(),
        intercept=bounded_by_blocks,
        outputs=1,
    )


def worst_case(problem: Problem) -> tuple[LinearObjective, LinearObjective]:
    """Two neighbours of ``RECORDS`` aligned records: the last is gone (add/remove) or turned round
    (replace-one).

    With a constant column: corners of the unit cube, half zeros and half ones. The last is a one
    without its constant, as far from the means and as free of a direction that it shares as can be;
    it is gone, or a zero.
    """
    if problem.intercept:
        return _corners(problem)
    direction = np.zeros(problem.dimension)
    direction[0] = problem.norm_bound * (1 - 1e-12)
    X = np.tile(direction, (RECORDS, 1))
    y = np.where(np.arange(RECORDS) % 2 == 0, 1.0, -1.0)
    y[-1] = 1.0
    first = LinearObjective(X, y, problem.loss)
    if problem.adjacency is Adjacency.ADD_REMOVE:
        return first, LinearObjective(X[:-1], y[:-1], problem.loss)
    other = y.copy()
    other[-1] = -1.0
    return first, LinearObjective(X, other, problem.loss)


def _corners(problem: Problem) -> tuple[LinearObjective, LinearObjective]:
    X = np.zeros((RECORDS, problem.dimension))
    X[1::2, :-1] = 1.0
    X[:-1, -1] = 1.0
    y = np.where(np.arange(RECORDS) % 4 < 2, 1.0, -1.0)
    first = LinearObjective(X, y, problem.loss)
    if problem.adjacency is Adjacency.ADD_REMOVE:
        return first, LinearObjective(X[:-1], y[:-1], problem.loss)
    other = X.copy()
    other[-1] = 0.0
    return first, LinearObjective(other, y, problem.loss)


# Sums that alike releases are kept in: fits are hundreds, and a statistic of many parts would fit
# their noise.
PARTS = 4


def groups_of(planned: Planned) -> Array | None:
    """The sum that each release belongs to, shape (releases,); None unless several Gaussian sums
    are released.
    """
    events = list(planned.events)
    if (
        planned.algorithm.adaptive
        or len(events) < 2
        or not all(type(one) is Gaussian for one in events)
    ):
        return None
    groups: list[int] = []
    for _, alike in groupby(events):
        count = len(list(alike))
        start = groups[-1] + 1 if groups else 0
        groups += list(start + np.arange(count) * min(PARTS, count) // count)
    return np.array(groups)


class Marks:
    """An observer that keeps in ``marks`` what the releases say about which of ``pair`` they
    saw.
    """

    def __init__(self, pair: tuple[LinearObjective, LinearObjective], groups: Array) -> None:
        self.pair, self.groups, self.releases = pair, groups, 0
        self.marks = np.zeros(int(groups[-1]) + 1)

    def asked(self, call: Call) -> None:
        """What a query asks of the batch says nothing by itself."""

    def released(self, mechanism: Mechanism, rows: Array | None, query: Query, value: Any) -> None:
        """Add the score of one release, a Gaussian sum over all records (``groups_of``)."""
        assert isinstance(mechanism, Gaussian)
        first, second = query(self.pair[0]), query(self.pair[1])
        gained = np.vdot(second - first, value - first) / mechanism.sigma**2
        self.marks[self.groups[self.releases]] += gained
        self.releases += 1


CLAIMED, DELTA = 4.0, 1e-5
"""An attack has most power at a claim of about 4 to 8; factors and signs in noise and price do not
depend on it.
"""


def audit(
    name: str,
    parameters: dict[str, Any] | None = None,
    *,
    problem: Problem | None = None,
    epsilon: float = CLAIMED,
    delta: float = DELTA,
    fits: int = 2000,
    workers: int = 1,
    confidence: float = 0.95,
    door: type[Budget] = Budget,
    seed: int | None = None,
) -> Measured:
    """Attack the algorithm ``name``, calibrated to (epsilon, delta), with ``fits`` fits on each of
    two neighbours.

    The data are synthetic (``neighbours``), so the result may be published. Without ``problem`` a
    small one is made for an adjacency that the algorithm has a proof for. What is looked at: all
    releases, where they are Gaussian sums over the whole data (``releases``), else the weights.
    ``door`` is for planted faults, ``seed`` for tests that repeat.
    """
    require_count(fits=fits, workers=workers)
    require_below_one(confidence=confidence)
    by_blocks = registry[name].bounds_rows_by == "blocks"
    shape = worst_problem(problem, registry[name].adjacencies, by_blocks)
    settings = {**(registry[name].small if problem is None else {}), **(parameters or {})}
    planned = plan(name, settings, shape, Target(epsilon, delta))
    started = perf_counter()
    pair = worst_case(shape)
    outputs = [
        _collect(planned, pair, side, fits, workers, door, None if seed is None else seed + side)
        for side in (0, 1)
    ]
    found = lower_bounds(outputs[0], outputs[1], planned.spent_epsilon, delta, confidence)
    return replace(found, seconds=perf_counter() - started)


Pair = tuple[LinearObjective, LinearObjective]


def _collect(
    planned: Planned,
    pair: Pair,
    side: int,
    fits: int,
    workers: int,
    door: type[Budget],
    seed: int | None,
) -> Array:
    """Outputs of ``fits`` fits on one side of the pair, shape (fits, k), spread over processes that
    share nothing.
    """
    parts = [len(part) for part in np.array_split(np.arange(fits), workers)]
    seeds = [None if seed is None else seed * 1000 + index for index in range(workers)]
    if workers == 1:
        return fit_many(planned, pair, side, fits, door, seeds[0])
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(fit_many, planned, pair, side, part, door, one)
            for part, one in zip(parts, seeds, strict=True)
        ]
        return np.concatenate([job.result() for job in jobs])


def fit_many(
    planned: Planned,
    pair: Pair,
    side: int,
    fits: int,
    door: type[Budget] = Budget,
    seed: int | None = None,
) -> Array:
    """Independent fits on ``pair[side]`` through the one door: marks of their releases, or weights;
    (fits, k).
    """
    secret = secure_generator() if seed is None else plain_generator(seed)
    groups = groups_of(planned)
    rows = []
    for index in range(fits):
        seen = None if groups is None else Marks(pair, groups)
        watching = [] if seen is None else [seen]
        adaptive = planned.algorithm.adaptive
        budget = open_door(
            planned.events,
            pair[side],
            adaptive=adaptive,
            secret=secret,
            door=door,
            observers=watching,
        )
        weights = planned.algorithm.fit(planned.problem, budget, np.random.default_rng(index))
        rows.append(weights if seen is None else seen.marks)
    return np.asarray(rows)
