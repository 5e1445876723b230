"""Lower confidence bounds on epsilon from how well an attack tells two neighbours apart."""

from __future__ import annotations

from math import exp, log

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri
from scipy.stats import binom

from dpcore.losses import Array
from dpcore.mechanisms.profile import gaussian_epsilon

# Beyond this the bound says no more than that there is no privacy.
LARGEST = 50.0


def rate_below(hits: int, total: int, error: float) -> float:
    """Lower confidence limit of a rate, at chance ``error`` of being too high. Clopper & Pearson (1934)."""
    return float(betaincinv(hits, total - hits + 1, error)) if hits > 0 else 0.0


def rate_above(hits: int, total: int, error: float) -> float:
    """Upper confidence limit of a rate, at chance ``error`` of being too low."""
    return float(betaincinv(hits + 1, total - hits, 1.0 - error)) if hits < total else 1.0


def clopper_pearson_epsilon(hits: int, misses: int, total: int, delta: float, confidence: float) -> float:
    """ln((p - delta) / q) with p, q the limits of the rates hits / total and misses / total; at least 0.

    Holds for any mechanism: (epsilon, delta)-DP demands P[S(D)] <= e^epsilon P[S(D')] + delta for every set S. Both
    limits hold together with chance ``confidence``.
    """
    error = (1.0 - confidence) / 2.0
    low, high = rate_below(hits, total, error), rate_above(misses, total, error)
    return min(max(log((low - delta) / high), 0.0), LARGEST) if low > delta else 0.0


def gaussian_tradeoff_epsilon(hits: int, misses: int, total: int, delta: float, confidence: float) -> float:
    """Epsilon at ``delta`` of mu-Gaussian DP with mu = Phi^-1(p) - Phi^-1(q), p and q as above; at least 0.

    For mechanisms whose trade-off curve is Gaussian, where one threshold gives the whole curve: Nasr et al. (2023),
    "Tight auditing". It says nothing about others.
    """
    error = (1.0 - confidence) / 2.0
    low, high = rate_below(hits, total, error), rate_above(misses, total, error)
    mu = float(ndtri(low) - ndtri(high)) if low > 0.0 and high < 1.0 else 0.0
    return min(float(gaussian_epsilon(delta, mu)), LARGEST) if mu > 1e-6 else 0.0


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Chance that (epsilon, delta)-DP lets ``right`` of ``guesses`` be right, at most.

    With S ~ Binomial(guesses, e^epsilon / (1 + e^epsilon)): P[S >= v] + 2 m delta max_i P[v > S >= v - i] / i.
    Steinke, Nasr & Jagielski (2023), Theorem 5.2.
    """
    q = 1.0 / (1.0 + exp(-epsilon))
    below = binom.pmf(np.arange(right - 1, -1, -1), guesses, q)
    alpha = float(np.max(np.cumsum(below) / np.arange(1, right + 1), initial=0.0))
    return min(float(binom.sf(right - 1, guesses, q)) + 2.0 * canaries * delta * alpha, 1.0)


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Largest epsilon that ``right`` right guesses of ``guesses`` rule out with ``confidence``; at least 0.

    ``canaries`` were in or out by fair independent coins; the attack may abstain on some. Add/remove adjacency.
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
    return np.unique(np.quantile(np.concatenate([first, second]), np.concatenate([tails, 1.0 - tails])))
