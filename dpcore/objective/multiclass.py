"""Several classes: the joint softmax loss, its sums in closed form, and one class seen against the
rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from typing import ClassVar, Self

import numpy as np

from dpcore.errors import InputError
from dpcore.losses import Array, Loss
from dpcore.objective import fused
from dpcore.objective.base import numbers, readable
from dpcore.objective.linear import LinearObjective
from dpcore.objective.rounding import quotients, row_norms
from dpcore.problem import Problem

# Scores that are formed at a time when losses of several candidates are asked for.
MOST_SCORES = 4_000_000


@dataclass(frozen=True, slots=True)
class Softmax:
    """Cross-entropy log sum_k exp(z_k) - z_y of the scores z (n, K) and class numbers y (n,) in
    0..K-1.

    The gradient in z is p - e_y, and ||p - e_y||^2 = (1 - p_y)^2 + sum_{k != y} p_k^2 <= 2 (1 -
    p_y)^2 <= 2, for the p_k of the others are >= 0 and sum to 1 - p_y. The Hessian in z is H = diag
    p - p p', and v'H v is the variance of v_k under p, at most (max v - min v)^2 / 4 <= ||v||^2 / 2
    (Boehning 1992). In the K weight vectors together, one vector of length K d, they are (p - e_y)
    x' and H (x) x x': ||x||_2 <= r gives a gradient of norm <= r sqrt 2 and a Hessian between 0 and
    r^2 / 2. Both bounds are met, at p_y = 0 with one wrong class and at p = (1/2, 1/2, 0, ...).

    All that proofs by output perturbation use follows: with l2 the Hessian of a mean lies in [l2,
    beta], beta = r^2 / 2 + l2, so a step of size eta takes w - w' to (I - eta * mean Hessian
    between w and w') (w - w'): distances grow by max(|1 - eta l2|, |1 - eta beta|) at most, which
    is <= 1 for eta <= 2 / beta. A replaced record moves a sum of gradients by 2 r sqrt 2 at most.
    Objective perturbation needs a Hessian of rank one for a record, which here has rank K - 1: it
    takes one class against the rest.
    """

    name: ClassVar[str] = "softmax"
    argument: ClassVar[str] = "scores"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = sqrt(2.0)
    smoothness: ClassVar[float] = 0.5

    def value(self, z: Array, y: Array | None = None) -> Array:
        """Loss of each record, shape (n,); (n, k) for the scores (n, k, K) of k candidates. Never
        below 0.
        """
        assert y is not None, "the class of a record is part of the argument"
        columns = np.array(np.moveaxis(z, -1, 0), order="C")  # as in ``slope``
        own, top = columns[y, np.arange(len(y))], columns.max(axis=0)
        columns -= top
        np.exp(columns, out=columns)
        return np.asarray(np.maximum(np.log(columns.sum(axis=0)) + (top - own), 0.0))

    def slope(self, z: Array, y: Array | None = None) -> Array:
        """Gradient in the scores, shape (n, K)."""
        # Class by class in memory: sums over a short last axis take numpy many times longer.
        gradient = np.ascontiguousarray(z.T)
        gradient -= gradient.max(axis=0)
        np.exp(gradient, out=gradient)
        gradient /= gradient.sum(axis=0)
        gradient[y, np.arange(len(z))] -= 1.0
        return gradient.T


class MulticlassObjective(LinearObjective):
    """Sums over the rows of ``X`` (n, d) for K weight vectors, laid out as one vector (K * d,),
    class after class.

    ``y`` holds class numbers. With ``Softmax`` the gradient of record i is (p_i - e_y) x_i', of
    norm
    ||p_i - e_y|| ||x_i||, so it is clipped without being formed. With a margin loss only
    ``against_rest`` has sums.
    """

    @cached_property
    def labels(self) -> Array:
        """Class numbers, shape (n,), kept where the rows are: what softmax reads."""
        return self._beside(self.y, np.int64)

    def _check_labels(self, problem: Problem) -> None:
        """Class numbers 0 .. outputs - 1."""
        numbered = self.y.astype(np.int64)
        if np.any(numbered != self.y) or np.any((numbered < 0) | (numbered >= problem.outputs)):
            raise InputError(
                f"Expected class numbers 0 to {problem.outputs - 1} as labels, got others; encode "
                "the classes."
            )

    def take(self, rows: Array | slice) -> Self:
        return self._taken(self.rows.take(rows), rows)

    def against_rest(self, label: int, loss: Loss) -> LinearObjective:
        """The same rows with label +1 for class ``label`` and -1 for all others; formed once, and
        kept until the next class has its turn.
        """

        def form() -> LinearObjective:
            y = self._beside(np.where(self.y == label, 1.0, -1.0), np.float64)
            return self.with_labels(y, loss)

        return self._kept("against", (label, loss), form)

    def _beside(self, y: Array, kind: type[np.generic]) -> Array:
        """A number for each row, kept where the rows are."""
        found = fused.beside(self.rows, kind)
        found[...] = y
        return found

    def right_count(self, w: Array) -> float:
        """How many records have their own class as the one of largest score, for ``w`` (K * d,)."""
        columns = readable(w.reshape(-1, self.dimension).T)
        parts = (np.argmax(z, axis=1) == self.y[rows] for rows, z in self.rows.scores(columns))
        return float(sum(part.sum() for part in parts))

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over records of the gradient at ``w`` (K * d,), each scaled down to norm
        ``clip_norm``; same shape.
        """

        def coefficient(rows: slice, z: Array) -> Array:
            slope = numbers(self.loss.slope(z, self.labels[rows]))
            if clip_norm == inf:
                return slope
            norms = row_norms(slope) * self.rows.lengths_at(rows) * (1.0 + self.rows.margin)
            return np.asarray(slope * np.minimum(1.0, quotients(clip_norm, norms))[:, None])

        columns = readable(w.reshape(-1, self.dimension).T)
        if isinstance(self.loss, Softmax):
            found = fused.softmax_gradient(self.rows, self.labels, columns, clip_norm)
            if found is not None:
                return np.asarray(found.T.ravel())
        return self.rows.weighted_sum(columns, coefficient).T.ravel()

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over records of the loss, each cut to [0, ``clip``], for every row of ``W`` (k, K *
        d); shape (k,).
        """
        W = np.atleast_2d(W)
        classes, totals = W.shape[1] // self.dimension, np.zeros(len(W))
        for rows, times in self.rows.stretches():
            y = self.labels[rows]
            together = max(MOST_SCORES // max(len(y) * classes, 1), 1)
            for first in range(0, len(W), together):
                some = slice(first, first + together)
                z = times(readable(W[some].reshape(-1, self.dimension).T))
                totals[some] += np.fmin(
                    self.loss.value(z.reshape(len(y), -1, classes), y), clip
                ).sum(axis=0)
        return totals
