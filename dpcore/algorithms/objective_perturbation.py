"""Objective perturbation: a random linear term in the objective, solved to a certified gradient
norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, Preset, register
from dpcore.descent.minimise import STRETCH, minimise
from dpcore.errors import (
    AssumptionNotMet,
    InputError,
    if_given,
    require_choice,
    require_nonnegative,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import AMP, ObjectivePerturbation
from dpcore.objective import Objective
from dpcore.objective.rounding import UNIT
from dpcore.problem import Adjacency, Problem, Requires

# Output noise over its sensitivity, in units of noise_multiplier: it takes 1e-4 of the price (1 %
# with gamma noise).
OUTPUT_RATIO = 100.0
NOTES = "Wang's notes, 14.1, Algorithm 1 and Theorem 14.3"
# Constant of ``default_ridge``.
RIDGE = 2.5
# Least curvature as a share of the largest that records may add: below it steps no longer shrink in
# floating point.
FLATTEST = 1e-13


@register("objective_perturbation", "objpert")
@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePerturbationGLM(Algorithm):
    """argmin_w sum_i loss(x_i @ w) + (curvature / 2) ||w||^2 + b @ w, solved to a tiny gradient
    norm, plus tiny noise.

    b is Gaussian ((epsilon, delta)) or has density ~ exp(-||b|| / scale) (pure epsilon), scale =
    noise_multiplier * sensitivity, sensitivity L under add/remove and 2L under replace-one, L = sup
    |loss'| ||x||. Prices: in ``mechanisms.ObjectivePerturbation``; Chaudhuri, Monteleoni & Sarwate
    (2011), Kifer, Smith & Thakurta (2012). They need one margin a record (rank-one Hessians). Any
    minimiser within ``tolerance`` L of a zero gradient will do: what that moves is covered by
    output noise of the same kind, priced as in AMP.

    curvature = n l2 + ``ridge`` * beta * scale / L, beta = sup loss'' ||x||^2: the second part is a
    device of the proof, it keeps ln(1 + beta / curvature) a small share of epsilon and the noise in
    w bounded. Left out, ``ridge`` is the public rule ``default_ridge``. ``tolerance`` is raised to
    what rounding of a gradient may hide over many records (``rounding_of_gradients``). Where a
    slope has kinks (huber_hinge) noise and minimiser are Lipschitz functions of each other, so the
    change of variables holds almost everywhere. Non-smooth penalties and bounded sets (Wang,
    section 14.1.1) are not covered. ``preset: paper``: half of epsilon for the Jacobian, curvature
    2 beta / (e^(epsilon/2) - 1), to first order 4 beta / epsilon, in units of the printed noise: a
    ridge of 0.295 at delta = 1e-8, and of 1 for noise of pure epsilon (``paper_pure``).
    """

    requires: ClassVar[Requires] = Requires(
        linear=True, smooth=True, convex=True, bounded_gradient=True, l1=False
    )
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "minimiser of the perturbed objective"
    hidden_noise: ClassVar[str] = (
        "noise enters the objective, and what it does to the minimiser follows from the curvature "
        "at the records, for which there is no public number"
    )
    argument: ClassVar[str] = (
        "A record changes the gradient of the objective by at most L, twice that when replaced, "
        "and its Hessian by one rank of size beta (Chaudhuri, Monteleoni & Sarwate 2011; Kifer, "
        "Smith & Thakurta 2012)."
    )
    default_l2: ClassVar[float] = 1e-5
    asks: ClassVar[frozenset[str]] = frozenset({"X"})
    small: ClassVar[dict[str, Any]] = {}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            noise=("gaussian", f"{NOTES}, (epsilon, delta)"),
            ridge=(0.295, f"{NOTES}: 4 beta / epsilon over sqrt(10 ln(1/delta)) L / epsilon"),
        ),
        "paper_pure": Preset(
            noise=("gamma", f"{NOTES}, epsilon alone"),
            ridge=(1.0, f"{NOTES}: 4 beta / epsilon over the scale 4 L / epsilon"),
        ),
    }

    noise_multiplier: float = 2.0
    noise: str = "gaussian"
    ridge: float | None = None
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier, tolerance=self.tolerance)
        require_choice(("gaussian", "gamma"), noise=self.noise)
        if_given(require_nonnegative, ridge=self.ridge)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"ridge": self.ridge_of(problem)}

    def ridge_of(self, problem: Problem) -> float:
        """The curvature that is added for the noise."""
        return default_ridge(problem, self.noise) if self.ridge is None else self.ridge

    def plan(self, problem: Problem) -> list[AMP]:
        ridge = self.ridge_of(problem)
        return [
            perturbation(
                problem, self.noise_multiplier, self.noise, ridge, self.tolerance, OUTPUT_RATIO
            )
        ]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the noisy minimiser, shape (d,)."""
        return release_minimiser(self.plan(problem)[0], budget)


def default_ridge(problem: Problem, noise: str) -> float:
    """Ridge in units of beta * scale / L: flat optimum on Adult; gamma noise is sqrt(d + 1) times
    longer.
    """
    return RIDGE * (sqrt(problem.dimension + 1.0) if noise == "gamma" else 1.0)


def least_tolerance(problem: Problem, noise_multiplier: float) -> float:
    """Gradient norm, in units of L, below which no solver gets: what is typical of the rounding of
    a gradient.

    The gradient is a sum of n terms of size L and of noise of size noise_multiplier * sensitivity *
    sqrt(d), and sums in stretches err by a few units of roundoff u of that; 64 u are allowed for. A
    smaller tolerance is refused; what is promised is never less than what rounding can do at worst
    (``rounding_of_gradients``).
    """
    noise = noise_multiplier * problem.sensitivity(1.0) * sqrt(problem.dimension + 1.0)
    return 64 * UNIT * (problem.n + noise)


def drawn_length(scale: float, dimension: int, noise: str) -> float:
    """A length that the drawn linear term has at most, up to a chance of 1e-30: chi, gamma
    tails.
    """
    return scale * (2.0 * dimension + 100.0 if noise == "gamma" else sqrt(dimension) + 12.0)


def farthest(problem: Problem, curvature: float, linear: float) -> float:
    """A bound of |w| at the minimiser, where the linear terms have together a norm of ``linear``.

    curvature / 2 |w|^2 + b w <= n (loss(0) - min loss) gives sqrt(2 n loss(0) / curvature) +
    2 |b| / curvature for a loss of the margin, that is never negative, and its gradient
    (n L + |b|) / curvature for any.
    """
    radius = (problem.n * problem.lipschitz + linear) / curvature
    if problem.loss.argument != "margin":
        return radius
    labels = np.array([-1.0, 1.0])
    start = float(problem.loss.value(0.0 * labels, labels).max())
    return min(radius, sqrt(2.0 * problem.n * start / curvature) + 2.0 * linear / curvature)


def longest_tilt(problem: Problem, inner: ObjectivePerturbation) -> float:
    """A norm that a public linear term, n (y - rho z) of ADMM, seldom reaches, and is cut to.

    With n rho at most the curvature, |z| that of a minimiser without the term, and |y| what a
    penalty of strength l1 has for a subgradient; each is doubled.
    """
    drawn = drawn_length(inner.scale, problem.dimension, inner.noise)
    pulled = inner.curvature * farthest(problem, inner.curvature, drawn)
    return 2.0 * (pulled + problem.n * problem.l1 * sqrt(problem.dimension))


def rounding_of_gradients(problem: Problem, inner: ObjectivePerturbation, tilt: float) -> float:
    """The most, in units of L, by which a gradient that ``minimise`` looks at may be wrong; any
    records, and any public linear term of norm at most ``tilt`` beside the drawn b; u = 2^-53.

    Three parts. Sums: n terms of norm at most L in stretches, (STRETCH + n / STRETCH + 32) u n L
    with the rounding of slopes. Scores: one errs by (d + 8) u |x| |w|, which moves a term by beta
    times (d + 8) u |w|, beta = sup loss'' |x|^2. Ridge and linear terms: 8 u (curvature |w| + |b|).
    Near the minimiser |w| is at most twice ``farthest``.
    """
    n, d, lipschitz = problem.n, problem.dimension, problem.lipschitz
    linear = drawn_length(inner.scale, d, inner.noise) + tilt
    radius = farthest(problem, inner.curvature, linear)
    sums = (STRETCH + n / STRETCH + 32) * n * lipschitz
    scores = (d + 8) * inner.smoothness * n * 2.0 * radius
    rest = 8 * (inner.curvature * 2.0 * radius + linear)
    return UNIT * (sums + scores + rest) / lipschitz


def perturbation(
    problem: Problem,
    noise_multiplier: float,
    noise: str,
    ridge: float,
    tolerance: float,
    output_ratio: float,
    tilted: bool = False,
) -> AMP:
    """The one mechanism of objective perturbation and of AMP, from public facts; ``tilted``: with a
    public linear term of norm ``longest_tilt`` at most beside the drawn one.
    """
    if problem.outputs != 1:
        raise AssumptionNotMet(
            "Expected one weight vector for objective perturbation, got "
            f"outputs={problem.outputs}; its proof needs a scalar margin: use one-vs-rest with a "
            "split budget, or a gradient method such as dp_sgd."
        )
    lipschitz = problem.lipschitz
    beta = problem.smoothness - problem.l2
    scale = noise_multiplier * problem.sensitivity(lipschitz)
    curvature = problem.n * problem.l2 + ridge * beta * scale / lipschitz
    if curvature <= 0:
        raise AssumptionNotMet(
            "Expected some curvature for objective perturbation, got l2=0 and ridge=0; use l2 > 0, "
            "or leave ridge out."
        )
    if curvature < FLATTEST * problem.n * beta:
        raise AssumptionNotMet(
            f"Expected a curvature of {FLATTEST * problem.n * beta:.1e} or more over n={problem.n} "
            f"records, got {curvature:.1e} by l2={problem.l2:g} and ridge={ridge:g}, where no "
            "solver finds the minimiser of every data set; use a larger l2, or leave ridge out."
        )
    inner = ObjectivePerturbation(
        lipschitz, beta, curvature, scale, problem.dimension, problem.adjacency, noise
    )
    least = least_tolerance(problem, noise_multiplier)
    if tolerance < least:
        raise InputError(
            f"Expected tolerance of {least:.1e} or more over n={problem.n} records, whose gradient "
            f"is rounded by as much, got tolerance={tolerance:g}; a smaller one would promise what "
            "no solver reaches."
        )
    tilt = longest_tilt(problem, inner) if tilted else 0.0
    gradient_norm = max(tolerance, 2.0 * rounding_of_gradients(problem, inner, tilt)) * lipschitz
    output_sigma = output_ratio * noise_multiplier * 2.0 * gradient_norm / curvature
    return AMP(inner, gradient_norm, output_sigma)


def release_minimiser(mechanism: AMP, budget: Budget) -> Array:
    """Minimise for the noise that the door draws, and release."""
    curvature, tolerance = mechanism.perturbation.curvature, mechanism.gradient_norm

    def query(records: Objective) -> Callable[[Array], Array]:
        return lambda noise: minimise(records, curvature, noise, tolerance)

    released = budget.release(mechanism, query)
    budget.note(curvature=curvature, noise_scale=mechanism.perturbation.scale)
    return np.asarray(released)
