"""The least noise that every limit admits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, log, sqrt
from typing import Protocol, TypeVar

from scipy.optimize import toms748

from dpcore.accounting.events import Events
from dpcore.accounting.exact import SHARE
from dpcore.accounting.limits import SLACK, Limit, Target
from dpcore.errors import PriceUnknown
from dpcore.mechanisms import Gaussian, InTurn, Mechanism, Rounds
from dpcore.problem import Adjacency, Problem

# Relative gap between the noise that is returned and noise that no longer fits.
GAP = 1e-4
# Noise multipliers outside this range mean a target that no noise meets, or one that needs none.
LEAST, MOST = 1e-4, 1e9
# Distributions save less than this share of the noise of a Rényi curve.
PLD_GAIN = 1.3
# Cells of the search by distributions, as a share of epsilon, and how near to the target it ends:
# first wide ones, then those of a statement. Epsilon falls with noise about as steeply as this.
COARSE_SHARE, COARSE_GAP, FINE_GAP = 4e-4, 2e-3, 1e-3
PLD_SLOPE = -1.5


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

    By Rényi curves and closed forms: the price falls as noise grows, so the search brackets and
    then closes on the crossing of max_k log(price / allowed); the result is on the safe side and
    within 1e-4 (relative) of noise that does not fit. By distributions less noise may do, to 1e-3
    of it (``_sharpened``). A target that leaves its accountant open asks them where nothing but
    targets limits the run: what a ledger charges is the curve, and less noise is a dearer curve.
    Raises ``BudgetExceeded`` where no noise is enough (a ledger without room, an epsilon that no
    order can state), ``PriceUnknown`` where a target names distributions that do not exist.
    """
    found = _by_curve(algorithm, problem, tuple(map(_plain, limits)), noise)
    targets = [one for one in limits if isinstance(one, Target)]
    required = [one for one in targets if one.accountant == "pld"]
    if required:
        others = [_plain(one) for one in limits if one not in required]
        return _sharpened(found, problem, required, others, noise)
    return _where_asked(found, problem, targets, noise) if len(targets) == len(limits) else found


def _plain(limit: Limit) -> Limit:
    """The limit with a price that is cheap to find."""
    return limit.plain() if isinstance(limit, Target) else limit


def _where_asked(
    found: Planning, problem: Problem, targets: Sequence[Target], noise: str
) -> Planning:
    """``found``, sharpened for those targets that ask distributions of such a run and have them."""
    events = planned_events(found, problem, noise)
    asked = [one for one in targets if one.asks_distributions(events)]
    others = [one for one in targets if one not in asked]
    try:
        return _sharpened(found, problem, asked, others, noise) if asked else found
    except PriceUnknown:
        return found


def _sharpened(
    found: Planning,
    problem: Problem,
    targets: Sequence[Target],
    others: Sequence[Limit],
    noise: str,
) -> Planning:
    """Less noise than ``found`` that the ``targets`` admit by distributions, and the ``others``.

    A secant search in logs, first over cells that are wide and fast, then over those of a
    statement, where it ends on the safe side. Raises ``PriceUnknown`` where there are no
    distributions.
    """

    def excess(place: float, share: float) -> float:
        events = planned_events(with_multiplier(found, exp(place)), problem, noise)
        return _log_excess(events, targets, others, share)

    most = log(found.noise_multiplier)
    place, best, slope = most, inf, PLD_SLOPE
    for share, width, tries in ((COARSE_SHARE, COARSE_GAP, 6), (SHARE, FINE_GAP, 5)):
        value = excess(place, share)
        for _ in range(tries):
            if share == SHARE and value <= 0.0:
                best = min(best, place)
            aim = place - (value + width / 2.0) / slope
            nearer = min(max(aim, most - log(PLD_GAIN)), most + width)
            if nearer == place or -width <= value <= 0.0:
                break
            after = excess(nearer, share)
            slope = min(max((after - value) / (nearer - place), -8.0), -0.3)
            place, value = nearer, after
    best = min(best, place) if value <= 0.0 else best
    return with_multiplier(found, exp(best)) if best < inf else found


def _log_excess(
    events: Events, targets: Sequence[Target], others: Sequence[Limit], share: float
) -> float:
    """log(price / allowed) of the worst limit, the ``targets`` by distributions of ``share``."""
    worst = max(one.composed(events, share) / one.epsilon for one in targets)
    worst = max([worst, *(one.ratio(events) for one in others)])
    return max(log(worst), -50.0) if worst > 0 else -50.0


def _by_curve(
    algorithm: Planning, problem: Problem, limits: tuple[Limit, ...], noise: str
) -> Planning:
    """The least noise that all ``limits`` admit, whose prices are cheap."""

    def excess(multiplier: float) -> float:
        """Log of the worst price over what is allowed, cut to +-50; at most 0 fits."""
        events = planned_events(with_multiplier(algorithm, multiplier), problem, noise)
        worst = max(limit.ratio(events) for limit in limits)
        if worst == inf:
            return 50.0
        return max(log(worst), -50.0) if worst > 0 else -50.0

    low, high = _bracket(excess)
    if high == inf:
        events = planned_events(with_multiplier(algorithm, MOST), problem, noise)
        raise next(limit for limit in limits if limit.ratio(events) > 1.0).refusal(events)
    if low > 0:
        crossing = toms748(
            lambda t: excess(exp(t)), log(low), log(high), xtol=GAP / 8, rtol=GAP / 8
        )
        high = _safe_side(excess, exp(crossing), high)
    return with_multiplier(algorithm, high)


def with_multiplier(algorithm: Planning, multiplier: float) -> Planning:
    """``algorithm`` with another ``noise_multiplier``."""
    changed: Planning = replace(algorithm, noise_multiplier=multiplier)  # type: ignore[type-var]
    return changed


def planned_events(algorithm: Planner, problem: Problem, noise: str = "rounded") -> Events:
    """What ``algorithm`` would release on ``problem``, with noise of the form ``noise``
    (``FORMS``).
    """
    mechanisms = _formed(algorithm.plan(problem), noise)
    return Events.of(mechanisms, adjacency=problem.adjacency, unit=problem.unit)


def _formed(mechanisms: Sequence[Mechanism], noise: str) -> Sequence[Mechanism]:
    """Each of ``mechanisms`` with its noise in the form ``noise``; equal objects stay one."""
    if noise == "rounded":
        return mechanisms
    if isinstance(mechanisms, Rounds):
        return replace(mechanisms, block=_formed(mechanisms.block, noise))
    if isinstance(mechanisms, InTurn):
        return InTurn(tuple(_formed(part, noise) for part in mechanisms.parts))
    formed = {id(mechanism): mechanism.with_noise(noise) for mechanism in mechanisms}
    return [formed[id(mechanism)] for mechanism in mechanisms]


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


def calibrated_gaussian(
    sensitivity: float, target: Target, adjacency: Adjacency, noise: str = "rounded"
) -> Gaussian:
    """One Gaussian release of the least noise that fits ``target``."""

    def single(multiplier: float) -> Gaussian:
        return Gaussian(sensitivity, sensitivity * multiplier)

    def events(multiplier: float) -> Events:
        return Events.of([single(multiplier).with_noise(noise)], adjacency=adjacency)

    return single(least_noise(events, target))


def least_noise(events: Callable[[float], Events], target: Target) -> float:
    """The least noise multiplier, to 1 part in 1000, whose ``events`` fit ``target``."""
    low = high = 1e-2
    while target.ratio(events(high)) > 1.0:
        low, high = high, high * 2.0
        if high > 1e9:
            raise target.refusal(events(high))
    while high / low > 1.001:
        middle = sqrt(low * high)
        low, high = (middle, high) if target.ratio(events(middle)) > 1.0 else (low, middle)
    return high
