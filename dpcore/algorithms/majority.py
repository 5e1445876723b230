"""Baseline without privacy: predict the more frequent class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array, Weighted
from dpcore.mechanisms import Exact, Mechanism
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires


@register("majority")
@dataclass(frozen=True, slots=True, kw_only=True)
class Majority(Algorithm):
    """Weights 0 but for the constant column, which has the sign of the label sum. No privacy:
    infinite price.

    The label sum comes from the gradient at w = 0: every margin loss has one slope there, so the
    constant column of the gradient sum is slope * sum_i y_i; that of softmax is n / K - n_k for
    class k. Weights are minus its mean, so of several classes, jointly or each against the rest,
    the largest has the largest score. Class weights are left
    out: it is the class of more rows.
    """

    requires: ClassVar[Requires] = Requires(linear=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "exact majority class"
    hidden_noise: ClassVar[str] = "there is no noise in it"
    private: ClassVar[bool] = False
    small: ClassVar[dict[str, Any]] = {}

    noise_multiplier: float = 1.0

    def plan(self, problem: Problem) -> list[Mechanism]:
        return [Exact()]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return weights of shape (outputs * d,), 0 but for the constant columns."""
        if not problem.intercept:
            raise AssumptionNotMet(
                "Expected a problem with a constant last column for 'majority', got "
                "intercept=False."
            )

        def label_means(data: Objective) -> Array:
            w = np.zeros((problem.outputs, problem.dimension))
            rows: Any = data
            counted: Objective = rows.unweighted() if isinstance(problem.loss, Weighted) else data
            w[:, -1] = -counted.gradient_sum(w.ravel()).reshape(w.shape)[:, -1] / problem.n
            return w.ravel()

        return np.asarray(budget.release(Exact(), label_means))
