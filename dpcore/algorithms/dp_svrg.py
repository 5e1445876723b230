"""Variance-reduced descent with noise, kept as a baseline that shows why the papers dropped it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.descent.admm import usual_horizon
from dpcore.descent.gradient import NoisyGradient, sum_on_batch, total_step, usual_clip
from dpcore.errors import (
    if_given,
    require_count,
    require_fraction,
    require_open_unit,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism, Rounds
from dpcore.objective import Objective
from dpcore.objective.rounding import UNIT, rounded_sum
from dpcore.penalties import prox_l1
from dpcore.problem import Adjacency, Problem, Requires


@register("dp_svrg")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPSVRG(Algorithm):
    """Per epoch a noisy full gradient G at the anchor a, then ``inner`` steps w <- prox(w - eta v)
    with

    v = (sum_{i in B} (clip(g_i(w)) - clip(g_i(a))) + noise) / (q n) + G + l2 w, from w = a; the
    first has v = G + l2 w.

    A clipped gradient is a clipped coefficient times x_i, and clipping a coefficient is
    1-Lipschitz, so a record's difference has norm at most b = min(2C, beta ||w - a||), beta =
    norm_bound^2 * curvature bound of the loss. With softmax the coefficient is a vector p - e_y,
    clipped by projection on a ball, which is 1-Lipschitz too. w and a are released, hence b is
    public: the query is divided by b, released at sensitivity ``problem.sensitivity(1)`` and
    multiplied back. b is enlarged by what rounding may do to sums of whole gradients, which does
    not shrink with their difference (``difference_bound``). ``full_share`` of mu^2, before
    amplification, pays for the full gradients.

    Wang, Ye & Xu (2017), Algorithm 1, which perturbs both at the sensitivity of whole gradients.
    What is saved in sampling error is paid in noise: the differences are added to a noisy G that
    every inner step repeats, so G's noise does not average out within an epoch. At epsilon <= 1 it
    loses to plain noisy descent (dp_sgd, q = 1), as Chen (2020), Section 4.6.2, reports; kept as a
    baseline. A step left out is 2 / smoothness, or shorter so that they sum to ``horizon`` as in
    ``admm``: G is then repeated over a distance that its noise supports, and nearly as many
    relevant columns are found as by one release of noisy correlations (``docs/benchmarks.md``).
    """

    requires: ClassVar[Requires] = Requires(linear=True, smooth=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "full gradients and every iterate"
    argument: ClassVar[str] = (
        "A record enters full sums clipped to norm C and difference sums with at most min(2C, beta "
        "||w - a||), which released iterates make public (Wang, Ye & Xu 2017, with the bound of "
        "differences in place of whole gradients)."
    )
    small: ClassVar[dict[str, Any]] = {
        "epochs": 2, "inner": 3, "clip_norm": 0.05, "learning_rate": 0.5, "sampling_rate": 0.5
    }  # fmt: skip
    limit: ClassVar[dict[str, Any]] = {"epochs": 40, "sampling_rate": 1.0}

    noise_multiplier: float = 2.0
    epochs: int = 8
    inner: int = 10
    sampling_rate: float = 0.1
    clip_norm: float | None = None
    learning_rate: float | None = None
    horizon: float | None = None
    full_share: float = 0.8

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        require_count(epochs=self.epochs, inner=self.inner)
        require_fraction(sampling_rate=self.sampling_rate)
        require_open_unit(full_share=self.full_share)
        if_given(
            require_positive,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            horizon=self.horizon,
        )

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {
            "clip_norm": self.clip(problem),
            "learning_rate": self.step_size(problem),
            "horizon": self.horizon or usual_horizon(problem),
        }

    def clip(self, problem: Problem) -> float:
        """The clip norm C."""
        return usual_clip(problem) if self.clip_norm is None else self.clip_norm

    def step_size(self, problem: Problem) -> float:
        """The step size: 2 / smoothness unless given, and no more than lets the steps sum to the
        horizon.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        mu = sqrt(self.epochs) / self.noise_multiplier
        total = total_step(problem, self.horizon or usual_horizon(problem), mu, self.clip(problem))
        return min(2.0 / problem.smoothness, total / (self.epochs * self.inner))

    def gradient(self, problem: Problem) -> NoisyGradient:
        """The release of a full gradient."""
        return NoisyGradient.of(problem, self.clip(problem), self.noise_multiplier)

    def mechanisms(self, problem: Problem) -> tuple[Mechanism, Mechanism]:
        """That of a full gradient and that of an inner step."""
        difference = problem.sensitivity(1.0)
        steps = max(self.inner - 1, 1)
        ratio = self.sampling_rate * sqrt(steps * self.full_share / (1.0 - self.full_share))
        inner = Gaussian(difference, self.noise_multiplier * ratio * difference)
        return self.gradient(problem).mechanism, sum_on_batch(problem, self.sampling_rate, inner)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        full, inner = self.mechanisms(problem)
        return Rounds([full, *[inner] * (self.inner - 1)], self.epochs)

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the last iterate, shape (outputs * d,)."""
        clip_norm, eta = self.clip(problem), self.step_size(problem)
        full, inner = self.gradient(problem), self.mechanisms(problem)[1]
        w = np.zeros(problem.dimension * problem.outputs)
        for _ in range(self.epochs):
            anchor, anchor_gradient = w, full.mean(budget, w)
            direction = anchor_gradient
            for step in range(self.inner):
                if step > 0:
                    bound = difference_bound(problem, clip_norm, w, anchor)

                    def difference(
                        batch: Objective, at: Array = w, a: Array = anchor, bound: float = bound
                    ) -> Array:
                        return np.asarray(
                            (batch.gradient_sum(at, clip_norm) - batch.gradient_sum(a, clip_norm))
                            / bound
                        )

                    change = (
                        bound * budget.release(inner, difference) / (self.sampling_rate * problem.n)
                    )
                    direction = anchor_gradient + change
                moved = (w - eta * (direction + problem.l2 * w)).reshape(-1, problem.dimension)
                w = prox_l1(moved, eta * problem.l1, problem.intercept).ravel()
                budget.note(step_size=eta)
        return w


def difference_bound(problem: Problem, clip_norm: float, w: Array, anchor: Array) -> float:
    """What a record adds to a difference of gradient sums at ``w`` and ``anchor``, as computed.

    At most min(2C, beta ||w - a||), where the rounding of its two scores, (d + 8) u |x| |w| each,
    counts as distance; and however near the points are, the roundings of four sums (two points, two
    neighbours) and of its own slopes.
    """
    beta = problem.norm_bound**2 * problem.loss.smoothness
    lengths = float(np.linalg.norm(w)) + float(np.linalg.norm(anchor))
    apart = float(np.linalg.norm(w - anchor)) + (problem.dimension + 8) * UNIT * lengths
    rounding = 4.0 * rounded_sum(problem.n) + 16.0 * UNIT
    return min(2.0 * clip_norm, beta * apart) + clip_norm * rounding
