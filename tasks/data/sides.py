"""Which side of the split and which ledger block a row belongs to: facts that a row keeps for ever."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from dpcore.errors import InputError
from dpcore.identity import canonical, names_nobody
from dpcore.preprocess.parts import factors, text_of
from dpcore.preprocess.tally import Tally
from tasks.data.units import unit_codes
from tasks.readers import Chunk
from tasks.readers.text import Mine
from tasks.schema import Schema
from tasks.schema.sections import TextSpec

PLAIN = TextSpec()
DATES = {"year": "%Y", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d"}


def test_rows(schema: Schema, chunk: Chunk, first_row: int) -> np.ndarray | None:
    """Boolean mask of the rows that belong to the test part; None where the file has no test rows.

    Documents of one query stay together: they go by a hash of the query id.
    """
    split = schema.split
    if split.kind == "tail":
        return np.arange(first_row, first_row + chunk.rows) >= (schema.public.n or 0)
    if split.kind not in ("hash", "position"):
        return None
    if split.kind == "position":
        columns = [(np.arange(chunk.rows), list(range(first_row, first_row + chunk.rows)))]
    elif chunk.queries is not None:
        columns = [factors(pd.Series(chunk.queries))]
    elif isinstance(chunk.table, pd.DataFrame):
        names = list(split.by) or list(chunk.table.columns)
        for name in names:
            if name not in chunk.table:
                raise InputError(f"Expected the split column {name!r} (split.by), which the table lacks; name another.")
        columns = [factors(chunk.table[name]) for name in names]
    else:
        table = chunk.table.toarray() if issparse(chunk.table) else np.asarray(chunk.table)
        columns = [factors(pd.Series(column)) for column in table.T]
    return hash_share(columns, split.salt, schema.text) < split.test_share


def hash_share(columns: list[tuple[np.ndarray, list]], salt: str, text: TextSpec = PLAIN) -> np.ndarray:
    """A number in [0, 1) for each row, from the cells' canonical texts alone: the same in every file format, for ever.

    ``columns``: codes and distinct values of each column; the code -1 is for no value. A cell becomes 8 bytes of
    BLAKE2b of its text (keyed by ``salt``), by the identity rule with the blanks and the decimal mark of ``text``; a
    row the polynomial of its cells modulo 2^64, mixed at the end as in SplitMix64.
    """
    key = salt.encode()[:64]
    row = np.zeros(len(columns[0][0]), dtype=np.uint64)
    for codes, uniques in columns:
        texts = [*(canonical(value, text.strip, text.decimal) for value in uniques), ""]
        digests = [int.from_bytes(blake2b(t.encode(), digest_size=8, key=key).digest(), "big") for t in texts]
        row = row * np.uint64(0x9E3779B97F4A7C15) + np.array(digests, dtype=np.uint64)[codes]
    row = (row ^ (row >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    row = (row ^ (row >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((row ^ (row >> np.uint64(31))) >> np.uint64(11)) / 2.0**53


def in_blocks(schema: Schema, blocks: Sequence[str] | None, frame: pd.DataFrame, tally: Tally | None = None) -> Any:
    """Which rows of a frame lie in one of ``blocks``, shape (n,); None where all are read.

    A row that names no block may be of any of them: it is a fault of ``tally``.
    """
    if blocks is None or not isinstance(frame, pd.DataFrame):
        return None
    where = row_blocks(schema, frame, Tally() if tally is None else tally)
    return None if where is None else np.isin(where, list(blocks))


def mine_of(schema: Schema, blocks: Sequence[str] | None) -> Mine | None:
    """The rows of a frame that a run on ``blocks`` reads, as readers ask for it; None where it reads all."""
    return None if blocks is None or schema.block is None else partial(in_blocks, schema, blocks)


def row_blocks(schema: Schema, frame: pd.DataFrame, tally: Tally) -> np.ndarray | None:
    """The ledger block of each row as text, shape (n,); None where the schema declares no blocks."""
    block = schema.block
    if block is None:
        return None
    if block.column not in frame:
        raise InputError(f"Expected the block column {block.column!r}, which the table lacks; correct block.column.")
    cells = frame[block.column]
    codes, texts = unit_codes(schema, cells, tally)
    marks = schema.marks(block.column)
    absent = [names_nobody(text, marks) for text in texts]
    if block.by == "hash":
        shares = hash_share([(np.arange(len(texts)), texts)], "block", PLAIN)
        names = [f"h{int(s * block.count):0{len(str(block.count - 1))}d}" for s in shares]
    elif block.by == "value":
        names = texts
    else:
        names = [date_block(value, block.by, block.format, schema.text.strip) for value in factors(cells)[1]] + [""]
    found = np.array(["" if gone else name for name, gone in zip(names, absent, strict=True)], dtype=object)[codes]
    empty = np.flatnonzero(found == "")
    if len(empty):
        shown = [repr(text) if (text := texts[codes[r]]) else "no value" for r in empty[:11]]
        tally.fault(empty, block.column, shown, f"every row needs a block ({block.by}); correct the row")
    return found


def date_block(value: object, by: str, form: str, strip: bool) -> str:
    """The day, week, month or year of a cell, by its own text (2026.10 is no number); zoned moments count in UTC."""
    text = value if isinstance(value, datetime) else text_of(value, strip)
    moment = pd.to_datetime(text, format=None if text is value else form, errors="coerce")
    if pd.isna(moment):
        return ""
    return str((moment if moment.tzinfo is None else moment.tz_convert("UTC")).strftime(DATES[by]))
