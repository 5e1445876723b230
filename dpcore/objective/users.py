"""Sums over users with several records each: what one user adds is one contribution, clipped as a whole."""

from __future__ import annotations

from math import inf
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array, issparse

from dpcore.errors import InputError, require_count
from dpcore.identity import distinct, unit_codes
from dpcore.losses import Array, class_shares
from dpcore.objective.linear import NORM_MARGIN, LinearObjective
from dpcore.rounding import quotients, row_norms


class UserObjective:
    """Sums over users u of (1 / m) sum_{i in rows of u} loss(x_i, y_i; w), with m = ``rows_per_user``.

    ``rows`` are the records; ``users`` (n_rows,) names the person of each, compared by ``dpcore.identity`` unless they
    are its texts already (``canonical``). Of a user the first m records in their order are kept, the others are
    dropped; a missing one counts as a loss of zero. The divisor m is a public constant, so a
    user's loss is convex, smooth and Lipschitz with the constants of one record, and everything that a user may change
    is one term of the sum: with *users* as what the sampler draws and ``n`` counts, a bound proved for one record of a
    sum of such losses holds for one user. Without clipping that is m-fold sensitivity over the divisor users * m.
    """

    def __init__(self, rows: LinearObjective, users: Array, rows_per_user: int, *, canonical: bool = False) -> None:
        require_count(rows_per_user=rows_per_user)
        if users.shape != (rows.n,):
            raise InputError(f"Expected the user of each of {rows.n} rows, got users of shape {users.shape}.")
        codes, names = distinct(users) if canonical else unit_codes(users, "users")
        codes = np.argsort(np.argsort(np.array(names, dtype=str)))[codes]
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes)
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.rows_per_user = rows_per_user
        self._set(rows.take(order[place < rows_per_user]), np.minimum(counts, rows_per_user))

    def _set(self, rows: LinearObjective, counts: Array) -> None:
        self.rows = rows
        self._ends = np.concatenate([[0], np.cumsum(counts)])
        shares = np.full(rows.n, 1.0 / self.rows_per_user)
        self._mean = csr_array((shares, np.arange(rows.n), self._ends), shape=(len(counts), rows.n))

    @property
    def n(self) -> int:
        """Number of users."""
        return self._mean.shape[0]

    def check_records(self, dimension: int, norm_bound: float) -> None:
        """Raise ``InputError`` unless the kept records are as the problem declares."""
        self.rows.check_records(dimension, norm_bound)

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over users of their gradients at ``w`` (d,), each scaled down to norm ``clip_norm``; shape (d,).

        A user whose gradient overflows contributes nothing.
        """
        gradients = self._gradients(w)
        if clip_norm == inf:
            return gradients.sum(axis=0)
        margin = NORM_MARGIN if self.rows.X.dtype == np.float32 else 0.0
        norms = row_norms(gradients) * (1.0 + margin)
        gradients[norms == np.inf] = 0.0  # no factor brings infinity, or what is no number, within a clip
        return np.minimum(1.0, quotients(clip_norm, norms)) @ gradients

    def _gradients(self, w: Array) -> Array:
        """Gradient of each user's loss at ``w``, shape (n, d)."""
        coefficients = self.rows._coefficients(slice(0, self.rows.n), w, inf)
        weighted = self._mean * coefficients  # column i of the mean times c_i
        X = self.rows.X
        product: Any = csr_array(weighted) @ X
        return product.toarray() if issparse(product) else np.asarray(product, dtype=np.float64)

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over users of their losses, each cut to [0, ``clip``], for every row of ``W`` (k, d); shape (k,)."""
        W = np.atleast_2d(W)
        y = self.rows.y[:, None]
        z = self.rows._scores(slice(0, self.rows.n), W.T).astype(np.float64, copy=False)
        z = y * z if self.rows.loss.argument == "margin" else z - y
        value, shares = self.rows.loss.value(z), class_shares(self.rows.loss, y)
        return np.fmin(self._mean @ (value if shares is None else value * shares), clip).sum(axis=0)

    def as_rows(self) -> tuple[LinearObjective, float]:
        """The kept records and 1 / m: without clipping the sum over users is that share of the sum over records."""
        return self.rows, 1.0 / self.rows_per_user

    def take(self, rows: Array | slice) -> Self:
        """The users ``rows`` with all their kept records, as an objective of their own."""
        chosen = np.arange(self.n)[rows]
        counts = np.diff(self._ends)[chosen]
        first = np.repeat(self._ends[chosen] - (np.cumsum(counts) - counts), counts)
        batch = object.__new__(type(self))
        batch.rows_per_user = self.rows_per_user
        batch._set(self.rows.take(first + np.arange(counts.sum())), counts)
        return batch
