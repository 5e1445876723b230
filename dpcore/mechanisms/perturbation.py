"""Objective perturbation: a random linear term in the objective, and AMP, its form for approximate
minimisers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf, log, log1p, pi, sqrt

import numpy as np
from scipy.special import log_ndtr

from dpcore.errors import PriceUnknown, require_choice, require_count, require_positive
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism, l2_distance, mechanism, settle
from dpcore.mechanisms.gaussian import gaussian_delta, log_gaussian_delta
from dpcore.noise import plain_gamma_norm, plain_gaussian, rounded_gamma_norm, rounded_gaussian
from dpcore.problem import Adjacency

Minimiser = Callable[[Array], Array]

# Shares of epsilon that ``AMP.delta`` tries for the output noise.
OUTPUT_SHARES = (1e-6, 1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 0.7, 0.9)


@mechanism("objective_perturbation")
@dataclass(frozen=True, slots=True)
class ObjectivePerturbation(Mechanism):
    """Release argmin_w sum_i loss_i(x_i @ w) + (curvature / 2) ||w||^2 + b @ w with b drawn here;
    shape (dimension,).

    Everything is on the SUM over records: ``lipschitz`` = sup |loss'| ||x||, ``smoothness`` = sup
    loss'' ||x||^2 and ``curvature`` = n l2 for a ridge l2 on the mean. The value handed to
    ``release`` is the function noise -> minimiser on the leased batch, so noise is drawn in one
    place only. It must return the exact minimiser (to rounding).

    Proved for generalised linear losses (one margin a record), add/remove and replace-one. With
    c = ln(1 + smoothness / curvature), which bounds the log-ratio of the Jacobians for both
    relations, and s = sensitivity / scale:
     - gaussian noise, add/remove: e(a) = c + a s^2/2 + ln(2 Phi((a-1) s)) / (a-1);
     - gaussian noise, replace-one, t = (a-1) s: e(a) = c + s^2/2 + ln(1 + sqrt(2 pi) t e^{t^2/2}
       Phi(t)) / (a-1);
     - gamma noise (density ~ exp(-||b|| / scale)): pure epsilon c + s.
    Chaudhuri, Monteleoni & Sarwate (2011); Kifer, Smith & Thakurta (2012); Theorem 14.3 of the
    notes is false.
    """

    lipschitz: float
    smoothness: float
    curvature: float
    scale: float
    dimension: int
    adjacency: Adjacency
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        require_positive(
            lipschitz=self.lipschitz,
            smoothness=self.smoothness,
            curvature=self.curvature,
            scale=self.scale,
        )
        require_count(dimension=self.dimension)
        require_choice(("gaussian", "gamma"), noise=self.noise)
        settle(self)
        if self.adjacency is Adjacency.REPLACE_LABELS:
            raise PriceUnknown(
                "No price of objective perturbation under replace_labels: use "
                "adjacency='replace_one', which covers it."
            )

    @property
    def proved_for(self) -> Adjacency:
        """Its own ``adjacency``."""
        return self.adjacency

    @property
    def sensitivity(self) -> float:
        """How far the noise that explains one output moves: L for one record more or fewer, 2L for
        a replaced one.
        """
        return self.lipschitz * (1.0 if self.adjacency is Adjacency.ADD_REMOVE else 2.0)

    @property
    def jacobian_loss(self) -> float:
        """c = ln(1 + smoothness / curvature)."""
        return log1p(self.smoothness / self.curvature)

    @property
    def pure_epsilon(self) -> float:
        """c + sensitivity / scale for gamma noise, infinity for Gaussian noise."""
        return self.jacobian_loss + self.sensitivity / self.scale if self.noise == "gamma" else inf

    def release(self, value: Minimiser, rng: np.random.Generator) -> Array:
        """Draw b and return ``value(b)``.

        b is an input of the minimiser, so it is not rounded: which lattice explains an output would
        tell neighbours apart. The rounded form covers the output noise of ``AMP``, which is
        post-processing.
        """
        draw = plain_gaussian if self.noise == "gaussian" else plain_gamma_norm
        return value(draw(self.dimension, self.scale, rng))

    def rdp(self, alphas: Array) -> Array:
        """The curve above, shape (k,)."""
        alphas = np.asarray(alphas, dtype=np.float64)
        if self.noise == "gamma":
            return renyi.pure(alphas, self.pure_epsilon)
        s = self.sensitivity / self.scale
        t = (alphas - 1.0) * s
        if self.adjacency is Adjacency.ADD_REMOVE:
            half: Array = (
                self.jacobian_loss
                + renyi.gaussian(alphas, s)
                + (log(2.0) + log_ndtr(t)) / (alphas - 1.0)
            )
            return half
        spread = np.logaddexp(0.0, 0.5 * log(2.0 * pi) + np.log(t) + t * t / 2.0 + log_ndtr(t))
        curve: Array = self.jacobian_loss + s * s / 2.0 + spread / (alphas - 1.0)
        return curve

    def delta(self, epsilon: float) -> float:
        """The proved (epsilon, delta) profile, tighter than the curve for a single release; at most
        1.

        With e = epsilon - c > 0, d_G the Gaussian profile. add/remove: 2 d_G(e; s) for e >= s^2/2,
        else 1 - 2 e^e Phi(-s). replace-one: sqrt(2 pi) s e^e Phi(-(e/s + s/2)) for e >= s^2/2, else
        1.
        """
        excess = epsilon - self.jacobian_loss
        s = self.sensitivity / self.scale
        if self.noise == "gamma":
            return 0.0 if epsilon >= self.pure_epsilon else 1.0
        if excess <= 0.0:
            return 1.0
        if self.adjacency is Adjacency.ADD_REMOVE:
            if excess >= s * s / 2.0:
                return min(1.0, 2.0 * exp(log_gaussian_delta(excess, s)))
            return 1.0 - 2.0 * exp(excess + float(log_ndtr(-s)))
        if excess < s * s / 2.0:
            return 1.0
        return min(1.0, sqrt(2.0 * pi) * s * exp(excess + float(log_ndtr(-(excess / s + s / 2.0)))))

    def replaced(self) -> ObjectivePerturbation:
        """The replace-one form, of sensitivity 2L."""
        return replace(self, adjacency=Adjacency.REPLACE_ONE)

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance of two noise vectors (the drawn one and the one that explains the
        output elsewhere).
        """
        return l2_distance(value, other)


@mechanism("amp")
@dataclass(frozen=True, slots=True)
class AMP(Mechanism):
    """Approximate minima perturbation: objective perturbation, solved to ||gradient|| <=
    ``gradient_norm``, plus noise.

    Iyengar, Near, Song, Thakkar, Thakurta & Wang (2019). Given the exact minimiser, the approximate
    one lies within gradient_norm / curvature of it on both data sets, so it moves by at most 2
    gradient_norm / curvature; the printed sigma_2 lacks the factor 2. ``gradient_norm`` belongs to
    the sum objective (n times that of the mean) and must be reached for EVERY input: the solver
    runs to a proved number of steps and never raises on it.

    The output noise is of the perturbation's own kind: Gaussian of standard deviation
    ``output_sigma``, or density ~ exp(-||z|| / output_sigma), which keeps a pure guarantee pure: c
    + sensitivity / scale + 2 gradient_norm / (curvature output_sigma).
    """

    perturbation: ObjectivePerturbation
    gradient_norm: float
    output_sigma: float

    def __post_init__(self) -> None:
        require_positive(gradient_norm=self.gradient_norm, output_sigma=self.output_sigma)
        settle(self)

    @property
    def proved_for(self) -> Adjacency:
        """That of the perturbation."""
        return self.perturbation.adjacency

    @property
    def sensitivity(self) -> float:
        """That of the perturbation, for ``distance`` between noise vectors."""
        return self.perturbation.sensitivity

    @property
    def output_sensitivity(self) -> float:
        """2 gradient_norm / curvature."""
        return 2.0 * self.gradient_norm / self.perturbation.curvature

    @property
    def pure_epsilon(self) -> float:
        """Sum of the two for gamma noise, infinity for Gaussian noise."""
        return self.perturbation.pure_epsilon + self.output_sensitivity / self.output_sigma

    def release(self, value: Minimiser, rng: np.random.Generator) -> Array:
        """Draw b, solve, add the output noise."""
        draw = rounded_gaussian if self.perturbation.noise == "gaussian" else rounded_gamma_norm
        return draw(self.perturbation.release(value, rng), self.output_sigma, rng)

    def rdp(self, alphas: Array) -> Array:
        """Sum of the two curves (adaptive composition), shape (k,)."""
        alphas = np.asarray(alphas, dtype=np.float64)
        if self.perturbation.noise == "gamma":
            return renyi.pure(alphas, self.pure_epsilon)
        curve: Array = self.perturbation.rdp(alphas) + renyi.gaussian(
            alphas, self.output_sensitivity / self.output_sigma
        )
        return curve

    def delta(self, epsilon: float) -> float:
        """Least d_perturbation(e1) + d_G(epsilon - e1) over a grid of splits."""
        if self.perturbation.noise == "gamma":
            return 0.0 if epsilon >= self.pure_epsilon else 1.0
        mu = self.output_sensitivity / self.output_sigma
        return min(
            min(
                1.0,
                self.perturbation.delta(epsilon * (1.0 - share))
                + gaussian_delta(epsilon * share, mu),
            )
            for share in OUTPUT_SHARES
        )

    def replaced(self) -> AMP:
        """The replace-one form."""
        return replace(self, perturbation=self.perturbation.replaced())

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance of two noise vectors."""
        return l2_distance(value, other)
