"""The noisy clipped gradient of gradient methods: how its rows are drawn, what it costs, and its
release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpcore.accounting.budget import Budget
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import FullBatch, Poisson, Sampler, WithoutReplacement


def batch_sampler(problem: Problem, rate: float) -> Sampler:
    """All rows for rate 1; else Poisson batches, or rate * n rows without replacement under
    replace-one.

    Raises ``AssumptionNotMet`` where the rate asks for less than one row.
    """
    if rate == 1.0:
        return FullBatch()
    if problem.adjacency is not Adjacency.REPLACE_ONE:
        return Poisson(rate)
    batch_size = round(rate * problem.n)
    if batch_size < 1:
        raise AssumptionNotMet(
            f"Expected at least one row a batch, got sampling_rate={rate!r} of n={problem.n}; use "
            f"sampling_rate >= {1 / problem.n:.3g}."
        )
    return WithoutReplacement(batch_size, problem.n)


def on_batch(problem: Problem, rate: float, mechanism: Mechanism) -> Mechanism:
    """``mechanism`` on a fresh batch of its own, amplified."""
    return batch_sampler(problem, rate).amplify(mechanism, problem.adjacency)


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
        sensitivity = problem.sensitivity(clip_norm)
        gaussian = Gaussian(sensitivity, noise_multiplier * sensitivity)
        sampler = batch_sampler(problem, rate)
        if isinstance(sampler, Poisson) and problem.adjacency is Adjacency.REPLACE_LABELS:
            # Each clipped contribution lies in a ball of radius C, half the sensitivity 2C.
            mechanism = sampler.amplify(gaussian, problem.adjacency, "ball")
        else:
            mechanism = sampler.amplify(gaussian, problem.adjacency)
        return cls(mechanism, clip_norm, rate * problem.n)

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
