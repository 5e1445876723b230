"""Which side of the split and which ledger block a row belongs to: facts that a row keeps for ever."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from dpcore.errors import InputError
from dpcore.preprocess.parts import factors, text_of
from dpcore.preprocess.tally import Tally
from tasks.readers import Chunk
from tasks.schema import Schema

SEPARATOR = "\x1f"


def test_rows(schema: Schema, chunk: Chunk, first_row: int) -> np.ndarray | None:
    """Boolean mask of the rows that belong to the test part; None where the file has no test rows.

    Documents of one query stay together: they go by a hash of the query id.
    """
    split = schema.split
    if split.kind == "tail":
        return np.arange(first_row, first_row + chunk.rows) >= (schema.public.n or 0)
    if split.kind != "hash":
        return None
    if chunk.queries is not None:
        texts = [str(q) for q in chunk.queries]
    elif isinstance(chunk.table, pd.DataFrame):
        names = list(split.by) or list(chunk.table.columns)
        for name in names:
            if name not in chunk.table:
                raise InputError(f"Expected the split column {name!r} (split.by), which the table lacks; name another.")
        texts = row_texts(chunk.table, names)
    else:
        rows = chunk.table.toarray() if issparse(chunk.table) else chunk.table
        texts = [row.tobytes().hex() for row in np.asarray(rows, dtype=np.float64)]
    return hash_share(texts, split.salt) < split.test_share


def row_texts(frame: pd.DataFrame, names: list[str]) -> list[str]:
    """The cells of each row joined as text; the same for the same values in whatever file format."""
    columns = []
    for name in names:
        codes, uniques = factors(frame[name])
        texts = [*(text_of(u, True) for u in uniques), ""]
        columns.append([texts[c] for c in codes])
    return [SEPARATOR.join(cells) for cells in zip(*columns, strict=True)]


def hash_share(texts: list[str], salt: str) -> np.ndarray:
    """A number in [0, 1) for each text: 8 bytes of BLAKE2b keyed by ``salt``."""
    seen: dict[str, float] = {}
    key = salt.encode()[:64]
    for text in texts:
        if text not in seen:
            digest = blake2b(text.encode(), digest_size=8, key=key).digest()
            seen[text] = (int.from_bytes(digest, "big") >> 11) / 2.0**53  # below 1 also after rounding
    return np.array([seen[text] for text in texts])


def row_blocks(schema: Schema, frame: pd.DataFrame, tally: Tally) -> np.ndarray | None:
    """The ledger block of each row as text, shape (n,); None where the schema declares no blocks."""
    block = schema.block
    if block is None:
        return None
    if block.column not in frame:
        raise InputError(f"Expected the block column {block.column!r}, which the table lacks; correct block.column.")
    codes, uniques = factors(frame[block.column])
    texts = [text_of(u, True) for u in uniques]
    if block.by == "hash":
        shares = hash_share(texts, "block")
        names = [f"h{int(s * block.count):0{len(str(block.count - 1))}d}" for s in shares]
    elif block.by == "value":
        names = texts
    else:
        names = [_date_name(text, block.by, block.format) for text in texts]
    found = np.array([*names, ""], dtype=object)[codes]
    empty = np.flatnonzero(found == "")
    if len(empty):
        shown = ["no value" if codes[r] < 0 else repr(texts[codes[r]]) for r in empty[:11]]
        tally.fault(empty, block.column, shown, f"every row needs a block ({block.by}); correct the row")
    return found


def _date_name(text: str, by: str, form: str) -> str:
    moment = pd.to_datetime(text, format=form, errors="coerce")
    return "" if pd.isna(moment) else str(moment.strftime({"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d"}[by]))
