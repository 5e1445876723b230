"""Parts of an encoder: each turns one column of a frame into (column index, value) slots of the
design matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.features import (
    MISSING,
    WIDE_SPAN,
    ZEROS,
    Column,
    bins,
    from_unit,
    hats,
    number_of,
    numeric_map,
    unit_interval,
)
from dpcore.identity import canonical, canonical_marks, canonical_texts
from dpcore.preprocess.design import SHOWN, EncodingReport

SMALL = 64  # rows up to which a plain loop beats hashing a whole column
UNKNOWN = -2
FILL_RULE = "declare a fill for the column, or correct the row"


class ColumnEncoder(ABC):
    """Columns ``start .. start + width`` of the design, filled through ``slots`` entries a row from
    slot ``slot``.

    A row is a point first (the place of its level, or a number; negative levels and ``blank`` rows
    have no value), and ``basis`` says which columns stand for a point. ``levels`` are the names of
    the points, None where they are numbers.
    """

    slots = 1
    block = "one_hot"  # kind of its block; "" for values below 0, which no block allows
    fine = False
    levels: tuple[str, ...] | None = None

    def __init__(self, column: Column, names: tuple[str, ...], name: str | None = None) -> None:
        self.column, self.names, self.width = column, names, len(names)
        self.name = name or column.name  # what it is of: a column, or one part of a date
        self.start = self.slot = 0

    @abstractmethod
    def points(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The point of each cell (n,), and the rows whose parts are all zeros (None: no row)."""

    @abstractmethod
    def basis(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns of this part (from 0) and their values at ``points``, (m, slots) each."""

    def write(
        self, points: np.ndarray, blank: np.ndarray | None, index: np.ndarray, value: np.ndarray
    ) -> None:
        """Fill this part's slots of ``index`` (columns of the design) and ``value``, (rows, slots)
        each.
        """
        columns, value[:] = self.basis(points)
        index[:] = self.start + columns
        if blank is not None:
            value[blank] = 0.0


class LevelPart(ColumnEncoder):
    """One-hot by declared levels; each row has at most one 1."""

    def __init__(self, column: Column, strip: bool) -> None:
        other = ("(other)",) if column.unknown == "other" else ()
        self.levels = column.levels + other
        shown = self.levels[int(column.drop_first) :]
        super().__init__(column, tuple(f"{column.name}={level}" for level in shown))
        self.codes = level_names(column, strip)

    def points(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        codes, uniques = factors(cells)
        levels = level_codes(self.column, self.codes, uniques, strip)
        levels = settle_levels(self.column, self.codes, codes, levels, uniques, tally, strip)
        if self.column.unknown == "other":
            levels = np.where(levels == UNKNOWN, len(self.column.levels), levels)
        return levels[codes], None

    def basis(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place = points.astype(np.int32) - int(self.column.drop_first)
        on = place >= 0
        return np.where(on, place, 0)[:, None], on[:, None].astype(float)


class NumberPart(ColumnEncoder):
    """A number in [0, 1]: one column, hat functions of it, or bins; ``fine`` bins tell more of what
    others encode.
    """

    def __init__(
        self,
        column: Column,
        numeric: str,
        low: float,
        high: float,
        name: str | None = None,
        fine: bool = False,
    ) -> None:
        self.map, count = numeric_map(numeric)
        name = name or column.name
        mark = "#" if self.map == "bins" else "~"
        super().__init__(
            column, (name,) if count == 1 else tuple(f"{name}{mark}{j}" for j in range(count)), name
        )
        self.low, self.high, self.count, self.fine = low, high, count, fine
        self.log = self.map in ("log", "hats", "bins") and high - low >= WIDE_SPAN
        self.slots = 2 if self.map == "hats" else 1
        self.block = "one_hot" if count > 1 or column.kind == "flag" else "numeric"
        self.levels = ("0", "1") if column.kind == "flag" else None
        if self.map == "centred":
            self.block = ""

    def points(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        numbers, blank = self.numbers(cells, tally, strip)
        tally.count(
            "clipped",
            self.column.name if self.map == "bins" else self.names[0],
            self.outside(numbers),
        )
        return self.column.on_grid(numbers), blank

    def outside(self, numbers: np.ndarray) -> np.ndarray:
        """Which numbers lie beyond the declared bounds."""
        return (numbers < self.low) | (numbers > self.high)

    def basis(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u = unit_interval(points, self.low, self.high, self.log)
        if self.map == "hats":
            j, left, right = hats(u, self.count)
            return np.stack([j, j + 1], axis=1), np.stack([left, right], axis=1)
        if self.map == "bins":
            return bins(u, self.count)[:, None], np.ones((len(u), 1))
        value = 2.0 * u - 1.0 if self.map == "centred" else u
        return np.zeros((len(u), 1), dtype=np.int32), value[:, None]

    def own_points(self) -> np.ndarray:
        """A number for each column: its knot, the middle of its bin, or both ends of a single
        column.
        """
        count = self.count if self.count > 1 else 2
        u = (np.arange(count) + 0.5) / count if self.map == "bins" else np.linspace(0.0, 1.0, count)
        return from_unit(u, self.low, self.high, self.log)

    def position(self, numbers: np.ndarray) -> np.ndarray:
        """Where numbers stand: in [0, 1], or between hats, in units of their distance."""
        u = unit_interval(numbers, self.low, self.high, self.log)
        if self.count == 1:
            return u
        j, _, right = hats(u, self.count)
        return np.asarray(j + right)

    def numbers(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Finite numbers, shape (n,), and the rows whose parts are to be all zeros (None: no
        row).
        """
        column = self.column
        if cells.dtype.kind in "iufb" and isinstance(cells.dtype, np.dtype):
            raw, text = cells.to_numpy(dtype=np.float64), None
        else:
            codes, uniques = factors(cells)
            table = np.append([parse_number(column, u, strip) for u in uniques], np.nan)
            raw, text = table[codes], (codes, uniques)
        bad = ~np.isfinite(raw)
        if not bad.any():
            return raw, None
        refused = bad if column.fill is None else bad & not_missing(column, text, len(raw), strip)
        if refused.any():
            rows = np.flatnonzero(refused)
            tally.fault(
                rows,
                column.name,
                [cell_text(raw, text, r) for r in rows[: SHOWN + 1]],
                f"a number is needed; {FILL_RULE}",
            )
            return np.where(bad, self.low, raw), None
        tally.count("filled", column.name, bad)
        if column.fill == ZEROS:
            return np.where(bad, self.low, raw), bad
        return np.where(bad, float(column.fill or 0.0), raw), None


class RankPart(NumberPart):
    """An ordinal column: the position of its level, from 0 to k - 1, as a number."""

    def __init__(self, column: Column, numeric: str, strip: bool) -> None:
        super().__init__(column, numeric, 0.0, len(column.levels) - 1.0)
        self.levels = column.levels
        self.codes = level_names(column, strip)

    def numbers(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        codes, uniques = factors(cells)
        levels = level_codes(self.column, self.codes, uniques, strip)
        levels = settle_levels(self.column, self.codes, codes, levels, uniques, tally, strip)[codes]
        blank = levels < 0
        return np.where(blank, 0, levels).astype(float), blank if blank.any() else None


def factors(cells: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Codes (n,) into the list of distinct values; -1 stands for no value.

    Values that Python takes for equal are one, 7 and 7.0 for example, but no Boolean is a number.
    Raises ``InputError`` for a column of lists or the like.
    """
    if isinstance(cells.dtype, pd.CategoricalDtype):
        return np.asarray(cells.array.codes), _as_list(cells.array.categories)
    if cells.dtype == object and pd.api.types.infer_dtype(cells, skipna=True).startswith("mixed"):
        cells = cells.map(lambda v: canonical(v) if isinstance(v, bool | np.bool_) else v)
    if isinstance(cells.dtype, np.dtype) and not cells.dtype.isnative:
        cells = cells.astype(cells.dtype.newbyteorder("="))  # bytes of another machine
    try:
        plain = isinstance(cells.dtype, pd.StringDtype)
        if len(cells) > SMALL or not (plain or cells.dtype in (object, np.float64, np.int64, bool)):
            codes, uniques = pd.factorize(cells)
            return codes, _as_list(uniques)
        return _factors_of_few(cells.tolist())
    except (TypeError, ValueError):
        kinds = sorted({type(v).__name__ for v in cells.tolist()})
        raise InputError(
            f"Expected texts, numbers, dates or Booleans in column {str(cells.name)!r}, got "
            f"{', '.join(kinds[:4])}; store one value a cell."
        ) from None


def _factors_of_few(values: list[Any]) -> tuple[np.ndarray, list[Any]]:
    """What ``pd.factorize`` gives, at less cost for a few values."""
    seen: dict[Any, int] = {}
    codes = [
        -1 if v is None or v is pd.NA or v != v else seen.setdefault(v, len(seen)) for v in values
    ]
    return np.array(codes, dtype=int), list(seen)


def _as_list(uniques: Any) -> list[Any]:
    """Distinct values, each in its own type: a number of 32 bits stays one, for its text is
    shorter.
    """
    kind = getattr(uniques.dtype, "kind", "")
    if kind == "f":
        return list(np.asarray(uniques))
    return list(uniques) if kind == "M" else np.asarray(uniques, dtype=object).tolist()


def named(
    cells: pd.Series, strip: bool, decimal: str = ".", unit: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Codes (n,) into canonical texts, the last of which, empty, stands for no value
    (``dpcore.identity.canonical``).

    Several codes may have one text: cells are the same id where their texts are equal.
    """
    codes, uniques = factors(cells)
    return codes, [*canonical_texts(uniques, strip, decimal, unit), ""]


def text_of(value: Any, strip: bool) -> str:
    """A cell as a date's format reads it; whole numbers lose their decimals. It is no id: those are
    of ``named``.
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    text = str(value)
    return text.strip() if strip else text


def level_names(column: Column, strip: bool) -> dict[str, int]:
    """The place of each declared level by its canonical text."""
    return {canonical(level, strip): code for code, level in enumerate(column.levels)}


def level_codes(
    column: Column, codes: dict[str, int], uniques: list[Any], strip: bool
) -> np.ndarray:
    """The level of each distinct value, MISSING or UNKNOWN; one more entry at the end, for no
    value.
    """
    found = np.full(len(uniques) + 1, MISSING)
    marks = canonical_marks(column.missing, strip) | {""}
    for i, unique in enumerate(uniques):
        text = canonical(unique, strip)
        found[i] = codes.get(text, MISSING if text in marks else UNKNOWN)
    return found


def _undeclared(text: str, known: Iterable[str]) -> str:
    """That ``text`` is no level, and which one differs from it in capitals alone."""
    near = next((level for level in known if level.casefold() == text.casefold()), None)
    found = f"{text!r} is not a declared level"
    return found if near is None else f"{found}, {near!r} is (capitals count)"


def settle_levels(
    column: Column,
    known: dict[str, int],
    codes: np.ndarray,
    levels: np.ndarray,
    uniques: list[Any],
    tally: EncodingReport,
    strip: bool,
) -> np.ndarray:
    """Apply the fill and the unknown-level rule; what stays negative becomes zeros (or the other
    column).
    """
    if levels[:-1].min(initial=0) >= 0 and codes.min(initial=0) >= 0:
        return levels
    row_levels = levels[codes]
    unknown, missing = row_levels == UNKNOWN, row_levels == MISSING
    if column.unknown == "refuse" and unknown.any():
        rows = np.flatnonzero(unknown)
        texts = [_undeclared(text_of(uniques[codes[r]], True), known) for r in rows[: SHOWN + 1]]
        tally.fault(rows, column.name, texts, "add the level, or declare unknown: zeros or other")
    tally.count("unknown", column.name, unknown)
    if missing.any() and column.fill is None:
        rows = np.flatnonzero(missing)
        texts = [
            "no value" if codes[r] < 0 else f"{text_of(uniques[codes[r]], True)!r}"
            for r in rows[: SHOWN + 1]
        ]
        tally.fault(rows, column.name, texts, f"a declared level is needed; {FILL_RULE}")
    tally.count("filled", column.name, missing)
    return np.where(levels == MISSING, known.get(canonical(column.fill, strip), MISSING), levels)


def parse_number(column: Column, value: Any, strip: bool) -> float:
    """The number in a cell; NaN for missing marks and for text that is no number."""
    if isinstance(value, str):
        text = value.strip() if strip else value
        if text in column.missing:
            return np.nan
        value = text
    try:
        return number_of(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return np.nan


def not_missing(
    column: Column, text: tuple[np.ndarray, list[Any]] | None, rows: int, strip: bool
) -> np.ndarray:
    """Rows that hold text which is neither a number, nor empty, nor a missing mark: a fill does not
    cover those.
    """
    if text is None:
        return np.zeros(rows, dtype=bool)
    codes, uniques = text

    def foreign(value: Any) -> bool:
        stripped = value.strip() if isinstance(value, str) else value
        if not isinstance(stripped, str) or stripped == "" or stripped in column.missing:
            return False
        try:
            number_of(stripped)
        except ValueError:
            return True
        return False

    strange: np.ndarray = np.append([foreign(u) for u in uniques], False).astype(bool)[codes]
    return strange


def cell_text(raw: np.ndarray, text: tuple[np.ndarray, list[Any]] | None, row: int) -> str:
    """How a refused numeric cell is named in an error."""
    if text is not None and text[0][row] >= 0 and str(text[1][text[0][row]]).strip():
        return f"{str(text[1][text[0][row]])!r} is not a finite number"
    return (
        "no value"
        if np.isnan(raw[row])
        else f"{raw[row]} (also the reading of a number too large) is not finite"
    )
