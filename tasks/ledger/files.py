"""Files by their keyed fingerprints: under which names a ledger has seen them, and which of these
names are private.

The key never leaves the ledger, so a fingerprint says nothing to others. It knows the very same
bytes under any file or data set name; a copy of which one byte was changed is another file to it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, or_, select

from tasks.ledger import schema

PIECE = 1 << 20

Stamp = tuple[str, int, int, int]


class Marks(NamedTuple):
    """Fingerprints of the files of one table: of all of them in the order of their names, and of
    each.
    """

    whole: str
    each: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.whole, *self.each)))

    def body(self) -> dict[str, list[str]]:
        """What a reserving record keeps beside the fingerprint of the whole; nothing for a single
        file.
        """
        return {"files": list(self.each)} if len(self.each) > 1 else {}


def marks_of(key: bytes, paths: Iterable[Path]) -> Marks:
    """The HMAC-SHA-256 of the SHA-256 of the files' contents; a file that did not change is read
    once a process.
    """
    whole, each = _digests(tuple(_stamp(path) for path in sorted(paths)))
    return Marks(_keyed(key, whole), tuple(dict.fromkeys(_keyed(key, digest) for digest in each)))


def _keyed(key: bytes, digest: bytes) -> str:
    return hmac.new(key, digest, "sha256").hexdigest()


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return str(path), found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _digests(files: tuple[Stamp, ...]) -> tuple[bytes, tuple[bytes, ...]]:
    whole, each = sha256(), []
    for name, *_ in files:
        single = sha256()
        with Path(name).open("rb") as file:
            while piece := file.read(PIECE):
                single.update(piece)
                if len(files) > 1:
                    whole.update(piece)
        each.append(single.digest())
    return (each[0] if len(files) == 1 else whole.digest()), tuple(each)


def key_of(connection: Connection) -> bytes:
    """Return the secret key of this ledger's fingerprints."""
    table = schema.secret
    return bytes.fromhex(
        connection.scalars(select(table.c.value).where(table.c.name == "fingerprint")).one()
    )


def read_as(connection: Connection, marks: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the data sets whose runs read one of the files of these fingerprints,
    sorted.
    """
    if not marks:
        return ()
    table = schema.records
    several = table.c.fingerprint.is_not(None) & table.c.body.like('%"files":%')
    held = or_(*(table.c.body.like(f"%{mark}%") for mark in marks))
    found = set(
        connection.scalars(select(table.c.dataset).where(table.c.fingerprint.in_(marks)).distinct())
    )
    for dataset, body in connection.execute(
        select(table.c.dataset, table.c.body).where(several & held)
    ):
        if set(marks) & set(json.loads(body).get("files", ())):
            found.add(dataset)
    return tuple(sorted(found))


def other_names(connection: Connection, dataset: str, marks: Sequence[str]) -> tuple[str, ...]:
    """Return a warning for every other data set that was charged for reading one of these files."""
    return tuple(
        f"The file of {dataset!r} was read before as {other!r}: the budgets of both names add up "
        f"for its records; use "
        "one name."
        for other in read_as(connection, marks)
        if other != dataset
    )
