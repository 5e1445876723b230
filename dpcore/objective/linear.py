"""Sums over the records of a linear model, in closed form: no per-example gradient is ever stored."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array, issparse

from dpcore.errors import InputError
from dpcore.losses import Array, Loss, Weighted, class_shares
from dpcore.objective.base import readable
from dpcore.objective.rows import bound_blocks, bound_norms
from dpcore.objective.sparse import GatheredRows
from dpcore.problem import Block
from dpcore.rounding import UNIT, quotients, row_norms

# Rows of dense data that are read at a time: a block of float32 Adult rows stays in the second-level cache.
BLOCK_ROWS = 4096
# float32 products may make a row look shorter than it is; norms used for clipping are enlarged by this share.
NORM_MARGIN = 1e-5
# How much longer than its bound a row may be: as much as rounding in the precision of the rows leaves of a quotient.
LONGER = {"float32": 1e-6, "float64": 1e-9}
# What a square may lose to underflow.
TINY = 2.0**-1000


def numbers(coefficients: Array) -> Array:
    """``coefficients`` with 0 for what is no number: the score of such a record overflowed, and no clip bounds NaN."""
    return coefficients if np.isfinite(coefficients.sum()) else np.nan_to_num(coefficients, nan=0.0)


class LinearObjective:
    """Sums of loss and gradient of a linear model over the rows of ``X``.

    ``X`` (n, d) dense or CSR, float32 or float64; ``y`` (n,) in {-1, +1} for a margin loss, a target otherwise. The
    gradient of record i is c_i x_i with c_i = y_i loss'(y_i x_i @ w) (margin) or loss'(x_i @ w - y_i) (residual), so
    its norm is |c_i| ||x_i|| and clipping it to C means clipping c_i to +-C / ||x_i||. Sums over blocks are float64.

    With ``shift`` and ``scale`` (d,) the rows are scale * (x - shift), formed inside the products only.
    """

    _columns: tuple[Array, Self] | None = None
    _gathered: GatheredRows | None = None

    def __init__(self, X: Any, y: Array, loss: Loss, *, shift: Array | None = None, scale: Array | None = None) -> None:
        self.X: Any = _canonical(X) if issparse(X) else np.ascontiguousarray(X)
        if self.X.dtype not in (np.float32, np.float64):
            self.X = self.X.astype(np.float64)
        self.y = np.ascontiguousarray(y, dtype=np.float64)
        self.loss = loss
        self.shift, self.scale = shift, scale
        self._norms: Array | None = None
        self._within: tuple[tuple[Block, ...], Self | None] | None = None
        self._view: Self | None = None
        if self.y.shape != (self.X.shape[0],):
            raise InputError(f"Expected one label per row, got {self.X.shape[0]} rows and labels of {self.y.shape}.")

    def check_finite(self) -> None:
        """Raise ``InputError`` naming the first record with a NaN or infinite feature or label (0-based)."""
        values = self.X.data if issparse(self.X) else self.X
        # A sum is finite only if all its terms are; the slow search runs for bad data alone (or an overflow).
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(np.sum(values, dtype=np.float64)) + float(np.sum(self.y))
        if np.isfinite(total):
            return
        if not np.all(np.isfinite(values)):
            bad = np.flatnonzero(~np.isfinite(values).reshape(-1))[0]
            row = np.searchsorted(self.X.indptr, bad, "right") - 1 if issparse(self.X) else bad // self.X.shape[1]
            raise InputError(f"Expected finite features, got NaN or inf in record {row}; fill it by the schema.")
        if not np.all(np.isfinite(self.y)):
            row = int(np.flatnonzero(~np.isfinite(self.y))[0])
            raise InputError(f"Expected finite labels, got NaN or inf in record {row}; fill or drop it by the schema.")

    def check_records(self, dimension: int, norm_bound: float) -> None:
        """Raise ``InputError`` unless the rows are finite, have ``dimension`` columns and norms <= ``norm_bound``.

        Rows that a caller brought to the bound in arithmetic of few digits may be longer by a share of ``LONGER``,
        which no price covers: each of them, and nothing else, is scaled down to the bound here, in a copy.
        """
        if self.dimension != dimension:
            raise InputError(f"Expected {dimension} columns as the problem declares, got {self.dimension}.")
        self.check_finite()
        longest = float(self.row_norms.max(initial=0.0))
        if longest > norm_bound * (1.0 + LONGER[self.X.dtype.name]):
            raise InputError(
                f"Expected rows of norm <= norm_bound={norm_bound:g}, got a longer one; use normalise='cap', or "
                "declare a larger norm_bound."
            )
        rounding = 2 * (dimension + 8) * UNIT  # what ``row_norms`` may overstate
        if longest > norm_bound * (1.0 + rounding) and self.shift is None and self.scale is None:
            self.X, _ = bound_norms(self.X, norm_bound, rounding)
            self._norms = self._within = self._view = self._columns = None

    def check_margins(self) -> None:
        """Raise ``InputError`` unless every label is -1 or +1, as the constants of a margin loss assume."""
        if not np.all(np.abs(self.y) == 1.0):
            raise InputError("Expected labels -1 and +1 for a loss of margins, got others; encode the two classes.")

    def __getattr__(self, name: str) -> Any:
        # A sparse batch becomes a matrix only where more than the products below is asked of it.
        if name == "X" and self._gathered is not None:
            self.X = self._gathered.matrix()
            return self.X
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def dimension(self) -> int:
        return self.X.shape[1] if self._gathered is None else self._gathered.width

    @property
    def row_norms(self) -> Array:
        """||x_i||_2 of the (shifted, scaled) rows, never too small, shape (n,); computed once."""
        if self._norms is None:
            self._norms = self._formed_norms()
        return self._norms

    def _formed_norms(self) -> Array:
        if self.scale is None and self.shift is None:
            return np.concatenate([row_norms(self.X[rows]) for rows in self._blocks()] or [np.empty(0)])
        scale = np.ones(self.dimension) if self.scale is None else self.scale
        shift = np.zeros(self.dimension) if self.shift is None else self.shift
        middle = float(row_norms((shift * scale)[None])[0])
        if issparse(self.X):
            # ||s (x - m)||^2 over the stored entries, plus the part that every absent entry leaves behind.
            squared = self.X.astype(np.float64)
            column = squared.indices
            squared.data = ((squared.data - shift[column]) ** 2 - shift[column] ** 2) * scale[column] ** 2
            stored = squared @ np.ones(self.dimension)
            # The two parts may cancel: what rounding can hide, relative to what was added, keeps this an upper bound.
            hidden = 2.0 * (self.dimension + 8) * UNIT * (2.0 * middle**2 + np.abs(stored)) + self.dimension * TINY
            return np.sqrt(np.maximum(stored + middle**2, 0.0) + hidden)
        norms = [row_norms((self.X[rows] - shift) * scale) for rows in self._blocks()]
        found = np.concatenate(norms or [np.empty(0)])
        # Sums see scale * x and scale * shift apart, which round each by itself.
        return found * (1.0 + 8 * UNIT) + 8 * UNIT * 2.0 * middle

    def _blocks(self) -> Iterator[slice]:
        step = self.n if issparse(self.X) else BLOCK_ROWS
        for start in range(0, self.n, max(step, 1)):
            yield slice(start, min(start + step, self.n))

    def _scores(self, rows: slice, W: Array) -> Array:
        """(shifted, scaled) rows times ``W`` (d,) or (d, k), as far as it is ``readable``."""
        W = readable(W)
        if self._gathered is not None and W.ndim == 1:
            return self._gathered.times(W)
        W = W if self.scale is None else (W.T * self.scale).T
        X = self.X if rows == slice(0, self.n) else self.X[rows]
        scores = X @ W if issparse(X) else X.astype(np.float64, copy=False) @ W
        return scores if self.shift is None else scores - self.shift @ W

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over records of the gradient at ``w`` (d,), each scaled down to norm ``clip_norm``; shape (d,)."""
        if self._gathered is not None:
            return self._gathered.transposed_times(self._coefficients(slice(None), w, clip_norm))
        total = np.zeros(self.dimension)
        mass = 0.0
        for rows in self._blocks():
            coefficient = self._coefficients(rows, w, clip_norm)
            X = self.X if rows == slice(0, self.n) else self.X[rows]
            # Single precision is for storage: sums of it would move with the place of a row, by more than C for many.
            total += X.T @ coefficient if issparse(X) else coefficient @ X.astype(np.float64, copy=False)
            if self.shift is not None:
                mass += float(coefficient.sum())
        if self.shift is not None:
            total -= mass * self.shift
        return total if self.scale is None else total * self.scale

    def _coefficients(self, rows: slice, w: Array, clip_norm: float) -> Array:
        z = self._scores(rows, w).astype(np.float64, copy=False)
        y = self.y[rows]
        if self.loss.argument == "margin":
            coefficient = y * self.loss.slope(y * z)
        else:
            coefficient = self.loss.slope(z - y)
        shares = class_shares(self.loss, y)
        if shares is not None:
            coefficient *= shares
        coefficient = numbers(coefficient)
        if clip_norm == inf:
            return coefficient
        bound = quotients(clip_norm, self.row_norms[rows] * (1.0 + self._margin))
        return np.clip(coefficient, -bound, bound)

    @property
    def _margin(self) -> float:
        # Gathered rows are float64, and their norms come with the margin of the matrix that they were taken from.
        return NORM_MARGIN if self._gathered is None and self.X.dtype == np.float32 else 0.0

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over records of the loss, each cut to [0, ``clip``], for every row of ``W`` (k, d); shape (k,)."""
        W = np.atleast_2d(W)
        total = np.zeros(len(W))
        for rows in self._blocks():
            z = self._scores(rows, W.T).astype(np.float64, copy=False)
            y = self.y[rows][:, None]
            z = y * z if self.loss.argument == "margin" else z - y
            value, shares = self.loss.value(z), class_shares(self.loss, y)
            total += np.fmin(value if shares is None else value * shares, clip).sum(axis=0)
        return total

    def take(self, rows: Array | slice) -> Self:
        """The records ``rows`` as an objective of their own."""
        batch = object.__new__(type(self))
        if self.gathers and not isinstance(rows, slice):
            batch._gathered = GatheredRows.of(self.X, rows)
        else:
            batch.X = self.X[rows]
        batch.y = self.y[rows]
        batch.loss, batch.shift, batch.scale = self.loss, self.shift, self.scale
        batch._norms = self.row_norms[rows]
        if batch._gathered is not None and self._margin:
            batch._norms = batch._norms * (1.0 + self._margin)
        batch._within = batch._view = None
        return batch

    def as_rows(self) -> tuple[LinearObjective, float]:
        """Records and a weight: this objective's unclipped sums are the weight times those of the records."""
        return self, 1.0

    @property
    def gathers(self) -> bool:
        """Whether a batch keeps its rows as ``GatheredRows``: sparse rows as they are, products of this class."""
        return type(self) is LinearObjective and issparse(self.X) and self.shift is None and self.scale is None

    def with_labels(self, y: Array, loss: Loss) -> LinearObjective:
        """The same rows, their norms included, with other labels and another loss."""
        other = object.__new__(LinearObjective)
        other.X, other.y, other.loss = self.X, y, loss
        other.shift, other.scale, other._norms = self.shift, self.scale, self.row_norms
        other._within = other._view = None
        return other

    def unweighted(self) -> LinearObjective:
        """The same records without class weights."""
        return self.with_labels(self.y, self.loss.base) if isinstance(self.loss, Weighted) else self

    def column_sum(self, center: Array | float = 0.0) -> Array:
        """Sum over records of x_i - ``center``, shape (d,): the count inside is the real one, and stays here."""
        total = np.asarray(self.X.sum(axis=0, dtype=np.float64)).ravel()
        return total - self.n * np.asarray(center, dtype=np.float64)

    def square_sum(self) -> Array:
        """Sum over records of x_i^2 by column, shape (d,)."""
        if issparse(self.X):
            return np.bincount(self.X.indices, np.square(self.X.data, dtype=np.float64), self.dimension)
        return np.einsum("ij,ij->j", self.X, self.X, dtype=np.float64)

    def score_counts(self, w: Array, edges: Array) -> Array:
        """How many records of each label have a score in each cell of ``edges`` (k + 1,); (2, k), label +1 first.

        Scores beyond the outer edges count in the outer cells, so every record stands in exactly one cell.
        """
        scores = np.concatenate([np.ravel(self._scores(rows, w)) for rows in self._blocks()] or [np.empty(0)])
        cell = np.clip(np.searchsorted(edges, scores, "right") - 1, 0, len(edges) - 2)
        positive = self.y > 0.0
        counts = [np.bincount(cell[side], minlength=len(edges) - 1) for side in (positive, ~positive)]
        return np.array(counts, dtype=np.float64)

    def within(self, blocks: tuple[Block, ...]) -> Self:
        """The same records with values clipped to [0, 1] and one-hot blocks scaled down to sum <= 1; formed once."""
        if self._within is None or self._within[0] != blocks:
            X, _, _ = bound_blocks(self.X, blocks)
            self._within = blocks, None if X is self.X else type(self)(X, self.y, self.loss)
        return self._within[1] or self

    def transform(self, shift: Array, scale: Array) -> Self:
        """The same records with features scale * (x - shift); X itself is shared, not copied.

        The last view is kept, so that its row norms are computed once for all steps of a descent.
        """
        if self._view is None or self._view.shift is not shift or self._view.scale is not scale:
            self._view = type(self)(self.X, self.y, self.loss, shift=shift, scale=scale)
        return self._view

    def columns(self, keep: Array) -> Self:
        """The same records with the columns ``keep`` alone; formed once for all steps on one selection."""
        if self._columns is None or self._columns[0] is not keep:
            shift = None if self.shift is None else self.shift[keep]
            scale = None if self.scale is None else self.scale[keep]
            self._columns = keep, type(self)(self.X[:, keep], self.y, self.loss, shift=shift, scale=scale)
        return self._columns[1]


def _canonical(X: csr_array) -> csr_array:
    """``X`` as CSR with one entry a place: duplicates, which add up in products, would escape norms and bounds."""
    X = csr_array(X)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X
