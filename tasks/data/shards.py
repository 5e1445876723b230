"""Coded rows on disk while a training reads them: shards of mapped columns in a folder that only
their owner can open.

A shard is written column after column under a name of its own and mapped read-only. The folder is
gone when the rows are read: a mapped file lives on without a name until its process ends, however
it ends, so a training that is killed leaves nothing. What a process leaves that is killed while it
still writes, the next one removes: a folder's name says whose it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.objective.coded import CodedRows, Table
from dpcore.objective.shards import SHARD_ROWS, ShardedRows
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.design import EncodingReport, FaultsHeld

# Rows that are encoded at a time: the frames of whole chunks would take some times the memory.
SLICE = 65_536
# Share of the free disk that shards may take, and bytes of a label.
DISK_SHARE, LABEL_BYTES = 0.9, 8
# Called with (rows written, None) after each shard; a flow says so to whoever waits.
written: ContextVar[Callable[[int], None] | None] = ContextVar("written", default=None)


class CodedStore:
    """A growing coded table of one side: in memory, or in shards under ``folder``; a stand-in for
    ``Matrix``.
    """

    def __init__(self, coding: Coding, folder: Path | None, name: str) -> None:
        self.coding, self.folder, self.name = coding, folder, name
        # in memory; of shards the room of one is filled again and again
        self._held: list[Table] = []
        self._room: Table | None = None
        self._rows = 0
        self._shards: list[Table] = []

    def encode(self, frame: pd.DataFrame, tally: EncodingReport) -> list[Table]:
        """The rows of a frame, a slice at a time."""
        found, first = [], tally.rows
        places, held = tally.places, None
        for start in range(0, len(frame), SLICE):
            piece = frame.iloc[start : start + SLICE]
            if places is None:
                tally.rows = first + start
            else:
                tally.places = places[start : start + SLICE]
            try:
                found.append(self.coding.table(piece, tally))
            except FaultsHeld as error:  # those of the other slices belong to the same message
                held = error
        tally.rows, tally.places = first, places
        if held is not None:
            raise held
        return found

    def append(self, tables: list[Table]) -> None:
        for table in tables:
            if self.folder is None:
                self._held.append(table)
            else:
                self._fill(table)

    def _fill(self, table: Table) -> None:
        """Copy rows into the room of a shard, which is written whenever it is full."""
        start = 0
        while start < table.n:
            room = self._empty_room()
            count = min(table.n - start, SHARD_ROWS - self._rows)
            for part, piece in zip(_parts(room), _parts(table), strict=True):
                part[:, self._rows : self._rows + count] = piece[:, start : start + count]
            start, self._rows = start + count, self._rows + count
            if self._rows == SHARD_ROWS:
                self.cut_here()

    def _empty_room(self) -> Table:
        if self._room is None:
            layout = self.coding.layout
            self._room = Table(
                self._scratch("codes8", (layout.narrow, SHARD_ROWS), np.uint8),
                self._scratch("codes16", (layout.wide, SHARD_ROWS), np.uint16),
                self._scratch("fractions", (layout.fractions, SHARD_ROWS), np.float32),
            )
        return self._room

    def _scratch(self, name: str, shape: tuple[int, int], kind: Any) -> np.ndarray:
        """An array in a file without a name: its pages may leave memory, as none of its own may."""
        if not shape[0]:
            return np.empty(shape, kind)
        assert self.folder is not None
        path = self.folder / f"{self.name}.room.{name}"
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as file:
            # written once, so that a full disk is an error here and no signal later
            for column in np.zeros((shape[0], 1), kind):
                file.write(np.broadcast_to(column, shape[1]).tobytes())
            file.flush()
            found = np.memmap(file, dtype=kind, mode="r+", shape=shape)
        path.unlink()
        return found

    def cut_here(self) -> None:
        """End a shard with the last row of a file, so that shards are the same whoever reads it."""
        if self.folder is None or not self._rows:
            return
        filled = Table(*(part[:, : self._rows] for part in _parts(self._empty_room())))
        self._shards.append(self._mapped(filled))
        self._rows = 0
        if (told := written.get()) is not None:
            told(sum(table.n for table in self._shards))

    def finish(self) -> CodedRows | ShardedRows:
        """The rows for the sums; without any, an empty table."""
        layout = self.coding.layout
        nothing = [np.zeros(0, dtype=int)] * len(layout.columns)
        empty = Table.of(layout, nothing, nothing[: layout.fractions])
        if self.folder is None:
            return self.coding.rows(Table.joined(self._held) if self._held else empty)
        self.cut_here()
        self._room = None
        return ShardedRows([self.coding.rows(table) for table in self._shards or [empty]])

    def _mapped(self, table: Table) -> Table:
        """The same table in files, read-only for all that is asked of it."""
        assert self.folder is not None
        stem = f"{self.name}.shard-{len(self._shards):05d}"
        parts = {"codes8": table.narrow, "codes16": table.wide, "fractions": table.fractions}
        return Table(
            *(_stored(self.folder / f"{stem}.{name}", part) for name, part in parts.items())
        )


def _parts(table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return table.narrow, table.wide, table.fractions


def _stored(path: Path, part: np.ndarray) -> np.ndarray:
    """An array in a file of mode 0600, mapped; pages that somebody writes to stay with that
    process.
    """
    if not part.size:
        return part
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for column in part:
            file.write(np.ascontiguousarray(column).data)
    return np.memmap(path, dtype=part.dtype, mode="c", shape=part.shape)


@dataclass(frozen=True, slots=True)
class Storage:
    """How the rows of a training are kept: as codes where there is a ``coding``, and in ``shards``;
    ``n`` is public.
    """

    coding: Coding | None = None
    shards: bool = False
    n: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on disk, label included."""
        return 0 if self.coding is None else self.coding.layout.row_bytes + LABEL_BYTES

    def require_room(self, folder: Path | None) -> None:
        """Raise ``InputError`` where the disk of ``folder`` has no room for the public number of
        rows.
        """
        if not self.shards or folder is None:
            return
        asked, free = self.n * self.row_bytes, shutil.disk_usage(folder).free
        if asked > DISK_SHARE * free:
            raise InputError(
                f"Expected {asked / 1e9:.3g} GB of free disk under {folder.parent} for {self.n:,} "
                f"encoded rows, got {free / 1e9:.3g} GB; make room, or set DPFLOWS_HOME to a "
                "larger disk. Nothing was spent."
            )


PLAIN = Storage()
