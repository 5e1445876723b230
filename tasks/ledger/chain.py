"""Queries and appends inside one transaction: the hash chain, the running totals, the stored
mechanisms.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple
from unicodedata import normalize

from sqlalchemy import Connection, func, select

from dpcore.errors import BudgetExceeded, DPFlowsError, InputError
from tasks.ledger import schema
from tasks.ledger.blocks import ALL
from tasks.ledger.facts import RowFacts, carried
from tasks.ledger.records import Dataset, Record, left_of, next_record

FIXED = "fixed"
"""The kind of the record that fixes the facts of a data set which was opened by name alone."""


class Chain:
    """Appends records inside one writing transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = newest(connection)

    def append(
        self,
        kind: str,
        dataset: str,
        body: dict[str, Any],
        entry: str = "",
        period: str | None = None,
        fingerprint: str | None = None,
    ) -> Record:
        """Append one record behind the newest; return it with its hash."""
        record = next_record(self._last, kind, dataset, body, entry, period, fingerprint)
        self._connection.execute(schema.records.insert().values(**record._asdict()))
        self._last = (record.seq, record.hash)
        return record


def newest(connection: Connection) -> tuple[int, str] | None:
    """Return (seq, hash) of the newest record."""
    table = schema.records
    row = connection.execute(
        select(table.c.seq, table.c.hash).order_by(table.c.seq.desc()).limit(1)
    ).one_or_none()
    return None if row is None else (row.seq, row.hash)


def find_dataset(connection: Connection, name: str) -> Dataset | None:
    """Return a data set as it was opened."""
    table = schema.records
    row = connection.execute(
        select(table).where(schema.IS_OPENING, table.c.dataset == name)
    ).one_or_none()
    return None if row is None else Dataset.from_record(Record(*row))


def fixed_facts(connection: Connection, name: str) -> RowFacts | None:
    """Return what a record ``fixed`` states about a data set that was opened by name alone."""
    table = schema.records
    fixed = (
        select(table.c.body)
        .where(table.c.kind == FIXED, table.c.dataset == name)
        .order_by(table.c.seq)
        .limit(1)
    )
    body = connection.scalars(fixed).one_or_none()
    return None if body is None else RowFacts.from_dict(json.loads(body)["facts"])


def history(connection: Connection, entry: str) -> list[Record]:
    """Return the records of one entry, oldest first."""
    table = schema.records
    rows = connection.execute(select(table).where(table.c.entry == entry).order_by(table.c.seq))
    return [Record(*row) for row in rows]


def drawn_at(connection: Connection, entry: str) -> int:
    """Return the number of the record of an entry's first draw, 0 where nothing was drawn."""
    table = schema.records
    found = connection.scalars(
        select(table.c.seq).where(table.c.entry == entry, table.c.kind == schema.DRAWN)
    )
    return min(found, default=0)


def open_entries(connection: Connection) -> list[Record]:
    """Return the reserving records of entries that nothing closed, oldest first."""
    table, closing = schema.records, schema.records.alias()
    closed = (
        select(closing.c.seq)
        .where(closing.c.entry == table.c.entry, closing.c.kind.in_(schema.CLOSING))
        .exists()
    )
    rows = connection.execute(
        select(table).where(schema.IS_RESERVING, ~closed).order_by(table.c.seq)
    )
    return [Record(*row) for row in rows]


class Balance(NamedTuple):
    """How many times the total of a block changed, and the units that it has spent."""

    ordinal: int = 0
    units: int = 0


def balances(
    connection: Connection, dataset: str, blocks: Iterable[str] | None = None
) -> dict[str, Balance]:
    """Return the newest total of ``blocks``, zero for untouched ones; without ``blocks`` of all
    touched, sorted.

    One statement that jumps to the newest row of each block by the index, however many entries
    there are.
    """
    first, table = schema.balances.alias(), schema.balances
    newest_row = select(table.c.ordinal, table.c.units).where(
        table.c.dataset == first.c.dataset, table.c.block == first.c.block
    )
    newest_row = newest_row.order_by(table.c.ordinal.desc()).limit(1)
    ordinal = newest_row.with_only_columns(table.c.ordinal).scalar_subquery()
    units = newest_row.with_only_columns(table.c.units).scalar_subquery()
    query = select(first.c.block, ordinal, units).where(
        first.c.dataset == dataset, first.c.ordinal == 1
    )
    if blocks is None:
        return {
            row[0]: Balance(row[1], row[2])
            for row in connection.execute(query.order_by(first.c.block))
        }
    names = list(blocks)
    found = {
        row[0]: Balance(row[1], row[2])
        for row in connection.execute(query.where(first.c.block.in_(names)))
    }
    return {name: found.get(name, Balance()) for name in names}


def counted(
    connection: Connection,
    target: Dataset,
    blocks: Iterable[str] | None = None,
    facts: RowFacts | None = None,
) -> dict[str, int]:
    """Return the units that count against each of ``blocks`` (None: all touched): its own and those
    ``carried``.

    ``facts`` are those of a run that is about to fix them. Older versions let a run on blocks by
    value read all rows for a charge on a block ``all``, so that one counts against each.
    """
    own = {
        block: balance.units for block, balance in balances(connection, target.name, blocks).items()
    }
    if target.blocks.by == "value":
        whole = balances(connection, target.name, [ALL])[ALL].units
        own = {block: units + (whole if block != ALL else 0) for block, units in own.items()}
    if target.facts is not None or target.blocks.by == "one" or not target.limited:
        return own
    table = schema.records
    fixing = select(func.min(table.c.seq)).where(
        table.c.kind == FIXED, table.c.dataset == target.name
    )
    old = _balances_before(connection, target.name, connection.scalar(fixing))
    facts = fixed_facts(connection, target.name) or facts
    return {
        block: units + carried(target.blocks, facts, old, block) for block, units in own.items()
    }


def _balances_before(connection: Connection, dataset: str, seq: int | None) -> dict[str, int]:
    """Return what each block had spent before record ``seq`` (None: until now)."""
    table = schema.balances
    ours = (
        table.c.dataset == dataset
        if seq is None
        else (table.c.dataset == dataset) & (table.c.seq < seq)
    )
    last = (
        select(table.c.block, func.max(table.c.ordinal).label("ordinal"))
        .where(ours)
        .group_by(table.c.block)
    )
    newest_rows = last.subquery()
    query = select(table.c.block, table.c.units).join(
        newest_rows,
        (table.c.block == newest_rows.c.block) & (table.c.ordinal == newest_rows.c.ordinal),
    )
    return {row[0]: row[1] for row in connection.execute(query.where(table.c.dataset == dataset))}


def admit(
    connection: Connection,
    target: Dataset,
    blocks: Iterable[str],
    units: int,
    cost: float,
    facts: RowFacts | None = None,
) -> None:
    """Raise BudgetExceeded where a block would pass its limit; the caller's transaction keeps other
    writers out.
    """
    for block, spent in counted(connection, target, blocks, facts).items():
        if spent + units > target.limit:
            raise refusal(target, block, cost, spent)


def move(connection: Connection, record: Record, blocks: Iterable[str], units: int) -> None:
    """Store the total of every block after ``record``, which changes it by ``units``; nothing for 0
    units.
    """
    if not units:
        return
    rows = []
    for block, balance in balances(connection, record.dataset, blocks).items():
        place = {"dataset": record.dataset, "block": block, "ordinal": balance.ordinal + 1}
        rows.append(place | {"seq": record.seq, "units": balance.units + units})
    connection.execute(schema.balances.insert(), rows)


def refusal(target: Dataset, block: str, cost: float, spent: int) -> BudgetExceeded:
    """Return the error that says what was asked and what is left."""
    assert target.budget is not None
    left = left_of(target.budget, spent)
    where = f"{target.name!r}" if block == ALL else f"block {block} of {target.name!r}"
    return BudgetExceeded(
        f"Expected a run within the budget of {where}: {target.counting} the run costs {cost:.6g} "
        f"and {left:.6g} of {target.budget:.6g} is left; nothing was reserved. The guarantee is "
        f"{target.guarantee()}; lower the run's epsilon, or train on blocks with room.",
        asked=cost,
        left=left,
    )


def store_events(connection: Connection, digest: str, text: str) -> None:
    """Store a list of mechanisms once, by its SHA-256."""
    table = schema.events
    if (
        connection.scalars(select(table.c.sha256).where(table.c.sha256 == digest)).one_or_none()
        is None
    ):
        connection.execute(table.insert().values(sha256=digest, text=text))


def period_state(connection: Connection, dataset: str, period: str) -> str | None:
    """Return the state of the newest run of a scheduled period that was not cancelled."""
    table = schema.records
    entries = select(table.c.entry).where(table.c.dataset == dataset, table.c.period == period)
    kinds = (
        select(table.c.entry, table.c.kind).where(table.c.entry.in_(entries)).order_by(table.c.seq)
    )
    rows = connection.execute(kinds)
    states = {row.entry: row.kind for row in rows if row.kind != schema.DRAWN}
    kept = [state for state in states.values() if state != "cancelled"]
    return kept[-1] if kept else None


def events_text(connection: Connection, digest: str) -> str | None:
    """Return a stored list of mechanisms by its SHA-256."""
    table = schema.events
    return connection.scalars(select(table.c.text).where(table.c.sha256 == digest)).one_or_none()


def require_unlike(connection: Connection, dataset: str) -> None:
    """Raise InputError for a new name that people take for one which is there: its rows would have
    two budgets.
    """
    rows = connection.execute(select(schema.records.c.dataset).where(schema.IS_OPENING))
    near = next((name for (name,) in rows if look_of(name) == look_of(dataset)), None)
    if near is not None:
        raise InputError(
            f"Expected a name that is not taken for another, got dataset={dataset!r} beside "
            f"{near!r}; use {near!r} for the same data, or a name that differs by more than case, "
            "width or accents' form."
        )


def look_of(name: str) -> str:
    """What a name looks like: without case, blanks, width and form of its letters (NFKC)."""
    return "".join(normalize("NFKC", normalize("NFKC", name).casefold()).split())


def open_entry(connection: Connection, entry: str, dataset: str) -> tuple[Record, bool]:
    """Return the reserving record of an entry that nothing closed, and whether it was drawn on."""
    records = history(connection, entry)
    kinds = [record.kind for record in records]
    if kinds not in (["reserved"], ["reserved", schema.DRAWN]) or records[0].dataset != dataset:
        raise DPFlowsError(
            f"Expected an open entry, got {entry} of {dataset!r}, which is "
            f"{' -> '.join(kinds) or 'unknown'}; nothing was changed."
        )
    return records[0], len(kinds) > 1


def require_untrained(connection: Connection, dataset: str, period: str | None) -> None:
    """Raise InputError for a scheduled period that a run is charged for already."""
    state = period_state(connection, dataset, period) if period is not None else None
    if state in ("reserved", "committed"):
        raise InputError(
            f"Expected a period not trained yet, got period={period!r} of {dataset!r}, which is "
            f"{state}."
        )
