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
from scipy.sparse import csr_array, kron

from dpcore.objective.coded import CodedRows, Columns, Layout, Table
from dpcore.objective.coded.codes import MOST_LEVELS
from dpcore.preprocess.column_encoders import (
    ColumnEncoder,
    LevelPart,
    NumberPart,
    RankPart,
)
from dpcore.preprocess.design import EncodingReport
from dpcore.preprocess.encoder import Encoder
from dpcore.preprocess.parts import CrossPart, DateLevelPart

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Coding:
    """How the rows of ``encoder`` are coded."""

    encoder: Encoder
    layout: Layout

    @classmethod
    def of(cls, encoder: Any) -> Coding | None:
        """None of another encoder, where a column has more levels than a code, two numbers are
        crossed that both have fractions, or rows are rounded to single precision as a whole.
        """
        if not isinstance(encoder, Encoder) or encoder.dtype != "float64":
            return None
        parts = encoder.parts
        if not parts or not all(has_codes(part) for part in parts):
            return None
        width = encoder.design.dimension
        columns = [columns_of(part, width) for part in parts]
        constant = np.zeros(width)
        constant[-1] = float(encoder.intercept)
        return cls(encoder, Layout(columns, constant))

    def table(self, frame: pd.DataFrame, tally: EncodingReport, dtype: Any = np.float32) -> Table:
        """The rows of a frame as codes; counts and faults as ``Encoder.encode``."""
        index, value = self.encoder.slots(frame, tally, by_column=True)
        codes, fractions = [], []
        for part in self.encoder.parts:
            here = slice(part.slot, part.slot + part.slots)
            code, fraction = coded(part, index[:, here] - part.start, value[:, here])
            codes.append(code)
            if fraction is not None:
                fractions.append(fraction)
        return Table.of(self.layout, codes, fractions, dtype)

    def rows(self, table: Table) -> CodedRows:
        """The rows of a table as sums read them, shortened as the encoder says."""
        return CodedRows(table, self.layout, self.encoder.normalise)


def has_codes(part: ColumnEncoder) -> bool:
    """Whether rows are linear in one fraction at most, with no more levels than a code has."""
    if isinstance(part, CrossPart):
        if not (levelled(part.one) or levelled(part.other)):
            return False
        return codes_of(part.one) * codes_of(part.other) <= MOST_LEVELS
    return codes_of(part) <= MOST_LEVELS


def codes_of(part: ColumnEncoder) -> int:
    """At least as many as a part has levels, the empty one included."""
    positions = positions_of(part)
    return (part.width if positions is None else len(positions)) + 1


def positions_of(part: ColumnEncoder) -> Array | None:
    """Where the values of a part that has only some stand on its scale, rising, shape (levels,);
    None of the others.

    A position is the number in [0, 1] itself, or the place between two hats in units of their
    distance.
    """
    if not isinstance(part, NumberPart) or part.map == "bins":
        return None
    if isinstance(part, RankPart):
        return part.position(np.arange(len(part.column.levels), dtype=float))
    grid = part.column.grid
    return None if grid is None else part.position(grid)


def levelled(part: ColumnEncoder) -> bool:
    """Whether a row has exactly one of the part's columns, with the value 1, or none."""
    bins = isinstance(part, NumberPart) and part.map == "bins"
    return bins or isinstance(part, LevelPart | DateLevelPart)


def columns_of(part: ColumnEncoder, width: int) -> Columns:
    """Basis and slopes of one part among ``width`` columns."""
    basis, slopes = tables_of(part)
    return Columns(
        part.name,
        _placed(basis, part.start, width),
        None if slopes is None else _placed(slopes, part.start, width),
    )


def tables_of(part: ColumnEncoder) -> tuple[csr_array, csr_array | None]:
    """Basis and slopes (levels, columns of the part); the last code of a part with levels is the
    empty row, for cells without one.

    Code i * levels + j of a cross is code i of the one side with j of the other; one of the two has
    no fraction, so the row is linear in that of the other.
    """
    if isinstance(part, CrossPart):
        (one, one_slopes), (other, other_slopes) = tables_of(part.one), tables_of(part.other)
        basis = csr_array(kron(one, other))
        if one_slopes is not None:
            return basis, csr_array(kron(one_slopes, other))
        return basis, None if other_slopes is None else csr_array(kron(one, other_slopes))
    if levelled(part):
        levels = np.arange(part.width)
        return _table(levels, levels, 1.0, part.width + 1, part.width), None
    assert isinstance(part, NumberPart)
    positions = positions_of(part)
    if positions is not None:
        return _at(part, positions), None
    count, centred = part.count, part.map == "centred"
    if count == 1:
        first = np.zeros(1, int)
        basis = _table(first, first, -1.0 if centred else 0.0, 1, 1)
        return basis, _table(first, first, 2.0 if centred else 1.0, 1, 1)
    left = np.arange(count - 1)
    basis = _table(left, left, 1.0, count, count)
    return basis, csr_array(_table(left, left + 1, 1.0, count, count) - basis)


def _at(part: NumberPart, positions: Array) -> csr_array:
    """The rows of the numbers at ``positions``, and the empty one."""
    levels, width = len(positions), part.width
    if part.count == 1:
        value = 2.0 * positions - 1.0 if part.map == "centred" else positions
        return _table(np.arange(levels), np.zeros(levels, int), value, levels + 1, width)
    left = np.minimum(positions.astype(int), part.count - 2)
    right = positions - left
    first = _table(np.arange(levels), left, 1.0 - right, levels + 1, width)
    return csr_array(first + _table(np.arange(levels), left + 1, right, levels + 1, width))


def _table(rows: Array, columns: Array, value: Any, levels: int, width: int) -> csr_array:
    found = csr_array(
        (np.broadcast_to(value, np.shape(rows)).astype(float), (rows, columns)),
        shape=(levels, width),
    )
    found.sum_duplicates()
    found.eliminate_zeros()
    return found


def _placed(table: csr_array, start: int, width: int) -> csr_array:
    """The same entries ``start`` columns further on."""
    return csr_array(
        (table.data, table.indices + start, table.indptr), shape=(table.shape[0], width)
    )


def coded(part: ColumnEncoder, index: Array, value: Array) -> tuple[Array, Array | None]:
    """Code and fraction of each row from the slots (rows, slots) that the part filled, with columns
    counted from its own first.
    """
    if isinstance(part, CrossPart):
        return _crossed(part, index, value)
    if levelled(part):
        return np.where(value[:, 0] != 0.0, index[:, 0], part.width), None
    assert isinstance(part, NumberPart)
    positions = positions_of(part)
    if positions is not None:
        return _nearest(part, positions, index, value), None
    if part.count == 1:
        fraction = (value[:, 0] + 1.0) / 2.0 if part.map == "centred" else value[:, 0]
        return np.zeros(len(value), dtype=np.uint8), fraction
    return np.where(_blank(value), part.count - 1, index[:, 0]), value[:, 1]


def _blank(value: Array) -> Array:
    """Rows between no two hats: their values are not negative, and sum to 1 in all others."""
    return np.asarray(value[:, 0] + value[:, 1] == 0.0)


def _crossed(part: CrossPart, index: Array, value: Array) -> tuple[Array, Array | None]:
    """Codes of both sides, read back from their product: one of them is 0 or 1 in one column, so
    the sums over its slots are the values of the other, and where it is 0 the row is empty anyhow.
    """
    rows, width = len(index), part.other.width
    shape = (rows, part.one.slots, part.other.slots)
    columns, values = index.reshape(shape), value.reshape(shape)
    one, fraction = coded(part.one, columns[:, :, 0] // width, values.sum(axis=2))
    other, second = coded(part.other, columns[:, 0, :] % width, values.sum(axis=1))
    code = one.astype(np.int64) * tables_of(part.other)[0].shape[0] + other
    return code, second if fraction is None else fraction


def _nearest(part: NumberPart, positions: Array, index: Array, value: Array) -> Array:
    """The level of each row by its position, which is one of ``positions`` up to rounding; the last
    for no value.
    """
    if part.count == 1:
        place = (value[:, 0] + 1.0) / 2.0 if part.map == "centred" else value[:, 0]
        blank = np.zeros(len(value), dtype=bool)
    else:
        place = index[:, 0] + value[:, 1]
        blank = _blank(value)
    middle = (positions[1:] + positions[:-1]) / 2.0
    return np.where(blank, len(positions), np.searchsorted(middle, place, side="right"))
