"""Noisy gradient descent on clipped sums, on the full data or on a fresh random batch for every
step.
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
    RANKING_HORIZON,
    SAMPLERS,
    STEP_RULES,
    NoisyGradient,
    contracting_step,
    decay_total,
    decays,
    first_weights,
    longest_step,
    momentum_for,
    ranks_columns,
    step_share,
    usual_clip,
)
from dpcore.errors import (
    InputError,
    finite_tuple,
    if_given,
    require_below_one,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism, Rounds
from dpcore.penalties import prox_l1
from dpcore.problem import Adjacency, Problem, Requires

SCHEDULES = ("constant", "inverse", "linear", "epoch")

# Summed step sizes in units of (norm_bound * noise of the whole run)^-1. Flat optima, measured on
# Adult (margin: 1.6 to 2.4), bike and wine (residual).
HORIZON = 2.0

CHAPTER_4 = Preset(
    sampling_rate=(None, "Chen (2020), 4.6.4, pp. 46-50: batches of sqrt(n)"),
    schedule=("epoch", "Chen (2020), 4.6.4, pp. 46-50: eta0 / h, h the expected epoch"),
    step_rule=("paper", f"{NOT_PRINTED}from Theorem 3.1: eta0 = 2 / (mu + L)"),
    momentum=(0.0, "Chen (2020), (4.17), pp. 46-50"),
    average=(0.0, "Chen (2020), (4.17), pp. 46-50"),
    clip_norm=(
        1.0,
        f"{NOT_PRINTED}the bound of a gradient whose row has norm 1",
    ),
    steps=(2000, f"{NOT_PRINTED}some ten expected epochs"),
)
CHAPTER_5 = CHAPTER_4.but(
    sampling_rate=(0.1, "Chen (2020), 5.6.4, pp. 72-75"),
    clip_norm=(3.0, "Chen (2020), 5.6.4, pp. 72-75: C_grad of all gradient methods"),
    schedule=("constant", f"{NOT_PRINTED}Abadi et al. (2016), Algorithm 1"),
    momentum=(0.0, "Abadi et al. (2016), Algorithm 1"),
    average=(0.0, "Abadi et al. (2016), Algorithm 1"),
    steps=(200, f"{NOT_PRINTED}twenty expected epochs"),
)


@register("dp_sgd", "dp_gd", "sgd_ma")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGD(Algorithm):
    """w <- prox(w - eta_t v_t), v_t = momentum v_{t-1} + (sum_{i in B_t} clip(g_i, C) + N(0,
    sigma^2 I)) / (q n) + l2 w

    with sigma = noise_multiplier * ``problem.sensitivity(C)``. The batch B_t is a fresh Poisson
    sample of rate q, or all rows for q = 1; the divisor q n is a public constant, never the
    realised size, which nobody sees. Abadi et al. (2016), Algorithm 1, with Mironov, Talwar & Zhang
    (2019) for the price of a record more or less and ``mechanisms.pairs`` for that of a replaced
    one. Momentum, schedule and the mean over the last share ``average`` of the iterates are free.
    Momentum follows each gradient 1 / (1 - momentum) times, and so does prox the L1 penalty: its
    step is eta_t / (1 - momentum).

    ``learning_rate`` and ``momentum`` left out follow from public facts: a direction of curvature h
    is worth learning when its signal exceeds the noise of the whole run, h > 1/H with H =
    ``horizon`` * n mu / (S norm_bound), S = ``problem.sensitivity(C)`` and mu = q sqrt(T) /
    noise_multiplier, so the step sizes sum to H over T stable steps. ``horizon`` left out is 2 (0.5
    for residuals), or 0.08 where ``selection.ranks_columns``: with an L1 penalty the proximal step
    (Chen 2020, 4.17) ranks columns best after an early end.

    ``sampling_rate`` None: batches of about sqrt(n) rows, as SGD-MA (the name for that, with 2,000
    steps) takes them. ``schedule``: "constant", "linear" to 0, "inverse" eta / t, or "epoch" eta /
    h, h the expected epoch. ``step_rule`` "paper": a first step of 2 / (l2 + L), the longest that
    contracts (Chen 2020, Theorem 3.1), where ``learning_rate`` is left out; ``preset: paper``
    (section 4.6.4) takes it, since the text prints none.
    ``sampler`` "allocation" (add/remove): in an epoch of t = 1/q steps every record is in one
    batch, chosen uniformly and independently, so an epoch is one pass over the records
    (``mechanisms.pairs`` for its price).
    ``ema`` b > 0 returns sum_t (1 - b) b^(T-t) w_t / (1 - b^T), the exponential mean of the
    released iterates (De et al. 2022, section 3.2), which costs nothing.
    ``start``: the first w, zero when left out. It must be public: weights that were released, and
    charged, before.
    """

    requires: ClassVar[Requires] = Requires(softmax=True, sessions=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH | {Adjacency.REPLACE_LABELS}
    releases: ClassVar[str] = "every iterate"
    argument: ClassVar[str] = (
        "A record enters each sum with a gradient clipped to norm C, twice that when replaced, and "
        "the rest of a step follows from the noisy sum (Abadi et al. 2016; Mironov, Talwar & Zhang "
        "2019)."
    )
    small: ClassVar[dict[str, Any]] = {
        "steps": 3,
        "clip_norm": 0.05,
        "learning_rate": 0.5,
        "momentum": 0.5,
    }
    presets: ClassVar[dict[str, Preset]] = {
        "paper": CHAPTER_4,
        "paper_ch5": CHAPTER_5,
        "paper_network": Preset(
            sampling_rate=(1.0 / 200.0, "Chen (2020), 5.6.4, pp. 72-75: q = 1/200"),
            learning_rate=(
                0.2,
                "Chen (2020), 5.6.4, pp. 72-75; 0.1 for Cifar-10",
            ),
            clip_norm=(3.0, "Chen (2020), 5.6.4, pp. 72-75"),
            schedule=("constant", "Chen (2020), 5.6.4, pp. 72-75: one eta"),
            momentum=(0.0, "Abadi et al. (2016), Algorithm 1"),
            average=(0.0, "Abadi et al. (2016), Algorithm 1"),
            steps=(2000, f"{NOT_PRINTED}ten expected epochs of 1/q"),
        ),
        "sgd_ma": Preset(
            sampling_rate=(None, "Chen (2020), 3.6.4, pp. 24-27: batches of sqrt(n)"),
            steps=(2000, f"{NOT_PRINTED}3.6.5 keeps the best of several; some ten expected epochs"),
        ),
    }

    noise_multiplier: float = 2.0
    steps: int = 256
    sampling_rate: float | None = 1.0
    clip_norm: float | None = None
    learning_rate: float | None = None
    horizon: float | None = None
    momentum: float | None = None
    schedule: str = "linear"
    average: float = 0.0
    start: tuple[float, ...] | None = None
    sampler: str = "poisson"
    step_rule: str = "horizon"
    ema: float = 0.0

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        require_count(steps=self.steps)
        if_given(require_fraction, sampling_rate=self.sampling_rate)
        require_choice(SCHEDULES, schedule=self.schedule)
        require_choice(SAMPLERS, sampler=self.sampler)
        require_choice(STEP_RULES, step_rule=self.step_rule)
        require_below_one(average=self.average, ema=self.ema)
        if self.average > 0 and self.ema > 0:
            raise InputError(
                "Expected one mean of the iterates, got average and ema: "
                f"average={self.average!r}, ema={self.ema!r}; leave one out."
            )
        if_given(
            require_positive,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            horizon=self.horizon,
        )
        if self.start is not None:
            object.__setattr__(self, "start", finite_tuple("start", self.start))
        if_given(require_below_one, momentum=self.momentum)

    def clip(self, problem: Problem) -> float:
        """The clip norm C."""
        return self.clip_norm or usual_clip(problem)

    def rate(self, problem: Problem) -> float:
        """The sampling rate q."""
        if self.sampling_rate is not None:
            return self.sampling_rate
        root = sqrt(problem.n)
        return 1.0 / (max(round(root), 1) if self.sampler == "allocation" else root)

    def gradient(self, problem: Problem) -> NoisyGradient:
        """The release of a step."""
        return NoisyGradient.of_sampler(
            problem, self.clip(problem), self.noise_multiplier, self.rate(problem), self.sampler
        )

    def first(self, problem: Problem) -> Array:
        """The w that the descent begins with, shape (outputs * d,)."""
        return first_weights(self.start, problem)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        self.first(problem)
        return Rounds([self.gradient(problem).mechanism], self.steps)

    def total_step(self, problem: Problem) -> float:
        """Sum of the step sizes that the noise of the whole run supports."""
        mu = self.rate(problem) * sqrt(self.steps) / self.noise_multiplier
        noise = problem.sensitivity(self.clip(problem)) / (problem.n * mu)
        return self.horizon_of(problem) / (noise * problem.norm_bound)

    def horizon_of(self, problem: Problem) -> float:
        """The horizon H."""
        usual = RANKING_HORIZON if ranks_columns(problem) else HORIZON * step_share(problem)
        return self.horizon or usual

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        rate, momentum = self.step_and_momentum(problem)
        shown = {
            "sampling_rate": self.rate(problem),
            "clip_norm": self.clip(problem),
            "horizon": self.horizon_of(problem),
        }
        return shown | {"learning_rate": rate, "momentum": momentum}

    def step_and_momentum(self, problem: Problem) -> tuple[float, float]:
        """First step size and momentum; what the caller left out follows from ``total_step`` and
        stability.
        """
        longest = longest_step(problem)
        step = self.total_step(problem) / decay_total(
            self.schedule, self.steps, 1.0 / self.rate(problem)
        )
        if self.step_rule == "paper":
            step = longest = contracting_step(problem)
        momentum = momentum_for(step, longest) if self.momentum is None else self.momentum
        rate = (
            min(step * (1.0 - momentum), longest)
            if self.learning_rate is None
            else self.learning_rate
        )
        return rate, momentum

    def decay(self, problem: Problem) -> Array:
        """Step sizes relative to the first, shape (steps,)."""
        return decays(self.schedule, self.steps, 1.0 / self.rate(problem))

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the last iterate, the mean over the last share ``average`` of the iterates, or
        their exponential mean (``ema``); shape (outputs * d).
        """
        rate, momentum = self.step_and_momentum(problem)
        gradient = self.gradient(problem)
        l1 = problem.l1 / (1.0 - momentum)  # a gradient is followed so many times
        first_averaged = self.steps - max(1, round(self.average * self.steps))
        w = self.first(problem)
        velocity, total = np.zeros_like(w), np.zeros_like(w)
        for step, decay in enumerate(self.decay(problem).tolist()):
            eta = rate * decay
            velocity = momentum * velocity + gradient.mean(budget, w) + problem.l2 * w
            w = (w - eta * velocity).reshape(-1, problem.dimension)
            w = prox_l1(w, eta * l1, problem.intercept).ravel()
            budget.note(step_size=eta)
            if self.ema > 0:
                total += (1.0 - self.ema) * (w - total)
            elif step >= first_averaged:
                total += w
        if self.ema > 0:
            return total / (1.0 - self.ema**self.steps)
        return total / (self.steps - first_averaged)
