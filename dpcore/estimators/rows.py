"""The public map from a caller's rows to rows that keep the bounds of the problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack, issparse

from dpcore.bounding import SUM_TOLERANCE, Matrix, bound_blocks, bound_norms
from dpcore.errors import InputError
from dpcore.losses import Array
from dpcore.problem import Block

INTERCEPTS = (True, False, "last")


@dataclass(frozen=True)
class RowMap:
    """Rescale by declared ``bounds``, append the constant, and bring every row within its bound.

    The bound is ||x||_2 <= ``norm_bound`` with the constant column in it, or, ``by_blocks``, values in [0, 1] with each
    one-hot block scaled down to sum <= 1. The map is the same for training and prediction and looks at one row only.
    """

    columns: int
    norm_bound: float
    by_blocks: bool
    blocks: tuple[Block, ...] = ()
    intercept: bool | str = True
    bounds: tuple[Any, Any] | None = None
    low: Array = field(init=False)
    span: Array = field(init=False)

    def __post_init__(self) -> None:
        if self.intercept not in INTERCEPTS:
            raise InputError(f"Expected intercept to be True, False or 'last', got intercept={self.intercept!r}.")
        low, high = (0.0, 1.0) if self.bounds is None else self.bounds
        low = np.array(np.broadcast_to(np.asarray(low, dtype=np.float64), self.columns))
        high = np.array(np.broadcast_to(np.asarray(high, dtype=np.float64), self.columns))
        if self.intercept == "last":
            low[-1], high[-1] = 0.0, 1.0
        if not np.all(np.isfinite(low) & np.isfinite(high) & (low < high)):
            raise InputError("Expected finite bounds=(low, high) with low < high in every column; correct bounds.")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "span", high - low)

    @property
    def constant(self) -> bool:
        """Whether the last column of the mapped rows is the constant."""
        return bool(self.intercept)

    @property
    def dimension(self) -> int:
        """Columns of the mapped rows."""
        return self.columns + (self.intercept is True)

    @property
    def row_bound(self) -> float:
        """Bound on the norm of every mapped row."""
        if not self.by_blocks:
            return self.norm_bound
        named = sum(len(block.columns) for block in self.blocks)
        return sqrt(len(self.blocks) + self.dimension - named) * (1.0 + 10.0 * SUM_TOLERANCE)

    def __call__(self, X: Matrix) -> tuple[Matrix, Array, dict[str, int]]:
        """Mapped rows, the factor (n,) that each was scaled by, and how many values, blocks and rows were bounded."""
        X = self._rescaled(X)
        counts: dict[str, int] = {}
        if self.by_blocks:
            X, counts["clipped_values"], counts["shortened_blocks"] = bound_blocks(X, self.blocks)
        elif self.bounds is not None:
            X, counts["clipped_values"], _ = bound_blocks(X, ())
        if self.intercept is True:
            X = with_constant(X)
        factors = np.ones(X.shape[0])
        if not self.by_blocks:
            X, factors = bound_norms(X, self.norm_bound)
            counts["shortened_rows"] = int(np.count_nonzero(factors < 1.0))
        return X, factors, counts

    def _rescaled(self, X: Matrix) -> Matrix:
        if self.bounds is None:
            return X
        if not issparse(X):
            return ((X - self.low) / self.span).astype(X.dtype)
        if np.any(self.low != 0.0):
            raise InputError("Expected bounds with low=0 for a sparse matrix, got others; use low=0 or a dense matrix.")
        return csr_array((X.data / self.span[X.indices], X.indices, X.indptr), shape=X.shape)

    def unmap(self, W: Array) -> tuple[Array, Array]:
        """Coefficients (k, columns) and intercepts (k,) for the caller's columns, for rows within the bounds."""
        intercept = W[:, -1].copy() if self.intercept is True else np.zeros(len(W))
        coef = W[:, : self.columns] / self.span
        return coef, intercept - coef @ self.low


def with_constant(X: Matrix) -> Matrix:
    """``X`` with a last column of ones."""
    ones = np.ones((X.shape[0], 1), dtype=X.dtype)
    return csr_array(hstack([X, ones], format="csr")) if issparse(X) else np.hstack([X, ones])


def as_blocks(blocks: Iterable[Block | Sequence[int]] | None) -> tuple[Block, ...]:
    """Blocks as declared: ``Block`` objects, or column numbers of one one-hot group each."""
    if blocks is None:
        return ()
    return tuple(item if isinstance(item, Block) else Block(tuple(int(column) for column in item)) for item in blocks)
