"""Gaussian noise.

The exact (epsilon, delta) profile of the Gaussian mechanism ("analytic Gaussian").

For a shift of mu standard deviations, delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
Balle & Wang (2018), Theorem 8. It is exact for one release and, with mu = sqrt(sum (D_i / s_i)^2),
for any adaptive composition of Gaussian releases on the full data (Dong, Roth & Su 2022, Corollary
3.3). The classical sigma = sqrt(2 ln(1.25/delta)) D / eps is proved for eps < 1 only and false from
about 8; it is used nowhere here.

One Gaussian release whose sensitivity depends on the batch that holds the differing record
(RSGD-AR, bolt-on).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, expm1, inf, log, log1p, pi, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, logsumexp

from dpcore.errors import (
    InputError,
    require_below_one,
    require_count,
    require_nonnegative,
    require_open_unit,
    require_positive,
)
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism, l2_distance, mechanism, settle
from dpcore.noise import discrete_gaussian, rounded_gaussian
from dpcore.problem import Adjacency


@mechanism("gaussian")
@dataclass(frozen=True, slots=True)
class Gaussian(Mechanism):
    """Add N(0, sigma^2) to each coordinate of a value of any shape with L2 sensitivity
    ``sensitivity``.

    ``rounding`` = 0 draws floating-point noise and rounds the output to a grid (post-processing).
    ``rounding`` > 0 selects the exact discrete form: the input is rounded to a power-of-two grid so
    fine that this moves two neighbours apart by at most ``rounding`` * sensitivity, and discrete
    Gaussian noise on that grid is added (``noise``).

    For a shift u on the grid, E_0[(p_u / p_0)^j] = e^{j (j-1) |u|^2 / (2 sigma^2)} holds for the
    discrete law at every integer j as it does for the real one, so curves at integer orders are the
    same, on random batches too (reflection swaps the pair, as there). Fractional orders and
    absolute odd moments differ by a factor of 1 + 2 e^{-2 pi^2 s^2}, s >= 1024 grid steps a sigma:
    nothing that a float can hold.
    """

    sensitivity: float
    sigma: float
    rounding: float = 0.0

    def __post_init__(self) -> None:
        require_positive(sensitivity=self.sensitivity, sigma=self.sigma)
        require_below_one(rounding=self.rounding)
        settle(self)

    @property
    def ratio(self) -> float:
        """Sensitivity over sigma, the rounding of the input included."""
        return self.sensitivity * (1.0 + self.rounding) / self.sigma

    def release(self, value: Array, rng: np.random.Generator) -> Array:
        """Return the noisy value, float64, same shape."""
        if self.rounding > 0.0:
            return discrete_gaussian(value, self.sigma, self.rounding * self.sensitivity, rng)
        return rounded_gaussian(value, self.sigma, rng)

    def rdp(self, alphas: Array) -> Array:
        """a (sensitivity / sigma)^2 / 2, shape (k,). Mironov (2017), Proposition 7; exact.

        The discrete form has the same curve for shifts on its grid: Canonne, Kamath & Steinke
        (2020), Proposition 5.
        """
        return renyi.gaussian(np.asarray(alphas, dtype=np.float64), self.ratio)

    def replaced(self) -> Gaussian:
        """Twice the sensitivity."""
        return replace(self, sensitivity=2.0 * self.sensitivity)

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance."""
        return l2_distance(value, other)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta at ``epsilon`` (any real number) for a shift of ``mu`` standard deviations."""
    return exp(log_gaussian_delta(epsilon, mu))


def log_gaussian_delta(epsilon: float, mu: float) -> float:
    """ln delta, to full relative precision far into the tail; -inf for mu = 0 and epsilon >= 0."""
    if mu == 0.0:
        return -inf if epsilon >= 0 else log(-expm1(epsilon))
    near, far = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    if near > -10.0:
        # e^eps phi(far) = phi(near), so both tails share one exponent and only scaled tails are
        # subtracted.
        scaled = float(erfcx(near / sqrt(2.0)) - erfcx(far / sqrt(2.0)))
        return -near * near / 2.0 + log(scaled / 2.0) if scaled > 0.0 else -inf
    # e^eps Phi(-far) = exp(-near^2 / 2) erfcx(far / sqrt 2) / 2: no difference of large logarithms.
    below = float(log_ndtr(-near))
    return below + log1p(-exp(-near * near / 2.0 - below) * float(erfcx(far / sqrt(2.0))) / 2.0)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Least epsilon >= 0 at ``delta`` for a shift of ``mu`` standard deviations; rounded to the
    safe side.
    """
    require_open_unit(delta=delta)
    if mu == inf:
        return inf
    target = log(delta)
    if mu == 0.0 or log_gaussian_delta(0.0, mu) <= target:
        return 0.0
    high = mu * mu / 2.0 + mu * sqrt(-2.0 * target) + 1e-3
    root = brentq(
        lambda e: max(log_gaussian_delta(e, mu), -1e6) - target, 0.0, high, xtol=1e-14, rtol=1e-13
    )
    return _raise_until(lambda e: log_gaussian_delta(e, mu) <= target, float(root))


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Least standard deviation for (epsilon, delta) at L2 ``sensitivity``; valid for every epsilon
    > 0, safe side.
    """
    require_positive(epsilon=epsilon, sensitivity=sensitivity)
    require_open_unit(delta=delta)
    target = log(delta)

    def excess(log_sigma: float) -> float:
        return max(log_gaussian_delta(epsilon, exp(-log_sigma)), -1e6) - target

    # mu <= sqrt(2 pi) delta gives delta at epsilon 0 already; mu = eps + sqrt(2 eps) + 10 never
    # fits below 1/2.
    low, high = -log(epsilon + sqrt(2.0 * epsilon) + 60.0), -log(sqrt(2.0 * pi) * delta) + 1.0
    root = exp(float(brentq(excess, low, high, xtol=1e-14)))
    return sensitivity * _raise_until(
        lambda s: log_gaussian_delta(epsilon, 1.0 / s) <= target, root
    )


def _raise_until(fits: Callable[[float], bool], value: float) -> float:
    """``value`` raised in steps of a few roundings until it ``fits``."""
    step = 1e-14
    while not fits(value):
        value += max(abs(value), 1e-300) * step
        step *= 2.0
    return value


@mechanism("randomised_sensitivity_gaussian")
@dataclass(frozen=True, slots=True)
class RandomisedSensitivityGaussian(Mechanism):
    """Add N(0, sigma^2 I) once to a value that moves by at most D_j when the replaced record is in
    batch j.

    ``sensitivities`` are the D_j and ``sizes`` the batch sizes, in one order; the other of the
    ``n`` records are in no batch and move nothing. Alone its price is that of the largest D_j.
    ``Permuted(sizes, n).amplify`` makes it the mixture over a secret uniform permutation
    (``permuted_rdp``). ``rounding`` > 0 selects the exact discrete form, at that share of the
    largest D_j more for every batch; see ``Gaussian``.
    """

    sensitivities: tuple[float, ...]
    sizes: tuple[int, ...]
    n: int
    sigma: float
    rounding: float = 0.0

    def __post_init__(self) -> None:
        settle(self)
        require_positive(sigma=self.sigma)
        require_below_one(rounding=self.rounding)
        require_count(n=self.n)
        for bound, size in zip(self.sensitivities, self.sizes, strict=False):
            require_nonnegative(sensitivity=bound)
            require_count(size=size)
        if len(self.sensitivities) != len(self.sizes) or not 0 < sum(self.sizes) <= self.n:
            raise InputError(
                f"Expected one sensitivity a batch and batches of at most n={self.n} rows "
                f"together, got {len(self.sensitivities)} sensitivities, {len(self.sizes)} sizes "
                f"of sum {sum(self.sizes)}."
            )

    @property
    def proved_for(self) -> Adjacency:
        """Replaced records only: another n would be another set of batches."""
        return Adjacency.REPLACE_ONE

    @property
    def sensitivity(self) -> float:
        """The largest D_j."""
        return max(self.sensitivities)

    def release(self, value: Array, rng: np.random.Generator) -> Array:
        """Return the noisy value, float64, same shape."""
        if self.rounding > 0.0:
            return discrete_gaussian(value, self.sigma, self.rounding * self.sensitivity, rng)
        return rounded_gaussian(value, self.sigma, rng)

    def rdp(self, alphas: Array) -> Array:
        """a max_j D_j^2 / (2 sigma^2), shape (k,): no secret permutation."""
        return renyi.gaussian(np.asarray(alphas, dtype=np.float64), float(self.ratios.max()))

    @property
    def ratios(self) -> Array:
        """D_j over sigma for each batch, the rounding of the input included."""
        return (np.array(self.sensitivities) + self.rounding * self.sensitivity) / self.sigma

    def permuted_rdp(self, alphas: Array) -> Array:
        """ln( sum_j q_j exp(a (a-1) D_j^2 / (2 sigma^2)) ) / (a-1), q_j = sizes_j / n, and D = 0
        for the rest.

        Theorem 3.2 of the dissertation, in log space: the two outputs are mixtures over where the
        record lands, with equal weights, and exp((a-1) divergence) is jointly convex. Replace-one,
        ONE secret uniform permutation, no release of batches or inner iterates.
        """
        alphas = np.asarray(alphas, dtype=np.float64)[:, None]
        shares = np.array(self.sizes, dtype=np.float64) / self.n
        terms = renyi.log_expm1(alphas * (alphas - 1.0) * self.ratios**2 / 2.0) + np.log(shares)
        with np.errstate(divide="ignore"):
            excess = logsumexp(terms, axis=1)
        curve: Array = np.logaddexp(0.0, excess) / (alphas[:, 0] - 1.0)
        return curve

    def permuted_delta(self, epsilon: float) -> float:
        """sum_j q_j d_G(epsilon; D_j / sigma), d_G the exact Gaussian profile: the mixture's delta
        at ``epsilon``.

        The same argument as for the curve: the hockey-stick divergence is jointly convex (proved),
        and a record that is in no batch changes nothing. Sharper than any conversion of the curve.
        Rounding of the input counts in D_j.
        """
        return sum(
            size / self.n * gaussian_delta(epsilon, float(ratio))
            for ratio, size in zip(self.ratios, self.sizes, strict=True)
        )

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance."""
        return l2_distance(value, other)
