"""Numbers as texts of a file hold them: marks of decimals, of thousands and of no value; words
about the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from dpcore.features import number_of
from dpcore.preprocess.column_encoders import factors
from dpcore.preprocess.design import SHOWN
from tasks.readers.chunk import Fault
from tasks.schema.sections import BLANK_MARKS, TextSpec


@lru_cache(maxsize=64)
def _groups(thousands: str, decimal: str) -> re.Pattern[str]:
    """A whole part whose digits are grouped: the last group of three, those before of two (lakh) or
    three.
    """
    mark = f"[{re.escape(BLANK_MARKS)}]" if thousands in BLANK_MARKS else re.escape(thousands)
    return re.compile(
        rf"([+-]?[0-9]{{1,3}})((?:{mark}[0-9]{{2,3}})*{mark}[0-9]{{3}})(?=$|[eE]|{re.escape(decimal)})"
    )


def cell_number(cell: str, missing: Collection[str], text: TextSpec) -> float:
    """The number in a cell, NaN for an empty cell and a mark of no value.

    A mark of thousands stands before groups of digits, in the whole part alone; a blank stands for
    every kind of blank. Raises ``ValueError`` for other texts.
    """
    bare = cell.strip()
    if bare in missing:
        return np.nan
    if text.thousands is not None:
        found = _groups(text.thousands, text.decimal).match(bare)
        if found:
            bare = found[1] + re.sub("[^0-9]", "", found[2]) + bare[found.end() :]
    if text.decimal != ".":
        if "." in bare:
            raise ValueError(cell)
        bare = bare.replace(text.decimal, ".")
    return number_of(bare)


def column_numbers(
    name: str, cells: pd.Series, missing: Collection[str], text: TextSpec
) -> tuple[Any, list[Fault]]:
    """The numbers (n,) of a column of texts, NaN where there is none, and the faults of cells that
    are no number.
    """
    codes, texts = factors(cells)
    table, wrong = np.full(len(texts) + 1, np.nan), np.zeros(len(texts) + 1, dtype=bool)
    for k, cell in enumerate(texts):
        try:
            table[k] = cell_number(cell, missing, text) if isinstance(cell, str) else float(cell)
        except (TypeError, ValueError):
            wrong[k] = True
    rows = np.flatnonzero(wrong[codes])
    if not len(rows):
        return table[codes], []
    shown = [str(texts[codes[row]]).strip() for row in rows[: SHOWN + 1]]
    rule = advice([str(cell) for k, cell in enumerate(texts) if wrong[k]], text)
    return table[codes], [(name, rows, [f"{cell!r} is not a number" for cell in shown], rule)]


def advice(cells: Sequence[str], text: TextSpec) -> str:
    """The way out for ``cells`` that are no numbers in the declared layout."""
    bare = [cell.strip() for cell in cells]
    other = "," if text.decimal == "." else "."
    if text.thousands is None and (said := _advice_of_groups(bare, other, text.decimal)):
        return said
    if all(_is_number(cell.replace(other, ".")) for cell in bare):
        return f"it parses with the other decimal mark: declare text.decimal: {other!r}"
    if text.thousands is not None and any(text.thousands in cell for cell in bare):
        return (
            f"text.thousands={text.thousands!r} stands before groups of digits alone; correct the "
            "row, or the mark"
        )
    return "a number is needed; correct the row, or declare the text under missing with a fill"


def _advice_of_groups(cells: Sequence[str], other: str, decimal: str) -> str:
    """The way out where all ``cells`` are numbers with marks of thousands; else empty."""
    if all(grouped(cell, other, decimal) for cell in cells):
        once = all(cell.count(other) == 1 and decimal not in cell for cell in cells)
        decimals = f" (text.decimal: {other!r} only if they are decimals)" if once else ""
        return (
            "its marks stand before groups of three digits: declare text.thousands: "
            f"{other!r}{decimals}"
        )
    if all(grouped(cell, " ", decimal) for cell in cells):
        return (
            "blanks stand between its digits: declare text.thousands: ' ', which is every kind of "
            "blank"
        )
    return ""


def grouped(cell: str, thousands: str, decimal: str) -> bool:
    """Whether a text is a number whose marks of thousands stand before groups of digits."""
    found = _groups(thousands, decimal).match(cell)
    return found is not None and _is_number(cell[found.end() :].replace(decimal, ".") or "0")


def _is_number(text: str) -> bool:
    try:
        number_of(text)
    except ValueError:
        return False
    return True
