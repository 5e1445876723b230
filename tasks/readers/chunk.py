"""What every reader yields: raw rows of one stretch of a file, with bounded memory.

Tables with faults, of which a run reads some rows only: what is wrong with the others refuses
nothing.

A run on some blocks pays for the rows of these, so no row of another block may decide over whether
it is refused. The fast parsers stop at the first fault, wherever it stands; then the rows are taken
apart one by one here. Of a row that is not read only the cell that names its block is looked at.
What stays the operator's, and refuses: a row whose block cannot be read, for it may be of any; and
what belongs to no row, a damaged file, a header, a quote that never ends.
"""

from __future__ import annotations

from codecs import lookup
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import islice
from typing import Any, TextIO

import numpy as np
import pandas as pd
import pyarrow as pa

from dpcore.errors import InputError
from dpcore.preprocess.design import SHOWN, EncodingReport
from tasks.readers.parts import Part, open_bytes
from tasks.schema import Schema

CELLS = 1_500_000  # cells of one chunk


# Column, 0-based rows of the chunk, what stands there, the rule.
Fault = tuple[str, np.ndarray, list[str], str]


class EmptyTable(InputError):
    """A file without a data row: refused where it is the only one, and no part where there are
    others.
    """


@dataclass(frozen=True, slots=True)
class Chunk:
    """``table``: a frame by column name, or a matrix (array or CSR) of features alone; ``labels``
    of a matrix, raw;
    ``queries``: the query id of each row (ranking files). ``source`` names the part that the rows
    came from, in which ``start`` rows precede them; ``faults`` are cells that the reader could not
    make a number of (NaN here)."""

    table: pd.DataFrame | Any
    labels: np.ndarray | None = None
    queries: np.ndarray | None = None
    source: str = ""
    start: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def rows(self) -> int:
        return int(self.table.shape[0])

    def take(self, rows: np.ndarray) -> Chunk:
        """Some rows of this chunk by their positions; its faults stay with the whole."""
        table = self.table.iloc[rows] if isinstance(self.table, pd.DataFrame) else self.table[rows]
        labels, queries = (
            None if part is None else part[rows] for part in (self.labels, self.queries)
        )
        return replace(self, table=table, labels=labels, queries=queries, faults=())


NESTED = (list, tuple, dict, set, np.ndarray, bytes, memoryview)


def is_nested(cells: pd.Series) -> bool:
    """Whether cells hold several values, or bytes, which are no text."""
    if isinstance(cells.dtype, pd.ArrowDtype):
        return pa.types.is_nested(cells.dtype.pyarrow_dtype)
    return cells.dtype == object and any(isinstance(cell, NESTED) for cell in cells)


def chunk_rows(columns: int) -> int:
    return max(1_000, CELLS // max(columns, 1))


def require_rows(part: Part) -> None:
    """Raise ``EmptyTable`` for a file without bytes."""
    if part.stat().st_size == 0:
        raise EmptyTable(f"{part}: the file is empty; give a file with rows.")


def no_rows(part: Part) -> EmptyTable:
    """The error for a file that is well but for its rows, of which it has none."""
    return EmptyTable(f"{part}: the file has no data rows; give a file with rows.")


def open_text(part: Part, encoding: str, errors: str = "strict") -> TextIO:
    """The unpacked file as text, lines as they end; a byte order mark of UTF-8 is read over."""
    known = lookup(encoding).name
    raw = open_bytes(part)
    name = "utf-8-sig" if known == "utf-8" else known
    return TextIOWrapper(raw, encoding=name, errors=errors, newline="")


# Which rows of a frame are read, shape (n,); None: all of them.
Mine = Callable[[pd.DataFrame], Any]
# Bytes that are no text are kept as single surrogates, which no text of a file can hold.
ESCAPE = "surrogateescape"


def undecoded(text: str) -> bool:
    """Whether some byte of ``text`` was no text in the declared encoding."""
    return not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text)


def block_cells(schema: Schema, rows: Sequence[Sequence[Any]], names: list[str]) -> pd.DataFrame:
    """The cells that name the blocks of rows, empty where one cannot be read; without a column
    where a folder names the block of all.
    """
    column = None if schema.block is None else schema.block.column
    if column not in names:
        return pd.DataFrame(index=range(len(rows)))
    place = names.index(column)
    cells = [row[place] or "" if place < len(row) else "" for row in rows]
    return pd.DataFrame({column: ["" if undecoded(c) else c for c in cells]}, dtype=object)


def read_rows(
    schema: Schema, path: Part, rows: Iterable[list[str]], names: list[str], done: int, mine: Mine
) -> Iterator[tuple[pd.DataFrame, np.ndarray, int]]:
    """Text cells without the first ``done`` rows, chunk by chunk: the frame, which rows are read,
    the rows before it.

    In the others all cells are empty but the one that names the block. Raises ``InputError`` for a
    row that is read and has another number of cells than ``names``, or bytes that are no text.
    """
    start = done
    source = islice((row for row in rows if any(row) or len(row) > 1), done, None)
    while found := list(islice(source, chunk_rows(len(names)))):
        where = block_cells(schema, found, names)
        wanted = np.flatnonzero(mine(where))
        table = np.full((len(found), len(names)), "", dtype=object)
        for name in where:
            table[:, names.index(str(name))] = where[name]
        read = set(wanted.tolist())
        for k, row in enumerate(found):
            if k in read:
                table[k] = _whole(schema, path, start + k + 1, row, names)
            else:
                _require_line(path, start + k + 1, row, names)
        yield pd.DataFrame(table, columns=names), wanted, start
        start += len(found)


def _require_line(path: Part, number: int, row: list[str], names: list[str]) -> None:
    """Raise ``InputError`` for a row that is none and took others with it: which ones, nobody can
    tell.
    """
    if len(row) != len(names) and any("\n" in cell or "\r" in cell for cell in row):
        raise InputError(
            f"{path}: data row {number} holds a quote that does not end on its line, so that the "
            "rows after it are not told apart; correct the line, or text.quote."
        )


def _whole(schema: Schema, path: Part, number: int, row: list[str], names: list[str]) -> list[str]:
    if len(row) != len(names):
        count = "1 field" if len(row) == 1 else f"{len(row)} fields"
        raise InputError(
            f"{path}: Expected {len(names)} fields in data row {number}, got {count}; correct the "
            f"row, or text.separator (now {schema.text.separator!r}) and text.quote."
        )
    for name, cell in zip(names, row, strict=True):
        if undecoded(cell):
            raise InputError(
                f"{path}: data row {number}, column {name!r}: "
                f"{cell.encode('utf-8', ESCAPE)[:40]!r} is not {schema.text.encoding}; correct the "
                "row, or declare text.encoding, for example latin-1 or cp1251."
            )
    return row


def parquet_frame(
    schema: Schema, path: Part, batch: pa.RecordBatch, start: int, mine: Mine | None
) -> pd.DataFrame:
    """A batch as a frame; texts whose bytes are none are refused in the rows that are ``mine``
    (None: in all).
    """
    columns: dict[str, Any] = {}
    for name, cells in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            raw = cells.cast(pa.large_binary()).to_pylist()
            columns[name] = pd.Series(
                [None if c is None else c.decode("utf-8", ESCAPE) for c in raw], dtype=object
            )
        else:
            columns[name] = cells.to_pandas()
    frame = pd.DataFrame(columns, copy=False)
    texts = [name for name in frame if frame[name].dtype == object]
    spoiled = {
        name: frame[name].map(lambda c: isinstance(c, str) and undecoded(c)).to_numpy(bool)
        for name in texts
    }
    block = None if mine is None or schema.block is None else schema.block.column
    if block in spoiled:
        frame.loc[spoiled[block], block] = ""
    tally = EncodingReport(source=str(path), rows=start)
    wanted = (
        np.ones(len(frame), dtype=bool) if mine is None else np.asarray(mine(frame), dtype=bool)
    )
    for name, bad in spoiled.items():
        rows = np.flatnonzero(bad & wanted)
        if len(rows):
            tally.fault(
                rows,
                str(name),
                ["bytes that are no UTF-8"] * min(len(rows), SHOWN + 1),
                "correct the row",
            )
    tally.raise_faults()
    return frame
