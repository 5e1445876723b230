"""The list of all parts of declared columns: of hashed levels and dates, and crosses of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError, unknown_name
from dpcore.features import MISSING, WIDE_SPAN, Column, date_bound, numeric_maps
from dpcore.preprocess.column_encoders import (
    ColumnEncoder,
    LevelPart,
    NumberPart,
    RankPart,
    factors,
    text_of,
)
from dpcore.preprocess.design import SHOWN, EncodingReport

Slots = tuple[np.ndarray, np.ndarray]  # columns and values, (rows, slots) each

# The most columns of one cross where no limit is declared.
CROSS_WIDTH = 1024


WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class HashPart(LevelPart):
    """One-hot by the hash of a level's canonical text: none is unknown, some share a column."""

    def __init__(self, column: Column, strip: bool) -> None:
        names = tuple(f"{column.name}#{place}" for place in range(column.buckets))
        ColumnEncoder.__init__(self, column, names)
        self.levels = names
        self.codes = Buckets(column.buckets)


class Buckets(dict[str, int]):
    """The place of a text by its hash, as ``level_codes`` asks; texts of no value have none."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def get(self, text: str, default: Any = None) -> Any:
        return default if default == MISSING else bucket_of(text, self.count)


def bucket_of(text: str, count: int) -> int:
    """The first 64 bits of SHA-256 of a canonical text in UTF-8, modulo ``count``: without a key,
    and the same for ever.
    """
    digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


class DatePart(NumberPart):
    """One part of a date as a number: year, day, hour, or elapsed days."""

    def __init__(self, column: Column, numeric: str, part: str) -> None:
        low, high = date_bound(column, "low"), date_bound(column, "high")
        years = (float(str(column.low)[:4]), float(str(column.high)[:4]))
        bounds = {"year": years, "day": (1.0, 31.0), "hour": (0.0, 23.0), "elapsed": (low, high)}[
            part
        ]
        super().__init__(column, numeric, bounds[0], bounds[1], name=f"{column.name}.{part}")
        self.part = part

    def numbers(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        codes, uniques = date_factors(self.column, cells, tally, strip)
        return np.append([part_of(moment, self.part) for moment in uniques], self.low)[
            codes
        ], blanks(codes, tally, self)


class DateLevelPart(ColumnEncoder):
    """Month or weekday of a date, one-hot."""

    def __init__(self, column: Column, part: str) -> None:
        labels = WEEKDAYS if part == "weekday" else tuple(str(m) for m in range(1, 13))
        name = f"{column.name}.{part}"
        super().__init__(column, tuple(f"{name}={label}" for label in labels), name)
        self.part, self.levels = part, labels

    def points(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        codes, uniques = date_factors(self.column, cells, tally, strip)
        places = np.append([int(part_of(m, self.part)) for m in uniques], 0).astype(np.int32)[codes]
        return places, blanks(codes, tally, self)

    def basis(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return points.astype(np.int32)[:, None], np.ones((len(points), 1))


DATE_RULE = (
    "correct the column's format (%z where it has a zone) or the row, or declare the fill zeros"
)


def date_factors(
    column: Column, cells: pd.Series, tally: EncodingReport, strip: bool
) -> tuple[np.ndarray, list[datetime]]:
    """Codes into distinct moments; -1 where there is none, which the fill ``zeros`` allows."""
    codes, uniques = factors(cells)
    moments: list[datetime] = []
    table = np.full(len(uniques) + 1, -1)
    wrong = np.zeros(len(uniques) + 1, dtype=bool)
    for i, unique in enumerate(uniques):
        text = text_of(unique, strip)
        try:
            moment = moment_of(unique, text, column.format)
        except (ValueError, OverflowError):
            wrong[i] = text != "" and text not in column.missing
            continue
        table[i] = len(moments)
        moments.append(moment)
    found = table[codes]
    refused = wrong[codes] | (found < 0) if column.fill is None else wrong[codes]
    if refused.any():
        rows = np.flatnonzero(refused)
        texts = [
            "no value" if codes[r] < 0 else repr(text_of(uniques[codes[r]], strip))
            for r in rows[: SHOWN + 1]
        ]
        tally.fault(rows, column.name, texts, f"a date as {column.format} is needed; {DATE_RULE}")
    return found, moments


def moment_of(value: Any, text: str, form: str) -> datetime:
    """The moment that a cell is, in UTC where it has a zone, so that one instant is one moment in
    every zone.

    Dates are read as they are, ``text`` by the format. Raises ``ValueError`` for a text that is
    none.
    """
    moment: datetime
    if hasattr(value, "to_pydatetime"):
        moment = value.to_pydatetime(warn=False)
    elif isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day)
    else:
        moment = datetime.strptime(text, form)
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).replace(tzinfo=None)


def blanks(codes: np.ndarray, tally: EncodingReport, part: ColumnEncoder) -> np.ndarray | None:
    """Rows without a date, counted; None when there is none."""
    blank = codes < 0
    tally.count("filled", part.column.name, blank)
    return blank if blank.any() else None


def part_of(moment: datetime, part: str) -> float:
    """Year, day, hour and elapsed days as they are; month and weekday from 0."""
    if part == "elapsed":
        return (moment - datetime(1970, 1, 1)).total_seconds() / 86400.0
    if part == "weekday":
        return float(moment.weekday())
    return float(getattr(moment, part) - (1 if part == "month" else 0))


@dataclass(frozen=True, slots=True)
class Cross:
    """Two columns whose product is encoded; ``maps``: how a number is cut for it, None for its own
    map.

    A column is named as its parts are: ``when.month`` for the month of a date column ``when``.
    """

    names: tuple[str, str]
    maps: tuple[str | None, str | None] = (None, None)

    def __post_init__(self) -> None:
        if self.names[0] == self.names[1]:
            raise InputError(
                f"Expected two columns in a cross, got {self.names[0]!r} twice; drop one."
            )

    @classmethod
    def of(cls, items: Any) -> Cross:
        """``[month, {duration: bins(6)}]`` or the like; raises ``InputError`` for anything that is
        not two columns.
        """
        members = [_member(item) for item in items] if isinstance(items, list | tuple) else []
        if len(members) != 2:
            raise InputError(
                "Expected two columns in a cross, as in [month, {duration: bins(6)}], got "
                f"{items!r}; name two."
            )
        (one, first), (other, second) = members
        return cls((one, other), (first, second))

    def to_list(self) -> list[Any]:
        """The form that ``of`` reads."""
        pairs = zip(self.names, self.maps, strict=True)
        return [name if numeric is None else {name: numeric} for name, numeric in pairs]


def _member(item: Any) -> tuple[str, str | None]:
    """Name and map of one side of a cross."""
    if isinstance(item, Mapping) and len(item) == 1:
        [(name, numeric)] = item.items()
        if isinstance(numeric, str):
            return str(name), numeric
    if isinstance(item, str):
        return item, None
    raise InputError(
        f"Expected a column's name or {{name: map}} in a cross, got {item!r}; write it so."
    )


class CrossPart(ColumnEncoder):
    """The product of two parts: column (i, j) is a_i b_j.

    Parts that are >= 0 and sum to at most 1 in each of the two have a product that is >= 0 and sums
    to at most 1, so a cross is a block like any other and has the price of one.
    """

    def __init__(self, one: ColumnEncoder, other: ColumnEncoder) -> None:
        names = tuple(f"{a} & {b}" for a in one.names for b in other.names)
        super().__init__(one.column, names, f"{one.name} x {other.name}")
        self.one, self.other = one, other
        self.slots = one.slots * other.slots
        lone = one.block == other.block == "numeric"
        self.block = "numeric" if lone else "one_hot"

    def points(
        self, cells: pd.Series, tally: EncodingReport, strip: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        # A cross has no cells of its own: the encoder hands it the points of its two parts.
        raise TypeError(f"Expected cells of one column, got the cross {self.name!r} of two.")

    def basis(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``points`` (m, 2): those of the two parts."""
        return self.product(self.one.basis(points[:, 0]), self.other.basis(points[:, 1]))

    def product(self, one: Slots, other: Slots) -> Slots:
        """Columns and values of the cross from those of its two parts, (rows, slots) each."""
        columns = one[0][:, :, None] * self.other.width + other[0][:, None, :]
        values = one[1][:, :, None] * other[1][:, None, :]
        rows = len(columns)
        return columns.reshape(rows, self.slots), values.reshape(rows, self.slots)


def build_parts(columns: list[Column], numeric: str, strip: bool = True) -> list[ColumnEncoder]:
    """The parts of declared columns, each with its place in the design matrix and in the slots."""
    parts = [
        part for column in columns for part in parts_of(column, column.numeric or numeric, strip)
    ]
    place(parts)
    return parts


def parts_of(column: Column, numeric: str, strip: bool) -> list[ColumnEncoder]:
    """The parts of one column, a number by the map ``numeric``; no place is set."""
    first, fine = numeric_maps(numeric)
    match column.kind:
        case "categorical":
            return [(HashPart if column.buckets else LevelPart)(column, strip)]
        case "ordinal":
            return [RankPart(column, first, strip)]
        case "flag":
            return [NumberPart(column, "minmax", 0.0, 1.0)]
        case "date":
            return [date_part(column, part, first) for part in column.parts]
    return number_parts(column, first, fine)


def number_parts(column: Column, coarse: str, fine: int) -> list[ColumnEncoder]:
    """The map ``coarse`` of a number, and as many ``fine`` bins where its span is wide."""
    assert column.low is not None and column.high is not None
    low, high = float(column.low), float(column.high)
    first = NumberPart(column, coarse, low, high)
    if not fine or high - low < WIDE_SPAN:
        return [first]
    return [first, NumberPart(column, f"bins({fine})", low, high, fine=True)]


def date_part(column: Column, part: str, numeric: str) -> ColumnEncoder:
    return (
        DateLevelPart(column, part)
        if part in ("month", "weekday")
        else DatePart(column, numeric, part)
    )


def place(parts: Sequence[ColumnEncoder]) -> None:
    """Give each part its place behind the others."""
    start = slot = 0
    for part in parts:
        part.start, part.slot = start, slot
        start, slot = start + part.width, slot + part.slots


def cross_parts(
    crosses: Sequence[Cross],
    columns: Sequence[Column],
    parts: Sequence[ColumnEncoder],
    most: int,
    strip: bool,
) -> list[CrossPart]:
    """The parts of ``crosses``; a side without a map of its own is one of ``parts``.

    Raises ``InputError`` for a name that is none, a map that does not fit, and a cross of more than
    ``most`` columns.
    """
    sides = {part.name: part for part in parts if not part.fine}
    declared = {column.name: column for column in columns}
    found: list[CrossPart] = []
    seen: set[frozenset[str]] = set()
    for cross in crosses:
        if frozenset(cross.names) in seen:
            raise InputError(
                f"Expected each pair of columns in one cross, got {cross.names[0]!r} and "
                f"{cross.names[1]!r} in two; keep the finer one."
            )
        seen.add(frozenset(cross.names))
        one, other = (
            _side(name, numeric, sides, declared, strip)
            for name, numeric in zip(cross.names, cross.maps, strict=True)
        )
        part = CrossPart(one, other)
        if part.width > most:
            raise InputError(
                f"Expected at most cross_width={most} columns in a cross, got {one.width} x "
                f"{other.width} = {part.width} of {part.name}; cut numbers into fewer bins, as in "
                f"{{{other.name}: bins(6)}}, or raise cross_width."
            )
        found.append(part)
    return found


def _side(
    name: str,
    numeric: str | None,
    sides: Mapping[str, ColumnEncoder],
    declared: Mapping[str, Column],
    strip: bool,
) -> ColumnEncoder:
    if name not in sides:
        raise unknown_name("column of a cross", name, sides)
    part = sides[name]
    if numeric is not None:
        if name not in declared or declared[name].kind not in ("numeric", "ordinal"):
            raise InputError(
                f"Expected a map in a cross for a numeric or ordinal column, got {numeric!r} for "
                f"{name!r}; leave it out."
            )
        if numeric_maps(numeric)[1]:
            raise InputError(
                f"Expected one map in a cross, got {numeric!r} for {name!r}; name one of the two."
            )
        [part] = parts_of(declared[name], numeric, strip)
    if not part.block:
        raise InputError(
            f"Expected values in [0, 1] in a cross, got numeric='centred' for {name!r}; give it a "
            f"map of its own, as in {{{name}: bins(6)}}."
        )
    return part


def check_terms(parts: Sequence[ColumnEncoder]) -> None:
    """Raise ``InputError`` for two parts of one name: the terms of a model go by them."""
    owner: dict[str, ColumnEncoder] = {}
    for part in parts:
        first = owner.setdefault(part.name, part)
        if first is not part and not part.fine:
            raise InputError(
                f"Expected each column, part of a date and cross to have a name of its own, got "
                f"two of {part.name!r}; rename the column, or name the pair once."
            )
