"""Rényi curves of a mechanism that runs on a random batch. ``sampling`` decides which formula may be used where."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpcore.mechanisms import renyi
from dpcore.mechanisms.binomial import at_orders, expansion, log_moments
from dpcore.mechanisms.renyi import log_expm1
from dpcore.mechanisms.ternary import log_ternary_moments

Array = np.ndarray
Curve = Callable[[Array], Array]

# Fractional orders up to this one get their own quadrature; the grid has none above.
FRACTIONS_END = 11.0


def poisson_gaussian(alphas: Array, ratio: float, rate: float) -> Array:
    """Gaussian of sensitivity / sigma = ``ratio`` on a Poisson batch, add/remove; exact.

    K(a) = ln[ 1 + sum_{j>=2} C(a,j) q^j (1-q)^(a-j) (e^{j(j-1) r^2 / 2} - 1) ]. Mironov, Talwar & Zhang (2019), Theorem
    11 and Section 3.3, without their terms j = 0, 1; Lemma 2.4 of the dissertation with factor 1, which for the
    Gaussian is exact (the pair is symmetric, Theorem 5 there). Fractional orders by quadrature.
    """
    table = expansion(alphas)
    j = np.arange(table.highest + 1, dtype=np.float64)
    terms = log_expm1(j * (j - 1.0) * (ratio * ratio / 2.0))
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), np.log1p(-rate), terms))
    fractional = (alphas != np.floor(alphas)) & (alphas < FRACTIONS_END)
    if fractional.any() and 1e-9 < ratio <= 10.0:
        curve[fractional] = _poisson_gaussian_fractional(alphas[fractional], ratio, rate)
    return np.minimum(curve, renyi.gaussian(alphas, ratio))


def _poisson_gaussian_fractional(alphas: Array, ratio: float, rate: float) -> Array:
    """The same divergence for any order, as E[(1 + q u)^a - 1 - a q u] over z ~ N(0, 1), u = e^{r z - r^2/2} - 1.

    E u = 0, so this is the moment minus 1, and the integrand is never negative (Bernoulli): no digits are lost. The
    trapezoid rule converges geometrically; its step is set by the nearest complex zero of 1 + q u, at distance pi / r.
    """
    step = min(0.7, 0.6 / ratio)
    z = np.arange(-9.5, alphas.max() * ratio + 9.5, step)
    exponent = ratio * z - ratio * ratio / 2.0
    w = np.logaddexp(np.log1p(-rate), np.log(rate) + exponent)
    x = rate * np.expm1(np.minimum(exponent, 700.0))
    a = alphas[:, None]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        direct = np.log(np.expm1(a * w) - a * x)
        series = x * x * a * (a - 1.0) / 2.0 * _binomial_tail(a, x)
        large = a * w + np.log1p(-(1.0 + a * x) * np.exp(-a * w))
    small = np.abs(x) * np.maximum(a, 1.0) < 3e-2
    logs = np.where(small, np.log(np.where(small, series, 1.0) + 1e-300), np.where(a * w > 30.0, large, direct))
    logs = logs - z * z / 2.0
    top = logs.max(axis=1)
    log_excess = top + np.log(np.exp(logs - top[:, None]).sum(axis=1) * step / np.sqrt(2.0 * np.pi))
    return np.logaddexp(0.0, log_excess) / (alphas - 1.0)


def _binomial_tail(a: Array, x: Array) -> Array:
    """[(1 + x)^a - 1 - a x] / (a (a-1) x^2 / 2) for small x, by its series up to x^6."""
    tail = np.ones(np.broadcast_shapes(a.shape, x.shape))
    for k in range(8, 2, -1):
        tail = 1.0 + tail * x * (a - (k - 1.0)) / k
    return tail


def poisson_general(alphas: Array, base: Curve, rate: float, factor: float = 3.0) -> Array:
    """Lemma 2.4: any mechanism of curve e on a Poisson batch, add/remove; also the plain e(a) where that is smaller.

    K(a) = ln[ (1-q)^(a-1) (aq - q + 1) + C(a,2) q^2 (1-q)^(a-2) e^{e(2)} + f sum_{j>=3} C(a,j) q^j (1-q)^(a-j)
    e^{(j-1) e(j)} ]. Zhu & Wang (2019), Theorem 6, f = 3. With f = 1 proved for the Gaussian and checked by quadrature
    in both directions for the Laplace mechanism; unproved in general, so callers keep 3.
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


def fixed_size_general(alphas: Array, base: Curve, rate: float, pure_epsilon: float = np.inf) -> Array:
    """Lemma 2.3: any mechanism of replace-one curve e on a batch without replacement of share q; at most e(a).

    K(a) = ln[ 1 + q^2 C(a,2) min{4 (e^{e(2)} - 1), e^{e(2)} min(2, (e^{e(inf)} - 1)^2)}
                 + sum_{j>=3} q^j C(a,j) e^{(j-1) e(j)} min(2, (e^{e(inf)} - 1)^j) ].
    Wang, Balle & Kasiviswanathan (2019), Theorem 9. The proof compares the output with the record, with the other
    record and without it, pairwise: it holds as well for Poisson batches where e bounds all three.
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


def fixed_size_gaussian(alphas: Array, ratio: float, rate: float, geometry: str = "triangle") -> Array:
    """Gaussian on a batch that holds the record with chance q, the record being replaced; r = sensitivity / sigma.

    Given the rest of the batch, the pair is P = (1-q) N(w) + q N(u), Q = (1-q) N(w) + q N(v) (joint quasi-convexity
    over a coupling of batches with and without the record; Balle, Barthe & Gaboardi 2018), in units of sigma:
    ``triangle``: |u - w|, |v - w|, |u - v| <= r; ``ball``: |u - w|, |v - w| <= r / 2.

    E_Q (P/Q)^a = 1 + sum_{j>=2} C(a,j) q^j E_Q[((N(u) - N(v)) / Q)^j], and Q^(1-j) is convex, so
    K(a) <= ln[ 1 + sum_{j>=2} C(a,j) q^j ((1-q) Z_j + q B_j) ], B_j = E_{N(v)} |N(u)/N(v) - 1|^j,
    Z_j = sup over the triples of E_{N(w)} |N(u)/N(w) - N(v)/N(w)|^j (``ternary``). Wang, Balle & Kasiviswanathan
    (2019), Theorem 27, bound Z_j and B_j by 4 B_j and round odd j up; the exact Z_j is up to four times smaller.
    Also at most the unamplified curve.
    """
    table = expansion(alphas)
    spread, binary = log_ternary_moments(table.highest, ratio, geometry)
    terms = np.full(table.highest + 1, -np.inf)
    terms[2:] = np.logaddexp(np.log1p(-rate) + spread, np.log(rate) + binary)
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), 0.0, terms))
    return np.minimum(curve, renyi.gaussian(alphas, ratio))


def pure_amplified(epsilon: float, rate: float) -> float:
    """ln(1 + q (e^eps - 1)): a pure guarantee on a batch that holds the record with chance q (proved).

    Poisson with add/remove, without replacement with replace-one, and Poisson with replaced records where eps bounds
    all three comparisons: ((1-q) + q a) / ((1-q) + q b) with a <= e^eps, a/b <= e^eps is largest at b = 1.
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
