"""Ranked lists: documents grouped into sessions (queries), their labels, and the splits that keep a
session whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpcore.errors import InputError, require_open_unit
from dpcore.identity import as_ids, distinct, identities, unit_codes

Array = np.ndarray

# What a document may be described by; see ``Documents.features``.
FEATURES = ("raw", "rank")
LARGEST_LABEL = 30
LARGEST_FEATURE = 1e5


@dataclass(frozen=True, eq=False)
class Documents:
    """Features ``X`` (documents, p) of ``n`` sessions one after the other; session j is rows
    offsets[j]:offsets[j+1].

    Under replace-labels these are public. Every session holds at least one document. ``is_centred``
    says that a vector was subtracted from all documents of each session, its mean up to rounding.
    """

    X: Array
    offsets: Array
    is_centred: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "X", np.ascontiguousarray(self.X, dtype=np.float64))
        object.__setattr__(self, "offsets", np.asarray(self.offsets, dtype=np.int64))
        if self.X.ndim != 2 or self.offsets[0] != 0 or self.offsets[-1] != len(self.X):
            raise InputError(
                f"Expected offsets from 0 to the {len(self.X)} rows of X, got {self.offsets[:3]}..."
            )
        if np.any(np.diff(self.offsets) < 1):
            raise InputError(
                "Expected at least one document in every session; leave empty sessions out."
            )

    @property
    def n(self) -> int:
        """Number of sessions."""
        return len(self.offsets) - 1

    @property
    def dimension(self) -> int:
        width: int = self.X.shape[1]
        return width

    @cached_property
    def lengths(self) -> Array:
        """Documents of each session, shape (n,)."""
        return np.diff(self.offsets)

    @cached_property
    def owner(self) -> Array:
        """The session of each document, shape (documents,)."""
        return np.repeat(np.arange(self.n), self.lengths)

    def rows(self, sessions: Array) -> Array:
        """Row numbers of the documents of ``sessions``, in their order."""
        lengths = self.lengths[sessions]
        ends = np.cumsum(lengths)
        return np.repeat(self.offsets[sessions] - ends + lengths, lengths) + np.arange(
            ends[-1] if len(ends) else 0
        )

    def take(self, sessions: Array) -> Documents:
        """The documents of ``sessions``, in the given order."""
        return Documents(
            self.X[self.rows(sessions)], offsets_of(self.lengths[sessions]), self.is_centred
        )

    def centred(self) -> Documents:
        """The documents minus the rounded mean of their session; once, so that a batch has the same
        rows as the whole.

        What is far from 0 and nearly equal would else be lost in squares and sums.
        """
        if self.is_centred or not self.n:
            return self
        means = np.add.reduceat(self.X, self.offsets[:-1], axis=0) / self.lengths[:, None]
        return Documents(self.X - means[self.owner], self.offsets, is_centred=True)

    def ranks(self) -> Array:
        """Share of the session's other documents that lie below, ties counted half, minus 1/2;
        (documents, p).

        Each column is in [-1/2, 1/2] whatever the unit of the feature, and touches one session
        only, so it is as private or public as the documents themselves. A session of one document
        gets 0.
        """
        ranks = np.empty_like(self.X)
        for column in range(self.dimension):
            ranks[:, column] = self._rank(self.X[:, column])
        return ranks

    def _rank(self, x: Array) -> Array:
        order = np.lexsort((x, self.owner))
        sorted_x, owner = x[order], self.owner[order]
        new = np.ones(len(x), dtype=bool)
        new[1:] = (sorted_x[1:] != sorted_x[:-1]) | (owner[1:] != owner[:-1])
        first = np.flatnonzero(new)
        group = np.cumsum(new) - 1
        last = np.append(first[1:], len(x)) - 1
        middle = (first + last) / 2.0
        place = np.empty(len(x))
        place[order] = middle[group] - self.offsets[owner]
        rank: Array = place / np.maximum(self.lengths[self.owner] - 1, 1) - 0.5 * (
            self.lengths[self.owner] > 1
        )
        return rank

    def features(self, *kinds: str) -> Documents:
        """The same sessions described by ``raw`` features, within-session ``rank`` features, or
        both side by side.
        """
        unknown = [kind for kind in kinds if kind not in FEATURES]
        if unknown or not kinds:
            raise InputError(
                f"Expected features among {', '.join(FEATURES)}, got features={kinds!r}."
            )
        parts = {"raw": lambda: self.X, "rank": self.ranks}
        return Documents(np.hstack([parts[kind]() for kind in kinds]), self.offsets)


@dataclass(frozen=True, eq=False)
class Sessions:
    """Documents with their relevance labels ``y`` (documents,), each >= 0, and the query id of each
    session.
    """

    documents: Documents
    y: Array
    queries: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", np.asarray(self.y, dtype=np.float64))
        object.__setattr__(self, "queries", np.asarray(self.queries))
        if self.y.shape != (len(self.documents.X),):
            raise InputError(
                f"Expected {len(self.documents.X)} labels, one a document, got {self.y.shape}."
            )
        if len(self.queries) != self.documents.n:
            raise InputError(
                f"Expected {self.documents.n} query ids, one a session, got {len(self.queries)}."
            )

    @classmethod
    def from_rows(
        cls, X: Array, y: Array, groups: Array | Sequence[object], *, canonical: bool = False
    ) -> Sessions:
        """Group rows by query id, wherever they stand; sessions in order of their first row, rows
        in file order.

        Ids are compared by ``dpcore.identity``, unless they are its texts already (``canonical``).
        Raises ``InputError`` naming the row for labels that are negative, NaN or huge, features
        that are not finite, and rows without an id.
        """
        X, y = real(X, "features"), real(y, "labels")
        if X.ndim != 2 or len(X) == 0 or y.shape != (len(X),):
            raise InputError(
                f"Expected one label and one query id a row, got X {X.shape} and y {y.shape}."
            )
        groups = query_ids(groups, len(X))
        check_rows(X, y)
        order, lengths = by_query(groups, canonical)
        ends = np.cumsum(lengths)
        return cls(
            Documents(X[order], offsets_of(lengths)), y[order], groups[order][ends - lengths]
        )

    @property
    def n(self) -> int:
        return self.documents.n

    @cached_property
    def empty(self) -> Array:
        """Sessions without a relevant document, shape (n,)."""
        return np.maximum.reduceat(self.y, self.documents.offsets[:-1]) <= 0

    def take(self, sessions: Array) -> Sessions:
        """The given sessions, whole, in the given order."""
        whole, rows = self.documents, self.documents.rows(sessions)
        part = Documents(whole.X[rows], offsets_of(whole.lengths[sessions]), whole.is_centred)
        return Sessions(part, self.y[rows], self.queries[sessions])

    def features(self, *kinds: str) -> Sessions:
        """The same sessions with other features of their documents; see ``Documents.features``."""
        return Sessions(self.documents.features(*kinds), self.y, self.queries)

    def split(self, test_share: float, seed: int) -> tuple[Sessions, Sessions]:
        """Training and test part, by query; ``seed`` is public."""
        require_open_unit(test_share=test_share)
        order = np.random.default_rng(seed).permutation(self.n)
        cut = round(test_share * self.n)
        if not 0 < cut < self.n:
            raise InputError(
                f"Expected sessions on both sides, got test_share={test_share!r} of {self.n} "
                "sessions."
            )
        return self.take(np.sort(order[cut:])), self.take(np.sort(order[:cut]))


def join(parts: Sequence[Sessions]) -> Sessions:
    """All sessions of ``parts``; a query in two of them is refused, for it would be on both sides
    of a split.
    """
    queries = np.concatenate([part.queries for part in parts])
    codes, names = identities(np.concatenate([part.queries.astype(object) for part in parts]))
    counts = np.bincount(codes)
    if np.any(counts > 1):
        raise InputError(
            f"Expected each query in one part, got query {names[int(np.argmax(counts > 1))]!r} in "
            "two."
        )
    X = np.vstack([part.documents.X for part in parts])
    lengths = np.concatenate([part.documents.lengths for part in parts])
    return Sessions(
        Documents(X, offsets_of(lengths)), np.concatenate([part.y for part in parts]), queries
    )


def offsets_of(lengths: Array) -> Array:
    """Offsets of sessions with the given numbers of documents, shape (n + 1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def real(values: object, what: str) -> Array:
    """``values`` as floats; raises ``InputError`` for text, complex numbers and what has no
    shape.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"Expected real numbers as {what}, got others; encode or drop them before."
        ) from None


def by_query(groups: Array, canonical: bool = False) -> tuple[Array, Array]:
    """An order (rows,) in which the documents of a query stand together, and how many each has,
    (queries,). ``canonical``: ids are texts that need no rule any more.
    """
    owner, _ = distinct(groups) if canonical else unit_codes(groups, "groups")
    return np.argsort(owner, kind="stable"), np.bincount(owner)


def query_ids(groups: Any, rows: int) -> Array:
    """``groups`` as an array of one query id for each of ``rows`` rows; raises ``InputError`` for
    another shape.
    """
    ids = as_ids(groups) if np.ndim(groups) == 1 else np.asarray(groups)
    if ids.shape != (rows,):
        raise InputError(
            f"Expected groups to name the query of each of {rows} rows, got groups of shape "
            f"{ids.shape}."
        )
    return ids


def check_rows(X: Array, y: Array) -> None:
    """Raise ``InputError`` naming the first row (0-based) with a bad label or feature.

    The limits keep gains 2^y and squared norms far from overflow: a NaN would pass every clip.
    """
    bad = ~((y >= 0) & (y <= LARGEST_LABEL))
    if np.any(bad):
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"Expected relevance labels from 0 to {LARGEST_LABEL}, got label {y[row]:g} in row "
            f"{row}; map it before training."
        )
    bad = ~(np.abs(X) <= LARGEST_FEATURE)
    if np.any(bad):
        row = int(np.flatnonzero(bad.any(axis=1))[0])
        raise InputError(
            f"Expected finite features of at most {LARGEST_FEATURE:g}, got NaN, inf or more in row "
            f"{row}; scale, fill or drop it before training."
        )
