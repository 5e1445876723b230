"""Tables with faults, of which a run reads some rows only: what is wrong with the others refuses
nothing.

A run on some blocks pays for the rows of these, so no row of another block may decide over whether
it is refused. The fast parsers stop at the first fault, wherever it stands; then the rows are taken
apart one by one here. Of a row that is not read only the cell that names its block is looked at.
What stays the operator's, and refuses: a row whose block cannot be read, for it may be of any; and
what belongs to no row, a damaged file, a header, a quote that never ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dpcore.errors import InputError
from dpcore.preprocess.design import SHOWN, EncodingReport
from tasks.readers.chunk import chunk_rows
from tasks.readers.parts import Part
from tasks.schema import Schema

# Which rows of a frame are read, shape (n,); None: all of them.
Mine = Callable[[pd.DataFrame], Any]
# Bytes that are no text are kept as single surrogates, which no text of a file can hold.
ESCAPE = "surrogateescape"


def undecoded(text: str) -> bool:
    """Whether some byte of ``text`` was no text in the declared encoding."""
    return not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text)


def block_cell(schema: Schema, cells: list[str], place: int) -> str:
    """The cell that names the block of a row, empty where it cannot be read."""
    assert schema.block is not None
    cell = cells[place] if place < len(cells) else ""
    return "" if undecoded(cell) else cell


def read_rows(
    schema: Schema, path: Part, rows: Iterable[list[str]], names: list[str], done: int, mine: Mine
) -> Iterator[tuple[pd.DataFrame, np.ndarray, int]]:
    """Text cells without the first ``done`` rows, chunk by chunk: the frame, which rows are read,
    the rows before it.

    In the others all cells are empty but the one that names the block. Raises ``InputError`` for a
    row that is read and has another number of cells than ``names``, or bytes that are no text.
    """
    assert schema.block is not None
    place, start = names.index(schema.block.column), done
    source = islice((row for row in rows if any(row) or len(row) > 1), done, None)
    while found := list(islice(source, chunk_rows(len(names)))):
        where = pd.DataFrame(
            {schema.block.column: [block_cell(schema, row, place) for row in found]}, dtype=object
        )
        wanted = np.flatnonzero(mine(where))
        table = np.full((len(found), len(names)), "", dtype=object)
        table[:, place] = where.iloc[:, 0]
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
            f"rows after it are "
            "not told apart; correct the line, or text.quote."
        )


def _whole(schema: Schema, path: Part, number: int, row: list[str], names: list[str]) -> list[str]:
    if len(row) != len(names):
        count = "1 field" if len(row) == 1 else f"{len(row)} fields"
        raise InputError(
            f"{path}: Expected {len(names)} fields in data row {number}, got {count}; correct the "
            f"row, or "
            f"text.separator (now {schema.text.separator!r}) and text.quote."
        )
    for name, cell in zip(names, row, strict=True):
        if undecoded(cell):
            raise InputError(
                f"{path}: data row {number}, column {name!r}: "
                f"{cell.encode('utf-8', ESCAPE)[:40]!r} is not "
                f"{schema.text.encoding}; correct the row, or declare text.encoding, for example "
                f"latin-1 or cp1251."
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
