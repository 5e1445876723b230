"""Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpcore.checks import require_below_one, require_positive
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism, l2_distance, mechanism, settle
from dpcore.noise import discrete_gaussian, rounded_gaussian


@mechanism("gaussian")
@dataclass(frozen=True, slots=True)
class Gaussian(Mechanism):
    """Add N(0, sigma^2) to each coordinate of a value of any shape with L2 sensitivity ``sensitivity``.

    ``rounding`` = 0 draws floating-point noise and rounds the output to a grid (post-processing). ``rounding`` > 0
    selects the exact discrete form: the input is rounded to a power-of-two grid so fine that this moves two neighbours
    apart by at most ``rounding`` * sensitivity, and discrete Gaussian noise on that grid is added (``noise``).

    For a shift u on the grid, E_0[(p_u / p_0)^j] = e^{j (j-1) |u|^2 / (2 sigma^2)} holds for the discrete law at every
    integer j as it does for the real one, so curves at integer orders are the same, on random batches too (reflection
    swaps the pair, as there). Fractional orders and absolute odd moments differ by a factor of 1 + 2 e^{-2 pi^2 s^2},
    s >= 1024 grid steps a sigma: nothing that a float can hold.
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

        The discrete form has the same curve for shifts on its grid: Canonne, Kamath & Steinke (2020), Proposition 5.
        """
        return renyi.gaussian(np.asarray(alphas, dtype=np.float64), self.ratio)

    def replaced(self) -> Gaussian:
        """Twice the sensitivity."""
        return replace(self, sensitivity=2.0 * self.sensitivity)

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance."""
        return l2_distance(value, other)
