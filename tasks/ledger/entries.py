"""The entries of a data set as they are now, what they all cost together, and in what a budget
should count to admit most runs like one: at which Rényi order, or in mu^2.

The order that follows from (epsilon, delta) alone suits full-batch Gaussians. A run on small random
batches with little noise can cost many times the whole budget there and little elsewhere; Gaussian
and pure releases fit best in mu^2. What a data set counts in is fixed when it is opened, so that is
the time to choose, from a plan, which no record was read for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import floor, inf, sqrt
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from dpcore.accounting import gaussian_filter
from dpcore.accounting.curves import ORDERS, epsilon_of, order_budgets
from dpcore.accounting.events import Events
from dpcore.accounting.limits import SLACK
from dpcore.errors import BudgetExceeded, InputError, PriceUnknown
from dpcore.mechanisms import gaussian_epsilon
from tasks.ledger import chain, schema
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import Dataset, Record, price_for, priced_under

# A choice that admits fewer than this many times the runs is not worth another budget.
WORTH = 1.05


def entries(ledger: LedgerReader, name: str, block: str | None = None) -> list[dict[str, Any]]:
    """Return all entries of a data set, oldest first, with their present states; ``block``: those
    that read it.
    """
    found: dict[str, dict[str, Any]] = {}
    with ledger.store.reading() as connection:
        for record in _records(connection, name):
            body = json.loads(record.body)
            if record.kind == "reserved":
                fields = (
                    "cost",
                    "releases",
                    "unit",
                    "adjacency",
                    "read",
                    "blocks",
                    "events",
                    "hashes",
                )
                first = {
                    "entry": record.entry,
                    "state": "reserved",
                    "at": record.created_at,
                    "period": record.period,
                }
                found[record.entry] = first | {field: body[field] for field in fields}
            elif record.kind in schema.CLOSING and record.entry in found:
                entry = found[record.entry]
                entry |= {
                    "state": record.kind,
                    "closed_at": record.created_at,
                    "reason": body.get("reason"),
                }
                entry["hashes"] |= body.get("hashes", {})
    return [
        entry
        for entry in found.values()
        if block is None or block in entry["read"] or entry["read"] == ["all"]
    ]


def entry(ledger: LedgerReader, entry_id: str) -> dict[str, Any]:
    """Return one entry with its state, its hashes and the text of its mechanisms: what an audit
    compares.

    Raises InputError when the ledger has no such entry.
    """
    with ledger.store.reading() as connection:
        found = chain.history(connection, entry_id) if connection is not None else []
        if not found:
            raise InputError(
                f"Expected an entry of the ledger {ledger.store.shown}, got {entry_id!r}, which it "
                "lacks; check that it is the ledger that the run was charged to."
            )
        body = json.loads(found[0].body)
        text = chain.events_text(connection, body["events"]) if connection is not None else None
    hashes = {
        name: value
        for record in found
        for name, value in json.loads(record.body).get("hashes", {}).items()
    }
    return {
        "entry": entry_id,
        "dataset": found[0].dataset,
        "period": found[0].period,
        "state": [record.kind for record in found if record.kind != schema.DRAWN][-1],
        "head": found[-1].hash,
        "hashes": hashes | {"events": body["events"]},
        "events": text,
        **{
            field: body[field]
            for field in ("cost", "releases", "unit", "adjacency", "read", "blocks")
        },
    }


def _records(connection: Connection | None, name: str) -> list[Record]:
    if connection is None:
        return []
    table = schema.records
    rows = connection.execute(select(table).where(table.c.dataset == name).order_by(table.c.seq))
    return [Record(*row) for row in rows]


def _mixes(charged: Iterable[dict[str, Any]]) -> dict[str, Counter[tuple[str, str]]]:
    """By block, how often each (events, adjacency) was charged to it."""
    mixes: dict[str, Counter[tuple[str, str]]] = {}
    for entry in charged:
        if entry["state"] != "cancelled":
            for block in entry["blocks"]:
                mixes.setdefault(block, Counter())[entry["events"], entry["adjacency"]] += 1
    return mixes


def realised_epsilon(
    ledger: LedgerReader, name: str, known: list[dict[str, Any]] | None = None
) -> dict[str, float]:
    """Return, for each touched block, the conversion of the sum of all charged curves at its best
    order. ``known`` spares the reading of ``entries(ledger, name)``.

    A diagnostic: runs were chosen by people who saw earlier results, so the guarantee is the
    target, not this number.
    """
    dataset = ledger.dataset(name)
    if not dataset.limited:
        return {}
    assert dataset.delta is not None
    if dataset.order is None:
        return _realised_by_mu(dataset.delta, known or entries(ledger, name))
    mixes = _mixes(known if known is not None else entries(ledger, name))
    with ledger.store.reading() as connection:
        assert connection is not None
        curves = {key: _curve(connection, *key) for key in set().union(*mixes.values())}
    realised = {}
    for block, mix in mixes.items():
        total = sum(count * curves[key] for key, count in mix.items())
        realised[block] = epsilon_of(np.asarray(total), dataset.delta, dataset.conversion)
    return realised


def _realised_by_mu(delta: float, charged: list[dict[str, Any]]) -> dict[str, float]:
    """Return the exact epsilon of the mu^2 that each block has spent."""
    totals: Counter[str] = Counter()
    for entry in charged:
        if entry["state"] != "cancelled":
            totals.update(dict.fromkeys(entry["blocks"], entry["cost"]))
    return {block: gaussian_epsilon(delta, sqrt(total)) for block, total in totals.items()}


def _curve(connection: Connection, digest: str, adjacency: str) -> Any:
    return Events.from_json(chain.events_text(connection, digest) or "").price(adjacency)


@dataclass(frozen=True, slots=True)
class Counting:
    """What one run costs of a budget that counts at ``order`` (None: in mu^2)."""

    order: float | None
    budget: float
    cost: float

    @property
    def runs(self) -> float:
        """How many such runs fill the budget."""
        return self.budget / self.cost if self.cost > 0 else inf

    @property
    def admitted(self) -> int | None:
        """How many such runs fit; None without end."""
        return None if self.runs == inf else floor(self.runs * (1 + SLACK))

    @property
    def option(self) -> str:
        """How ``dpflows ledger init`` is told."""
        return "--filter gdp" if self.order is None else f"--order {self.order:g}"

    def left(self, budget: float) -> int | None:
        """How many such runs fit what is left."""
        return None if self.cost <= 0 else floor(budget / self.cost * (1 + SLACK))


def counting_of(dataset: Dataset, events: Events) -> Counting:
    """Return what ``events`` cost in a data set as it was opened; raises PriceUnknown."""
    assert dataset.budget is not None
    return Counting(dataset.order, dataset.budget, price_for(dataset, events)[1])


def best_counting(dataset: Dataset, events: Events) -> Counting:
    """Return the counting that admits most runs like ``events`` under a data set's promise."""
    return max(_countings(dataset, events), key=lambda one: one.runs)


def _countings(dataset: Dataset, events: Events) -> Iterator[Counting]:
    assert dataset.epsilon is not None and dataset.delta is not None
    adjacency = priced_under(dataset, events)
    with suppress(PriceUnknown):
        cost = gaussian_filter.cost_of(events, adjacency)
        yield Counting(None, gaussian_filter.budget_of(dataset.epsilon, dataset.delta), cost)
    budgets = order_budgets(dataset.epsilon, dataset.delta, dataset.conversion)
    for order, budget, cost in zip(ORDERS, budgets, events.price(adjacency), strict=True):
        if budget > 0:
            yield Counting(float(order), float(budget), float(cost))


@dataclass(frozen=True, slots=True)
class ManyRuns:
    """A limit: so many equal ``runs`` fill a data set's budget, counted as suits them best."""

    dataset: Dataset
    runs: int

    def ratio(self, events: Events) -> float:
        return self.runs / best_counting(self.dataset, events).runs

    def refusal(self, events: Events) -> BudgetExceeded:
        best = best_counting(self.dataset, events)
        return BudgetExceeded(
            f"Expected {self.runs} runs within ({self.dataset.epsilon:g}, {self.dataset.delta:g}), "
            f"but {best.admitted} like this fit at best ({best.option}); raise epsilon, or leave "
            "noise_multiplier to the calibration.",
            asked=float(self.runs),
            left=best.runs,
        )
