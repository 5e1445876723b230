"""A quick look at a declared table before anything starts: header, columns, label and the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dpcore.preprocess import Encoder, MatrixEncoder, Tally
from tasks.data.labels import decode_labels
from tasks.data.load import test_files
from tasks.data.sides import in_blocks, mine_of
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
    for found, skip in ((files, None), (tests, schema.split.skip_lines)):
        if found:
            chunk = next(iter(open_chunks(schema, found, skip, mine_of(schema, blocks))), None)
            if chunk is not None:
                _check(schema, encoder, chunk, found, blocks)


def _check(
    schema: Schema, encoder: Encoder | MatrixEncoder, chunk: Chunk, files: list[Path], blocks: Sequence[str] | None
) -> None:
    chunk = chunk.take(np.arange(min(PEEK_ROWS, chunk.rows)))
    tally = Tally(source=", ".join(map(str, files)))
    mine = in_blocks(schema, blocks, chunk.table, tally)
    tally.raise_faults()
    places = np.arange(chunk.rows) if mine is None else np.flatnonzero(mine)
    chunk, tally.places = chunk.take(places), places
    if not chunk.rows:
        return
    cells = chunk.table[schema.label.column] if chunk.labels is None else pd.Series(chunk.labels)
    y = decode_labels(schema.label, cells, tally, schema.text.strip)
    tally.raise_faults()
    keep = ~np.isnan(y)
    if keep.any():
        tally.places = places[keep]
        encoder.encode(chunk.table[keep], tally)  # type: ignore[arg-type]
