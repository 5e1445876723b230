"""ADMM with noise on the model after each pass over the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, NOT_PRINTED, Algorithm, Preset, register
from dpcore.algorithms.ssadmm import SELECTION
from dpcore.descent.admm import ADMMSettings, Iterate, Steps
from dpcore.errors import AssumptionNotMet, require_choice
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism, Rounds
from dpcore.objective import Objective
from dpcore.objective.rounding import FAR, at_most
from dpcore.penalties import penalty_of
from dpcore.problem import Adjacency, Problem, Requires

PERTURBED = ("x", "xzy")

XStep = Callable[[Objective], Array]


def x_sensitivity(clip_sensitivity: float, n: int, eta: float, rho: float) -> float:
    """L2 sensitivity of x after one epoch: S eta / (n (1 + eta rho)), S that of the clipped
    gradient sum.

    x+ = (eta / (1 + eta rho)) (-g - y + rho z + x / eta) with x, y, z released before, so only g =
    sum / n moves. The printed (4.13), 2C / (n (1 + eta rho)), lacks the factor eta: it is too small
    for eta > 1, too large below.
    """
    return clip_sensitivity * eta / (n * (1.0 + eta * rho))


@register("mpadmm")
@dataclass(frozen=True, slots=True, kw_only=True)
class MPADMM(ADMMSettings, Algorithm):
    """x <- x - k_t (v_t + y + rho (x - z)) + N(0, sigma_t^2 I), v_t = momentum v_{t-1} + sum_i
    clip(g_i, C) / n + l2 x,

    sigma_t = noise_multiplier * D_t, D_t = ``problem.sensitivity(C)`` k_t / n (``x_sensitivity``, k
    = eta / (1 + eta rho)). What a step adds to that is public, and cut to ``FAR`` D_t: of steps
    that run away rounding would tell more than the noise hides. z, y and the velocity follow from
    the released x, so an epoch is one Gaussian release; it is full-batch ssADMM with the noise of
    the gradient written on x.

    ``perturb`` = "xzy" is the papers' form, Chen (2020), Algorithm 4.2: x, z and y computed from
    exact x get noise of one sigma each. By firm non-expansiveness of a convex prox their
    sensitivities are D, D and rho D (Theorem 4.3 with the right D), so the price is 2 + rho^2 times
    that of x alone. The noise of y enters x again, k times larger: keep to the papers' rho (k <=
    1/rho) and to momentum 0 there.

    The papers' claim that it finds more of the relevant columns at small epsilon does not hold
    beyond chance; on Adult it is level with ``dp_sgd`` in accuracy and ahead in the objective at
    epsilon 0.1 and 0.4 (``docs/benchmarks.md``).
    """

    requires: ClassVar[Requires] = Requires(linear=True, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "x of each epoch"
    argument: ClassVar[str] = (
        "A record moves an exact step by its gradient clipped to norm C times k / n, twice that "
        "when replaced, and z and y follow from the noisy x (Chen 2020, Algorithm 4.2, with the "
        "right constant in Theorem 4.3)."
    )
    small: ClassVar[dict[str, Any]] = {
        "steps": 3,
        "clip_norm": 0.05,
        "learning_rate": 10.0,
        "momentum": 0.5,
    }
    presets: ClassVar[dict[str, Preset]] = {
        "selection": SELECTION,
        "paper": Preset(
            perturb=("xzy", "Chen (2020), Algorithm 4.2, p. 44"),
            penalty_parameter=(0.5, "Chen (2020), 4.6.4, pp. 46-50"),
            schedule=("constant", "Chen (2020), 4.6.4, pp. 46-50"),
            step_rule=("paper", f"{NOT_PRINTED}from Theorem 3.1: eta = 2 / (mu + L)"),
            momentum=(0.0, "Chen (2020), Algorithm 4.2, p. 44"),
            output=("x", "Chen (2020), Algorithm 4.2, p. 44"),
            clip_norm=(1.0, f"{NOT_PRINTED}the bound of a gradient whose row has norm 1"),
            steps=(
                200,
                f"{NOT_PRINTED}ours: x moves by less than 1 / rho = 2 a pass, so it takes many; "
                "of 5 to 400 the best on Adult, where it was looked at",
            ),
        ),
    }

    perturb: str = "x"

    def __post_init__(self) -> None:
        ADMMSettings.__post_init__(self)
        require_choice(PERTURBED, perturb=self.perturb)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return self.comes_to(problem, self.schedule_for(problem))

    def schedule_for(self, problem: Problem) -> Steps:
        """The one schedule that ``plan`` and ``fit`` walk; the price of an epoch does not depend on
        it.
        """
        return self.steps_for(problem, sqrt(self.steps) / self.noise_multiplier)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        # what the problem has no such penalty for is refused before it is charged
        penalty_of(problem, self.penalty)
        steps = self.schedule_for(problem)
        if self.schedule == "constant":
            return Rounds(self.epoch(problem, steps.rho, float(steps.size(1.0))), self.steps)
        return [
            item for step in steps.sizes.tolist() for item in self.epoch(problem, steps.rho, step)
        ]

    def epoch(self, problem: Problem, rho: float, step: float) -> list[Mechanism]:
        """The releases of one epoch whose x-step is k = ``step``."""
        bound = self.bound(problem, rho, step)
        sigma = self.noise_multiplier * bound
        if self.perturb == "x":
            return [Gaussian(bound, sigma)]
        if not penalty_of(problem, self.penalty).convex:
            raise AssumptionNotMet(
                "Expected a convex penalty for perturb='xzy', whose proof needs a non-expansive "
                f"prox, got penalty={self.penalty!r}; use perturb='x'."
            )
        return [Gaussian(bound, sigma), Gaussian(bound, sigma), Gaussian(rho * bound, sigma)]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return z (exactly sparse) or x after the last epoch, shape (outputs * d,)."""
        steps = self.schedule_for(problem)
        penalty = penalty_of(problem, self.penalty)
        at = Iterate.start(problem.dimension * problem.outputs)
        velocity = np.zeros_like(at.x)
        for step in steps.sizes.tolist():
            if self.perturb == "xzy":  # z and y are formed of y beside the exact x
                longest = steps.rho * FAR * self.bound(problem, steps.rho, step)
                at = replace(at, y=at_most(at.y, longest))
            x_step = self._x_step(problem, at, steps, step, velocity)
            releases = self.epoch(problem, steps.rho, step)
            x = budget.release(releases[0], x_step)
            # The noisy velocity that this x amounts to: post-processing, so momentum costs nothing.
            velocity = (at.x - x) / step - at.pull(steps.rho)
            move = partial(
                at.moved,
                rho=steps.rho,
                penalty=penalty,
                dimension=problem.dimension,
                momentum=steps.momentum,
            )
            at = (
                move(x)
                if self.perturb == "x"
                else _three_releases(budget, releases[1:], x, x_step, move)
            )
            budget.note(step_size=step)
        return at.output(self.output)

    def _x_step(
        self, problem: Problem, at: Iterate, steps: Steps, step: float, velocity: Array
    ) -> XStep:
        clip_norm = self.clip(problem)
        pulled = steps.momentum * velocity + problem.l2 * at.x + at.pull(steps.rho)
        public = at_most(at.x - step * pulled, FAR * self.bound(problem, steps.rho, step))

        def x_step(data: Objective) -> Array:
            return np.asarray(public - step * data.gradient_sum(at.x, clip_norm) / problem.n)

        return x_step

    def bound(self, problem: Problem, rho: float, step: float) -> float:
        """The sensitivity of x after an epoch whose x-step is k = ``step``."""
        eta = step / (1.0 - step * rho)
        return x_sensitivity(problem.sensitivity(self.clip(problem)), problem.n, eta, rho)


def _three_releases(
    budget: Budget,
    mechanisms: list[Mechanism],
    x: Array,
    x_step: XStep,
    move: Callable[[Array], Iterate],
) -> Iterate:
    """x as released, and z and y that the data yield, each with noise of its own."""

    def exact_z(data: Objective) -> Array:
        return move(x_step(data)).z

    def exact_y(data: Objective) -> Array:
        return move(x_step(data)).y

    return Iterate(
        x, budget.release(mechanisms[0], exact_z), budget.release(mechanisms[1], exact_y)
    )
