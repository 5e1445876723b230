"""Lower confidence bounds on epsilon from how well an attack tells two neighbours apart.

From outputs of many fits on both: a test is chosen on one half of them, and measured on the other.

What right guesses about many coins of one run say against a whole trade-off curve, not one
(epsilon, delta).

The coins S_1..S_m are fair and independent, and turning one over makes a neighbour: a record is in
or out (add/remove), or one of two records is in (replace-one). The guesses follow from the output
alone. With W right of g guesses and a mechanism whose tests reach a true rate of at most F(b) at a
false rate of b (F concave, the curve 1 - f of f-DP),

    E[W / m; W >= c] <= F(E[(g - W) / m; W >= c - 1])   for every c,

because turning coin i over makes guess i wrong and leaves the others; the mean over i and both
sides, with F concave, gives the line. So the chance t of W >= v forces a least chance of W = v - 1,
that one of W = v - 2, and so on; more mass at one place never forces less below. If their sum
passes 1, then t is impossible. Mahloujifar, Melis & Chaudhuri (2024), "Auditing f-differential
privacy in one run", Theorem 8 and Algorithm 3, which starts and goes like this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import exp, log
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from dpcore.accounting.events import Events
from dpcore.accounting.limits import Target
from dpcore.losses import Array
from dpcore.mechanisms.gaussian import gaussian_epsilon

# Beyond this the bound says no more than that there is no privacy.
LARGEST = 50.0


def rate_below(hits: int, total: int, error: float) -> float:
    """Lower confidence limit of a rate, at chance ``error`` of being too high. Clopper & Pearson
    (1934).
    """
    return float(betaincinv(hits, total - hits + 1, error)) if hits > 0 else 0.0


def rate_above(hits: int, total: int, error: float) -> float:
    """Upper confidence limit of a rate, at chance ``error`` of being too low."""
    return float(betaincinv(hits + 1, total - hits, 1.0 - error)) if hits < total else 1.0


def clopper_pearson_epsilon(
    hits: int, misses: int, total: int, delta: float, confidence: float
) -> float:
    """ln((p - delta) / q) with p, q the limits of the rates hits / total and misses / total; at
    least 0.

    Holds for any mechanism: (epsilon, delta)-DP demands P[S(D)] <= e^epsilon P[S(D')] + delta for
    every set S. Both limits hold together with chance ``confidence``.
    """
    error = (1.0 - confidence) / 2.0
    low, high = rate_below(hits, total, error), rate_above(misses, total, error)
    return min(max(log((low - delta) / high), 0.0), LARGEST) if low > delta else 0.0


def gaussian_tradeoff_epsilon(
    hits: int, misses: int, total: int, delta: float, confidence: float
) -> float:
    """Epsilon at ``delta`` of mu-Gaussian DP with mu = Phi^-1(p) - Phi^-1(q), p and q as above; at
    least 0.

    For mechanisms whose trade-off curve is Gaussian, where one threshold gives the whole curve:
    Nasr et al. (2023), "Tight auditing". It says nothing about others.
    """
    error = (1.0 - confidence) / 2.0
    low, high = rate_below(hits, total, error), rate_above(misses, total, error)
    mu = float(ndtri(low) - ndtri(high)) if low > 0.0 and high < 1.0 else 0.0
    return min(float(gaussian_epsilon(delta, mu)), LARGEST) if mu > 1e-6 else 0.0


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Chance that (epsilon, delta)-DP lets ``right`` of ``guesses`` be right, at most.

    With S ~ Binomial(guesses, e^epsilon / (1 + e^epsilon)): P[S >= v] + 2 m delta max_i P[v > S >=
    v - i] / i. Steinke, Nasr & Jagielski (2023), Theorem 5.2.
    """
    q = 1.0 / (1.0 + exp(-epsilon))
    below = binom.pmf(np.arange(right - 1, -1, -1), guesses, q)
    alpha = float(np.max(np.cumsum(below) / np.arange(1, right + 1), initial=0.0))
    return min(float(binom.sf(right - 1, guesses, q)) + 2.0 * canaries * delta * alpha, 1.0)


def one_run_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Largest epsilon that ``right`` right guesses of ``guesses`` rule out with ``confidence``; at
    least 0.

    ``canaries`` were in or out by fair independent coins; the attack may abstain on some.
    Add/remove adjacency.
    """
    if right == 0 or guesses == 0:
        return 0.0
    error = 1.0 - confidence

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) - error

    if excess(0.0) >= 0.0:
        return 0.0
    return LARGEST if excess(LARGEST) < 0.0 else float(brentq(excess, 0.0, LARGEST, xtol=1e-6))


def thresholds(first: Array, second: Array) -> Array:
    """Candidate thresholds: quantiles of both samples together, finer in the tails."""
    tails = np.geomspace(5e-4, 0.5, 60)
    return np.unique(
        np.quantile(np.concatenate([first, second]), np.concatenate([tails, 1.0 - tails]))
    )


# The least false rate at which a true rate is reached: the inverse of F, 0 where it costs nothing.
Least = Callable[[float], float]

LARGEST_MU = 12.0
# A smaller chance is reported as this one.
SMALLEST = 1e-9
# Where a promise is asked for its epsilon; every such pair holds, and more of them make a tighter
# curve.
DELTAS = np.geomspace(1e-9, 0.5, 40)


def gaussian_curve(mu: float) -> Least:
    """Of mu-Gaussian differential privacy: Phi(Phi^-1(a) - mu). Dong, Roth & Su (2022), Definition
    4.
    """
    return lambda rate: float(ndtr(ndtri(rate) - mu))


def promised_curve(epsilons: Array, deltas: Array) -> Least:
    """Of a mechanism that is (epsilon_k, delta_k)-DP for each k, both arrays of shape (k,).

    Each pair says a <= e^epsilon b + delta, and 1 - b <= e^epsilon (1 - a) + delta for the
    complement.
    """
    growth = np.exp(np.minimum(epsilons, 500.0))

    def least(rate: float) -> float:
        return max(
            float(np.max((rate - deltas) / growth)),
            float(np.max(1.0 - deltas - growth * (1.0 - rate))),
            0.0,
        )

    return least


def possible(chance: float, canaries: int, guesses: int, right: int, least: Least) -> bool:
    """Whether the curve lets W >= ``right`` of ``guesses`` have this ``chance``."""
    total, right_mass = chance, chance * right / canaries  # P[W >= c] and E[W / m; W >= c]
    for c in range(right, 0, -1):
        wrong_mass = total * guesses / canaries - right_mass
        # least P[W = c - 1]
        forced = canaries * (least(right_mass) - wrong_mass) / (guesses - c + 1)
        if forced > 0.0:
            total, right_mass = total + forced, right_mass + forced * (c - 1) / canaries
            if total > 1.0:
                return False
    return True


def curve_p_value(canaries: int, guesses: int, right: int, least: Least) -> float:
    """The largest chance that the curve allows for ``right`` or more of ``guesses`` to be right, at
    least 1e-9.
    """
    if right == 0 or possible(1.0, canaries, guesses, right, least):
        return 1.0
    low, high = log(SMALLEST), 0.0
    for _ in range(24):
        middle = (low + high) / 2.0
        low, high = (
            (middle, high)
            if possible(exp(middle), canaries, guesses, right, least)
            else (low, middle)
        )
    return exp(high)


def one_run_gaussian_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Epsilon at ``delta`` of the largest mu-Gaussian DP that ``right`` right guesses rule out; at
    least 0.

    For mechanisms whose trade-off curve is Gaussian (noisy sums and iterates without sampling,
    together): it says nothing about others.
    """
    error = 1.0 - confidence
    if right == 0 or possible(error, canaries, guesses, right, gaussian_curve(0.0)):
        return 0.0
    if not possible(error, canaries, guesses, right, gaussian_curve(LARGEST_MU)):
        return LARGEST
    low = brentq(
        lambda mu: 1.0 if possible(error, canaries, guesses, right, gaussian_curve(mu)) else -1.0,
        0.0,
        LARGEST_MU,
        xtol=1e-5,
    )
    return min(float(gaussian_epsilon(delta, max(low - 1e-5, 1e-9))), LARGEST)


def promise_of(target: Target, events: Events) -> Least:
    """The curve that a plan promises: its epsilon at ``DELTAS``, by the target's accountant (rdp
    for the slow pld).
    """
    points = [replace(target.plain(), delta=float(delta)) for delta in DELTAS]
    return promised_curve(np.array([point.spent(events) for point in points]), DELTAS)


@dataclass(frozen=True)
class Measured:
    """Lower bounds on epsilon at ``delta``, each with chance ``confidence`` of being below the
    truth.

    ``gaussian_tradeoff`` is for mechanisms with Gaussian outputs alone. ``statistic`` and its
    threshold were chosen on the first half of the fits; the bounds come from the second.
    """

    claimed: float
    delta: float
    clopper_pearson: float
    gaussian_tradeoff: float
    statistic: str
    fits: int
    confidence: float
    seconds: float = 0.0

    @property
    def exceeds(self) -> bool:
        """Whether a bound that holds for any mechanism is above the claim: the claim is then
        false.
        """
        return self.clopper_pearson > self.claimed

    @property
    def exceeds_gaussian(self) -> bool:
        """Whether the bound for Gaussian outputs is above the claim."""
        return self.gaussian_tradeoff > self.claimed

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def lower_bounds(
    first: Array, second: Array, claimed: float, delta: float, confidence: float = 0.95
) -> Measured:
    """Bounds from outputs on two neighbours, each of shape (fits, d): choose on one half, measure
    on the other.
    """
    first, second = np.atleast_2d(first.T).T, np.atleast_2d(second.T).T
    half = len(first) // 2
    chosen = max(
        _statistics(first[:half], second[:half]),
        key=lambda one: _power(one[1], first, second, half),
    )
    name, score = chosen
    a, b = score(first), score(second)
    chosen_on, measured_on = (a[:half], b[:half]), (a[half:], b[half:])
    events = _events(*chosen_on)
    any_event = max(
        events, key=lambda one: _at(clopper_pearson_epsilon, one, *chosen_on, delta, confidence)
    )
    normal_event = max(events, key=_expected(*chosen_on, delta, confidence))
    bounds = {
        "clopper_pearson": _at(clopper_pearson_epsilon, any_event, *measured_on, delta, confidence),
        "gaussian_tradeoff": _at(
            gaussian_tradeoff_epsilon, normal_event, *measured_on, delta, confidence
        ),
    }
    return Measured(
        claimed,
        delta,
        bounds["clopper_pearson"],
        bounds["gaussian_tradeoff"],
        name,
        len(first),
        confidence,
    )


Statistic = tuple[str, Callable[[Array], Array]]


def _statistics(first: Array, second: Array) -> list[Statistic]:
    """Scores of an output: along the difference of the means (plain, and scaled by the covariance),
    and its length.
    """
    gap = second.mean(axis=0) - first.mean(axis=0)
    spread = np.atleast_2d(
        np.cov(np.concatenate([first - first.mean(axis=0), second - second.mean(axis=0)]).T)
    )
    ridge = max(float(np.trace(spread)), 1e-300) * 1e-9 / len(spread)
    scaled = np.linalg.solve(spread + ridge * np.eye(len(spread)), gap)
    centre = first.mean(axis=0)
    return [
        ("difference of means", lambda rows: rows @ gap),
        ("difference of means, scaled", lambda rows: rows @ scaled),
        ("distance from the first mean", lambda rows: np.linalg.norm(rows - centre, axis=1)),
    ]


def _power(score: Callable[[Array], Array], first: Array, second: Array, half: int) -> float:
    """How far apart the scores of the first halves are, in standard deviations."""
    a, b = score(first[:half]), score(second[:half])
    return abs(float(b.mean() - a.mean())) / (float(np.sqrt((a.var() + b.var()) / 2)) + 1e-300)


# threshold, whether the set lies above it, whether the neighbours change places
Event = tuple[float, bool, bool]


def _events(first: Array, second: Array) -> list[Event]:
    grid = thresholds(first, second)
    return [
        (float(t), above, swapped)
        for t in grid
        for above in (True, False)
        for swapped in (True, False)
    ]


def _expected(
    first: Array, second: Array, delta: float, confidence: float
) -> Callable[[Event], float]:
    """The Gaussian bound of an event where the scores are normal with the means and the spread of
    these samples.

    Counts of few hits far out are noise, and the largest of many is luck: the fitted normals know
    better.
    """
    means, spread = (
        (first.mean(), second.mean()),
        float(np.sqrt((first.var() + second.var()) / 2)) + 1e-300,
    )

    def bound(event: Event) -> float:
        threshold, above, swapped = event
        # without noise there is no spread, and a threshold is far from every mean
        with np.errstate(over="ignore"):
            rates = [
                float(ndtr((mean - threshold) / spread * (1.0 if above else -1.0)))
                for mean in means
            ]
        hits, misses = (
            round(len(first) * rate) for rate in (reversed(rates) if swapped else rates)
        )
        return gaussian_tradeoff_epsilon(hits, misses, len(first), delta, confidence)

    return bound


def _at(
    bound: Any, event: Event, first: Array, second: Array, delta: float, confidence: float
) -> float:
    threshold, above, swapped = event
    one, other = (second, first) if swapped else (first, second)
    hits = int(np.sum(one > threshold if above else one <= threshold))
    misses = int(np.sum(other > threshold if above else other <= threshold))
    return float(bound(hits, misses, len(one), delta, confidence))
