"""Encoder for files of numbers (SVMlight, LETOR, images, already one-hot tables) by declared groups
of columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, TransformerMixin

from dpcore.errors import InputError
from dpcore.features import FeatureGroup
from dpcore.preprocess.design import SHOWN, Design, EncodingReport
from dpcore.preprocess.encoder import SPARSE_BELOW, check_settings, read_settings, shorten
from dpcore.problem import Block

FILL = "correct the row, or declare a fill of its features"


class MatrixEncoder(TransformerMixin, BaseEstimator):
    """Scale a matrix of numbers by declared groups; same settings, design and guarantees as
    ``Encoder``.

    ``numeric`` must be ``minmax`` (or ``centred``: [low, high] onto [-1, 1]). Input: an array, CSR,
    or a frame whose columns are in the declared order.
    """

    def __init__(
        self,
        groups: Sequence[FeatureGroup] = (),
        normalise: str = "cap",
        numeric: str = "minmax",
        intercept: bool = True,
        sparse: bool | str = "auto",
        dtype: str = "float64",
    ) -> None:
        self.groups = groups
        self.normalise = normalise
        self.numeric = numeric
        self.intercept = intercept
        self.sparse = sparse
        self.dtype = dtype

    def fit(self, X: Any = None, y: Any = None) -> MatrixEncoder:
        """Check the declarations; rows are not looked at."""
        check_settings(self.normalise, self.sparse, self.dtype)
        if self.numeric not in ("minmax", "centred"):
            raise InputError(
                "Expected numeric minmax or centred for a file of numbers, got "
                f"numeric={self.numeric!r}."
            )
        if not self.groups:
            raise InputError("Expected at least one group of features, got none; declare features.")
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that are read, in declared order."""
        return tuple(name for group in self.groups for name in group.names)

    @property
    def width(self) -> int:
        """Columns of the raw matrix."""
        return sum(g.count for g in self.groups)

    @property
    def design(self) -> Design:
        """Names, blocks and norm bound, from the declarations alone."""
        names = tuple(n for g in self.groups for n in g.names) + ("intercept",) * bool(
            self.intercept
        )
        attributes = sum(g.attributes for g in self.groups) + bool(self.intercept)
        bound = math.sqrt(attributes) if self.normalise == "none" else 1.0
        return Design(
            names=names,
            blocks=tuple(self._blocks()),
            norm_bound=bound,
            intercept=bool(self.intercept),
        )

    @property
    def is_sparse(self) -> bool:
        if self.sparse != "auto":
            return bool(self.sparse)
        slots = sum(1 if g.kind == "one_hot" else g.count for g in self.groups)
        return slots <= SPARSE_BELOW * self.width

    def _blocks(self) -> list[Block]:
        whole = self.normalise != "unit" or self.intercept  # else rows may grow, and sums with them
        blocks, start = [], 0
        for g in self.groups:
            columns = tuple(range(start, start + g.count))
            start += g.count
            if g.kind == "one_hot" and whole:
                blocks.append(Block(columns, "one_hot"))
            elif g.kind == "flag" or g.kind == "one_hot":
                blocks.extend(Block((j,), "one_hot") for j in columns)
            elif self.numeric == "minmax":
                blocks.extend(Block((j,), "numeric") for j in columns)
        return blocks

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.array(self.design.names, dtype=object)

    def transform(self, X: Any) -> np.ndarray | csr_array:
        """Scaled rows, shape (n, d)."""
        return self.encode(X, EncodingReport())

    def encode(self, X: Any, tally: EncodingReport) -> np.ndarray | csr_array:
        """As ``transform``, with counts in ``tally``; raises ``InputError`` on another width, and
        on NaN or inf in columns without a fill."""
        if isinstance(X, pd.DataFrame):
            X = numbers_of(X)
        if X.shape[1] != self.width:
            raise InputError(
                f"{tally.source + ': ' if tally.source else ''}Expected {self.width} columns of "
                f"numbers as declared, got {X.shape[1]}; correct the counts under features."
            )
        keep = (
            self.is_sparse and all(g.low == 0.0 for g in self.groups) and self.numeric == "minmax"
        )
        if issparse(X) and keep:
            return self._encode_csr(csr_array(X, dtype=np.float64, copy=True), tally)
        scaled = self._encode_dense(_dense(X), tally)
        return csr_array(scaled) if self.is_sparse else scaled

    def _filled(self, values: np.ndarray, which: np.ndarray, tally: EncodingReport) -> np.ndarray:
        """``values`` with a fill for those that are not finite; ``which`` is the group that each
        value belongs to.
        """
        bad = ~np.isfinite(values)
        if not bad.any():
            return values
        fills = np.array([np.nan if g.fill is None else g.fill for g in self.groups])[which]
        for k, group in enumerate(self.groups):
            if group.fill is not None:
                tally.count("filled", group.name, bad & (which == k))
        return np.where(bad & np.isfinite(fills), fills, values)

    def _places(self) -> Iterator[tuple[FeatureGroup, slice]]:
        """Each group with its columns."""
        start = 0
        for group in self.groups:
            yield group, slice(start, start + group.count)
            start += group.count

    def _encode_dense(self, X: np.ndarray, tally: EncodingReport) -> np.ndarray:
        which = np.repeat(np.arange(len(self.groups)), [g.count for g in self.groups])
        X = self._filled(X, np.broadcast_to(which, X.shape), tally)
        self._refuse(~np.isfinite(X).all(axis=1), X, tally)
        low = np.repeat([g.low for g in self.groups], [g.count for g in self.groups])
        high = np.repeat([g.high for g in self.groups], [g.count for g in self.groups])
        span = high - low
        for g, here in self._places():
            tally.count("clipped", g.name, (X[:, here] < g.low) | (X[:, here] > g.high))
        out = np.zeros((len(X), len(self.design.names)))
        body = out[:, : self.width]
        np.clip(X, low, high, out=body)
        body -= low
        body /= np.where(span > 0, span, 1.0)
        for g, here in self._places():
            self._bound_group(g, body[:, here], tally)
        if self.intercept:
            out[:, -1] = 1.0
        rows: np.ndarray = shorten(out, self.normalise, self.dtype)
        return rows

    def _bound_group(self, group: FeatureGroup, part: np.ndarray, tally: EncodingReport) -> None:
        """Change ``part``, the columns of ``group`` in [0, 1]: one-hot sums to 1 at most, numbers
        where they are centred.
        """
        if group.kind == "one_hot":
            sums = part.sum(axis=1)
            tally.count("capped", group.name, sums > 1.0)
            part /= np.maximum(sums, 1.0)[:, None]
        elif group.kind == "numeric" and self.numeric == "centred":
            part[:] = part * 2.0 - 1.0

    def _encode_csr(self, X: csr_array, tally: EncodingReport) -> csr_array:
        """CSR without a dense copy; lower bounds are 0, so zeros stay zeros."""
        X.sum_duplicates()
        which = np.repeat(np.arange(len(self.groups)), [g.count for g in self.groups])[X.indices]
        X.data = self._filled(X.data, which, tally)
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        bad = np.zeros(X.shape[0], dtype=bool)
        bad[rows[~np.isfinite(X.data)]] = True
        self._refuse(bad, X, tally)
        high = np.array([g.high for g in self.groups])[which]
        outside = (X.data < 0.0) | (X.data > high)
        for k, hits in enumerate(np.bincount(which[outside], minlength=len(self.groups))):
            if hits:
                tally.clipped[self.groups[k].name] += int(hits)
        X.data = np.clip(X.data, 0.0, high) / np.where(high > 0, high, 1.0)
        hot = np.array([g.kind == "one_hot" for g in self.groups])
        place = rows * len(hot) + which
        sums = np.bincount(place, X.data, minlength=X.shape[0] * len(hot))
        sums = np.where(np.tile(hot, X.shape[0]), np.maximum(sums, 1.0), 1.0)
        for k, hits in enumerate((sums.reshape(-1, len(hot)) > 1.0).sum(axis=0)):
            if hits:
                tally.capped[self.groups[k].name] += int(hits)
        X.data /= sums[place]
        if self.intercept:
            ends = np.arange(1, X.shape[0] + 1)
            X = csr_array(
                (
                    np.insert(X.data, X.indptr[1:], 1.0),
                    np.insert(X.indices, X.indptr[1:], self.width),
                    X.indptr + np.append(0, ends).astype(X.indptr.dtype),
                ),
                shape=(X.shape[0], self.width + 1),
            )
        X = shorten(X, self.normalise, self.dtype)
        X.eliminate_zeros()
        return X

    def _refuse(self, bad: np.ndarray, X: Any, tally: EncodingReport) -> None:
        if not bad.any():
            return
        for row in np.flatnonzero(bad)[: SHOWN + 1]:
            cells = X[[row]].toarray()[0] if issparse(X) else X[row]
            column = int(np.flatnonzero(~np.isfinite(cells))[0])
            name = [n for g in self.groups for n in g.names][column]
            tally.fault(np.array([row]), name, [f"{cells[column]} is not finite"], FILL)
        tally.raise_faults()

    def to_dict(self) -> dict[str, Any]:
        settings = {k: v for k, v in self.get_params(deep=False).items() if k != "groups"}
        return {"encoder": "matrix", **settings, "groups": [g.to_dict() for g in self.groups]}

    def to_json(self) -> str:
        """The whole encoder as plain JSON, to be stored with a model."""
        return json.dumps({"schema_version": 1, **self.to_dict()}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> MatrixEncoder:
        """Exact inverse of ``to_json``; raises ``InputError`` on unknown fields or another
        version.
        """
        settings = read_settings(text, "matrix", cls._get_param_names())
        return cls(**{**settings, "groups": tuple(FeatureGroup(**g) for g in settings["groups"])})


def _dense(X: Any) -> np.ndarray:
    """A copy as float64; bytes by way of float32, which is exact and faster."""
    if issparse(X):
        return np.asarray(X.toarray(), dtype=np.float64)
    copy = np.array(X, dtype=np.float32 if X.dtype == np.uint8 else np.float64)
    return copy.astype(np.float64, copy=False)


def numbers_of(frame: pd.DataFrame) -> np.ndarray:
    """The cells as an array; text is read as numbers and a gap of any kind is NaN. Raises
    ``InputError`` on others.
    """
    if all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in frame.dtypes):
        return frame.to_numpy()
    try:
        return frame.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        for name in frame:
            found = pd.to_numeric(frame[name], errors="coerce").isna() & frame[name].notna()
            if found.any():
                raise InputError(
                    f"Expected numbers in column {name!r}, got {frame[name][found].iloc[0]!r}; "
                    "correct the row."
                ) from None
        raise
