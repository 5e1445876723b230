"""The newest head of a ledger a second time, in a small file beside it: what was once on disk cannot vanish silently.

A database file, or its log, that was shortened, damaged or replaced by an older copy may be a valid database that gives
budget back. So each commit is followed by one synced write of its number and hash to ``FILE.head``, and each opening
compares. The head is written after the commit: a process that is killed between the two leaves a head that is behind,
which is no finding; a head that is ahead is one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

SLOT = 192
"""Bytes of one slot. There are two, written in turn, so that a torn write leaves the other one."""


class Head(NamedTuple):
    """The newest record that was surely stored, and a digest of the key of the fingerprints, which no record holds."""

    seq: int
    hash: str
    key: str

    def slot(self) -> bytes:
        """The bytes of a slot: the fields, and their SHA-256 against torn writes."""
        fields = f"{self.seq} {self.hash} {self.key}"
        return f"{fields} {_sum(fields)}".ljust(SLOT - 1).encode() + b"\n"

    @classmethod
    def of_slot(cls, slot: bytes) -> Head | None:
        """What ``slot`` wrote; None for anything else."""
        try:
            seq, hash_, key, found = slot.decode("ascii").split()
            head = cls(int(seq), hash_, key)
        except ValueError:
            return None
        return head if found == _sum(f"{head.seq} {hash_} {key}") else None


def _sum(fields: str) -> str:
    return sha256(fields.encode()).hexdigest()[:32]


def key_digest(key: bytes) -> str:
    """A digest that tells keys of fingerprints apart and does not give them away."""
    return sha256(b"dpflows fingerprint key " + key).hexdigest()[:16]


class Damaged(Exception):
    """The file holds no head that can be read."""


class Witness:
    """The file that holds the newest head of one ledger."""

    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_name(f"{ledger.name}.head")

    def read(self) -> Head | None:
        """The newest head, None where none was ever written. Raises ``Damaged`` for a file without a whole slot."""
        try:
            content = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Damaged(error.strerror or "unreadable") from None
        heads = [head for start in (0, SLOT) if (head := Head.of_slot(content[start : start + SLOT]))]
        if not heads:
            raise Damaged("it holds no head")
        return max(heads)

    def write(self, head: Head) -> None:
        """Store ``head`` on disk, unless a later one is there already. Raises ``OSError``."""
        if not self.path.exists():
            self._create(head)
            return
        with self._locked() as file:
            slots = [Head.of_slot(os.pread(file, SLOT, start)) for start in (0, SLOT)]
            newest = max((found for found in slots if found), default=None)
            if newest is None or newest.seq < head.seq:
                # The slot that does not hold the newest head.
                start = 0 if newest is None or slots[0] != newest else SLOT
                os.pwrite(file, head.slot(), start)
                os.fdatasync(file)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _create(self, head: Head) -> None:
        """Both slots at once, under the final name only when they are whole.

        Of two processes that create the file the later one wins: the head is then behind, which is no finding.
        """
        made = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        file = os.open(made, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            os.write(file, head.slot() * 2)
            os.fsync(file)
        finally:
            os.close(file)
        made.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
