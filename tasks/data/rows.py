"""Which ledger block a row belongs to: a fact that a row keeps for ever.

Targets from raw cells: +1 and -1, a scaled number, a class, a grade of relevance.

Which documents of a table were shown together: the session that a row belongs to, and the block
that holds it.

Which group of a declared column a row belongs to: for quality by group, an internal number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError, unknown_name
from dpcore.identity import canonical, names_nobody
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.column_encoders import factors, named, parse_number, text_of
from dpcore.preprocess.design import SHOWN, EncodingReport
from dpcore.problem import Adjacency
from tasks.data.split import PLAIN, hash_share, test_rows
from tasks.data.units import unit_codes, unit_names
from tasks.readers import Chunk
from tasks.readers.chunk import Mine
from tasks.schema import QUERY, LabelSpec, Schema
from tasks.schema.sections import DATES, BlockSpec

BY_PLACE = ("tail", "position")  # splits by the place of a row in its file: of published rows alone


def in_blocks(
    schema: Schema,
    blocks: Sequence[str] | None,
    frame: pd.DataFrame,
    tally: EncodingReport | None = None,
) -> Any:
    """Which rows of a frame lie in one of ``blocks``, shape (n,); None where all are read.

    A row that names no block may be of any of them: it is a fault of ``tally``.
    """
    if blocks is None or not isinstance(frame, pd.DataFrame):
        return None
    where = row_blocks(schema, frame, EncodingReport() if tally is None else tally)
    return None if where is None else named_in(where, blocks)


def named_in(where: np.ndarray, blocks: Sequence[str]) -> np.ndarray:
    """Which of the names ``where`` are ``blocks``, shape (n,); numpy's own texts would lose NULs at
    their end.
    """
    return np.asarray(np.isin(where, np.array([*blocks], dtype=object)))


def mine_of(schema: Schema, blocks: Sequence[str] | None) -> Mine | None:
    """The rows of a frame that a run on ``blocks`` reads, as readers ask for it; None where it
    reads all.
    """
    return None if blocks is None or schema.block is None else partial(in_blocks, schema, blocks)


def _date_blocks(block: BlockSpec, values: Iterable[object], strip: bool) -> list[str]:
    """The block of each value, and none of no value."""
    return [*(date_block(value, block.by, block.format, strip) for value in values), ""]


def _shown(text: str) -> str:
    return repr(text) if text else "no value"


def row_blocks(schema: Schema, frame: pd.DataFrame, tally: EncodingReport) -> np.ndarray | None:
    """The ledger block of each row as text, shape (n,); None where the schema declares no
    blocks.
    """
    block = schema.block
    if block is None:
        return None
    if block.column not in frame:
        raise InputError(
            f"Expected the block column {block.column!r}, which the table lacks; correct "
            "block.column."
        )
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
        names = _date_blocks(block, factors(cells)[1], schema.text.strip)
    known = [name * (not gone) for name, gone in zip(names, absent, strict=True)]
    found = np.array(known, dtype=object)[codes]
    empty = np.flatnonzero(found == "")
    if len(empty):
        shown = [_shown(texts[codes[r]]) for r in empty[: SHOWN + 1]]
        tally.fault(
            empty, block.column, shown, f"every row needs a block ({block.by}); correct the row"
        )
    return found


def date_block(value: object, by: str, form: str, strip: bool) -> str:
    """The day, week, month or year of a cell, by its own text (2026.10 is no number); zoned moments
    count in UTC.
    """
    text = value if isinstance(value, date) else text_of(value, strip)
    moment = pd.to_datetime(text, format=None if text is value else form, errors="coerce")
    if pd.isna(moment):
        return ""
    return str((moment if moment.tzinfo is None else moment.tz_convert("UTC")).strftime(DATES[by]))


BAD = -9


def _targets(label: LabelSpec, strip: bool) -> dict[str, float]:
    """The target of each declared text: the position of a class, the sign of a binary label."""
    if label.kind == "classes":
        return {label.text_of(text, strip): float(k) for k, text in enumerate(label.levels)}
    return {label.text_of(text, strip): sign for sign, texts in label.signs for text in texts}


def decode_labels(
    label: LabelSpec, cells: pd.Series, tally: EncodingReport, strip: bool = True
) -> np.ndarray:
    """Targets as float64, shape (n,); undeclared texts and non-finite numbers become faults of
    ``tally``.

    Binary: {-1, +1}. Regression: clipped to [low, high] and scaled linearly onto ``scaled_to``.
    Classes: the position in ``levels``. Relevance: a whole number from 0 to ``high``. NaN marks
    rows to be left out (``undeclared: drop``).
    """
    if label.kind in ("regression", "relevance") or label.positive_from is not None:
        return _numbers(label, cells, tally)
    codes, uniques = factors(cells)
    known = _targets(label, strip)
    found = [known.get(label_text(label, value, strip), BAD) for value in uniques]
    y = np.array([*found, BAD], dtype=float)[codes]
    rows = np.flatnonzero(y == BAD)
    if len(rows) and label.undeclared == "drop":
        tally.count("dropped", label.column, y == BAD)
        y[rows] = np.nan
    elif len(rows):
        shown = [
            "no value" if codes[r] < 0 else repr(canonical(uniques[codes[r]], strip))
            for r in rows[: SHOWN + 1]
        ]
        rule = (
            f"declared are {', '.join(map(repr, list(known)[:12]))}; correct the row or the "
            "label's declaration, or leave such rows out by label.undeclared: drop (under "
            "add_remove)"
        )
        tally.fault(rows, label.column, [f"{text} is not a declared label" for text in shown], rule)
    return y


def label_text(label: LabelSpec, value: object, strip: bool) -> str:
    """The canonical text of a label, without the declared ending."""
    text = label.text_of(value, strip)
    if not label.strip_end:
        return text
    end = label.strip_end.casefold() if label.ignore_case else label.strip_end
    return label.text_of(text.removesuffix(end), strip)


def _numbers(label: LabelSpec, cells: pd.Series, tally: EncodingReport) -> np.ndarray:
    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(values)
    if label.kind == "relevance":
        bad |= (values < 0) | (values > float(label.high or 0)) | (values != np.floor(values))
    if bad.any():
        rows = np.flatnonzero(bad)
        shown = [f"{cells.iloc[r]!r} is not a usable target" for r in rows[: SHOWN + 1]]
        rule = (
            f"a whole number up to {label.high} is needed"
            if label.kind == "relevance"
            else "a number is needed"
        )
        tally.fault(rows, label.column, shown, f"{rule}; correct the row")
        return values
    if label.positive_from is not None:
        return np.where(values >= label.positive_from, 1.0, -1.0)
    if label.kind == "relevance":
        return values
    low, high = float(label.low or 0.0), float(label.high or 0.0)
    tally.count("clipped", label.column, (values < low) | (values > high))
    return scale_target(values, low, high, label.scaled_to)


def scale_target(
    values: np.ndarray, low: float, high: float, onto: tuple[float, float]
) -> np.ndarray:
    """Clip to [low, high] and map linearly onto ``onto``."""
    share = (np.clip(values, low, high) - low) / (high - low)
    return np.clip(onto[0] + share * (onto[1] - onto[0]), *onto)


def with_queries(schema: Schema, chunk: Chunk, tally: EncodingReport) -> Chunk:
    """``chunk`` with the canonical id of each row's session, from the file itself or from the
    column ``query``.

    A row without one is noted in ``tally``: it would be in a session with strangers. Raises
    ``InputError`` where the labels are grades of documents and nothing says which documents were
    shown together.
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
            f"{place}Expected the session of every document (label.kind relevance), got rows "
            "without one; use source.format letor or svmlight with qid, or a table with a column "
            f"{QUERY!r}."
        )
    return Chunk(chunk.table, chunk.labels, unit_names(schema, cells, tally, "query"))


class Whole:
    """Watches that a session lies in one block: a block pays for whole sessions, so one in two
    would be paid half.

    With ``blocks`` only sessions that have a document in one of those are of concern.
    """

    def __init__(self, blocks: Sequence[str] | None = None) -> None:
        self._block: dict[str, str] = {}
        self._blocks = None if blocks is None else frozenset(blocks)

    def check(
        self, schema: Schema, chunk: Chunk, blocks: np.ndarray, tally: EncodingReport
    ) -> None:
        """Note rows whose session was seen in another block."""
        if chunk.queries is None and QUERY not in chunk.table:
            return
        cells = (
            chunk.table[QUERY] if chunk.queries is None else pd.Series(chunk.queries, name=QUERY)
        )
        codes, texts = named(cells, schema.text.strip, schema.text.decimal)
        queries = np.array(texts, dtype=object)[codes]
        pairs = pd.DataFrame({"query": queries, "block": blocks}).drop_duplicates()
        column = schema.block.column if schema.block else QUERY
        for row, query, block in zip(pairs.index, pairs["query"], pairs["block"], strict=True):
            first = self._block.setdefault(query, block)
            if first != block and query and (self._blocks is None or {first, block} & self._blocks):
                rule = (
                    f"its session {query!r} began in block {first!r}: give each session an id of "
                    "its own"
                )
                tally.fault(np.array([row]), column, [repr(block)], rule)


KINDS = ("categorical", "ordinal", "flag", "numeric", "ignore", "block")
PARTS = 4
NO_VALUE = "(no value)"


def check_group(schema: Schema, name: str) -> None:
    """Raise ``InputError`` for a column that is not declared or does not make groups."""
    if schema.label.kind == "relevance" or not schema.columns:
        raise InputError(
            f"Expected a table of declared columns for evaluate.subgroup={name!r}, got "
            f"{schema.name!r}, which has none; leave it out."
        )
    if name not in schema.columns:
        raise unknown_name("column of evaluate.subgroup", name, schema.columns)
    spec = schema.columns[name]
    if spec.kind not in KINDS:
        raise InputError(
            f"Expected a column of kind {', '.join(KINDS)} for evaluate.subgroup, got {name!r} of "
            f"kind {spec.kind}; name another."
        )
    if spec.kind == "numeric" and not (
        isinstance(spec.low, int | float) and isinstance(spec.high, int | float)
    ):
        raise InputError(
            f"Expected declared low and high of the evaluate.subgroup column {name!r}; declare "
            "them."
        )


def group_names(schema: Schema, name: str, cells: pd.Series) -> np.ndarray:
    """The group of each cell as text, shape (n,): its value, or the quarter of the declared bounds
    that it lies in.
    """
    spec = schema.columns[name]
    codes, texts = named(cells, schema.text.strip)
    if spec.kind == "numeric":
        column = spec.column(name, schema.missing)
        low, high = float(spec.low or 0.0), float(spec.high or 0.0)
        values = [parse_number(column, value, schema.text.strip) for value in factors(cells)[1]]
        texts = [*(_quarter(value, low, high) for value in values), NO_VALUE]
    else:
        blank = schema.marks(name) | {""}
        texts = [NO_VALUE if text in blank else text for text in texts]
    return np.array(texts, dtype=object)[codes]


def _quarter(number: float, low: float, high: float) -> str:
    if not np.isfinite(number):
        return NO_VALUE
    width = (high - low) / PARTS or 1.0
    part = min(max(int((number - low) / width), 0), PARTS - 1)
    return f"{low + part * width:g} to {low + (part + 1) * width:g}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are decoded: of ``blocks`` (None: all), the test part too if ``test``; ``group``
    names a column.
    """

    blocks: Sequence[str] | None
    group: str | None
    test: bool = True
    coding: Coding | None = None  # how rows are coded, None where they are a matrix
    whole: bool = True  # whether these are all files


@dataclass(frozen=True, slots=True)
class RowsOfChunk:
    """The rows of a chunk that are read, their blocks, which of them are test rows, and where they
    stand in it.
    """

    chunk: Chunk
    where: np.ndarray | None
    aside: np.ndarray | None
    places: np.ndarray | None


def rows_read(
    schema: Schema,
    chunk: Chunk,
    start: int,
    tally: EncodingReport,
    whole: Whole,
    wanted: Wanted,
    split: bool,
) -> RowsOfChunk:
    """The rows of a chunk that are read: of the others only the cells that say where a row belongs
    are looked at.

    A row that names no block may be of any of them, so it is refused; so is a session that a wanted
    block shares.
    """
    where = row_blocks(schema, chunk.table, tally) if chunk.labels is None else None
    if where is not None and schema.label.kind == "relevance":
        whole.check(schema, chunk, where, tally)
    places: np.ndarray | None = None
    aside = test_rows(schema, chunk, start) if split and schema.split.kind in BY_PLACE else None
    if where is not None and wanted.blocks is not None:
        places = np.flatnonzero(named_in(where, wanted.blocks))
        chunk, where, aside = (
            chunk.take(places),
            where[places],
            None if aside is None else aside[places],
        )
    tally.places = places
    if chunk.rows:
        chunk = with_queries(schema, chunk, tally)
        if split and schema.split.kind not in BY_PLACE:
            aside = test_rows(schema, chunk, start)
    if aside is not None and not wanted.test:
        left = np.flatnonzero(~aside)
        chunk, where, aside = chunk.take(left), None if where is None else where[left], None
        tally.places = places = left if places is None else places[left]
    return RowsOfChunk(chunk, where, aside, places)


def require_countable(schema: Schema, adjacency: Adjacency | str) -> None:
    """Raise ``InputError`` where the number of rows is a public fact and would hang on labels."""
    if Adjacency(adjacency) is Adjacency.REPLACE_ONE and schema.label.undeclared == "drop":
        raise InputError(
            "label.undeclared=drop makes the number of rows depend on private labels; under "
            "replace_one declare refuse, or use adjacency add_remove."
        )
