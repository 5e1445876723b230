"""Noise with exponential tails: pure guarantees.

Which form of noise a run uses: floating point with rounded output, or exact integer noise on a grid.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dpcore.errors import InputError, require_below_one, require_positive, unknown_name
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism, l1_distance, l2_distance, mechanism, settle
from dpcore.noise import FORMS, discrete_laplace, rounded_gamma_norm, rounded_laplace


@mechanism("laplace")
@dataclass(frozen=True, slots=True)
class Laplace(Mechanism):
    """Add Laplace noise of ``scale`` to each coordinate of a value of any shape with L1 sensitivity ``sensitivity``.

    ``rounding`` > 0 selects the exact discrete form, at that share more sensitivity; see ``Gaussian`` and ``noise``.

    One dimension is the worst case for every divergence (proved), so the price needs no dimension. For two coordinates
    with shifts d1 <= d2, D = d1 + d2, the likelihood ratio is e^{2S - D}, S the sum of two variables that are 0 with
    chance 1/2, else exponential, cut at d1 and d2. For one coordinate with shift D it is e^{2T - D}, where
    P(T > x) = e^{-x} / 2 for x < D. Now e^x P(S > x) is 3/4 + x/4 on [0, d1), 1/2 + d1/4 on [d1, d2) and
    (1 + D - x)/4 on [d2, D): it passes 1/2 once, downwards. Both ratios have mean 1, so that of S is below that of T in
    convex order (Karlin & Novikoff 1963): S tells less than T. Further coordinates by induction, for products keep
    that order.
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

    ||z|| is Gamma(d, scale) and the direction uniform. Pure epsilon = sensitivity / scale by the triangle inequality,
    in any dimension d. Chaudhuri, Monteleoni & Sarwate (2011), Algorithm 1.
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
        """The largest curve of a pure epsilon-DP mechanism (``renyi.pure``), shape (k,); the exact one is below it."""
        return renyi.pure(np.asarray(alphas, dtype=np.float64), self.pure_epsilon)

    def replaced(self) -> GammaNorm:
        """Twice the sensitivity."""
        return replace(self, sensitivity=2.0 * self.sensitivity)

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance."""
        return l2_distance(value, other)


# Share of the sensitivity that rounding the input costs in the exact form: 0.1 % more noise.
ROUNDING = 2.0**-10


def in_form(mechanism: Mechanism, form: str) -> Mechanism:
    """``mechanism`` with its noise in ``form``: "rounded" (itself) or "discrete" (its ``rounding`` set to 2^-10).

    The mechanism on a batch is changed inside it; one without noise stays. A plan and the door that runs it must use
    one form, so that price and noise agree. Raises ``InputError`` for a mechanism that has no exact form.
    """
    if form not in FORMS:
        raise unknown_name("form of noise", form, FORMS)
    if form == "rounded" or mechanism.kind == "exact":
        return mechanism
    item: Any = mechanism
    if hasattr(item, "mapped"):  # a mechanism made of others
        mapped: Mechanism = item.mapped(lambda inner: in_form(inner, form))
        return mapped
    names = {field.name for field in fields(item)}
    if "mechanism" in names:
        sampled: Mechanism = replace(item, mechanism=in_form(item.mechanism, form))
        return sampled
    if "rounding" not in names:
        raise InputError(
            f"Expected a mechanism with an exact form for noise='discrete', got {mechanism.kind!r}; "
            "use noise='rounded' for this algorithm."
        )
    discrete: Mechanism = replace(item, rounding=item.rounding or ROUNDING)
    return discrete


def laplace_for(sensitivity: float, epsilon: float, form: str) -> Laplace:
    """Laplace noise in ``form`` of pure ``epsilon`` for a value of L1 ``sensitivity``, the rounding paid by scale."""
    made = in_form(Laplace(sensitivity, sensitivity / epsilon), form)
    assert isinstance(made, Laplace)
    return replace(made, scale=sensitivity * (1.0 + made.rounding) / epsilon)
