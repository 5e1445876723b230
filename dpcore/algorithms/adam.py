"""Baseline without privacy for networks: Adam on mini-batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.errors import require_below_one, require_count, require_positive
from dpcore.losses import Array
from dpcore.mechanisms import Exact, Mechanism
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires

LEAST_PASSES, LEAST_STEPS = 3, 600


@register("adam")
@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(Algorithm):
    """Kingma & Ba (2015), Algorithm 1, over ``epochs`` shuffled passes in batches; the step falls
    linearly to 0.

    No privacy: its price is infinite and its numbers are internal. It is what a network reaches
    without noise and clipping, where ``non_private`` (all records in every step) would take too
    long. ``epochs`` left out: 3 passes, or as many as make 600 steps.
    """

    requires: ClassVar[Requires] = Requires(l1=False)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "last iterate, exact"
    orders_rows: ClassVar[bool] = True
    private: ClassVar[bool] = False
    small: ClassVar[dict[str, Any]] = {"epochs": 2}

    noise_multiplier: float = 1.0
    epochs: int | None = None
    batch_size: int = 256
    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    stability: float = 1e-8

    def __post_init__(self) -> None:
        require_positive(
            noise_multiplier=self.noise_multiplier,
            learning_rate=self.learning_rate,
            stability=self.stability,
        )
        require_count(
            batch_size=self.batch_size, **({} if self.epochs is None else {"epochs": self.epochs})
        )
        require_below_one(beta1=self.beta1, beta2=self.beta2)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"epochs": self.passes(problem.n)}

    def plan(self, problem: Problem) -> list[Mechanism]:
        return [Exact()]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the last iterate, shape (d,)."""

        def descend(data: Objective) -> Array:
            w = np.zeros(problem.dimension * problem.outputs)
            mean, square = np.zeros_like(w), np.zeros_like(w)
            batches = [rows for _ in range(self.passes(data.n)) for rows in self._cut(data.n, rng)]
            for step, rows in enumerate(batches):
                g = data.take(rows).gradient_sum(w) / len(rows) + problem.l2 * w
                mean += (1.0 - self.beta1) * (g - mean)
                square += (1.0 - self.beta2) * (g * g - square)
                unbias = sqrt(1.0 - self.beta2 ** (step + 1)) / (1.0 - self.beta1 ** (step + 1))
                rate = self.learning_rate * (1.0 - step / len(batches)) * unbias
                w -= rate * mean / (np.sqrt(square) + self.stability)
            return w

        return np.asarray(budget.release(Exact(), descend))

    def passes(self, n: int) -> int:
        """How often the ``n`` records are gone through."""
        return self.epochs or max(
            LEAST_PASSES, ceil(LEAST_STEPS * self.batch_size / max(n, self.batch_size))
        )

    def _cut(self, n: int, rng: np.random.Generator) -> list[Array]:
        """The rows of one pass in random batches of nearly equal size."""
        return np.array_split(rng.permutation(n), max(1, round(n / self.batch_size)))
