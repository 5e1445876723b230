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

**An epoch in which every record is in one of t batches**, chosen uniformly and independently of all
others. Each of the t batches is released once with Gaussian noise; r = sensitivity / sigma, one
record is added or removed.

**Dominating pair (proved, adaptively chosen steps included):** P = (1/t) sum_i N(r e_i), Q = N(0)
in R^t. Condition on the batches of all others, which are independent of this record's (joint
convexity). Then P/Q = (1/t) sum_i L_i with L_i = exp(<u_i, z_i> - |u_i|^2 / 2), |u_i| <= r chosen
from z_<i. From the last step backwards: E phi(m + L_i/t) depends on |u_i| alone, grows with it (a
mean-preserving spread under a convex phi) and is convex in m. So |u_i| = r throughout, for D(P||Q)
and for D(Q||P) alike.

With M = 1 + X the mean of t independent lognormals L (mean 1, log-variance r^2), and c_k = E
(L-1)^k >= 0:

    removed, whole a:  E M^a = sum_j C(a,j) E X^j,  E X^j = (j! / t^j) [x^j] (sum_k c_k x^k / k!)^t;
    added, any a:      E M^(1-a) = 1 + (1 / Gamma(a-1)) int_0^inf u^(a-2) (psi(u/t)^t - e^-u) du,
    psi(v) = E e^{-v L}.

No term of the sum is negative, nor is the integrand (Jensen). Between whole orders chords of the
log-moment lie above. An epoch costs the larger of both logs over a-1; epochs with fresh batches
add. Only that maximum is proved: with little noise M can be close to 0, which the added direction
sees. Where it is the smaller one anyway it is not computed: a mean is at least the geometric mean,
which is lognormal, so added is at most r^2/2 + (a-1) r^2 / (2t) (proved).

**Removed never costs more than t Poisson steps of rate 1/t, at whole orders (proved):** with x_i =
(L_i - 1)/t every E x_i^k >= 0 (Hermite expansion), so E (S+x)^a = sum_j C(a,j) E S^(a-j) E x^j <= E
Pi^a E (1+x)^a by induction, Pi the product so far, whose moments grow with their order. That prices
the orders above ``SUMMED``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import gammaln

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


# Whole orders up to here get the exact sum of the removed direction.
SUMMED = 256
# From this distance on there is no amplification worth its nodes.
LONGEST = 10.0
# Nodes of u that share their nodes of z.
CHUNK = 16
# Up to this logarithm of v r^2 the transform of L has nodes enough.
FARTHEST = 20.0


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


def allocated_gaussian(alphas: Array, distance: float, bins: int) -> Array:
    """Price of a whole epoch of ``bins`` = t batches at r = ``distance``, shape (k,); at most a r^2
    / 2.

    The cap: given its batch a record moves one release by r, and the pair is a mixture of these
    (quasi-convexity).
    """
    alphas = np.asarray(alphas, dtype=np.float64)
    whole = renyi.gaussian(alphas, distance)
    if bins == 1 or distance > LONGEST:
        return whole
    curve = epoch_removed(alphas, distance, bins)
    bound = distance**2 / 2.0 * (1.0 + (alphas - 1.0) / bins)
    open_ = (bound > curve) & (curve < whole)
    for part in octaves(alphas, open_):
        curve[part] = np.maximum(
            curve[part], np.minimum(epoch_added(alphas[part], distance, bins), bound[part])
        )
    least: Array = np.minimum(curve * (1.0 + MARGIN), whole)
    return least


def epoch_removed(alphas: Array, r: float, t: int) -> Array:
    """ln E M^a / (a-1): exact at whole orders up to ``SUMMED``, the price of t Poisson steps above,
    chords between."""
    curve = np.empty(len(alphas))
    near = alphas <= SUMMED
    if not near.all():
        curve[~near] = t * added_gaussian(alphas[~near], r, 1.0 / t)
    if near.any():
        table = renyi.expansion(alphas[near])
        moments = renyi.log_moments(table, 0.0, 0.0, _mean_moments(table.highest, r, t))
        curve[near] = renyi.at_orders(table, alphas[near], moments)
    return curve


def _mean_moments(highest: int, r: float, t: int) -> Array:
    """ln E X^j for j = 0..highest: the series of one bin to the power t by repeated squaring, in
    logs."""
    j = np.arange(highest + 1, dtype=np.float64)
    power, result, left = central_moments(highest, r) - gammaln(j + 1.0), None, t
    while left:
        if left & 1:
            result = power if result is None else _product(result, power)
        left >>= 1
        power = _product(power, power) if left else power
    assert result is not None
    moments: Array = result + gammaln(j + 1.0) - j * np.log(t)
    return moments


def central_moments(highest: int, r: float) -> Array:
    """ln E (L-1)^k for k = 0..highest and a lognormal L of mean 1; -inf at 1.

    The trapezoid rule is exact here to all digits: the integrand is a polynomial in e^{r z} under a
    Gaussian. Odd powers cancel to a share r of their size; what that may lose is added, so that no
    moment is too small.
    """
    z = np.arange(-13.0, highest * r + 13.0, 0.4)
    ratio = r * z - r * r / 2.0
    k = np.arange(highest + 1, dtype=np.float64)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(ratio > 30.0, ratio, np.log(abs(np.expm1(np.minimum(ratio, 31.0)))))
        logs = np.where(k > 0, k * size, 0.0) - z * z / 2.0 + np.log(0.4 / np.sqrt(2.0 * np.pi))
        top = logs.max(axis=1, keepdims=True)
        sizes = np.exp(logs - top)
        odd = (k[:, 0] % 2) == 1
        total = sizes.sum(axis=1)
        signed = np.where(odd, (sizes * np.sign(ratio)).sum(axis=1), total)
        moments: Array = top[:, 0] + np.log(np.maximum(signed, 0.0) + 1e-14 * odd * total)
    moments[0], moments[1] = 0.0, -np.inf
    return moments


def _product(first: Array, second: Array) -> Array:
    """Logs of the coefficients of a product of two series without negative coefficients."""
    count = len(first)
    sums = np.full((count, count), -np.inf)
    for k in range(count):
        sums[k, k:] = first[k] + second[: count - k]
    top = sums.max(axis=0)
    product: Array = top + np.log(
        np.exp(sums - np.where(np.isfinite(top), top, 0.0)).sum(axis=0) + 1e-300
    )
    return product


def epoch_added(alphas: Array, r: float, t: int) -> Array:
    """ln E M^(1-a) / (a-1) for orders within a factor of 2, by the trapezoid rule in ln u.

    Infinite where it would take too many nodes: with so little noise the bound by the geometric
    mean is the price.
    """
    least, most = float(alphas.min()), float(alphas.max())
    start = np.log(least) - 9.0 / np.sqrt(least) - 20.0 / least
    # Beyond ``end`` what is left of u^(a-1) psi^t is below e^-50 of the whole: a share e^-tail of L
    # lies under e^{-r sqrt(2 tail) - r^2/2}, and the power of u is paid for as well.
    end = np.log(most + 12.0 * np.sqrt(most) + 50.0)
    for _ in range(50):
        grown = (most - 1.0) * max(end - np.log(most), 0.0)
        tail = (most + 12.0 * np.sqrt(most) + 50.0 + grown) / t
        end = np.log(t * tail) + r * np.sqrt(2.0 * tail) + r * r / 2.0
    if end + 2.0 * np.log(r) - np.log(t) > FARTHEST:
        return np.full(len(alphas), np.inf)
    # Twice as fine as most settings need: at 0.25 one came out 6e-7 too low.
    step = min(0.125, 0.5 / np.sqrt(most))
    u_log = np.arange(start, end, step)
    u = np.exp(u_log)
    gain = renyi.log_expm1(t * _log_laplace(u / t, r)) - u
    logs = (alphas[:, None] - 1.0) * u_log + gain - gammaln(alphas[:, None] - 1.0)
    top = logs.max(axis=1)
    log_excess = top + np.log(np.exp(logs - top[:, None]).sum(axis=1) * step)
    curve: Array = np.logaddexp(0.0, log_excess) / (alphas - 1.0)
    return curve


def _log_laplace(v: Array, r: float) -> Array:
    """ln psi(v) + v = ln E e^{-v (L-1)} >= 0, shape of ``v``, which ascends.

    E L = 1, so E e^-x = 1 + E(e^-x - 1 + x) with x = v (L-1), where nothing cancels; for large v as
    it stands.
    """
    result = np.empty(len(v))
    for start in range(0, len(v), CHUNK):
        part = v[start : start + CHUNK]
        direct = part[0] * r > 4.0 and part[0] > 30.0
        step = min(0.3, 0.3 / r, 0.7 / np.sqrt(1.0 + part[-1] * r * r))
        end = min(13.0, np.log(800.0 / part[0]) / r + r / 2.0) if direct else 13.0
        end = max(end, -12.0)
        z = np.arange(-13.0, end, step)
        share = np.expm1(r * z - r * r / 2.0)
        log_weights = -z * z / 2.0 + np.log(step / np.sqrt(2.0 * np.pi))
        if direct:
            logs = log_weights - part[:, None] * (1.0 + share)
            top = logs.max(axis=1)
            value = top + np.log(np.exp(logs - top[:, None]).sum(axis=1)) + part
        else:
            value = np.log1p(_second_excess(part[:, None] * share) @ np.exp(log_weights))
        result[start : start + CHUNK] = value
    return result


def _second_excess(x: Array) -> Array:
    """e^-x - 1 + x >= 0, by its series near 0."""
    series = x * x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0 * (1.0 - x / 6.0))))
    value: Array = np.where(np.abs(x) < 1e-2, series, np.expm1(-np.maximum(x, -700.0)) + x)
    return value
