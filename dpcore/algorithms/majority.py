"""Baseline without privacy: predict the more frequent class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, register
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.mechanisms import Exact, Mechanism
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires
from dpcore.weighted import Weighted


@register("majority")
@dataclass(frozen=True, slots=True, kw_only=True)
class Majority:
    """Weights 0 but for the constant column, whose sign is that of the label sum. No privacy: infinite price.

    The label sum comes from the gradient at w = 0: every margin loss has one slope there, so the constant column of
    the gradient sum is slope * sum_i y_i. Class weights are left out: it is the class of more rows.
    """

    requires: ClassVar[Requires] = Requires(linear=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "exact majority class"
    private: ClassVar[bool] = False
    small: ClassVar[dict[str, Any]] = {}

    noise_multiplier: float = 1.0

    def plan(self, problem: Problem) -> list[Mechanism]:
        return [Exact()]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return weights of shape (d,): +-1 for the constant column, 0 elsewhere."""
        if not problem.intercept:
            raise AssumptionNotMet(
                "Expected a problem with a constant last column for 'majority', got intercept=False."
            )

        def label_sign(data: Objective) -> Array:
            w = np.zeros(problem.dimension)
            rows: Any = data
            counted: Objective = rows.unweighted() if isinstance(problem.loss, Weighted) else data
            w[-1] = -np.sign(counted.gradient_sum(w)[-1])
            return w

        return budget.release(Exact(), label_sign)
