"""Which documents of a table were shown together: the session that a row belongs to, and the block that holds it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dpcore.preprocess.parts import factors, text_of
from dpcore.preprocess.tally import Tally
from tasks.readers import Chunk
from tasks.readers.open import QUERY
from tasks.schema import Schema


def with_queries(schema: Schema, chunk: Chunk, tally: Tally) -> Chunk:
    """``chunk`` with the session of each row, where it is a table of documents with its sessions in column ``query``.

    A row without one is noted in ``tally``: it would be a session with strangers in it.
    """
    if schema.label.kind != "relevance" or not schema.columns or chunk.queries is not None:
        return chunk
    codes, uniques = factors(chunk.table[QUERY])
    names = np.array([*(text_of(value, True) for value in uniques), ""], dtype=object)
    queries = names[codes]
    nobody = np.flatnonzero(queries == "")
    tally.fault(nobody, QUERY, ["no value"] * 11, "every document needs its query; correct the row")
    return Chunk(chunk.table, chunk.labels, queries)


class Whole:
    """Watches that a session lies in one block: a block pays for whole sessions, so one in two would be paid half."""

    def __init__(self) -> None:
        self._block: dict[str, str] = {}

    def check(self, queries: np.ndarray, blocks: np.ndarray, column: str, tally: Tally) -> None:
        """Note rows whose session was seen in another block."""
        pairs = pd.DataFrame({"query": queries, "block": blocks}).drop_duplicates()
        for row, query, block in zip(pairs.index, pairs["query"], pairs["block"], strict=True):
            first = self._block.setdefault(query, block)
            if first != block:
                rule = f"its session {query!r} began in block {first!r}: give each session an id of its own"
                tally.fault(np.array([row]), column, [repr(block)], rule)
