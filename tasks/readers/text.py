"""CSV and other separated text, by chunks: checked names, one meaning, two parsers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from typing import TextIO

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.preprocess import EncodingReport
from tasks.readers.arrow import NotPlain, is_plain, read_plain, with_numbers
from tasks.readers.chunk import (
    ESCAPE,
    Chunk,
    Mine,
    chunk_rows,
    no_rows,
    open_bytes,
    open_text,
    read_rows,
    refuse_foreign,
    require_rows,
    unpacked,
)
from tasks.readers.declared import (
    check_names,
    column_numbers,
    default_names,
    dtype_of,
    header_names,
    number_marks,
    require_header,
)
from tasks.readers.parts import Part
from tasks.schema import Schema

SEPARATORS = (";", ",", "\t", "|")


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the first record: ``lines`` of the file, which are ``size`` bytes, and the
    columns' names.
    """

    names: list[str]
    lines: int
    size: int


def read_text(
    schema: Schema, part: Part, skip_lines: int | None = None, mine: Mine | None = None
) -> Iterator[Chunk]:
    """Yield frames of the file's rows; numbers are float64, texts categories, ignored columns
    texts.

    Of rows that are not ``mine`` none is refused, whatever is wrong with it
    (``tasks.readers.chunk``). Cells that are no numbers are faults of their chunk, so that all of
    a file are told together.

    Raises ``InputError`` naming file, row and column: empty or damaged file, wrong encoding,
    duplicate, missing or undeclared columns, rows of another length.
    """
    require_rows(part)
    skip = schema.text.skip_lines if skip_lines is None else skip_lines
    with _readable(part, schema), unpacked(part):
        try:
            head = read_head(schema, part, skip, every=mine is None)
        except (InputError, UnicodeError):
            refuse_foreign(part, schema.text.encoding)
            raise
        kinds = {name: dtype_of(schema, name) for name in head.names}
        marks = number_marks(schema, head.names)
        done = 0
        if mine is not None and not _first_fits(schema, part, head):
            yield from _read_mine(schema, part, kinds, head, 0, mine)
            return
        if is_plain(schema, marks):
            try:
                missing = next(iter(marks.values()), [])
                yield from read_plain(schema, part, head.names, kinds, missing, head.size, mine)
                return
            except NotPlain as stop:
                done = stop.rows
        yield from _read_carefully(schema, part, kinds, head, done, mine)


def _read_carefully(
    schema: Schema,
    part: Part,
    kinds: dict[str, str | None],
    head: Head,
    done: int,
    mine: Mine | None = None,
) -> Iterator[Chunk]:
    """Yield frames through pandas' parser, without the first ``done`` rows; it can say what is
    wrong and where.
    """
    marks = number_marks(schema, head.names)
    typed = schema.text.thousands is None
    dtypes = {n: "category" if kind is None or not typed else kind for n, kind in kinds.items()}
    row, checked = 0, False
    try:
        for frame in _frames(schema, part, head, dtypes, marks if typed else {}):
            start, row = row, row + len(frame)
            if not checked and frame.iloc[:, -1].isin(["", np.nan]).any():
                row = start  # none of these rows was given out yet
                refuse_short_rows(schema, part, head)
                checked, row = True, start + len(frame)
            if row > done:
                chunk = Chunk(frame.iloc[max(done - start, 0) :])
                yield chunk if typed else with_numbers(schema, chunk, marks, mine)
    except ValueError as error:
        told = UnicodeError | pd.errors.ParserError | pd.errors.EmptyDataError | InputError
        if isinstance(error, told) and mine is None:
            raise
        if mine is not None:
            yield from _read_mine(schema, part, kinds, head, max(done, row), mine)
        else:
            yield from _read_as_texts(schema, part, kinds, head, max(done, row), marks)


def _read_as_texts(
    schema: Schema,
    part: Part,
    kinds: dict[str, str | None],
    head: Head,
    done: int,
    marks: dict[str, list[str]],
) -> Iterator[Chunk]:
    """The same where some cell is no number: each column of numbers is parsed from its texts, which
    names the cells.
    """
    row = 0
    for frame in _frames(schema, part, head, dict.fromkeys(kinds, "category"), {}):
        start, row = row, row + len(frame)
        if row > done:
            yield with_numbers(schema, Chunk(frame.iloc[max(done - start, 0) :]), marks)


def _frames(
    schema: Schema, part: Part, head: Head, dtypes: dict[str, str], marks: dict[str, list[str]]
) -> Iterator[pd.DataFrame]:
    """Pandas' frames of the records after the header; nothing is missing but what ``marks`` says of
    numbers.
    """
    text = schema.text
    with (
        open_records(schema, part, head) as file,
        pd.read_csv(
            file,
            header=None,
            names=head.names,
            index_col=False,
            sep=r"\s+" if text.separator == " " else text.separator,
            decimal=text.decimal,
            quotechar=text.quote,
            skipinitialspace=text.strip,
            keep_default_na=False,
            na_values=marks,
            dtype=dtypes,
            low_memory=False,
            chunksize=chunk_rows(len(head.names)),
        ) as reader,
    ):
        try:
            yield from reader
        except pd.errors.ParserError as error:
            words = re.sub(r"(?<=in line )\d+", lambda n: str(int(n[0]) + head.lines), str(error))
            words = re.sub(
                r"EOF inside string starting at row (\d+)",
                lambda n: f"a quote in line {int(n[1]) + head.lines + 1} does not end",
                words,
            )
            raise pd.errors.ParserError(words) from None


def _read_mine(
    schema: Schema, part: Part, kinds: dict[str, str | None], head: Head, done: int, mine: Mine
) -> Iterator[Chunk]:
    """Yield frames without the first ``done`` rows, of which the rows that are ``mine`` alone are
    parsed.

    Raises ``InputError`` for a row among those that is no row, or a cell that is no number.
    """
    marks = number_marks(schema, head.names)
    with open_records(schema, part, head, ESCAPE) as file:
        rows = _records(schema, file)
        for frame, wanted, start in read_rows(schema, part, rows, list(kinds), done, mine):
            tally = EncodingReport(source=str(part), rows=start, places=wanted)
            for name, missing in marks.items():
                numbers = np.full(len(frame), np.nan)
                numbers[wanted], faults = column_numbers(
                    name, frame[name].iloc[wanted], missing, schema.text
                )
                for column, rows_, shown, rule in faults:
                    tally.fault(rows_, column, shown, rule)
                frame[name] = numbers
            tally.raise_faults()
            yield Chunk(frame)


def refuse_short_rows(schema: Schema, part: Part, head: Head) -> None:
    """Raise ``InputError`` where a row has fewer fields than columns, which the parser fills with
    empty cells.
    """
    wanted = len(head.names)
    with open_records(schema, part, head) as file:
        rows = enumerate(filter(None, _records(schema, file)), start=1)
        found = next(((n, len(row)) for n, row in rows if len(row) < wanted), None)
    if found is not None:
        count = "1 field" if found[1] == 1 else f"{found[1]} fields"
        raise InputError(
            f"{part}: Expected {wanted} fields in data row {found[0]}, got {count}; correct the "
            f"row, or text.separator (now {schema.text.separator!r}) and text.quote."
        )


def _records(schema: Schema, lines: Iterable[str]) -> Iterator[list[str]]:
    """The cells of each record, which may go over several lines in quotes."""
    text = schema.text
    if text.separator == " ":
        return (line.split() for line in lines)
    return csv.reader(
        lines, delimiter=text.separator, quotechar=text.quote, skipinitialspace=text.strip
    )


class _Counted:
    """The lines of a file, counted."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.lines, self.size = file, 0, 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> str:
        line = next(self.file)
        self.lines += 1
        self.size += len(line.encode("utf-8", ESCAPE))
        return line


def read_head(schema: Schema, part: Part, skip: int, every: bool = True) -> Head:
    """Where the records begin and what the columns are called, from the header or the schema,
    checked against it.

    Lines to skip are lines of the file, whatever stands in quotes; the header is the first record
    after them that is not blank. Without ``every`` the first row may be one that is not read, so
    nothing is asked of it.
    """
    text = schema.text
    with open_text(part, text.encoding, "strict" if every else ESCAPE) as file:
        lines = _Counted(file)
        for _ in range(skip):
            next(lines, None)
        records = _records(schema, lines)
        cells = next(filter(None, records), None) if text.header else None
        before, size = lines.lines, lines.size
        first = next(filter(None, records), None)
    if first is None or (text.header and cells is None):
        raise no_rows(part)
    if every or cells:
        _check_separator(schema, part, cells or first)
    names = (
        list(text.names) or header_names(schema, cells) or default_names(schema, part, len(first))
    )
    if cells is not None and len(names) != len(cells):
        raise InputError(
            f"{part}: text.names has {len(names)} names, the header {len(cells)}; name every "
            "column."
        )
    if every:
        _check_first(schema, part, first, names, "header" if cells else "schema")
    if cells is not None:
        require_header(schema, part, names)
    check_names(schema, part, names)
    return Head(names, before, size + _mark(schema, part))


def _check_first(
    schema: Schema, part: Part, row: list[str], names: list[str], named_by: str
) -> None:
    """Raise ``InputError`` for a first row that has not as many fields as there are names."""
    if len(row) != len(names):
        raise InputError(
            f"{part}: data row 1 has {len(row)} fields, the {named_by} {len(names)}; check "
            f"text.separator (now {schema.text.separator!r}) and the columns, or declare "
            "text.skip_lines where titles or marks like sep= stand before them."
        )


def first_record(schema: Schema, part: Part) -> list[str]:
    """The cells of the first record after the lines to skip that is not blank."""
    with (
        _readable(part, schema),
        unpacked(part),
        open_text(part, schema.text.encoding) as file,
    ):
        for _ in range(schema.text.skip_lines):
            file.readline()
        return next(filter(None, _records(schema, file)), [])


def _mark(schema: Schema, part: Part) -> int:
    """The bytes of a mark of byte order before text in UTF-8."""
    with open_bytes(part) as file:
        return 3 if file.read(3) == b"\xef\xbb\xbf" else 0


@contextmanager
def open_records(
    schema: Schema, part: Part, head: Head, errors: str = "strict"
) -> Iterator[TextIO]:
    """The text behind the header."""
    with open_text(part, schema.text.encoding, errors) as file:
        for _ in range(head.lines):
            file.readline()
        yield file


def _first_fits(schema: Schema, part: Part, head: Head) -> bool:
    """Whether the first row has as many cells as there are columns, from which the parsers take
    their number.
    """
    with open_records(schema, part, head, ESCAPE) as file:
        first = next(filter(None, _records(schema, file)), [])
    return len(first) == len(head.names)


def _check_separator(schema: Schema, part: Part, cells: list[str]) -> None:
    """Raise ``InputError`` where a line is one cell that another separator would cut into the
    declared columns.
    """
    [line] = cells if len(cells) == 1 else [""]
    needed = max(1, len(schema.columns) - 1)
    other = next((mark for mark in SEPARATORS if line.count(mark) >= needed), None)
    if other is not None:
        raise InputError(
            f"{part}: Expected cells separated by text.separator={schema.text.separator!r}, got a "
            f"first line without it; declare text.separator: {other!r}."
        )


@contextmanager
def _readable(part: Part, schema: Schema) -> Iterator[None]:
    """Turn what can go wrong with bytes and layout into one-line errors."""
    try:
        yield
    except UnicodeError:
        raise _undecodable(part, schema.text.encoding) from None
    except LookupError:
        raise InputError(
            f"Expected a known text.encoding, got {schema.text.encoding!r}; try utf-8 or latin-1."
        ) from None
    except (pd.errors.ParserError, csv.Error) as error:
        words = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        raise InputError(
            f"{part}: {words}; correct the line, or text.separator and text.quote."
        ) from None


def _undecodable(part: Part, encoding: str) -> InputError:
    """The error for text in another encoding: the first line that does not decode and its byte."""
    with TextIOWrapper(open_bytes(part), encoding="latin-1", newline="\n") as file:
        for number, text in enumerate(file, start=1):
            line = text.encode("latin-1")
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                return InputError(
                    f"{part} begins with the mark of byte order of UTF-16, not {encoding}; declare "
                    "text.encoding: utf-16."
                )
            try:
                line.decode(encoding)
            except UnicodeError as error:
                place = getattr(error, "start", 0)
                return InputError(
                    f"{part}, line {number}: byte 0x{line[place]:02X} is not {encoding}; declare "
                    "text.encoding, for example latin-1 or cp1251."
                )
    return InputError(
        f"{part}: not readable as {encoding}; declare text.encoding, for example latin-1 or cp1251."
    )
