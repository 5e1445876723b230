"""Grow one array or matrix from chunks, in memory or in files that are mapped afterwards."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, issparse

from dpcore.errors import DPFlowsError

log = logging.getLogger(__name__)

# A folder of rows is named by this and the process that writes.
PREFIX = "dpflows-rows-"
# No room, a quota that is used up, a file longer than the process may write.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
