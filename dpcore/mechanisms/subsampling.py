"""Rényi curves of a mechanism that runs on a random batch. ``sampling`` decides which formula may
be used where.

Moments of differences of three Gaussian densities: what one replaced record can do inside a random
batch.

Unit variance, distances in units of sigma. For densities N(w), N(u), N(v) with U = N(u)/N(w), V =
N(v)/N(w) under N(w):

    Z_j = sup E |U - V|^j over the allowed triples,     B_j = E |U - 1|^j at distance r.

**Z_j is attained at a corner (proved, any real j >= 2).** ln U, ln V are Gaussian with covariance
[[x, c], [c, y]], x = |u-w|^2, y = |v-w|^2, 2 c = x + y - |u-v|^2. By Gaussian interpolation d/dx E
f(U, V) = E[U^2 f_UU] / 2 and d/dc E f = E[U V f_UV]; for f = |U - V|^j the first is >= 0 and the
second is <= 0. Of triangles (x, y, |u-v|^2 <= t) take c at its least, (x + y - t) / 2 (or scale all
three up until that is so: the moment of a martingale only grows). Along that face the derivative in
x has the sign of E h(e^N), h(k) = |1-k|^(j-2) (1 - k) decreasing, N normal of variance t and mean
((j-1)(y-x) - j t) / 2. It falls with y - x, and at x = y the two derivatives are equal and sum to
j(j-1)/2 E|U-V|^j >= 0. So the longer side may grow to t, and along the other the sign goes from -
to +: the maximum is at y = 0, which is B_j, or at y = t, the equilateral triangle. (Contributions
in a ball have an exact price: ``pairs``.)

**Everything is one integral.** With Q(j, m) = E[(1 - e^{N(m, t)})_+^j] and a change of measure,
    equilateral: 2 e^{j(j-1) t / 2} Q(j, -j t / 2),
    B_j = Q(j, -t / 2) + e^{j(j-1) t / 2} Q(j, -(j - 1/2) t).
The integrand is log-concave: its peak is bracketed, then Gauss-Legendre to both sides on windows
that are never too narrow, for the curvature of its logarithm is at least 1 and grows to the right.
All moments are at most 2 e^{j(j-1) t / 2}, for |a-b|^j <= a^j + b^j.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from dpcore.mechanisms import renyi
from dpcore.mechanisms.renyi import at_orders, expansion, log_expm1, log_moments

Array = np.ndarray

# Every j up to here has its own integral, as in dp-accounting; above, log-moments are interpolated
# (they are convex).
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


def log_triangle_moments(highest: int, ratio: float) -> tuple[Array, Array]:
    """(ln Z_j, ln B_j), j = 2..highest, over triangles with all three sides within ``ratio``."""
    t = ratio * ratio
    binary = log_binary(highest, t)
    spread = np.minimum(log_corner(highest, t, 1.0), LOG_2 + log_powers(highest, t))
    return np.maximum(spread, binary), binary


def log_corner(highest: int, t: float, shrink: float) -> Array:
    """ln 2 e^{j(j-1) shrink t / 2} Q(j, -j t / 2), j = 2..highest: U and V at distance sqrt(t), 1
    being ``shrink`` t off."""
    grid = _grid(highest)
    return _chords(
        highest, LOG_2 + grid * (grid - 1.0) * (shrink * t / 2.0) + _log_q(grid, -grid * t / 2.0, t)
    )


def log_binary(highest: int, t: float) -> Array:
    """ln B_j, j = 2..highest, at squared distance t."""
    binary = _chords(highest, log_binary_moments(_grid(highest), t))
    capped: Array = np.minimum(binary, LOG_2 + log_powers(highest, t))
    return capped


def log_binary_moments(j: Array, t: float) -> Array:
    """ln B_j at squared distance t."""
    below = _log_q(j, np.full(len(j), -t / 2.0), t)
    above = j * (j - 1.0) * t / 2.0 + _log_q(j, -(j - 0.5) * t, t)
    moments: Array = np.logaddexp(below, above)
    return moments


def log_powers(highest: int, t: float) -> Array:
    """j (j-1) t / 2, j = 2..highest."""
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
    """Values at j = 2..highest from those on the grid; a log-moment is convex in j, so chords lie
    above it."""
    chords: Array = np.interp(np.arange(2, highest + 1), _grid(highest), known)
    return chords


def _log_q(j: Array, mean: Array, t: float) -> Array:
    """ln E[(1 - e^X)_+^j] for X ~ N(mean, t), mean < 0; arrays of one shape."""
    root = np.sqrt(t)
    edge = -mean / root
    peak = _peak(j, mean, root, edge)
    x = mean + root * peak
    curvature = 1.0 + j * t * np.exp(x) / np.expm1(x) ** 2
    # Left of the peak the curvature falls towards 1, right of it it only grows.
    width = np.minimum(WINDOW / np.sqrt(curvature), edge - peak)
    step = np.concatenate(
        [np.full((len(j), len(LEFT)), WINDOW) * LEFT, width[:, None] * RIGHT], axis=1
    )
    z = peak[:, None] + step
    logs = j[:, None] * _log1mexp(mean[:, None] + root * z) - z * z / 2.0
    top = logs.max(axis=1)
    scaled = np.exp(logs - top[:, None])
    split = len(LEFT)
    total = WINDOW * (scaled[:, :split] @ LEFT_WEIGHTS) + width * (
        scaled[:, split:] @ RIGHT_WEIGHTS
    )
    log_q: Array = top + np.log(total / np.sqrt(2.0 * np.pi))
    return log_q


def _peak(j: Array, mean: Array, root: float, edge: Array) -> Array:
    """Where -z^2/2 + j ln(1 - e^{mean + root z}) is largest: the only zero of its decreasing slope,
    by bisection."""
    high = np.minimum(edge, 0.0)
    low = high - 2.0 * np.sqrt(j) - 1.0
    for _ in range(24):
        middle = (low + high) / 2.0
        with np.errstate(over="ignore", divide="ignore"):
            rising = middle + j * root / np.expm1(-(mean + root * middle)) < 0.0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    peak: Array = (low + high) / 2.0
    return peak


def _log1mexp(x: Array) -> Array:
    """ln(1 - e^x) for x <= 0."""
    with np.errstate(divide="ignore"):
        value: Array = np.log(-np.expm1(np.minimum(x, -1e-300)))
        return value


Curve = Callable[[Array], Array]


def poisson_general(alphas: Array, base: Curve, rate: float, factor: float = 3.0) -> Array:
    """Lemma 2.4: any mechanism of curve e on a Poisson batch, add/remove; also the plain e(a) where
    that is smaller.

    K(a) = ln[ (1-q)^(a-1) (aq - q + 1) + C(a,2) q^2 (1-q)^(a-2) e^{e(2)} + f sum_{j>=3} C(a,j) q^j
    (1-q)^(a-j) e^{(j-1) e(j)} ]. Zhu & Wang (2019), Theorem 6, f = 3. With f = 1 proved for the
    Gaussian and checked by quadrature in both directions for the Laplace mechanism; unproved in
    general, so callers keep 3.
    """
    table = expansion(alphas)
    terms = np.full(table.highest + 1, -np.inf)
    exponents = _moments_of(base, table.highest)
    terms[2:] = exponents + np.log(factor) + np.log1p(-np.exp(-exponents) / factor)
    terms[2] = log_expm1(exponents[:1])[0]
    if factor == 1.0:
        terms[2:] = log_expm1(exponents)
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), np.log1p(-rate), terms))
    return _finite_min(curve, base(alphas))


def fixed_size_general(
    alphas: Array, base: Curve, rate: float, pure_epsilon: float = np.inf
) -> Array:
    """Lemma 2.3: any mechanism of replace-one curve e on a batch without replacement of share q; at
    most e(a).

    K(a) = ln[ 1 + q^2 C(a,2) min{4 (e^{e(2)} - 1), e^{e(2)} min(2, (e^{e(inf)} - 1)^2)}
                 + sum_{j>=3} q^j C(a,j) e^{(j-1) e(j)} min(2, (e^{e(inf)} - 1)^j) ].
    Wang, Balle & Kasiviswanathan (2019), Theorem 9. The proof compares the output with the record,
    with the other record and without it, pairwise: it holds as well for Poisson batches where e
    bounds all three.
    """
    table = expansion(alphas)
    j = np.arange(2, table.highest + 1, dtype=np.float64)
    exponents = _moments_of(base, table.highest)
    ends = log_expm1(np.array(min(pure_epsilon, 700.0)))
    terms = np.full(table.highest + 1, -np.inf)
    terms[2:] = exponents + np.minimum(np.log(2.0), j * ends)
    terms[2] = min(terms[2], np.log(4.0) + log_expm1(exponents[:1])[0])
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), 0.0, terms))
    return _finite_min(curve, base(alphas))


def fixed_size_gaussian(alphas: Array, ratio: float, rate: float) -> Array:
    """Gaussian on a batch that holds the record with chance q, the record being replaced; r =
    sensitivity / sigma.

    Given the rest of the batch, the pair is P = (1-q) N(w) + q N(u), Q = (1-q) N(w) + q N(v) (joint
    quasi-convexity over a coupling of batches with and without the record; Balle, Barthe & Gaboardi
    2018), in units of sigma:
    |u - w|, |v - w|, |u - v| <= r.

    E_Q (P/Q)^a = 1 + sum_{j>=2} C(a,j) q^j E_Q[((N(u) - N(v)) / Q)^j], and Q^(1-j) is convex, so
    K(a) <= ln[ 1 + sum_{j>=2} C(a,j) q^j ((1-q) Z_j + q B_j) ], B_j = E_{N(v)} |N(u)/N(v) - 1|^j,
    Z_j = sup over the triangles of E_{N(w)} |N(u)/N(w) - N(v)/N(w)|^j. Wang, Balle &
    Kasiviswanathan (2019), Theorem 27, bound Z_j and B_j by 4 B_j and round odd j up; the exact Z_j
    is up to four times smaller. Also at most the unamplified curve.
    """
    table = expansion(alphas)
    spread, binary = log_triangle_moments(table.highest, ratio)
    terms = np.full(table.highest + 1, -np.inf)
    terms[2:] = np.logaddexp(np.log1p(-rate) + spread, np.log(rate) + binary)
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), 0.0, terms))
    least: Array = np.minimum(curve, renyi.gaussian(alphas, ratio))
    return least


def pure_amplified(epsilon: float, rate: float) -> float:
    """ln(1 + q (e^eps - 1)): a pure guarantee on a batch that holds the record with chance q
    (proved).

    Poisson with add/remove, without replacement with replace-one, and Poisson with replaced records
    where eps bounds all three comparisons: ((1-q) + q a) / ((1-q) + q b) with a <= e^eps, a/b <=
    e^eps is largest at b = 1.
    """
    if epsilon == np.inf:
        return np.inf
    if epsilon > 1.0:
        return float(np.logaddexp(np.log1p(-rate), np.log(rate) + epsilon))
    return float(np.log1p(rate * np.expm1(epsilon)))


def _moments_of(base: Curve, highest: int) -> Array:
    """(j - 1) e(j) for j = 2..highest."""
    j = np.arange(2, highest + 1, dtype=np.float64)
    return (j - 1.0) * base(j)


def _finite_min(curve: Array, plain: Array) -> Array:
    """The smaller curve; where the base has no price there is none on a batch either."""
    return np.where(np.isfinite(plain), np.minimum(curve, plain), np.inf)
