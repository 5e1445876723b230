"""Plan a private training from public facts, then run it through its one door."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dpcore.accounting.calibrate import calibrate, check_limits, planned_events
from dpcore.accounting.events import Events
from dpcore.accounting.limits import SLACK, Limit, LimitAfter, PriceCap, Target
from dpcore.algorithms import Algorithm, check_assumptions, make
from dpcore.algorithms.base import Trainer
from dpcore.errors import InputError
from dpcore.problem import Problem
from dpcore.train.auto import resolve
from dpcore.train.one_vs_rest import OneVsRest

# Noise multipliers outside this range are no noise, or nothing but noise.
NOISE = 1e-12, 1e12


@dataclass(frozen=True)
class Planned:
    """A calibrated algorithm, what it will release and why it was chosen. No record has been read.

    ``events`` is all that is charged. Where releases ``before`` the training belong to it, they
    come first in it, and the training's ``own`` are known (``replan``) once they are made.
    """

    name: str
    algorithm: Trainer
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
        """Epsilon of the whole plan at the target's delta; infinity without a target or for a
        baseline.
        """
        return (
            self.target.spent(self.events)
            if self.target and self.algorithm.private
            else float("inf")
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The hyper-parameters that will be used, by name; those left out with what they come to,
        where that is one.
        """
        return self.algorithm.parameters(self.problem)

    @property
    def phases(self) -> list[dict[str, Any]]:
        """What an algorithm of several phases does in each, from public facts; empty for the
        others.
        """
        return self.algorithm.outline(self.problem)

    @property
    def warning(self) -> str:
        """What public facts say against this plan (too little signal to learn from); empty where
        nothing.
        """
        return self.algorithm.advice(self.problem)


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

    ``auto`` is resolved here. ``noise_multiplier`` is calibrated to all ``limits`` unless
    ``parameters`` give it, in which case it must fit. Raises ``InputError`` for names, ranges and
    unmet assumptions, ``BudgetExceeded`` where the limits do not admit the run. ``noise``:
    ``rounded``, or ``discrete`` for exact integer noise (``dpcore.noise``).
    ``before``: releases under the same guarantee that come first and that the problem may depend
    on; the limits are then met by both together, and ``replan`` follows when they are made.
    """
    target = next((limit for limit in limits if isinstance(limit, Target)), None)
    name, parameters, reason = resolve(name, parameters, problem, target)
    single = make(name, parameters, preset)
    check_assumptions(single, problem)
    check_noise(single)
    each = problem.outputs > 1 and problem.loss.argument in ("margin", "residual")
    algorithm: Trainer = OneVsRest.of(single) if each else single
    curve_only = algorithm.adaptive or before is not None
    limits = tuple(_by_accountant(algorithm, limit, curve_only) for limit in limits)
    asked: tuple[Limit, ...] = (
        limits if before is None else tuple(LimitAfter(limit, before) for limit in limits)
    )
    if algorithm.private and limits:
        given = "noise_multiplier" in parameters
        if not given:
            algorithm = calibrate(algorithm, problem, *asked, noise=noise)
        check_limits(planned_events(algorithm, problem, noise), *asked)
    events = planned_events(algorithm, problem, noise)
    events = events if before is None else before.then(events)
    return Planned(
        algorithm.name, algorithm, problem, events, limits, preset, reason, noise, before
    )


def check_noise(algorithm: Algorithm) -> None:
    """Raise ``InputError`` for a ``noise_multiplier`` whose squares leave the numbers that prices
    are formed in.
    """
    least, most = NOISE
    multiplier = algorithm.noise_multiplier
    if not least <= multiplier <= most:
        raise InputError(
            f"Expected noise_multiplier from {least:g} to {most:g}, got "
            f"noise_multiplier={multiplier:g}; leave it out "
            "to have it calibrated, or use a non-private baseline for none."
        )


def _by_accountant(algorithm: Trainer, limit: Limit, curve_only: bool) -> Limit:
    """The limit itself; a target that leaves the accountant open takes the one that the algorithm
    stands for.

    An adaptive run, or one that is chosen after other releases, keeps below the Rényi curve of its
    plan and nothing else (``curve_only``), so only that curve may be converted.
    """
    wanted = "rdp" if curve_only else algorithm.accountant
    if wanted is None or not isinstance(limit, Target) or limit.accountant == wanted:
        return limit
    if limit.accountant != "auto":
        if not curve_only:
            return limit
        kind = "adaptive" if algorithm.adaptive else "a training after estimated bounds with"
        raise InputError(
            f"Expected accountant auto or rdp for {kind} {algorithm.name!r}, got "
            f"accountant={limit.accountant!r}: "
            "its releases are not known beforehand; use accountant='auto'."
        )
    return replace(limit, accountant=wanted)


def replan(planned: Planned, problem: Problem, keep_noise: bool = False) -> Planned:
    """``planned`` on the ``problem`` that is known when the releases ``planned.before`` are made;
    no record is read.

    The training that was reserved is a cap on its price at every order (``PriceCap``). Its noise
    stays where it meets that exactly (with ``keep_noise``, where a user gave it: meets it at all),
    else it is calibrated anew to the cap; ``events``, what was charged, stay. Raises ``InputError``
    where the algorithm cannot be used on ``problem``.
    """
    check_assumptions(planned.algorithm, problem)
    reserved = planned_events(planned.algorithm, planned.problem, planned.noise)
    cap, algorithm = PriceCap(reserved), planned.algorithm
    own = planned_events(algorithm, problem, planned.noise)
    ratio = cap.ratio(own)
    if not (ratio <= 1.0 + SLACK if keep_noise else abs(ratio - 1.0) <= SLACK):
        algorithm = calibrate(algorithm, problem, cap, noise=planned.noise)
        own = planned_events(algorithm, problem, planned.noise)
    check_limits(own, cap)
    return replace(planned, algorithm=algorithm, problem=problem, own=own)
