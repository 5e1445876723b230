"""That a record is read once and as it was charged: no part of a table is there under two names,
and none changes while a run reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO

from dpcore.errors import InputError
from tasks.readers.chunk import open_bytes, table_kind, unpacked
from tasks.readers.parts import PIECE, Part, Remote, SqlTable

BEGIN = 2**16  # bytes by which parts are told apart before any is read whole

Identity = tuple[int, int, int]


def copies(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Groups of parts of equal content, each larger than one; that of text is what is unpacked.

    Of each part the beginning is read, and the whole of those alone that begin alike.
    """
    for alike in _groups(parts, BEGIN):
        yield from _groups(alike, None)


def _groups(parts: Sequence[Part], size: int | None) -> list[list[Part]]:
    found: dict[bytes, list[Part]] = {}
    for part in parts if len(parts) > 1 else ():
        found.setdefault(_digest(part, size), []).append(part)
    return [group for group in found.values() if len(group) > 1]


def _digest(part: Part, size: int | None) -> bytes:
    """SHA-256 of the first ``size`` bytes (None: of all); of what cannot be unpacked as it lies,
    for its reader says what is wrong with it.
    """
    try:
        with unpacked(part), _opened(part) as file:
            return _sum(file, size)
    except InputError:
        with part.open("rb") as file:
            return _sum(file, size)


def _opened(part: Part) -> Any:
    return open_bytes(part) if table_kind(part) is None else part.open("rb")


def _sum(file: BinaryIO, size: int | None) -> bytes:
    made, left = sha256(), size
    while piece := file.read(PIECE if left is None else min(left, PIECE)):
        made.update(piece)
        left = None if left is None else left - len(piece)
    return made.digest()


def glance(part: Part) -> tuple[int, str]:
    """Length and SHA-256 of the beginning of a file as it lies: what tells it from another cheaply,
    wherever it is read.
    """
    with part.open("rb") as file:
        return identity(part)[1], _sum(file, BEGIN).hex()


def require_same(parts: Sequence[Part], told: Mapping[int, tuple[int, str]]) -> None:
    """Raise ``InputError`` where others, who ``told`` what they read under the same names, read
    other files than lie here.
    """
    for number, part in enumerate(parts):
        if tuple(told[number]) != glance(part):
            raise InputError(
                f"Expected {part} on every worker as it lies here, for which the budget is "
                "charged, got another file there; let workers and driver see the same files."
            )


def same_content(one: Part, other: Part) -> InputError:
    """The error for two parts that hold the same rows."""
    return InputError(
        f"Expected parts that differ, got {str(one)!r} and {str(other)!r} of the same content, "
        "whose records would count twice; leave one out, or, where they are different records that "
        "look alike, put them into one file."
    )


def identity(part: Part) -> Identity:
    """Number, size and time of change of a file as it is now; zeros where there is none."""
    if isinstance(part, SqlTable):
        return 0, 0, 0
    try:
        facts: Any = part.now() if isinstance(part, Remote) else part.stat()
    except OSError:
        return 0, 0, 0
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


@dataclass(frozen=True, slots=True)
class AsRead:
    """The files of a reading as they were before the first byte of them was read."""

    files: tuple[tuple[Part, Identity], ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Part]) -> AsRead:
        return cls(tuple((part, identity(part)) for part in parts))

    def require(self, among: Sequence[Part] | None = None) -> None:
        """Raise ``InputError`` unless every file is as it was, and one of ``among`` (None: of
        any).
        """
        names = None if among is None else set(map(str, among))
        for part, before in self.files:
            gone = names is not None and str(part) not in names
            if gone or identity(part) != before:
                raise InputError(
                    f"Expected {part} to stay as it is while a run reads it, got one that was "
                    "changed or replaced since; let whatever writes it end, and start again."
                )
