"""Through Arrow: Parquet and Feather tables by chunks, and the fast way for plain CSV files; what
it cannot read of these is left to the careful way.
"""

from __future__ import annotations

from codecs import lookup
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq

from dpcore.errors import InputError
from dpcore.preprocess.frames import arrow_frame
from tasks.readers.chunk import (
    Chunk,
    Fault,
    Mine,
    bytes_stream,
    chunk_rows,
    no_rows,
    packing,
    parquet_frame,
    require_rows,
)
from tasks.readers.declared import as_declared, check_names, column_numbers, dtype_of
from tasks.readers.parts import Part
from tasks.schema import Schema

BLOCK = 64 * 2**20  # bytes of text times columns that one chunk is parsed from
TYPES = {
    "float64": pa.float64(),
    "category": pa.dictionary(pa.int32(), pa.string()),
    None: pa.string(),
}


# Rows of a Parquet file that are in memory at a time: frames of more take some times their bytes.
BATCH = 2**16


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


def read_parquet(schema: Schema, part: Part, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield frames of a Parquet file, record batch by record batch; of rows that are not ``mine``
    none is refused.

    Columns that nothing is made of are not read. Raises ``InputError`` for a column that is, and
    holds no plain values.
    """
    require_rows(part)
    refuse_packed(part, "Parquet")
    with (
        readable_table(part, "Parquet"),
        opened(part) as source,
        pq.ParquetFile(source, read_dictionary=levels_of(schema, part)) as file,
    ):
        given = file.schema_arrow
        names, wanted = read_columns(schema, part, given)
        if not file.metadata.num_rows:
            raise no_rows(part)
        start = 0
        columns = [given.names[k] for k in wanted]
        rows = min(chunk_rows(len(names)), BATCH)
        for batch in file.iter_batches(rows, columns=columns, use_threads=False):
            piece = batch.select(columns).rename_columns([names[k] for k in wanted])
            chunk = arrow_chunk(schema, part, piece, start, mine)
            start += chunk.rows
            yield chunk


def levels_of(schema: Schema, part: Part) -> list[str]:
    """Columns of texts that are declared as levels: their pages are read as the codes that they
    hold, and each text once.
    """
    if not isinstance(part, Path):
        return []
    given = pq.read_schema(part)
    leveled = {
        name for name, spec in schema.columns.items() if spec.kind in ("categorical", "ordinal")
    }
    pairs = zip(given, as_declared(schema, given.names), strict=True)
    return [
        field.name for field, name in pairs if name in leveled and pa.types.is_string(field.type)
    ]


def read_feather(schema: Schema, part: Part, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield frames of a Feather (Arrow IPC) file; errors as for Parquet."""
    require_rows(part)
    with readable_table(part, "Feather"), opened(part) as source:
        names, wanted = read_columns(schema, part, feather.read_table(source).schema)
    with readable_table(part, "Feather"), opened(part) as source:
        table = feather.read_table(source)
        if not table.num_rows:
            raise no_rows(part)
        table = table.select(wanted).rename_columns([names[k] for k in wanted])
        start = 0
        for batch in table.to_batches(chunk_rows(len(names))):
            if not batch.num_rows:
                continue
            yield arrow_chunk(schema, part, batch, start, mine)
            start += batch.num_rows


def read_columns(schema: Schema, part: Part, given: pa.Schema) -> tuple[list[str], list[int]]:
    """The names of all columns as the schema spells them, and the places of those that are read.

    A column that is ignored is read where the split goes by it; one of lists, structs or bytes has
    no text to go by. Raises ``InputError`` for such a column that is used.
    """
    names = as_declared(schema, given.names)
    check_names(schema, part, names)
    wanted = []
    for place, (name, field) in enumerate(zip(names, given, strict=True)):
        used = dtype_of(schema, name) is not None
        if not used and not needed(schema, name):
            continue
        if not _plain(field.type):
            if used or name in schema.split.by:
                raise InputError(
                    f"{part}: Expected texts, numbers, dates or Booleans in column {name!r}, got "
                    f"{field.type}; store one value a cell, or ignore the column."
                )
            continue
        wanted.append(place)
    return names, wanted


def _plain(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        *(
            pa.types.is_boolean,
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_decimal,
            pa.types.is_null,
        ),
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_date, pa.types.is_timestamp),
    )
    return any(test(kind) for test in tests)


def arrow_chunk(
    schema: Schema, part: Part, batch: pa.RecordBatch, start: int, mine: Mine | None
) -> Chunk:
    """A batch of Arrow as a chunk; texts whose bytes are none are refused in the rows that are
    ``mine``.
    """
    try:
        batch.validate(full=True)  # that texts are texts
    except pa.ArrowException:
        return Chunk(parquet_frame(schema, part, batch, start, mine))
    numbers = {name for name in batch.schema.names if dtype_of(schema, name) == "float64"}
    return Chunk(arrow_frame(batch, numbers))


@contextmanager
def opened(part: Part) -> Iterator[Any]:
    """What Arrow reads a part from: its path here, or the opened remote file."""
    if isinstance(part, Path):
        yield part
        return
    with part.open() as file:
        yield file


def refuse_packed(part: Part, what: str) -> None:
    if packed := packing(part):
        raise InputError(
            f"{part}: Expected a {what} file, got one packed by {packed}; unpack it (its own "
            "compression is read)."
        )


@contextmanager
def readable_table(part: Part, what: str) -> Iterator[None]:
    """Turn what can be wrong with the bytes of a table into a one-line ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
        NotImplementedError,
        IndexError,
        ArithmeticError,
    ) as error:
        words = " ".join(str(error).split())[:200]
        raise InputError(f"{part}: not readable as {what}: {words}; check the file.") from None
