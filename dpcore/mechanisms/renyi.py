"""Closed forms of the Rényi divergence; all take orders a > 1 of shape (k,) and return shape (k,).

Sums over a binomial expansion in log space, for all orders of a grid at once.

Amplification by sampling always ends in a log-moment K(a) = (a-1) e(a) at an integer order a,

    K(a) = ln[ 1 + sum_{j=2..a} C(a, j) q^j s^(a-j) exp(t_j) ],

with s = 1 - q for Poisson batches and s = 1 for batches without replacement, and t_j free of a. The
terms j = 0, 1 and the leading 1 were taken out of the sums by hand, so that a price of 1e-12 keeps
all its digits. Binomials are computed once per grid. Between integers the log-moment is
interpolated: it is convex in a (Lyapunov), so chords lie above it and K(1) = 0 (proved).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

Array = np.ndarray

# Below this loss the closed forms lose digits to cancellation while the quadratic bound is already
# exact to 1e-9.
TINY = 1e-5


def gaussian(alphas: Array, ratio: float) -> Array:
    """a r^2 / 2 for N(0, sigma^2 I) and a shift of length r sigma. Mironov (2017), Proposition 7;
    exact.
    """
    return alphas * (ratio * ratio / 2.0)


def laplace(alphas: Array, loss: float) -> Array:
    """ln[ a/(2a-1) e^{(a-1) x} + (a-1)/(2a-1) e^{-a x} ] / (a-1) for Laplace noise of scale 1 and a
    shift x = ``loss``.

    Mironov (2017), Proposition 6; exact in one dimension. For a vector with noise on every
    coordinate and L1 shift x it is the least bound: the log-moment is convex in the shift and 0 at
    0, hence superadditive, so the whole shift on one coordinate is the worst case. For tiny x the
    bound a x^2 / 2 of pure DP is used, which it approaches.
    """
    quadratic = alphas * (loss * loss / 2.0)
    if loss < TINY:
        return quadratic
    up = (alphas - 1.0) * loss
    down = alphas * loss
    with np.errstate(over="ignore"):
        direct = np.log1p(
            (alphas * np.expm1(up) + (alphas - 1.0) * np.expm1(-down)) / (2.0 * alphas - 1.0)
        )
    large = np.logaddexp(np.log(alphas) + up, np.log(alphas - 1.0) - down) - np.log(
        2.0 * alphas - 1.0
    )
    return np.minimum(np.where(up < 1.0, direct, large) / (alphas - 1.0), quadratic)


def log_cosh(x: Array) -> Array:
    """ln cosh x without overflow or cancellation, for x >= 0."""
    small = np.log1p(2.0 * np.sinh(np.minimum(x, 1.0) / 2.0) ** 2)
    value: Array = np.where(x < 1.0, small, x + np.log1p(np.exp(-2.0 * x)) - np.log(2.0))
    return value


def pure(alphas: Array, epsilon: float) -> Array:
    """Largest divergence of an epsilon-DP mechanism: randomised response,

    ln(p^a r^(1-a) + r^a p^(1-a)) / (a-1) with p = e^eps / (1 + e^eps), r = 1 - p
    = [ln cosh((a - 1/2) eps) - ln cosh(eps / 2)] / (a-1).

    The loss lies in [-eps, eps] and e^{(a-1) loss} is convex in e^{-loss}, so the two ends are the
    worst case (proved); it is below both eps and a eps^2 / 2 (Bun & Steinke 2016).
    """
    if epsilon < TINY:
        return alphas * (epsilon * epsilon / 2.0)
    value = (log_cosh((alphas - 0.5) * epsilon) - log_cosh(np.array(epsilon / 2.0))) / (
        alphas - 1.0
    )
    curve: Array = np.minimum(value, epsilon)
    return curve


def bounded_range(alphas: Array, eta: float) -> Array:
    """Largest divergence where the loss always lies in an interval of length ``eta`` around 0.

    For an interval [t - eta, t] the worst law has two atoms; with E = e^eta, A = E - E^(1-a), B = 1
    - E^(1-a) the best t has e^t = y = (a-1) A / (a B) and the moment is y^(a-1) A / (a (E - 1)): a
      closed form (proved, same convexity
    argument as ``pure``; the curve of Dong, Durfee & Rogers 2020). Below a eta^2 / 8 and below eta.
    """
    quadratic = alphas * (eta * eta / 8.0)
    if eta < 1e-2:
        return quadratic
    a_term = eta + np.log1p(-np.exp(-alphas * eta))
    b_term = np.log1p(-np.exp((1.0 - alphas) * eta))
    y_log = np.log1p(-1.0 / alphas) + a_term - b_term
    value = y_log + (a_term - np.log(alphas) - (eta + np.log1p(-np.exp(-eta)))) / (alphas - 1.0)
    curve: Array = np.minimum(np.minimum(np.maximum(value, 0.0), quadratic), eta)
    return curve


def log_expm1(x: Array) -> Array:
    """ln(e^x - 1) for x >= 0 without overflow; -inf at 0."""
    result = np.array(x, dtype=np.float64)
    near = result < 40.0  # further out it is x to the last digit
    with np.errstate(divide="ignore"):
        result[near] = np.log(np.expm1(result[near]))
    return result


# Integer orders up to here are summed together.
ONE_SWEEP = 96


@dataclass(frozen=True)
class Expansion:
    """Binomials of all integer orders next to a grid of orders, laid out one order after the
    other.
    """

    floor: Array  # index into ``sizes`` of the integer below each order, 0 standing for order 1
    ceil: Array
    share: Array  # position of each order between its integers
    sizes: Array  # the integer orders >= 2, ascending
    terms: Array  # j of each term
    starts: Array  # where each integer order begins in ``terms``
    log_binomial: Array

    @property
    def highest(self) -> int:
        """The largest j that occurs."""
        return int(self.sizes[-1])


def expansion(alphas: Array) -> Expansion:
    """The table for ``alphas`` (orders > 1); cached, for there are few grids."""
    return _expansion(np.ascontiguousarray(alphas, dtype=np.float64).tobytes())


@lru_cache(maxsize=16)
def _expansion(raw: bytes) -> Expansion:
    alphas = np.frombuffer(raw, dtype=np.float64)
    low, high = np.floor(alphas).astype(np.int64), np.ceil(alphas).astype(np.int64)
    sizes = np.unique(np.concatenate([low, high]))
    sizes = sizes[sizes >= 2]
    counts = sizes - 1
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    terms = np.concatenate([np.arange(2, size + 1) for size in sizes])
    owner = np.repeat(sizes, counts).astype(np.float64)
    log_binomial = gammaln(owner + 1.0) - gammaln(terms + 1.0) - gammaln(owner - terms + 1.0)
    return Expansion(
        floor=np.searchsorted(sizes, low, side="right"),
        ceil=np.searchsorted(sizes, high, side="right"),
        share=alphas - low,
        sizes=sizes,
        terms=terms,
        starts=starts,
        log_binomial=log_binomial,
    )


def log_moments(table: Expansion, log_rate: float, log_rest: float, log_terms: Array) -> Array:
    """K at every integer order of ``table``; ``log_terms`` holds t_j at index j (entries 0 and 1
    unused).
    """
    j = np.arange(len(log_terms), dtype=np.float64)
    weights = j * (log_rate - log_rest) + log_terms
    moments = np.empty(len(table.sizes))
    # Small orders in one sweep; large ones one by one, in a buffer that stays in the processor's
    # cache.
    few = int(np.searchsorted(table.sizes, ONE_SWEEP, side="right"))
    if few:
        end = table.starts[few] if few < len(table.sizes) else len(table.terms)
        exponents = weights[table.terms[:end]] + table.log_binomial[:end]
        tops = np.maximum.reduceat(exponents, table.starts[:few])
        tops = np.where(np.isfinite(tops), tops, 0.0)
        exponents -= np.repeat(tops, table.sizes[:few] - 1)
        moments[:few] = np.log(np.add.reduceat(np.exp(exponents), table.starts[:few])) + tops
    buffer = np.empty(len(log_terms))
    for i in range(few, len(table.sizes)):
        size, start = table.sizes[i], table.starts[i]
        exponents = np.add(
            weights[2 : size + 1],
            table.log_binomial[start : start + size - 1],
            out=buffer[: size - 1],
        )
        top = exponents.max()
        if not np.isfinite(top):
            top = 0.0
        exponents -= top
        # adds less than 1e-300 each; exp is slow where it underflows
        np.maximum(exponents, -700.0, out=exponents)
        moments[i] = np.log(np.exp(exponents, out=exponents).sum()) + top
    return np.logaddexp(0.0, moments + table.sizes * log_rest)


def at_orders(table: Expansion, alphas: Array, moments: Array) -> Array:
    """e(a) at the orders of the grid from K at its integers: exact there, the chord of K in
    between; shape (k,).
    """
    known = np.concatenate([[0.0], moments])
    low, high = known[table.floor], known[table.ceil]
    with np.errstate(invalid="ignore"):
        chord = (1.0 - table.share) * low + table.share * high
    return np.where(np.isinf(high), np.inf, chord) / (alphas - 1.0)
