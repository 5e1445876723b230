"""The noisy clipped gradient of gradient methods: where clipping starts and which steps go with it
when the caller names none, how its rows are drawn, what it costs, and its release.

Step sizes left out: what stays stable, and how far the noise lets them reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import Array, without_weights
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Allocation, Poisson, Sampler, WithoutReplacement

# Clip norm by the argument of the loss, for rows of norm 1: small errors keep their gradient, large
# ones shrink, and so does the noise. A residual of a target in [-1, 1] is smaller than the slope of
# a margin, and softmax moves several scores at once. Flat optima, measured on Adult and credit
# (margin), MNIST (scores), bike and wine (residual).
CLIP_SHARE = {"margin": 0.4, "scores": 0.8, "residual": 0.1}
# Summed steps in units of n mu / S, and steps of fixed length, relative to those for margins. S is
# in proportion to the clip norm, so with 0.25 a residual gets the same summed steps as a margin; a
# target in [-1, 1] is a shorter way off.
STEP_SHARE = {"residual": 0.25}
# Cap of losses in units of the loss at w = 0: a margin may become worse than 0, while a target in
# [-1, 1] has its largest residual there, wherever predictions stay between its bounds.
LOSS_SHARE = {"margin": 3.0, "scores": 3.0, "residual": 1.0}


def clip_share(problem: Problem) -> float:
    """The clip norm for rows of norm 1."""
    return CLIP_SHARE.get(problem.loss.argument, CLIP_SHARE["margin"]) * problem.weight


def usual_clip(problem: Problem) -> float:
    """The clip norm C for rows of norm at most ``problem.norm_bound``."""
    return clip_share(problem) * problem.norm_bound


def step_share(problem: Problem) -> float:
    """What a horizon or a fixed step that was measured on margins is multiplied by."""
    return STEP_SHARE.get(problem.loss.argument, 1.0)


def loss_at_start(problem: Problem) -> float:
    """The largest loss of a record at w = 0: at margin 0, at residual 1 (a target in [-1, 1]), log
    K of softmax.
    """
    if problem.loss.argument == "scores":
        return float(np.log(problem.outputs))
    return float(
        problem.loss.value(np.array([0.0 if problem.loss.argument == "margin" else 1.0]))[0]
    )


def slope_at_start(problem: Problem) -> float:
    """Size of the slope of a margin loss at w = 0, class weights left out."""
    return abs(float(without_weights(problem.loss).slope(np.zeros(1))[0]))


def usual_cap(problem: Problem) -> float:
    """The cap of a record's loss where candidates are compared."""
    return LOSS_SHARE.get(problem.loss.argument, LOSS_SHARE["margin"]) * loss_at_start(problem)


# Largest step times the curvature bound of the data term: heavy-ball descent is stable up to 2 (1 +
# momentum).
STABLE = 4.0
MAX_MOMENTUM = 0.95
# Curvature that stands in for a loss without a bound (hinge), where stability is not at stake.
NOMINAL_CURVATURE = 0.25
# The same for a network: step size times clip norm of 0.8 at momentum 0.95, measured on held-out
# MNIST images.
NETWORK_CURVATURE = 2.0


def curvature_bound(problem: Problem) -> float:
    """Bound of the loss's curvature in its argument, or what stands in for one."""
    if isfinite(problem.loss.smoothness):
        return problem.loss.smoothness
    return NETWORK_CURVATURE if problem.kind == "network" else NOMINAL_CURVATURE * problem.weight


def first_weights(start: tuple[float, ...] | None, problem: Problem) -> Array:
    """The public w that a descent begins with, zero where none is given, shape (outputs * d,).

    Raises ``AssumptionNotMet`` for another number of weights than the model has.
    """
    size = problem.dimension * problem.outputs
    if start is None:
        return np.zeros(size)
    if len(start) != size:
        raise AssumptionNotMet(
            f"Expected start with {size} weights, as many as the model has, got {len(start)}; "
            "leave it out, or take a model of the same columns."
        )
    return np.array(start)


def longest_step(problem: Problem) -> float:
    """Largest stable step, 4 / (norm_bound^2 curvature + 4 l2): the ridge alone allows a step of 1
    / l2.
    """
    return STABLE / (problem.norm_bound**2 * curvature_bound(problem) + STABLE * problem.l2)


# What the first step follows from where the caller names none.
STEP_RULES = ("horizon", "paper")


def contracting_step(problem: Problem) -> float:
    """2 / (l2 + L), L the smoothness with the ridge in it: the longest step under which descent
    contracts, and where it contracts most. Chen (2020), Theorem 3.1.

    Where the loss has no curvature bound, ``curvature_bound`` stands in for it.
    """
    smoothness = problem.norm_bound**2 * curvature_bound(problem) + problem.l2
    return 2.0 / (problem.l2 + smoothness)


def momentum_for(step: float, longest: float) -> float:
    """Momentum with which stable steps, ``longest`` at most, go as far as steps of size ``step``
    without it.
    """
    return min(max(1.0 - longest / step, 0.0), MAX_MOMENTUM)


def total_step(problem: Problem, horizon: float, mu: float, clip_norm: float) -> float:
    """Sum of the steps that the noise of the whole run supports: horizon * n mu / (S norm_bound).

    ``mu`` is the signal over noise of the run for sums of sensitivity 1, S =
    ``problem.sensitivity(clip_norm)``.
    """
    return horizon * problem.n * mu / (problem.sensitivity(clip_norm) * problem.norm_bound)


# Summed step sizes of descent that ranks columns, in units of (norm_bound * noise of the whole
# run)^-1: for a ranking shrinkage is worth more than convergence. Measured on sparse Gaussian
# columns, where the optimum is flat.
RANKING_HORIZON = 0.08


def ranks_columns(problem: Problem) -> bool:
    """Whether defaults should rank columns rather than converge: an L1 penalty, and no column
    declared in [0, 1].

    Columns in [0, 1] (blocks) have means far from 0, which lead every gradient until descent has
    come a long way; on columns about 0 the first gradients are covariances with the label already.
    """
    return problem.l1 > 0 and not problem.blocks


def fixed_size(problem: Problem, rate: float) -> WithoutReplacement:
    """rate * n rows of exactly n, for replaced records.

    Raises ``AssumptionNotMet`` where the rate asks for less than one row.
    """
    require_row(problem, rate)
    return WithoutReplacement(round(rate * problem.n), problem.n)


def require_row(problem: Problem, rate: float) -> None:
    """Raise ``AssumptionNotMet`` where batches of a public n hold less than one row on average."""
    if problem.adjacency is Adjacency.REPLACE_ONE and round(rate * problem.n) < 1:
        raise AssumptionNotMet(
            f"Expected at least one row a batch, got sampling_rate={rate!r} of n={problem.n}; use "
            f"sampling_rate >= {1 / problem.n:.3g}."
        )


def on_batch(problem: Problem, rate: float, mechanism: Mechanism) -> Mechanism:
    """``mechanism`` on a fresh batch of its own, amplified: any query, by the lemma for any.

    Poisson batches, or rows without replacement under replace-one, where a lemma for one record
    more or less says nothing; all rows for rate 1.
    """
    if rate == 1.0:
        return mechanism
    sampler: Sampler = Poisson(rate)
    if problem.adjacency is Adjacency.REPLACE_ONE:
        sampler = fixed_size(problem, rate)
    return sampler.amplify(mechanism, problem.adjacency)


def sum_on_batch(problem: Problem, rate: float, gaussian: Gaussian) -> Mechanism:
    """``gaussian`` on a sum of clipped contributions over a fresh Poisson batch, whatever the
    relation; all rows for rate 1.

    A replaced record's contributions lie in a ball of radius C, half the sensitivity 2C. Such a
    batch is never dearer than one of fixed size at the same rate: there another record takes this
    one's place, which moves the centre of the pair away from both ends and raises every divergence
    (proved: along dx = dy = dc = dh it is dE/dh = E[q^2 phi'' (U - V P/Q)^2 / Q] / 2 >= 0, in the
    letters of ``dpcore.mechanisms.pairs``). The number of rows that were drawn stays secret.
    """
    if rate == 1.0:
        return gaussian
    require_row(problem, rate)
    kept = "pair" if problem.adjacency is Adjacency.ADD_REMOVE else "ball"
    return Poisson(rate).amplify(gaussian, problem.adjacency, kept)


def decays(schedule: str, steps: int, steps_per_epoch: float = 1.0) -> Array:
    """Step sizes relative to the first, shape (steps,): ``constant``, ``linear`` to 0, ``inverse``
    1 / (1 + t), or ``epoch`` 1 / h, h the current epoch.
    """
    t = np.arange(steps)
    match schedule:
        case "constant":
            return np.ones(steps)
        case "inverse":
            return 1.0 / (1.0 + t)
        case "epoch":
            return 1.0 / (1.0 + np.floor(t / steps_per_epoch))
        case _:
            return 1.0 - t / steps


@lru_cache(maxsize=64)
def decay_total(schedule: str, steps: int, steps_per_epoch: float = 1.0) -> float:
    """Sum of ``decays``: a plan asks for it at each noise that it tries."""
    return float(decays(schedule, steps, steps_per_epoch).sum())


# How a descent may draw the rows of its steps.
SAMPLERS = ("poisson", "allocation")


def bins_of(rate: float) -> int:
    """The number of batches of an epoch; ``InputError`` where 1 / rate is no whole number."""
    bins = round(1.0 / rate)
    if abs(bins * rate - 1.0) > 1e-9:
        raise InputError(
            "Expected sampling_rate = 1/t for sampler='allocation', in whose epochs each record "
            f"is in one of t batches, got sampling_rate={rate!r}; use {1.0 / bins:.12g} (t={bins})."
        )
    return bins


@dataclass(frozen=True, slots=True)
class NoisyGradient:
    """sum_{i in B} clip(g_i(w), C) + N(0, sigma^2 I) on a fresh batch B, sigma = noise_multiplier *
    sensitivity(C).

    ``mechanism`` is its price, ``clip_norm`` C, and ``rows`` = q n the public divisor of its mean,
    never the realised size of a batch. Abadi et al. (2016), Algorithm 1; Mironov, Talwar & Zhang
    (2019) for the price.
    """

    mechanism: Mechanism
    clip_norm: float
    rows: float

    @classmethod
    def of(
        cls, problem: Problem, clip_norm: float, noise_multiplier: float, rate: float = 1.0
    ) -> NoisyGradient:
        """With noise of ``noise_multiplier`` times the sensitivity, on batches of a share ``rate``
        of the records.
        """
        gaussian = _gaussian(problem, clip_norm, noise_multiplier)
        return cls(sum_on_batch(problem, rate, gaussian), clip_norm, rate * problem.n)

    @classmethod
    def of_epoch(
        cls, problem: Problem, clip_norm: float, noise_multiplier: float, bins: int
    ) -> NoisyGradient:
        """On the batches of epochs in which every record is in one of ``bins`` batches."""
        gaussian = _gaussian(problem, clip_norm, noise_multiplier)
        mechanism = Allocation(bins).amplify(gaussian, problem.adjacency)
        return cls(mechanism, clip_norm, problem.n / bins)

    @classmethod
    def of_sampler(
        cls,
        problem: Problem,
        clip_norm: float,
        noise_multiplier: float,
        rate: float,
        sampler: str,
    ) -> NoisyGradient:
        """By the name of a sampler: ``poisson``, or ``allocation`` in 1/rate bins."""
        if sampler == "allocation":
            return cls.of_epoch(problem, clip_norm, noise_multiplier, bins_of(rate))
        return cls.of(problem, clip_norm, noise_multiplier, rate)

    @classmethod
    def of_fixed_size(
        cls, problem: Problem, clip_norm: float, noise_multiplier: float, rate: float
    ) -> NoisyGradient:
        """The same where a source draws q n rows without replacement under replace-one."""
        gaussian = _gaussian(problem, clip_norm, noise_multiplier)
        return cls(on_batch(problem, rate, gaussian), clip_norm, rate * problem.n)

    def sum(self, budget: Budget, w: Array, view: Callable[[Any], Any] | None = None) -> Array:
        """Release the noisy sum at ``w``, of what ``view`` makes of the batch; the shape of
        ``w``.
        """

        def query(batch: Any) -> Array:
            records = batch if view is None else view(batch)
            total: Array = records.gradient_sum(w, self.clip_norm)
            return total

        released: Array = budget.release(self.mechanism, query)
        return released

    def mean(self, budget: Budget, w: Array, view: Callable[[Any], Any] | None = None) -> Array:
        """``sum`` over the public divisor."""
        return self.sum(budget, w, view) / self.rows


def _gaussian(problem: Problem, clip_norm: float, noise_multiplier: float) -> Gaussian:
    """Noise of ``noise_multiplier`` times the sensitivity of a sum that is clipped to C."""
    sensitivity = problem.sensitivity(clip_norm)
    return Gaussian(sensitivity, noise_multiplier * sensitivity)
