"""Private baseline of ranking: the single feature that ranks best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.errors import require_positive
from dpcore.losses import Array
from dpcore.mechanisms import Exponential, Mechanism
from dpcore.problem import Adjacency, Problem, Requires
from dpcore.ranking.documents import require_linear_scorer


@register("best_feature")
@dataclass(frozen=True, slots=True, kw_only=True)
class BestFeature(Algorithm):
    """Weights of one feature alone, chosen by the exponential mechanism with the sum of average
    precisions as score.

    A session's average precision lies in [0, 1] and is 0 without a relevant document, so replaced
    labels or a replaced session move every sum by at most 1, in either direction (two-sided), and
    an added or removed session moves all sums the same way by at most 1. Documents need not be
    public. McSherry & Talwar (2007); every private ranker should be shown beside it.
    """

    requires: ClassVar[Requires] = Requires(ranking=True, l1=False)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH | {Adjacency.REPLACE_LABELS}
    releases: ClassVar[str] = "index of one feature"
    argument: ClassVar[str] = (
        "A session's average precision lies in [0, 1], so its change moves the score of every "
        "feature by at most 1 (exponential mechanism of McSherry & Talwar 2007)."
    )
    asks: ClassVar[frozenset[str]] = frozenset({"feature_precision_sum"})
    small: ClassVar[dict[str, Any]] = {}
    small_problem: ClassVar[dict[str, Any]] = {"kind": "ranking"}

    noise_multiplier: float = 2.0

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)

    def plan(self, problem: Problem) -> list[Mechanism]:
        require_linear_scorer(problem, "best_feature")
        two_sided = problem.adjacency is not Adjacency.ADD_REMOVE
        return [Exponential(sensitivity=1.0, scale=self.noise_multiplier, two_sided=two_sided)]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return weights of shape (p,): 1 for the chosen feature, 0 elsewhere."""
        [choice] = self.plan(problem)
        index = budget.release(choice, lambda sessions: sessions.feature_precision_sum())
        weights = np.zeros(problem.dimension)
        weights[int(index)] = 1.0
        return weights
