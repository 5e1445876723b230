"""What an additive model says: its score as a sum of one term a column, each drawn over the
column's own units.

Everything here is post-processing of weights, declarations and released marginals; no row is read
but one that is to be explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from dpcore.errors import InputError
from dpcore.features import FeatureGroup, from_unit, unit_interval
from dpcore.preprocess.column_encoders import ColumnEncoder, NumberPart
from dpcore.preprocess.encoder import Encoder
from dpcore.preprocess.matrix import MatrixEncoder
from dpcore.preprocess.parts import CrossPart

# Points of a curve over one column, a whole number to each of seven stretches between hats, both
# ends included.
CURVE_POINTS = 57
# Half the width of a band, in standard deviations of the noise.
BAND_WIDTH = 2.0

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Axis:
    """Points of a column: ``labels`` of levels, or ``numbers`` in the column's own unit."""

    name: str
    labels: tuple[str, ...] | None = None
    numbers: tuple[float, ...] | None = None
    log: bool = False

    @property
    def places(self) -> Array:
        """Where the points lie between the ends of the declared range, in [0, 1]; levels next to
        each other.
        """
        if self.numbers is None:
            return np.linspace(0.0, 1.0, len(self))
        return unit_interval(np.array(self.numbers), self.numbers[0], self.numbers[-1], self.log)

    def __len__(self) -> int:
        return len(self.labels or self.numbers or ())

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Axis:
        """The inverse of ``to_dict``."""
        at, log = tuple(stored["at"]), stored["scale"] == "log"
        if stored["kind"] == "levels":
            return cls(stored["name"], labels=at)
        return cls(stored["name"], numbers=at, log=log)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        at: Sequence[Any] = (
            self.numbers
            if self.labels is None and self.numbers is not None
            else (self.labels or ())
        )
        kind = "levels" if self.labels is not None else "numbers"
        return {
            "name": self.name,
            "kind": kind,
            "scale": "log" if self.log else "linear",
            "at": list(at),
        }


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the score over its axes (two of a cross), centred on its mean under the
    marginals.

    ``values`` (outputs, points), or (outputs, points, points) of a cross; ``band`` of the same
    shape without outputs: half the width of what the noise may have moved, None where that is not
    known; ``importance``: the standard deviation of the term under the marginals. ``mean``
    (outputs,) was taken off and stands in the constant.
    """

    name: str
    axes: tuple[Axis, ...]
    values: Array
    band: Array | None
    importance: float
    mean: Array
    columns: tuple[int, ...]

    def points(self) -> list[Any]:
        """The points of the values in their order: levels, numbers, pairs of a cross."""
        found = [list(axis.labels or axis.numbers or ()) for axis in self.axes]
        return found[0] if len(found) == 1 else list(product(*found))

    @property
    def kind(self) -> str:
        """``curve`` over numbers, ``bars`` by level, ``map`` of a cross."""
        if len(self.axes) > 1:
            return "map"
        return "bars" if self.axes[0].labels is not None else "curve"

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Term:
        """A term to be drawn, from ``to_dict``; it no longer knows its columns."""
        axes = tuple(Axis.from_dict(axis) for axis in stored["axes"])
        values, mean = np.array(stored["values"]), np.array(stored["mean"])
        band = None if stored["band"] is None else np.array(stored["band"])
        return cls(stored["name"], axes, values, band, float(stored["importance"]), mean, ())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        band = None if self.band is None else self.band.tolist()
        axes = [axis.to_dict() for axis in self.axes]
        found = {"name": self.name, "kind": self.kind, "importance": self.importance, "axes": axes}
        return found | {"values": self.values.tolist(), "band": band, "mean": self.mean.tolist()}


@dataclass(frozen=True, slots=True)
class Additive:
    """A score as ``constant`` + the sum of ``terms``, the most important first; ``constant``
    (outputs,) is that of a row that is not shortened.
    """

    terms: tuple[Term, ...]
    constant: Array
    weights: tuple[Array, ...] = ()  # of each term's columns, (outputs, columns)
    intercept: Array | None = None  # the weight of the constant column, (outputs,)

    def frame(self, outputs: Sequence[str] = ("",)) -> pd.DataFrame:
        """A line for each point of each term: ``DPClassifier.explain`` says which columns."""
        lines = []
        for term in self.terms:
            points = term.points()
            band = np.full(len(points), np.nan) if term.band is None else term.band.ravel()
            for output, values in zip(outputs, term.values.reshape(len(outputs), -1), strict=True):
                columns = zip(points, values, band, strict=True)
                lines += [(term.name, at, output, v, b, term.importance) for at, v, b in columns]
        names = ["term", "at", "output", "value", "band", "importance"]
        frame = pd.DataFrame(lines, columns=names)
        frame.attrs["constant"] = dict(zip(outputs, self.constant.tolist(), strict=True))
        return frame

    def contributions(self, rows: Any) -> tuple[Array, Array]:
        """Of encoded ``rows`` (n, d) the constant of each, (n, outputs), and what each term adds to
        it, (n, terms, outputs): together they are the score.

        Where rows are shortened or brought to length 1, so is their constant column.
        """
        dense = rows.toarray() if issparse(rows) else np.asarray(rows)
        constants = np.tile(self.constant, (len(dense), 1))
        if self.intercept is not None:
            constants += np.outer(dense[:, -1] - 1.0, self.intercept)
        added = np.zeros((len(dense), len(self.terms), len(self.constant)))
        for k, (term, w) in enumerate(zip(self.terms, self.weights, strict=True)):
            added[:, k] = dense[:, list(term.columns)] @ w.T - term.mean
        return constants, added


@dataclass(frozen=True, slots=True)
class Piece:
    """Columns of one term: ``basis`` gives their values (points, columns) at points of the axes.

    ``heart``: the points at which single columns stand, in the order of ``hearts`` (columns of the
    design): their marginals weigh them. A single number has none.
    """

    name: str
    axes: tuple[Axis, ...]
    columns: tuple[int, ...]
    basis: Array
    heart: Array
    hearts: tuple[int, ...]


def additive(
    encoder: Encoder | MatrixEncoder | Sequence[Piece],
    weights: Array,
    intercept: bool,
    marginals: Mapping[str, Any] | None = None,
    noise: float | None = None,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Additive:
    """The model with ``weights`` (outputs, d) in the columns of ``encoder`` as a sum of terms.

    ``marginals``: released ``means`` and ``variances`` of the columns; without them every point of
    an axis weighs the same. ``noise``: standard deviation of independent noise in each weight: the
    band of a term is two standard deviations of sum_j noise_j (b_j - mean_j), b its columns.
    ``scale``, ``shift``: from scores to the label's unit.
    """
    W = np.atleast_2d(np.asarray(weights, dtype=np.float64)) * scale
    pieces = pieces_of(encoder)
    means, spread = _released(marginals or {})
    terms, parts = [], []
    last = W[:, -1].copy() if intercept else None
    constant = np.full(len(W), shift) if last is None else shift + last
    for piece in pieces:
        own = W[:, list(piece.columns)]
        at = means[list(piece.columns)] if means is not None else piece.basis.mean(axis=0)
        mean = own @ at
        values = own @ piece.basis.T - mean[:, None]
        shape = tuple(len(axis) for axis in piece.axes)
        band = _band(piece, at, scale, noise)
        importance = _importance(piece, own, means, spread)
        constant += mean
        values = values.reshape(len(W), *shape)
        terms.append(Term(piece.name, piece.axes, values, band, importance, mean, piece.columns))
        parts.append(own)
    order = sorted(range(len(terms)), key=lambda k: -terms[k].importance)
    return Additive(tuple(terms[k] for k in order), constant, tuple(parts[k] for k in order), last)


def _band(piece: Piece, at: Array, scale: float, noise: float | None) -> Array | None:
    """Two standard deviations of a term on its axes, for independent ``noise`` in its weights."""
    if noise is None:
        return None
    found = BAND_WIDTH * abs(scale) * noise * np.linalg.norm(piece.basis - at, axis=1)
    return np.asarray(found.reshape([len(axis) for axis in piece.axes]))


def _released(marginals: Mapping[str, Any]) -> tuple[Array | None, Array | None]:
    """Released means and variances of the columns, (d,) each; None where there are none."""
    if not marginals:
        return None, None
    means, variances = marginals["means"], marginals["variances"]
    return np.asarray(means, dtype=np.float64), np.asarray(variances, dtype=np.float64)


def _importance(piece: Piece, own: Array, means: Array | None, variances: Array | None) -> float:
    """Standard deviation of a term: of its values where single columns stand, weighed by their
    marginals.

    Rows that have none of them (no value, the level that was left out) weigh with the value 0.
    Several outputs count by their root mean square.
    """
    if len(piece.columns) == 1 and not piece.hearts:
        variance = 1.0 / 12.0 if variances is None else float(variances[piece.columns[0]])
        return float(sqrt(np.mean(own**2) * variance))
    values = own @ piece.heart.T
    share = np.full(values.shape[1], 1.0 / values.shape[1])
    if means is not None:
        share = _shares(piece, means)
    middle = values @ share
    return float(sqrt(max(np.mean(values**2 @ share - middle**2), 0.0)))


def _shares(piece: Piece, means: Array) -> Array:
    """Released means where a term's own columns have their values. Bins without sums of their own,
    of which all but one have one mean, take those of the coarser columns between them.
    """
    found: Array = means[list(piece.hearts)]
    coarse = [column for column in piece.columns if column not in piece.hearts]
    if len(coarse) > 1 and np.ptp(np.delete(found, found.argmax())) == 0.0:
        near = piece.heart[:, : len(coarse)]
        found = near / np.maximum(near.sum(axis=0), 1e-300) @ means[coarse]
    return found / max(float(found.sum()), 1.0)


def pieces_of(encoder: Encoder | MatrixEncoder | Sequence[Piece]) -> Sequence[Piece]:
    """The terms of an encoder's columns, in their order; a column that adds none (its one level
    left out) has no term.
    """
    if isinstance(encoder, MatrixEncoder):
        return group_pieces(encoder.groups, encoder.numeric == "centred")
    if not isinstance(encoder, Encoder):
        return encoder
    found: dict[str, list[ColumnEncoder]] = {}
    for part in encoder.parts:
        if part.width:
            found.setdefault(part.name, []).append(part)
    return [
        _cross(parts[0]) if isinstance(parts[0], CrossPart) else _column(parts)
        for parts in found.values()
    ]


def _column(parts: Sequence[ColumnEncoder]) -> Piece:
    """A column from its parts: its own map, and fine bins where it has them."""
    first, last = parts[0], parts[-1]
    points, axis = _points(first, last)
    heart = _own(last)
    columns = tuple(
        column for part in parts for column in range(part.start, part.start + part.width)
    )
    basis = np.hstack([_dense(part, points) for part in parts])
    lone = isinstance(last, NumberPart) and last.width == 1
    hearts = () if lone else tuple(range(last.start, last.start + last.width))
    return Piece(
        first.name,
        (axis,),
        columns,
        basis,
        np.hstack([_dense(part, heart) for part in parts]),
        hearts,
    )


def _cross(part: CrossPart) -> Piece:
    one, other = (_points(side, side) for side in (part.one, part.other))
    pairs = np.array([(a, b) for a in one[0] for b in other[0]], dtype=float)
    hearts = np.array([(a, b) for a in _own(part.one) for b in _own(part.other)], dtype=float)
    columns = tuple(range(part.start, part.start + part.width))
    same = len(hearts) == part.width
    return Piece(
        part.name,
        (one[1], other[1]),
        columns,
        _dense(part, pairs),
        _dense(part, hearts if same else pairs),
        columns if same else (),
    )


def _points(part: ColumnEncoder, finest: ColumnEncoder) -> tuple[Array, Axis]:
    """Where a part is drawn: all its levels, or a grid over the declared range, two points to each
    fine bin.
    """
    if part.levels is not None:
        return np.arange(len(part.levels)), Axis(part.name, labels=part.levels)
    assert isinstance(part, NumberPart) and isinstance(finest, NumberPart)
    count = 2 if part.count == 1 and not part.log else CURVE_POINTS
    if finest.map == "bins":
        edges = np.arange(finest.count) / finest.count
        u = np.sort(np.concatenate([edges, edges + (1.0 - 1e-6) / finest.count]))
    else:
        u = np.linspace(0.0, 1.0, count)
    numbers = from_unit(u, part.low, part.high, finest.log)
    return numbers, Axis(part.name, numbers=tuple(map(float, numbers)), log=finest.log)


def _own(part: ColumnEncoder) -> Array:
    """A point for each column of a part; of a single number its two ends."""
    if isinstance(part, NumberPart):
        return part.own_points()
    assert part.levels is not None
    return np.arange(len(part.levels) - part.width, len(part.levels))


def _dense(part: ColumnEncoder, points: Array) -> Array:
    """Values (points, width) of the columns of a part at ``points``."""
    index, value = part.basis(points)
    dense = np.zeros((len(points), part.width))
    np.add.at(dense, (np.arange(len(points))[:, None], index), value)
    return dense


def group_pieces(groups: Sequence[FeatureGroup], centred: bool = False) -> list[Piece]:
    """Terms of a file of numbers: a line for a single column, one bar a column (from its low to its
    high) for more.
    """
    found, start = [], 0
    for group in groups:
        columns = tuple(range(start, start + group.count))
        start += group.count
        if group.count == 1 and group.kind != "one_hot":
            low = -1.0 if centred and group.kind == "numeric" else 0.0
            axis = Axis(group.name, numbers=(group.low, group.high))
            basis = np.array([[low], [1.0]])
            found.append(Piece(group.name, (axis,), columns, basis, basis, ()))
        else:
            found.append(bars(group.name, group.names, columns))
    return found


def bars(name: str, labels: Sequence[str], columns: Sequence[int]) -> Piece:
    """The term of columns of which a row has one, or parts of several."""
    unit = np.eye(len(columns))
    return Piece(
        name, (Axis(name, labels=tuple(labels)),), tuple(columns), unit, unit, tuple(columns)
    )


def line(
    name: str, low: float, high: float, column: int, ends: tuple[float, float] = (0.0, 1.0)
) -> Piece:
    """The term of one number: ``ends`` are the column's values at ``low`` and ``high``."""
    basis = np.array([[ends[0]], [ends[1]]])
    return Piece(name, (Axis(name, numbers=(low, high)),), (column,), basis, basis, ())


def require_additive(dimension: int, encoder: Encoder | MatrixEncoder, columns: int) -> None:
    """Raise ``InputError`` where the rows of a model with ``columns`` columns, ``dimension`` with
    its constant, are not those of the encoder.
    """
    made = encoder.design.dimension
    if made != columns or (encoder.design.intercept and made != dimension):
        raise InputError(
            f"Expected the encoder that made the {columns} columns of the rows, got one of {made} "
            f"(intercept={encoder.design.intercept}); give that one."
        )
