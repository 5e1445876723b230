"""Permuted SGD with averaging and restarts; noise once, priced as the mixture over where a record
lands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import NOT_PRINTED, Algorithm, Preset, register
from dpcore.descent.gradient import STEP_RULES, contracting_step
from dpcore.descent.permuted import Walk, near_equal, total_step, until_converged
from dpcore.errors import (
    AssumptionNotMet,
    if_given,
    require_choice,
    require_count,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism, RandomisedSensitivityGaussian
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires
from dpcore.sampling import Permuted

# Restarts that follow from the horizon end here; ``epochs`` overrides it.
MOST_RESTARTS = 12


@register("rsgd_ar", "outpert_rsgd")
@dataclass(frozen=True, slots=True, kw_only=True)
class RSGDAR(Algorithm):
    """Cyclic SGD over a secret permutation of the records, in near-equal batches, one Gaussian at
    the end.

    Chen (2020), Algorithms 3.2 and 3.3, Theorem 3.2: replace-one, one permutation, nothing else
    leaves. With D_j the bound when the replaced record is in batch j (``Walk.sensitivities``: the
    same walk as the iterates) the Rényi curve is ln(sum_j q_j exp(a (a-1) D_j^2 / (2 sigma^2))) /
    (a-1), q_j = |B_j| / n, sigma = noise_multiplier max_j D_j. Where the text prints eta0 / s the
    restart needs eta0 / h, for training and price alike.

    ``epochs`` and ``learning_rate`` (eta0) left out follow from ``permuted.total_step``: as many
    restarts as it takes to cover it with first steps of at most 2 / (l2 + L). With ``step_rule``
    "paper" eta0 is 2 / (l2 + L) whatever the noise, the step of Theorem 3.1 that contracts most:
    ``preset: paper`` takes it, since the text prints neither eta0 nor T nor tau.
    """

    requires: ClassVar[Requires] = Requires(
        linear=True, smooth=True, convex=True, bounded_gradient=True, l1=False, softmax=True
    )
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.REPLACE_ONE})
    releases: ClassVar[str] = "last iterate"
    orders_rows: ClassVar[bool] = True
    argument: ClassVar[str] = (
        "A replaced record is in one batch of a secret permutation, moves the steps that read it "
        "by at most 2 eta R / m each, and later steps do not lengthen that (Chen 2020, Theorem "
        "3.2, with the restart at h)."
    )
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {
        "epochs": 5,
        "interval": 2,
        "batch_size": 2,
        "learning_rate": 0.5,
    }
    limit: ClassVar[dict[str, Any]] = {"epochs": 300, "batch_size": 500}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            batch_size=(4000, "Chen (2020), 3.6.4, pp. 24-27"),
            step_rule=("paper", f"{NOT_PRINTED}from Theorem 3.1: eta0 = 2 / (mu + L)"),
            epochs=(20, f"{NOT_PRINTED}Theorem 3.1 holds for any number"),
            interval=(5, f"{NOT_PRINTED}four restarts in those epochs"),
        )
    }

    noise_multiplier: float = 2.0
    epochs: int | None = None
    batch_size: int = 4000
    learning_rate: float | None = None
    interval: int = 10
    step_rule: str = "horizon"

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        require_count(batch_size=self.batch_size, interval=self.interval)
        if_given(require_count, epochs=self.epochs)
        if_given(require_positive, learning_rate=self.learning_rate)
        require_choice(STEP_RULES, step_rule=self.step_rule)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        walk = self.walk(problem)
        return {"epochs": walk.epochs, "learning_rate": walk.eta0}

    def walk(self, problem: Problem) -> Walk:
        """The one schedule that training and price share."""
        sizes = near_equal(problem.n, max(round(problem.n / self.batch_size), 1))
        harmonic = float(np.sum(1.0 / np.arange(1, self.interval + 1)))
        total = until_converged(problem, total_step(problem, self.noise_multiplier)) / (
            len(sizes) * harmonic
        )
        longest = self.learning_rate or contracting_step(problem)
        restarts = min(ceil(total / longest), MOST_RESTARTS)
        epochs = self.epochs or restarts * self.interval
        fixed = self.learning_rate is not None or self.step_rule == "paper"
        eta0 = longest if fixed else min(total * self.interval / epochs, longest)
        return Walk(sizes, epochs, eta0, self.interval)

    def plan(self, problem: Problem) -> list[Mechanism]:
        return [permuted_release(self.walk(problem), problem, self.noise_multiplier)]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the noisy coefficients, shape (d,)."""
        return release_walk(self.walk(problem), problem, budget, self.plan(problem)[0])


def checked_sensitivities(walk: Walk, problem: Problem) -> tuple[float, ...]:
    """The walk's bounds; raises ``AssumptionNotMet`` where steps are so long that the bound
    overflows.
    """
    sensitivities = walk.sensitivities(problem)
    if not max(sensitivities) < float("inf"):
        raise AssumptionNotMet(
            "Expected steps that keep neighbours at a finite distance, got "
            f"learning_rate={walk.eta0!r}; use learning_rate <= 2 / smoothness = "
            f"{2.0 / problem.smoothness:.6g}."
        )
    return sensitivities


def permuted_release(walk: Walk, problem: Problem, noise_multiplier: float) -> Mechanism:
    """The one release of a permuted walk: Gaussian noise priced as the mixture over batches."""
    return _permuted_release(
        walk, checked_sensitivities(walk, problem), problem.n, noise_multiplier
    )


@lru_cache(maxsize=64)
def _permuted_release(
    walk: Walk, sensitivities: tuple[float, ...], n: int, noise_multiplier: float
) -> Mechanism:
    sigma = noise_multiplier * max(sensitivities)
    gaussian = RandomisedSensitivityGaussian(sensitivities, walk.sizes, n, sigma)
    return Permuted(walk.sizes, n).amplify(gaussian, Adjacency.REPLACE_ONE)


def release_walk(walk: Walk, problem: Problem, budget: Budget, mechanism: Mechanism) -> Array:
    """Walk over the leased rows cut into the batches of ``walk``, and release the result."""
    cuts = Permuted(walk.sizes, problem.n).cut()

    def descend(rows: Objective) -> Array:
        return walk.descend([rows.take(cut) for cut in cuts], problem)

    released = budget.release(mechanism, descend)
    budget.note(epochs=walk.epochs, batches=len(walk.sizes), step_size=walk.eta0)
    return np.asarray(released)
