"""Noisy gradient descent with privately chosen steps and a gradient budget that grows when a
direction fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, NOT_PRINTED, Algorithm, Preset, register
from dpcore.descent.gradient import (
    NoisyGradient,
    on_batch,
    slope_at_start,
    step_share,
    sum_on_batch,
    usual_cap,
    usual_clip,
)
from dpcore.descent.line_search import public_part
from dpcore.errors import (
    if_given,
    require_choice,
    require_count,
    require_fraction,
    require_open_unit,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Exponential, Gaussian, Mechanism, NoisyMax, Rounds
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires

# Largest step to begin with, times norm_bound; a quarter for residuals.
LONGEST = 8.0
# The cap of a margin loss rises up to this many times the usual one while the noise of a choice
# stays below this part of a unit of the mean loss: the rarer class has share p, and where p times
# the cap is below the mean loss of a good model, the mean of cut losses is least where every record
# is given to the other class.
MOST_ROOM = 1.5
QUIET = 0.01
SLIDES = "slides on Lee & Kifer (2018)"
# Size of the logistic loss's slope at margin 0, where the usual clip norm was measured.
LOGISTIC_SLOPE = 0.5


@register("dp_agd")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPAGD(Algorithm):
    """DP-AGD: noisy gradient, then the best of ``candidates`` step sizes by a noisy minimum; step 0
    means: try again.

    Lee & Kifer (2018), Algorithm 2. A gradient costs rho_g = 1 / (2 noise_multiplier^2) in zCDP to
    begin with, a choice of step ``selection_share`` of a round. The choice minimises the sum of
    losses cut to [0, C_obj] plus the public
    penalty: under add/remove all scores move the same way, by at most C_obj; under replace-one both
    ways. "gumbel" is the exponential mechanism, range^2 / 8 in zCDP; "laplace" the noisy minimum of
    the paper, range^2 / 2.

    When step 0 wins, rho_g grows by ``growth``, only the difference is spent on a second gradient
    at the same point, and both are averaged with weights rho (the running average each time, unlike
    the public code). The largest candidate becomes 1.1 times the largest step of the last
    ``update_every`` rounds. What the run may spend is the price of ``rounds`` plain rounds; a query
    runs only if it and the choice that must follow are affordable. Candidates follow a geometric
    ladder down to 1/100 of the largest, or ("linear") equal spacings as in the paper.

    ``sampling_rate`` < 1: every query reads a fresh batch of its own and is priced for it. The
    source reads one batch for the gradient and all its choices, which nothing amplifies.
    """

    requires: ClassVar[Requires] = Requires(l1=False, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "every iterate"
    argument: ClassVar[str] = (
        "A record enters each gradient sum clipped to norm C and the score of each step size with "
        "a loss cut to [0, C_obj], twice or both ways when replaced (Lee & Kifer 2018; gradients "
        "as Abadi et al. 2016)."
    )
    adaptive: ClassVar[bool] = True
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {"rounds": 4, "clip_norm": 0.05, "clip_loss": 0.5}
    limit: ClassVar[dict[str, Any]] = {"rounds": 300}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            rounds=(60, f"{SLIDES}, code of agd_rho: splits=60"),
            selection=("laplace", f"{SLIDES}, Algorithm 2, line 12, and noisy_max in the code"),
            selection_share=(0.5, f"{SLIDES}, splits: one epsilon for the choice and the gradient"),
            clip_norm=(3.0, f"{NOT_PRINTED}the public code's default, run_agd_logistic.py"),
            clip_loss=(3.0, f"{NOT_PRINTED}the public code's default, run_agd_logistic.py"),
            ladder=("linear", f"{SLIDES}, code of agd_rho: np.linspace"),
            candidates=(20, f"{SLIDES}, code of agd_rho"),
            max_step=(2.0, f"{SLIDES}, code of agd_rho"),
            growth=(0.1, f"{SLIDES}, code of agd_rho: gamma=0.1"),
            update_every=(10, f"{SLIDES}, code of agd_rho: t % 10"),
        )
    }

    noise_multiplier: float = 2.0
    rounds: int = 40
    selection: str = "gumbel"
    selection_share: float = 0.2
    clip_norm: float | None = None
    clip_loss: float | None = None
    candidates: int = 20
    ladder: str = "geometric"
    max_step: float | None = None
    growth: float = 0.1
    update_every: int = 10
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier, growth=self.growth)
        require_count(
            rounds=self.rounds, candidates=self.candidates, update_every=self.update_every
        )
        require_choice(("gumbel", "laplace"), selection=self.selection)
        require_choice(("geometric", "linear"), ladder=self.ladder)
        require_open_unit(selection_share=self.selection_share)
        require_fraction(sampling_rate=self.sampling_rate)
        if_given(
            require_positive,
            clip_norm=self.clip_norm,
            clip_loss=self.clip_loss,
            max_step=self.max_step,
        )

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        clip_norm, clip_loss = self.clips(problem)
        longest = self.longest(problem)
        return {"clip_norm": clip_norm, "clip_loss": clip_loss, "max_step": longest}

    def longest(self, problem: Problem) -> float:
        """The longest step that is offered at the start."""
        return self.max_step or LONGEST * step_share(problem) / problem.norm_bound

    def clips(self, problem: Problem) -> tuple[float, float]:
        """Clip norm of gradients and cap of losses."""
        return self.clip_norm or self._clip(problem), self.clip_loss or self._cap(problem)

    def _clip(self, problem: Problem) -> float:
        """That of ``usual_clip``, which leaves a margin 0.8 of logistic's slope at 0; as much where
        the slope is more.

        Steps are chosen by losses: gradients cut far below their start lead where the loss does not
        fall. What the wider clip gains with huber_hinge stands in ``docs/benchmarks.md``.
        """
        usual = usual_clip(problem)
        if problem.loss.argument != "margin":
            return usual
        return usual * max(1.0, slope_at_start(problem) / LOGISTIC_SLOPE)

    def _cap(self, problem: Problem) -> float:
        """The cap of losses from public facts: that of ``usual_cap``, higher where the choice is
        quiet (``QUIET``).
        """
        usual = usual_cap(problem)
        if problem.loss.argument != "margin":
            return usual
        quiet = QUIET * self.sampling_rate * problem.n / self._choice_scale(problem)
        return min(max(quiet, usual), MOST_ROOM * usual)

    def _choice_scale(self, problem: Problem) -> float:
        """Scale of the noise of a choice in units of the cap, which is what range^2 / 8 or / 2
        leaves of its rho.
        """
        rho = self.gradient_rho * self.selection_share / (1.0 - self.selection_share)
        sides = 1.0 if problem.adjacency is Adjacency.ADD_REMOVE else 2.0
        return sides / sqrt((8.0 if self.selection == "gumbel" else 2.0) * rho)

    def gradient(self, problem: Problem, rho: float) -> NoisyGradient:
        """The release of a gradient sum at a cost of ``rho`` (before amplification)."""
        clip_norm = self.clips(problem)[0]
        sensitivity = problem.sensitivity(clip_norm)
        mechanism = sum_on_batch(
            problem, self.sampling_rate, Gaussian(sensitivity, sensitivity / sqrt(2.0 * rho))
        )
        return NoisyGradient(mechanism, clip_norm, self.sampling_rate * problem.n)

    def choice(self, problem: Problem) -> Mechanism:
        """The release of a step: range^2 / 8 (gumbel) or range^2 / 2 (laplace) is its share of a
        round.
        """
        two_sided = problem.adjacency is not Adjacency.ADD_REMOVE
        cap = self.clips(problem)[1]
        kind = Exponential if self.selection == "gumbel" else NoisyMax
        return on_batch(
            problem, self.sampling_rate, kind(cap, cap * self._choice_scale(problem), two_sided)
        )

    @property
    def gradient_rho(self) -> float:
        """zCDP of the first gradient."""
        return 1.0 / (2.0 * self.noise_multiplier**2)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        gradient = self.gradient(problem, self.gradient_rho).mechanism
        return Rounds([gradient, self.choice(problem)], self.rounds)

    def steps(self, largest: float) -> Array:
        """Step sizes to choose from, 0 first, shape (candidates + 1,)."""
        if self.ladder == "linear":
            return np.linspace(0.0, largest, self.candidates + 1)
        return np.concatenate([[0.0], np.geomspace(largest / 100.0, largest, self.candidates)])

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the last iterate, shape (d,)."""
        w = np.zeros(problem.dimension * problem.outputs)
        rho = self.gradient_rho
        largest = cap = self.longest(problem)
        chosen: list[float] = []
        while True:
            w, rho, step = self._round(problem, budget, w, rho, largest)
            if step is None:
                return w
            chosen.append(step)
            if len(chosen) == self.update_every:
                largest = min(1.1 * max(chosen), cap)
                chosen.clear()

    def _round(
        self, problem: Problem, budget: Budget, w: Array, rho: float, largest: float
    ) -> tuple[Array, float, float | None]:
        """One move from ``w``: the new point, the gradient budget it took, and the step; None where
        money ran out.
        """
        choice = self.choice(problem)
        total, spent = np.zeros_like(w), 0.0
        while True:
            extra = rho - spent
            gradient = self.gradient(problem, extra)
            if not budget.affords(gradient.mechanism, choice):
                return w, rho, None
            fresh = gradient.sum(budget, w)
            total, spent = (spent * total + extra * fresh) / rho, rho
            direction = total / gradient.rows + problem.l2 * w
            direction /= max(float(np.linalg.norm(direction)), 1e-300)
            steps = self.steps(largest)
            index = self._best(problem, budget, choice, w - np.outer(steps, direction))
            budget.note(step_size=float(steps[index]), noise_scale=1.0 / sqrt(2.0 * rho))
            if index > 0:
                return w - steps[index] * direction, rho, float(steps[index])
            rho *= 1.0 + self.growth

    def _best(self, problem: Problem, budget: Budget, mechanism: Mechanism, W: Array) -> int:
        """Index of the noisily best row of ``W``; the penalty is public and takes no noise."""
        clip_loss = self.clips(problem)[1]
        share = self.sampling_rate * problem.n
        penalty = share * problem.l2 / 2 * np.einsum("ij,ij->i", W, W)
        public = public_part(penalty, clip_loss)

        def query(batch: Objective) -> Array:
            return np.asarray(-(batch.value_sum(W, clip_loss) + public))

        return int(budget.release(mechanism, query))
