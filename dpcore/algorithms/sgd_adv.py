"""Baseline: private SGD on small random batches, calibrated by advanced composition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, Preset, register
from dpcore.descent.gradient import NoisyGradient, step_share
from dpcore.errors import (
    MOST_RELEASES,
    if_given,
    require_count,
    require_plannable,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism, Rounds
from dpcore.problem import Adjacency, Problem, Requires

# Radius of the ball times norm_bound, for a loss of margins.
RADIUS = 10.0


@register("sgd_adv")
@dataclass(frozen=True, slots=True, kw_only=True)
class SGDAdv(Algorithm):
    """w <- P(w - eta_t g_t), g_t from a random batch of about m rows, gradients of norm at most L,
    Gaussian noise.

    Bassily, Smith & Thakurta (2014), Algorithm 1, in the mini-batch form of Zhang et al. (2017),
    section 4: T = n^2 / m^2 steps, or ``epochs`` n / m. Its target is checked by ``accountant``
    "advanced": amplification by sampling, then advanced composition (``accounting.advanced``); a
    ledger is charged the smaller Rényi curve. P projects on the ball of ``radius`` / norm_bound.
    eta_t = radius / (norm_bound G sqrt(t)) with G^2 = L^2 + d sigma^2 / m^2, or 1 / (l2 t) where
    that is shorter. ``radius`` left out is 10, a quarter of it for residuals (``clips``). The mean
    of the last half of the iterates is returned.
    """

    requires: ClassVar[Requires] = Requires(bounded_gradient=True, l1=False, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "every iterate"
    argument: ClassVar[str] = (
        "A record enters a batch sum with a gradient of norm at most L, twice that when replaced "
        "(Bassily, Smith & Thakurta 2014, in the mini-batch form of Zhang et al. 2017)."
    )
    accountant: ClassVar[str] = "advanced"
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {"batch_size": 2, "epochs": 1}
    limit: ClassVar[dict[str, Any]] = {"epochs": 60, "batch_size": 100}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            batch_size=(50, "Zhang et al. (2017), section 4"),
            epochs=(None, "Bassily, Smith & Thakurta (2014), Algorithm 1: n^2 steps, by batches"),
        )
    }

    noise_multiplier: float = 2.0
    batch_size: int = 50
    epochs: int | None = 5
    radius: float | None = None

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        if_given(require_positive, radius=self.radius)
        require_count(batch_size=self.batch_size)
        if_given(require_count, epochs=self.epochs)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        # (n / m)^2 steps are n / m passes
        passes = ceil(1.0 / self.rate(problem)) if self.epochs is None else self.epochs
        return {"radius": self.width(problem), "epochs": passes}

    def width(self, problem: Problem) -> float:
        """The radius of the ball of the iterates, in units of 1 / ``norm_bound``."""
        return self.radius or RADIUS * step_share(problem)

    def rate(self, problem: Problem) -> float:
        """The sampling rate m / n, at most 1."""
        return min(self.batch_size / problem.n, 1.0)

    def steps(self, problem: Problem) -> int:
        """Number of steps T."""
        per_epoch = 1.0 / self.rate(problem)
        steps = ceil(per_epoch**2 if self.epochs is None else self.epochs * per_epoch)
        require_plannable(steps, MOST_RELEASES, epochs=self.epochs)
        return steps

    def gradient(self, problem: Problem) -> NoisyGradient:
        """The release of a step; no gradient is longer than the clip L."""
        return NoisyGradient.of_fixed_size(
            problem, problem.lipschitz, self.noise_multiplier, self.rate(problem)
        )

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        return Rounds([self.gradient(problem).mechanism], self.steps(problem))

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the mean of the last half of the iterates, shape (d,)."""
        gradient, steps = self.gradient(problem), self.steps(problem)
        sigma = self.noise_multiplier * problem.sensitivity(problem.lipschitz)
        w = np.zeros(problem.dimension * problem.outputs)
        total, first = np.zeros_like(w), steps // 2
        size = sqrt(problem.lipschitz**2 + len(w) * (sigma / gradient.rows) ** 2)
        ball = self.width(problem) / problem.norm_bound
        for t in range(1, steps + 1):
            eta = ball / (size * sqrt(t))
            eta = min(eta, 1.0 / (problem.l2 * t)) if problem.l2 > 0 else eta
            w = w - eta * (gradient.mean(budget, w) + problem.l2 * w)
            w = w * min(1.0, ball / max(float(np.linalg.norm(w)), 1e-300))
            if t > first:
                total += w
        budget.note(step_size=eta)
        return total / (steps - first)
