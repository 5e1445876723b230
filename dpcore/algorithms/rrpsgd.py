"""Private SGD that stops at a random round: a stationary point for smooth losses, convex or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, Preset, register
from dpcore.descent.gradient import NoisyGradient
from dpcore.errors import (
    MOST_RELEASES,
    AssumptionNotMet,
    if_given,
    require_choice,
    require_count,
    require_plannable,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism, Rounds
from dpcore.problem import Adjacency, Problem, Requires

# The n^2 rounds of the source are more than a machine can do beyond this many records.
MOST_SQUARED = 2000


@register("rrpsgd")
@dataclass(frozen=True, slots=True, kw_only=True)
class RRPSGD(Algorithm):
    """w <- w - eta (g_t + noise) for R rounds, R drawn before training: small ||grad F||^2 even for
    non-convex losses.

    Zhang, Zheng, Mou & Wang (2017), Algorithm 2 and Theorem 5: P(R = k) ~ 2 eta_k - beta eta_k^2,
    which is uniform for the constant eta = min(1 / beta, D / (s sqrt(T))), s^2 = L^2 / m + d
    sigma^2 / m^2 the variance of a noisy batch gradient and D = ``radius`` / norm_bound. R comes
    from the public generator and is priced at its maximum T, with the accountant in place of
    Theorem 4 (epsilon <= 1 only, and twice the noise).

    ``rounds``: "passes" is batches of ``batch_size`` (left out: sqrt(n)) rows and T = ``passes`` n
    / m; "squared" is the source, one record a round and T = n^2, for n <= 2000.
    """

    requires: ClassVar[Requires] = Requires(
        smooth=True, bounded_gradient=True, l1=False, softmax=True
    )
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "every iterate"
    argument: ClassVar[str] = (
        "A record enters each noisy sum with a gradient of norm at most L, twice that when "
        "replaced, and the number of rounds is drawn beforehand and priced at its maximum (Zhang, "
        "Zheng, Mou & Wang 2017, Theorem 5)."
    )
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {"batch_size": 2, "passes": 1}
    limit: ClassVar[dict[str, Any]] = {"passes": 100, "batch_size": 200, "radius": 1000.0}
    # The last iterate of plain SGD with constant steps at a random round still carries the noise of
    # its batches.
    limit_gap: ClassVar[float] = 0.05
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(rounds=("squared", "Zhang et al. (2017), Algorithm 2 and Theorem 5"))
    }

    noise_multiplier: float = 2.0
    rounds: str = "passes"
    batch_size: int | None = None
    passes: int = 10
    radius: float = 10.0

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier, radius=self.radius)
        require_choice(("passes", "squared"), rounds=self.rounds)
        require_count(passes=self.passes)
        if_given(require_count, batch_size=self.batch_size)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"batch_size": self.batch_size or self.shape(problem)[0]}

    def shape(self, problem: Problem) -> tuple[int, int]:
        """Rows a round (expected) and the maximum number of rounds T."""
        if self.rounds == "squared":
            if problem.n > MOST_SQUARED:
                raise AssumptionNotMet(
                    f"Expected n <= {MOST_SQUARED} for n^2 rounds of 'rrpsgd', got n={problem.n}; "
                    "use rounds='passes'."
                )
            return 1, problem.n**2
        batch = min(self.batch_size or max(round(sqrt(problem.n)), 1), problem.n)
        rounds = max(ceil(self.passes * problem.n / batch), 1)
        require_plannable(rounds, MOST_RELEASES, passes=self.passes, batch_size=batch)
        return batch, rounds

    def gradient(self, problem: Problem) -> NoisyGradient:
        """The release of a round; no gradient is longer than the clip L."""
        rate = self.shape(problem)[0] / problem.n
        return NoisyGradient.of_fixed_size(problem, problem.lipschitz, self.noise_multiplier, rate)

    def step_size(self, problem: Problem) -> float:
        """The constant step of Theorem 5, from public facts."""
        batch, most = self.shape(problem)
        width = problem.dimension * problem.outputs
        sigma = self.noise_multiplier * problem.sensitivity(problem.lipschitz)
        variance = problem.lipschitz**2 / batch + width * (sigma / batch) ** 2
        return min(
            1.0 / problem.smoothness, self.radius / (problem.norm_bound * sqrt(variance * most))
        )

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        return Rounds([self.gradient(problem).mechanism], self.shape(problem)[1])

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the iterate of round R, shape (d,)."""
        batch, most = self.shape(problem)
        eta = self.step_size(problem)
        stop = int(rng.integers(1, most + 1))
        gradient = self.gradient(problem)
        w = np.zeros(problem.dimension * problem.outputs)
        for _ in range(stop):
            w = w - eta * (gradient.sum(budget, w) / batch + problem.l2 * w)
        budget.note(step_size=eta, rounds=stop)
        return w
