"""Load declared data: rows to design matrix, labels, split, counts.

``Reading`` and ``FileReading`` are the rows that one charge pays for: data set, files, blocks,
sides. Steps of the product open rows in no other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.identity import canonical, names_nobody
from dpcore.preprocess import Encoder, EncodingReport, MatrixEncoder
from dpcore.preprocess.design import FaultsHeld
from dpcore.problem import Adjacency
from tasks.data.load import Loaded, Report, load
from tasks.data.rows import decode_labels, in_blocks, mine_of
from tasks.data.split import test_rows
from tasks.data.store import PLAIN, Storage
from tasks.readers import Chunk, Paths, frame_chunks, open_chunks, source_paths, test_files
from tasks.readers.cells import read_cells
from tasks.readers.parts import Part
from tasks.schema import Schema

SIDES = ("train", "test")


@dataclass(frozen=True, slots=True)
class Reading:
    """What may be read of the data set that ``schema`` declares: rows of ``blocks`` (None: it has
    one) on ``sides``.

    A charge is made of the same object (``tasks.kinds.charge.charge_of``), so what is read is what
    is charged. Rows of other blocks are neither decoded nor checked, in the test part as in the
    training part.
    """

    schema: Schema
    path: Paths = None
    test_path: Paths = None
    blocks: tuple[str, ...] | None = None
    sides: tuple[str, ...] = SIDES
    frame: pd.DataFrame | None = None  # in place of the files

    def of(self, schema: Schema) -> Reading:
        """The same rows where bounds or levels are known by now, or stand in for those that are
        not.
        """
        return replace(self, schema=schema)

    def load(
        self,
        encoder: Encoder | MatrixEncoder,
        adjacency: Adjacency | None = None,
        group: str | None = None,
        storage: Storage = PLAIN,
    ) -> Loaded:
        """Read, check and encode; raises ``InputError`` naming file, row, column, rule and way
        out.
        """
        more: dict[str, Any] = {
            "adjacency": adjacency,
            "blocks": self.blocks,
            "sides": self.sides,
            "group": group,
            "storage": storage,
        }
        return load(self.schema, encoder, self.path, self.test_path, frame=self.frame, **more)

    def files(self) -> list[Part]:
        """Those of the training part; none is opened."""
        return source_paths(self.schema, self.path, self.schema.source.path)

    def training_chunks(self) -> Iterator[Chunk]:
        """The raw cells of the training rows, for estimates that come before an encoder."""
        row = 0
        for chunk in self._chunks():
            keep = in_blocks(self.schema, self.blocks, chunk.table)
            aside = test_rows(self.schema, chunk, row)
            if aside is not None:
                keep = ~aside if keep is None else keep & ~aside
            row += chunk.rows
            yield chunk if keep is None else chunk.take(np.flatnonzero(keep))

    def _chunks(self) -> Iterator[Chunk]:
        if self.frame is not None:
            return frame_chunks(self.schema, self.frame)
        return open_chunks(self.schema, self.files(), mine=mine_of(self.schema, self.blocks))


UNREADABLE = "\ufffd"  # what stands for bytes that are no text, of whatever letters they were


@dataclass(frozen=True, slots=True)
class FileReading:
    """What may be read of one file before a schema describes it: all of its rows, which are charged
    on ``blocks``.

    With ``user``, the column that says whose row a row is, at most the first ``rows_per_user`` of
    each person's are read, and none that names nobody: empty, one of ``marks``, or of bytes that
    are no text. Ids compare by the identity rule with the mark of ``decimal``.
    """

    path: Part
    blocks: tuple[str, ...] = ("all",)
    user: str | None = None
    rows_per_user: int = 1
    decimal: str = "."
    marks: frozenset[str] = frozenset()

    def cells(self, notes: list[str], by_row: bool = False) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The cells as texts and the keys of the layout, as ``tasks.readers.cells.read_cells``
        gives them.

        Raises ``InputError`` for a file that is no table, or lacks the column of users.
        """
        frame, layout = read_cells(self.path, notes, by_row, self.user)
        if self.user is None:
            return frame, layout
        if self.user not in frame:
            raise InputError(
                f"Expected the user column {self.user!r} of the budget in {self.path}, got "
                f"{', '.join(frame.columns)}; whose row a row is has to stand in the file."
            )
        ids = frame[self.user].map(lambda cell: canonical(cell, decimal=self.decimal))
        frame[self.user] = ids
        named = ~ids.map(
            lambda text: UNREADABLE in text or names_nobody(text, self.marks)
        ).to_numpy(dtype=bool)
        frame = frame[named]
        return frame[frame.groupby(self.user).cumcount().to_numpy() < self.rows_per_user], layout


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
    if path is None and not schema.source.stands:
        return
    files = source_paths(schema, path, schema.source.path)
    tests = test_files(schema, files, test_path)
    for found, skip in ((files, None), (tests, schema.split.skip_lines)):
        if found:
            _check_rows(
                schema, encoder, open_chunks(schema, found, skip, mine_of(schema, blocks)), blocks
            )


def _check_rows(
    schema: Schema,
    encoder: Encoder | MatrixEncoder,
    chunks: Iterable[Chunk],
    blocks: Sequence[str] | None,
) -> None:
    """Look at the first rows; where some are refused at all rows of their file, to tell them."""
    tally = EncodingReport()
    for number, chunk in enumerate(chunks):
        if number and (not tally.faults or tally.source != chunk.source):
            break
        tally.begin(chunk.source, chunk.start)
        piece = (
            chunk if number or chunk.faults else chunk.take(np.arange(min(PEEK_ROWS, chunk.rows)))
        )
        _check_cells(schema, encoder, piece, blocks, tally)
        if not number and tally.faults and piece.rows < chunk.rows:
            rest = np.arange(piece.rows, chunk.rows)
            tally.begin(chunk.source, chunk.start + piece.rows)
            _check_cells(schema, encoder, chunk.take(rest), blocks, tally)
    tally.tell()


def _check_cells(
    schema: Schema,
    encoder: Encoder | MatrixEncoder,
    chunk: Chunk,
    blocks: Sequence[str] | None,
    tally: EncodingReport,
) -> None:
    """Note in ``tally`` what is wrong with the rows of ``blocks``."""
    for name, rows, values, rule in chunk.faults:
        tally.fault(rows, name, values, rule)
    mine = in_blocks(schema, blocks, chunk.table, tally)
    places = np.arange(chunk.rows) if mine is None else np.flatnonzero(mine)
    chunk, tally.places = chunk.take(places), places
    if not chunk.rows:
        return
    cells = chunk.table[schema.label.column] if chunk.labels is None else pd.Series(chunk.labels)
    y = decode_labels(schema.label, cells, tally, schema.text.strip)
    keep = ~np.isnan(y)
    table: Any = chunk.table
    if keep.any():
        tally.places = places[keep]
        with suppress(FaultsHeld):
            encoder.encode(table[keep], tally)


__all__ = ["Loaded", "Reading", "Report", "load", "peek"]
