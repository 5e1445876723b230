"""Baseline without privacy: the minimiser by L-BFGS, under L1 too."""

from __future__ import annotations

from collections.abc import Callable
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
    """Minimise mean_i loss + l2/2 ||w||^2 + l1 ||w||_1 by L-BFGS. No privacy: its price is infinite
    and its numbers are internal.

    Nocedal (1980), through ``scipy.optimize``; with L1 on both parts of w, see ``split``.
    """

    requires: ClassVar[Requires] = Requires(sessions=True, softmax=True)
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
            if problem.l1 > 0:
                return split(objective, penalised(problem), options)
            start = np.zeros(problem.dimension * problem.outputs)
            return np.asarray(
                minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
            )

        return np.asarray(budget.release(Exact(), minimise))


def penalised(problem: Problem) -> Array:
    """The strength of L1 on each coordinate, shape (outputs * d,): 0 on the constant column."""
    strengths = np.full((problem.outputs, problem.dimension), problem.l1)
    if problem.intercept:
        strengths[:, -1] = 0.0
    return strengths.ravel()


def split(
    smooth: Callable[[Array], tuple[float, Array]], strengths: Array, options: dict[str, Any]
) -> Array:
    """argmin_w f(w) + strengths @ |w|, shape (d,), for f with its gradient in ``smooth``.

    As min f(u - v) + strengths @ (u + v) over u, v >= 0, which is smooth, with u free and v = 0
    where there is no strength. Schmidt, Fung & Rosales (2007), Section 3.3.
    """
    size = len(strengths)

    def whole(parts: Array) -> tuple[float, Array]:
        up, down = parts[:size], parts[size:]
        value, slope = smooth(up - down)
        value += float(strengths @ (up + down))
        return value, np.concatenate([strengths + slope, strengths - slope])

    free = strengths == 0.0
    bounds = [(None if one else 0.0, None) for one in free] + [
        (0.0, 0.0 if one else None) for one in free
    ]
    found = minimize(
        whole, np.zeros(2 * size), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x
    return np.asarray(found[:size] - found[size:])
