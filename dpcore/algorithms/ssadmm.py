"""Subsampled ADMM: a noisy mini-batch gradient for x, the penalty in its own variable z."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, NOT_PRINTED, OURS, Algorithm, Preset, register
from dpcore.descent.admm import ADMMSettings, Iterate, Steps
from dpcore.descent.gradient import RANKING_HORIZON, NoisyGradient
from dpcore.errors import if_given, require_fraction
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism, Rounds
from dpcore.penalties import penalty_of
from dpcore.problem import Adjacency, Problem, Requires

# Few steps and an early end, for a ranking of columns whatever their range. Measured on sparse
# Gaussian columns, where it ranks as well as noisy correlations and predicts better.
SELECTION = Preset(
    horizon=(RANKING_HORIZON, f"{OURS}measured on sparse-linear, docs/benchmarks.md"),
    steps=(32, f"{OURS}measured on sparse-linear, docs/benchmarks.md"),
)


@register("ssadmm")
@dataclass(frozen=True, slots=True, kw_only=True)
class SSADMM(ADMMSettings, Algorithm):
    """x <- x - k_t (v_t + y + rho (x - z)), v_t = b v_{t-1} + (sum_{i in B} clip(g_i, C) + noise) /
    (q n) + l2 x,

    with momentum b, then z and y without a record (``admm``). noise ~ N(0, sigma^2 I), sigma =
    noise_multiplier * ``problem.sensitivity(C)``. B is a fresh Poisson sample of rate q, all
    rows for q = 1 (then the same as mpADMM with one release). The divisor q n is a public constant.
    ``sampling_rate`` None is the papers' batch of sqrt(n) rows.

    Chen (2020), Algorithm 4.1; the price is theirs (Theorem 4.1 with Lemma 2.3) or tighter, as
    ``sampling`` has it. The penalty may be any of ``dpcore.penalties``; non-convex ones keep the
    guarantee, not the convergence theorem; with the softmax loss z is a matrix (outputs, d), of
    which ``nuclear`` lowers the rank.

    Against ``dp_sgd`` with its proximal step the objective on Adult is ahead at epsilon 0.05, level
    at 0.1, and behind from 0.2 up with l1 = 1e-3 (``docs/benchmarks.md``).
    """

    requires: ClassVar[Requires] = Requires(linear=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "every iterate"
    argument: ClassVar[str] = (
        "A record enters each sum with a gradient clipped to norm C, twice that when replaced, and "
        "z and y follow from the noisy x (Chen 2020, Algorithm 4.1 and Theorem 4.1)."
    )
    small: ClassVar[dict[str, Any]] = {
        "steps": 3, "clip_norm": 0.05, "learning_rate": 0.5, "momentum": 0.5, "sampling_rate": 0.5
    }  # fmt: skip
    limit: ClassVar[dict[str, Any]] = {"sampling_rate": 1.0}
    presets: ClassVar[dict[str, Preset]] = {
        "selection": SELECTION,
        "paper": Preset(
            sampling_rate=(None, "Chen (2020), 4.6.4, pp. 46-50: batches of sqrt(n)"),
            penalty_parameter=(0.25, "Chen (2020), 4.6.4, pp. 46-50"),
            schedule=("epoch", "Chen (2020), 4.6.4, pp. 46-50: eta0 / h, h the expected epoch"),
            step_rule=("paper", f"{NOT_PRINTED}from Theorem 3.1: eta0 = 2 / (mu + L)"),
            momentum=(0.0, "Chen (2020), Algorithm 4.1, p. 40"),
            output=("x", "Chen (2020), Algorithm 4.1, p. 40"),
            clip_norm=(1.0, f"{NOT_PRINTED}the bound of a gradient whose row has norm 1"),
            steps=(2000, f"{NOT_PRINTED}some ten expected epochs"),
        ),
    }

    sampling_rate: float | None = 1.0

    def __post_init__(self) -> None:
        ADMMSettings.__post_init__(self)
        if_given(require_fraction, sampling_rate=self.sampling_rate)

    def rate(self, problem: Problem) -> float:
        """The share q of the records in a batch."""
        return 1.0 / sqrt(problem.n) if self.sampling_rate is None else self.sampling_rate

    def gradient(self, problem: Problem) -> NoisyGradient:
        """The release of a step."""
        return NoisyGradient.of(
            problem, self.clip(problem), self.noise_multiplier, self.rate(problem)
        )

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        shown = self.comes_to(problem, self.schedule_for(problem))
        return shown | {"sampling_rate": self.rate(problem)}

    def schedule_for(self, problem: Problem) -> Steps:
        """The steps of a run."""
        rate = self.rate(problem)
        return self.steps_for(problem, rate * sqrt(self.steps) / self.noise_multiplier, 1.0 / rate)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        # what the problem has no such penalty for is refused before it is charged
        penalty_of(problem, self.penalty)
        return Rounds([self.gradient(problem).mechanism], self.steps)

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return z (exactly sparse) or x after the last step, shape (outputs * d,)."""
        gradient = self.gradient(problem)
        penalty = penalty_of(problem, self.penalty)
        steps = self.schedule_for(problem)
        at = Iterate.start(problem.dimension * problem.outputs)
        velocity = np.zeros_like(at.x)
        for step in steps.sizes.tolist():
            velocity = steps.momentum * velocity + gradient.mean(budget, at.x) + problem.l2 * at.x
            x = at.x - step * (velocity + at.pull(steps.rho))
            at = at.moved(x, steps.rho, penalty, problem.dimension, steps.momentum)
            budget.note(step_size=step)
        return at.output(self.output)
