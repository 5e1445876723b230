"""ADMM whose x-step minimises a randomly perturbed objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.algorithms.objective_perturbation import (
    OUTPUT_RATIO,
    default_ridge,
    longest_tilt,
    perturbation,
)
from dpcore.descent.admm import OUTPUTS, Iterate
from dpcore.descent.gradient import RANKING_HORIZON, ranks_columns, slope_at_start
from dpcore.descent.minimise import minimise
from dpcore.errors import (
    AssumptionNotMet,
    if_given,
    require_choice,
    require_count,
    require_positive,
)
from dpcore.losses import Array, Loss, MarginLoss, Weighted, scalar
from dpcore.mechanisms import AMP, Mechanism, Rounds
from dpcore.objective import Objective
from dpcore.objective.rounding import at_most
from dpcore.penalties import penalties, penalty_of
from dpcore.problem import Adjacency, Problem, Requires

# Cap of the slope in units of that at 0, where columns are ranked: as in ``noisy_correlations``.
CAP_SHARE = 0.5


# Margins within which the slope is looked for that the cut begins at: beyond, a slope of a known
# loss is constant.
WIDEST = 50.0


@register("admm_objp", "dpll")
@dataclass(frozen=True, slots=True, kw_only=True)
class ADMMObjP(Algorithm):
    """x <- argmin_x sum_i loss(x_i @ x) + n l2/2 ||x||^2 + n (y @ x + rho/2 ||x - z||^2) + b_k @ x,
    then z and y.

    b_k ~ N(0, scale^2 I) anew in each of ``steps`` iterations. y and z (``admm``) follow from
    earlier releases, so an iteration is objective perturbation with curvature n (l2 + rho), and the
    run costs the sum. Wang & Zhang (2019) claim the price of exact minimisers, which no solver
    gives (Chen 2020, 4.5.1), at half the noise that the proof needs. Here each x is solved to
    ``tolerance`` L in gradient norm, for any records, and output noise covers the rest
    (``mechanisms.AMP``): the price is that of what really runs. That a gradient's rounding is less
    is proved for a linear term of bounded norm, so n (y - rho z) is cut to ``longest_tilt``; it
    follows from releases, and the cut from public facts. ``penalty_parameter`` rho left out
    follows the rule of objective perturbation, proportional to the noise, but is never below
    ``least_rho``, or where ``selection.ranks_columns`` an early end as in ``admm``.

    Nothing is clipped: the proof needs L, a bound of the slope, and near x = 0 a record's gradient
    is half of it, so a unit of noise meets half the signal of clipped methods. ``slope_cap``
    changes the loss instead (``Capped``): L is the cap, and what is minimised is a straight
    line for margins of a steeper slope. Left out, it is half the slope at 0 where columns are
    ranked, and no cap elsewhere. With cap and early end it finds nearly as many relevant columns as
    one release of noisy correlations (``docs/benchmarks.md``): what is left is the price of a
    minimiser, ln(1 + beta / curvature) and the looser curve, twice.
    """

    requires: ClassVar[Requires] = Requires(
        linear=True, smooth=True, convex=True, bounded_gradient=True
    )
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "x of each iteration"
    hidden_noise: ClassVar[str] = (
        "noise enters the objective, and what it does to the minimiser follows from the curvature "
        "at the records, for which there is no public number"
    )
    argument: ClassVar[str] = (
        "Each x is the approximate minimiser of an objective with a random linear term, and a "
        "record changes that objective's gradient by at most L, twice that when replaced (Iyengar "
        "et al. 2019, with the factor 2 that its output noise lacks)."
    )
    asks: ClassVar[frozenset[str]] = frozenset({"X"})
    small: ClassVar[dict[str, Any]] = {"steps": 2}
    limit: ClassVar[dict[str, Any]] = {"steps": 20, "penalty_parameter": 1e-3}

    noise_multiplier: float = 2.0
    steps: int = 2
    penalty_parameter: float | None = None
    slope_cap: float | None = None
    tolerance: float = 1e-5
    penalty: str = "l1"
    output: str = "z"

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier, tolerance=self.tolerance)
        require_count(steps=self.steps)
        require_choice(OUTPUTS, output=self.output)
        require_choice(tuple(penalties), penalty=self.penalty)
        if_given(
            require_positive, penalty_parameter=self.penalty_parameter, slope_cap=self.slope_cap
        )

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        minimised, rho = self.minimised(problem), self.penalty_parameter
        if rho is None:
            rho = self.iteration(minimised).perturbation.curvature / problem.n - problem.l2
        # without a cap the slope is what the loss bounds it by
        cap = self.slope_cap or minimised.lipschitz / (problem.norm_bound * problem.weight)
        return {"penalty_parameter": rho, "slope_cap": cap}

    def minimised(self, problem: Problem) -> Problem:
        """``problem`` with the loss that is minimised."""
        cap = self.slope_cap
        if cap is None:
            if not ranks_columns(problem) or problem.loss.argument != "margin":
                return problem
            cap = CAP_SHARE * slope_at_start(problem)
        return replace(problem, loss=capped(problem.loss, cap))

    def iteration(self, problem: Problem) -> AMP:
        """The mechanism of one iteration on the ``minimised`` problem; its curvature beyond the
        ridge is n rho.
        """
        beta = problem.smoothness - problem.l2
        scale = self.noise_multiplier * problem.sensitivity(problem.lipschitz)

        def of(rho: float) -> float:
            """The ridge that gives ``rho``."""
            return rho * problem.n * problem.lipschitz / (beta * scale)

        if self.penalty_parameter is not None:
            ridge = of(self.penalty_parameter)
        elif ranks_columns(problem):
            # 1 / rho is a step; the steps sum to the horizon that the noise supports
            ridge = (
                sqrt(self.steps) * problem.norm_bound * problem.lipschitz / (RANKING_HORIZON * beta)
            )
        else:
            ridge = max(default_ridge(problem, "gaussian"), of(least_rho(problem)))
        return perturbation(
            problem, self.noise_multiplier, "gaussian", ridge, self.tolerance, OUTPUT_RATIO, True
        )

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        # what the problem has no such penalty for is refused before it is charged
        penalty_of(problem, self.penalty)
        return Rounds([self.iteration(self.minimised(problem))], self.steps)

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return z (exactly sparse) or x after the last iteration, shape (d,)."""
        penalty = penalty_of(problem, self.penalty)
        loss = self.minimised(problem).loss
        at = Iterate.start(problem.dimension)
        for mechanism in self.plan(problem):
            assert isinstance(mechanism, AMP)
            rho = mechanism.perturbation.curvature / problem.n - problem.l2
            longest = longest_tilt(self.minimised(problem), mechanism.perturbation)
            with np.errstate(over="ignore", invalid="ignore"):
                linear = at_most(problem.n * (at.y - rho * at.z), longest)

            def query(records: Any, linear: Array = linear, mechanism: AMP = mechanism) -> Tilted:
                records = records if loss is problem.loss else records.with_labels(records.y, loss)
                return Tilted(
                    records, mechanism.perturbation.curvature, linear, mechanism.gradient_norm
                )

            at = at.moved(budget.release(mechanism, query), rho, penalty, problem.dimension)
            budget.note(curvature=mechanism.perturbation.curvature)
        return at.output(self.output)


def least_rho(problem: Problem) -> float:
    """l1 * norm_bound: a z-step cuts l1 / rho off each weight, with this rho at most
    1 / norm_bound, which moves no score by more than 1.

    A weight that is cut to 0 in every step comes back once rho times the sum of its x exceeds l1
    (y). Few steps leave no time for that: where noise is small and l1 large, a rho in proportion
    to the noise alone cuts off all weights.
    """
    return problem.l1 * problem.norm_bound


@dataclass(frozen=True, slots=True)
class Tilted:
    """noise -> minimiser of the sum of losses + curvature/2 ||x||^2 + (linear + noise) @ x on a
    leased batch.
    """

    records: Objective
    curvature: float
    linear: Array
    tolerance: float

    def __call__(self, noise: Array) -> Array:
        return minimise(self.records, self.curvature, noise + self.linear, self.tolerance)


@dataclass(frozen=True, slots=True)
class Capped(MarginLoss):
    """``base`` where its slope is at least -``cap``, continued as a straight line of slope -``cap``
    before that.

    For a decreasing convex loss of the margin that is convex too, of slope at most ``cap`` in size,
    and its curvature is that of ``base`` or 0: the smoothness stays. It has a kink in the slope, as
    huber_hinge has.
    """

    convex: ClassVar[bool] = True

    base: Loss
    cap: float

    def __post_init__(self) -> None:
        require_positive(cap=self.cap)
        if self.base.argument != "margin" or not self.base.convex:
            raise AssumptionNotMet(
                f"Expected a convex loss of the margin for slope_cap, got loss={self.base.name!r}; "
                "leave slope_cap out."
            )

    @property
    def name(self) -> str:
        return f"{self.base.name}, slope at most {self.cap:g}"

    @property
    def lipschitz(self) -> float:
        return min(self.base.lipschitz, self.cap)

    @property
    def smoothness(self) -> float:
        return self.base.smoothness

    def _value(self, t: Array) -> Array:
        inside = np.maximum(t, line_start(self.base, self.cap))
        return np.asarray(self.base.value(inside) + self.cap * (inside - t))

    def _slope(self, t: Array) -> Array:
        return np.asarray(np.maximum(self.base.slope(t), -self.cap))

    def _curvature(self, t: Array) -> Array:
        return np.where(self.base.slope(t) > -self.cap, scalar(self.base).curvature(t), 0.0)


@lru_cache(maxsize=64)
def line_start(base: Loss, cap: float) -> float:
    """The margin z where the slope of ``base`` is -``cap``: before it the capped loss is a straight
    line.

    Cut to [-50, 50]. Kept, for a solver asks for values often.
    """

    def excess(z: float) -> float:
        return float(base.slope(np.array([z]))[0]) + cap

    if excess(-WIDEST) >= 0.0:
        return -WIDEST
    return WIDEST if excess(WIDEST) <= 0.0 else float(brentq(excess, -WIDEST, WIDEST, xtol=1e-12))


def capped(loss: Loss, cap: float) -> Loss:
    """``loss`` with slopes cut at ``cap`` (times its class weights); the loss itself where none is
    steeper.
    """
    if isinstance(loss, Weighted):
        return replace(loss, base=capped(loss.base, cap))
    return loss if cap >= loss.lipschitz else Capped(loss, cap)
