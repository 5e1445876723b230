"""Noise with exponential tails: pure guarantees."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpcore.errors import require_below_one, require_positive
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism, l1_distance, l2_distance, mechanism, settle
from dpcore.noise import discrete_laplace, rounded_gamma_norm, rounded_laplace


@mechanism("laplace")
@dataclass(frozen=True, slots=True)
class Laplace(Mechanism):
    """Add Laplace noise of ``scale`` to each coordinate of a value of any shape with L1 sensitivity
    ``sensitivity``.

    ``rounding`` > 0 selects the exact discrete form, at that share more sensitivity; see
    ``Gaussian`` and ``noise``.

    One dimension is the worst case for every divergence (proved), so the price needs no dimension.
    For two coordinates with shifts d1 <= d2, D = d1 + d2, the likelihood ratio is e^{2S - D}, S the
    sum of two variables that are 0 with chance 1/2, else exponential, cut at d1 and d2. For one
    coordinate with shift D it is e^{2T - D}, where P(T > x) = e^{-x} / 2 for x < D. Now e^x P(S >
    x) is 3/4 + x/4 on [0, d1), 1/2 + d1/4 on [d1, d2) and (1 + D - x)/4 on [d2, D): it passes 1/2
    once, downwards. Both ratios have mean 1, so that of S is below that of T in convex order
    (Karlin & Novikoff 1963): S tells less than T. Further coordinates by induction, for products
    keep that order.
    """

    sensitivity: float
    scale: float
    rounding: float = 0.0

    def __post_init__(self) -> None:
        require_positive(sensitivity=self.sensitivity, scale=self.scale)
        require_below_one(rounding=self.rounding)
        settle(self)

    @property
    def ratio(self) -> float:
        """Sensitivity over scale, the rounding of the input included."""
        return self.sensitivity * (1.0 + self.rounding) / self.scale

    @property
    def pure_epsilon(self) -> float:
        """sensitivity / scale. Dwork, McSherry, Nissim & Smith (2006)."""
        return self.ratio

    def release(self, value: Array, rng: np.random.Generator) -> Array:
        """Return the noisy value, float64, same shape."""
        if self.rounding > 0.0:
            return discrete_laplace(value, self.scale, self.rounding * self.sensitivity, rng)
        return rounded_laplace(value, self.scale, rng)

    def rdp(self, alphas: Array) -> Array:
        """Exact curve of the Laplace mechanism, shape (k,). Mironov (2017), Proposition 6."""
        return renyi.laplace(np.asarray(alphas, dtype=np.float64), self.ratio)

    def replaced(self) -> Laplace:
        """Twice the sensitivity."""
        return replace(self, sensitivity=2.0 * self.sensitivity)

    def distance(self, value: Array, other: Array) -> float:
        """L1 distance."""
        return l1_distance(value, other)


@mechanism("gamma_norm")
@dataclass(frozen=True, slots=True)
class GammaNorm(Mechanism):
    """Add z with density ~ exp(-||z||_2 / scale) to a vector with L2 sensitivity ``sensitivity``.

    ||z|| is Gamma(d, scale) and the direction uniform. Pure epsilon = sensitivity / scale by the
    triangle inequality, in any dimension d. Chaudhuri, Monteleoni & Sarwate (2011), Algorithm 1.
    """

    sensitivity: float
    scale: float

    def __post_init__(self) -> None:
        require_positive(sensitivity=self.sensitivity, scale=self.scale)
        settle(self)

    @property
    def pure_epsilon(self) -> float:
        """sensitivity / scale."""
        return self.sensitivity / self.scale

    def release(self, value: Array, rng: np.random.Generator) -> Array:
        """Return the noisy value, float64, same shape."""
        return rounded_gamma_norm(value, self.scale, rng)

    def rdp(self, alphas: Array) -> Array:
        """The largest curve of a pure epsilon-DP mechanism (``renyi.pure``), shape (k,); the exact
        one is below it.
        """
        return renyi.pure(np.asarray(alphas, dtype=np.float64), self.pure_epsilon)

    def replaced(self) -> GammaNorm:
        """Twice the sensitivity."""
        return replace(self, sensitivity=2.0 * self.sensitivity)

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance."""
        return l2_distance(value, other)


def laplace_for(sensitivity: float, epsilon: float, noise: str) -> Laplace:
    """Laplace noise of pure ``epsilon`` in the form ``noise``, the rounding paid by its scale."""
    made = Laplace(sensitivity, sensitivity / epsilon).with_noise(noise)
    return replace(made, scale=sensitivity * (1.0 + made.rounding) / epsilon)
