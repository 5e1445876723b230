"""How far a model is from the best on its training part: the minimisation error, a metric that a
comparison names.

How much an algorithm reads: evaluations of single records' gradients and losses, as Fig. 5.2 of
Chen (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from scipy.optimize import minimize

from dpcore.accounting.observers import Evaluations
from dpcore.descent.minimise import MOST_COLUMNS, Perturbed
from dpcore.problem import Problem

MINIMISATION_ERROR = "minimisation_error"
STEPS = 500
# Norm of the mean gradient at which the minimiser is taken as found.
TOLERANCE = 1e-8


def asked(metrics: Sequence[str] | None) -> bool:
    """Whether a comparison names the metric: it costs a minimisation on every fold."""
    return MINIMISATION_ERROR in (metrics or ())


def has_optimum(problem: Problem) -> bool:
    """Whether ``optimum`` covers the problem: one convex function of one linear score, with second
    derivatives.
    """
    smooth = problem.kind == "linear" and problem.loss.convex and isfinite(problem.loss.smoothness)
    return smooth and problem.outputs == 1 and problem.l1 == 0 and problem.dimension <= MOST_COLUMNS


def optimum(objective: Any, problem: Problem) -> float:
    """min over w of mean loss + l2/2 ||w||^2 on the rows of ``objective``: exact, an internal
    number.

    By trust-region Newton steps (Conn, Gould & Toint 2000, chapter 7), which need no ridge. Where
    the records are separable and l2 is 0 it is the value after ``STEPS`` steps, a little above the
    infimum.
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


COUNTS = (Evaluations.GRADIENT, Evaluations.LOSS)


def wanted(metrics: Sequence[str] | None) -> bool:
    """Whether a comparison names one of the counts among its metrics: they are kept only then."""
    return bool(set(metrics or ()) & set(COUNTS))
