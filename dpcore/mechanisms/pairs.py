"""Rényi divergences of dominating pairs of Gaussian mixtures, by quadrature of integrands that are
never negative.

**One replaced record on a Poisson batch.** Given the rest of the batch, neighbours give P = (1-q)
N(w) + q N(u) and Q = (1-q) N(w) + q N(v), in units of sigma. Let both contributions lie in a ball,
|u-w|, |v-w| <= s. For every f-divergence, so at every Rényi order and for every hockey stick, the
worst pair is one-dimensional:

    P* = (1-q) N(0) + q N(s),    Q* = (1-q) N(0) + q N(-s)
    (proved)

With U = N(u)/N(w), V = N(v)/N(w) under N(w), ln U and ln V are jointly normal of variances x =
|u-w|^2, y = |v-w|^2, covariance c = <u-w, v-w> and means -x/2, -y/2. The divergence is E F(U, V), F
= Q phi(P/Q) with P = 1-q+qU, Q = 1-q+qV and phi convex. By Gaussian interpolation dE/dx = E[U^2
F_UU]/2, dE/dy = E[V^2 F_VV]/2, dE/dc = E[UV F_UV]; F_UU and F_VV are never negative and F_UV = -q^2
phi'' P/Q^2 is never positive. So E grows with x and y and falls with c: c goes down to -sqrt(xy),
then the shorter of both grows (x or y rises and c falls) until both have length s. Joint convexity
removes the condition on the rest. Both orders of the neighbours cost the same, by reflection. (P*,
Q*) dominates, so privacy-loss distributions of it compose over adaptively chosen steps (Zhu, Dong &
Wang 2022).

**One added or removed record** is the pair (1-q) N(0) + q N(r) and N(0): a sum at whole orders, a
quadrature between.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpcore.mechanisms import renyi
from dpcore.mechanisms.renyi import at_orders, expansion, log_expm1, log_moments

Array = np.ndarray

# Quadrature was checked against 34 digits: it errs by some 1e-13; this keeps the stated price on
# the safe side.
MARGIN = 1e-9
# Where orders times distances pass this, closed bounds are as good and nodes would be many.
FAR = 1000.0
# Beyond this distance of the two centres from the middle the closed bounds are tight: no node is
# spent on it. It also keeps the discrete form of the noise, 1024 grid steps a sigma, far from the
# poles of the integrand, pi / s off its line.
WIDE = 10.0


# Fractional orders up to this one get a quadrature; the grid has none above.
FRACTIONS_END = 11.0
# Distances of the mixture's ends at which whole orders are far apart: only orders below 2 have a
# quadrature there.
CHORDS_FROM, CHORDS_END = 10.0, 100.0


def added_gaussian(alphas: Array, distance: float, rate: float) -> Array:
    """D_a(P || N(0)) for P = (1-q) N(0) + q N(r), r = ``distance`` = sensitivity / sigma; exact,
    shape (k,).

    K(a) = ln[ 1 + sum_{j>=2} C(a,j) q^j (1-q)^(a-j) (e^{j(j-1) r^2 / 2} - 1) ] at whole orders.
    Mironov, Talwar & Zhang (2019), Theorem 11 and Section 3.3, without their terms j = 0, 1; Lemma
    2.4 of the dissertation with factor 1, which for the Gaussian is exact (the pair is symmetric,
    Theorem 5 there). Fractional orders by quadrature. Where r is so large that it would take many
    nodes: chords of K between whole orders, a quadrature below 2, where the chord is too dear, and
    always ln(1 - q + q e^{(a-1) a r^2 / 2}) by convexity in P. At most a r^2 / 2.
    """
    alphas = np.asarray(alphas, dtype=np.float64)
    table = expansion(alphas)
    j = np.arange(table.highest + 1, dtype=np.float64)
    terms = log_expm1(j * (j - 1.0) * (distance * distance / 2.0))
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), np.log1p(-rate), terms))
    end = FRACTIONS_END if distance <= CHORDS_FROM else 2.0
    fractional = (alphas != np.floor(alphas)) & (alphas < end)
    if fractional.any() and 1e-9 < distance <= CHORDS_END:
        curve[fractional] = added_by_quadrature(alphas[fractional], distance, rate)
    whole = renyi.gaussian(alphas, distance)
    mixed = np.logaddexp(np.log1p(-rate), np.log(rate) + (alphas - 1.0) * whole) / (alphas - 1.0)
    least: Array = np.minimum(np.minimum(curve, mixed) if distance > CHORDS_FROM else curve, whole)
    return least


def added_by_quadrature(alphas: Array, r: float, q: float) -> Array:
    """The same divergence for any order, as E[(1 + q u)^a - 1 - a q u] over z ~ N(0, 1), u = e^{r z
    - r^2/2} - 1.

    E u = 0, so this is the moment minus 1. The trapezoid rule converges geometrically; its step is
    set by the nearest complex zero of 1 + q u, at distance pi / r.
    """
    step = min(0.7, 0.6 / r)
    z = np.arange(-9.5, float(alphas.max()) * r + 9.5, step)
    exponent = r * z - r * r / 2.0
    w = np.logaddexp(np.log1p(-q), np.log(q) + exponent)
    x = q * np.expm1(np.minimum(exponent, 700.0))
    return excess_curve(alphas, log_bernoulli(alphas[:, None], w, x) - z * z / 2.0, step)


def replaced_gaussian(alphas: Array, distance: float, rate: float) -> Array:
    """D_a(P* || Q*) for ``distance`` s = C / sigma and sampling rate q < 1: exact, and at most 2 a
    s^2; shape (k,).

    (a-1) e(a) = ln(1 + E_{N(0)}[Q ((1+d)^a - 1 - a d)]), d = (P-Q)/Q = 2 q e^{-s^2/2} sinh(s z) /
    Q, by the trapezoid rule. Where (2a-1) s is large: E_P (P/Q)^(a-1) with Q >= (1-q) N(0) gives
    e_added(a; s) - ln(1-q), e_added the divergence of P from N(0) (proved). Without amplification
    it is 2 a s^2: the two ends lie 2 s apart.
    """
    alphas = np.asarray(alphas, dtype=np.float64)
    curve = renyi.gaussian(alphas, 2.0 * distance)
    near = ((2.0 * alphas - 1.0) * distance <= FAR) & (distance <= WIDE)
    if not near.all():
        bound = added_gaussian(alphas[~near], distance, rate) - np.log1p(-rate)
        curve[~near] = np.minimum(curve[~near], bound)
    for part in octaves(alphas, near):
        exact = _replaced_by_quadrature(alphas[part], distance, rate) * (1.0 + MARGIN)
        curve[part] = np.minimum(curve[part], exact)
    return curve


def octaves(alphas: Array, chosen: Array) -> Iterator[Array]:
    """Places of the ``chosen`` orders, those within a factor of two together: they need about the
    same nodes."""
    octave = np.floor(np.log2(alphas))
    for value in np.unique(octave[chosen]):
        yield np.flatnonzero(chosen & (octave == value))


def _replaced_by_quadrature(alphas: Array, s: float, q: float) -> Array:
    """e(a) of the worst pair. For q near 1 the integrand peaks at (2a-1) s, so nodes reach that
    far."""
    step = min(0.4, 0.4 / s)
    z = np.arange(-12.0 - s, (2.0 * float(alphas.max()) - 1.0) * s + 12.0, step)
    left = abs(s * z)
    log_p = np.logaddexp(np.log1p(-q), np.log(q) + s * z - s * s / 2.0)
    log_q = np.logaddexp(np.log1p(-q), np.log(q) - s * z - s * s / 2.0)
    with np.errstate(divide="ignore"):
        log_d = np.log(q) - s * s / 2.0 + left + np.log(-np.expm1(-2.0 * left)) - log_q
    d = np.sign(z) * np.exp(np.minimum(log_d, 700.0))
    logs = log_bernoulli(alphas[:, None], log_p - log_q, d) + log_q - z * z / 2.0
    return excess_curve(alphas, logs, step)


def excess_curve(alphas: Array, logs: Array, step: float) -> Array:
    """ln(1 + integral) / (a-1) from the logs of an integrand, shape (k, nodes), less its factor 1 /
    sqrt(2 pi)."""
    top = logs.max(axis=1)
    log_excess = top + np.log(np.exp(logs - top[:, None]).sum(axis=1) * step / np.sqrt(2.0 * np.pi))
    curve: Array = np.logaddexp(0.0, log_excess) / (alphas - 1.0)
    return curve


def log_bernoulli(a: Array, w: Array, x: Array) -> Array:
    """ln[(1+x)^a - 1 - a x] >= 0 for a of shape (k, 1), w = ln(1+x): by its series near 0, in logs
    where it is large.

    Bernoulli's inequality makes it no less than 0; in expectations of mean-zero x it is the moment
    minus 1 without loss of digits.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        direct = np.log(np.expm1(a * w) - a * x)
        series = x * x * a * (a - 1.0) / 2.0 * binomial_tail(a, x)
        large = a * w + np.log1p(-(1.0 + a * x) * np.exp(-a * w))
    small = np.abs(x) * np.maximum(a, 1.0) < 3e-2
    chosen: Array = np.where(
        small, np.log(np.where(small, series, 1.0) + 1e-300), np.where(a * w > 30.0, large, direct)
    )
    return chosen


def binomial_tail(a: Array, x: Array) -> Array:
    """[(1 + x)^a - 1 - a x] / (a (a-1) x^2 / 2) for small x, by its series up to x^6."""
    tail = np.ones(np.broadcast_shapes(a.shape, x.shape))
    for k in range(8, 2, -1):
        tail = 1.0 + tail * x * (a - (k - 1.0)) / k
    return tail
