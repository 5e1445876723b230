"""Moments of differences of three Gaussian densities: what one replaced record can do inside a random batch.

Unit variance, distances in units of sigma. For densities N(w), N(u), N(v) with U = N(u)/N(w), V = N(v)/N(w) under N(w):

    Z_j = sup E |U - V|^j over the allowed triples,     B_j = E |U - 1|^j at distance r.

**Z_j is attained at a corner (proved, any real j >= 2).** ln U, ln V are Gaussian with covariance [[x, c], [c, y]],
x = |u-w|^2, y = |v-w|^2, 2 c = x + y - |u-v|^2. By Gaussian interpolation d/dx E f(U, V) = E[U^2 f_UU] / 2 and
d/dc E f = E[U V f_UV]; for f = |U - V|^j the first is >= 0 and the second is <= 0.
 - ball (x, y <= s^2): c is least at -sqrt(x y); there, growing the shorter of u, v raises x or y and lowers c; so
   u = -v at length s is the worst, and |u - v| <= 2 s held throughout.
 - triangle (x, y, |u-v|^2 <= t): take c at its least, (x + y - t) / 2 (or scale all three up until that is so: the
   moment of a martingale only grows). Along that face the derivative in x has the sign of E h(e^N), h(k) = |1-k|^(j-2)
   (1 - k) decreasing, N normal of variance t and mean ((j-1)(y-x) - j t) / 2. It falls with y - x, and at x = y the two
   derivatives are equal and sum to j(j-1)/2 E|U-V|^j >= 0. So the longer side may grow to t, and along the other the
   sign goes from - to +: the maximum is at y = 0, which is B_j, or at y = t, the equilateral triangle.

**Everything is one integral.** With Q(j, m) = E[(1 - e^{N(m, t)})_+^j] and a change of measure,
    equilateral: 2 e^{j(j-1) t / 2} Q(j, -j t / 2),      u = -v at t/4 each: 2 e^{j(j-1) t / 8} Q(j, -j t / 2),
    B_j = Q(j, -t / 2) + e^{j(j-1) t / 2} Q(j, -(j - 1/2) t).
The integrand is log-concave: its peak is bracketed, then Gauss-Legendre to both sides on windows that are never too
narrow, for the curvature of its logarithm is at least 1 and grows to the right. All moments are at most
2 e^{j(j-1) t / 2}, for |a-b|^j <= a^j + b^j.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

Array = np.ndarray

# Every j up to here has its own integral, as in dp-accounting; above, log-moments are interpolated (they are convex).
DENSE = 256


def _panel(nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    x, weights = np.polynomial.legendre.leggauss(nodes)
    return (x + 1.0) / 2.0, weights / 2.0


LEFT, LEFT_WEIGHTS = _panel(48)
LEFT = -LEFT
RIGHT, RIGHT_WEIGHTS = _panel(32)
WINDOW = 9.0
LOG_2 = float(np.log(2.0))


def log_ternary_moments(highest: int, ratio: float, geometry: str) -> tuple[Array, Array]:
    """(ln Z_j, ln B_j), j = 2..highest; ``geometry`` "triangle" (all within ``ratio``) or "ball" (radius ratio / 2)."""
    t = ratio * ratio
    grid, power = _grid(highest), _powers(highest, t)
    binary = np.minimum(_chords(highest, log_binary_moments(grid, t)), LOG_2 + power)
    shrink = 1.0 if geometry == "triangle" else 0.25
    corner = LOG_2 + grid * (grid - 1.0) * (shrink * t / 2.0) + _log_q(grid, -grid * t / 2.0, t)
    spread = np.minimum(_chords(highest, corner), LOG_2 + shrink * power)
    return (np.maximum(spread, binary) if geometry == "triangle" else spread), binary


def log_binary_moments(j: Array, t: float) -> Array:
    """ln B_j at squared distance t."""
    below = _log_q(j, np.full(len(j), -t / 2.0), t)
    above = j * (j - 1.0) * t / 2.0 + _log_q(j, -(j - 0.5) * t, t)
    return np.logaddexp(below, above)


def _powers(highest: int, t: float) -> Array:
    j = np.arange(2, highest + 1, dtype=np.float64)
    return j * (j - 1.0) * (t / 2.0)


@lru_cache(maxsize=16)
def _grid(highest: int) -> Array:
    """The j that get an integral: all up to ``DENSE``, then twelve an octave."""
    dense = np.arange(2, min(DENSE, highest) + 1)
    if highest <= DENSE:
        return dense.astype(np.float64)
    octaves = np.round(DENSE * 2.0 ** (np.arange(1, 12 * 64) / 12.0))
    return np.concatenate([dense, octaves[octaves < highest], [highest]]).astype(np.float64)


def _chords(highest: int, known: Array) -> Array:
    """Values at j = 2..highest from those on the grid; a log-moment is convex in j, so chords lie above it."""
    return np.interp(np.arange(2, highest + 1), _grid(highest), known)


def _log_q(j: Array, mean: Array, t: float) -> Array:
    """ln E[(1 - e^X)_+^j] for X ~ N(mean, t), mean < 0; arrays of one shape."""
    root = np.sqrt(t)
    edge = -mean / root
    peak = _peak(j, mean, root, edge)
    x = mean + root * peak
    curvature = 1.0 + j * t * np.exp(x) / np.expm1(x) ** 2
    # Left of the peak the curvature falls towards 1, right of it it only grows.
    width = np.minimum(WINDOW / np.sqrt(curvature), edge - peak)
    step = np.concatenate([np.full((len(j), len(LEFT)), WINDOW) * LEFT, width[:, None] * RIGHT], axis=1)
    z = peak[:, None] + step
    logs = j[:, None] * _log1mexp(mean[:, None] + root * z) - z * z / 2.0
    top = logs.max(axis=1)
    scaled = np.exp(logs - top[:, None])
    split = len(LEFT)
    total = WINDOW * (scaled[:, :split] @ LEFT_WEIGHTS) + width * (scaled[:, split:] @ RIGHT_WEIGHTS)
    return top + np.log(total / np.sqrt(2.0 * np.pi))


def _peak(j: Array, mean: Array, root: float, edge: Array) -> Array:
    """Where -z^2/2 + j ln(1 - e^{mean + root z}) is largest: the only zero of its decreasing slope, by bisection."""
    high = np.minimum(edge, 0.0)
    low = high - 2.0 * np.sqrt(j) - 1.0
    for _ in range(24):
        middle = (low + high) / 2.0
        with np.errstate(over="ignore", divide="ignore"):
            rising = middle + j * root / np.expm1(-(mean + root * middle)) < 0.0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return (low + high) / 2.0


def _log1mexp(x: Array) -> Array:
    """ln(1 - e^x) for x <= 0."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(np.minimum(x, -1e-300)))
