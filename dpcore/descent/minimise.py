"""The minimiser of a perturbed objective, to a gradient norm that is reached for every input."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import ceil, log, log1p
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.sparse import issparse

from dpcore.losses import ArgumentLoss, Array, Weighted
from dpcore.objective.rows import BLOCK_ROWS
from dpcore.objective.sparse import weighted

# Beyond this many columns a (d, d) matrix costs more than it saves.
MOST_COLUMNS = 2000
QUICK_STEPS = 100
NEWTON_STEPS = 40
# Rows whose gradients are summed at a time: sums of sums round by less than one long sum.
STRETCH = 1024
# Products with the Hessian for one Newton step, where no matrix is formed.
PRODUCTS = 250
# Rows (beside 20 a column) whose Hessian makes the metric of the quick steps.
METRIC_ROWS = 2000
# A factor that leaves more than this share of the gradient is made anew.
KEEP = 0.5

Factor = tuple[Array, bool]


class Perturbed:
    """F(w) = sum_i loss(x_i @ w) + curvature/2 ||w||^2 + noise @ w over a batch, in float64.

    F is ``curvature``-strongly convex and its gradient has Lipschitz constant ``steepest``, a bound
    of the Hessian norm by sup loss'' times sum_i ||x_i||^2, computed from the very rows.
    """

    def __init__(self, batch: Any, curvature: float, noise: Array) -> None:
        X, shift, scale = batch.X, batch.shift, batch.scale
        if shift is not None or scale is not None:
            X = X.toarray() if issparse(X) else X
            X = (X - (0.0 if shift is None else shift)) * (1.0 if scale is None else scale)
        self.X = X.astype(np.float64, copy=False)
        self.y: Array = batch.y
        self.loss: ArgumentLoss | Weighted = batch.loss
        self.curvature, self.noise = curvature, noise
        self.margin = self.loss.argument == "margin"
        squares = self.X.data if issparse(self.X) else self.X.ravel()
        self.steepest = curvature + self.loss.smoothness * float(squares @ squares)
        self.weight = 1.0
        self.shares = (
            self.loss.shares(self.y) if isinstance(self.loss, Weighted) else np.ones(len(self.y))
        )

    def part(self, rows: int) -> Perturbed:
        """About ``rows`` rows, evenly spread, each standing for as many as it takes to make up the
        whole.
        """
        stride = max(self.X.shape[0] // rows, 1)
        if stride == 1:
            return self
        part = copy(self)
        part.X, part.y, part.shares = self.X[::stride], self.y[::stride], self.shares[::stride]
        part.weight = float(stride)
        return part

    def _argument(self, w: Array) -> Array:
        z = self.X @ w
        argument: Array = self.y * z if self.margin else z - self.y
        return argument

    def _gradient_at(self, z: Array, w: Array) -> Array:
        coefficient = self.shares * self.loss.slope(z)
        if self.margin:
            coefficient = self.y * coefficient
        return np.asarray(self._summed(coefficient) + self.curvature * w + self.noise)

    def _summed(self, coefficient: Array) -> Array:
        """sum_i c_i x_i, wrong by (STRETCH + n / STRETCH + 2) u sum_i |c_i| |x_i| at most, u =
        2^-53.
        """
        total = np.zeros(self.X.shape[1])
        for start in range(0, len(coefficient), STRETCH):
            part = coefficient[start : start + STRETCH]
            if issparse(self.X):
                total += weighted(self.X, self.X.shape[1], part, start)
            else:
                total += part @ self.X[start : start + STRETCH]
        return total

    def gradient(self, w: Array) -> Array:
        """Gradient of F, shape (d,)."""
        return self._gradient_at(self._argument(w), w)

    def value_and_gradient(self, w: Array) -> tuple[float, Array]:
        """F(w) and its gradient, in one pass over the scores."""
        z = self._argument(w)
        value = (
            float(self.shares @ self.loss.value(z))
            + self.curvature / 2 * float(w @ w)
            + float(self.noise @ w)
        )
        return value, self._gradient_at(z, w)

    def hessian(self, w: Array) -> Array:
        """Hessian of F (almost everywhere, for a loss with kinks in its slope), shape (d, d)."""
        weights = self.weight * self.shares * self.loss.curvature(self._argument(w))
        if issparse(self.X):
            weighted = self.X.copy()
            weighted.data = weighted.data * np.repeat(weights, np.diff(self.X.indptr))
            total = np.asarray((self.X.T @ weighted).toarray())
        else:
            total = np.zeros((self.X.shape[1], self.X.shape[1]))
            for start in range(0, len(weights), BLOCK_ROWS):
                part = self.X[start : start + BLOCK_ROWS] * np.sqrt(
                    weights[start : start + BLOCK_ROWS, None]
                )
                total += part.T @ part
        total[np.diag_indices_from(total)] += self.curvature
        return total

    def curvature_products(self, w: Array) -> tuple[Callable[[Array], Array], Array]:
        """u -> (Hessian of F at ``w``) u, and the diagonal of that Hessian, shape (d,)."""
        weights = self.weight * self.shares * self.loss.curvature(self._argument(w))
        if issparse(self.X):
            squares = self.X.copy()
            squares.data = squares.data**2
            diagonal = np.asarray(weights @ squares)
        else:
            diagonal = np.einsum("i,ij,ij->j", weights, self.X, self.X)

        def times(u: Array) -> Array:
            return np.asarray((weights * (self.X @ u)) @ self.X) + self.curvature * u

        return times, diagonal + self.curvature


def minimise(batch: Any, curvature: float, noise: Array, tolerance: float) -> Array:
    """A point w with ||gradient of F(w)|| <= ``tolerance`` (sum objective), shape (d,); it never
    raises on the records.

    Quick steps first: L-BFGS in the metric of the Hessian at 0, then Newton steps that must shrink
    the gradient. What they leave is closed by gradient steps of size 2 / (curvature + steepest),
    which shrink the gradient norm by (k - 1) / (k + 1), k = steepest / curvature, each: their
    number is known beforehand and their end is proved, for any records. All aim at half the
    tolerance: the other half is for the rounding of the gradients that are looked at, of which a
    promised tolerance is twice the most (``rounding_of_gradients`` of objective perturbation).
    """
    tolerance = tolerance / 2.0
    problem = Perturbed(batch, curvature, noise)
    w = np.zeros(len(noise))
    if len(noise) <= MOST_COLUMNS:
        w = _newton(problem, *_quick(problem, w, tolerance), tolerance)
    else:
        w = _newton_by_products(
            problem, _lbfgs(problem.value_and_gradient, w, tolerance), tolerance
        )
    return _certain(problem, w, tolerance)


def _quick(problem: Perturbed, w: Array, tolerance: float) -> tuple[Array, Factor | None]:
    """L-BFGS in u = L' w, with L L' the Hessian at the start on some of the rows: a metric need not
    be exact, and in this one the condition is that of the changes of curvature only. Returns the
    point and the factor."""
    try:
        lower = np.linalg.cholesky(problem.part(METRIC_ROWS + 20 * len(w)).hessian(w))
    except np.linalg.LinAlgError:
        return w, None

    def in_metric(u: Array) -> tuple[float, Array]:
        value, gradient = problem.value_and_gradient(
            solve_triangular(lower, u, lower=True, trans="T")
        )
        return value, solve_triangular(lower, gradient, lower=True)

    u = _lbfgs(in_metric, lower.T @ w, tolerance / np.sqrt(problem.steepest))
    return solve_triangular(lower, u, lower=True, trans="T"), (lower, True)


def _lbfgs(
    function: Callable[[Array], tuple[float, Array]], start: Array, tolerance: float
) -> Array:
    options = {"maxiter": QUICK_STEPS, "gtol": tolerance / np.sqrt(len(start)), "ftol": 1e-15}
    return np.asarray(minimize(function, start, jac=True, method="L-BFGS-B", options=options).x)


def _newton(problem: Perturbed, w: Array, factor: Factor | None, tolerance: float) -> Array:
    """Newton steps with a factor that is kept while it takes ``KEEP`` off the gradient; a step that
    does not help is not taken, and ends it where the factor was fresh."""
    gradient = problem.gradient(w)
    norm = float(np.linalg.norm(gradient))
    for _ in range(NEWTON_STEPS):
        if norm <= tolerance:
            break
        fresh = factor is None
        if factor is None:
            try:
                factor = cho_factor(problem.hessian(w), lower=True)
            except np.linalg.LinAlgError:
                break
        step = w - cho_solve(factor, gradient)
        there = problem.gradient(step)
        shorter = float(np.linalg.norm(there))
        if not shorter < norm and fresh:
            break
        if not shorter <= KEEP * norm:
            factor = None
        if shorter < norm:
            w, gradient, norm = step, there, shorter
    return w


def _newton_by_products(problem: Perturbed, w: Array, tolerance: float) -> Array:
    """Newton steps by conjugate gradients: a product with the Hessian is two with the rows; no
    matrix is formed.
    """
    gradient = problem.gradient(w)
    norm = float(np.linalg.norm(gradient))
    for _ in range(NEWTON_STEPS):
        if norm <= tolerance or not np.isfinite(norm):
            break
        times, diagonal = problem.curvature_products(w)
        enough = max(0.5 * tolerance, min(0.1, np.sqrt(norm / problem.steepest)) * norm)
        step = w - _conjugate(times, diagonal, gradient, enough)
        there = problem.gradient(step)
        shorter = float(np.linalg.norm(there))
        if not shorter < norm:
            break
        w, gradient, norm = step, there, shorter
    return w


def _conjugate(
    times: Callable[[Array], Array], diagonal: Array, right: Array, enough: float
) -> Array:
    """u with |H u - ``right``| <= ``enough``, or after ``PRODUCTS`` products, preconditioned by the
    diagonal of H.
    """
    u, left = np.zeros_like(right), right.copy()
    scaled = left / diagonal
    direction, size = scaled, float(left @ scaled)
    for _ in range(PRODUCTS):
        turned = times(direction)
        length = size / float(direction @ turned)
        u, left = u + length * direction, left - length * turned
        if float(np.linalg.norm(left)) <= enough:
            break
        scaled = left / diagonal
        size, before = float(left @ scaled), size
        direction = scaled + (size / before) * direction
    return u


def _certain(problem: Perturbed, w: Array, tolerance: float) -> Array:
    """Gradient steps up to their proved number; returns as soon as the gradient is short enough."""
    gradient = problem.gradient(w)
    norm = float(np.linalg.norm(gradient))
    if norm <= tolerance:
        return w
    if not np.isfinite(norm):
        w = np.zeros_like(w)
        gradient = problem.gradient(w)
        norm = float(np.linalg.norm(gradient))
    eta = 2.0 / (problem.curvature + problem.steepest)
    taken = eta * problem.curvature  # 1 less the share that a step leaves
    steps = ceil(log(norm / tolerance) / -log1p(-taken)) + 1 if taken < 1.0 else 1
    for _ in range(steps):
        w = w - eta * gradient
        gradient = problem.gradient(w)
        if float(np.linalg.norm(gradient)) <= tolerance:
            break
    return w
