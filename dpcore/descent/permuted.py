"""The one walk of permuted SGD with averaging and restarts: iterates and sensitivities both follow
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpcore.errors import MOST_WALKED, require_plannable
from dpcore.losses import Array
from dpcore.objective import Objective
from dpcore.problem import Problem

# Constant of ``total_step``.
PROGRESS = 4.8
# Ridge times summed step sizes after which descent has converged: e^-15 of the distance is left.
CONVERGED = 15.0


@dataclass(frozen=True, slots=True)
class Walk:
    """``epochs`` passes over batches of ``sizes`` rows, always in the same order, with step sizes
    eta0 / h.

    h counts epochs since the last restart. Every ``interval`` epochs the state becomes the mean of
    the states after each step since the last restart, and h starts again at 1; ``interval`` 0 never
    averages and never restarts. Chen (2020), Algorithm 3.3, where line 8 prints eta0 / s: only with
    h does line 16 reset anything.
    """

    sizes: tuple[int, ...]
    epochs: int
    eta0: float
    interval: int = 0

    def rates(self) -> Iterator[float]:
        """The step size of each epoch."""
        for epoch in range(self.epochs):
            yield self.eta0 / (1 + (epoch % self.interval if self.interval else epoch))

    def follow(self, state: Array, step: Callable[[Array, float, int], Array]) -> Array:
        """Walk from ``state`` by ``step(state, step size, batch)``; the last state, averaged where
        the walk says so.
        """
        total = np.zeros_like(state)
        for epoch, eta in enumerate(self.rates(), start=1):
            for batch in range(len(self.sizes)):
                state = step(state, eta, batch)
                total += state
            if self.interval and epoch % self.interval == 0:
                state = total / (len(self.sizes) * self.interval)
                total = np.zeros_like(state)
        return state

    def descend(self, batches: list[Objective], problem: Problem) -> Array:
        """Gradient steps on the means of the batches, from w = 0; the walk's result, shape (d,)."""

        def step(w: Array, eta: float, batch: int) -> Array:
            return w - eta * (batches[batch].gradient_sum(w) / self.sizes[batch] + problem.l2 * w)

        return self.follow(np.zeros(problem.dimension * problem.outputs), step)

    def sensitivities(self, problem: Problem) -> tuple[float, ...]:
        """Bound of ||w - w'|| by the batch that holds the replaced record, one for each batch.

        A step contracts by rho = max(|1 - eta l2|, |1 - eta L|) (L with the ridge in it; rho may
        exceed 1), and the step on the differing batch moves it by eta ``problem.sensitivity(R)`` /
        |B| more: the ridge is the same on both sides, so R is the bound of the data term. Chen
        (2020), Lemma 3.1, Algorithm 3.2 and equation (3.8).
        """
        batches = len(self.sizes)
        require_plannable(self.epochs * batches, MOST_WALKED, epochs=self.epochs, batches=batches)
        jump = problem.sensitivity(problem.lipschitz)
        return _sensitivities(self, problem.l2, problem.smoothness, jump)


@lru_cache(maxsize=256)
def _sensitivities(walk: Walk, l2: float, smoothness: float, jump: float) -> tuple[float, ...]:
    def step(bounds: Array, eta: float, batch: int) -> Array:
        bounds = bounds * max(abs(1.0 - eta * l2), abs(1.0 - eta * smoothness))
        bounds[batch] += eta * jump / walk.sizes[batch]
        return bounds

    # steps far too long: the bound is infinite, and refused
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(float(bound) for bound in walk.follow(np.zeros(len(walk.sizes)), step))


def near_equal(n: int, batches: int) -> tuple[int, ...]:
    """Sizes of ``batches`` parts of n rows that differ by at most one: a short last batch costs
    many times more.
    """
    batches = min(batches, n)
    return tuple(n // batches + (part < n % batches) for part in range(batches))


def total_step(problem: Problem, noise_multiplier: float) -> float:
    """Sum of step sizes that output perturbation supports, from public facts alone.

    After steps that sum to H the sensitivity is about H S / n with S = ``problem.sensitivity(R)``,
    so noise moves the score of a row by H norm_bound^2 / x, x = n norm_bound / (noise_multiplier
    S), in units of the slope bound, while what is still unlearnt falls like a power of 1 / (H
    norm_bound^2). Both balance at H ~ x^(2/3) / norm_bound^2, the power of Zhang, Zheng, Mou & Wang
    (2017), Theorem 3. The constant is from Adult, where the optimum is flat. With softmax a step
    moves the lead of one class over another by two gradients, so half the steps do.
    """
    x = (
        problem.n
        * problem.norm_bound
        / (noise_multiplier * problem.sensitivity(problem.norm_bound))
    )
    progress = PROGRESS / 2.0 if problem.loss.argument == "scores" else PROGRESS
    length: float = progress * x ** (2.0 / 3.0) / (problem.norm_bound**2 * problem.weight)
    return length


def until_converged(problem: Problem, total: float) -> float:
    """``total``, cut where a ridge has left nothing to learn: a few times 1 / l2."""
    return min(total, CONVERGED / problem.l2) if problem.l2 > 0 else total
