"""Output perturbation: full-batch gradient descent, noise on the last iterate."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import Algorithm, Preset, register
from dpcore.descent.minimise import minimise
from dpcore.descent.permuted import total_step, until_converged
from dpcore.errors import (
    AssumptionNotMet,
    if_given,
    require_choice,
    require_count,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import GammaNorm, Gaussian, Mechanism
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires

# More passes than this take longer than the minimiser by second-order steps; ``steps`` overrides
# it.
MOST_STEPS = 48
# Softmax has no such minimiser here: descent goes on.
MOST_JOINT_STEPS = 400
# Gradient norm at which that minimiser may stop, in units of R: it adds a thousandth to the
# sensitivity.
TOLERANCE = 1e-3
# The paper bounds the norm of the minimiser by a constant D; this one stands in for it.
PAPER_RADIUS = 10.0


@register("output_gd", "outpert_gd")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGD(Algorithm):
    """Gradient descent on mean_i loss(x_i, y_i; w) + l2/2 ||w||^2 from w = 0; noise once, on the
    last iterate.

    A step of size eta has Lipschitz constant rho = max(|1 - eta l2|, |1 - eta beta|) <= 1, and a
    replaced record moves it by at most eta S / n with S = ``problem.sensitivity(R)`` = 2R (the
    ridge is the same on both sides, so R is the bound of the data term). After T steps the L2
    sensitivity is (eta S / n)(1 + rho + ... + rho^(T-1)): at most 2R / (n l2), and 2R T eta / n
    without a ridge. Zhang, Zheng, Mou & Wang (2017), Algorithm 1, Lemmas 2 and 3, whose constants 3
    and 5 are tightened to 2 and kept for finite T; their Gaussian scale is replaced by the exact
    one.

    ``steps`` and ``learning_rate`` left out follow from ``permuted.total_step``: steps of the
    largest contracting size that sum to H. Where those would be more than 48 passes, the minimiser
    with ridge l2 + 1 / H takes their place: descent stopped at H shrinks a direction of curvature h
    like that ridge does, and costs the same, 2R H / n at most. A point with a gradient sum of norm
    <= g will do: it moves by (2R + 2g) / (n (l2 + 1 / H)). With softmax R and beta are those of
    ``Softmax`` for all weight vectors together, and descent takes up to 400 passes.

    ``noise``: "gaussian" for (epsilon, delta); "gamma" for pure epsilon = 1 / noise_multiplier
    (density ~ exp(-||z|| / scale)). Replace-one only: under add/remove the curvature of count / n
    terms has no public bound.
    """

    requires: ClassVar[Requires] = Requires(
        linear=True, smooth=True, convex=True, bounded_gradient=True, l1=False, softmax=True
    )
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.REPLACE_ONE})
    releases: ClassVar[str] = "last iterate, or regularised minimiser"
    argument: ClassVar[str] = (
        "A replaced record moves each of T contracting steps by at most 2 eta R / n (Zhang, Zheng, "
        "Mou & Wang 2017, Lemmas 2 and 3, with constants 2 in place of 3 and 5)."
    )
    default_l2: ClassVar[float] = 1e-4
    asks: ClassVar[frozenset[str]] = frozenset({"as_rows"})
    small: ClassVar[dict[str, Any]] = {"steps": 3}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            step_rule=("paper", "Zhang et al. (2017), Theorems 2 and 3: eta, and T of known order")
        )
    }
    renamed: ClassVar[dict[str, str]] = {"pace": "step_rule"}

    noise_multiplier: float = 2.0
    noise: str = "gaussian"
    step_rule: str = "horizon"
    steps: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        require_choice(("gaussian", "gamma"), noise=self.noise)
        require_choice(("horizon", "paper"), step_rule=self.step_rule)
        if_given(require_count, steps=self.steps)
        if_given(require_positive, learning_rate=self.learning_rate)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        steps, eta = self.descent(problem)
        return {"steps": steps, "learning_rate": eta}

    def descent(self, problem: Problem) -> tuple[int, float]:
        """Number of steps and step size; raises ``AssumptionNotMet`` for a step too long to
        contract.
        """
        longest = 2.0 / (problem.l2 + problem.smoothness)
        if self.learning_rate is not None and self.learning_rate > 2.0 / problem.smoothness:
            raise AssumptionNotMet(
                f"Expected learning_rate <= 2 / smoothness = {2.0 / problem.smoothness:.6g} for "
                f"'output_gd', got learning_rate={self.learning_rate!r}; a longer step does not "
                "contract. Leave it out for the default."
            )
        if self.step_rule == "paper":
            eta = self.learning_rate or 1.0 / (problem.l2 + problem.smoothness)
            return self.steps or self._paper_steps(problem), eta
        total = until_converged(problem, total_step(problem, self.spread(problem)))
        most = MOST_STEPS if problem.outputs == 1 else MOST_JOINT_STEPS
        steps = self.steps or max(min(ceil(total / (self.learning_rate or longest)), most), 1)
        return steps, self.learning_rate or min(total / steps, longest)

    def shortcut(self, problem: Problem) -> float | None:
        """Strong convexity of the minimiser that stands in for a long descent; None where descent
        is what runs.
        """
        given = (
            self.steps is not None or self.learning_rate is not None or self.step_rule == "paper"
        )
        total = total_step(problem, self.spread(problem))
        few = (
            until_converged(problem, total) * (problem.l2 + problem.smoothness) / 2.0 <= MOST_STEPS
        )
        return None if given or few or problem.outputs > 1 else problem.l2 + 1.0 / total

    def spread(self, problem: Problem) -> float:
        """Root mean square of one noise coordinate over the sensitivity, for either noise."""
        width = problem.dimension * problem.outputs
        return self.noise_multiplier * (sqrt(width + 1.0) if self.noise == "gamma" else 1.0)

    def _paper_steps(self, problem: Problem) -> int:
        """T of Theorems 2 and 3 with their constants set to 1 and sqrt(d ln(1/delta)) / epsilon
        read as the noise.
        """
        noise = self.spread(problem) * sqrt(problem.dimension * problem.outputs)
        signal = problem.n * PAPER_RADIUS / (problem.lipschitz * noise)
        if problem.l2 == 0:
            return int(min(max(ceil((problem.smoothness * signal) ** (2.0 / 3.0)), 1), 10**6))
        condition = problem.smoothness / problem.l2 + problem.l2 / problem.smoothness
        return max(ceil(condition * log(max((problem.l2 * signal) ** 2, 2.0))), 1)

    def sensitivity(self, problem: Problem) -> float:
        """L2 sensitivity of what is released."""
        convexity = self.shortcut(problem)
        if convexity is not None:
            slack = 2.0 * TOLERANCE * problem.lipschitz
            return (problem.sensitivity(problem.lipschitz) + slack) / (problem.n * convexity)
        steps, eta = self.descent(problem)
        rho = max(abs(1.0 - eta * problem.l2), abs(1.0 - eta * problem.smoothness))
        jump = eta * problem.sensitivity(problem.lipschitz) / problem.n
        return jump * geometric(rho, steps)

    def weight_noise(self, problem: Problem) -> float:
        """Root mean square of one coordinate; Gaussian, or with ``noise="gamma"`` longer in its
        tails.
        """
        return self.spread(problem) * self.sensitivity(problem)

    def plan(self, problem: Problem) -> list[Mechanism]:
        sensitivity = self.sensitivity(problem)
        noise = GammaNorm if self.noise == "gamma" else Gaussian
        return [noise(sensitivity, self.noise_multiplier * sensitivity)]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the noisy coefficients, shape (outputs * d,)."""
        steps, eta = self.descent(problem)
        convexity = self.shortcut(problem)

        def descend(data: Objective) -> Array:
            w = np.zeros(problem.dimension * problem.outputs)
            for _ in range(steps):
                w = w - eta * (data.gradient_sum(w) / problem.n + problem.l2 * w)
            return w

        def solve(data: Any) -> Array:
            # Of users the sum is a share of that over their records, and so is its gradient.
            rows, weight = data.as_rows()
            curvature = problem.n * (convexity or problem.l2) / weight
            return minimise(
                rows, curvature, np.zeros(problem.dimension), TOLERANCE * problem.lipschitz / weight
            )

        [release] = self.plan(problem)
        released = budget.release(release, descend if convexity is None else solve)
        budget.note(noise_scale=self.noise_multiplier * self.sensitivity(problem))
        budget.note(
            **(
                {"steps": steps, "step_size": eta}
                if convexity is None
                else {"strong_convexity": convexity}
            )
        )
        return np.asarray(released)


def geometric(rho: float, terms: int) -> float:
    """1 + rho + ... + rho^(terms - 1), rounded up by a part in 1e12 so that it stays an upper
    bound; rho in [0, 1].
    """
    if rho == 1.0 or (1.0 - rho) * terms < 1e-9:
        return float(terms)
    tail = -np.expm1(terms * log(rho)) if rho > 0 else 1.0
    return min(float(tail / (1.0 - rho)) * (1.0 + 1e-12), float(terms))
