"""How far a model is from the best on its training part: the minimisation error, a metric that a comparison names.

How much an algorithm reads: evaluations of single records' gradients and losses, as Fig. 5.2 of Chen (2020).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
from scipy.optimize import minimize

from dpcore.descent.minimise import MOST_COLUMNS, Perturbed
from dpcore.objective import LinearObjective
from dpcore.problem import Problem

MINIMISATION_ERROR = "minimisation_error"
STEPS = 500
# Norm of the mean gradient at which the minimiser is taken as found.
TOLERANCE = 1e-8


def asked(metrics: Sequence[str] | None) -> bool:
    """Whether a comparison names the metric: it costs a minimisation on every fold."""
    return MINIMISATION_ERROR in (metrics or ())


def has_optimum(problem: Problem) -> bool:
    """Whether ``optimum`` covers the problem: one convex function of one linear score, with second derivatives."""
    smooth = problem.loss.convex and hasattr(problem.loss, "curvature")
    return smooth and problem.outputs == 1 and problem.l1 == 0 and problem.dimension <= MOST_COLUMNS


def optimum(objective: Any, problem: Problem) -> float:
    """min over w of mean loss + l2/2 ||w||^2 on the rows of ``objective``: exact, an internal number.

    By trust-region Newton steps (Conn, Gould & Toint 2000, chapter 7), which need no ridge. Where the records are
    separable and l2 is 0 it is the value after ``STEPS`` steps, a little above the infimum.
    """
    count = float(objective.n)
    total = Perturbed(objective, problem.l2 * count, np.zeros(problem.dimension))

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        height, slope = total.value_and_gradient(w)
        return height / count, slope / count

    found = minimize(
        value,
        np.zeros(problem.dimension),
        jac=True,
        hess=lambda w: total.hessian(w) / count,
        method="trust-exact",
        options={"maxiter": STEPS, "gtol": TOLERANCE, "max_trust_radius": 1e6},
    )
    return float(found.fun)


Array = np.ndarray

GRADIENTS, LOSSES = "gradient_evaluations", "loss_evaluations"
COUNTS = (GRADIENTS, LOSSES)


class Counted:
    """An objective that counts: a sum over n records of gradients is n evaluations, one of k candidates' losses k n.

    Batches share the count of what they are taken from. Counts follow the sizes of batches: exact, internal numbers.
    """

    def __init__(self, objective: Any, counts: Counter[str] | None = None) -> None:
        self.inner = objective
        self.counts: Counter[str] = Counter() if counts is None else counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def take(self, rows: Array | slice) -> Counted:
        return Counted(self.inner.take(rows), self.counts)

    def transform(self, *arguments: Any, **named: Any) -> Counted:
        return Counted(self.inner.transform(*arguments, **named), self.counts)

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        self.counts[GRADIENTS] += self.inner.n
        return self.inner.gradient_sum(w, clip_norm)

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        self.counts[LOSSES] += len(np.atleast_2d(W)) * self.inner.n
        return self.inner.value_sum(W, clip)

    @property
    def numbers(self) -> dict[str, float]:
        """Evaluations so far, by name."""
        return {name: float(self.counts[name]) for name in COUNTS}


def counting(objective: Any) -> Any:
    """``objective`` with its evaluations counted; as it is where several models share the records."""
    return Counted(objective) if isinstance(objective, LinearObjective) else objective


def evaluations(objective: Any) -> dict[str, float]:
    """What ``counting`` counted; empty where it did not, or where the algorithm took other sums than these."""
    return objective.numbers if isinstance(objective, Counted) and objective.counts else {}


def wanted(metrics: Sequence[str] | None) -> bool:
    """Whether a comparison names one of the counts among its metrics: they are kept only then."""
    return bool(set(metrics or ()) & set(COUNTS))
