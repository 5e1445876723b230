"""Blocks of a data set: how records fall into them, which ones a window names, and which ones a run is charged on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256
from typing import Any

from dpcore.checks import require_choice, require_count
from dpcore.errors import InputError

ALL = "all"
PERIODS = ("day", "week", "month")


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a data set is divided. Public, fixed when the data set is opened.

    ``by``: ``one`` block; ``date``: the day, ISO week or month of ``column``; ``hash``: ``buckets`` blocks by the
    SHA-256 of the id in ``column``. Blocks compose in parallel (Lécuyer et al. 2019, Theorem 4.2): a record is in one
    block, and under replace-one it is replaced within it. What is bounded is the *record*; a *person* is covered once
    for each block that holds a record of theirs, unless blocks are hashes of the person's id, or
    ``one_block_per_person`` is declared.

    ``rows_per_block`` is a declared nominal number under add/remove, never a count. ``user_column`` with
    ``rows_per_user`` declares how many rows of one user a training keeps (the training truncates and clips per user).
    """

    by: str = "one"
    column: str | None = None
    period: str = "week"
    buckets: int | None = None
    rows_per_block: int | None = None
    one_block_per_person: bool = False
    user_column: str | None = None
    rows_per_user: int | None = None

    def __post_init__(self) -> None:
        require_choice(("one", "date", "hash"), by=self.by)
        require_choice(PERIODS, period=self.period)
        for name in ("buckets", "rows_per_block", "rows_per_user"):
            if getattr(self, name) is not None:
                require_count(**{name: getattr(self, name)})
        if (self.by == "one") == (self.column is not None):
            rule = "no column for one block" if self.by == "one" else f"a column for blocks by {self.by}"
            raise InputError(f"Expected {rule}, got column={self.column!r}; e.g. by='date', column='visit_date'.")
        if (self.by == "hash") == (self.buckets is None):
            raise InputError(
                f"Expected buckets for blocks by hash and only there, got by={self.by!r}, buckets={self.buckets!r}."
            )
        if (self.user_column is None) != (self.rows_per_user is None):
            raise InputError(
                f"Expected user_column and rows_per_user together, got user_column={self.user_column!r}, "
                f"rows_per_user={self.rows_per_user!r}; declare the most rows that a training keeps of one user."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Blocks:
        """Return what ``to_dict`` described; raises InputError for unknown fields."""
        unknown = sorted(set(fields) - set(cls.__dataclass_fields__))
        if unknown:
            raise InputError(
                f"Unknown field {unknown[0]!r} of blocks; choose from {', '.join(cls.__dataclass_fields__)}."
            )
        return cls(**fields)

    def name_of(self, value: Any) -> str:
        """Return the block of a record from its date or id. Raises InputError without showing the value."""
        if self.by == "one":
            return ALL
        if self.by == "hash":
            if value is None or value != value:
                raise InputError(f"Expected an id in column {self.column!r} of every record, got a missing one.")
            digest = int.from_bytes(sha256(str(value).encode()).digest()[:8], "big")
            return f"h{digest % self._buckets:0{len(str(self._buckets - 1))}d}"
        return _date_block(_as_date(value, self.column), self.period)

    def assign(self, values: Iterable[Any]) -> list[str]:
        """Return the block of each record, given the block column's values."""
        known: dict[Any, str] = {}
        return [known[v] if v in known else known.setdefault(v, self.name_of(v)) for v in values]

    def check(self, name: str) -> str:
        """Return ``name`` where this division can have such a block; raises InputError otherwise."""
        if self.by == "one":
            fits = name == ALL
        elif self.by == "hash":
            fits = name in self.hashed()
        else:
            fits = _is_date_block(name, self.period)
        if not fits:
            raise InputError(
                f"Expected a block like {self._example()!r}, got block={name!r} (blocks by {self._words()})."
            )
        return name

    def hashed(self) -> list[str]:
        """Return all blocks of a division by hash."""
        return [f"h{i:0{len(str(self._buckets - 1))}d}" for i in range(self._buckets)]

    def window(self, last: str | int, until: date | datetime) -> tuple[str, ...]:
        """Return the newest blocks, oldest first: ``last`` is 12 or "12 weeks", ``until`` the day that ends the newest.

        The block that holds ``until`` is included. Only for blocks by date.
        """
        if self.by != "date":
            raise InputError(
                f"Expected blocks by date for a window, got blocks by {self._words()}; read all blocks instead."
            )
        count = self._window_length(last)
        day = until.date() if isinstance(until, datetime) else until
        names: list[str] = []
        for _ in range(count):
            names.append(_date_block(day, self.period))
            day = _before(day, self.period)
        return tuple(reversed(names))

    def _window_length(self, last: str | int) -> int:
        match = re.fullmatch(r"\s*(\d+)\s*(?:(day|week|month)s?)?\s*", str(last))
        if not match or int(match[1]) < 1 or (match[2] or self.period) != self.period:
            raise InputError(f"Expected a window of whole {self.period}s, got last={last!r}; e.g. '12 {self.period}s'.")
        return int(match[1])

    def nominal_n(self, blocks: Sequence[str]) -> int:
        """Return the declared number of rows in ``blocks``: rows_per_block times their number, never a count."""
        if self.rows_per_block is None:
            raise InputError(
                "Expected rows_per_block in the declaration of the blocks, got none; declare a nominal number."
            )
        return self.rows_per_block * len(blocks)

    def charged(self, read: Sequence[str], unit: str) -> tuple[str, ...]:
        """Return the blocks on which a run that reads ``read`` is charged.

        For unit ``user`` a person may have rows in every block, past and to come, so all runs share one block,
        unless a person is in one block only: blocks by the hash of the user column, or ``one_block_per_person``.
        """
        if not read:
            raise InputError("Expected at least one block to read, got blocks=().")
        names = tuple(dict.fromkeys(self.check(name) for name in read))
        apart = self.one_block_per_person or (self.by == "hash" and self.column == self.user_column)
        return names if unit != "user" or apart else (ALL,)

    @property
    def _buckets(self) -> int:
        assert self.buckets is not None
        return self.buckets

    def _words(self) -> str:
        words = {"one": "nothing", "hash": f"hash of {self.column}", "date": f"{self.period} of {self.column}"}
        return words[self.by]

    def _example(self) -> str:
        if self.by == "date":
            return _date_block(date(2026, 1, 5), self.period)
        return ALL if self.by == "one" else self.hashed()[0]

    def covers(self, unit: str) -> str:
        """Return in words what is bounded by a budget per block."""
        if self.by == "one":
            return f"each {unit} of the whole data set"
        if unit == "user" or self.one_block_per_person:
            return "each person"
        if self.by == "hash":
            return f"each {unit}; and all records together that share a value of {self.column}"
        return f"each {unit}; a person with records in k blocks is covered once for each, so at most k times the budget"


def _as_date(value: Any, column: str | None) -> date:
    try:
        # pandas' missing date is a datetime whose .date() raises ValueError
        if isinstance(value, datetime):
            return value.date()
        return value if isinstance(value, date) else datetime.fromisoformat(str(value).strip()).date()
    except ValueError:
        raise InputError(
            f"Expected ISO dates (YYYY-MM-DD) in block column {column!r}, got a record without one; declare how to "
            f"parse it, or drop the record before."
        ) from None


def _date_block(day: date, period: str) -> str:
    if period == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04d}-W{week:02d}"
    return f"{day:%Y-%m}" if period == "month" else day.isoformat()


def _before(day: date, period: str) -> date:
    if period == "month":
        return day.replace(day=1) - timedelta(days=1)
    return day - timedelta(days=7 if period == "week" else 1)


def _is_date_block(name: str, period: str) -> bool:
    formats = {"day": name, "month": f"{name}-01", "week": f"{name}-1"}
    try:
        day = date.fromisoformat(formats[period])
    except ValueError:
        return False
    return _date_block(day, period) == name
