"""Sparse rows: CSR as a whole, and the rows of one small batch without a matrix object around them.

Slicing a CSR matrix and multiplying it twice takes three compiled loops and, at a batch of 256
one-hot rows, four times their length in checks and dispatch. For a batch the same compiled loops of
scipy are called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import _sparsetools as loops
from scipy.sparse import csr_array, issparse

from dpcore.losses import Array
from dpcore.objective import compiled
from dpcore.objective.rounding import UNIT, row_norms
from dpcore.objective.rows import (
    NORM_MARGIN,
    Coefficient,
    Dense,
    Matrix,
    Rows,
    Scaled,
    broken,
    groups,
)

# Rows that are summed by themselves: in one running sum over millions of rows, the roundings that
# one record sets off in those after it would add up to a share of the clip.
STRETCH = 32_768
# Up to so many vectors are multiplied one after the other: the loop for several takes as long as
# three of them.
FEW = 2
# What a square may lose to underflow.
TINY = 2.0**-1000
# Share of the entries from which a view leaves out those of columns of scale 0: less of them is not
# worth a copy of the others.
LEFT_OUT = 1.0 / 32.0


def rows_of(X: Matrix) -> Rows:
    """An array or a sparse matrix (n, d) as rows; numbers other than float32 and float64 become
    float64.
    """
    X = canonical(X) if issparse(X) else np.ascontiguousarray(X)
    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    return Sparse(X) if issparse(X) else Dense(X)


def canonical(X: Matrix) -> csr_array:
    """``X`` as CSR with one entry a place: duplicates, which add up in products, would escape norms
    and bounds.
    """
    X = csr_array(X)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


class Sparse(Rows):
    """A CSR matrix with one entry a place, read in stretches of ``STRETCH`` rows."""

    def __init__(self, X: csr_array, lengths: Array | None = None) -> None:
        super().__init__(lengths)
        self._X = X
        self.n, self.width = X.shape
        self.margin = NORM_MARGIN if X.dtype == np.float32 else 0.0

    @property
    def X(self) -> csr_array:
        return self._X

    @cached_property
    def unsigned(self) -> list[Array]:
        """The parts of the matrix as compiled passes take them, which are compiled once for all
        widths: indices in 32 bits, never below zero by their type, as no row has 2^32 columns.
        """
        X = self._X
        narrow = X.indices.dtype == np.int32
        indices = X.indices.view(np.uint32) if narrow else X.indices.astype(np.uint32)
        return [X.data, indices, X.indptr.astype(np.int64, copy=False)]

    def _measured(self) -> Array:
        return row_norms(self._X)

    def stretches(self) -> Iterator[tuple[slice, Callable[[Array], Array]]]:
        for start in range(0, self.n, STRETCH):
            rows = slice(start, min(start + STRETCH, self.n))
            yield rows, partial(self._times, rows)

    def _times(self, rows: slice, W: Array) -> Array:
        if W.ndim > 1:
            if W.shape[1] > FEW:
                return np.asarray(self._part(rows) @ W)
            return (
                np.array([self._times(rows, w) for w in W.T]).reshape(-1, rows.stop - rows.start).T
            )
        w = np.ascontiguousarray(W, dtype=np.float64)
        scores = np.zeros(rows.stop - rows.start)
        loops.csr_matvec(len(scores), self.width, *self._cut(rows), w, scores)
        return scores

    def _cut(self, rows: slice) -> tuple[Array, Array, Array]:
        """Ends, places and values of these rows, not copied: a matrix of them would look at each
        place.
        """
        ends = self._X.indptr[rows.start : rows.stop + 1]
        kept = slice(ends[0], ends[-1])
        return ends - ends[0], self._X.indices[kept], self._X.data[kept]

    def _part(self, rows: slice) -> csr_array:
        """These rows, without a copy of their entries."""
        X = self._X
        if rows == slice(0, self.n):
            return X
        ends = X.indptr[rows.start : rows.stop + 1]
        kept = slice(ends[0], ends[-1])
        shape = (len(ends) - 1, self.width)
        return csr_array((X.data[kept], X.indices[kept], ends - ends[0]), shape=shape)

    def weighted_sum(self, W: Array, coefficient: Coefficient) -> Array:
        total = np.zeros(W.T.shape)
        for rows, z in self.scores(W):
            c = coefficient(rows, z)
            if W.ndim > 1:
                total += (self._part(rows).T @ c).T
                continue
            part = np.zeros(self.width)
            loops.csc_matvec(self.width, len(c), *self._cut(rows), np.ascontiguousarray(c), part)
            total += part
        return total.T

    def group_sums(self, coefficients: Array, ends: Array) -> Array:
        return np.asarray((groups(coefficients, ends) @ self._X).toarray())

    def column_sum(self) -> Array:
        return np.asarray(self._X.sum(axis=0, dtype=np.float64)).ravel()

    def square_sum(self) -> Array:
        return np.bincount(self._X.indices, np.square(self._X.data, dtype=np.float64), self.width)

    def first_broken(self) -> int | None:
        bad = broken(self._X.data)
        return None if bad is None else int(np.searchsorted(self._X.indptr, bad, "right")) - 1

    def scaled_lengths(self, shift: Array, scale: Array) -> Array:
        # ||s (x - m)||^2 over the stored entries, plus the part that every absent entry leaves
        # behind.
        middle = float(row_norms((shift * scale)[None])[0])
        squared = self._X.astype(np.float64)
        column = squared.indices
        squared.data = ((squared.data - shift[column]) ** 2 - shift[column] ** 2) * scale[
            column
        ] ** 2
        stored = squared @ np.ones(self.width)
        # The two parts may cancel: what rounding can hide, relative to what was added, keeps this
        # an upper bound.
        hidden = (
            2.0 * (self.width + 8) * UNIT * (2.0 * middle**2 + np.abs(stored)) + self.width * TINY
        )
        return np.asarray(np.sqrt(np.maximum(stored + middle**2, 0.0) + hidden))

    def with_matrix(self, X: csr_array) -> Sparse:
        return Sparse(canonical(X))

    def scaled(self, shift: Array, scale: Array) -> Scaled:
        """Without the entries of columns of scale 0, where they are many: each of them adds 0 to
        scores, sums and norms, so no number changes.
        """
        X = self._X
        kept = (scale != 0.0)[X.indices]
        if np.count_nonzero(kept) > (1.0 - LEFT_OUT) * X.nnz:
            return Scaled(self, shift, scale)
        ends = np.append(0, np.cumsum(kept))[X.indptr].astype(X.indptr.dtype)
        left = csr_array((X.data[kept], X.indices[kept], ends), shape=X.shape)
        return Scaled(Sparse(left), shift, scale)

    def columns(self, keep: Array) -> Sparse:
        return self.with_matrix(self._X[:, keep])

    def take(self, rows: Array | slice) -> Sparse:
        return Sparse(self._X[rows], self.lengths[rows])

    def gather(self, rows: Array | slice) -> Rows:
        if isinstance(rows, slice):
            return self.take(rows)
        return SparsePick(self, rows) if compiled.in_use() else SparseBatch.of(self, rows)


def times(X: Any, w: Array) -> Array:
    """X @ w of a CSR matrix and one vector of float64, without what scipy does around it."""
    scores = np.zeros(X.shape[0])
    loops.csr_matvec(X.shape[0], X.shape[1], X.indptr, X.indices, X.data, w, scores)
    return scores


def weighted(X: Any, width: int, c: Array, start: int) -> Array:
    """sum_i c_i x_i over the rows ``start`` .. ``start + len(c) - 1`` of a CSR matrix, (width,),
    in stretches of ``STRETCH`` and without a matrix of them.
    """
    total = np.zeros(width)
    for begin in range(0, len(c), STRETCH):
        part, some = np.zeros(width), np.ascontiguousarray(c[begin : begin + STRETCH])
        ends = X.indptr[start + begin : start + begin + len(some) + 1]
        loops.csc_matvec(width, len(some), ends, X.indices, X.data, some, part)
        total += part
    return total


class SparseBatch(Rows):
    """Rows of a CSR matrix in the order drawn: ``data`` (float64), ``indices``, ``indptr`` as in
    CSR, and the width.

    Their norms come with the margin of the matrix that they were taken from. What is asked beside
    the two products with one vector is asked of a matrix, which is made then.
    """

    def __init__(
        self, data: Array, indices: Array, indptr: Array, width: int, norms: Array
    ) -> None:
        super().__init__(norms=norms)
        self.data, self.indices, self.indptr = data, indices, indptr
        self.n, self.width = len(indptr) - 1, width

    @classmethod
    def of(cls, source: Sparse | SparseBatch, rows: Array) -> SparseBatch:
        """Copy ``rows`` of ``source``; numbers must be within range, as a sampler's are."""
        X, norms = source.X, source.norms[rows]
        rows = np.asarray(rows, dtype=X.indptr.dtype)
        indptr = np.zeros(len(rows) + 1, dtype=X.indptr.dtype)
        np.cumsum(X.indptr[rows + 1] - X.indptr[rows], out=indptr[1:])
        indices = np.empty(indptr[-1], dtype=X.indices.dtype)
        data = np.empty(indptr[-1], dtype=X.dtype)
        loops.csr_row_index(len(rows), rows, X.indptr, X.indices, X.data, indices, data)
        return cls(data.astype(np.float64, copy=False), indices, indptr, X.shape[1], norms)

    @cached_property
    def matrix(self) -> Sparse:
        """The same rows as a matrix, for everything else."""
        return Sparse(csr_array((self.data, self.indices, self.indptr), shape=(self.n, self.width)))

    @property
    def X(self) -> csr_array:
        return self.matrix.X

    def _measured(self) -> Array:
        return self.matrix.lengths

    def stretches(self) -> Iterator[tuple[slice, Callable[[Array], Array]]]:
        yield slice(0, self.n), self._times

    def _times(self, W: Array) -> Array:
        if W.ndim > 1:
            return np.asarray(self.X @ W)
        scores = np.zeros(self.n)
        loops.csr_matvec(self.n, self.width, self.indptr, self.indices, self.data, W, scores)
        return scores

    def weighted_sum(self, W: Array, coefficient: Coefficient) -> Array:
        if W.ndim > 1:
            return self.matrix.weighted_sum(W, coefficient)
        c = coefficient(slice(0, self.n), self._times(W))
        return weighted(self, self.width, c, 0)

    def group_sums(self, coefficients: Array, ends: Array) -> Array:
        return self.matrix.group_sums(coefficients, ends)

    def column_sum(self) -> Array:
        return self.matrix.column_sum()

    def square_sum(self) -> Array:
        return self.matrix.square_sum()

    def first_broken(self) -> int | None:
        return self.matrix.first_broken()

    def scaled_lengths(self, shift: Array, scale: Array) -> Array:
        return self.matrix.scaled_lengths(shift, scale)

    def with_matrix(self, X: csr_array) -> Sparse:
        return self.matrix.with_matrix(X)

    def columns(self, keep: Array) -> Sparse:
        return self.matrix.columns(keep)

    def take(self, rows: Array | slice) -> Sparse:
        return Sparse(self.X[rows], self.norms[rows])

    def gather(self, rows: Array | slice) -> Rows:
        return self.take(rows) if isinstance(rows, slice) else SparseBatch.of(self, rows)


class SparsePick(SparseBatch):
    """Rows of a CSR matrix by their numbers: a compiled pass reads them where they stand, all else
    copies them first.
    """

    def __init__(self, source: Sparse, picked: Array) -> None:
        Rows.__init__(self, norms=source.norms[picked])
        self.source, self.picked = source, np.asarray(picked, dtype=np.int64)
        self.n, self.width = len(self.picked), source.width

    def __getattr__(self, name: str) -> Array:
        """The copied arrays, made when first asked for."""
        if name not in ("data", "indices", "indptr"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        copied = SparseBatch.of(self.source, self.picked)
        self.data, self.indices, self.indptr = copied.data, copied.indices, copied.indptr
        found: Array = vars(self)[name]
        return found
