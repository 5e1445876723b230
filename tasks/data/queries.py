"""Which documents of a table were shown together: the session that a row belongs to, and the block that holds it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.preprocess.parts import named
from dpcore.preprocess.tally import Tally
from tasks.data.units import unit_names
from tasks.readers import Chunk
from tasks.readers.open import QUERY
from tasks.schema import Schema


def with_queries(schema: Schema, chunk: Chunk, tally: Tally) -> Chunk:
    """``chunk`` with the canonical id of each row's session, from the file itself or from the column ``query``.

    A row without one is noted in ``tally``: it would be in a session with strangers. Raises ``InputError`` where the
    labels are grades of documents and nothing says which documents were shown together.
    """
    if chunk.queries is None and schema.label.kind != "relevance":
        return chunk
    if chunk.queries is not None:
        cells = pd.Series(chunk.queries, name=QUERY)
    elif schema.columns:
        cells = chunk.table[QUERY]
    else:
        place = f"{tally.source}: " if tally.source else ""
        raise InputError(
            f"{place}Expected the session of every document (label.kind relevance), got rows without one; use "
            f"source.format letor or svmlight with qid, or a table with a column {QUERY!r}."
        )
    return Chunk(chunk.table, chunk.labels, unit_names(schema, cells, tally, "query"))


class Whole:
    """Watches that a session lies in one block: a block pays for whole sessions, so one in two would be paid half.

    With ``blocks`` only sessions that have a document in one of those are of concern.
    """

    def __init__(self, blocks: Sequence[str] | None = None) -> None:
        self._block: dict[str, str] = {}
        self._blocks = None if blocks is None else frozenset(blocks)

    def check(self, schema: Schema, chunk: Chunk, blocks: np.ndarray, tally: Tally) -> None:
        """Note rows whose session was seen in another block."""
        if chunk.queries is None and QUERY not in chunk.table:
            return
        cells = chunk.table[QUERY] if chunk.queries is None else pd.Series(chunk.queries, name=QUERY)
        codes, texts = named(cells, schema.text.strip, schema.text.decimal)
        queries = np.array(texts, dtype=object)[codes]
        pairs = pd.DataFrame({"query": queries, "block": blocks}).drop_duplicates()
        column = schema.block.column if schema.block else QUERY
        for row, query, block in zip(pairs.index, pairs["query"], pairs["block"], strict=True):
            first = self._block.setdefault(query, block)
            if first != block and query and (self._blocks is None or {first, block} & self._blocks):
                rule = f"its session {query!r} began in block {first!r}: give each session an id of its own"
                tally.fault(np.array([row]), column, [repr(block)], rule)
