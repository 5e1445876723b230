"""Adam on noisy clipped gradients: the moments are post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, NOT_PRINTED, Algorithm, Preset, register
from dpcore.descent.gradient import SAMPLERS, NoisyGradient, step_share, usual_clip
from dpcore.errors import (
    if_given,
    require_below_one,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism, Rounds
from dpcore.problem import Adjacency, Problem, Requires

# First step size times norm_bound (a coordinate moves by about this much a step): STEP *
# signal^POWER, at most MOST. Fitted on Adult, where the optimum is flat: 0.22 at epsilon 0.05, 0.45
# at 1.6; a quarter for residuals.
STEP, POWER, MOST = 0.061, 0.21, 0.6


@register("dp_adam")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPAdam(Algorithm):
    """Kingma & Ba (2015), Algorithm 1, on g_t = (sum clip(g_i, C) + N(0, sigma^2 I)) / (q n) + l2
    w.

    sigma = noise_multiplier * ``problem.sensitivity(C)``; batches as in ``dp_sgd``, price likewise:
    Abadi et al. (2016) with Mironov, Talwar & Zhang (2019). First moment m = b1 m + (1 - b1) g,
    second v = b2 v + (1 - b2) g^2, both divided by 1 - b^t; step eta_t m / (sqrt(v) + stability),
    eta_t falling linearly to 0 (``decay``). With noise far above the signal v is close to the known
    noise variance in every coordinate, and Adam to SGD with momentum.
    """

    requires: ClassVar[Requires] = Requires(l1=False, sessions=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "every iterate"
    argument: ClassVar[str] = (
        "A record enters each sum with a gradient clipped to norm C, twice that when replaced, and "
        "moments and steps follow from the noisy sums (Abadi et al. 2016; Mironov, Talwar & Zhang "
        "2019)."
    )
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {"steps": 3, "clip_norm": 0.05}
    limit: ClassVar[dict[str, Any]] = {"steps": 1000}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            sampling_rate=(0.005, "Chen (2020), 5.6.4, pp. 72-75: q = 1/200"),
            clip_norm=(3.0, "Chen (2020), 5.6.4, pp. 72-75"),
            learning_rate=(
                1e-3,
                "Chen (2020), 5.6.4, pp. 72-75: Adam's own default",
            ),
            decay=(False, "Kingma & Ba (2015), Algorithm 1"),
            steps=(2000, f"{NOT_PRINTED}ten expected epochs of 1/q"),
        )
    }

    noise_multiplier: float = 2.0
    steps: int = 200
    sampling_rate: float = 1.0
    clip_norm: float | None = None
    learning_rate: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    stability: float = 1e-8
    decay: bool = True
    sampler: str = "poisson"

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier, stability=self.stability)
        require_count(steps=self.steps)
        require_fraction(sampling_rate=self.sampling_rate)
        require_choice(SAMPLERS, sampler=self.sampler)
        require_below_one(beta1=self.beta1, beta2=self.beta2)
        if_given(require_positive, clip_norm=self.clip_norm, learning_rate=self.learning_rate)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"clip_norm": self.clip(problem), "learning_rate": self.first_step(problem)}

    def clip(self, problem: Problem) -> float:
        """The clip norm C."""
        return self.clip_norm or usual_clip(problem)

    def first_step(self, problem: Problem) -> float:
        """Step size eta_0; left out it grows slowly with n C / S * q sqrt(steps) /
        noise_multiplier, all public.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        share = problem.n * self.clip(problem) / problem.sensitivity(self.clip(problem))
        signal = share * self.sampling_rate * sqrt(self.steps) / self.noise_multiplier
        return float(min(STEP * signal**POWER, MOST) * step_share(problem) / problem.norm_bound)

    def gradient(self, problem: Problem) -> NoisyGradient:
        """The release of a step."""
        return NoisyGradient.of_sampler(
            problem, self.clip(problem), self.noise_multiplier, self.sampling_rate, self.sampler
        )

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        return Rounds([self.gradient(problem).mechanism], self.steps)

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the last iterate, shape (d,)."""
        eta, gradient = self.first_step(problem), self.gradient(problem)
        w = np.zeros(problem.dimension * problem.outputs)
        mean, square = np.zeros_like(w), np.zeros_like(w)
        for step in range(self.steps):
            noisy = gradient.mean(budget, w) + problem.l2 * w
            mean = self.beta1 * mean + (1.0 - self.beta1) * noisy
            square = self.beta2 * square + (1.0 - self.beta2) * noisy**2
            rate = eta * (1.0 - step / self.steps if self.decay else 1.0)
            unbias = sqrt(1.0 - self.beta2 ** (step + 1)) / (1.0 - self.beta1 ** (step + 1))
            w = w - rate * unbias * mean / (np.sqrt(square) + self.stability)
            budget.note(step_size=rate)
        return w
