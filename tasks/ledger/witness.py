"""The newest head of a ledger a second time, in a small file beside it: what was once on disk
cannot vanish silently.

A database file, or its log, that was shortened, damaged or replaced by an older copy may be a valid
database that gives budget back. So each commit is followed by one synced write of its number and
hash to ``FILE.head``, for a server to a file in the home folder, and each opening compares. The
head is written after the commit: a process that is killed between the two leaves a head that is
behind, which is no finding; a head that is ahead is one. The ledger itself notes that a head is
kept, so that one that is gone is missed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, select
from sqlalchemy.engine import URL

from tasks.ledger import chain, facts, schema
from tasks.ledger.records import Record

SLOT = 192
"""Bytes of one slot. There are two, written in turn, so that a torn write leaves the other one."""


class Head(NamedTuple):
    """The newest record that was surely stored, and a digest of the key of the fingerprints, which
    no record holds.
    """

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
    """The file that holds the newest head of one ledger. ``mark`` names it in the ledger."""

    def __init__(self, path: Path, mark: str) -> None:
        self.path = path
        self.mark = mark

    @classmethod
    def beside(cls, ledger: Path) -> Witness:
        """The file beside that of a ledger."""
        return cls(ledger.with_name(f"{ledger.name}.head"), "head")

    @classmethod
    def at_home(cls, server: URL, home: Path) -> Witness:
        """The file in a home folder, of a ledger on a server: each home keeps what it has seen of
        it.
        """
        address = (server.host, server.port or 5432, server.database, sorted(server.query.items()))
        path = home / "heads" / f"{sha256(repr(address).encode()).hexdigest()[:24]}.head"
        return cls(path, f"head {sha256(str(path).encode()).hexdigest()[:24]}")

    def read(self) -> Head | None:
        """The newest head, None where none was ever written. Raises ``Damaged`` for a file without
        a whole slot.
        """
        try:
            content = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Damaged(error.strerror or "unreadable") from None
        heads = [
            head for start in (0, SLOT) if (head := Head.of_slot(content[start : start + SLOT]))
        ]
        if not heads:
            raise Damaged("it holds no head")
        return max(heads)

    def write(self, head: Head) -> None:
        """Store ``head`` on disk, unless a later one is there already. Raises ``OSError``."""
        if not self.path.exists():
            self.replace(head)
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

    def replace(self, head: Head) -> None:
        """Store ``head`` in both slots, whatever was there, under the final name only when they are
        whole.

        Of two processes that create the file the later one wins: the head is then behind, which is
        no finding.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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


ANEW = "`dpflows ledger verify --keep`"
RESTORE = (
    "restore the file that holds it (`dpflows ledger verify --head HASH` tells which one does)"
)


def kept(witness: Witness) -> tuple[Head | None, str]:
    """The head that is kept, and what is wrong with its file. Read it before the view of the ledger
    is taken.
    """
    try:
        return witness.read(), ""
    except Damaged as error:
        return None, (
            f"its head file {witness.path} is damaged ({error}): check the ledger with `dpflows "
            "ledger verify --keep --head HASH` and a head from a statement or bundle, which "
            "writes that file anew"
        )


def compare(connection: Connection | None, witness: Witness, head: Head | None) -> str:
    """What is wrong with a ledger (None: there is none) whose kept head is ``head``; empty for
    nothing.

    Records behind the head are those of a process that was killed before it kept it, or of somebody
    who wrote them by
    hand: their hashes and what they give back are looked at here, everything else by ``verify``.
    """
    if head is None:
        return ""
    last = None if connection is None else newest(connection)
    if connection is None or last is None:
        return "" if head.seq == 0 else _ends(witness, head, 0)  # "": before the first record
    if last[0] < head.seq:
        return _ends(witness, head, last[0])
    if last == (head.seq, head.hash):
        return ""
    table = schema.records
    rows = connection.execute(select(table).where(table.c.seq >= head.seq).order_by(table.c.seq))
    return next(_faults(connection, head, [Record(*row) for row in rows], last[0]), "")


def compare_key(connection: Connection, head: Head | None) -> str:
    """What is wrong with the key of the fingerprints, which no record holds; empty for nothing."""
    if head is None or key_digest(facts.key_of(connection)) == head.key:
        return ""
    return f"the key of its fingerprints was changed: files are not known again; {RESTORE}"


def newest(connection: Connection) -> tuple[int, str] | None:
    """``chain.newest`` in plain SQL: each transaction asks twice."""
    row = connection.exec_driver_sql(
        "SELECT seq, hash FROM ledger_records ORDER BY seq DESC LIMIT 1"
    ).one_or_none()
    return None if row is None else (row[0], row[1])


def _ends(witness: Witness, head: Head, seq: int) -> str:
    return (
        f"it ends at record {seq}, but its head file {witness.path} holds record {head.seq} "
        f"({head.hash[:16]}): records were lost, or an older copy was put back; {RESTORE}, or go "
        f"on with {ANEW} where they are lost for good: what they charged is not counted any more"
    )


def is_marked(connection: Connection, witness: Witness) -> bool:
    """Whether the ledger notes that its head is kept by ``witness``."""
    table = schema.secret
    return (
        connection.scalars(select(table.c.name).where(table.c.name == witness.mark)).one_or_none()
        is not None
    )


def gone(connection: Connection, witness: Witness) -> str:
    """What is said of a head file that is not there, though the ledger notes it; empty for none."""
    # written since it was looked for
    if not is_marked(connection, witness) or witness.path.exists():
        return ""
    return (
        f"the head file {witness.path} is gone: nothing tells whether records were lost since it "
        "was written; put it back, or check the ledger with `dpflows ledger verify --keep --head "
        "HASH` and a head from a statement or bundle, which writes it anew"
    )


def _faults(
    connection: Connection, head: Head, records: Sequence[Record], last: int
) -> Iterator[str]:
    following = records[min(head.seq, 1) :]  # the one that was kept apart
    if head.seq and [(one.seq, one.hash) for one in records[:1]] != [(head.seq, head.hash)]:
        yield (
            f"record {head.seq} is not the one whose hash {head.hash[:16]} was kept when it was "
            f"written; {RESTORE}"
        )
        return
    previous = head.hash
    for record in following:
        if record.previous != previous or record.hash != record.expected_hash():
            yield f"record {record.seq} does not follow from the one before it; {RESTORE}"
            return
        previous = record.hash
        if record.kind == "cancelled" and chain.drawn_at(connection, record.entry):
            yield given_back(record, chain.drawn_at(connection, record.entry))
    if len(following) != last - head.seq:
        yield f"records between {head.seq} and {last} are missing; {RESTORE}"


def given_back(record: Record, drawn: int) -> str:
    """What is wrong with a cancellation after the first draw."""
    return (
        f"record {record.seq} cancels entry {record.entry} of {record.dataset!r}, whose first draw "
        f"is record {drawn}: what was drawn stays charged, and the units that it gave back are not "
        "there"
    )
