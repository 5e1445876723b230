"""Noisy full-batch descent on columns that were scaled by their own noisy variances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.descent import platt
from dpcore.descent.gradient import (
    STABLE,
    NoisyGradient,
    clip_share,
    curvature_bound,
    first_weights,
    momentum_for,
    step_share,
)
from dpcore.descent.marginals import Marginals, Watch
from dpcore.errors import (
    AssumptionNotMet,
    finite_tuple,
    if_given,
    require_below_one,
    require_choice,
    require_count,
    require_fraction,
    require_open_unit,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, InTurn, Mechanism, Rounds
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem, Requires

# Summed step sizes in units of n * mu / sensitivity: a direction of curvature h is worth learning
# when h > 1 / H.
HORIZON = 0.8
# Goals other than accuracy: from this n * mu on the clip norm is 1, which leaves nearly every
# gradient as it is, so that scores rank records and tell their odds as the loss means them. The
# noise is then that of a run at n * mu / 2.5, and whether the loss as it is outweighs it depends on
# the table, so no public fact says where: ROC AUC gains from about 2,000 on credit, 4,500 on Bank
# and 8,000 on Adult (docs/benchmarks.md).
GOALS = ("accuracy", "auc", "probability")
RANKED, RANKED_CLIP = 6000.0, 1.0
# Share of mu^2 that calibration takes where probabilities are wanted and none is named.
PROBABILITY_SHARE = 0.05
# Below this n * mu the descent returns about the majority class (measured on subsets of Adult).
LEARNABLE = 80.0


@register("scaled_gd")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledGD(Algorithm):
    """Release column marginals, scale the columns by them, then descend with clipped noisy
    full-batch gradients.

    Values are clipped to [0, 1] and one-hot blocks scaled down to sum <= 1 inside every query. Two
    prices, in Gaussian differential privacy: ``marginal_share`` of mu^2 for the marginals
    (``Marginals``), the rest for ``steps`` gradients at sigma = noise_multiplier *
    ``problem.sensitivity(C)``; the marginals' sigma is a ratio of it.

    A row becomes s (x - m) / R with s_j = (v_j + v0)^(-1/2) from the noisy means m and variances v,
    v0 = 0.001 + noise of a mean, and R such that the mean squared norm is about 1 (a fine block has
    scale 0 unless one of its bins holds nearly all rows, by m, and does not count in R; where n mu
    is small m of its bins is guessed from the coarser block, and its sums cost nothing); the
    constant column becomes 2 (1 + v0)^(-1/2) / R. In this space w <- w - eta (1 - t/T) V, V <- b V
    + (sum_i clip(g_i, C) + noise) / n, from w = 0. The weights of fine blocks move after an eighth
    of the steps, and then only if the noisy gradients of those say more of their bins than chance
    would (``dpcore.descent.marginals.Watch``). The step sizes sum to H = 0.8 n mu_g / S (0.2 for
    residuals), S the sensitivity: stopping there plays the ridge 1/H, proportional to the noise. A
    ridge and an L1 penalty of the problem act on the returned weights. Each record's
    clipped gradient is the slope of a convex loss (logistic, then linear), so labels are predicted
    well but probabilities are not calibrated. A ``calibration_share`` of mu^2 pays for one
    histogram of scores by label that corrects them (``dpcore.descent.platt``).

    ``start``: the weights that the descent begins with in place of 0, in the columns of the
    problem; then the ridge 1/H pulls towards them. They must be public: weights that were released,
    and charged, before.

    ``sampling_rate`` q below 1 takes a step on a fresh batch: fewer passes over the records for
    little more noise where n mu is large (at q = 1/16 a training reads a third of the rows' time).

    Both adjacencies. Abadi et al. (2016), Algorithm 1, with q = 1, on the scaled columns; the exact
    price is that of Dong, Roth & Su (2022), Corollary 3.3.
    """

    requires: ClassVar[Requires] = Requires(linear=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "column marginals and every iterate"
    argument: ClassVar[str] = (
        "A record's values are clipped to [0, 1] and its blocks to a sum of 1 before the "
        "marginals, and its gradient on the scaled columns to norm C, twice that when replaced "
        "(Abadi et al. 2016; price by Dong, Roth & Su 2022)."
    )
    # not by ``problem.norm_bound``, which the price does not use
    bounds_rows_by: ClassVar[str] = "blocks"
    asks: ClassVar[frozenset[str]] = frozenset({"within", "transform", "column_sum", "square_sum"})
    small: ClassVar[dict[str, Any]] = {"steps": 3, "clip_norm": 0.05}
    # what clipping values below 0 costs on the signed columns of the shared test
    limit_gap: ClassVar[float] = 0.03

    noise_multiplier: float = 2.0
    steps: int = 256
    sampling_rate: float = 1.0
    clip_norm: float | None = None
    marginal_share: float = 0.1
    horizon: float | None = None
    calibration_share: float = 0.0
    goal: str = "accuracy"
    start: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        require_choice(GOALS, goal=self.goal)
        if self.start is not None:
            object.__setattr__(self, "start", finite_tuple("start", self.start))
        require_positive(noise_multiplier=self.noise_multiplier)
        if_given(require_positive, clip_norm=self.clip_norm, horizon=self.horizon)
        require_count(steps=self.steps)
        require_fraction(sampling_rate=self.sampling_rate)
        require_open_unit(marginal_share=self.marginal_share)
        require_below_one(
            calibration_share=self.calibration_share,
            shares=self.marginal_share + self.calibrated,
        )

    def clip(self, problem: Problem) -> float:
        """The clip norm C; scaled rows have norm about 1."""
        if self.clip_norm is not None:
            return self.clip_norm
        if self.goal != "accuracy" and self.signal(problem) >= RANKED:
            return RANKED_CLIP * problem.weight
        return clip_share(problem)

    @property
    def calibrated(self) -> float:
        """Share of mu^2 for the histogram that corrects probabilities."""
        if self.goal == "probability" and self.calibration_share == 0.0:
            return PROBABILITY_SHARE
        return self.calibration_share

    @property
    def calibrates(self) -> bool:
        """Whether such a histogram is released."""
        return self.calibrated > 0.0

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        first_weights(self.start, problem)
        marginals, gradient, calibration = self.releases_of(problem)
        return InTurn(([marginals], Rounds([gradient.mechanism], self.steps), calibration))

    def layout(self, problem: Problem) -> Marginals:
        """What the first release holds, by public facts alone."""
        return Marginals.of(problem, self.signal(problem))

    def releases_of(self, problem: Problem) -> tuple[Gaussian, NoisyGradient, list[Gaussian]]:
        """The marginals, a step, and the histogram of scores where there is one."""
        marginals = self._priced(
            self.layout(problem).sensitivity(problem.adjacency), self.marginal_share
        )
        gradient = NoisyGradient.of(
            problem, self.clip(problem), self.noise_multiplier, self.sampling_rate
        )
        self.check(problem)
        if not self.calibrates:
            return marginals, gradient, []
        return (
            marginals,
            gradient,
            [self._priced(platt.sensitivity(problem.adjacency), self.calibrated)],
        )

    def check(self, problem: Problem) -> None:
        """Raise ``AssumptionNotMet`` for a goal, or a calibration, of a loss without margins."""
        if self.goal != "accuracy" and problem.loss.argument != "margin":
            raise AssumptionNotMet(
                f"Expected a loss of margins for goal={self.goal!r}, got "
                f"loss={problem.loss.name!r}; leave the goal out, or use 'logistic'."
            )
        if self.calibrates:
            platt.require_log_odds(problem)

    def _priced(self, sensitivity: float, share: float) -> Gaussian:
        """A release that takes ``share`` of mu^2, where the gradients take what the shares
        leave.
        """
        rest = 1.0 - self.marginal_share - self.calibrated
        return Gaussian(sensitivity, self.per_mu * sqrt(rest / (share * self.steps)) * sensitivity)

    @property
    def per_mu(self) -> float:
        """1 / mu of one gradient: the noise multiplier, or that of a full step that costs about as
        much as one on a batch, mu = q sqrt(e^(1/s^2) - 1) (Bu, Dong, Long & Su 2020, Theorem 5).

        It divides the budget and prices nothing.
        """
        if self.sampling_rate == 1.0:
            return self.noise_multiplier
        alone = min(self.noise_multiplier**-2.0, 50.0)
        amplified = self.sampling_rate * sqrt(expm1(alone))
        return max(self.noise_multiplier, 1.0 / amplified)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"clip_norm": self.clip(problem), "horizon": self.horizon_of(problem)}

    def horizon_of(self, problem: Problem) -> float:
        """The horizon H."""
        return HORIZON * step_share(problem) if self.horizon is None else self.horizon

    def marginals(self, problem: Problem, first: Array) -> dict[str, Array]:
        """Means and variances of the columns as the first release gave them: post-processing of it
        alone.
        """
        means, variances = self.layout(problem).moments(first, problem.n)
        return {"means": means, "variances": variances}

    def signal(self, problem: Problem) -> float:
        """n * mu of the gradients, halved under replace-one: what the steps can learn from."""
        mu = self.sampling_rate * sqrt(self.steps) / self.noise_multiplier
        return problem.n * mu / problem.sensitivity(1.0)

    def advice(self, problem: Problem) -> str:
        """A warning from public facts where little can be learned, else empty."""
        signal = self.signal(problem)
        if signal >= LEARNABLE:
            return self._blind(problem)
        return (
            f"n * mu = {signal:.3g} is below {LEARNABLE:g}: expect about the majority class; use "
            "more records, a larger epsilon, or fewer columns"
        )

    def _blind(self, problem: Problem) -> str:
        """A warning where the histogram that corrects probabilities is not told from its noise."""
        _, _, calibration = self.releases_of(problem)
        if all(platt.visible(problem.n, release.sigma) for release in calibration):
            return ""
        return (
            f"n * mu = {self.signal(problem):.3g} is too little for a calibration of "
            f"probabilities: an average cell of its histogram is below {platt.VISIBLE:g} standard "
            "deviations of the noise; use goal=accuracy, a larger epsilon or calibration_share"
        )

    def step_and_momentum(self, problem: Problem, stiffness: float) -> tuple[float, float]:
        """First step size and momentum: the summed steps are the horizon, each stays within
        heavy-ball stability.

        ``stiffness`` bounds the curvature that the ridge adds in the scaled space.
        """
        longest = STABLE / (curvature_bound(problem) + stiffness)
        step = (
            2.0
            * self.horizon_of(problem)
            * self.signal(problem)
            / (self.clip(problem) * self.steps)
        )
        return min(step, longest), momentum_for(step, longest)

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the last iterate in the columns of the problem, shape (outputs * d,)."""
        layout = self.layout(problem)
        first, gradient, calibration = self.releases_of(problem)
        released = budget.release(first, layout.query)
        view = layout.scaling(released, first.sigma / problem.n, problem)

        def scaled(batch: LinearObjective) -> LinearObjective:
            return batch.within(layout.blocks).transform(view.shift, view.scale)

        rate, momentum = self.step_and_momentum(problem, problem.l2 * view.stretch**2)
        w = view.scaled(first_weights(self.start, problem).reshape(problem.outputs, -1))
        l1 = problem.l1 / (1.0 - momentum)  # a gradient is followed so many times
        velocity = np.zeros_like(w)
        noise = self.noise_multiplier * problem.sensitivity(gradient.clip_norm)
        means, _ = layout.moments(released, problem.n)
        watch = Watch.of(layout, view, means, gradient, noise, self.steps, problem)
        held = watch.held
        for step in range(self.steps):
            eta = rate * (1.0 - step / self.steps)
            noisy = gradient.mean(budget, w.ravel(), scaled).reshape(w.shape)
            pull = momentum * velocity + noisy + problem.l2 * view.pull_back(view.weights(w))
            velocity = np.where(held, 0.0, pull)
            w = np.where(held, w, view.prox(w - eta * velocity, eta * l1))
            budget.note(step_size=eta)
            if held.any() and watch.sees(noisy):
                held = watch.silent()
                view = view.without(held & ~w.any(axis=0))
        weights = view.weights(w).ravel()
        for release in calibration:
            weights = platt.calibrate(weights, release, layout.blocks, problem, budget)
        return weights
