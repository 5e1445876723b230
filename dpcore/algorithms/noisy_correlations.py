"""One noisy sum y_i x_i: the cheapest private ranking of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.descent.gradient import curvature_bound, slope_at_start
from dpcore.errors import if_given, require_positive
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.objective import Objective
from dpcore.penalties import prox_l1
from dpcore.problem import Adjacency, Problem, Requires

# Clip norm in units of norm_bound times the slope of the loss at 0: all rows longer than half the
# bound count alike.
CLIP_SHARE = 0.5
# Slope at 0 that stands in for a residual loss, whose slope there is the label.
NOMINAL_SLOPE = 1.0


@register("noisy_correlations")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCorrelations(Algorithm):
    """Release s = -sum_i clip(gradient_i(0), C) + N(0, sigma^2 I) once, sigma = noise_multiplier *
    sensitivity(C).

    For a margin loss gradient_i(0) = loss'(0) y_i x_i, so s is X'y up to a factor, each record cut
    to norm C: a vector of covariances of the columns with the label. |s_j| ranks the columns.
    Correlated columns inherit from each other, which no further budget repairs (``two_phase``
    does). The returned weights are one gradient step of size 1 / smoothness from 0, then the L1
    step: their order is what counts, their scale is not fitted.
    """

    requires: ClassVar[Requires] = Requires(linear=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "one vector of correlations"
    argument: ClassVar[str] = (
        "A record enters the one sum with its gradient at w = 0 clipped to norm C, twice that when "
        "replaced (Gaussian mechanism of Dwork & Roth 2014)."
    )
    small: ClassVar[dict[str, Any]] = {"clip_norm": 0.05}
    selects: ClassVar[bool] = True
    limit_gap: ClassVar[float] = 0.9  # one step does not minimise anything

    noise_multiplier: float = 2.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        if_given(require_positive, clip_norm=self.clip_norm)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"clip_norm": self.clip(problem)}

    def clip(self, problem: Problem) -> float:
        """The clip norm C."""
        if self.clip_norm is not None:
            return self.clip_norm
        at_zero = slope_at_start(problem) if problem.loss.argument == "margin" else NOMINAL_SLOPE
        return CLIP_SHARE * problem.norm_bound * (at_zero * problem.weight)

    def plan(self, problem: Problem) -> list[Mechanism]:
        sensitivity = problem.sensitivity(self.clip(problem))
        return [Gaussian(sensitivity, self.noise_multiplier * sensitivity)]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return one step from 0 along the noisy correlations, shape (d,)."""
        clip_norm = self.clip(problem)

        def correlations(data: Objective) -> Array:
            return -data.gradient_sum(np.zeros(problem.dimension), clip_norm)

        [mechanism] = self.plan(problem)
        step = _step(problem)
        noisy = budget.release(mechanism, correlations)
        return prox_l1(step * noisy / problem.n, step * problem.l1, problem.intercept)

    def weight_noise(self, problem: Problem) -> float | None:
        """``noise``; an L1 step shrinks it by an amount that depends on the weights."""
        return None if problem.l1 > 0 else self.noise(problem)

    def noise(self, problem: Problem) -> float:
        """Standard deviation of the noise in a returned weight, before the L1 step."""
        return (
            _step(problem)
            * self.noise_multiplier
            * problem.sensitivity(self.clip(problem))
            / problem.n
        )


def _step(problem: Problem) -> float:
    """1 / smoothness, with a stand-in for a loss without a bound of its curvature."""
    return 1.0 / (problem.norm_bound**2 * curvature_bound(problem) + problem.l2)
