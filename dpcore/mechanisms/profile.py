"""The exact (epsilon, delta) profile of the Gaussian mechanism ("analytic Gaussian").

For a shift of mu standard deviations, delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu). Balle & Wang (2018),
Theorem 8. It is exact for one release and, with mu = sqrt(sum (D_i / s_i)^2), for any adaptive composition of Gaussian
releases on the full data (Dong, Roth & Su 2022, Corollary 3.3). The classical sigma = sqrt(2 ln(1.25/delta)) D / eps is
proved for eps < 1 only and false from about 8; it is used nowhere here.
"""

from __future__ import annotations

from math import exp, expm1, inf, log, log1p, pi, sqrt

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from dpcore.checks import require_open_unit, require_positive


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta at ``epsilon`` (any real number) for a shift of ``mu`` standard deviations."""
    return exp(log_gaussian_delta(epsilon, mu))


def log_gaussian_delta(epsilon: float, mu: float) -> float:
    """ln delta, to full relative precision far into the tail; -inf for mu = 0 and epsilon >= 0."""
    if mu == 0.0:
        return -inf if epsilon >= 0 else log(-expm1(epsilon))
    near, far = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    if near > -10.0:
        # e^eps phi(far) = phi(near), so both tails share one exponent and only scaled tails are subtracted.
        scaled = float(erfcx(near / sqrt(2.0)) - erfcx(far / sqrt(2.0)))
        return -near * near / 2.0 + log(scaled / 2.0) if scaled > 0.0 else -inf
    # e^eps Phi(-far) = exp(-near^2 / 2) erfcx(far / sqrt 2) / 2: no difference of large logarithms.
    below = float(log_ndtr(-near))
    return below + log1p(-exp(-near * near / 2.0 - below) * float(erfcx(far / sqrt(2.0))) / 2.0)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Least epsilon >= 0 at ``delta`` for a shift of ``mu`` standard deviations; rounded to the safe side."""
    require_open_unit(delta=delta)
    if mu == inf:
        return inf
    target = log(delta)
    if mu == 0.0 or log_gaussian_delta(0.0, mu) <= target:
        return 0.0
    high = mu * mu / 2.0 + mu * sqrt(-2.0 * target) + 1e-3
    root = brentq(lambda e: max(log_gaussian_delta(e, mu), -1e6) - target, 0.0, high, xtol=1e-14, rtol=1e-13)
    return _raise_until(lambda e: log_gaussian_delta(e, mu) <= target, float(root))


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Least standard deviation for (epsilon, delta) at L2 ``sensitivity``; valid for every epsilon > 0, safe side."""
    require_positive(epsilon=epsilon, sensitivity=sensitivity)
    require_open_unit(delta=delta)
    target = log(delta)

    def excess(log_sigma: float) -> float:
        return max(log_gaussian_delta(epsilon, exp(-log_sigma)), -1e6) - target

    # mu <= sqrt(2 pi) delta gives delta at epsilon 0 already; mu = eps + sqrt(2 eps) + 10 never fits below 1/2.
    low, high = -log(epsilon + sqrt(2.0 * epsilon) + 60.0), -log(sqrt(2.0 * pi) * delta) + 1.0
    root = exp(float(brentq(excess, low, high, xtol=1e-14)))
    return sensitivity * _raise_until(lambda s: log_gaussian_delta(epsilon, 1.0 / s) <= target, root)


def _raise_until(fits, value: float) -> float:  # type: ignore[no-untyped-def]
    """``value`` raised in steps of a few roundings until it ``fits``."""
    step = 1e-14
    while not fits(value):
        value += max(abs(value), 1e-300) * step
        step *= 2.0
    return value
