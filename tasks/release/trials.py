"""The charged runs that a release was chosen from, read from the ledger, and what it costs with all
of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import select

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.events import Events
from dpcore.errors import DPFlowsError, InputError, VerificationFailed
from dpcore.problem import Adjacency
from tasks.audit.recompute import close, price_of
from tasks.ledger import Ledger, schema
from tasks.ledger.chain import events_text, history, newest
from tasks.ledger.records import Record
from tasks.record.statement import Statement
from tasks.release.bundle import Problem
from tasks.release.manifest import METRICS, Manifest, Position, Price

# Digits of a hash that a person may give for the whole.
SHORTEST_HEAD = 12


class Trial(NamedTuple):
    """A charged entry: when it was reserved, on which blocks, and what it may have released."""

    seq: int
    entry: str
    blocks: tuple[str, ...]
    events: Events


def charged(ledger: Ledger, dataset: str) -> list[Trial]:
    """All entries of ``dataset`` that were not cancelled, oldest first: failed and open ones
    touched the data too.
    """
    with ledger.store.reading() as connection:
        if connection is None:
            return []
        table = schema.records
        query = select(table).where(
            table.c.dataset == dataset, table.c.kind.in_(("reserved", "cancelled"))
        )
        records = [Record(*row) for row in connection.execute(query.order_by(table.c.seq))]
        cancelled = {record.entry for record in records if record.kind == "cancelled"}
        found = []
        for record in records:
            if record.kind != "reserved" or record.entry in cancelled:
                continue
            body = json.loads(record.body)
            text = events_text(connection, body["events"])
            if text is None:
                raise VerificationFailed(
                    f"The ledger lacks the mechanisms of entry {record.entry}; restore a copy."
                )
            found.append(
                Trial(record.seq, record.entry, tuple(body["blocks"]), Events.from_json(text))
            )
    return found


def search(
    trials: Sequence[Trial], own: Sequence[str], blocks: Sequence[str], since: int
) -> list[Trial]:
    """The trials that the choice of the entries ``own`` may depend on.

    Those after record ``since`` (the last release) that share a block with it, and ``own``
    themselves.
    """
    shared = set(blocks)
    return [
        one for one in trials if one.entry in own or (one.seq > since and shared & set(one.blocks))
    ]


def position(ledger: Ledger) -> tuple[int, str]:
    """Number and hash of the newest record; (0, "") for an empty ledger."""
    with ledger.store.reading() as connection:
        return (connection is not None and newest(connection)) or (0, "")


def require_chain(ledger: Ledger, where: str, stated: Position | None) -> None:
    """Raise ``VerificationFailed`` unless the ledger still holds the head that a release states, at
    its place.
    """
    if stated is None or not stated.seq:
        return
    with ledger.store.reading() as connection:
        table = schema.records
        query = select(table.c.hash).where(table.c.seq == stated.seq)
        found = None if connection is None else connection.scalars(query).one_or_none()
    if found != stated.head:
        raise VerificationFailed(
            f"Expected record {stated.seq} of {ledger.store.shown} to be {stated.head[:16]}..., "
            f"the head that {where} states, got {'none' if found is None else f'{found[:16]}...'}: "
            "records were removed or rewritten, or it is another ledger; restore the newest copy."
        )


def require_head(ledger: Ledger, head: str | None) -> None:
    """Raise ``VerificationFailed`` unless the ledger holds ``head``, and ``InputError`` for what is
    no hash.
    """
    if head is None:
        return
    digits = head.strip().lower()
    if len(digits) < SHORTEST_HEAD or set(digits) - set("0123456789abcdef"):
        raise InputError(
            f"Expected at least {SHORTEST_HEAD} hex digits of a hash for --head, got {head!r}."
        )
    report = ledger.verification(digits)
    if report.head_found_at is None:
        raise VerificationFailed(
            f"Expected the head {digits[:16]}... in {ledger.store.shown}, got a chain without it: "
            "records were removed or rewritten, or it is another ledger; restore the newest copy."
        )


def newest_of(ledger: Ledger, entries: Sequence[str]) -> int:
    """Number of the newest reserving record of ``entries``; 0 where the ledger knows none."""
    with ledger.store.reading() as connection:
        if connection is None:
            return 0
        return max(
            (record.seq for entry in entries for record in history(connection, entry)[:1]),
            default=0,
        )


def search_epsilon(
    trials: Iterable[Events], adjacency: Adjacency | str, delta: float, conversion: str = "cks"
) -> float:
    """Epsilon at ``delta`` of all ``trials`` together: their curves add, and the sum is converted
    once.

    The released model is a function of all of them, so its guarantee is that of the whole list; a
    failed trial and one without a score were run on the records too. Number and settings of the
    trials count as fixed beforehand.
    """
    total = np.zeros(len(ORDERS))
    for events in trials:
        total = total + events.price(adjacency)
    return float(epsilon_of(total, delta, conversion))


def search_problems(
    found: Statement, price: Price, trials: list[Events], whole: float
) -> Iterator[Problem]:
    """The run is among those that it was chosen from, and the price is that of all of them."""
    priced = not list(price_of(found))
    if priced and Events.from_json(json.dumps(found.mechanisms)) not in trials:
        yield "tuning_incomplete", "the run itself is not among the runs behind the release"
    if not close(whole, price.epsilon) or price.delta != found.guarantee.delta:
        yield (
            "release_epsilon",
            f"the release costs epsilon {whole:.6g}, the manifest says {price.epsilon:.6g}",
        )
    if len(trials) != price.trials:
        yield "release_epsilon", f"{len(trials)} runs are listed, the manifest says {price.trials}"


def whole_epsilon(trials: list[Events], found: Statement, manifest: Manifest) -> float:
    """Epsilon of the whole release: that of the statement where it is one run, else of all
    together.
    """
    if len(trials) == 1:
        return found.guarantee.epsilon
    price = manifest.price
    return search_epsilon(trials, price.adjacency, price.delta, price.conversion)


def metric_problems(
    files: Mapping[str, bytes], manifest: Manifest, trials: list[Events]
) -> Iterator[Problem]:
    """Metrics that claim a charged mechanism: listed, equal, and their mechanism among what was
    paid for.
    """
    charged = {one.name: one.value for one in manifest.metrics if one.source == "charged mechanism"}
    if not charged and METRICS not in files:
        return
    try:
        stored = json.loads(files[METRICS])
        events = Events.from_json(json.dumps(stored["mechanisms"]))
        values = {key: float(value) for key, value in stored["values"].items()}
    except (KeyError, ValueError, TypeError, AttributeError, DPFlowsError):
        yield "metrics_unreadable", "the file of the released metrics is missing or cannot be read"
        return
    if events not in trials:
        yield "metric_unpaid", "the mechanism of the released metrics is not in the price"
    for name, value in charged.items():
        if values.get(name) != value:
            yield "metric_changed", f"metric {name} is not the released one"
