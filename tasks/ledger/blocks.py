"""Blocks of a data set in the ledger: which names they can have, what a window names, what a run is
charged on.

Which row falls into which block is decided where the table is read (``tasks.data``); both use the
same names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from dpcore.errors import InputError, require_choice, require_count

if TYPE_CHECKING:
    from tasks.schema import Schema


ALL = "all"
FORMS = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m", "year": "%Y"}
DIVISIONS = ("one", "value", "hash", *FORMS)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a data set is divided. Public, fixed when the data set is opened.

    ``by``: ``one`` block; the ``value`` of ``column``; its ``day``, ISO ``week``, ``month`` or
    ``year``; or ``count`` parts by a ``hash`` of it. Blocks compose in parallel (Lécuyer et al.
    2019, Theorem 4.2): a record is in one block, and under replace-one it is replaced within it.
    What is bounded is the *record*; a *person* is covered once for each block that holds a record
    of theirs, unless blocks are hashes of the person's id (``column`` is ``user_column``), or
    ``one_block_per_person`` is declared.

    ``rows_per_block`` is a declared nominal number under add/remove, never a count. ``user_column``
    with ``rows_per_user`` declares how many rows of one user a training keeps (the training
    truncates and clips per user).
    """

    by: str = "one"
    column: str | None = None
    count: int | None = None
    rows_per_block: int | None = None
    one_block_per_person: bool = False
    user_column: str | None = None
    rows_per_user: int | None = None

    def __post_init__(self) -> None:
        require_choice(DIVISIONS, by=self.by)
        for name in ("count", "rows_per_block", "rows_per_user"):
            if getattr(self, name) is not None:
                require_count(**{name: getattr(self, name)})
        if (self.by == "one") == (self.column is not None):
            rule = (
                "no column for one block"
                if self.by == "one"
                else f"a column for blocks by {self.by}"
            )
            raise InputError(
                f"Expected {rule}, got column={self.column!r}; e.g. by='week', column='visit_date'."
            )
        if (self.by == "hash") == (self.count is None):
            raise InputError(
                f"Expected a count for blocks by hash and only there, got by={self.by!r}, "
                f"count={self.count!r}; e.g. by='hash', column='patient_id', count=16."
            )
        if (self.user_column is None) != (self.rows_per_user is None):
            raise InputError(
                "Expected user_column and rows_per_user together, got "
                f"user_column={self.user_column!r}, rows_per_user={self.rows_per_user!r}; declare "
                "the most rows that a training keeps of one user."
            )

    @classmethod
    def of(
        cls, schema: Schema, one_block_per_person: bool = False, rows_per_user: int | None = None
    ) -> Blocks:
        """Return the division that a data schema declares."""
        block, rows = schema.block, schema.public.rows_per_block
        user = next(
            (name for name, column in schema.columns.items() if column.kind == "user"), None
        )
        rows_per_user = rows_per_user or schema.public.rows_per_user
        return cls(
            by=block.by if block else "one",
            column=block.column if block else None,
            count=block.count if block and block.by == "hash" else None,
            rows_per_block=rows,
            one_block_per_person=one_block_per_person,
            user_column=user if rows_per_user is not None else None,
            rows_per_user=rows_per_user,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Blocks:
        """Return what ``to_dict`` described; raises InputError for unknown fields."""
        unknown = sorted(set(fields) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise InputError(f"Unknown field {unknown[0]!r} of blocks; choose from {known}.")
        return cls(**fields)

    def require_same(self, other: Blocks, dataset: str) -> None:
        """Raise InputError unless ``other`` divides alike: other blocks of the same rows would be
        fresh budget.
        """
        if (self.by, self.column, self.count) != (other.by, other.column, other.count):
            raise InputError(
                f"Expected {dataset!r} divided by {self.words()} as it was opened, got "
                f"{other.words()}; a division is never changed: restore `block` in the data schema."
            )

    def check_block(self, name: str) -> str:
        """Return ``name`` where this division can have such a block; raises InputError
        otherwise.
        """
        if self.by == "one":
            fits = name == ALL
        elif self.by == "hash":
            fits = name in self.hashed()
        elif self.by == "value":
            fits = 0 < len(name) <= 120
        else:
            fits = _is_date_block(name, self.by)
        if not fits and name == ALL:
            raise InputError(
                "Expected the blocks to read, which each have a budget of their own, got none; "
                f"name them, for example data.blocks=[{self._example()}]: the division is by "
                f"{self.words()}."
            )
        if not fits:
            raise InputError(
                f"Expected a block like {self._example()!r}, got block={name!r}; the division is "
                f"by {self.words()}."
            )
        return name

    def hashed(self) -> tuple[str, ...]:
        """Return all blocks of a division by hash."""
        assert self.count is not None
        width = len(str(self.count - 1))
        return tuple(f"h{part:0{width}d}" for part in range(self.count))

    def window(self, last: str | int, until: date) -> tuple[str, ...]:
        """Return the newest blocks, oldest first; the block that holds the day ``until`` is the
        newest.

        ``last`` is 12 or "12 weeks". Raises InputError unless blocks are by day, week, month or
        year.
        """
        if self.by not in FORMS:
            raise InputError(
                f"Expected blocks by date for a window, got {self.words()}; name the blocks, or "
                "read all."
            )
        day = until.date() if isinstance(until, datetime) else until
        names: list[str] = []
        for _ in range(self._window_length(last)):
            names.append(day.strftime(FORMS[self.by]))
            day = _before(day, self.by)
        return tuple(reversed(names))

    def neighbours(self, block: str) -> tuple[str, ...]:
        """Return the blocks before and after one by date; raises InputError for a text that is no
        such block.
        """
        day = _first_day(self.check_block(block), self.by)
        found = []
        with suppress(OverflowError):  # the calendar ends
            found.append(_before(day, self.by))
        with suppress(OverflowError):
            found.append(
                day + timedelta(days={"day": 1, "week": 7, "month": 31, "year": 366}[self.by])
            )
        return tuple(other.strftime(FORMS[self.by]) for other in found)

    def _window_length(self, last: str | int) -> int:
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:(day|week|month|year)s?)?\s*", str(last))
        if not match or int(match[1]) < 1 or (match[2] or self.by) != self.by:
            raise InputError(
                f"Expected a window of whole {self.by}s, got last={last!r}; e.g. '12 {self.by}s'."
            )
        return int(match[1])

    def charged(self, read: Sequence[str], unit: str) -> tuple[str, ...]:
        """Return the blocks on which a run that reads ``read`` is charged.

        For unit ``user`` a person may have rows in every block, past and to come, so all runs share
        one block, unless a person is in one block only: blocks by the hash of the user column, or
        ``one_block_per_person``.
        """
        if not read:
            raise InputError(
                "Expected at least one block to read, got blocks=(); name a window that holds data."
            )
        names = tuple(dict.fromkeys(self.check_block(name) for name in read))
        return names if unit != "user" or self.person_in_one_block else (ALL,)

    def unnamed(self, charged: Sequence[str], unit: str) -> str | None:
        """Return a block by value that may stand for others: ``all``, or one that ends where
        another text goes on.
        """
        if self.by != "value" or (unit == "user" and not self.person_in_one_block):
            return None
        return next((name for name in charged if name == ALL or "\0" in name), None)

    @property
    def person_in_one_block(self) -> bool:
        """Whether all rows of a person are in one block, by construction or by declaration."""
        return (
            self.by == "one"
            or self.one_block_per_person
            or (self.by == "hash" and self.column == self.user_column)
        )

    def words(self) -> str:
        """Return the division in words."""
        if self.by == "one":
            return "nothing (one block)"
        return f"{self.by} of {self.column}" + (f" in {self.count} parts" if self.count else "")

    def covers(self, unit: str) -> str:
        """Return in words what the budget of a block bounds."""
        if unit == "user" or self.one_block_per_person:
            return (
                "each person, with all their rows"
                if unit == "user"
                else f"each {unit}; a person is in one block"
            )
        if self.by == "one":
            return f"each {unit}"
        if self.by == "hash":
            return f"each {unit}; all records that share a value of {self.column} are in one block"
        return f"each {unit}; a person with records in k blocks is covered once for each of the k"

    def _example(self) -> str:
        if self.by in FORMS:
            return date(2026, 1, 5).strftime(FORMS[self.by])
        return {"one": ALL, "value": "a value of the column"}.get(self.by) or self.hashed()[0]


def _before(day: date, by: str) -> date:
    """Return a day of the period before the one that holds ``day``."""
    if by in ("month", "year"):
        day = day.replace(day=1) if by == "month" else day.replace(month=1, day=1)
    return day - timedelta(days=7 if by == "week" else 1)


def _first_day(name: str, by: str) -> date:
    return date.fromisoformat(
        {"day": name, "week": f"{name}-1", "month": f"{name}-01", "year": f"{name}-01-01"}[by]
    )


def _is_date_block(name: str, by: str) -> bool:
    try:
        return _first_day(name, by).strftime(FORMS[by]) == name
    except ValueError:
        return False
