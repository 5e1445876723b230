"""ARFF tables, dense and sparse, row by row: a cell that is wrong is named, and rows of other
blocks are not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.features import number_of
from dpcore.preprocess import EncodingReport
from tasks.readers.chunk import (
    ESCAPE,
    Chunk,
    Mine,
    block_cells,
    chunk_rows,
    no_rows,
    open_bytes,
    open_text,
    require_rows,
    undecoded,
    unpacked,
)
from tasks.readers.declared import as_declared, check_names, dtype_of
from tasks.readers.parts import Part
from tasks.schema import Schema

CELL = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,]*?))\s*(?:,|$)""", re.DOTALL
)
NAMED = re.compile(
    r"""\s*@attribute\s+(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\S+))\s+(.+)""", re.I
)
NUMERIC = ("numeric", "real", "integer")
# How Java writes formats of dates, and how Python does; longer words first.
DATE_WORDS = (
    ("yyyy", "%Y"),
    ("yy", "%y"),
    ("MM", "%m"),
    ("dd", "%d"),
    ("HH", "%H"),
    ("mm", "%M"),
    ("ss", "%S"),
)
ISO = "yyyy-MM-dd'T'HH:mm:ss"
HEAD = 4096


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column: ``kind`` is numeric, nominal, string or date; ``first`` the cell that a sparse row
    leaves out.
    """

    name: str
    kind: str
    first: str = "0"
    form: str = ""


def is_arff(part: Part) -> bool:
    """Whether a file begins as ARFF does: a relation behind comments and blank lines."""
    with unpacked(part), open_bytes(part) as file:
        lines = file.read(HEAD).decode("latin-1").removeprefix("\xef\xbb\xbf").splitlines()
    told = next((line.strip() for line in lines if line.strip() and line.lstrip()[0] != "%"), "")
    return re.match(r"@relation\b", told, re.IGNORECASE) is not None


def read_arff(schema: Schema, part: Part, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield frames of an ARFF file: numbers are float64, all others texts; ``?`` is no value.

    Of rows that are not ``mine`` none is refused. Raises ``InputError`` naming file, row and
    column.
    """
    require_rows(part)
    with unpacked(part), open_text(part, schema.text.encoding, ESCAPE) as file:
        attributes = attributes_of(part, file)
        names = as_declared(schema, [a.name for a in attributes])
        check_names(schema, part, names)
        attributes = [
            Attribute(n, a.kind, a.first, a.form) for n, a in zip(names, attributes, strict=True)
        ]
        start = 0
        for rows in rows_of(file, attributes):
            yield _chunk(schema, part, attributes, rows, start, mine)
            start += len(rows)
    if not start:
        raise no_rows(part)


def attributes_of(part: Part, lines: Iterable[str]) -> list[Attribute]:
    """The columns that a header declares, up to ``@data``; raises ``InputError`` for what is no
    such header.
    """
    found: list[Attribute] = []
    for number, line in enumerate(lines, start=1):
        bare = line.strip()
        word = bare.split(maxsplit=1)[0].lower() if bare else ""
        if word == "@data":
            return found
        if word == "@attribute":
            attribute = _attribute(bare)
            if attribute is None:
                raise InputError(
                    f"{part}, line {number}: not readable as ARFF: {bare[:60]!r} is no attribute "
                    "(a name and numeric, string, date or {levels}); correct the line."
                )
            found.append(attribute)
        elif bare and bare[0] != "%" and word != "@relation":
            raise InputError(
                f"{part}, line {number}: not readable as ARFF: {bare[:60]!r} stands in its header."
            )
    raise InputError(f"{part}: not readable as ARFF: its header has no @data; check the file.")


def _attribute(line: str) -> Attribute | None:
    found = NAMED.fullmatch(line)
    if found is None:
        return None
    name = next(_unescaped(text) for text in found.groups()[:3] if text is not None)
    kind = found[4].strip()
    word = kind.split(maxsplit=1)[0].lower()
    if word in NUMERIC:
        return Attribute(name, "numeric")
    if kind.startswith("{"):
        levels = cells_of(kind.strip("{} \t"))
        return Attribute(name, "nominal", str(levels[0] if levels else ""))
    if word == "date":
        form = kind[4:].strip().strip("\"'") or ISO
        return Attribute(name, "date", "", _python_format(form))
    return Attribute(name, "string", "") if word == "string" else None


def _python_format(form: str) -> str:
    for java, python in DATE_WORDS:
        form = form.replace(java, python)
    return form.replace("'", "")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) if "\\" in text else text


def cells_of(line: str) -> list[str | None]:
    """The cells of a line; None where there is no value."""
    if not any(mark in line for mark in "'\"\\"):
        cells = (
            line.split(",") if "," in line or not re.search(r"\s", line.strip()) else line.split()
        )
        return [None if (bare := cell.strip()) == "?" else bare for cell in cells]
    found: list[str | None] = []
    place = 0
    while place <= len(line):
        cell = CELL.match(line, place)
        if cell is None:
            return []
        quoted = next((text for text in cell.groups()[:2] if text is not None), None)
        bare = cell[3] if quoted is None else _unescaped(quoted)
        found.append(None if quoted is None and bare == "?" else bare)
        if cell.end() == len(line) and not cell[0].endswith(","):
            break
        place = cell.end()
    return found


def rows_of(
    file: Iterable[str], attributes: list[Attribute]
) -> Iterator[list[tuple[str, list[str | None]]]]:
    """The rows of a body in pieces, each as its line and its cells; sparse rows are completed."""
    lines = (line.strip() for line in file)
    body = (line for line in lines if line and line[0] != "%")
    while piece := list(islice(body, chunk_rows(len(attributes)))):
        yield [(line, _row(line, attributes)) for line in piece]


def _row(line: str, attributes: list[Attribute]) -> list[str | None]:
    if not line.startswith("{"):
        return cells_of(line)
    row: list[str | None] = [a.first for a in attributes]
    # with a comma at the end one pair alone is not taken for two cells between blanks
    for pair in filter(None, cells_of(line.strip("{} \t").replace("\t", " ") + ",")):
        place, _, cell = pair.strip().partition(" ")
        if not (place.isdigit() and int(place) < len(row)):
            return []
        bare = cell.strip()
        row[int(place)] = None if bare == "?" else _unescaped(bare.strip("'\""))
    return row


def _chunk(
    schema: Schema,
    part: Part,
    attributes: list[Attribute],
    rows: list[tuple[str, list[str | None]]],
    start: int,
    mine: Mine | None,
) -> Chunk:
    names = [a.name for a in attributes]
    wanted = np.arange(len(rows))
    where: pd.DataFrame | None = None
    if mine is not None and schema.block is not None:
        where = block_cells(schema, [row for _, row in rows], names)
        wanted = np.flatnonzero(mine(where))
    for k in wanted:
        line, row = rows[k]
        if undecoded(line):
            raise InputError(
                f"{part}: data row {start + k + 1} holds bytes that are no {schema.text.encoding}."
            )
        if len(row) != len(attributes):
            raise InputError(
                f"{part}: Expected {len(attributes)} cells in data row {start + k + 1}, got "
                f"{len(row)}; correct the row."
            )
    tally = EncodingReport(source=str(part), rows=start, places=wanted)
    columns: dict[str, Any] = {}
    for j, attribute in enumerate(attributes):
        values = [rows[k][1][j] for k in wanted]
        column = (
            np.full(len(rows), np.nan)
            if attribute.kind == "numeric"
            else np.full(len(rows), None, object)
        )
        told = tally if dtype_of(schema, attribute.name) else EncodingReport()
        column[wanted] = _values(attribute, values, told)
        columns[attribute.name] = column
    frame = pd.DataFrame(columns)
    if where is not None:
        frame = frame.assign(**{str(name): where[name] for name in where})
    if mine is not None:
        tally.raise_faults()
    faults = [(c, np.array([n - start - 1]), [v], r) for n, c, v, r in tally.faults]
    return Chunk(frame, faults=tuple(faults))


def _values(attribute: Attribute, cells: list[str | None], tally: EncodingReport) -> list[Any]:
    """The cells of a column by its kind; those that are none of it are faults."""
    if attribute.kind in ("nominal", "string"):
        return cells
    found: list[Any] = []
    empty: Any = np.nan if attribute.kind == "numeric" else None
    for k, cell in enumerate(cells):
        value = empty
        if cell:
            try:
                numeric = attribute.kind == "numeric"
                value = number_of(cell) if numeric else datetime.strptime(cell, attribute.form)
            except ValueError:
                rule = f"an ARFF {attribute.kind} is needed; correct the row"
                tally.fault(np.array([k]), attribute.name, [f"{cell!r} is not one"], rule)
        found.append(value)
    return found
