"""What a reviewer wants to see beside a drafted column: why these bounds, codes that stand apart,
skew, rare levels, people and periods, marks of decimals and thousands. All of it was read from the
rows, so it is for whoever reviews the draft alone.
"""

from __future__ import annotations

import re
from datetime import datetime
from math import ceil, floor, log10
from sys import float_info
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from tasks.readers.cells import MARKS
from tasks.readers.declared import cell_number, grouped
from tasks.schema.sections import BLANK_MARKS, TextSpec

# Numbers that stand for no value in many tables.
BELOW = (-1, -2, -7, -8, -9, -99, -999, -9999)
ABOVE = (77, 88, 98, 99, 777, 888, 998, 999, 7777, 8888, 9998, 9999, 99999, 999999)
APART = 1.5  # a code stands apart where the next value is less than its size by this factor
SKEWED = 20.0  # the largest value over the 95 % quantile
CUT = 50  # most levels of a column whose rare ones are left to one column
RARE = 10  # rows below which a level is rare
OFTEN = 5  # rows a text in the mean, below which texts are free text
# Words of a name that call whole numbers codes: parts of a year or a day come again and again, so
# that the last lies beside the first, and types have no order.
CYCLES = frozenset(
    ["month", "mnth", "mth", "hour", "hr", "weekday", "dow", "season", "quarter", "minute"]
)
TYPES = frozenset(
    [
        "code",
        "type",
        "class",
        "category",
        "cat",
        "kind",
        "group",
        "zone",
        "region",
        "country",
        "sex",
        "gender",
        "race",
        "marital",
        "marriage",
    ]
)
PEOPLE = frozenset(
    [
        "id",
        "patient",
        "person",
        "user",
        "customer",
        "client",
        "member",
        "account",
        "subject",
        "household",
        "employee",
    ]
)


# Marks of decimals and of thousands, in the order in which they are taken where several read all.
PAIRS: tuple[tuple[str, str | None], ...] = (
    (".", None), (".", ","), (",", None), (",", "."), (",", " "), (".", " "), (".", "'")
)  # fmt: skip
USUAL = {"decimal": ".", "thousands": None}
NUMBER = re.compile(rf"[-+]?[0-9][0-9.,'{BLANK_MARKS}]*")


DAYS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d-%b-%Y")
TIMES = [f"%H:%M{rest}{zone}" for rest in ("", ":%S", ":%S.%f") for zone in ("", "%z")]
DATES = (
    *DAYS,
    "%Y%m%d",
    *(f"{day}{mark}{time}" for day in DAYS for time in TIMES for mark in " T"),
)


def number_reasons(name: str, numbers: pd.Series, whole: bool, notes: list[str]) -> list[str]:
    """Why the bounds are these, and what stands out among the numbers."""
    low, high = float(numbers.min()), float(numbers.max())
    reasons = [f"seen {low:g} to {high:g}, rounded outward to two digits"]
    if codes := codes_apart(numbers) if whole else []:
        listed = ", ".join(map(str, codes))
        words = (
            f"{listed} stand{'s' if len(codes) == 1 else ''} apart from the other numbers: a code "
            "for no value?"
        )
        reasons.append(f"{words} then missing: [{listed}] with a fill, and other bounds")
        notes.append(f"{name}: {words}")
    usual = float(numbers.quantile(0.95))
    if len(numbers) >= 20 and low >= 0 and high > SKEWED * max(usual, 1e-12) and not codes:
        words = f"skewed: 95 % are at most {usual:.3g}"
        reasons.append(f"{words}; numeric: log or hats, or a lower high")
        notes.append(f"{name}: {words} of {high:g}; numeric: log or hats, or a lower high")
    return reasons


def code_reason(name: str) -> str:
    """Why few whole numbers are levels and no amounts: the name says so; else empty."""
    said = sorted(words_of(name) & (CYCLES | TYPES))
    if not said:
        return ""
    word = said[0]
    what = "a part of a cycle" if word in CYCLES else "a code"
    return (
        f"whole numbers called {word}: {what}, so levels; kind: numeric with low and high if they "
        "are amounts"
    )


def words_of(name: str) -> set[str]:
    """The words of a name, in lower case: dayOfWeek, day_of_week and "day of week" have three."""
    return set(re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower()))


def codes_apart(numbers: pd.Series) -> list[int]:
    """Known codes for no value that stand at an end, away from the other numbers."""
    values = np.unique(numbers.to_numpy(dtype=float))
    found = []
    while len(values) > 2 and values[0] in BELOW and (values[1] >= 0 or values[1] in BELOW):
        found.append(int(values[0]))
        values = values[1:]
    while len(values) > 2 and values[-1] in ABOVE and values[-1] > APART * max(values[-2], 1.0):
        found.append(int(values[-1]))
        values = values[:-1]
    return sorted(found)


def cut_levels(
    name: str, full: pd.Series, notes: list[str]
) -> tuple[dict[str, Any], list[str]] | None:
    """The frequent levels of a column with too many to list; None for free text."""
    counts = full.value_counts()
    if len(full) < OFTEN * len(counts):
        return None
    kept = [str(level) for level, count in counts.items() if count >= RARE][:CUT]
    if len(kept) < 2:
        return None
    left = len(counts) - len(kept)
    words = (
        f"{len(kept)} of {len(counts)} levels, {left} rarer ones share a column (unknown: other)"
    )
    notes.append(f"{name}: {words}; or levels: hash(256), or a public list by levels_file")
    spec = {"kind": "categorical", "levels": sorted(kept), "unknown": "other"}
    return spec, [f"{words}; or levels: hash(256), or a public list by levels_file"]


def offered_as_user(name: str, full: pd.Series, rows: int, notes: list[str]) -> list[str]:
    """What to declare where a column may say whose row a row is: a telling name, and values that
    come again.
    """
    distinct = int(full.nunique())
    if not words_of(name) & PEOPLE or distinct < max(20, rows // 200):
        return []
    offer = (
        f"{distinct} different ids: if it says whose row a row is, declare kind: user and unit: "
        "user"
    )
    notes.append(f"{name}: {offer}, with public.n counting persons and public.rows_per_user")
    return [offer]


def offered_as_block(name: str, form: str, days: pd.Series) -> list[str]:
    """What to declare to train by periods."""
    months = int(days.dt.to_period("M").nunique())
    return [
        f"{months} months: to train by periods declare kind: block and block: {{column: {name}, "
        f"by: month, format: '{form}'}}"
    ]


def numbers_of(cells: pd.Series, text: TextSpec) -> pd.Series:
    """Cells as the readers take them for numbers with the marks of ``text``, NaN where they are
    none.
    """
    if (text.decimal, text.thousands) == (".", None):
        return pd.to_numeric(cells, errors="coerce")
    return cells.map({cell: _number(cell, text) for cell in cells.unique()}).astype(float)


def _number(cell: str, text: TextSpec) -> float:
    try:
        return cell_number(cell, (), text)
    except ValueError:
        return float("nan")


def number_marks(frame: pd.DataFrame, notes: list[str]) -> dict[str, str]:
    """The keys of ``text`` by which most columns are numbers; none where plain numbers do."""
    marked = _marked(frame)
    read = [_columns_read(marked, *pair) for pair in PAIRS]
    decimal, thousands = PAIRS[read.index(max(read))]
    if (decimal, thousands) == (".", None):
        _doubt_points(marked, notes)
        return {}
    said = (("decimal", decimal), ("thousands", thousands))
    shown = {key: mark for key, mark in said if mark not in (None, USUAL[key])}
    declared = " and ".join(f"text.{key}: {mark!r}" for key, mark in shown.items())
    notes.append(f"numbers are read with {declared}; check that these are the marks")
    return shown


def _marked(frame: pd.DataFrame) -> dict[str, list[str]]:
    """The different cells of each column that is digits and marks alone, with some mark."""
    found = {}
    for name in frame:
        cells = [cell for cell in frame[name].unique() if cell not in MARKS]
        if all(map(NUMBER.fullmatch, cells)) and not all(map(str.isdigit, cells)):
            found[str(name)] = cells
    return found


def _columns_read(marked: dict[str, list[str]], decimal: str, thousands: str | None) -> int:
    text = TextSpec(decimal=decimal, thousands=thousands)
    return sum(not np.isnan([_number(c, text) for c in cells]).any() for cells in marked.values())


def _doubt_points(marked: dict[str, list[str]], notes: list[str]) -> None:
    """Note columns whose points could be marks of thousands: 1.234 and 2.500."""
    for name, cells in marked.items():
        points = [cell for cell in cells if "." in cell]
        if len(points) > 1 and all(grouped(cell, ".", ",") for cell in points):
            notes.append(
                f"{name}: each point stands before three digits; if it marks thousands, declare "
                "text.decimal: ',' and text.thousands: '.'"
            )


def date_format(full: pd.Series) -> str:
    """The format that all cells have; empty where there is none."""
    sample = full.iloc[:200]
    for form in (form for form in DATES if _is_date(sample.iloc[0], form)):
        if form == "%Y%m%d" and not sample.str.fullmatch(r"(19|20)\d{6}").all():
            continue
        if all(_is_date(cell, form) for cell in sample) and moments_of(full, form).notna().all():
            return form
    return ""


def _is_date(cell: str, form: str) -> bool:
    try:
        datetime.strptime(cell, form)
    except ValueError:
        return False
    return True


def moments_of(full: pd.Series, form: str) -> pd.Series:
    """The moments of cells, those with a zone in UTC, as the readers take them."""
    found = pd.to_datetime(full, format=form, errors="coerce", utc=True)
    return found.dt.tz_localize(None)


def bounds_of(cells: pd.Series, numbers: pd.Series) -> tuple[float, float]:
    """Suggested bounds of a column; raises ``InputError`` for infinity, and a number too large for
    a double.
    """
    endless = np.flatnonzero(np.isinf(numbers.to_numpy(dtype=float)))
    if len(endless):
        place = int(endless[0])
        raise InputError(
            f"Expected finite numbers in column {str(cells.name)!r}, got {cells.iloc[place]!r} in "
            f"data row {int(cells.index[place]) + 1} ({len(endless)} such); correct the rows, or "
            "leave the cells empty."
        )
    return outward(float(numbers.min()), float(numbers.max()))


def outward(low: float, high: float) -> tuple[float, float]:
    """Bounds rounded outward to two leading digits of the larger one, so that they say less about
    single rows.

    Beyond half of the largest number there is no bound: a range has a length.
    """
    size = max(abs(low), abs(high))
    if size == 0.0:
        return 0.0, 0.0
    unit = 10.0 ** (floor(log10(size)) - 1)
    bounds = (
        max(floor(low / unit) * unit, -float_info.max / 2),
        min(ceil(high / unit) * unit, float_info.max / 2),
    )
    digits = max(0, -floor(log10(unit)))
    return round(bounds[0], digits), round(bounds[1], digits)
