"""Sums over the records of a linear model, in closed form: no per-example gradient is ever stored.

Losses, clips and labels are known here; storage is known to ``dpcore.objective.rows`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Self, TypeVar

import numpy as np

from dpcore.errors import InputError
from dpcore.losses import Array, Loss, MarginLoss, without_weights
from dpcore.objective import fused
from dpcore.objective.base import Line, line_of, numbers, readable
from dpcore.objective.rounding import UNIT, quotients
from dpcore.objective.rows import Matrix, Rows
from dpcore.objective.sparse import rows_of
from dpcore.problem import Block, Problem

# How much longer than its bound a row may be: as much as rounding in the precision of the rows
# leaves of a quotient.
LONGER = {"float32": 1e-6, "float64": 1e-9}

# Records whose losses at all points of a line stay in the second-level cache.
TOGETHER = 1024

View = TypeVar("View")


class LinearObjective:
    """Sums of loss and gradient of a linear model over the rows of ``X``.

    ``X`` (n, d) dense or CSR, float32 or float64, or ``Rows``; ``y`` (n,) in {-1, +1} for a margin
    loss, a target otherwise. The gradient of record i is c_i x_i with c_i the slope of its loss at
    x_i @ w, so its norm is
    |c_i| ||x_i|| and clipping it to C means clipping c_i to +-C / ||x_i||. Sums over blocks are
    float64.

    With ``shift`` and ``scale`` (d,) the rows are scale * (x - shift), formed inside the products
    only. ``parts``: the same records in the other columns that a search may draw.
    """

    parts: Sequence[LinearObjective] = ()

    def __init__(
        self,
        X: Matrix | Rows,
        y: Array,
        loss: Loss,
        *,
        shift: Array | None = None,
        scale: Array | None = None,
    ) -> None:
        rows = X if isinstance(X, Rows) else rows_of(X)
        if shift is not None or scale is not None:
            shift = np.zeros(rows.width) if shift is None else shift
            rows = rows.scaled(shift, np.ones(rows.width) if scale is None else scale)
        self.rows: Rows = rows
        self.y = np.ascontiguousarray(y, dtype=np.float64)
        self.loss = loss
        self._views: dict[Any, tuple[tuple[Any, ...], Any]] = {}
        # what this was taken from, and the rows, until either is changed
        self._whole: tuple[Self, Array] | None = None
        if self.y.shape != (rows.n,):
            raise InputError(
                f"Expected one label per row, got {rows.n} rows and labels of {self.y.shape}."
            )

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def dimension(self) -> int:
        return self.rows.width

    @property
    def X(self) -> Matrix:
        """The rows as they are stored."""
        return self.rows.X

    @property
    def shift(self) -> Array | None:
        """What is taken off the stored rows before they are scaled."""
        return None if self.rows.scaling is None else self.rows.scaling[0]

    @property
    def scale(self) -> Array | None:
        """What the stored rows, shifted, are multiplied by."""
        return None if self.rows.scaling is None else self.rows.scaling[1]

    @property
    def row_norms(self) -> Array:
        """||x_i||_2 of the (shifted, scaled) rows, never too small, shape (n,); computed once."""
        return self.rows.lengths

    def check(self, problem: Problem) -> None:
        """Raise ``InputError`` unless number, labels, finite numbers, columns and norms are as
        ``problem`` declares.
        """
        problem.check_count(self.n)
        self.check_rows(problem)

    def check_rows(self, problem: Problem) -> None:
        """As ``check``, whatever the number of rows.

        Rows that a caller brought to the bound in arithmetic of few digits may be longer by a share
        of ``LONGER``, which no price covers: each of them, and nothing else, is scaled down to the
        bound here, in a copy.
        """
        self._check_labels(problem)
        if self.dimension != problem.dimension:
            raise InputError(
                f"Expected {problem.dimension} columns as the problem declares, got "
                f"{self.dimension}."
            )
        self._check_finite()
        longest = self.rows.longest()
        if longest > problem.norm_bound * (1.0 + LONGER[self.rows.dtype.name]):
            raise InputError(
                f"Expected rows of norm <= norm_bound={problem.norm_bound:g}, got a longer one; "
                "use normalise='cap', or declare a larger norm_bound."
            )
        rounding = 2 * (self.dimension + 8) * UNIT  # what ``row_norms`` may overstate
        if longest > problem.norm_bound * (1.0 + rounding):
            self.rows = self.rows.bounded(problem.norm_bound, rounding)
            self._views, self._whole = {}, None

    def _check_labels(self, problem: Problem) -> None:
        if (
            problem.outputs == 1
            and problem.loss.argument == "margin"
            and not np.all(np.abs(self.y) == 1.0)
        ):
            raise InputError(
                "Expected labels -1 and +1 for a loss of margins, got others; encode the two "
                "classes."
            )

    def _check_finite(self) -> None:
        # the norm of a row is finite only if all its entries are, and norms are kept
        row = None if np.isfinite(self.rows.longest()) else self.rows.first_broken()
        if row is not None:
            raise InputError(
                f"Expected finite features, got NaN or inf in record {row}; fill it by the schema."
            )
        if not np.all(np.isfinite(self.y)):
            row = int(np.flatnonzero(~np.isfinite(self.y))[0])
            raise InputError(
                f"Expected finite labels, got NaN or inf in record {row}; fill or drop it by the "
                "schema."
            )

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over records of the gradient at ``w`` (d,), each scaled down to norm ``clip_norm``;
        shape (d,).
        """
        found = fused.gradient(self.rows, self.y, self.loss, readable(w), clip_norm)
        if found is not None:
            return found

        def coefficient(rows: slice, z: Array) -> Array:
            slope = numbers(self.loss.slope(z, self.y[rows]))
            if clip_norm == inf:
                return slope
            bound = quotients(clip_norm, self.rows.norms_at(rows))
            return np.asarray(np.clip(slope, -bound, bound))

        return self.rows.weighted_sum(readable(w), coefficient)

    def slopes(self, w: Array) -> Array:
        """The c_i of the gradients c_i x_i at ``w`` (d,), shape (n,)."""
        found = [
            numbers(self.loss.slope(z, self.y[rows])) for rows, z in self.rows.scores(readable(w))
        ]
        return np.concatenate(found or [np.empty(0)])

    def values(self, W: Array) -> Array:
        """Losses of the records for every row of ``W`` (k, d), shape (n, k)."""
        found = [
            self.loss.value(z, self.y[rows][:, None]) for rows, z in self.rows.scores(readable(W.T))
        ]
        return np.concatenate(found or [np.empty((0, len(W)))])

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over records of the loss, each cut to [0, ``clip``], for every row of ``W`` (k, d);
        shape (k,).
        """
        W = readable(np.atleast_2d(W))
        line = line_of(W)
        ends, places = (W, None) if line is None else line
        found = fused.values(self.rows, self.y, self.loss, ends, clip, places=places)
        if found is not None:
            return found
        if line is not None:
            return self._along(line, clip)
        total = np.zeros(len(W))
        for rows, z in self.rows.scores(W.T):
            total += np.fmin(self.loss.value(z, self.y[rows][:, None]), clip).sum(axis=0)
        return total

    def _along(self, line: Line, clip: float) -> Array:
        """``value_sum`` of points on a line: two scores of a record, some records at a time."""
        total, places = np.zeros(len(line.places)), line.places[:, None]
        margin = isinstance(self.loss, MarginLoss)  # then the label turns two scores, not all
        for rows, z in self.rows.scores(line.ends.T):
            y = self.y[rows]
            first, other = z.T * y if margin else z.T
            for start in range(0, len(y), TOGETHER):
                some = slice(start, start + TOGETHER)
                t = np.multiply(places, other[some])
                t += first[some]
                losses = self.loss.value(t, None if margin else y[some])
                total += np.fmin(losses, clip).sum(axis=1)
        return total

    def take(self, rows: Array | slice) -> Self:
        """The records ``rows`` as an objective of their own."""
        return self._taken(self.rows.gather(rows), rows)

    def _taken(self, stored: Rows, rows: Array | slice) -> Self:
        found = type(self)(stored, self.y[rows], self.loss)
        if not isinstance(rows, slice):
            found._whole = self, rows
        return found

    def as_rows(self) -> tuple[LinearObjective, float]:
        """Records and a weight: this objective's unclipped sums are the weight times those of the
        records.
        """
        return self, 1.0

    def with_labels(self, y: Array, loss: Loss) -> LinearObjective:
        """The same rows, their norms included, with other labels and another loss."""
        return LinearObjective(self.rows, y, loss)

    def unweighted(self) -> LinearObjective:
        """The same records without class weights."""
        loss = without_weights(self.loss)
        return self if loss is self.loss else self.with_labels(self.y, loss)

    def column_sum(self, center: Array | float = 0.0) -> Array:
        """Sum over records of x_i - ``center``, shape (d,): the count inside is the real one, and
        stays here.
        """
        return self.rows.column_sum() - self.n * np.asarray(center, dtype=np.float64)

    def square_sum(self) -> Array:
        """Sum over records of x_i^2 by column, shape (d,)."""
        return self.rows.square_sum()

    def score_counts(self, w: Array, edges: Array) -> Array:
        """How many records of each label have a score in each cell of ``edges`` (k + 1,); (2, k),
        label +1 first.

        Scores beyond the outer edges count in the outer cells, so every record stands in exactly
        one cell.
        """
        scores = np.concatenate([z for _, z in self.rows.scores(readable(w))] or [np.empty(0)])
        cell = np.clip(np.searchsorted(edges, scores, "right") - 1, 0, len(edges) - 2)
        positive = self.y > 0.0
        counts = [
            np.bincount(cell[side], minlength=len(edges) - 1) for side in (positive, ~positive)
        ]
        return np.array(counts, dtype=np.float64)

    def within(self, blocks: tuple[Block, ...]) -> Self:
        """The same records with values clipped to [0, 1] and one-hot blocks scaled down to sum <=
        1; formed once. What becomes of a row depends on no other, so that of a batch is taken from
        that of all rows, which all steps share.
        """

        def form() -> tuple[Self, ...]:  # empty for itself, which must not hold itself
            if self._whole is not None:
                whole, picked = self._whole
                seen = whole.within(blocks)
                return () if seen is whole else (seen.take(picked),)
            rows = self.rows.within(blocks)
            return () if rows is self.rows else (self._on(rows),)

        return (*self._kept("within", (blocks,), form), self)[0]

    def transform(self, shift: Array, scale: Array) -> Self:
        """The same records with features scale * (x - shift); X itself is shared, not copied.

        The last view is kept, so that its row norms are computed once for all steps of a descent,
        those on batches too.
        """

        def form() -> Any:
            if self._whole is not None:
                whole, picked = self._whole
                return whole.transform(shift, scale).take(picked)
            return self._on(self.rows.scaled(shift, scale))

        found: Self = self._kept("transform", (shift, scale), form)
        return found

    def columns(self, keep: Array) -> Self:
        """The same records with the columns ``keep`` alone; formed once for all steps on one
        selection.
        """
        return self._kept("columns", (keep,), lambda: self._on(self.rows.columns(keep)))

    def _on(self, rows: Rows) -> Self:
        return type(self)(rows, self.y, self.loss)

    def _kept(self, kind: Any, key: tuple[Any, ...], form: Callable[[], View]) -> View:
        """The last view of its ``kind``, formed anew where it is asked for by other objects than
        the last time.
        """
        known = self._views.get(kind)
        if known is None or any(old is not new for old, new in zip(known[0], key, strict=True)):
            self._views.pop(kind, None)  # before there is room for another
            known = self._views[kind] = key, form()
        view: View = known[1]
        return view
