"""Plan a private training from public facts, then run it through its one door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from time import perf_counter
from typing import Any

import numpy as np

from dpcore.accounting.budget import Budget, open_door
from dpcore.accounting.calibrate import calibrate, check_limits, planned_events
from dpcore.accounting.events import Events
from dpcore.accounting.limits import SLACK, Limit, Target
from dpcore.accounting.sequel import After, Within
from dpcore.algorithms import Algorithm, check, make
from dpcore.auto import resolve
from dpcore.errors import InputError
from dpcore.losses import Array
from dpcore.objective import LinearObjective, Objective
from dpcore.one_vs_rest import OneVsRest
from dpcore.problem import Adjacency, Problem

# A trace with more points than this is thinned: nobody can see more in a figure.
TRACE_POINTS = 500
# Composing privacy-loss distributions takes a good part of a second a point.
SLOW_TRACE_POINTS = 10
# Noise multipliers outside this range are no noise, or nothing but noise.
NOISE = 1e-12, 1e12


@dataclass(frozen=True)
class Planned:
    """A calibrated algorithm, what it will release and why it was chosen. No record has been read.

    ``events`` is all that is charged. Where releases ``before`` the training belong to it, they come first in it, and
    the training's ``own`` are known (``replan``) once they are made.
    """

    name: str
    algorithm: Algorithm
    problem: Problem
    events: Events
    limits: tuple[Limit, ...] = ()
    preset: str | None = None
    reason: str = ""
    noise: str = "rounded"
    before: Events | None = None
    own: Events | None = None

    @property
    def target(self) -> Target | None:
        """The run's own (epsilon, delta), if one was given."""
        return next((limit for limit in self.limits if isinstance(limit, Target)), None)

    @property
    def spent_epsilon(self) -> float:
        """Epsilon of the whole plan at the target's delta; infinity without a target or for a baseline."""
        return self.target.spent(self.events) if self.target and self.algorithm.private else float("inf")

    @property
    def parameters(self) -> dict[str, Any]:
        """The hyper-parameters that will be used, by name; those left out with what they come to, where that is one."""
        if hasattr(self.algorithm, "parameters"):  # several settings of one algorithm
            return dict(self.algorithm.parameters(self.problem))
        return described(self.algorithm, self.problem)

    @property
    def phases(self) -> list[dict[str, Any]]:
        """What an algorithm of several phases does in each, from public facts; empty for the others."""
        outline = getattr(self.algorithm, "outline", None)
        return outline(self.problem) if outline else []

    @property
    def warning(self) -> str:
        """What public facts say against this plan (too little signal to learn from); empty where nothing."""
        advice = getattr(self.algorithm, "advice", None)
        return advice(self.problem) if advice else ""


def described(algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """Fields of ``algorithm`` by name; those left out with what they come to on ``problem``, where that is one."""
    inner: Any = algorithm.inner if isinstance(algorithm, OneVsRest) else algorithm
    given = {item.name: getattr(inner, item.name) for item in fields(inner)}
    settings = getattr(inner, "settings", None)  # of two phases a mapping that the caller gave
    return given | (settings(problem) if callable(settings) else {})


@dataclass(frozen=True)
class Result:
    """What a run released, and the public numbers that describe it.

    ``events`` is what really ran; the guarantee is the planned price. ``trace`` has one row for (at most 500) releases
    with the epsilon spent so far and the notes of the algorithm. ``fixed_noise`` marks a run that may never leave.
    """

    weights: Array
    events: Events
    notes: list[dict[str, float]] = field(repr=False)
    trace: list[dict[str, float]] = field(repr=False)
    seconds: float
    fixed_noise: bool = False


def plan(
    name: str,
    parameters: dict[str, Any],
    problem: Problem,
    *limits: Limit,
    preset: str | None = None,
    noise: str = "rounded",
    before: Events | None = None,
) -> Planned:
    """Choose and calibrate an algorithm from public facts; no record is read.

    ``auto`` is resolved here. ``noise_multiplier`` is calibrated to all ``limits`` unless ``parameters`` give it, in
    which case it must fit. Raises ``InputError`` for names, ranges and unmet assumptions, ``BudgetExceeded`` where the
    limits do not admit the run. ``noise``: ``rounded``, or ``discrete`` for exact integer noise (``dpcore.noise``).
    ``before``: releases under the same guarantee that come first and that the problem may depend on; the limits are
    then met by both together, and ``replan`` follows when they are made.
    """
    target = next((limit for limit in limits if isinstance(limit, Target)), None)
    name, parameters, reason = resolve(name, parameters, problem, target)
    algorithm = make(name, parameters, preset)
    check(algorithm, problem)
    check_noise(algorithm)
    if problem.outputs > 1 and problem.loss.argument in ("margin", "residual"):
        algorithm = OneVsRest.of(algorithm)  # type: ignore[assignment]
    curve_only = algorithm.adaptive or before is not None
    limits = tuple(_by_accountant(algorithm, limit, curve_only) for limit in limits)
    asked: tuple[Limit, ...] = limits if before is None else tuple(After(limit, before) for limit in limits)
    if algorithm.private and limits:
        given = "noise_multiplier" in parameters
        if not given:
            algorithm = calibrate(algorithm, problem, *asked, form=noise)
        check_limits(planned_events(algorithm, problem, noise), *asked)
    events = planned_events(algorithm, problem, noise)
    events = events if before is None else before.then(events)
    return Planned(algorithm.name, algorithm, problem, events, limits, preset, reason, noise, before)


def check_noise(algorithm: Algorithm) -> None:
    """Raise ``InputError`` for a ``noise_multiplier`` whose squares leave the numbers that prices are formed in."""
    least, most = NOISE
    multiplier = getattr(algorithm, "noise_multiplier", least)
    if not least <= multiplier <= most:
        raise InputError(
            f"Expected noise_multiplier from {least:g} to {most:g}, got noise_multiplier={multiplier:g}; leave it out "
            "to have it calibrated, or use a non-private baseline for none."
        )


def _by_accountant(algorithm: Algorithm, limit: Limit, curve_only: bool) -> Limit:
    """The limit itself; a target that leaves the accountant open takes the one that the algorithm stands for.

    An adaptive run, or one that is chosen after other releases, keeps below the Rényi curve of its plan and nothing
    else (``curve_only``), so only that curve may be converted.
    """
    wanted = "rdp" if curve_only else algorithm.accountant
    if wanted is None or not isinstance(limit, Target) or limit.accountant == wanted:
        return limit
    if limit.accountant != "auto":
        if not curve_only:
            return limit
        kind = "adaptive" if algorithm.adaptive else "a training after estimated bounds with"
        raise InputError(
            f"Expected accountant auto or rdp for {kind} {algorithm.name!r}, got accountant={limit.accountant!r}: "
            "its releases are not known beforehand; use accountant='auto'."
        )
    return replace(limit, accountant=wanted)


def replan(planned: Planned, problem: Problem, keep_noise: bool = False) -> Planned:
    """``planned`` on the ``problem`` that is known when the releases ``planned.before`` are made; no record is read.

    The training that was reserved is a cap on its price at every order (``Within``). Its noise stays where it meets
    that exactly (with ``keep_noise``, where a user gave it: meets it at all), else it is calibrated anew to the cap;
    ``events``, what was charged, stay. Raises ``InputError`` where the algorithm cannot be used on ``problem``.
    """
    check(planned.algorithm, problem)
    reserved = planned_events(planned.algorithm, planned.problem, planned.noise)
    cap, algorithm = Within(reserved), planned.algorithm
    own = planned_events(algorithm, problem, planned.noise)
    ratio = cap.ratio(own)
    if not (ratio <= 1.0 + SLACK if keep_noise else abs(ratio - 1.0) <= SLACK):
        algorithm = calibrate(algorithm, problem, cap, form=planned.noise)
        own = planned_events(algorithm, problem, planned.noise)
    check_limits(own, cap)
    return replace(planned, algorithm=algorithm, problem=problem, own=own)


def run(
    planned: Planned,
    objective: Objective,
    *,
    seed: int | None = None,
    on_charge: Callable[[], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_weights: Callable[[Array], None] | None = None,
    fixed_noise_seed: int | None = None,
    door: Callable[..., Budget] | None = None,
) -> Result:
    """Train: the only place that brings records, secret noise and an algorithm together.

    ``seed`` feeds the public generator (starts, mutations). ``on_charge`` is called after each charge, before rows are
    drawn; ``on_progress(done, total)`` after each release; ``on_weights`` with the weights as soon as they are there,
    before anything is computed from them. ``fixed_noise_seed`` is for tests: its result is marked.
    ``door`` makes another kind of budget: that of a canary run looks at what it releases (``dpcore.audit.watch``).
    Raises ``InputError``, before anything is charged, where the records break a public fact of the problem.
    """
    own = _own(planned)
    check_public_facts(planned.problem, objective)
    budget = open_door(
        own,
        objective,
        adaptive=planned.algorithm.adaptive,
        form=planned.noise,
        on_charge=on_charge,
        on_progress=on_progress,
        fixed_noise_seed=fixed_noise_seed,
        door=door,
    )
    start = perf_counter()
    with np.errstate(all="ignore"):  # a warning would tell of the records, and turned into an error lose what is paid
        weights = planned.algorithm.fit(planned.problem, budget, np.random.default_rng(seed))
        if on_weights is not None:
            on_weights(weights)
    seconds = perf_counter() - start
    events = budget.events
    points = trace(planned, events, budget.notes)
    return Result(weights, events, budget.notes, points, seconds, fixed_noise_seed is not None)


def _own(planned: Planned) -> Events:
    """The releases of the training alone."""
    if planned.before is None:
        return planned.events
    if planned.own is None:
        raise InputError(
            "Expected the releases before the training to be made first; call replan() with what they gave."
        )
    return planned.own


def check_public_facts(problem: Problem, objective: Objective) -> None:
    """Raise ``InputError`` where the records break what the price relied on: dimension, exact n, norm bound."""
    if objective.n == 0:
        raise InputError("Expected at least one record, got an empty table; check the path and the split.")
    if problem.adjacency is not Adjacency.ADD_REMOVE and objective.n != problem.n:
        raise InputError(
            f"Expected exactly n={problem.n} records under {problem.adjacency}, where n is public, got {objective.n}; "
            "declare the exact count of the training part, or use adjacency=add_remove with a nominal n."
        )
    if problem.documents is not None:
        objective.check_documents(problem.documents)  # type: ignore[attr-defined]
    if problem.kind == "linear" and problem.outputs > 1:
        objective.check_labels(problem.outputs)  # type: ignore[attr-defined]
    if problem.outputs == 1 and problem.loss.argument == "margin" and isinstance(objective, LinearObjective):
        objective.check_margins()
    check_records = getattr(objective, "check_records", None)
    if check_records is not None:
        check_records(problem.dimension, problem.norm_bound)


def trace(planned: Planned, events: Events, notes: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Rows (release, spent_epsilon, noted numbers) for at most ``TRACE_POINTS`` releases, the last one included."""
    total = len(events)
    if not planned.algorithm.private or total == 0:
        return []
    slow = planned.target is not None and planned.target.accountant_of(events) == "pld"
    most = SLOW_TRACE_POINTS if slow else TRACE_POINTS
    points = np.unique(np.linspace(1, total, min(total, most)).round().astype(int))
    noted: dict[int, dict[str, float]] = {}
    for note in notes:
        noted.setdefault(int(note["release"]), {}).update(note)
    rows = []
    for k in points:
        row: dict[str, float] = {"release": int(k)}
        if planned.target is not None:
            so_far = events.prefix(int(k))
            row["spent_epsilon"] = planned.target.spent(planned.before.then(so_far) if planned.before else so_far)
        rows.append(row | noted.get(int(k), {}))
    return rows
