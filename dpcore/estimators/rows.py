"""The public map from a caller's rows to rows that keep the bounds of the problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isfinite, sqrt
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack, issparse

from dpcore.errors import InputError
from dpcore.losses import Array
from dpcore.objective.rounding import bound_norms
from dpcore.objective.rows import SUM_TOLERANCE, Matrix, bound_blocks
from dpcore.problem import Block


@dataclass(frozen=True)
class RowMap:
    """Rescale by declared ``bounds``, append the constant, and bring every row within its bound.

    The bound is ||x||_2 <= ``norm_bound`` with the constant column in it, or, ``by_blocks``, values
    in [0, 1] with each one-hot block scaled down to sum <= 1. The map is the same for training and
    prediction and looks at one row only.
    """

    columns: int
    norm_bound: float
    by_blocks: bool
    blocks: tuple[Block, ...] = ()
    intercept: bool | str = True
    bounds: tuple[Any, Any] | None = None
    low: Array = field(init=False)
    high: Array = field(init=False)
    shift: Array = field(init=False)
    scale: Array = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.intercept, bool) and not self._has_last:
            raise InputError(
                f"Expected intercept to be True, False or 'last', got intercept={self.intercept!r}."
            )
        low, high = (0.0, 1.0) if self.bounds is None else pair("bounds", self.bounds)
        low, high = self._by_column(low), self._by_column(high)
        if self._has_last:
            low[-1], high[-1] = 0.0, 1.0
        with np.errstate(over="ignore"):
            spans = np.isfinite(low) & np.isfinite(high) & np.isfinite(high - low) & (low < high)
        if not np.all(spans):
            raise InputError(
                "Expected finite bounds=(low, high) with low < high, a finite distance apart, in "
                "every column; correct bounds."
            )
        shift, scale = low, high - low
        if self.intercept is False:
            # Without a constant nothing can undo a shift: the columns are scaled about 0.
            shift, scale = np.zeros(self.columns), np.maximum(np.abs(low), np.abs(high))
            if self.by_blocks and np.any(low < 0.0):
                raise InputError(
                    "Expected bounds with low >= 0 for intercept=False, where a scale alone brings "
                    "values to [0, 1], got a negative low; use intercept=True, or an algorithm "
                    "that bounds norms, as 'dp_sgd' does."
                )
        for name, value in {"low": low, "high": high, "shift": shift, "scale": scale}.items():
            object.__setattr__(self, name, value)

    @property
    def _has_last(self) -> bool:
        """Whether the last column given is the constant."""
        return isinstance(self.intercept, str) and self.intercept == "last"

    def _by_column(self, bound: Any) -> Array:
        try:
            return np.array(np.broadcast_to(np.asarray(bound, dtype=np.float64), self.columns))
        except (TypeError, ValueError):
            raise InputError(
                "Expected bounds=(low, high) of numbers, one for all or one for each of "
                f"{self.columns} columns, got bounds={short(self.bounds)}."
            ) from None

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
        """Mapped rows, the factor (n,) that each was scaled by, and how many values, blocks and
        rows were bounded.
        """
        counts: dict[str, int] = {}
        if self.by_blocks or self.bounds is not None:
            X, counts["clipped_values"] = self._clipped(X)
            X = self._rescaled(X)
        if self.by_blocks:
            X, _, counts["shortened_blocks"] = bound_blocks(X, self.blocks)
        if self.intercept is True:
            X = with_constant(X)
        factors = np.ones(X.shape[0])
        if not self.by_blocks:
            X, factors = bound_norms(X, self.norm_bound)
            counts["shortened_rows"] = int(np.count_nonzero(factors < 1.0))
        return X, factors, counts

    def _clipped(self, X: Matrix) -> tuple[Matrix, int]:
        """``X`` with values cut to their bounds, ``X`` itself where none is beyond; and how many
        were.
        """
        if not issparse(X):
            beyond = int(np.count_nonzero((self.low > X) | (self.high < X)))
            return (np.clip(X, self.low, self.high).astype(X.dtype) if beyond else X), beyond
        if np.any((self.low > 0.0) | (self.high < 0.0) | (self.shift != 0.0)):
            raise InputError(
                "Expected bounds with low=0 for a sparse matrix, got others; use low=0 or a dense "
                "matrix."
            )
        low, high = self.low[X.indices], self.high[X.indices]
        beyond = int(np.count_nonzero((X.data < low) | (X.data > high)))
        cut = np.clip(X.data, low, high).astype(X.dtype) if beyond else X.data
        return csr_array((cut, X.indices, X.indptr), shape=X.shape), beyond

    def _rescaled(self, X: Matrix) -> Matrix:
        if self.bounds is None:
            return X
        if not issparse(X):
            return ((X - self.shift) / self.scale).astype(X.dtype)
        return csr_array(
            ((X.data / self.scale[X.indices]).astype(X.dtype), X.indices, X.indptr), shape=X.shape
        )

    def unmap(self, W: Array) -> tuple[Array, Array]:
        """Coefficients (k, columns) and intercepts (k,) for the caller's columns, for rows that are
        not ``bent``.
        """
        intercept = W[:, -1].copy() if self.intercept is True else np.zeros(len(W))
        if self.bounds is None:
            return W[:, : self.columns].copy(), intercept
        coef = W[:, : self.columns] / self.scale
        return coef, intercept - coef @ self.shift

    @property
    def longest(self) -> float:
        """The largest norm of a row within the declared bounds, before it is scaled down; infinite
        without bounds.
        """
        if self.bounds is None:
            return inf
        ends = (
            np.maximum(np.abs(self.low - self.shift), np.abs(self.high - self.shift)) / self.scale
        )
        return sqrt(float(ends @ ends) + (self.intercept is True))

    @property
    def bent(self) -> str:
        """Why the map is not linear on rows within the declared bounds; empty where it is."""
        if self.by_blocks or self.longest <= self.norm_bound:
            return ""
        enough = self.longest if isfinite(self.longest) else sqrt(self.dimension)
        return (
            f"Rows longer than norm_bound={self.norm_bound:g} are scaled down before they are "
            "scored, so no coefficients of the rows as they are give what predict gives: use "
            "predict, or declare bounds=(low, high) and "
            f"norm_bound={ceil(enough * 1000.0) / 1000.0:g} or more, which hold every row."
        )


def named_rows(X: Any) -> Any:
    """Rows as scikit-learn takes them: tables of Arrow, polars and others as frames, with their
    names.
    """
    if isinstance(X, np.ndarray | list) or issparse(X):
        return X
    from dpcore.preprocess.frames import as_frame  # pandas, which arrays alone do not need

    return as_frame(X)


def bounds_by_column(bounds: Any, names: Iterable[str] | None) -> Any:
    """Bounds as (low, high); those that are declared by the names of columns, in the order of
    ``names``.

    Raises ``InputError`` where rows have no names, or a column has no bounds.
    """
    if not isinstance(bounds, Mapping):
        return bounds
    known = None if names is None else list(names)
    if known is None or set(known) != set(bounds):
        other = "rows without names" if known is None else f"columns {short(known)}"
        raise InputError(
            f"Expected bounds={{column: (low, high)}} of every column, got bounds={short(bounds)} "
            f"and {other}; give rows with named columns, and bounds of each."
        )
    pairs = [numbers(f"bounds[{name!r}]", bounds[name]) for name in known]
    return [low for low, _ in pairs], [high for _, high in pairs]


def row_pieces(rows: RowMap, names: Sequence[str]) -> list[Any]:
    """The terms of a caller's columns: a line from low to high, or the columns of a block as bars.

    A constant that the caller brought as the last column is no term.
    """
    from dpcore.preprocess.terms import bars, line  # pandas, which a fit of arrays does not need

    owner = {column: block for block in rows.blocks for column in block.columns}
    ends = (rows.low - rows.shift) / rows.scale, (rows.high - rows.shift) / rows.scale
    found = []
    for column in range(rows.columns - (rows.intercept == "last")):
        block = owner.get(column)
        if block is None or len(block.columns) == 1:
            low, high = float(rows.low[column]), float(rows.high[column])
            values = (float(ends[0][column]), float(ends[1][column]))
            found.append(line(names[column], low, high, column, values))
        elif column == block.columns[0]:
            labels = [names[one] for one in block.columns]
            found.append(bars(shared_name(labels), labels, block.columns))
    return found


def shared_name(labels: Sequence[str]) -> str:
    """What names of one block have in common, as ``job`` of ``job=clerk`` and ``job=cook``."""
    heads = {label.partition("=")[0] for label in labels}
    return heads.pop() if len(heads) == 1 else f"{labels[0]} to {labels[-1]}"


def takes_sparse(bounds: Any, intercept: Any) -> bool:
    """Whether rows that are mostly 0 stay so: where nothing is shifted and 0 lies within the
    bounds.

    Bounds that are no numbers are refused by whoever fits; here they only take no sparse rows.
    """
    try:
        low, high = (np.asarray(end, dtype=np.float64) for end in pair("bounds", bounds))
        return bool(np.all((low <= 0.0) & (high >= 0.0) & ((low == 0.0) | (intercept is False))))
    except (TypeError, ValueError):
        return False


def pair(name: str, value: Any) -> tuple[Any, Any]:
    """The two ends of a range; raises ``InputError`` for anything that is not two things."""
    try:
        low, high = value
    except (TypeError, ValueError):
        raise InputError(f"Expected {name}=(low, high), got {name}={short(value)}.") from None
    return low, high


def numbers(name: str, value: Any) -> tuple[float, float]:
    """The two ends of a range as floats; raises ``InputError`` for anything else."""
    low, high = pair(name, value)
    try:
        return float(low), float(high)
    except (TypeError, ValueError):
        raise InputError(
            f"Expected {name}=(low, high) of numbers, got {name}={short(value)}."
        ) from None


def short(value: Any) -> str:
    """``value`` as one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def with_constant(X: Matrix) -> Matrix:
    """``X`` with a last column of ones."""
    ones = np.ones((X.shape[0], 1), dtype=X.dtype)
    return csr_array(hstack([X, ones], format="csr")) if issparse(X) else np.hstack([X, ones])


def as_blocks(blocks: Iterable[Block | Sequence[int]] | None) -> tuple[Block, ...]:
    """Blocks as declared: ``Block`` objects, or column numbers of one one-hot group each."""
    if blocks is None:
        return ()
    try:
        return tuple(
            item if isinstance(item, Block) else Block(tuple(int(column) for column in item))
            for item in blocks
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"Expected blocks as lists of column numbers, got blocks={short(blocks)}."
        ) from None
