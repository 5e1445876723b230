"""Parts of a date column, and the list of all parts of declared columns."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pandas as pd

from dpcore.features import Column, date_bound
from dpcore.preprocess.parts import FILL_RULE, LevelPart, NumberPart, Part, RankPart, factors, text_of
from dpcore.preprocess.tally import Tally

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class DatePart(NumberPart):
    """One part of a date as a number: year, day, hour, or elapsed days."""

    def __init__(self, column: Column, numeric: str, part: str) -> None:
        low, high = date_bound(column, "low"), date_bound(column, "high")
        years = (float(str(column.low)[:4]), float(str(column.high)[:4]))
        bounds = {"year": years, "day": (1.0, 31.0), "hour": (0.0, 23.0), "elapsed": (low, high)}[part]
        super().__init__(column, numeric, bounds[0], bounds[1], name=f"{column.name}.{part}")
        self.part = part

    def numbers(self, cells: pd.Series, tally: Tally, strip: bool) -> tuple[np.ndarray, np.ndarray | None]:
        codes, uniques = date_factors(self.column, cells, tally, strip)
        return np.append([part_of(moment, self.part) for moment in uniques], self.low)[codes], blanks(
            codes, tally, self
        )


class DateLevelPart(Part):
    """Month or weekday of a date, one-hot."""

    def __init__(self, column: Column, part: str) -> None:
        labels = WEEKDAYS if part == "weekday" else tuple(str(m) for m in range(1, 13))
        super().__init__(column, tuple(f"{column.name}.{part}={label}" for label in labels))
        self.part = part

    def encode(self, cells: pd.Series, index: np.ndarray, value: np.ndarray, tally: Tally, strip: bool) -> None:
        codes, uniques = date_factors(self.column, cells, tally, strip)
        index[:, 0] = self.start + np.append([int(part_of(m, self.part)) for m in uniques], 0).astype(np.int32)[codes]
        value[:, 0] = codes >= 0
        blanks(codes, tally, self)


def build_parts(columns: list[Column], numeric: str, strip: bool = True) -> list[Part]:
    """The parts of declared columns, each with its place in the design matrix and in the slots."""
    parts: list[Part] = []
    for column in columns:
        if column.kind == "categorical":
            parts.append(LevelPart(column, strip))
        elif column.kind == "ordinal":
            parts.append(RankPart(column, numeric, strip))
        elif column.kind == "flag":
            parts.append(NumberPart(column, "minmax", 0.0, 1.0))
        elif column.kind == "numeric":
            parts.append(NumberPart(column, numeric, float(column.low), float(column.high)))  # type: ignore[arg-type]
        else:
            for name in column.parts:
                level = name in ("month", "weekday")
                parts.append(DateLevelPart(column, name) if level else DatePart(column, numeric, name))
    start = slot = 0
    for part in parts:
        part.start, part.slot = start, slot
        start, slot = start + part.width, slot + part.slots
    return parts


def date_factors(column: Column, cells: pd.Series, tally: Tally, strip: bool) -> tuple[np.ndarray, list[datetime]]:
    """Codes into distinct moments; -1 where there is none, which the fill ``zeros`` allows."""
    codes, uniques = factors(cells)
    moments: list[datetime] = []
    table = np.full(len(uniques) + 1, -1)
    wrong = np.zeros(len(uniques) + 1, dtype=bool)
    for i, unique in enumerate(uniques):
        text = text_of(unique, strip)
        try:
            moment = (
                unique.to_pydatetime() if hasattr(unique, "to_pydatetime") else datetime.strptime(text, column.format)
            )
        except ValueError:
            wrong[i] = text != "" and text not in column.missing
            continue
        table[i] = len(moments)
        moments.append(moment.replace(tzinfo=None))
    found = table[codes]
    refused = wrong[codes] | (found < 0) if column.fill is None else wrong[codes]
    if refused.any():
        rows = np.flatnonzero(refused)
        texts = ["no value" if codes[r] < 0 else repr(text_of(uniques[codes[r]], strip)) for r in rows[:11]]
        tally.fault(rows, column.name, texts, f"a date as {column.format} is needed; {FILL_RULE}")
    return found, moments


def blanks(codes: np.ndarray, tally: Tally, part: Part) -> np.ndarray | None:
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
