"""A declared table as codes: the same rows that ``Encoder`` makes a matrix of, one small number a
column.

What a code stands for follows from declarations alone, so the basis is public. Every cell goes
through the encoder's own parts, with their fills, faults and counts, so nothing is read in two
ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from dpcore.objective.coded import CodedRows, Columns, Layout, Table
from dpcore.objective.coded.codes import MOST_LEVELS
from dpcore.preprocess.column_encoders import (
    ColumnEncoder,
    DateLevelPart,
    LevelPart,
    NumberPart,
    RankPart,
)
from dpcore.preprocess.design import EncodingReport
from dpcore.preprocess.encoder import Encoder

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Coding:
    """How the rows of ``encoder`` are coded: ``layout`` and, for each part, its positions where it
    has only some.
    """

    encoder: Encoder
    layout: Layout
    positions: tuple[Array | None, ...]

    @classmethod
    def of(cls, encoder: Any) -> Coding | None:
        """None of another encoder, where a column has more levels than a code, columns are
        crossed, or rows are
        rounded to single precision as a whole.
        """
        if not isinstance(encoder, Encoder) or encoder.dtype != "float64" or encoder.crosses:
            return None
        parts = encoder.parts
        if not parts or any(part.width + 1 > MOST_LEVELS for part in parts):
            return None
        width = encoder.design.dimension
        positions = tuple(positions_of(part) for part in parts)
        columns = [
            columns_of(part, known, width) for part, known in zip(parts, positions, strict=True)
        ]
        constant = np.zeros(width)
        constant[-1] = float(encoder.intercept)
        return cls(encoder, Layout(columns, constant), positions)

    def table(self, frame: pd.DataFrame, tally: EncodingReport, dtype: Any = np.float32) -> Table:
        """The rows of a frame as codes; counts and faults as ``Encoder.encode``."""
        index, value = self.encoder.slots(frame, tally)
        codes, fractions = [], []
        for part, known in zip(self.encoder.parts, self.positions, strict=True):
            here = slice(part.slot, part.slot + part.slots)
            code, fraction = coded(part, known, index[:, here], value[:, here])
            codes.append(code)
            if fraction is not None:
                fractions.append(fraction)
        return Table.of(self.layout, codes, fractions, dtype)

    def rows(self, table: Table) -> CodedRows:
        """The rows of a table as sums read them, shortened as the encoder says."""
        return CodedRows(table, self.layout, self.encoder.normalise)


def positions_of(part: ColumnEncoder) -> Array | None:
    """Where the values of a part that has only some stand on its scale, rising, shape (levels,);
    None of the others.

    A position is the number in [0, 1] itself, or the place between two hats in units of their
    distance.
    """
    if isinstance(part, RankPart) and part.map != "bins":
        numbers = np.arange(len(part.column.levels), dtype=float)
        return part.position(numbers)
    return None


def levelled(part: ColumnEncoder) -> bool:
    """Whether a row has exactly one of the part's columns, with the value 1, or none."""
    bins = isinstance(part, NumberPart) and part.map == "bins"
    return bins or isinstance(part, LevelPart | DateLevelPart)


def columns_of(part: ColumnEncoder, positions: Array | None, width: int) -> Columns:
    """Basis and slopes of one part; its last code is the empty row, for cells without a level."""
    if levelled(part):
        levels = np.arange(part.width)
        return Columns(
            part.names[0], _table(levels, part.start + levels, 1.0, part.width + 1, width)
        )
    assert isinstance(part, NumberPart)
    if positions is not None:
        return Columns(part.names[0], _at(part, positions, width))
    count, centred = part.count, part.map == "centred"
    if count == 1:
        basis = _table(np.zeros(1, int), np.full(1, part.start), -1.0 if centred else 0.0, 1, width)
        slope = 2.0 if centred else 1.0
        return Columns(
            part.names[0], basis, _table(np.zeros(1, int), np.full(1, part.start), slope, 1, width)
        )
    left = np.arange(count - 1)
    basis = _table(left, part.start + left, 1.0, count, width)
    slopes = _table(left, part.start + left + 1, 1.0, count, width) - basis
    return Columns(part.names[0], basis, csr_array(slopes))


def _at(part: NumberPart, positions: Array, width: int) -> csr_array:
    """The rows of the numbers at ``positions``, and the empty one."""
    levels = len(positions)
    if part.count == 1:
        value = 2.0 * positions - 1.0 if part.map == "centred" else positions
        return _table(np.arange(levels), np.full(levels, part.start), value, levels + 1, width)
    left = np.minimum(positions.astype(int), part.count - 2)
    right = positions - left
    first = _table(np.arange(levels), part.start + left, 1.0 - right, levels + 1, width)
    return csr_array(
        first + _table(np.arange(levels), part.start + left + 1, right, levels + 1, width)
    )


def _table(rows: Array, columns: Array, value: Any, levels: int, width: int) -> csr_array:
    found = csr_array(
        (np.broadcast_to(value, np.shape(rows)).astype(float), (rows, columns)),
        shape=(levels, width),
    )
    found.sum_duplicates()
    found.eliminate_zeros()
    return found


def coded(
    part: ColumnEncoder, positions: Array | None, index: Array, value: Array
) -> tuple[Array, Array | None]:
    """Code and fraction of each row from the slots (rows, slots) that the part filled."""
    if levelled(part):
        return np.where(value[:, 0] != 0.0, index[:, 0] - part.start, part.width), None
    assert isinstance(part, NumberPart)
    if positions is not None:
        return _nearest(part, positions, index, value), None
    if part.count == 1:
        fraction = (value[:, 0] + 1.0) / 2.0 if part.map == "centred" else value[:, 0]
        return np.zeros(len(value), dtype=np.uint8), fraction
    blank = value.sum(axis=1) == 0.0
    return np.where(blank, part.count - 1, index[:, 0] - part.start), value[:, 1]


def _nearest(part: NumberPart, positions: Array, index: Array, value: Array) -> Array:
    """The level of each row by its position, which is one of ``positions`` up to rounding; the last
    for no value.
    """
    if part.count == 1:
        place = (value[:, 0] + 1.0) / 2.0 if part.map == "centred" else value[:, 0]
        blank = np.zeros(len(value), dtype=bool)
    else:
        place = index[:, 0] - part.start + value[:, 1]
        blank = value.sum(axis=1) == 0.0
    middle = (positions[1:] + positions[:-1]) / 2.0
    return np.where(blank, len(positions), np.searchsorted(middle, place, side="right"))
