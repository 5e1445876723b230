"""What people ask a ledger: what was promised, what is left, what ran. Plain values, ready for JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from dpcore.accounting.conversion import epsilon_of
from dpcore.accounting.events import Events
from dpcore.accounting.orders import ORDERS
from dpcore.errors import InputError
from tasks.ledger import chain, schema
from tasks.ledger.orders import UNIT
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import Dataset, Record

STATES = ("reserved", *schema.CLOSING)


def promise(dataset: Dataset) -> dict[str, Any]:
    """Return the whole guarantee of a data set."""
    return {
        "dataset": dataset.name,
        "limited": dataset.limited,
        "epsilon": dataset.epsilon,
        "delta": dataset.delta,
        "unit": dataset.unit,
        "adjacency": None if dataset.adjacency is None else str(dataset.adjacency),
        "accountant": "rdp filter at one order",
        "conversion": dataset.conversion,
        "order": dataset.order,
        "budget": dataset.budget,
        "divided_by": dataset.blocks.words(),
        "bounds": dataset.blocks.covers(dataset.unit),
        "opened_at": dataset.opened_at,
    }


def remaining(ledger: LedgerReader, name: str, blocks: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what is left at the order, in all touched blocks or in those asked for, and the least of them.

    ``fits_epsilon`` is the largest epsilon, at the data set's delta, of one run of Gaussian releases without sampling
    that would still be admitted; sampled runs differ a little, `dpflows plan` prices them.
    """
    dataset = ledger.dataset(name)
    report = promise(dataset)
    if not dataset.limited:
        return report | {"left": None, "share_left": None, "fits_epsilon": None, "blocks": []}
    assert dataset.budget is not None
    charged = None if blocks is None else dataset.blocks.charged(blocks, dataset.unit)
    spent = ledger.spent(name, charged)
    lefts = {block: dataset.left(units) for block, units in spent.items()}
    rows = [
        {"block": block, "spent": spent[block] / UNIT, "left": left, "share_left": left / dataset.budget}
        for block, left in lefts.items()
    ]
    left = min(lefts.values(), default=dataset.budget)
    share = left / dataset.budget
    return report | {"left": left, "share_left": share, "fits_epsilon": _fits(dataset, left), "blocks": rows}


def _fits(dataset: Dataset, left: float) -> float:
    """Return the epsilon of a Gaussian run that costs ``left`` at the order: its curve is left * a / order."""
    assert dataset.order is not None and dataset.delta is not None
    return epsilon_of(ORDERS * (left / dataset.order), dataset.delta, dataset.conversion)


def overview(ledger: LedgerReader) -> list[dict[str, Any]]:
    """Return one row for each data set: guarantee, what its fullest block has left, entries by state."""
    rows = []
    counts = _counts(ledger)
    for dataset in ledger.datasets():
        report = remaining(ledger, dataset.name)
        blocks = report.pop("blocks")
        rows.append(
            report | {"blocks_touched": len(blocks), "entries": counts.get(dataset.name, dict.fromkeys(STATES, 0))}
        )
    return rows


def _counts(ledger: LedgerReader) -> dict[str, dict[str, int]]:
    table = schema.records
    grouped = select(table.c.dataset, table.c.kind, func.count()).group_by(table.c.dataset, table.c.kind)
    found: dict[str, Counter[str]] = {}
    with ledger.store.reading() as connection:
        for dataset, kind, number in connection.execute(grouped) if connection is not None else ():
            found.setdefault(dataset, Counter())[kind] = number
    for counter in found.values():
        # what is open: reserved once and not closed
        counter["reserved"] -= sum(counter[kind] for kind in schema.CLOSING)
    return {dataset: {state: counter[state] for state in STATES} for dataset, counter in found.items()}


def detail(ledger: LedgerReader, name: str, last: int = 20) -> dict[str, Any]:
    """Return ``remaining`` with the realised epsilon of each block (a diagnostic) and the ``last`` entries."""
    report = remaining(ledger, name)
    everything = entries(ledger, name)
    realised = realised_epsilon(ledger, name, everything)
    for row in report["blocks"]:
        row["realised_epsilon"] = realised.get(row["block"], 0.0)
    return report | {"entry_count": len(everything), "entries": everything[-last:] if last else []}


def entries(ledger: LedgerReader, name: str, block: str | None = None) -> list[dict[str, Any]]:
    """Return all entries of a data set, oldest first, with their present states; ``block``: those that read it."""
    found: dict[str, dict[str, Any]] = {}
    with ledger.store.reading() as connection:
        for record in _records(connection, name):
            body = json.loads(record.body)
            if record.kind == "reserved":
                fields = ("cost", "releases", "unit", "adjacency", "read", "blocks", "events", "hashes")
                first = {"entry": record.entry, "state": "reserved", "at": record.created_at, "period": record.period}
                found[record.entry] = first | {field: body[field] for field in fields}
            elif record.kind in schema.CLOSING and record.entry in found:
                entry = found[record.entry]
                entry |= {"state": record.kind, "closed_at": record.created_at, "reason": body.get("reason")}
                entry["hashes"] |= body.get("hashes", {})
    return [entry for entry in found.values() if block is None or block in entry["read"] or entry["read"] == ["all"]]


def entry(ledger: LedgerReader, entry_id: str) -> dict[str, Any]:
    """Return one entry with its state, its hashes and the text of its mechanisms: what an audit compares.

    Raises InputError when the ledger has no such entry.
    """
    with ledger.store.reading() as connection:
        found = chain.history(connection, entry_id) if connection is not None else []
        if not found:
            raise InputError(
                f"Expected an entry of the ledger {ledger.store.shown}, got {entry_id!r}, which it lacks; check "
                f"that it is the ledger that the run was charged to."
            )
        body = json.loads(found[0].body)
        text = chain.events_text(connection, body["events"]) if connection is not None else None
    hashes = {name: value for record in found for name, value in json.loads(record.body).get("hashes", {}).items()}
    return {
        "entry": entry_id,
        "dataset": found[0].dataset,
        "state": [record.kind for record in found if record.kind != schema.DRAWN][-1],
        "head": found[-1].hash,
        "hashes": hashes | {"events": body["events"]},
        "events": text,
        **{field: body[field] for field in ("cost", "releases", "unit", "adjacency", "read", "blocks")},
    }


def _records(connection: Connection | None, name: str) -> list[Record]:
    if connection is None:
        return []
    table = schema.records
    rows = connection.execute(select(table).where(table.c.dataset == name).order_by(table.c.seq))
    return [Record(*row) for row in rows]


def realised_epsilon(ledger: LedgerReader, name: str, known: list[dict[str, Any]] | None = None) -> dict[str, float]:
    """Return, for each touched block, the conversion of the sum of all charged curves at its best order.
    ``known`` spares the reading of ``entries(ledger, name)``.

    A diagnostic: runs were chosen by people who saw earlier results, so the guarantee is the target, not this number.
    """
    dataset = ledger.dataset(name)
    if not dataset.limited:
        return {}
    assert dataset.delta is not None
    mixes: dict[str, Counter[tuple[str, str]]] = {}
    for entry in known if known is not None else entries(ledger, name):
        if entry["state"] != "cancelled":
            for block in entry["blocks"]:
                mixes.setdefault(block, Counter())[entry["events"], entry["adjacency"]] += 1
    with ledger.store.reading() as connection:
        assert connection is not None
        curves = {key: _curve(connection, *key) for mix in mixes.values() for key in mix}
    totals = {block: sum(count * curves[key] for key, count in mix.items()) for block, mix in mixes.items()}
    return {block: epsilon_of(np.asarray(total), dataset.delta, dataset.conversion) for block, total in totals.items()}


def _curve(connection: Connection, digest: str, adjacency: str) -> Any:
    return Events.from_json(chain.events_text(connection, digest) or "").price(adjacency)
