"""Baseline without privacy: the minimiser by L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.errors import require_count, require_positive
from dpcore.losses import Array
from dpcore.mechanisms import Exact, Mechanism
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires


@register("non_private")
@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate(Algorithm):
    """Minimise mean_i loss + l2/2 ||w||^2 by L-BFGS. No privacy: its price is infinite and its
    numbers are internal.

    Nocedal (1980), through ``scipy.optimize``.
    """

    requires: ClassVar[Requires] = Requires(l1=False, sessions=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH | {Adjacency.REPLACE_LABELS}
    releases: ClassVar[str] = "exact minimiser"
    hidden_noise: ClassVar[str] = "there is no noise in it"
    private: ClassVar[bool] = False
    small: ClassVar[dict[str, Any]] = {"steps": 50}

    noise_multiplier: float = 1.0
    steps: int = 200
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier, tolerance=self.tolerance)
        require_count(steps=self.steps)

    def plan(self, problem: Problem) -> list[Mechanism]:
        return [Exact()]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the minimiser, shape (outputs * d,)."""

        def minimise(data: Objective) -> Array:
            def objective(w: Array) -> tuple[float, Array]:
                value = float(data.value_sum(w[None, :])[0]) / problem.n + problem.l2 / 2 * float(
                    w @ w
                )
                return value, data.gradient_sum(w) / problem.n + problem.l2 * w

            options = {"maxiter": self.steps, "gtol": self.tolerance, "ftol": 1e-12}
            start = np.zeros(problem.dimension * problem.outputs)
            return np.asarray(
                minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
            )

        return np.asarray(budget.release(Exact(), minimise))
