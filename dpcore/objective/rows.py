"""How rows are stored and read: no loss, no label and no clip is known here.

Rows are brought within declared bounds, whatever stands in them: nothing about the bounds is
trusted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array, issparse

from dpcore.losses import Array
from dpcore.objective.rounding import UNIT, bound_norms, row_norms, with_values
from dpcore.problem import Block

Matrix = Any  # a dense array or a CSR array, (n, d)
Coefficient = Callable[[slice, Array], Array]  # of the rows of a stretch, from their scores

# Rows of dense data that are read at a time: a block of float32 Adult rows stays in the
# second-level cache.
BLOCK_ROWS = 4096
# float32 products may make a row look shorter than it is; norms used for clipping are enlarged by
# this share.
NORM_MARGIN = 1e-5
# A block whose parts sum to 1 up to this much is left alone; prices that rely on the sum are
# enlarged to cover it.
SUM_TOLERANCE = 1e-6


class Rows(ABC):
    """Rows x_1 .. x_n of ``width`` numbers, stored as ``X``. A pass reads each stretch once; sums
    are float64.

    ``lengths`` (n,) are upper bounds of ||x_i||_2, tight to rounding; ``norms`` cover what products
    in the storage's precision may hide of them, a share of ``margin``.
    """

    n: int
    width: int
    margin: float = 0.0

    def __init__(self, lengths: Array | None = None, norms: Array | None = None) -> None:
        self._lengths, self._norms = lengths, norms

    @property
    def lengths(self) -> Array:
        """Upper bounds of the norms, computed once."""
        if self._lengths is None:
            self._lengths = self._measured()
        return self._lengths

    @property
    def norms(self) -> Array:
        """What a row is taken to be long where it is clipped, computed once."""
        if self._norms is None:
            self._norms = self.lengths * (1.0 + self.margin) if self.margin else self.lengths
        return self._norms

    def norms_at(self, rows: slice) -> Array:
        """``norms`` of some rows, shape (m,); storage that keeps none computes them here."""
        return self.norms[rows]

    def lengths_at(self, rows: slice) -> Array:
        """``lengths`` of some rows, shape (m,)."""
        return self.lengths[rows]

    def longest(self) -> float:
        """The largest of ``lengths``, 0 without rows."""
        return float(self.lengths.max(initial=0.0))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The precision that the rows are stored in."""
        found: np.dtype[Any] = self.X.dtype
        return found

    @property
    @abstractmethod
    def X(self) -> Matrix:
        """The rows as they are stored."""

    @abstractmethod
    def _measured(self) -> Array: ...

    @abstractmethod
    def stretches(self) -> Iterator[tuple[slice, Callable[[Array], Array]]]:
        """Each stretch of rows with W -> its x_i @ W: (rows,) for W (d,), (rows, k) for W (d,
        k).
        """

    def scores(self, W: Array) -> Iterator[tuple[slice, Array]]:
        """Each stretch with its x_i @ W."""
        for rows, times in self.stretches():
            yield rows, times(W)

    @abstractmethod
    def weighted_sum(self, W: Array, coefficient: Coefficient) -> Array:
        """sum_i x_i c_i', c = coefficient(stretch, scores of W), in one pass; the shape of
        ``W``.
        """

    @abstractmethod
    def group_sums(self, coefficients: Array, ends: Array) -> Array:
        """Sums of c_i x_i over the groups of rows ends[g] .. ends[g + 1] - 1, shape (groups,
        width).
        """

    @abstractmethod
    def column_sum(self) -> Array:
        """Sum of the rows, shape (width,)."""

    @abstractmethod
    def square_sum(self) -> Array:
        """Sum of their squares by column, shape (width,)."""

    @abstractmethod
    def first_broken(self) -> int | None:
        """The first row with a number that is not finite, None where there is none."""

    @abstractmethod
    def scaled_lengths(self, shift: Array, scale: Array) -> Array:
        """Upper bounds of the norms of scale * (x_i - shift), whose parts are summed apart; shape
        (n,).
        """

    @abstractmethod
    def with_matrix(self, X: Matrix) -> Rows:
        """Other numbers in the same kind of storage."""

    @abstractmethod
    def columns(self, keep: Array) -> Rows:
        """The columns ``keep`` alone."""

    @abstractmethod
    def take(self, rows: Array | slice) -> Rows:
        """Some of the rows."""

    def gather(self, rows: Array | slice) -> Rows:
        """Some of the rows for a pass or two, in the storage that is quickest for it."""
        return self.take(rows)

    def scaled(self, shift: Array, scale: Array) -> Rows:
        """Rows scale * (x_i - shift), formed inside the products only."""
        return Scaled(self, shift, scale)

    @property
    def scaling(self) -> tuple[Array, Array] | None:
        """Shift and scale of rows that are ``Scaled``, None of others."""
        return None

    def within(self, blocks: Sequence[Block]) -> Rows:
        """Values clipped to [0, 1] and one-hot blocks scaled down to sum <= 1; the same object
        where they are so.
        """
        X, _, _ = bound_blocks(self.X, blocks)
        return self if X is self.X else self.with_matrix(X)

    def bounded(self, norm_bound: float, over: float) -> Rows:
        """Rows longer than ``norm_bound`` by more than a share of ``over`` scaled down to it, in a
        copy.
        """
        return self.with_matrix(bound_norms(self.X, norm_bound, over)[0])


class Dense(Rows):
    """A float32 or float64 array, read in blocks of ``BLOCK_ROWS`` rows.

    Single precision is for storage: sums of it would move with the place of a row, by more than C
    for many rows.
    """

    def __init__(self, X: Array, lengths: Array | None = None) -> None:
        super().__init__(lengths)
        self._X = X
        self.n, self.width = X.shape
        self.margin = NORM_MARGIN if X.dtype == np.float32 else 0.0

    @property
    def X(self) -> Array:
        return self._X

    def _blocks(self) -> Iterator[tuple[slice, Array]]:
        for start in range(0, self.n, BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, self.n))
            yield rows, self._X[rows]

    def _measured(self) -> Array:
        return np.concatenate([row_norms(X) for _, X in self._blocks()] or [np.empty(0)])

    def stretches(self) -> Iterator[tuple[slice, Callable[[Array], Array]]]:
        for rows, X in self._blocks():
            yield rows, X.astype(np.float64, copy=False).__matmul__

    def weighted_sum(self, W: Array, coefficient: Coefficient) -> Array:
        total = np.zeros(W.T.shape)
        for rows, X in self._blocks():
            X = X.astype(np.float64, copy=False)
            total += coefficient(rows, X @ W).T @ X
        return total.T

    def group_sums(self, coefficients: Array, ends: Array) -> Array:
        return np.asarray(groups(coefficients, ends) @ self._X, dtype=np.float64)

    def column_sum(self) -> Array:
        return np.asarray(self._X.sum(axis=0, dtype=np.float64))

    def square_sum(self) -> Array:
        return np.asarray(np.einsum("ij,ij->j", self._X, self._X, dtype=np.float64))

    def first_broken(self) -> int | None:
        bad = broken(self._X)
        return None if bad is None else bad // self.width

    def scaled_lengths(self, shift: Array, scale: Array) -> Array:
        lengths = [row_norms((X - shift) * scale) for _, X in self._blocks()]
        middle = float(row_norms((shift * scale)[None])[0])
        # Sums see scale * x and scale * shift apart, which round each by itself.
        found: Array = (
            np.concatenate(lengths or [np.empty(0)]) * (1.0 + 8 * UNIT) + 8 * UNIT * 2.0 * middle
        )
        return found

    def with_matrix(self, X: Array) -> Dense:
        return Dense(np.ascontiguousarray(X))

    def columns(self, keep: Array) -> Dense:
        return self.with_matrix(self._X[:, keep])

    def take(self, rows: Array | slice) -> Dense:
        return Dense(self._X[rows], self.lengths[rows])


class Scaled(Rows):
    """Rows scale * (x - shift) around rows x of any storage."""

    def __init__(
        self, inner: Rows, shift: Array, scale: Array, lengths: Array | None = None
    ) -> None:
        super().__init__(lengths)
        self.inner, self.shift, self.scale = inner, shift, scale
        self.n, self.width, self.margin = inner.n, inner.width, inner.margin

    @property
    def X(self) -> Matrix:
        return self.inner.X

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inner.dtype

    @property
    def scaling(self) -> tuple[Array, Array]:
        return self.shift, self.scale

    def _measured(self) -> Array:
        return self.inner.scaled_lengths(self.shift, self.scale)

    def stretches(self) -> Iterator[tuple[slice, Callable[[Array], Array]]]:
        for rows, times in self.inner.stretches():
            yield rows, partial(self._times, times)

    def _times(self, times: Callable[[Array], Array], W: Array) -> Array:
        W = (W.T * self.scale).T
        return np.asarray(times(W) - self.shift @ W)

    def weighted_sum(self, W: Array, coefficient: Coefficient) -> Array:
        W = (W.T * self.scale).T
        middle, mass = self.shift @ W, np.zeros(W.shape[1:])

        def counted(rows: slice, z: Array) -> Array:
            c = coefficient(rows, z - middle)
            mass[...] += c.sum(axis=0)
            return c

        total = self.inner.weighted_sum(W, counted).T
        total -= mass[..., None] * self.shift
        return np.asarray((total * self.scale).T)

    def group_sums(self, coefficients: Array, ends: Array) -> Array:
        mass = groups(coefficients, ends) @ np.ones(self.n)
        return np.asarray(
            (self.inner.group_sums(coefficients, ends) - mass[:, None] * self.shift) * self.scale
        )

    def column_sum(self) -> Array:
        return np.asarray(self.scale * (self.inner.column_sum() - self.n * self.shift))

    def square_sum(self) -> Array:
        mixed = (
            self.inner.square_sum()
            - 2.0 * self.shift * self.inner.column_sum()
            + self.n * self.shift**2
        )
        return np.asarray(self.scale**2 * mixed)

    def first_broken(self) -> int | None:
        return self.inner.first_broken()

    def scaled_lengths(self, shift: Array, scale: Array) -> Array:
        return self.inner.scaled_lengths(*self._composed(shift, scale))

    def scaled(self, shift: Array, scale: Array) -> Scaled:
        return Scaled(self.inner, *self._composed(shift, scale))

    def _composed(self, shift: Array, scale: Array) -> tuple[Array, Array]:
        return self.shift + shift / self.scale, self.scale * scale

    def with_matrix(self, X: Matrix) -> Scaled:
        return Scaled(self.inner.with_matrix(X), self.shift, self.scale)

    def bounded(self, norm_bound: float, over: float) -> Self:
        return self  # stored rows are not what has the norm

    def columns(self, keep: Array) -> Scaled:
        return Scaled(self.inner.columns(keep), self.shift[keep], self.scale[keep])

    def take(self, rows: Array | slice) -> Scaled:
        return Scaled(self.inner.take(rows), self.shift, self.scale, self.lengths[rows])

    def gather(self, rows: Array | slice) -> Scaled:
        return Scaled(self.inner.gather(rows), self.shift, self.scale, self.lengths[rows])


def broken(values: Array) -> int | None:
    """The place of the first number of ``values`` that is not finite, None where all are."""
    # A sum is finite only if all its terms are; the slow search runs for bad data alone (or an
    # overflow).
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values, dtype=np.float64)):
            return None
    bad = np.flatnonzero(~np.isfinite(values).reshape(-1))
    return int(bad[0]) if len(bad) else None


def groups(coefficients: Array, ends: Array) -> csr_array:
    """The matrix (groups, n) whose products sum rows by group, each times its coefficient."""
    return csr_array(
        (coefficients, np.arange(len(coefficients)), ends), shape=(len(ends) - 1, len(coefficients))
    )


def bound_blocks(X: Matrix, blocks: Sequence[Block]) -> tuple[Matrix, int, int]:
    """Clip every value of ``X`` (n, d) to [0, 1], then scale each one-hot block of a row down to a
    sum of at most 1.

    Returns the matrix (``X`` itself where nothing changes) with the numbers of clipped values and
    of shortened blocks; both are exact numbers about records, hence internal.
    """
    values = X.data if issparse(X) else X
    clipped = int(np.count_nonzero((values < 0.0) | (values > 1.0)))
    if clipped:
        X = with_values(X, np.clip(values, 0.0, 1.0))
    owner = np.full(X.shape[1], -1)
    wide = [block for block in blocks if block.kind == "one_hot" and len(block.columns) > 1]
    for position, block in enumerate(wide):
        owner[list(block.columns)] = position
    if not wide:
        return X, clipped, 0
    sums = block_sums(X, owner, len(wide))
    too_long = sums > 1.0 + SUM_TOLERANCE
    shortened = int(np.count_nonzero(too_long))
    if shortened:
        X = _scaled_blocks(X, owner, np.where(too_long, 1.0 / np.maximum(sums, 1.0), 1.0))
    return X, clipped, shortened


def block_sums(X: Matrix, owner: Array, count: int) -> Array:
    """Sums of the columns of each block, shape (n, count); ``owner`` (d,) names each column's
    block, -1 for none.
    """
    columns = np.flatnonzero(owner >= 0)
    ones = np.ones(len(columns))
    membership = csr_array((ones, (columns, owner[columns])), shape=(len(owner), count))
    sums = X @ membership
    return sums.toarray() if issparse(sums) else np.asarray(sums)


def _scaled_blocks(X: Matrix, owner: Array, factor: Array) -> Matrix:
    """``X`` with the entries of row i in block b multiplied by ``factor[i, b]``."""
    padded = np.column_stack([factor, np.ones(len(factor))])  # the last column serves owner -1
    if issparse(X):
        row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        return with_values(X, (X.data * padded[row, owner[X.indices]]).astype(X.dtype))
    return X * padded[:, owner].astype(X.dtype)
