"""Closed forms of the Rényi divergence; all take orders a > 1 of shape (k,) and return shape (k,)."""

from __future__ import annotations

import numpy as np

Array = np.ndarray

# Below this loss the closed forms lose digits to cancellation while the quadratic bound is already exact to 1e-9.
TINY = 1e-5


def gaussian(alphas: Array, ratio: float) -> Array:
    """a r^2 / 2 for N(0, sigma^2 I) and a shift of length r sigma. Mironov (2017), Proposition 7; exact."""
    return alphas * (ratio * ratio / 2.0)


def laplace(alphas: Array, loss: float) -> Array:
    """ln[ a/(2a-1) e^{(a-1) x} + (a-1)/(2a-1) e^{-a x} ] / (a-1) for Laplace noise of scale 1 and a shift x = ``loss``.

    Mironov (2017), Proposition 6; exact in one dimension. For a vector with noise on every coordinate and L1 shift x it
    is the least bound: the log-moment is convex in the shift and 0 at 0, hence superadditive, so the whole shift on one
    coordinate is the worst case. For tiny x the bound a x^2 / 2 of pure DP is used, which it approaches.
    """
    quadratic = alphas * (loss * loss / 2.0)
    if loss < TINY:
        return quadratic
    up = (alphas - 1.0) * loss
    down = alphas * loss
    with np.errstate(over="ignore"):
        direct = np.log1p((alphas * np.expm1(up) + (alphas - 1.0) * np.expm1(-down)) / (2.0 * alphas - 1.0))
    large = np.logaddexp(np.log(alphas) + up, np.log(alphas - 1.0) - down) - np.log(2.0 * alphas - 1.0)
    return np.minimum(np.where(up < 1.0, direct, large) / (alphas - 1.0), quadratic)


def log_cosh(x: Array) -> Array:
    """ln cosh x without overflow or cancellation, for x >= 0."""
    small = np.log1p(2.0 * np.sinh(np.minimum(x, 1.0) / 2.0) ** 2)
    return np.where(x < 1.0, small, x + np.log1p(np.exp(-2.0 * x)) - np.log(2.0))


def pure(alphas: Array, epsilon: float) -> Array:
    """Largest divergence of an epsilon-DP mechanism: randomised response,

    ln(p^a r^(1-a) + r^a p^(1-a)) / (a-1) with p = e^eps / (1 + e^eps), r = 1 - p
    = [ln cosh((a - 1/2) eps) - ln cosh(eps / 2)] / (a-1).

    The loss lies in [-eps, eps] and e^{(a-1) loss} is convex in e^{-loss}, so the two ends are the worst case (proved);
    it is below both eps and a eps^2 / 2 (Bun & Steinke 2016).
    """
    if epsilon < TINY:
        return alphas * (epsilon * epsilon / 2.0)
    value = (log_cosh((alphas - 0.5) * epsilon) - log_cosh(np.array(epsilon / 2.0))) / (alphas - 1.0)
    return np.minimum(value, epsilon)


def bounded_range(alphas: Array, eta: float) -> Array:
    """Largest divergence where the loss always lies in an interval of length ``eta`` around 0.

    For an interval [t - eta, t] the worst law has two atoms; with E = e^eta, A = E - E^(1-a), B = 1 - E^(1-a) the best
    t has e^t = y = (a-1) A / (a B) and the moment is y^(a-1) A / (a (E - 1)): a closed form (proved, same convexity
    argument as ``pure``; the curve of Dong, Durfee & Rogers 2020). Below a eta^2 / 8 and below eta.
    """
    quadratic = alphas * (eta * eta / 8.0)
    if eta < 1e-2:
        return quadratic
    a_term = eta + np.log1p(-np.exp(-alphas * eta))
    b_term = np.log1p(-np.exp((1.0 - alphas) * eta))
    y_log = np.log1p(-1.0 / alphas) + a_term - b_term
    value = y_log + (a_term - np.log(alphas) - (eta + np.log1p(-np.exp(-eta)))) / (alphas - 1.0)
    return np.minimum(np.minimum(np.maximum(value, 0.0), quadratic), eta)


def log_expm1(x: Array) -> Array:
    """ln(e^x - 1) for x >= 0 without overflow; -inf at 0."""
    result = np.array(x, dtype=np.float64)
    near = result < 40.0  # further out it is x to the last digit
    with np.errstate(divide="ignore"):
        result[near] = np.log(np.expm1(result[near]))
    return result
