"""How much a computed norm may lack: margins for sums and products in floating point, and norms
that never lack any.

A price holds for the numbers that were computed, so a norm in it must not be smaller than the true
one. In arithmetic of unit roundoff u a sum of k products errs by at most k u / (1 - k u) times the
sum of their *sizes* (Higham 2002, section 3.1), however much of it cancels. A margin relative to
the *result* says nothing where the terms cancel.
"""

from __future__ import annotations

from math import hypot, inf
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

Array = np.ndarray
Matrix = Any  # a dense array or a CSR array, (n, k)

# Unit roundoff of float64.
UNIT = 2.0**-53
# Rows that are added by themselves at most before they meet the sums of others.
TOGETHER = 2**16
# Public numbers that a record's part is added to before the noise are cut to this many times what a
# record may move: rounding to their size then moves it by 1e-5 of that at most.
FAR = 2.0**36
# Squares between these lose nothing by underflow that k * UNIT would not cover, and do not overflow
# in a sum.
LEAST, MOST = 1e-280, 1e280


def row_norms(X: Matrix) -> Array:
    """Upper bounds of ||x_i||_2 of the rows of ``X`` (n, k), dense or CSR, shape (n,); tight to (k
    + 6) u, 0 for zeros.

    Squares and sums are float64. Of k squares the sum is at least (1 - u)^k of the true one, and
    root and the last product round once each: the root times 1 + (k / 2 + 3) u would do. Rows whose
    squares under- or overflow are divided by a power of two first, which is exact for all entries
    that matter.
    """
    width = X.shape[1]
    with np.errstate(over="ignore", under="ignore"):
        norms: Array = np.sqrt(_squares(X))
    odd = np.flatnonzero(~((norms >= LEAST**0.5) & (norms <= MOST**0.5)))
    if len(odd):
        odd = odd[_largest(X[odd]) != 0.0]  # most are zeros, and 0 is right for them
    if len(odd):
        norms[odd] = _odd_norms(X[odd])
    norms = norms * (1.0 + (width + 6) * UNIT)
    if len(odd):
        # steps of subnormals are coarse
        norms[odd] = np.where(norms[odd] > 0.0, np.nextafter(norms[odd], np.inf), 0.0)
    return norms


def quotients(bound: float, norms: Array) -> Array:
    """``bound`` / norm for each of ``norms``, rounded so that norm * quotient stays within the
    bound; finite for 0.

    A zero row contributes nothing, whatever its factor. Quotients without full digits are rounded
    down.
    """
    quotient: Array = bound / np.maximum(norms, 1e-300)
    if quotient.min(initial=1.0) < 1e-290:
        quotient = np.where(quotient < 1e-290, np.nextafter(quotient, 0.0), quotient)
    return quotient


def rounded_sum(n: int) -> float:
    """By how much, in units of the longest of them, a sum over up to 2 ``n`` terms may be rounded.

    Partial sums of k terms are at most k long, and adding one more errs by u times that: stretches
    of ``TOGETHER`` terms, of which their sums follow one another. One record more or fewer shifts
    all that come after it, so nothing of this need be the same for neighbours. ``n`` may be a
    nominal count; there is room for twice as many.
    """
    terms = 2 * n
    return UNIT * terms * (min(terms, TOGETHER) + terms / 2**12) / 2.0


def within(values: Array, most: float) -> Array:
    """``values`` cut to +-``most``, and 0 where they are no number."""
    cut: Array = np.clip(np.nan_to_num(values, nan=0.0), -most, most)
    return cut


def at_most(vector: Array, longest: float) -> Array:
    """``vector`` (d,) scaled down to norm ``longest`` where it is longer, or to 0 where it is no
    number.
    """
    norm = hypot(*vector)
    if norm <= longest:
        return vector
    return vector * (longest / norm) if norm < inf else np.zeros_like(vector)


def _squares(X: Matrix) -> Array:
    if issparse(X):
        squared = X.astype(np.float64)
        squared.data = np.square(squared.data)
        return np.asarray(squared @ np.ones(X.shape[1]))
    squares: Array = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return squares


def _odd_norms(X: Matrix) -> Array:
    """Norms of rows with very small or very large entries; infinity where there is one, or where no
    float is enough.
    """
    largest = _largest(X).astype(np.float64)
    sound = np.isfinite(largest) & (largest > 0.0)
    exponent = np.frexp(np.where(sound, largest, 1.0))[1]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        # Entries are brought to [0.5, 1): in two steps, for one power of two may itself be no
        # float.
        rows = X.astype(np.float64)
        for part in (exponent // 2, exponent - exponent // 2):
            rows = _scaled(rows, np.ldexp(1.0, -part))
        norms = np.ldexp(np.sqrt(_squares(rows)), exponent)
    return np.where(sound, np.maximum(norms, largest), np.where(largest == 0.0, 0.0, np.inf))


def _largest(X: Matrix) -> Array:
    """The largest absolute value of each row, shape (n,)."""
    if not issparse(X):
        return np.asarray(np.abs(X).max(axis=1, initial=0.0))
    found = np.zeros(X.shape[0], dtype=X.dtype)
    with np.errstate(invalid="ignore"):  # NaN stays NaN, whose norm is infinite
        np.maximum.at(found, np.repeat(np.arange(len(found)), np.diff(X.indptr)), np.abs(X.data))
    return found


def _scaled(X: Matrix, factor: Array) -> Matrix:
    """``X`` (n, k) with row i times ``factor[i]``."""
    if issparse(X):
        scaled = X.copy()
        scaled.data = X.data * np.repeat(factor, np.diff(X.indptr))
        return scaled
    return X * factor[:, None]


def _entries(X: Matrix) -> Array:
    """How many entries of each row are no zeros, shape (n,); stored ones of CSR."""
    return np.diff(X.indptr) if issparse(X) else np.einsum("ij->i", (X != 0.0).astype(np.int32))


def shortened(X: Matrix, cap: bool) -> Matrix:
    """Rows of ``X`` (n, k) over their norms, which are then at most 1; with ``cap`` those alone
    that are longer than 1.

    A zero row stays one. Rows of very small or very large entries are divided by a power of two
    first: their squares are no numbers, and their quotients would have few digits.
    """
    norms = row_norms(X)
    single = _entries(X) == 1
    norms[single] = _largest(X[single])  # a row of one entry has an exact norm
    odd = np.isfinite(norms) & (norms > 0.0) & ((norms < LEAST**0.5) | (norms > MOST**0.5))
    odd |= norms == np.inf
    if cap:
        odd &= norms > 1.0
    if odd.any():
        largest = _largest(X)
        exponent = np.frexp(np.where(odd & np.isfinite(largest), largest, 0.5))[1]
        for part in (exponent // 2, exponent - exponent // 2):
            X = _scaled(X, np.ldexp(1.0, -part))
        norms = np.where(odd, row_norms(X), norms)
    divisor = (
        np.where(odd, norms, np.maximum(norms, 1.0)) if cap else np.where(norms > 0.0, norms, 1.0)
    )
    if issparse(X):
        result = X.copy()
        result.data = X.data / np.repeat(divisor, np.diff(X.indptr))
        return result
    return X / divisor[:, None]


def with_values(X: Matrix, values: Array) -> Matrix:
    """A matrix like ``X`` that holds other ``values`` in the same places."""
    if not issparse(X):
        return values
    return csr_array((values, X.indices, X.indptr), shape=X.shape)


def bound_norms(X: Matrix, norm_bound: float, over: float = 0.0) -> tuple[Matrix, Array]:
    """Scale rows longer than ``norm_bound`` down to it; returns the matrix and the factors (n,), 1
    for short rows.

    A relative margin covers the rounding of the products, so that the bound holds for the stored
    numbers. Rows longer by a share of ``over`` at most stay as they are. What becomes of a row
    depends on no other row.
    """
    norms = row_norms(X)
    margin = 1e-6 if X.dtype == np.float32 else 1e-12
    shrunk = quotients(norm_bound * (1.0 - margin), np.maximum(norms, norm_bound))
    factors = np.where(norms > norm_bound * (1.0 + over), shrunk, 1.0)
    if np.all(factors == 1.0):
        return X, factors
    if issparse(X):
        return with_values(
            X, (X.data * np.repeat(factors, np.diff(X.indptr))).astype(X.dtype)
        ), factors
    return (X * factors[:, None]).astype(X.dtype), factors
