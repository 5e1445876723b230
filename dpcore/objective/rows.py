"""Bring the rows of a matrix within declared bounds, whatever stands in them: nothing about the bounds is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from dpcore.losses import Array
from dpcore.problem import Block
from dpcore.rounding import quotients, row_norms

Matrix = Any  # a dense array or a CSR array, (n, d)

# A block whose parts sum to 1 up to this much is left alone; prices that rely on the sum are enlarged to cover it.
SUM_TOLERANCE = 1e-6


def bound_blocks(X: Matrix, blocks: Sequence[Block]) -> tuple[Matrix, int, int]:
    """Clip every value of ``X`` (n, d) to [0, 1], then scale each one-hot block of a row down to a sum of at most 1.

    Returns the matrix (``X`` itself where nothing changes) with the numbers of clipped values and of shortened blocks;
    both are exact numbers about records, hence internal.
    """
    values = X.data if issparse(X) else X
    clipped = int(np.count_nonzero((values < 0.0) | (values > 1.0)))
    if clipped:
        X = _with_values(X, np.clip(values, 0.0, 1.0))
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
    """Sums of the columns of each block, shape (n, count); ``owner`` (d,) names each column's block, -1 for none."""
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
        return _with_values(X, (X.data * padded[row, owner[X.indices]]).astype(X.dtype))
    return X * padded[:, owner].astype(X.dtype)


def _with_values(X: Matrix, values: Array) -> Matrix:
    """A matrix like ``X`` that holds other ``values`` in the same places."""
    if not issparse(X):
        return values
    return csr_array((values, X.indices, X.indptr), shape=X.shape)


def bound_norms(X: Matrix, norm_bound: float, over: float = 0.0) -> tuple[Matrix, Array]:
    """Scale rows longer than ``norm_bound`` down to it; returns the matrix and the factors (n,), 1 for short rows.

    A relative margin covers the rounding of the products, so that the bound holds for the stored numbers. Rows longer
    by a share of ``over`` at most stay as they are. What becomes of a row depends on no other row.
    """
    norms = row_norms(X)
    margin = 1e-6 if X.dtype == np.float32 else 1e-12
    shrunk = quotients(norm_bound * (1.0 - margin), np.maximum(norms, norm_bound))
    factors = np.where(norms > norm_bound * (1.0 + over), shrunk, 1.0)
    if np.all(factors == 1.0):
        return X, factors
    if issparse(X):
        return _with_values(X, (X.data * np.repeat(factors, np.diff(X.indptr))).astype(X.dtype)), factors
    return (X * factors[:, None]).astype(X.dtype), factors
