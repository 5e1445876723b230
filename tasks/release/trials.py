"""The charged runs that a release was chosen from, read from the ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select

from dpcore.accounting.events import Events
from dpcore.errors import VerificationFailed
from tasks.ledger import Ledger, schema
from tasks.ledger.chain import events_text
from tasks.ledger.records import Record


class Trial(NamedTuple):
    """A charged entry: when it was reserved, on which blocks, and what it may have released."""

    seq: int
    entry: str
    blocks: tuple[str, ...]
    events: Events


def charged(ledger: Ledger, dataset: str) -> list[Trial]:
    """All entries of ``dataset`` that were not cancelled, oldest first: failed and open ones touched the data too."""
    with ledger.store.reading() as connection:
        if connection is None:
            return []
        table = schema.records
        query = select(table).where(table.c.dataset == dataset, table.c.kind.in_(("reserved", "cancelled")))
        records = [Record(*row) for row in connection.execute(query.order_by(table.c.seq))]
        cancelled = {record.entry for record in records if record.kind == "cancelled"}
        found = []
        for record in records:
            if record.kind != "reserved" or record.entry in cancelled:
                continue
            body = json.loads(record.body)
            text = events_text(connection, body["events"])
            if text is None:
                raise VerificationFailed(f"The ledger lacks the mechanisms of entry {record.entry}; restore a copy.")
            found.append(Trial(record.seq, record.entry, tuple(body["blocks"]), Events.from_json(text)))
    return found


def search(trials: Sequence[Trial], own: Sequence[str], blocks: Sequence[str], since: int) -> list[Trial]:
    """The trials that the choice of the entries ``own`` may depend on.

    Those after record ``since`` (the last release) that share a block with it, and ``own`` themselves.
    """
    shared = set(blocks)
    return [one for one in trials if one.entry in own or (one.seq > since and shared & set(one.blocks))]
