"""What a schema says of the columns of a file: how they are called and parsed, and how texts hold
numbers (marks of decimals, of thousands and of no value; words about the others).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.features import number_of
from dpcore.identity import declared_names
from dpcore.preprocess.column_encoders import factors
from dpcore.preprocess.design import SHOWN
from dpcore.preprocess.encoder import unknown_column
from tasks.readers.chunk import Chunk, Fault, Mine, is_nested
from tasks.readers.parts import Part, partition
from tasks.schema import Schema
from tasks.schema.sections import BLANK_MARKS, TextSpec

NUMBERS = ("numeric", "flag")


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


def dtype_of(schema: Schema, name: str) -> str | None:
    """How a column is parsed: as a number, as text with few values, or (ignored columns: None) as
    text.
    """
    if name == schema.label.column and schema.labelled:
        numbers = schema.label.kind == "regression" or schema.label.positive_from is not None
        return "float64" if numbers else "category"
    spec = schema.columns.get(name)
    if spec is None or spec.kind == "ignore":
        return None
    return "float64" if spec.kind in NUMBERS else "category"


def number_marks(schema: Schema, names: list[str]) -> dict[str, list[str]]:
    """The texts that stand for no value in each column of numbers, empty cells among them."""
    found = {}
    for name in names:
        if dtype_of(schema, name) == "float64":
            spec = schema.columns.get(name)
            own = None if spec is None else spec.missing
            found[name] = ["", "nan", "NaN", *(schema.missing if own is None else own)]
    return found


def text_marks(schema: Schema, frame: pd.DataFrame) -> dict[str, list[str]]:
    """``number_marks`` of the columns of numbers that are texts in ``frame``."""
    texts = pd.StringDtype | pd.CategoricalDtype
    found = number_marks(schema, [str(name) for name in frame])
    return {
        name: marks
        for name, marks in found.items()
        if frame[name].dtype == object or isinstance(frame[name].dtype, texts)
    }


def header_names(schema: Schema, cells: list[str] | None) -> list[str]:
    """The names in a header, as the schema spells them."""
    if not cells:
        return []
    return as_declared(schema, [cell.strip() if schema.text.strip else cell for cell in cells])


def as_declared(schema: Schema, names: list[str]) -> list[str]:
    """Names of columns as the schema spells them: composed or not, with or without a mark of byte
    order.
    """
    found = declared_names(names, [*dict.fromkeys([*schema.columns, schema.label.column])])
    spelled = {given: name for name, given in found.items()}
    return [spelled.get(name, name) for name in names]


def default_names(schema: Schema, part: Part, width: int) -> list[str]:
    """Column names of a file without header: the declared ones in order, the label last unless it
    is among them.

    Those that stand in no file are left out.
    """
    made, label = made_names(schema, part), schema.label.column
    names = [name for name in schema.columns if name not in made]
    if label in names or label in made or (not schema.labelled and width == len(names)):
        return names
    return [*names, label]


def made_names(schema: Schema, where: Part | str) -> set[str]:
    """Columns that stand in no file: which file it is, and what its folders say."""
    folders = {} if isinstance(where, str) else partition(where)
    return {name for name in (schema.source.tag, *folders) if name is not None}


def _check_distinct_names(where: Part | str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{where}: two columns are named {twice!r}; give every column its own name under "
            f"text.names{'' if twice else ', or declare text.skip_lines where titles come first'}."
        )


def require_header(schema: Schema, where: Part | str, names: list[str]) -> None:
    """Raise ``InputError`` for a first line without a declared name: it may be a record, so none of
    its cells is told.
    """
    if not set(names) & {*schema.columns, schema.label.column}:
        raise InputError(
            f"{where}: the first line names none of the declared columns; if it is a row, declare "
            "text.header: false (and text.names, for another order of columns), where titles come "
            "first, text.skip_lines."
        )


def check_names(schema: Schema, where: Part | str, names: list[str]) -> None:
    """Raise ``InputError`` on duplicate, missing and undeclared columns."""
    _check_distinct_names(where, names)
    label = schema.label.column
    wanted = dict.fromkeys([*schema.columns, *([label] if schema.labelled else [])])
    present = set(names) | made_names(schema, where)
    for name in wanted:
        if name not in present:
            role = "the label column" if name == label else "declared column"
            raise InputError(f"{where}: {role} {name!r} is missing. {unknown_column(name, names)}")
    extra = [n for n in names if n not in wanted]
    if extra and schema.undeclared == "refuse":
        raise InputError(
            f"{where}: column {extra[0]!r} is not declared ({len(extra)} such); declare it with "
            "kind: ignore, or set undeclared: ignore."
        )


def made_cells(schema: Schema, part: Part, number: int, count: int) -> dict[str, str]:
    """The cells of a part that its folders and its place in the list say, of declared columns
    alone.
    """
    wanted = {*schema.columns, schema.label.column}
    found = {name: value for name, value in partition(part).items() if name in wanted}
    if schema.source.tag and count == len(schema.source.tags):
        found[schema.source.tag] = schema.source.tags[number]
    return found


def mine_in(schema: Schema, made: dict[str, str], mine: Mine | None) -> Mine | None:
    """``mine`` of a part whose folder names the block of all its rows, unless the file does."""
    column = None if schema.block is None else schema.block.column
    if mine is None or column not in made:
        return mine
    inside = bool(mine(pd.DataFrame({column: [made[column]]}, dtype=object))[0])
    return lambda rows: mine(rows) if column in rows else np.full(len(rows), inside)


def said_cells(schema: Schema, chunk: Chunk, made: dict[str, str]) -> dict[str, str]:
    """Of the cells ``made`` those that no column of the file itself stands for."""
    if not isinstance(chunk.table, pd.DataFrame):
        return {}
    tag = schema.source.tag
    return {name: cell for name, cell in made.items() if name == tag or name not in chunk.table}


def plain_columns(schema: Schema, where: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of one value a cell; raises ``InputError`` where another one is used."""
    nested = [str(name) for name in frame if is_nested(frame[name])]
    for name in nested:
        if dtype_of(schema, name) is not None or name in schema.split.by:
            raise InputError(
                f"{where}: Expected texts, numbers, dates or Booleans in column {name!r}, got "
                "lists or the like; store one value a cell, or ignore the column."
            )
    return frame.drop(columns=nested) if nested else frame
