"""What maps a row of a file to the unit that a budget protects and to the block that pays for it.

A budget promises something about people. Whose row a row is, and where it is charged, follows from
these declarations, so a ledger fixes them once: in the opening record, or, for data that were
opened by name alone, in a record ``fixed`` before the first reservation. Each reservation states
them; of undivided records alone there is nothing to state.

Files by their keyed fingerprints: under which names a ledger has seen them, and which of these
names are private.

The key never leaves the ledger, so a fingerprint says nothing to others. It knows the very same
bytes under any file or data set name; a copy of which one byte was changed is another file to it.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sqlalchemy import Connection, or_, select

from dpcore.errors import InputError
from dpcore.identity import IDENTITY_RULE, canonical, canonical_marks
from tasks.ledger import schema
from tasks.ledger.blocks import ALL, FORMS, Blocks

if TYPE_CHECKING:
    from tasks.schema import Schema
    from tasks.schema.sections import BlockSpec


# Where a block follows from a moment, days begin and end there.
ZONE = "UTC"
# What each fact is called where it is declared.
DECLARED = {
    "unit": "unit",
    "id_column": "the column of kind user or id",
    "identity_rule": "version of the rule that compares ids",
    "strip": "text.strip",
    "decimal": "text.decimal",
    "block_column": "block.column",
    "block_by": "block.by",
    "block_count": "block.count",
    "block_format": "block.format",
    "block_zone": "time zone of blocks",
    "missing": "missing marks of the id and block columns",
}


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The declarations of one data set that a ledger fixes; None where one has no part in the
    mapping.
    """

    unit: str
    id_column: str | None = None
    identity_rule: int | None = None
    strip: bool | None = None
    decimal: str | None = None  # where it is no point
    block_column: str | None = None
    block_by: str | None = None
    block_count: int | None = None
    block_format: str | None = None
    block_zone: str | None = None
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> RowFacts:
        """What a data schema declares; no file is opened."""
        if schema.unit == "record" and schema.block is None:
            return cls(schema.unit)
        user = next(
            (name for name, column in schema.columns.items() if column.kind == "user"), None
        )
        by_kind = {"user": user, "record": None}
        ids, divided = by_kind.get(schema.unit, "query"), _division(schema.block)
        named = schema.columns.keys() & {ids, divided.get("block_column")}
        return cls(
            unit=schema.unit,
            id_column=ids,
            identity_rule=IDENTITY_RULE,
            strip=schema.text.strip,
            decimal=schema.text.decimal if schema.text.decimal != "." else None,
            missing=tuple(sorted({mark for name in named for mark in _marks(schema, name)})),
            **divided,
        )

    def to_dict(self) -> dict[str, Any]:
        """The facts that have a part in the mapping, as plain values."""
        plain = asdict(self) | {"missing": list(self.missing)}
        return {name: value for name, value in plain.items() if value not in (None, [])}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> RowFacts:
        """What ``to_dict`` gave; raises ``InputError`` for a fact that this version does not
        know.
        """
        unknown = sorted(set(stored) - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(
                f"Unknown fact {unknown[0]!r} of rows; it was fixed by a newer dpflows: upgrade "
                "this one."
            )
        return cls(**{**stored, "missing": tuple(stored.get("missing", ()))})

    def differences(self, other: RowFacts) -> list[str]:
        """Words for each fact that ``other`` declares otherwise."""
        found = []
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                found.append(f"{DECLARED[field.name]} {_shown(mine)} became {_shown(theirs)}")
        return found

    @staticmethod
    def follow(unit: str, blocks: Blocks) -> bool:
        """Whether the opening alone says what a row is: of undivided records no column decides over
        unit or block.
        """
        return unit == "record" and blocks.by == "one"

    def other_than(self, unit: str, blocks: Blocks) -> str:
        """Words for what cannot be a fact of a data set opened with ``unit`` and ``blocks``; empty
        for nothing.

        Of sessions a budget may protect the labels alone (``session_labels``).
        """
        declared: dict[str, tuple[Any, Any]] = {
            "unit": (self.unit.removesuffix("_labels"), unit.removesuffix("_labels")),
            "block_by": (self.block_by or "one", blocks.by),
            "block_column": (self.block_column, blocks.column),
            "block_count": (self.block_count, blocks.count),
        }
        if unit == "user" and blocks.user_column is not None:
            declared["id_column"] = (self.id_column, blocks.user_column)
        if self.follow(unit, blocks):
            declared |= {
                name: (value, None)
                for name, value in self.to_dict().items()
                if name not in declared
            }
        wrong = (
            (DECLARED[name], mine, opened)
            for name, (mine, opened) in declared.items()
            if mine != opened
        )
        return next(
            (f"{what} {_shown(opened)} became {_shown(mine)}" for what, mine, opened in wrong), ""
        )

    def require_of(self, unit: str, blocks: Blocks, dataset: str) -> None:
        """Raise ``InputError`` where these are no facts of a data set opened with ``unit`` and
        ``blocks``.
        """
        if wrong := self.other_than(unit, blocks):
            raise InputError(
                f"Expected rows of {dataset!r} to mean what its budget was opened for, but "
                f"{wrong}. Put the declaration back in the data schema; a budget is never moved to "
                "another name."
            )

    def same_units(self, other: RowFacts) -> bool:
        """Whether both see the same units in the same rows, whatever blocks they lie in."""
        if self.unit == other.unit == "record":
            return True
        names = ("unit", "id_column", "identity_rule", "strip", "decimal")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def require_same(self, other: RowFacts, dataset: str) -> None:
        """Raise ``InputError`` where ``other`` maps rows otherwise: the same people would be
        charged as others.
        """
        if changed := self.differences(other):
            raise InputError(
                f"Expected rows of {dataset!r} to mean what its ledger fixed, but "
                f"{'; '.join(changed)}: the same rows would be charged as other units or to other "
                "blocks. Put the declaration back in the data schema; a budget is never moved to "
                "another name."
            )


def _division(block: BlockSpec | None) -> dict[str, Any]:
    """The facts that say which block a row belongs to; none of rows that are not divided."""
    if block is None:
        return {}
    dated = block.by not in ("value", "hash")
    return {
        "block_column": block.column,
        "block_by": block.by,
        "block_count": block.count if block.by == "hash" else None,
        "block_format": block.format if dated else None,
        "block_zone": ZONE if dated else None,
    }


def _marks(schema: Schema, name: str) -> frozenset[str]:
    declared = schema.columns[name].missing
    return canonical_marks(schema.missing if declared is None else declared, schema.text.strip)


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "(none)"
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)


EXPONENT = re.compile(r"-?[0-9](?:\.[0-9]+)?[eE][+-]?[0-9]{1,3}")
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T].*")


def carried(division: Blocks, facts: RowFacts | None, old: Mapping[str, int], block: str) -> int:
    """Units that ``block`` counts beside its own for what was spent before facts were fixed
    (``old``, by block).

    Older versions named blocks by the raw text of a cell, where today's name is its canonical text
    ("7.0" then, "7" now). So the same rows may have been charged to another block: by value, to
    each whose name reads as this one today; by hash, to any (a record was in one of them: the worst
    counts); by the day of a moment with a zone, to a neighbour. Without ``facts`` every rule that a
    schema can declare is taken.
    """
    if division.by == "hash":
        return max(old.values(), default=0) - old.get(block, 0)
    if division.by == "value":
        return _by_value(facts, old, block)
    zoned = facts is not None and "%z" in (facts.block_format or "").lower()
    if division.by in FORMS and zoned and block != ALL:
        near = (block, *division.neighbours(block))
        return max(old.get(name, 0) for name in near) - old.get(block, 0)
    return 0


def _by_value(facts: RowFacts | None, old: Mapping[str, int], block: str) -> int:
    """Units of the other blocks whose name reads as ``block`` today."""
    others = {name: units for name, units in old.items() if name not in (block, ALL)}
    return sum(units for name, units in others.items() if block in _names_today(name, facts))


def _names_today(name: str, facts: RowFacts | None) -> set[str]:
    """The canonical texts that a cell may have now which an older version wrote as ``name``."""
    strips = (True, False) if facts is None else (bool(facts.strip),)
    decimals = (".", ",") if facts is None else (facts.decimal or ".",)
    # Without NULs at the end: so named, a block was charged for the rows of the one that has none.
    found = {
        canonical(name.rstrip("\0"), strip, decimal) for strip in strips for decimal in decimals
    }
    # Numbers and moments of typed columns were written as Python shows them.
    if EXPONENT.fullmatch(name):
        found.add(canonical(Decimal(name)))
    if MOMENT.fullmatch(name):
        with suppress(ValueError):
            found.add(canonical(datetime.fromisoformat(name)))
    return found


PIECE = 1 << 20


class Bytes(Protocol):
    """What is asked of a file: a ``Path``, or a remote one that gives the same."""

    def open(self, mode: str) -> Any: ...

    def stat(self) -> Any: ...


Stamp = tuple[Any, int, int, int]


class Marks(NamedTuple):
    """Fingerprints of the files of one table: of all of them in the order of their names, and of
    each. Without any it is not known which files were read.
    """

    whole: str | None = None
    each: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(mark for mark in dict.fromkeys((self.whole, *self.each)) if mark)

    def body(self) -> dict[str, list[str]]:
        """What a reserving record keeps beside the fingerprint of the whole; nothing for a single
        file.
        """
        return {"files": list(self.each)} if len(self.each) > 1 else {}


def marks_of(key: bytes, paths: Iterable[Bytes]) -> Marks:
    """The HMAC-SHA-256 of the SHA-256 of the files' contents; a file that did not change is read
    once a process.
    """
    whole, each = _digests(tuple(_stamp(path) for path in ordered(paths)))
    return Marks(_keyed(key, whole), tuple(dict.fromkeys(_keyed(key, digest) for digest in each)))


def _keyed(key: bytes, digest: bytes) -> str:
    return hmac.new(key, digest, "sha256").hexdigest()


def ordered(paths: Iterable[Bytes]) -> list[Bytes]:
    """Files in the order in which the fingerprint of all of them reads them, by their paths."""
    found: list[Any] = list(paths)
    local = all(isinstance(path, Path) for path in found)
    return sorted(found, key=None if local else str)


def _stamp(path: Bytes) -> Stamp:
    found = path.stat()
    return path, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _digests(files: tuple[Stamp, ...]) -> tuple[bytes, tuple[bytes, ...]]:
    whole, each = sha256(), []
    for path, *_ in files:
        single = sha256()
        with path.open("rb") as file:
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
        "for its records; use one name."
        for other in read_as(connection, marks)
        if other != dataset
    )
