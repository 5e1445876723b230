"""Sums over users with several records each: what one user adds is one contribution, clipped as a
whole.
"""

from __future__ import annotations

from copy import copy
from math import inf
from typing import Self

import numpy as np

from dpcore.errors import InputError, require_count
from dpcore.identity import distinct, unit_codes
from dpcore.losses import Array
from dpcore.objective.linear import LinearObjective
from dpcore.objective.rounding import quotients, row_norms
from dpcore.objective.rows import groups
from dpcore.objective.sparse import STRETCH
from dpcore.problem import Problem


class UserObjective:
    """Sums over users u of (1 / m) sum_{i in rows of u} loss(x_i, y_i; w), with m =
    ``rows_per_user``.

    ``rows`` are the records; ``users`` (n_rows,) names the person of each, compared by
    ``dpcore.identity`` unless they are its texts already (``canonical``). Of a user the first m
    records in their order are kept, the others are dropped; a missing one counts as a loss of zero.
    The divisor m is a public constant, so a user's loss is convex, smooth and Lipschitz with the
    constants of one record, and everything that a user may change is one term of the sum: with
    *users* as what the sampler draws and ``n`` counts, a bound proved for one record of a sum of
    such losses holds for one user. Without clipping that is m-fold sensitivity over the divisor
    users * m.
    """

    def __init__(
        self, rows: LinearObjective, users: Array, rows_per_user: int, *, canonical: bool = False
    ) -> None:
        require_count(rows_per_user=rows_per_user)
        if users.shape != (rows.n,):
            raise InputError(
                f"Expected the user of each of {rows.n} rows, got users of shape {users.shape}."
            )
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
        self._shares = np.full(rows.n, 1.0 / self.rows_per_user)

    @property
    def n(self) -> int:
        """Number of users."""
        return len(self._ends) - 1

    def check(self, problem: Problem) -> None:
        """Raise ``InputError`` unless users and kept records are as ``problem`` declares."""
        problem.check_count(self.n)
        self.rows.check_rows(problem)

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over users of their gradients at ``w`` (d,), each scaled down to norm ``clip_norm``;
        shape (d,).

        A user whose gradient overflows contributes nothing.
        """
        gradients = self.rows.rows.group_sums(self._shares * self.rows.slopes(w), self._ends)
        if clip_norm == inf:
            return np.asarray(gradients.sum(axis=0))
        norms = row_norms(gradients) * (1.0 + self.rows.rows.margin)
        # no factor brings infinity, or what is no number, within a clip
        gradients[norms == np.inf] = 0.0
        shares, total = np.minimum(1.0, quotients(clip_norm, norms)), np.zeros(len(w))
        for start in range(0, self.n, STRETCH):
            users = slice(start, start + STRETCH)
            total += shares[users] @ gradients[users]
        return total

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over users of their losses, each cut to [0, ``clip``], for every row of ``W`` (k, d);
        shape (k,).
        """
        values = groups(self._shares, self._ends) @ self.rows.values(np.atleast_2d(W))
        return np.asarray(np.fmin(values, clip).sum(axis=0))

    def as_rows(self) -> tuple[LinearObjective, float]:
        """The kept records and 1 / m: without clipping the sum over users is that share of the sum
        over records.
        """
        return self.rows, 1.0 / self.rows_per_user

    def take(self, rows: Array | slice) -> Self:
        """The users ``rows`` with all their kept records, as an objective of their own."""
        chosen = np.arange(self.n)[rows]
        counts = np.diff(self._ends)[chosen]
        first = np.repeat(self._ends[chosen] - (np.cumsum(counts) - counts), counts)
        batch = copy(self)
        batch._set(self.rows.take(first + np.arange(counts.sum())), counts)
        return batch
