"""CSV and other separated text, by chunks: checked names, one meaning, two parsers."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.preprocess import EncodingReport
from dpcore.preprocess.encoder import unknown_column
from tasks.readers.arrow import NotPlain, is_plain, read_plain
from tasks.readers.chunk import Chunk, chunk_rows, is_gzip, require_rows, truncated
from tasks.readers.spoiled import ESCAPE, Mine, read_rows
from tasks.schema import Schema
from tasks.schema.sections import TextSpec

NUMBERS = ("numeric", "flag")
SEPARATORS = (";", ",", "\t", "|")


def read_text(
    schema: Schema, path: Path, skip_lines: int | None = None, mine: Mine | None = None
) -> Iterator[Chunk]:
    """Yield frames of the file's rows; numbers are float64, texts categories, ignored columns
    texts.

    Of rows that are not ``mine`` none is refused, whatever is wrong with it
    (``tasks.readers.spoiled``).

    Raises ``InputError`` naming file, row and column: empty or damaged file, wrong encoding,
    duplicate, missing or undeclared columns, rows of another length, text in a numeric column.
    """
    require_rows(path)
    skip = schema.text.skip_lines if skip_lines is None else skip_lines
    with _readable(path, schema):
        names = column_names(schema, path, skip, every=mine is None)
        kinds = {name: dtype_of(schema, name) for name in names}
        options = parser_options(schema, path, names, skip)
        marks = options["na_values"]
        done = 0
        if mine is not None and not _first_fits(schema, path, names, options):
            yield from _read_mine(schema, path, kinds, options, 0, mine)
            return
        if is_plain(schema, marks):
            try:
                yield from read_plain(
                    schema, path, names, kinds, next(iter(marks.values()), []), options["skiprows"]
                )
                return
            except NotPlain as stop:
                done = stop.rows
        yield from _read_carefully(schema, path, kinds, options, done, mine)


def _read_carefully(
    schema: Schema,
    path: Path,
    kinds: dict[str, str | None],
    options: dict[str, Any],
    done: int,
    mine: Mine | None = None,
) -> Iterator[Chunk]:
    """Yield frames through pandas' parser, without the first ``done`` rows; it can say what is
    wrong and where.
    """
    dtypes = {name: kind or "category" for name, kind in kinds.items()}
    row, checked = 0, False
    try:
        with pd.read_csv(path, dtype=dtypes, **options) as reader:
            for frame in reader:
                start, row = row, row + len(frame)
                if not checked and frame.iloc[:, -1].isin(["", np.nan]).any():
                    row = start  # none of these rows was given out yet
                    refuse_short_rows(schema, path, options)
                    checked, row = True, start + len(frame)
                if row > done:
                    yield Chunk(frame.iloc[max(done - start, 0) :])
    except ValueError as error:
        if mine is not None:
            yield from _read_mine(schema, path, kinds, options, max(done, row), mine)
            return
        if isinstance(
            error, UnicodeError | pd.errors.ParserError | pd.errors.EmptyDataError | InputError
        ):
            raise
        refuse_texts(schema, path, options, error)


def _read_mine(
    schema: Schema,
    path: Path,
    kinds: dict[str, str | None],
    options: dict[str, Any],
    done: int,
    mine: Mine,
) -> Iterator[Chunk]:
    """Yield frames without the first ``done`` rows, of which the rows that are ``mine`` alone are
    parsed.

    Raises ``InputError`` for a row among those that is no row, or a cell that is no number.
    """
    marks, text = options["na_values"], schema.text
    with open_text(path, options["encoding"], ESCAPE) as file:
        rows = _rows(schema, islice(file, options["skiprows"], None))
        for frame, wanted, start in read_rows(schema, path, rows, list(kinds), done, mine):
            tally = EncodingReport(source=str(path), rows=start, places=wanted)
            for name, absent in marks.items():
                cells = frame[name].iloc[wanted]
                _refuse_column(cells, absent, text.decimal, text.thousands, tally)
                numbers = np.full(len(frame), np.nan)
                if not tally.faults:
                    numbers[wanted] = [_number(cell, absent, text) for cell in cells]
                frame[name] = numbers
            tally.raise_faults()
            yield Chunk(frame)


def _number(cell: Any, absent: list[str], text: TextSpec) -> float:
    """A checked cell as a number, correctly rounded as Arrow's parser does."""
    bare = str(cell).strip()
    if bare in absent:
        return np.nan
    if text.thousands:
        bare = bare.replace(text.thousands, "")
    return float(bare.replace(text.decimal, "."))


def refuse_short_rows(schema: Schema, path: Path, options: dict[str, Any]) -> None:
    """Raise ``InputError`` where a row has fewer fields than columns, which the parser fills with
    empty cells.
    """
    wanted = len(options["names"])
    with open_text(path, options["encoding"]) as file:
        rows = _rows(schema, islice(file, options["skiprows"], None))
        found = next(
            (
                (n, len(row))
                for n, row in enumerate(filter(None, rows), start=1)
                if len(row) < wanted
            ),
            None,
        )
    if found is not None:
        count = "1 field" if found[1] == 1 else f"{found[1]} fields"
        raise InputError(
            f"{path}: Expected {wanted} fields in data row {found[0]}, got {count}; correct the "
            f"row, or text.separator "
            f"(now {schema.text.separator!r}) and text.quote."
        )


def _rows(schema: Schema, lines: Iterable[str]) -> Iterator[list[str]]:
    """The fields of each line."""
    text = schema.text
    if text.separator == " ":
        return (line.split() for line in lines)
    return csv.reader(
        lines, delimiter=text.separator, quotechar=text.quote, skipinitialspace=text.strip
    )


def dtype_of(schema: Schema, name: str) -> str | None:
    """How a column is parsed: as a number, as text with few values, or (ignored columns: None) as
    text.
    """
    if name == schema.label.column:
        numbers = schema.label.kind == "regression" or schema.label.positive_from is not None
        return "float64" if numbers else "category"
    spec = schema.columns.get(name)
    if spec is None or spec.kind == "ignore":
        return None
    return "float64" if spec.kind in NUMBERS else "category"


def parser_options(schema: Schema, path: Path, names: list[str], skip: int) -> dict[str, Any]:
    """Arguments of ``pandas.read_csv``: nothing counts as missing but what is declared, and empty
    numeric cells.
    """
    text = schema.text
    numeric = [n for n in names if dtype_of(schema, n) == "float64"]
    marks = {
        n: (c.missing if (c := schema.columns.get(n)) and c.missing is not None else schema.missing)
        for n in numeric
    }
    return {
        "header": None,
        "names": names,
        "index_col": False,
        "skiprows": skip + int(text.header),
        "sep": r"\s+" if text.separator == " " else text.separator,
        "decimal": text.decimal,
        "thousands": text.thousands,
        "quotechar": text.quote,
        "skipinitialspace": text.strip,
        "encoding": _encoding(schema, path),
        "compression": "gzip" if is_gzip(path) else None,
        "keep_default_na": False,
        "na_values": {n: ["", "nan", "NaN", *found] for n, found in marks.items()},
        "low_memory": False,
        "chunksize": chunk_rows(len(names)),
    }


def column_names(schema: Schema, path: Path, skip: int, every: bool = True) -> list[str]:
    """Names of the file's columns, from its header or the schema, checked against the declarations.

    Without ``every`` the first row may be one that is not read, so nothing is asked of it.
    """
    text = schema.text
    with open_text(path, _encoding(schema, path), "strict" if every else ESCAPE) as file:
        rows = _rows(schema, islice(file, skip, None))
        head = next(rows, None) if text.header else None
        first = next((row for row in rows if row), None)
    if first is None or (text.header and head is None):
        raise InputError(f"{path}: the file has no data rows; give a file with rows.")
    if every or head:
        _check_separator(schema, path, head or first)
    names = list(text.names) or (
        [h.strip() if text.strip else h for h in head] if head else default_names(schema)
    )
    if head is not None and len(names) != len(head):
        raise InputError(
            f"{path}: text.names has {len(names)} names, the header {len(head)}; name every column."
        )
    if every and len(first) != len(names):
        raise InputError(
            f"{path}: data row 1 has {len(first)} fields, the {'header' if head else 'schema'} "
            f"{len(names)}; check"
            f" text.separator (now {text.separator!r}) and the columns."
        )
    check_names(schema, str(path), names)
    return names


def _first_fits(schema: Schema, path: Path, names: list[str], options: dict[str, Any]) -> bool:
    """Whether the first row has as many cells as there are columns, from which the parsers take
    their number.
    """
    with open_text(path, options["encoding"], ESCAPE) as file:
        first = next(filter(None, _rows(schema, islice(file, options["skiprows"], None))), [])
    return len(first) == len(names)


def _check_separator(schema: Schema, path: Path, cells: list[str]) -> None:
    """Raise ``InputError`` where a line is one cell that another separator would cut into the
    declared columns.
    """
    [line] = cells if len(cells) == 1 else [""]
    other = next(
        (mark for mark in SEPARATORS if line.count(mark) >= max(1, len(schema.columns) - 1)), None
    )
    if other is not None:
        raise InputError(
            f"{path}: Expected cells separated by text.separator={schema.text.separator!r}, got "
            f"the line "
            f"{line[:60]!r}; declare text.separator: {other!r}."
        )


def default_names(schema: Schema) -> list[str]:
    """Column names of a file without header: the declared ones in order, the label last unless it
    is among them.
    """
    names = list(schema.columns)
    return names if schema.label.column in names else [*names, schema.label.column]


def check_names(schema: Schema, where: str, names: list[str]) -> None:
    """Raise ``InputError`` on duplicate, missing and undeclared columns."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"{where}: two columns are named {name!r}; give every column its own name under "
                f"text.names."
            )
    wanted = [*schema.columns, schema.label.column]
    made = {schema.source.tag}
    for name in wanted:
        if name not in names and name not in made:
            role = "the label column" if name == schema.label.column else "declared column"
            raise InputError(f"{where}: {role} {name!r} is missing. {unknown_column(name, names)}")
    extra = [n for n in names if n not in wanted]
    if extra and schema.undeclared == "refuse":
        raise InputError(
            f"{where}: column {extra[0]!r} is not declared ({len(extra)} such); declare it with "
            f"kind: ignore, or set"
            " undeclared: ignore."
        )


def open_text(path: Path, encoding: str, errors: str = "strict") -> Any:
    """The file as text, unpacked if it is gzip."""
    opener = gzip.open if is_gzip(path) else open
    return opener(path, "rt", encoding=encoding, errors=errors, newline="")


def refuse_texts(schema: Schema, path: Path, options: dict[str, Any], error: ValueError) -> None:
    """Read the numeric columns again as text to name the cells that hold none; raises
    ``InputError``.
    """
    numeric = list(options["na_values"])
    text = schema.text
    tally = EncodingReport(source=str(path))
    plain = {**options, "dtype": str, "na_values": None, "decimal": ".", "thousands": None}
    with pd.read_csv(path, **plain) as reader:
        for frame in reader:
            for name in numeric:
                _refuse_column(
                    frame[name], options["na_values"][name], text.decimal, text.thousands, tally
                )
            tally.raise_faults()
            tally.rows += len(frame)
    raise InputError(f"{path}: {' '.join(str(error).split())}; correct the file or the schema.")


def _refuse_column(
    cells: pd.Series, marks: list[str], decimal: str, thousands: str | None, tally: EncodingReport
) -> None:
    texts = cells.fillna("").astype(str).str.strip()
    bare = texts.str.replace(thousands, "", regex=False) if thousands else texts
    as_read = pd.to_numeric(bare.str.replace(decimal, ".", regex=False), errors="coerce").isna()
    if decimal != ".":
        as_read |= bare.str.contains(".", regex=False)
    rows = np.flatnonzero(as_read & ~texts.isin(marks))
    if not len(rows):
        return
    other = "," if decimal == "." else "."
    swapped = pd.to_numeric(
        texts.iloc[rows].str.replace(other, ".", regex=False), errors="coerce"
    ).notna()
    way = "a number is needed; correct the row, or declare the text under missing with a fill"
    if swapped.all():
        way = f"it parses with the other decimal mark: declare text.decimal: {other!r}"
    tally.fault(
        rows, str(cells.name), [f"{t!r} is not a number" for t in texts.iloc[rows[:11]]], way
    )


@contextmanager
def _readable(path: Path, schema: Schema) -> Iterator[None]:
    """Turn what can go wrong with bytes and layout into one-line errors."""
    try:
        yield
    except UnicodeDecodeError:
        raise _undecodable(path, schema.text.encoding) from None
    except LookupError:
        raise InputError(
            f"Expected a known text.encoding, got {schema.text.encoding!r}; try utf-8 or latin-1."
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise truncated(path) from None
    except (pd.errors.ParserError, csv.Error) as error:
        words = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        raise InputError(
            f"{path}: {words}; correct the line, or text.separator and text.quote."
        ) from None


def _encoding(schema: Schema, path: Path) -> str:
    """The declared encoding; a byte order mark of UTF-8 is read over."""
    if schema.text.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        return schema.text.encoding
    with (gzip.open if is_gzip(path) else open)(path, "rb") as file:
        return "utf-8-sig" if file.read(3) == b"\xef\xbb\xbf" else "utf-8"


def _undecodable(path: Path, encoding: str) -> InputError:
    """The error for text in another encoding: the first line that does not decode and its byte."""
    with (gzip.open if is_gzip(path) else open)(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError as error:
                return InputError(
                    f"{path}, line {number}: byte 0x{line[error.start]:02X} is not {encoding}; "
                    f"declare text.encoding,"
                    " for example latin-1 or cp1251."
                )
    return InputError(
        f"{path}: not readable as {encoding}; declare text.encoding, for example latin-1 or cp1251."
    )
