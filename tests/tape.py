"""The Tape: run an algorithm on one data set, replay its outputs into the neighbour, and compare.

It charges nothing, gives every release a generator of its own and puts the differing record into every batch. What the
algorithm releases on the neighbour is replaced by what it released on the first data set, so everything that it does
afterwards has to be the same, bit for bit; only the values inside the queries may differ, by at most the sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpcore.accounting.budget import Lease
from dpcore.accounting.events import Events, curve
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Sampled


@dataclass(frozen=True, slots=True)
class ConstantSlope:
    """Loss -z: every record's gradient is -y x at any w, so bounds on neighbours are reached exactly."""

    name = "constant_slope"
    argument = "margin"
    convex = True
    lipschitz = 1.0
    smoothness = 1e-9

    def value(self, z: Array) -> Array:
        return np.maximum(1.0 - z, 0.0)

    def slope(self, z: Array) -> Array:
        return -np.ones_like(z)

    def curvature(self, z: Array) -> Array:
        return np.zeros_like(z)


@dataclass
class Release:
    mechanism: Mechanism
    value: Any
    output: Any
    rows: Array | None


@dataclass
class Tape:
    """Stands in for the Budget. Without ``recorded`` it records; with it, it replays into the neighbour."""

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

    def release(self, mechanism: Mechanism, query: Callable[[Any], Any]) -> Any:
        k = len(self.log)
        rng = np.random.default_rng((self.seed, k))
        rows = self._rows(mechanism, rng)
        batch = self.objective if rows is None else self.objective.take(rows)
        lease = Lease(batch)
        value = query(lease)
        output = mechanism.release(value, rng) if self.recorded is None else self.recorded[k].output
        kept = value if callable(value) else np.copy(value)
        lease.close()
        self.spent = curve(mechanism) + (0.0 if self.spent is None else self.spent)
        self.log.append(Release(mechanism, kept, output, rows))
        return output if callable(output) else np.copy(output)

    def _rows(self, mechanism: Mechanism, rng: np.random.Generator) -> Array | None:
        """Rows of the batch with the differing record (the last of both data sets) in it."""
        if not isinstance(mechanism, Sampled):
            return None
        if self.recorded is None:
            rows = np.asarray(mechanism.sampler.draw(self.objective.n, rng))
            if self.differing not in rows:
                rows = np.append(rows[:-1] if len(rows) else rows, self.differing)
            return np.sort(rows)
        rows = self.recorded[len(self.log)].rows
        return rows[rows != self.differing] if self.removed else rows

    def affords(self, *mechanisms: Mechanism) -> bool:
        cost = sum(curve(mechanism) for mechanism in mechanisms)
        spent = 0.0 if self.spent is None else self.spent
        return bool(np.all(spent + cost <= self.planned.price() * (1 + 1e-9)))

    def note(self, **numbers: float) -> None:
        self.notes.append({"release": len(self.log), **numbers})


def neighbours(problem: Problem, seed: int = 0) -> tuple[LinearObjective, LinearObjective, int]:
    """Six records and a neighbour that differs in the last: gone, or the opposite vector; and its index.

    The records point the same way and have the full norm, so that clips are active and bounds are met.
    """
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=problem.dimension)
    if problem.intercept:
        direction[-1] = 1.0
    direction *= problem.norm_bound / np.linalg.norm(direction)
    noise = rng.normal(size=(6, problem.dimension)) * 0.01
    X = direction + noise
    X *= (problem.norm_bound / np.linalg.norm(X, axis=1))[:, None] * (1 - 1e-12)
    X[-1] = direction * (1 - 1e-12)
    y = np.ones(6)
    first = LinearObjective(X, y, problem.loss)
    if problem.adjacency is Adjacency.ADD_REMOVE:
        return first, LinearObjective(X[:-1], y[:-1], problem.loss), 5
    other = X.copy()
    other[-1] = -direction * (1 - 1e-12)
    return first, LinearObjective(other, y, problem.loss), 5


@dataclass
class Replay:
    """What a record and a replay showed."""

    ratios: list[float]  # distance between neighbouring values over the sensitivity, per release
    same_mechanisms: bool
    same_notes: bool
    same_result: bool
    within_plan: bool


def replay(algorithm: Any, problem: Problem, seed: int = 0) -> Replay:
    """Record ``algorithm`` on one data set and replay it on the neighbour."""
    first, second, differing = neighbours(problem, seed)
    planned = Events.of(algorithm.plan(problem), adjacency=problem.adjacency, unit=problem.unit)
    removed = problem.adjacency is Adjacency.ADD_REMOVE
    record = Tape(first, differing, planned, algorithm.adaptive, seed=seed)
    result = algorithm.fit(problem, record, np.random.default_rng(seed))
    again = Tape(second, differing, planned, algorithm.adaptive, removed, record.log, seed)
    other = algorithm.fit(problem, again, np.random.default_rng(seed))
    pairs = list(zip(record.log, again.log, strict=False))
    ratios = [
        a.mechanism.distance(a.value, b.value) / sensitivity(a.mechanism) for a, b in pairs if not callable(a.value)
    ]
    mechanisms = [item.mechanism for item in record.log]
    if algorithm.adaptive:
        within = bool(np.all(record.spent <= planned.price() * (1 + 1e-9)))
    else:
        within = mechanisms == list(planned)[: len(mechanisms)]
    return Replay(
        ratios,
        mechanisms == [item.mechanism for item in again.log],
        record.notes == again.notes,
        np.array_equal(result, other),
        within,
    )


def sensitivity(mechanism: Mechanism) -> float:
    """The bound that a mechanism is priced for, in its own norm."""
    base = mechanism.mechanism if isinstance(mechanism, Sampled) else mechanism
    return float(base.sensitivity)
