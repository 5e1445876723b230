"""The Tape: run an algorithm on one data set, replay its outputs into the neighbour, and compare.

It charges nothing, gives every release a generator of its own and puts the differing record into
every batch. What the algorithm releases on the neighbour is replaced by what it released on the
first data set, so everything that it does afterwards has to be the same, bit for bit; only the
values inside the queries may differ, by at most the sensitivity.

Three kinds of value are compared. A plain value: in the mechanism's own distance. The last iterate
of a permuted run: against the bound of the batch that holds the differing record. A function of the
noise (objective perturbation): its minimiser must be stationary for the drawn noise, and the noise
that explains the same minimiser on the neighbour must lie within the sensitivity of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpcore.accounting.budget import Lease, Life
from dpcore.accounting.curves import curve_of
from dpcore.accounting.events import Events
from dpcore.accounting.observers import Observer
from dpcore.losses import Array, MarginLoss
from dpcore.mechanisms import Mechanism
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Permuted, Sampled

RECORDS = 6
SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class ConstantSlope(MarginLoss):
    """Loss -z: every record's gradient is -y x at any w, so bounds on neighbours are reached
    exactly.
    """

    name = "constant_slope"
    convex = True
    lipschitz = 1.0
    smoothness = 1e-9

    def _value(self, t: Array) -> Array:
        return np.maximum(1.0 - t, 0.0)

    def _slope(self, t: Array) -> Array:
        return -np.ones_like(t)

    def _curvature(self, t: Array) -> Array:
        return np.zeros_like(t)


@dataclass
class Release:
    """One release: what went in, what came out, and for a function of the noise its drawn noise and
    minimiser.
    """

    mechanism: Mechanism
    value: Any
    output: Any
    rows: Array | None
    noise: Array | None = None
    minimiser: Array | None = None
    explained: Array | None = None  # the noise for which this data set has that minimiser


@dataclass
class Tape:
    """Stands in for the Budget. Without ``recorded`` it records; with it, it replays into the
    neighbour.
    """

    objective: LinearObjective
    differing: int
    planned: Events
    adaptive: bool = False
    removed: bool = False  # the neighbour lacks the differing record
    recorded: list[Release] | None = None
    seed: int = 0
    log: list[Release] = field(default_factory=list)
    notes: list[dict[str, float]] = field(default_factory=list)
    spent: Array | None = None
    observers: Sequence[Observer] = ()

    def release(self, mechanism: Mechanism, query: Callable[[Any], Any]) -> Any:
        rng = np.random.default_rng((self.seed, len(self.log)))
        rows = self._rows(mechanism, rng)
        batch = self.objective if rows is None else self.objective.take(rows)
        lease = Lease(batch, Life(self.observers))
        value = query(lease)
        entry = Release(mechanism, value if callable(value) else np.copy(value), None, rows)
        earlier = None if self.recorded is None else self.recorded[len(self.log)]
        if earlier is not None:
            entry.output, entry.minimiser = earlier.output, earlier.minimiser
        elif callable(value):
            entry.output = mechanism.release(_spy(value, entry), rng)
        else:
            entry.output = mechanism.release(value, rng)
        if entry.minimiser is not None:
            curvature = getattr(mechanism, "perturbation", mechanism).curvature
            linear = getattr(value, "linear", 0.0)  # a public linear term beside the noise
            # the records under another loss, where that is minimised
            records = getattr(value, "records", batch)
            entry.explained = -(
                records.gradient_sum(entry.minimiser) + curvature * entry.minimiser + linear
            )
        lease.close()
        self.spent = curve_of(mechanism) + (0.0 if self.spent is None else self.spent)
        self.log.append(entry)
        for observer in self.observers:
            observer.released(mechanism, rows, query, entry.output)
        return np.copy(entry.output)

    def _rows(self, mechanism: Mechanism, rng: np.random.Generator) -> Array | None:
        """Rows of the batch with the differing record (the last of both data sets) in it."""
        if not isinstance(mechanism, Sampled):
            return None
        if self.recorded is not None:
            rows = self.recorded[len(self.log)].rows
            return rows[rows != self.differing] if self.removed else rows
        rows = np.asarray(mechanism.sampler.draw(self.objective.n, rng))
        if self.differing not in rows:
            rows = np.append(rows[:-1] if len(rows) else rows, self.differing)
        return rows if isinstance(mechanism.sampler, Permuted) else np.sort(rows)

    def affords(self, *mechanisms: Mechanism) -> bool:
        cost = sum(curve_of(mechanism) for mechanism in mechanisms)
        spent = 0.0 if self.spent is None else self.spent
        return bool(np.all(spent + cost <= self.planned.price() * (1 + SLACK)))

    def note(self, **numbers: float) -> None:
        self.notes.append({"release": len(self.log), **numbers})


def _spy(value: Callable[[Array], Array], entry: Release) -> Callable[[Array], Array]:
    """``value`` that writes down the noise it was called with and the minimiser it found."""

    def minimise(noise: Array) -> Array:
        entry.noise, entry.minimiser = np.copy(noise), value(noise)
        return np.copy(entry.minimiser)

    return minimise


Made = Callable[[Array, Any], Any]  # labels and a loss to an objective over some rows
Stored = Callable[[Array, Array], tuple[Made, Made]]


def dense(X: Array, other: Array) -> tuple[Made, Made]:
    """Rows as an array."""
    return (lambda y, loss: LinearObjective(X, y, loss)), (
        lambda y, loss: LinearObjective(other, y, loss)
    )


def neighbours(problem: Problem, seed: int = 0, stored: Stored = dense) -> tuple[Any, Any, int]:
    """Six records and a neighbour that differs in the last: gone, or replaced by its opposite; and
    its index.

    The records point the same way and have the full norm, so that clips are active and bounds are
    met. Opposite means the opposite vector for even seeds, the opposite label for odd ones. With
    ``blocks`` the rows are one-hot, and the replaced record takes another level of every block for
    even seeds. ``stored`` makes objectives of the rows of both, in a storage whose public part is
    one for both.
    """
    rng = np.random.default_rng(seed)
    X, other = _one_hot(problem) if problem.blocks else _aligned(problem, rng)
    y, other_y = np.ones(RECORDS), np.ones(RECORDS)
    if seed % 2 and problem.loss.argument == "margin":
        other, other_y[-1] = X, -1.0
    if problem.adjacency is Adjacency.ADD_REMOVE:
        other, other_y = X[:-1], y[:-1]
    first, second = stored(X, other)
    return first(y, problem.loss), second(other_y, problem.loss), RECORDS - 1


def _aligned(problem: Problem, rng: np.random.Generator) -> tuple[Array, Array]:
    direction = rng.normal(size=problem.dimension)
    if problem.intercept:
        direction[-1] = 1.0
    direction *= problem.norm_bound / np.linalg.norm(direction)
    X = direction + rng.normal(size=(RECORDS, problem.dimension)) * 0.01
    X *= (problem.norm_bound / np.linalg.norm(X, axis=1))[:, None] * (1 - 1e-12)
    X[-1] = direction * (1 - 1e-12)
    other = X.copy()
    other[-1] = -X[-1]
    return X, other


def _one_hot(problem: Problem) -> tuple[Array, Array]:
    X = np.zeros((RECORDS, problem.dimension))
    for block in problem.blocks:
        X[:, block.columns[0]] = 1.0
    if problem.intercept:
        X[:, -1] = 1.0
    other = X.copy()
    for block in problem.blocks:
        other[-1, block.columns[0]] = 0.0
        if len(block.columns) > 1:
            other[-1, block.columns[-1]] = 1.0
    return X, other


@dataclass
class Replay:
    """What a record and a replay showed."""

    ratios: list[float]  # distance between neighbouring values over the sensitivity, per release
    # minimisers are stationary for their drawn noise, within the mechanism's tolerance
    stationary: bool
    same_mechanisms: bool
    same_notes: bool
    same_result: bool
    within_plan: bool

    @property
    def sound(self) -> bool:
        """Whether every bound holds and nothing but the values depends on the records."""
        bounded = max(self.ratios, default=0.0) <= 1 + SLACK
        same = self.same_mechanisms and self.same_notes and self.same_result
        return bounded and self.stationary and same and self.within_plan


def replay(algorithm: Any, problem: Problem, seed: int = 0, stored: Stored = dense) -> Replay:
    """Record ``algorithm`` on one data set and replay it on the neighbour."""
    first, second, differing = neighbours(problem, seed, stored)
    planned = Events.of(algorithm.plan(problem), adjacency=problem.adjacency, unit=problem.unit)
    removed = problem.adjacency is Adjacency.ADD_REMOVE
    record = Tape(first, differing, planned, algorithm.adaptive, seed=seed)
    result = algorithm.fit(problem, record, np.random.default_rng(seed))
    again = Tape(second, differing, planned, algorithm.adaptive, removed, record.log, seed)
    other = algorithm.fit(problem, again, np.random.default_rng(seed))
    mechanisms = [item.mechanism for item in record.log]
    if algorithm.adaptive:
        within = bool(np.all(record.spent <= planned.price() * (1 + SLACK)))
    else:
        within = mechanisms == list(planned)[: len(mechanisms)]
    return Replay(
        [ratio(a, b, differing) for a, b in zip(record.log, again.log, strict=False)],
        all(stationary(item) for item in record.log),
        mechanisms == [item.mechanism for item in again.log],
        record.notes == again.notes,
        np.array_equal(result, other),
        within,
    )


def ratio(first: Release, second: Release, differing: int) -> float:
    """How far the values of neighbours lie apart, over the bound that the mechanism is priced
    for.
    """
    if first.explained is not None:
        distance = float(np.linalg.norm(first.explained - second.explained))
    else:
        distance = first.mechanism.distance(first.value, second.value)
    return distance / bound(first, differing)


def bound(release: Release, differing: int) -> float:
    """The sensitivity; in a permuted run that of the batch which holds the differing record."""
    mechanism = release.mechanism
    base = mechanism.mechanism if isinstance(mechanism, Sampled) else mechanism
    if isinstance(mechanism, Sampled) and isinstance(mechanism.sampler, Permuted):
        position = int(np.flatnonzero(release.rows == differing)[0])
        batch = next(j for j, part in enumerate(mechanism.sampler.cut()) if position < part.stop)
        return float(base.sensitivities[batch])  # type: ignore[attr-defined]
    return float(base.sensitivity)  # type: ignore[attr-defined]


def stationary(release: Release) -> bool:
    """Whether the minimiser belongs to the drawn noise, up to the gradient tolerance that the
    mechanism declares.
    """
    if release.explained is None:
        return True
    tolerance = getattr(release.mechanism, "gradient_norm", 0.0) + 1e-9 * (
        1 + float(np.linalg.norm(release.explained))
    )
    return float(np.linalg.norm(release.explained - release.noise)) <= tolerance
