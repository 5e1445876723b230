"""One file under two names: both budgets are about its records, so a run under one name is charged to the other too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from dpcore.accounting.events import Events
from dpcore.errors import InputError
from tasks.ledger import chain, files, schema
from tasks.ledger.blocks import ALL
from tasks.ledger.ledger import Ledger
from tasks.ledger.records import Record

FOR = "for_entry"
"""In ``reading`` of an entry: the entry of the other name that it pays for."""


class Others(NamedTuple):
    """Other names that a run's files were read as: those whose budget did not pay for the run, and public ones."""

    unpaid: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def others(connection: Connection, records: Sequence[Record]) -> Others:
    """The other names of the files of an entry with these ``records``; a run of unknown files has none."""
    reserving = next((record for record in records if record.kind == "reserved"), None)
    if reserving is None or reserving.fingerprint is None:
        return Others()
    marks = (reserving.fingerprint, *json.loads(reserving.body).get("files", ()))
    names = [name for name in files.read_as(connection, marks) if name != reserving.dataset]
    found = {name: chain.find_dataset(connection, name) for name in names}
    limited = [name for name, dataset in found.items() if dataset is not None and dataset.limited]
    paid = _paid(connection, reserving.entry)
    return Others(
        tuple(name for name in limited if name not in paid), tuple(name for name in names if name not in limited)
    )


def _paid(connection: Connection, entry: str) -> set[str]:
    """The names that were charged for ``entry`` with at least its mechanisms."""
    table = schema.records
    reserved = table.c.kind == "reserved"
    [own] = connection.scalars(select(table.c.body).where(reserved, table.c.entry == entry))
    rows = connection.execute(select(table).where(reserved, table.c.body.like(f'%"{FOR}":"{entry}"%')))
    return {
        record.dataset
        for record in (Record(*row) for row in rows)
        if json.loads(record.body)["events"] == json.loads(own)["events"]
        and chain.history(connection, record.entry)[-1].kind == "committed"
    }


def charge_also(ledger: Ledger, entry: str, name: str, blocks: Sequence[str] = (ALL,)) -> str:
    """Charge the mechanisms of a committed ``entry`` to the data set ``name`` as well; return the new entry.

    Raises InputError for an entry that is not committed, or one of ``name`` itself; BudgetExceeded without room.
    """
    with ledger.store.reading() as connection:
        records = chain.history(connection, entry) if connection is not None else []
        states = [record.kind for record in records if record.kind != schema.DRAWN]
        if connection is None or states != ["reserved", "committed"] or records[0].dataset == name:
            raise InputError(
                f"Expected a committed entry of another data set than {name!r}, got {entry!r} "
                f"({' -> '.join(states) or 'unknown'}); `dpflows ledger show` lists them."
            )
        text = chain.events_text(connection, json.loads(records[0].body)["events"])
        hashes = json.loads(records[-1].body)["hashes"]
    ledger.dataset(name)
    with ledger.reserve(name, Events.from_json(text or ""), blocks, reading={FOR: entry}) as reservation:
        # The numbers were drawn already: from here on nothing is given back.
        reservation.on_charge()
        reservation.commit(hashes)
    return reservation.entry_id
