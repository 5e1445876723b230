"""How much a computed norm may lack: margins for sums and products in floating point, and norms that never lack any.

A price holds for the numbers that were computed, so a norm in it must not be smaller than the true one. In arithmetic
of unit roundoff u a sum of k products errs by at most k u / (1 - k u) times the sum of their *sizes* (Higham 2002,
section 3.1), however much of it cancels. A margin relative to the *result* says nothing where the terms cancel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse

Array = np.ndarray
Matrix = Any  # a dense array or a CSR array, (n, k)

# Unit roundoff of float64.
UNIT = 2.0**-53
# Squares between these lose nothing by underflow that k * UNIT would not cover, and do not overflow in a sum.
LEAST, MOST = 1e-280, 1e280


def row_norms(X: Matrix) -> Array:
    """Upper bounds of ||x_i||_2 of the rows of ``X`` (n, k), dense or CSR, shape (n,); tight to (k + 6) u, 0 for zeros.

    Squares and sums are float64. Of k squares the sum is at least (1 - u)^k of the true one, and root and the last
    product round once each: the root times 1 + (k / 2 + 3) u would do. Rows whose squares under- or overflow are
    divided by a power of two first, which is exact for all entries that matter.
    """
    width = X.shape[1]
    with np.errstate(over="ignore", under="ignore"):
        norms = np.sqrt(_squares(X))
    odd = np.flatnonzero(~((norms >= LEAST**0.5) & (norms <= MOST**0.5)))
    if len(odd):
        norms[odd] = _odd_norms(X[odd])
    return norms * (1.0 + (width + 6) * UNIT)


def _squares(X: Matrix) -> Array:
    if issparse(X):
        squared = X.astype(np.float64)
        squared.data = np.square(squared.data)
        return np.asarray(squared @ np.ones(X.shape[1]))
    return np.einsum("ij,ij->i", X, X, dtype=np.float64)


def _odd_norms(X: Matrix) -> Array:
    """Norms of rows with very small or very large entries; infinity where there is one, or where no float is enough."""
    if issparse(X):
        largest = np.asarray(abs(X).max(axis=1).todense()).ravel().astype(np.float64)
    else:
        largest = np.abs(X).max(axis=1, initial=0.0).astype(np.float64)
    sound = np.isfinite(largest) & (largest > 0.0)
    exponent = np.frexp(np.where(sound, largest, 1.0))[1]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        # Entries are brought to [0.5, 1): in two steps, for one power of two may itself be no float.
        rows = X.astype(np.float64)
        for part in (exponent // 2, exponent - exponent // 2):
            rows = _scaled(rows, np.ldexp(1.0, -part))
        norms = np.ldexp(np.sqrt(_squares(rows)), exponent)
    return np.where(sound, np.maximum(norms, largest), np.where(largest == 0.0, 0.0, np.inf))


def _scaled(X: Matrix, factor: Array) -> Matrix:
    """``X`` (n, k) with row i times ``factor[i]``."""
    if issparse(X):
        scaled = X.copy()
        scaled.data = X.data * np.repeat(factor, np.diff(X.indptr))
        return scaled
    return X * factor[:, None]
