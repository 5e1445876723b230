"""The fast way for plain CSV files, through Arrow's parser; what it cannot read is left to the
careful way.
"""

from __future__ import annotations

from codecs import lookup
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv

from tasks.readers.cell_numbers import column_numbers
from tasks.readers.chunk import Chunk, Fault, Mine, bytes_stream
from tasks.readers.parts import Part
from tasks.schema import Schema

BLOCK = 64 * 2**20  # bytes of text times columns that one chunk is parsed from
TYPES = {
    "float64": pa.float64(),
    "category": pa.dictionary(pa.int32(), pa.string()),
    None: pa.string(),
}


def block_bytes(columns: int) -> int:
    return max(2**16, BLOCK // max(columns, 1))


class NotPlain(Exception):
    """The file needs the careful parser; ``rows`` were already given out."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


def is_plain(schema: Schema, marks: dict[str, list[str]]) -> bool:
    """Whether the declared layout is one that Arrow reads with the same meaning: UTF-8, one
    separating character, the same missing marks in every numeric column."""
    text = schema.text
    return (
        lookup(text.encoding).name == "utf-8"
        and len(text.separator) == 1
        and text.separator != " "
        and len({tuple(m) for m in marks.values()}) <= 1
    )


def read_plain(
    schema: Schema,
    part: Part,
    names: list[str],
    kinds: dict[str, str | None],
    marks: list[str],
    offset: int,
    mine: Mine | None = None,
) -> Iterator[Chunk]:
    """Yield frames of the rows after the first ``offset`` bytes; raises ``NotPlain`` where the
    parser gives up.

    Quotes after a blank are text to this parser, so a text that begins with one is left to the
    other. Numbers with marks of thousands are parsed as texts first.
    """
    text = schema.text
    grouped = [name for name, kind in kinds.items() if kind == "float64" and text.thousands]
    types = {name: TYPES["category" if name in grouped else kind] for name, kind in kinds.items()}
    wanted = [name for name in names if kinds[name] or needed(schema, name)]
    rows = 0
    try:
        with (
            bytes_stream(part) as stream,
            pacsv.open_csv(
                after(stream, offset),
                pacsv.ReadOptions(
                    use_threads=False, block_size=block_bytes(len(names)), column_names=names
                ),
                pacsv.ParseOptions(delimiter=text.separator, quote_char=text.quote),
                pacsv.ConvertOptions(
                    column_types={name: types[name] for name in wanted},
                    include_columns=wanted,
                    null_values=marks,
                    strings_can_be_null=False,
                    decimal_point=text.decimal,
                ),
                pa.system_memory_pool(),  # gives memory back between chunks
            ) as reader,
        ):
            for batch in reader:
                if not batch.num_rows:
                    continue
                chunk = Chunk(frame_of(batch))
                if text.strip and _quoted(chunk, text.quote, kinds):
                    raise NotPlain(rows)
                yield with_numbers(schema, chunk, dict.fromkeys(grouped, marks), mine)
                rows += chunk.rows
    except (pa.ArrowInvalid, OSError):
        raise NotPlain(rows) from None


def after(stream: Any, offset: int) -> Any:
    """``stream`` behind its first ``offset`` bytes."""
    while offset and (piece := stream.read(min(offset, 2**20))):
        offset -= len(piece)
    return stream


def with_numbers(
    schema: Schema, chunk: Chunk, marks: dict[str, list[str]], mine: Mine | None = None
) -> Chunk:
    """``chunk`` with the columns of ``marks`` (name -> texts of no value), which are texts, as
    numbers; of rows that are not ``mine`` none is looked at.
    """
    wanted = None if mine is None or not marks else np.flatnonzero(mine(chunk.table))
    columns: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, missing in marks.items():
        cells = chunk.table[name] if wanted is None else chunk.table[name].iloc[wanted]
        columns[name], found = column_numbers(name, cells, missing, schema.text)
        if wanted is not None:
            numbers = np.full(chunk.rows, np.nan)
            numbers[wanted] = columns[name]
            columns[name] = numbers
            found = [(column, wanted[rows], shown, rule) for column, rows, shown, rule in found]
        faults += found
    for name, numbers in columns.items():
        chunk.table[name] = numbers
    return Chunk(chunk.table, faults=tuple(faults)) if faults else chunk


def frame_of(batch: pa.RecordBatch) -> pd.DataFrame:
    """The batch as a frame, texts as categories; half the time of Arrow's own conversion for few
    rows.
    """
    columns: dict[str, Any] = {}
    for name, cells in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_dictionary(cells.type):
            levels = pd.Index(cells.dictionary.to_pylist(), dtype=object)
            codes = cells.indices.to_numpy(zero_copy_only=False)
            columns[name] = pd.Categorical.from_codes(
                codes, dtype=pd.CategoricalDtype(levels), validate=False
            )
        elif pa.types.is_floating(cells.type):
            columns[name] = cells.to_numpy(zero_copy_only=False)
        else:
            columns[name] = cells.to_pandas()
    return pd.DataFrame(columns, copy=False)


def needed(schema: Schema, name: str) -> bool:
    """Whether an ignored column is still read: the split may go by it."""
    split = schema.split
    return split.kind == "hash" and (name in split.by or not split.by)


def _quoted(chunk: Chunk, quote: str, kinds: dict[str, str | None]) -> bool:
    levels = (chunk.table[n].cat.categories for n, kind in kinds.items() if kind == "category")
    return any(level.lstrip().startswith(quote) for found in levels for level in found)
