"""Consensus ADMM between parties that each perturb their full gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import Algorithm, Preset, register
from dpcore.descent.admm import ADMMSettings, Iterate, Steps
from dpcore.errors import AssumptionNotMet, require_count
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism, Rounds
from dpcore.objective import Objective
from dpcore.penalties import penalty_of
from dpcore.problem import Adjacency, Problem, Requires


@register("dp_admm")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPADMM(ADMMSettings, Algorithm):
    """Party p: x_p <- x_p - k_t (P v_p + y_p + rho (x_p - z)); centre: z <- prox_{h/r}(mean_p (x_p
    + y_p / rho)), r = rho (1 - momentum).

    v_p = (sum over the records of p of clip(g_i, C) + N(0, sigma^2 I)) / n + l2 x_p / P, so the
    parties' v_p add up to the gradient of the mean; y_p <- y_p + rho (x_p - z). A round releases
    the (P, d) stack of the parties' sums: one record stands in one row of it, so its sensitivity is
    ``problem.sensitivity(C)``, and sigma = noise_multiplier times that. The centre averages P
    noises: sqrt(P) more noise than a curator of all records needs, which is what distribution
    costs. With P = 1 it is full-batch ssADMM. How many relevant columns it finds stands in
    ``docs/benchmarks.md``.

    Huang, Hu, Guo, Chan-Tin & Gong (2019), with one sigma for all rounds. The parties are every
    P-th record, by
    position: positions are stable when a record is replaced, not when one is removed, so only
    replace-one is offered.
    """

    requires: ClassVar[Requires] = Requires(linear=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.REPLACE_ONE})
    releases: ClassVar[str] = "every party's gradient in every round"
    argument: ClassVar[str] = (
        "A record stands in the sum of one party, with a gradient clipped to norm C, so replacing "
        "it moves the stack of the parties' sums by at most 2C (Huang et al. 2019, with the "
        "sensitivity of clipped sums)."
    )
    small: ClassVar[dict[str, Any]] = {
        "steps": 3,
        "clip_norm": 0.05,
        "learning_rate": 0.5,
        "momentum": 0.5,
    }
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(parties=(2, "Chen (2020), 4.6.4, pp. 46-50")),
    }

    parties: int = 2

    def __post_init__(self) -> None:
        ADMMSettings.__post_init__(self)
        require_count(parties=self.parties)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return self.comes_to(problem, self.schedule_for(problem))

    def schedule_for(self, problem: Problem) -> Steps:
        """The steps of a run: every party has its share of the records."""
        return self.steps_for(problem, sqrt(self.steps / self.parties) / self.noise_multiplier)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        if self.parties > problem.n:
            raise AssumptionNotMet(
                f"Expected at most n={problem.n} parties for 'dp_admm', got "
                f"parties={self.parties}; every party needs a record."
            )
        # what the problem has no such penalty for is refused before it is charged
        penalty_of(problem, self.penalty)
        sensitivity = problem.sensitivity(self.clip(problem))
        return Rounds([Gaussian(sensitivity, self.noise_multiplier * sensitivity)], self.steps)

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the consensus z, or the mean of the x_p, after the last round; shape (outputs *
        d,).
        """
        clip_norm, parties, everyone = self.clip(problem), self.parties, range(self.parties)
        penalty = penalty_of(problem, self.penalty)
        steps = self.schedule_for(problem)
        x, y = np.zeros((2, parties, problem.dimension * problem.outputs))
        z, velocity = np.zeros_like(x[0]), np.zeros_like(x)
        for mechanism, step in zip(self.plan(problem), steps.sizes.tolist(), strict=True):

            def gradients(data: Objective, x: Array = x) -> Array:
                return np.stack(
                    [
                        data.take(slice(p, None, parties)).gradient_sum(x[p], clip_norm)
                        for p in everyone
                    ]
                )

            noisy = parties * budget.release(mechanism, gradients) / problem.n
            velocity = steps.momentum * velocity + noisy + problem.l2 * x
            x = x - step * (velocity + y + steps.rho * (x - z))
            centre = (x + y / steps.rho).mean(axis=0).reshape(-1, problem.dimension)
            z = penalty.prox(centre, 1.0 / (steps.rho * (1.0 - steps.momentum))).ravel()
            y = y + steps.rho * (x - z)
            budget.note(step_size=step)
        return Iterate(x.mean(axis=0), z, y).output(self.output)
