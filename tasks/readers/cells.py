"""Any table as text cells, with a guess of its layout.

How a file is laid out, from its first bytes: what can be drafted, and words about what cannot.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import partial
from io import StringIO
from typing import Any

import pandas as pd
from pandas.api.types import is_datetime64_any_dtype

from dpcore.errors import InputError
from dpcore.identity import canonical
from tasks.readers.arff import attributes_of, rows_of
from tasks.readers.chunk import (
    foreign,
    no_rows,
    open_bytes,
    open_text,
    require_rows,
    table_kind,
    unpacked,
)
from tasks.readers.numbers import pairs_layout
from tasks.readers.parts import Part
from tasks.readers.tables import TYPED

MARKS = ("", "?", "NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "-", ".")
USUAL = {"separator": ",", "encoding": "utf-8"}  # what a schema need not say
ENCODINGS = ("utf-8", "cp1252", "latin-1")


COMMA_NUMBER = r"([-+]?\d*),(\d+)"


def read_cells(
    path: Part, notes: list[str], by_row: bool = False, ids: str | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The whole file as text cells, and the ``text``/``source`` keys that say how it is laid out.

    ``by_row``: what a cell reads as follows from this cell alone, as private estimates need it,
    whose sensitivity is that of one row: the encoding is UTF-8 with marks where bytes are none, a
    decimal comma is one in each cell that is a number with it, and neither is told. Separator,
    header and uneven lines still follow the file; the operator sees what they come to before
    anything is drawn. The cells of the column ``ids`` keep their own comma; raises ``InputError``
    for floating-point numbers among them that stand for several ids.
    """
    layout = layout_of(path)
    if layout in ("letor", "svmlight"):
        raise InputError(
            f"Expected a table with named columns, got numbered features in {path}; declare them "
            "by hand."
        )
    if layout == "arff":
        return arff_cells(path, ids), {"source": {"format": "arff"}}
    if layout in TYPED:
        return typed_cells(TYPED[layout](path), by_row, ids), {}
    lines, encoding = _lines(path, notes, by_row)
    separator = _separator(lines[:50])
    placed = _records(lines, separator)
    rows = [row for row, _ in placed]
    read_by = {"separator": separator, "encoding": encoding}
    text: dict[str, Any] = {key: read_by[key] for key in read_by if read_by[key] != USUAL[key]}
    if titles := _titles(rows):
        text["skip_lines"] = placed[titles - 1][1]
        notes.append(f"{text['skip_lines']} lines before the table are read over (text.skip_lines)")
    names, body = _header(rows[titles:], text, notes)
    frame = _even(path, names, body, notes)
    if by_row:
        frame = _with_points(frame, ids)
    return frame, {"text": text} if text else {}


def _with_points(frame: pd.DataFrame, ids: str | None) -> pd.DataFrame:
    """Each cell that is a number with a decimal comma, but for ids, as one with a point."""
    point = {"pat": f"^{COMMA_NUMBER}$", "repl": r"\1.\2", "regex": True}
    return frame.apply(lambda c: c if c.name == ids else c.str.replace(**point))


def typed_cells(frame: pd.DataFrame, by_row: bool, ids: str | None) -> pd.DataFrame:
    """Cells that have a type of their own, as text."""
    if by_row:  # a gap elsewhere makes 1 into 1.0; both are the id 1
        text_of = {name: partial(canonical, unit=name == ids) for name in frame}
        return frame.apply(lambda column: column.astype(object).map(text_of[column.name]))
    frame = frame.apply(lambda c: _moment_texts(c) if is_datetime64_any_dtype(c.dtype) else c)
    return frame.astype(object).where(frame.notna(), "").astype(str)


def _moment_texts(cells: pd.Series) -> pd.Series:
    """Time stamps by one format, which has fractions of a second and a zone where they have."""
    fraction = ".%f" if (cells.dt.microsecond > 0).any() else ""
    zone = "" if cells.dt.tz is None else "%z"
    return cells.dt.strftime(f"%Y-%m-%d %H:%M:%S{fraction}{zone}")


def _lines(path: Part, notes: list[str], by_row: bool) -> tuple[list[str], str]:
    """The lines of a text file, and the encoding that they were read by."""
    with unpacked(path), open_bytes(path) as file:
        raw = file.read()
    encoding = "utf-8" if by_row else next(e for e in ENCODINGS if _decodes(raw, e))
    if encoding != "utf-8":
        notes.append(
            f"the file is not UTF-8; {encoding} decodes it, but check for cp1251 and others"
        )
    if raw.startswith(b"\xef\xbb\xbf"):
        notes.append("the file starts with a byte order mark, which is read over")
    text = raw.decode(encoding, "replace" if by_row else "strict").removeprefix("\ufeff")
    return list(StringIO(text, newline="")), encoding


def _records(lines: list[str], separator: str) -> list[tuple[list[str], int]]:
    """The cells of each record that is not blank and the line where it ends, as the readers have
    them: blanks separate in runs, and at the end of a line separate nothing.
    """
    if separator == " ":
        return [(row, number) for number, line in enumerate(lines, 1) if (row := line.split())]
    told = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    return [(row, told.line_num) for row in told if row]


def _even(path: Part, names: list[str], body: list[list[str]], notes: list[str]) -> pd.DataFrame:
    """The rows as a frame, each with as many cells as there are names; raises ``InputError`` where
    most have another number.
    """
    if not body:
        raise no_rows(path)
    uneven = sum(len(r) != len(names) for r in body)
    if 2 * uneven > len(body):
        raise InputError(
            f"Expected rows of as many fields as the header in {path}, got {len(names)} there and "
            f"another number in {uneven} of {len(body)} lines: this is no table; write the schema "
            "by hand, or export the table as CSV."
        )
    if uneven:
        notes.append(f"{uneven} lines have another number of fields than the header")
    body = [(r + [""] * len(names))[: len(names)] for r in body]
    return pd.DataFrame(
        {n: [r[i].strip() for r in body] for i, n in enumerate(names)}, dtype=object
    )


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _separator(lines: list[str]) -> str:
    """The separator that gives the most fields, the same number on most lines."""

    def score(mark: str) -> tuple[int, int]:
        widths = [len(row) for row, _ in _records(lines, mark)]
        common = max(set(widths), key=widths.count, default=1)
        return (widths.count(common) if common > 1 else 0, common)

    return max((",", ";", "\t", "|", " "), key=score)


MOST_TITLES = 5


def _titles(rows: Sequence[list[str]]) -> int:
    """How many records stand before a table: those of another width than nearly all rows."""
    widths = [len(row) for row in rows]
    common = max(set(widths), key=widths.count, default=1)
    first = widths.index(common) if widths else 0
    most = common > 1 and 10 * widths.count(common) >= 9 * (len(widths) - first) > 0
    return first if most and first <= MOST_TITLES else 0


def _header(
    rows: list[list[str]], text: dict[str, Any], notes: list[str]
) -> tuple[list[str], list[list[str]]]:
    """Column names and data rows; a first row with a number in it is data."""
    first = [cell.strip() for cell in rows[0]] if rows else []
    if any(_is_number(cell) for cell in first):
        notes.append("the file has no header; the columns are numbered, name them in text.names")
        names = [f"c{i + 1}" for i in range(len(first))]
        text |= {"header": False, "names": names}
        return names, rows
    if len(set(first)) < len(first):
        twice = sorted({n for n in first if first.count(n) > 1})
        notes.append(f"columns share a name: {', '.join(twice)}; text.names gives each its own")
        seen: dict[str, int] = {}
        for i, cell in enumerate(first):
            seen[cell] = seen.get(cell, 0) + 1
            first[i] = cell if seen[cell] == 1 else f"{cell}_{seen[cell]}"
        text["names"] = first
    return first, rows[1:]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


HEAD = 4096


def layout_of(path: Part) -> str:
    """``arff``, ``letor``, ``svmlight``, one of ``TYPED``, or ``text``.

    Raises ``InputError`` for a file that is no table.
    """
    if not path.is_file():
        raise InputError(
            f"Expected a file to profile, got {str(path)!r}, which does not exist; correct the "
            "path."
        )
    require_rows(path)
    if (kind := table_kind(path)) in TYPED:
        return str(kind)
    if path.suffix == ".parquet":
        return "parquet"
    with unpacked(path), open_bytes(path) as file:
        head = file.read(HEAD)
    if told := foreign(head):
        raise InputError(
            "Expected text with separators, Parquet, Feather, a workbook, a table of Stata, SAS or "
            f"SPSS, ARFF, LETOR or SVMlight to draft a schema, got a {told} in {path}; export it "
            "as CSV, or write the schema by hand (`dpflows init` copies examples)."
        )
    lines = head.decode("latin-1").splitlines()
    lines = [line for line in (lines[:-1] if len(head) == HEAD else lines) if line.strip()]
    if any(re.match(r"@relation\b", line, re.IGNORECASE) for line in lines):
        return "arff"
    return pairs_layout(lines) or "text"


def arff_cells(part: Part, ids: str | None = None) -> pd.DataFrame:
    """All of an ARFF file as text cells; raises ``InputError`` for what is none.

    Numbers of the column ``ids`` have to tell whole numbers apart.
    """
    with unpacked(part), open_text(part, "utf-8", "replace") as file:
        attributes = attributes_of(part, file)
        rows = [cells for piece in rows_of(file, attributes) for _, cells in piece]
    if not rows:
        raise no_rows(part)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(attributes):
            raise InputError(
                f"{part}: Expected {len(attributes)} cells in data row {number}, got {len(row)}; "
                "correct the row."
            )
    columns: dict[str, list[str]] = {}
    for attribute, cells in zip(attributes, zip(*rows, strict=True), strict=True):
        texts = ["" if cell is None else cell for cell in cells]
        if attribute.kind == "numeric":
            texts = [_number_text(cell, attribute.name == ids) for cell in texts]
        columns[attribute.name] = texts
    return pd.DataFrame(columns, dtype=object)


def _number_text(cell: str, unit: bool) -> str:
    """A number as a text file would hold it; other texts as they stand."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    return canonical(value, unit=True) if unit else _text_of(value)


def _text_of(value: float) -> str:
    """A number as a text file would hold it."""
    if value != value:
        return ""
    return (
        str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    )
