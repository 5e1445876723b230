"""The fast way for plain CSV files, through Arrow's parser; what it cannot read is left to the
careful way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv

from tasks.readers.chunk import Chunk, is_gzip
from tasks.schema import Schema

BLOCK = 64 * 2**20  # bytes of text times columns that one chunk is parsed from


def block_bytes(columns: int) -> int:
    return max(2**16, BLOCK // max(columns, 1))


class NotPlain(Exception):
    """The file needs the careful parser; ``rows`` were already given out."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


def is_plain(schema: Schema, marks: dict[str, list[str]]) -> bool:
    """Whether the declared layout is one that Arrow reads with the same meaning: UTF-8, one
    separating character, no thousands mark, the same missing marks in every numeric column."""
    text = schema.text
    return (
        text.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
        and len(text.separator) == 1
        and text.separator != " "
        and text.thousands is None
        and len({tuple(m) for m in marks.values()}) <= 1
    )


def read_plain(
    schema: Schema,
    path: Path,
    names: list[str],
    kinds: dict[str, str | None],
    marks: list[str],
    skip: int,
) -> Iterator[Chunk]:
    """Yield frames of the rows after the first ``skip`` lines; raises ``NotPlain`` where the parser
    gives up.

    Quotes after a blank are text to this parser, so a text that begins with one is left to the
    other.
    """
    text = schema.text
    types = {
        "float64": pa.float64(),
        "category": pa.dictionary(pa.int32(), pa.string()),
        None: pa.string(),
    }
    wanted = [name for name in names if kinds[name] or needed(schema, name)]
    rows = 0
    try:
        with (
            pa.input_stream(str(path), compression="gzip" if is_gzip(path) else None) as stream,
            pacsv.open_csv(
                stream,
                pacsv.ReadOptions(
                    use_threads=False,
                    block_size=block_bytes(len(names)),
                    skip_rows=skip,
                    column_names=names,
                ),
                pacsv.ParseOptions(delimiter=text.separator, quote_char=text.quote),
                pacsv.ConvertOptions(
                    column_types={name: types[kinds[name]] for name in wanted},
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
                yield chunk
                rows += chunk.rows
    except (pa.ArrowInvalid, OSError):
        raise NotPlain(rows) from None


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
