"""One file under two names: both budgets are about its records, so a run under one name is charged
to the other too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from dpcore.accounting.events import Events
from dpcore.errors import InputError
from tasks.ledger import chain, files, schema
from tasks.ledger.blocks import ALL
from tasks.ledger.facts import RowFacts
from tasks.ledger.ledger import Ledger
from tasks.ledger.records import Record

FOR = "for_entry"
"""In ``reading`` of an entry: the entry of the other name that it pays for."""


class Others(NamedTuple):
    """Other names that a run's files were read as: those whose budget did not pay for the run, and
    public ones.
    """

    unpaid: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def others(connection: Connection, records: Sequence[Record]) -> Others:
    """The other names of the files of an entry with these ``records``; a run of unknown files has
    none.
    """
    reserving = next((record for record in records if record.kind == "reserved"), None)
    if reserving is None or reserving.fingerprint is None:
        return Others()
    marks = _marks(reserving)
    names = [name for name in files.read_as(connection, marks) if name != reserving.dataset]
    found = {name: chain.find_dataset(connection, name) for name in names}
    limited = [name for name, dataset in found.items() if dataset is not None and dataset.limited]
    paid = _paid(connection, reserving.entry, marks)
    return Others(
        tuple(name for name in limited if name not in paid),
        tuple(name for name in names if name not in limited),
    )


def _marks(reserving: Record) -> tuple[str, ...]:
    """The fingerprints of the files that an entry read."""
    return tuple(
        mark
        for mark in (reserving.fingerprint, *json.loads(reserving.body).get("files", ()))
        if mark
    )


def _blocks_of(connection: Connection, name: str, marks: Sequence[str]) -> set[str]:
    """The blocks that runs of ``name`` on one of these files were charged on: the same rows lie
    there.
    """
    table = schema.records
    rows = connection.execute(select(table).where(schema.IS_RESERVING, table.c.dataset == name))
    return {
        block
        for record in (Record(*row) for row in rows)
        if set(marks) & set(_marks(record))
        for block in json.loads(record.body)["blocks"]
    }


def _paid(connection: Connection, entry: str, marks: Sequence[str]) -> set[str]:
    """The names that were charged for ``entry`` with at least its mechanisms, on all blocks that
    hold its files.
    """
    table = schema.records
    reserved = table.c.kind == "reserved"
    [own] = connection.scalars(select(table.c.body).where(reserved, table.c.entry == entry))
    rows = connection.execute(
        select(table).where(reserved, table.c.body.like(f'%"{FOR}":"{entry}"%'))
    )
    return {
        record.dataset
        for record in (Record(*row) for row in rows)
        if json.loads(record.body)["events"] == json.loads(own)["events"]
        and set(json.loads(record.body)["blocks"]) >= _blocks_of(connection, record.dataset, marks)
        and chain.history(connection, record.entry)[-1].kind == "committed"
    }


def charge_also(ledger: Ledger, entry: str, name: str, blocks: Sequence[str] = (ALL,)) -> str:
    """Charge the mechanisms of a committed ``entry`` to the data set ``name`` as well; return the
    new entry.

    Raises InputError for an entry that is not committed, or one of ``name`` itself; BudgetExceeded
    without room.
    """
    with ledger.store.reading() as connection:
        records = chain.history(connection, entry) if connection is not None else []
        states = [record.kind for record in records if record.kind != schema.DRAWN]
        if connection is None or states != ["reserved", "committed"] or records[0].dataset == name:
            raise InputError(
                f"Expected a committed entry of another data set than {name!r}, got {entry!r} "
                f"({' -> '.join(states) or 'unknown'}); `dpflows ledger show` lists them."
            )
        body = json.loads(records[0].body)
        text = chain.events_text(connection, body["events"])
        hashes = json.loads(records[-1].body)["hashes"]
        needed = _blocks_of(connection, name, _marks(records[0]))
    found = ledger.dataset(name)
    if found.limited and (
        missing := sorted(needed - set(found.blocks.charged(blocks, found.unit)))
    ):
        raise InputError(
            f"Expected all blocks of {name!r} that were charged for the same file, got none for "
            f"{missing[0]!r}: its "
            f"rows were read by {entry} too; add "
            f"{' '.join(f'--block {block}' for block in missing)}."
        )
    facts = _facts_of(ledger, name, body, entry) if found.limited else None
    with ledger.reserve(
        name, Events.from_json(text or ""), blocks, reading={FOR: entry}, facts=facts
    ) as reservation:
        # The numbers were drawn already: from here on nothing is given back.
        reservation.on_charge()
        reservation.commit(hashes)
    return reservation.entry_id


def _facts_of(ledger: Ledger, name: str, body: dict[str, Any], entry: str) -> RowFacts | None:
    """The facts of ``name`` under which it pays for an entry with this ``body``, None where the
    opening says all.

    Raises ``InputError`` where the entry saw other units in the same rows, and where nothing says
    which it saw.
    """
    fixed, dataset = ledger.facts(name), ledger.dataset(name)
    if dataset.unit == "record":
        return fixed
    seen = RowFacts.from_dict(body["facts"]) if "facts" in body else None
    if fixed is None or seen is None or not fixed.same_units(seen):
        raise InputError(
            f"Expected an entry that saw the {dataset.unit}s of {name!r} in the same rows, got "
            f"{entry}, which "
            f"{'states' if seen else 'does not state'} "
            f"{'others' if seen else 'what its rows were'}; train again "
            f"under {name!r}."
        )
    return fixed
