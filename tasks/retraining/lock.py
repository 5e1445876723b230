"""One retraining at a time for a data set, among all processes that share a ledger.

A row in the ledger's database, beside its append-only tables, names the process that holds the lock: a process that is
certainly gone loses it. The orchestrator's own limit does not see runs that were started from a shell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, MetaData, String, Table, Text, select

from dpcore.errors import DPFlowsError
from tasks.ledger import Ledger
from tasks.ledger.owner import is_gone, this_process

locks = Table(
    "retraining_lock",
    MetaData(),
    Column("dataset", String(200), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("since", String(40), nullable=False),
)


class Busy(DPFlowsError):
    """Another process retrains this data set."""


@contextmanager
def one_at_a_time(ledger: Ledger, dataset: str, wait_minutes: float = 0.0, pause: float = 1.0) -> Iterator[None]:
    """Hold the lock of ``dataset`` for the length of the block; wait for a holder that lives, at most so long.

    Raises ``Busy``, which names the holder. Nothing was spent then.
    """
    give_up = time.monotonic() + wait_minutes * 60
    while (holder := _take(ledger, dataset)) is not None:
        if time.monotonic() >= give_up:
            raise Busy(_words(dataset, holder))
        time.sleep(pause)
    try:
        yield
    finally:
        _give(ledger, dataset)


def break_lock(ledger: Ledger, dataset: str) -> dict[str, Any] | None:
    """Remove the lock of ``dataset`` whoever holds it; return the holder, None where there was none."""
    with ledger.store.writing() as connection:
        holder = _holder(connection, dataset)
        connection.execute(locks.delete().where(locks.c.dataset == dataset))
    return holder


def _take(ledger: Ledger, dataset: str) -> dict[str, Any] | None:
    """Take the lock and return None, or return who holds it. Writers take turns, so two never take it at once."""
    with ledger.store.writing() as connection:
        holder = _holder(connection, dataset)
        if holder is not None and not is_gone(holder["owner"]):
            return holder
        connection.execute(locks.delete().where(locks.c.dataset == dataset))
        owner, since = json.dumps(this_process(), sort_keys=True), datetime.now(UTC).isoformat(timespec="seconds")
        connection.execute(locks.insert().values(dataset=dataset, owner=owner, since=since))
    return None


def _give(ledger: Ledger, dataset: str) -> None:
    with ledger.store.writing("the lock of the data set stays until this process ends") as connection:
        holder = _holder(connection, dataset)
        if holder is not None and holder["owner"] == this_process():
            connection.execute(locks.delete().where(locks.c.dataset == dataset))


def _holder(connection: Connection, dataset: str) -> dict[str, Any] | None:
    locks.create(connection, checkfirst=True)
    row = connection.execute(select(locks).where(locks.c.dataset == dataset)).one_or_none()
    return None if row is None else {"owner": json.loads(row.owner), "since": row.since}


def _words(dataset: str, holder: dict[str, Any]) -> str:
    owner = holder["owner"]
    return (
        f"Expected no other retraining of {dataset!r}, got process {owner['pid']} on {owner['host']}, which holds its "
        f"lock since {holder['since']}; nothing was spent. Wait for it (schedule.wait_minutes); where that machine is "
        "gone for good, use `dpflows retrain --unlock`."
    )
