"""Plain cyclic mini-batch SGD with output perturbation, in the given order or on a secret
permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import NOT_PRINTED, Algorithm, Preset, register
from dpcore.algorithms.rsgd_ar import checked_sensitivities, permuted_release, release_walk
from dpcore.descent.gradient import STEP_RULES, contracting_step
from dpcore.descent.permuted import Walk, near_equal, total_step, until_converged
from dpcore.errors import (
    InputError,
    if_given,
    require_choice,
    require_count,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.problem import Adjacency, Problem, Requires


@register("nsgd", "bolt_on")
@dataclass(frozen=True, slots=True, kw_only=True)
class NSGD(Algorithm):
    """SGD with steps eta0 / s in epoch s over fixed batches in cyclic order; one Gaussian on the
    last iterate.

    Chen (2020), Algorithm 3.1, replace-one. ``permute``: one secret permutation first (bolt-on, Wu
    et al. 2017), priced as the mixture over the batch in which a record lands; the source permutes
    for utility only. Without it the records keep their order and the largest D_j counts: with plain
    steps that is the last batch, in general the maximum. ``learning_rate`` (eta0) left out follows
    from ``permuted.total_step``, at most 2 / (l2 + L); with ``step_rule`` "paper" it is 2 / (l2 +
    L), the step of Theorem 3.1 that contracts most: ``preset: paper`` takes it, since the text
    prints none.
    """

    requires: ClassVar[Requires] = Requires(
        linear=True, smooth=True, convex=True, bounded_gradient=True, l1=False, softmax=True
    )
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.REPLACE_ONE})
    releases: ClassVar[str] = "last iterate"
    orders_rows: ClassVar[bool] = True
    argument: ClassVar[str] = (
        "A replaced record moves the steps that read its batch by at most 2 eta R / m each, and "
        "steps up to 2 / (l2 + L) do not lengthen what came before (Chen 2020, Algorithm 3.1; with "
        "permute, Wu et al. 2017)."
    )
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {"epochs": 3, "batch_size": 2, "learning_rate": 0.5}
    limit: ClassVar[dict[str, Any]] = {"epochs": 2000, "batch_size": 500}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            permute=(False, "Chen (2020), Algorithm 3.1, p. 15"),
            batch_size=(4000, f"{NOT_PRINTED}that of RSGD-AR, Chen (2020), 3.6.4, pp. 24-27"),
            step_rule=("paper", f"{NOT_PRINTED}from Theorem 3.1: eta0 = 2 / (mu + L)"),
            epochs=(20, f"{NOT_PRINTED}Theorem 3.1 holds for any number"),
        )
    }

    noise_multiplier: float = 2.0
    permute: bool = True
    epochs: int = 20
    batch_size: int = 1000
    learning_rate: float | None = None
    step_rule: str = "horizon"

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        require_count(epochs=self.epochs, batch_size=self.batch_size)
        if not isinstance(self.permute, bool):
            raise InputError(f"Expected permute to be true or false, got permute={self.permute!r}.")
        if_given(require_positive, learning_rate=self.learning_rate)
        require_choice(STEP_RULES, step_rule=self.step_rule)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"learning_rate": self.walk(problem).eta0}

    def walk(self, problem: Problem) -> Walk:
        """The one schedule that training and price share."""
        sizes = near_equal(problem.n, max(round(problem.n / self.batch_size), 1))
        eta0 = self.learning_rate or contracting_step(problem)
        if self.learning_rate is None and self.step_rule == "horizon":
            harmonic = float(np.sum(1.0 / np.arange(1, self.epochs + 1)))
            total = until_converged(problem, total_step(problem, self.noise_multiplier)) / (
                len(sizes) * harmonic
            )
            eta0 = min(total, eta0)
        return Walk(sizes, self.epochs, eta0)

    def plan(self, problem: Problem) -> list[Mechanism]:
        walk = self.walk(problem)
        if self.permute:
            return [permuted_release(walk, problem, self.noise_multiplier)]
        sensitivity = max(checked_sensitivities(walk, problem))
        return [Gaussian(sensitivity, self.noise_multiplier * sensitivity)]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the noisy coefficients, shape (d,)."""
        return release_walk(self.walk(problem), problem, budget, self.plan(problem)[0])
