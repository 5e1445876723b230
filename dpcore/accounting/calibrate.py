"""The least noise that every limit admits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import Protocol, TypeVar

from scipy.optimize import toms748

from dpcore.accounting.events import Events
from dpcore.accounting.exact import GridTooLarge, cell_of
from dpcore.accounting.limits import SLACK, Limit, Target
from dpcore.mechanisms import Mechanism
from dpcore.problem import Problem

# Relative gap between the noise that is returned and noise that no longer fits.
GAP = 1e-4
# Noise multipliers outside this range mean a target that no noise meets, or one that needs none.
LEAST, MOST = 1e-4, 1e9
# Where losses with less noise take too many cells, noise that leaves more than this of the log of a
# limit is no answer.
GRID_GAP = 0.01
# Distributions save less than this share of the noise of a Rényi curve.
PLD_GAIN = 1.3


class Planner(Protocol):
    """What is priced: a frozen dataclass that lists its releases, with all noise scaled by
    ``noise_multiplier``.
    """

    @property
    def noise_multiplier(self) -> float: ...

    def plan(self, problem: Problem) -> Sequence[Mechanism]: ...


Planning = TypeVar("Planning", bound=Planner)


def calibrate(
    algorithm: Planning, problem: Problem, *limits: Limit, noise: str = "rounded"
) -> Planning:
    """Return ``algorithm`` with the least ``noise_multiplier`` for which every limit admits its
    plan.

    The price falls as noise grows, so the search brackets and then closes on the crossing of
    max_k log(price / allowed); the result is on the safe side and within 1e-4 (relative) of noise
    that does not fit. Raises ``BudgetExceeded`` where no noise is enough (a ledger without room, an
    epsilon that no order can state).
    """

    excess = _Excess(algorithm, problem, limits, noise)
    low, high = _near_rdp(excess, algorithm, problem, limits, noise) or _bracket(excess)
    if high == inf:
        events = excess.events(MOST)
        raise next(limit for limit in limits if limit.ratio(events) > 1.0).refusal(events)
    if low > 0:
        crossing = toms748(
            lambda t: excess(exp(t)), log(low), log(high), xtol=GAP / 8, rtol=GAP / 8
        )
        high = _safe_side(excess, exp(crossing), high)
    if excess.too_large is not None and excess(high) < -GRID_GAP:
        raise excess.too_large
    return with_multiplier(algorithm, high)


@dataclass
class _Excess:
    """Log of the worst price over what is allowed at a noise multiplier, cut to +-50; at most 0
    fits. So little noise that it has no price by distributions (``too_large``) does not.
    """

    algorithm: Planner
    problem: Problem
    limits: tuple[Limit, ...]
    noise: str
    too_large: GridTooLarge | None = None

    def events(self, multiplier: float) -> Events:
        """The plan with noise of ``multiplier``."""
        return planned_events(with_multiplier(self.algorithm, multiplier), self.problem, self.noise)

    def __call__(self, multiplier: float) -> float:
        events = self.events(multiplier)
        try:
            worst = max(limit.ratio(events) for limit in self.limits)
        except GridTooLarge as error:
            self.too_large = error
            return 50.0
        if worst == inf:
            return 50.0
        return max(log(worst), -50.0) if worst > 0 else -50.0


def _near_rdp(
    excess: Callable[[float], float],
    algorithm: Planner,
    problem: Problem,
    limits: tuple[Limit, ...],
    noise: str,
) -> tuple[float, float] | None:
    """A bracket just below the noise of a Rényi curve, for targets by distributions: each try takes
    long there.

    Raises ``GridTooLarge``, before anything is composed, where losses with that little noise take
    too many cells.
    """
    targets = [limit for limit in limits if isinstance(limit, Target) and limit.accountant == "pld"]
    if not targets:
        return None
    others = [limit for limit in limits if limit not in targets]
    by_curve = calibrate(
        algorithm,
        problem,
        *others,
        *(replace(one, accountant="rdp") for one in targets),
        noise=noise,
    )
    high = by_curve.noise_multiplier
    cell_of(planned_events(with_multiplier(algorithm, high), problem, noise).counts)
    low = high / PLD_GAIN
    return (low, high) if excess(high) <= 0.0 < excess(low) else None


def with_multiplier(algorithm: Planning, multiplier: float) -> Planning:
    """``algorithm`` with another ``noise_multiplier``."""
    changed: Planning = replace(algorithm, noise_multiplier=multiplier)  # type: ignore[type-var]
    return changed


def planned_events(algorithm: Planner, problem: Problem, noise: str = "rounded") -> Events:
    """What ``algorithm`` would release on ``problem``, with noise of the form ``noise``
    (``FORMS``).
    """
    mechanisms = algorithm.plan(problem)
    if noise != "rounded":
        formed = {id(mechanism): mechanism.with_noise(noise) for mechanism in mechanisms}
        mechanisms = [formed[id(mechanism)] for mechanism in mechanisms]
    return Events.of(mechanisms, adjacency=problem.adjacency, unit=problem.unit)


def check_limits(events: Events, *limits: Limit) -> None:
    """Raise the refusal of the first limit that ``events`` do not fit."""
    for limit in limits:
        if not limit.ratio(events) <= 1.0 + SLACK:
            raise limit.refusal(events)


def _bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """Multipliers (low, high) where low does not fit and high does; low 0 where the least does,
    high inf if none.
    """
    low, high = 0.5, 2.0
    while excess(high) > 0:
        low, high = high, high * 8.0
        if high > MOST:
            return low, inf
    while excess(low) <= 0:
        low, high = low / 4.0, low
        if low < LEAST:
            return 0.0, high
    return low, high


def _safe_side(excess: Callable[[float], float], crossing: float, high: float) -> float:
    """The first multiplier from ``crossing`` upwards, in steps of a quarter of the gap, that
    fits.
    """
    for step in range(1, 9):
        candidate = crossing * (1.0 + step * GAP / 8)
        if candidate >= high:
            return high
        if excess(candidate) <= 0:
            return candidate
    return high
