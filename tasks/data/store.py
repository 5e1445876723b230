"""What rows are kept in while a training reads them: arrays and matrices that grow from chunks, in
memory or in files that are mapped afterwards, and coded rows, as shards of mapped columns in a
folder that only their owner can open.

A shard is written column after column under a name of its own and mapped read-only. The folder is
gone when the rows are read: a mapped file lives on without a name until its process ends, however
it ends, so a training that is killed leaves nothing. What a process leaves that is killed while it
still writes, the next one removes: a folder's name says whose it is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.sparse import csr_array, issparse

from dpcore.errors import DPFlowsError, InputError
from dpcore.objective.coded import CodedRows, Table
from dpcore.objective.shards import SHARD_ROWS, ShardedRows
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.design import EncodingReport, FaultsHeld

log = logging.getLogger(__name__)

# A folder of rows is named by this and the process that writes.
PREFIX = "dpflows-rows-"
# No room, a quota that is used up, a file longer than the process may write.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# Rows that are encoded at a time: the frames of whole chunks would take some times the memory.
SLICE = 65_536
# Share of the free disk that shards may take, and bytes of a label.
DISK_SHARE, LABEL_BYTES, NORM_BYTES = 0.9, 8, 8
# Called with (rows written, None) after each shard; a flow says so to whoever waits.
written: ContextVar[Callable[[int], None] | None] = ContextVar("written", default=None)


class GrowingArray:
    """One growing array along its first axis: in a file, or in memory that is enlarged in place by
    a quarter.
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.path = folder / name if folder else None
        self.file: BinaryIO | None = None
        self.held = np.zeros(0)
        self.rows = 0

    def append(self, piece: np.ndarray) -> None:
        if self.path:
            self.file = self.file or self.path.open("wb")
            self.file.write(np.ascontiguousarray(piece).data)
            self.held = piece[:0]
        elif self.rows == 0:
            self.held = piece
        else:
            self._make_room(self.rows + len(piece))
            self.held[self.rows : self.rows + len(piece)] = piece
        self.rows += len(piece)

    def finish(self) -> np.ndarray:
        if self.path:
            if self.file:
                self.file.close()
            shape = (self.rows, *self.held.shape[1:])
            if not self.file or not self.path.stat().st_size:
                return np.zeros(shape, self.held.dtype)
            return np.memmap(self.path, dtype=self.held.dtype, mode="c", shape=shape)
        if self.rows < len(self.held):
            self.held.resize((self.rows, *self.held.shape[1:]), refcheck=False)
        return self.held

    def _make_room(self, rows: int) -> None:
        if rows <= len(self.held):
            return
        shape = (rows + rows // 4, *self.held.shape[1:])
        if self.held.flags.owndata and self.held.flags.c_contiguous:
            # the allocator moves pages, not bytes, so there is no second copy
            self.held.resize(shape, refcheck=False)
        else:
            larger = np.empty(shape, self.held.dtype)
            larger[: self.rows] = self.held[: self.rows]
            self.held = larger


class Matrix:
    """A growing dense or CSR matrix of fixed width."""

    def __init__(self, width: int, folder: Path | None, name: str) -> None:
        self.width = width
        self.folder, self.name = folder, name
        self.columns: dict[str, GrowingArray] = {}
        self.ends: list[np.ndarray] = [np.zeros(1, np.int64)]
        self.stored = 0

    def append(self, piece: Any) -> None:
        if not issparse(piece):
            self._column("dense").append(piece)
            return
        self._column("data").append(piece.data)
        self._column("indices").append(piece.indices.astype(np.int32, copy=False))
        self.ends.append(piece.indptr[1:].astype(np.int64) + self.stored)
        self.stored += len(piece.data)

    def finish(self) -> Any:
        if "dense" in self.columns:
            return self.columns["dense"].finish()
        ends = np.concatenate(self.ends)
        if self.stored < np.iinfo(np.int32).max:
            ends = ends.astype(np.int32)
        if not self.columns:
            return np.zeros((0, self.width))
        indices = self.columns["indices"].finish()
        if ends.dtype == np.int64:
            indices = indices.astype(np.int64)
        matrix = csr_array(
            (self.columns["data"].finish(), indices, ends), shape=(len(ends) - 1, self.width)
        )
        matrix.has_canonical_format = True
        return matrix

    def _column(self, name: str) -> GrowingArray:
        if name not in self.columns:
            self.columns[name] = GrowingArray(self.folder, f"{self.name}.{name}")
        return self.columns[name]


@contextmanager
def private_folder(parent: Path) -> Iterator[Path]:
    """A folder that only this user can read, gone at the end; files that are mapped live on without
    a name.

    A lock says that its process lives: the kernel lets it go however that ends (``sweep``).
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(parent):
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
        lock = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep(parent: Path) -> None:
    """Remove folders of rows whose process is gone: it was killed while it wrote."""
    if next(parent.glob(f"{PREFIX}*"), None) is not None:
        with _alone(parent):
            _sweep(parent)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            lock = _locked(folder)
        except BlockingIOError:  # whoever made it still writes there
            continue
        except OSError:
            log.debug("A folder of rows could not be looked at.")
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """One process at a time makes and removes folders, so that none is seen without its lock."""
    lock = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    """The lock of a folder, held until it is closed; ``BlockingIOError`` where another has it."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Turn what a full disk, a quota or a limit of files says into one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DPFlowsError(
            f"Expected room for encoded rows under {folder}, got: {error.strerror}; make room "
            "there, or set DPFLOWS_HOME to a larger disk. The training had not begun."
        ) from None


def keep_no_memory() -> None:
    """Have Arrow give the memory of each chunk back; by default it keeps some for the next ones."""
    pa.set_memory_pool(pa.system_memory_pool())


def give_back_memory() -> None:
    """Hand what allocators keep of freed chunks back to the system, where they know how."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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
        stored = (_stored(self.folder / f"{stem}.{name}", part) for name, part in parts.items())
        # not the folder of the rows, which is gone before the first pass
        return Table(*stored, folder=self.folder.parent)


def _parts(table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return table.narrow, table.wide, table.fractions


def _stored(path: Path, part: np.ndarray) -> np.ndarray:
    """An array in a file of mode 0600, mapped as it was written, whatever its name means later;
    pages that somebody writes to stay with that process.
    """
    if not part.size:
        return part
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        for column in part:
            file.write(np.ascontiguousarray(column).data)
        file.flush()
        return np.memmap(file, dtype=part.dtype, mode="c", shape=part.shape)


@dataclass(frozen=True, slots=True)
class Storage:
    """How the rows of a training are kept: as codes where there is a ``coding``, and in ``shards``;
    ``n`` is public, and so is whether labels are several ``classes``.
    """

    coding: Coding | None = None
    shards: bool = False
    n: int = 0
    classes: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on disk: codes, label, and what passes keep where they can: its norm, and
        of several classes the label that one of them sees.
        """
        beside = LABEL_BYTES * (1 + self.classes) + NORM_BYTES
        return 0 if self.coding is None else self.coding.layout.row_bytes + beside

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
