"""Rows of a sparse matrix for the two products of one small batch, without a matrix object around them.

Slicing a CSR matrix and multiplying it twice takes three compiled loops and, at a batch of 256 one-hot rows, four times
their length in checks and dispatch. Here the same compiled loops of scipy are called directly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import _sparsetools as loops
from scipy.sparse import csr_array

from dpcore.losses import Array


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Rows of a CSR matrix in the order drawn: ``data`` (float64), ``indices``, ``indptr`` as in CSR, and the width."""

    data: Array
    indices: Array
    indptr: Array
    width: int

    @classmethod
    def of(cls, X: csr_array, rows: Array) -> GatheredRows:
        """Copy ``rows`` of ``X``; indices must be within range, as a sampler's are."""
        rows = np.asarray(rows, dtype=X.indptr.dtype)
        indptr = np.zeros(len(rows) + 1, dtype=X.indptr.dtype)
        np.cumsum(X.indptr[rows + 1] - X.indptr[rows], out=indptr[1:])
        indices = np.empty(indptr[-1], dtype=X.indices.dtype)
        data = np.empty(indptr[-1], dtype=X.dtype)
        loops.csr_row_index(len(rows), rows, X.indptr, X.indices, X.data, indices, data)
        return cls(data.astype(np.float64, copy=False), indices, indptr, X.shape[1])

    @property
    def height(self) -> int:
        return len(self.indptr) - 1

    def times(self, w: Array) -> Array:
        """X w, shape (rows,)."""
        scores = np.zeros(self.height)
        loops.csr_matvec(self.height, self.width, self.indptr, self.indices, self.data, w, scores)
        return scores

    def transposed_times(self, coefficients: Array) -> Array:
        """X' c, shape (width,)."""
        total = np.zeros(self.width)
        loops.csc_matvec(self.width, self.height, self.indptr, self.indices, self.data, coefficients, total)
        return total

    def matrix(self) -> csr_array:
        """The same rows as a matrix, for everything else."""
        return csr_array((self.data, self.indices, self.indptr), shape=(self.height, self.width))
