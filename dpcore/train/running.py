"""Plan a private training from public facts, then run it through its one door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from dpcore.accounting.budget import Budget, open_door
from dpcore.accounting.events import Events
from dpcore.accounting.limits import Room
from dpcore.accounting.observers import Call, Observer, Query
from dpcore.errors import InputError
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism
from dpcore.objective import Objective
from dpcore.train.planning import Planned

# A trace with more points than this is thinned: nobody can see more in a figure.
TRACE_POINTS = 500
# Composing privacy-loss distributions takes a good part of a second a point.
SLOW_TRACE_POINTS = 10


@dataclass(frozen=True)
class Result:
    """What a run released, and the public numbers that describe it.

    ``events`` is what really ran; the guarantee is the planned price. ``trace`` has one row for (at
    most 500) releases with the epsilon spent so far and the notes of the algorithm. ``fixed_noise``
    marks a run that may never leave.
    """

    weights: Array
    events: Events
    notes: list[dict[str, float]] = field(repr=False)
    trace: list[dict[str, float]] = field(repr=False)
    seconds: float
    fixed_noise: bool = False
    marginals: dict[str, Array] = field(default_factory=dict, repr=False)


class First:
    """An observer that keeps the value of the first release."""

    value: Any = None
    seen = False

    def asked(self, call: Call) -> None:
        """A call tells nothing of the value."""

    def released(self, mechanism: Mechanism, rows: Array | None, query: Query, value: Any) -> None:
        if not self.seen:
            self.value, self.seen = value, True


def run(
    planned: Planned,
    objective: Objective,
    *,
    seed: int | None = None,
    on_charge: Callable[[], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_weights: Callable[[Array], None] | None = None,
    fixed_noise_seed: int | None = None,
    observers: Sequence[Observer] = (),
    door: Callable[..., Budget] | None = None,
) -> Result:
    """Train: the only place that brings records, secret noise and an algorithm together.

    ``seed`` feeds the public generator (starts, mutations). ``on_charge`` is called after each
    charge, before rows are drawn; ``on_progress(done, total)`` after each release; ``on_weights``
    with the weights as soon as they are there, before anything is computed from them.
    ``fixed_noise_seed`` is for tests: its result is marked. ``observers`` look at what is asked and
    released (``dpcore.accounting.observers``); ``door`` makes another kind of budget, a planted
    fault. Raises ``InputError``, before anything is charged, where the records break a public fact
    of the problem.
    """
    own = _own(planned)
    objective.check(planned.problem)
    budget = open_door(
        own,
        objective,
        adaptive=planned.algorithm.adaptive,
        noise=planned.noise,
        on_charge=on_charge,
        on_progress=on_progress,
        fixed_noise_seed=fixed_noise_seed,
        door=door,
        observers=[*observers, first := First()],
        in_mu=any(isinstance(one, Room) and one.order is None for one in planned.limits),
    )
    start = perf_counter()
    # a warning would tell of the records, and turned into an error lose what is paid
    with np.errstate(all="ignore"):
        weights = planned.algorithm.fit(planned.problem, budget, np.random.default_rng(seed))
        if on_weights is not None:
            on_weights(weights)
    seconds = perf_counter() - start
    events = budget.events
    points = trace(planned, events, budget.notes)
    marginals = planned.algorithm.marginals(planned.problem, first.value) if first.seen else {}
    return Result(
        weights, events, budget.notes, points, seconds, fixed_noise_seed is not None, marginals
    )


def _own(planned: Planned) -> Events:
    """The releases of the training alone."""
    if planned.before is None:
        return planned.events
    if planned.own is None:
        raise InputError(
            "Expected the releases before the training to be made first; call replan() with what "
            "they gave."
        )
    return planned.own


def trace(
    planned: Planned, events: Events, notes: Sequence[dict[str, float]]
) -> list[dict[str, float]]:
    """Rows (release, spent_epsilon, noted numbers) for at most ``TRACE_POINTS`` releases, the last
    one included.

    Where ``auto`` states the run by distributions, what a part of it spent is the smaller of its
    curve and of the whole run's statement, which bounds each part.
    """
    total = len(events)
    if not planned.algorithm.private or total == 0:
        return []
    slow = planned.target is not None and planned.target.accountant == "pld"
    most = SLOW_TRACE_POINTS if slow else TRACE_POINTS
    points = np.unique(np.linspace(1, total, min(total, most)).round().astype(int)).tolist()
    noted: dict[int, dict[str, float]] = {}
    for note in notes:
        noted.setdefault(int(note["release"]), {}).update(note)
    spent = _spending(planned, events)
    return [{"release": k, **spent(k), **noted.get(k, {})} for k in points]


def _spending(planned: Planned, events: Events) -> Callable[[int], dict[str, float]]:
    """What the first k releases of the training spent with those before it, as a function of k;
    nothing without a target.
    """
    target, before = planned.target, planned.before
    if target is None:
        return lambda k: {}

    def first(k: int) -> Events:
        return before.then(events.prefix(k)) if before else events.prefix(k)

    if target.accountant == "pld":
        return lambda k: {"spent_epsilon": target.spent(first(k))}
    plain, whole = target.plain(), planned.spent_epsilon
    return lambda k: {"spent_epsilon": min(plain.spent(first(k)), whole)}
