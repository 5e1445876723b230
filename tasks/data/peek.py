"""A quick look at a declared table before anything starts: header, columns, label and the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dpcore.preprocess import Encoder, MatrixEncoder, Tally
from tasks.data.labels import decode_labels
from tasks.data.load import test_files
from tasks.data.sides import row_blocks
from tasks.readers import Chunk, open_chunks, source_paths
from tasks.readers.open import Paths
from tasks.schema import Schema

PEEK_ROWS = 2000


def peek(
    schema: Schema,
    encoder: Encoder | MatrixEncoder,
    path: Paths = None,
    test_path: Paths = None,
    blocks: Sequence[str] | None = None,
) -> None:
    """Raise ``InputError`` where ``load`` would, as far as the first rows of the files show it.

    Nothing is kept. A table that is fetched or generated is not looked at.
    """
    if path is None and schema.source.kind != "file":
        return
    files = source_paths(schema, path, schema.source.path)
    tests = test_files(schema, files, test_path)
    for found, skip, wanted in ((files, None, blocks), (tests, schema.split.skip_lines, None)):
        if found:
            chunk = next(iter(open_chunks(schema, found, skip)), None)
            if chunk is not None:
                _check(schema, encoder, chunk, found, wanted)


def _check(
    schema: Schema, encoder: Encoder | MatrixEncoder, chunk: Chunk, files: list[Path], blocks: Sequence[str] | None
) -> None:
    table = chunk.table[:PEEK_ROWS]
    labels = None if chunk.labels is None else chunk.labels[:PEEK_ROWS]
    tally = Tally(source=", ".join(map(str, files)))
    cells = table[schema.label.column] if labels is None else pd.Series(labels)
    y = decode_labels(schema.label, cells, tally, schema.text.strip)
    tally.raise_faults()
    keep = ~np.isnan(y)
    if labels is None and blocks is not None:
        where = row_blocks(schema, table, tally)
        keep &= True if where is None else np.isin(where, blocks)
    if keep.any():
        tally.places = np.flatnonzero(keep)
        encoder.encode(table[keep], tally)  # type: ignore[arg-type]
