"""Replay of a ledger: hashes, states, prices and totals, computed again from the records alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from time import perf_counter
from typing import Any

from sqlalchemy import Connection, select

from dpcore.accounting.events import Events
from dpcore.accounting.limits import Room
from dpcore.errors import DPFlowsError
from dpcore.problem import Adjacency
from tasks.ledger import chain, schema
from tasks.ledger.facts import RowFacts, carried
from tasks.ledger.records import (
    FILTERS,
    GENESIS,
    Dataset,
    Record,
    choose_order,
    cost_units,
    priced_under,
)
from tasks.ledger.witness import given_back

SHOWN = 20
"""Problems beyond these are counted, not listed."""

PRICE_TOLERANCE = 1e-9
"""A price may differ by rounding between versions of the numerical libraries; it is then noted, not
refused.
"""


@dataclass
class Verification:
    """What a replay found. ``ok`` means that no problem was found and that ``head`` (if asked for)
    is in the chain.
    """

    records: int = 0
    entries: int = 0
    mechanism_lists: int = 0
    head: str = ""
    head_found_at: int | None = None
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unkept: str = ""  # what is said of a head file that is gone
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.problem_count == 0

    def problem(self, words: str) -> None:
        """Count a problem, and keep its words while there are few."""
        self.problem_count += 1
        if len(self.problems) < SHOWN:
            self.problems.append(words)


Balance = tuple[str, str, int, int, int]  # dataset, block, ordinal, seq, units


def verify(connection: Connection | None, head: str | None = None) -> Verification:
    """Replay the ledger behind ``connection`` (None: no ledger yet)."""
    if connection is None:
        return replay([], lambda digest: None, [], head)

    def text_of(digest: str) -> str | None:
        return chain.events_text(connection, digest)

    streamed = connection.execution_options(yield_per=2000)
    records = streamed.execute(select(schema.records).order_by(schema.records.c.seq))
    table = schema.balances
    balances = streamed.execute(
        select(
            table.c.dataset, table.c.block, table.c.ordinal, table.c.seq, table.c.units
        ).order_by(table.c.seq)
    )
    report = replay(
        (Record(*row) for row in records), text_of, (tuple(row) for row in balances), head
    )
    for problem in schema.faults_of_file(connection, SHOWN):
        report.problem(problem)
    return report


def replay(
    records: Iterable[Record],
    text_of: Callable[[str], str | None],
    balances: Iterable[Balance] | None,
    head: str | None = None,
) -> Verification:
    """Replay records in order. ``balances`` None: totals are recomputed, but there is no stored
    table to compare.
    """
    started = perf_counter()
    head = head.strip().lower() if head else None  # as a person copied it
    run = _Replay(text_of, None if balances is None else iter(balances))
    for record in records:
        run.take(record, head)
    return run.finish(head, perf_counter() - started)


class _Replay:
    def __init__(
        self, text_of: Callable[[str], str | None], balances: Iterator[Balance] | None
    ) -> None:
        self.report = Verification()
        self.last = GENESIS
        self.datasets: dict[str, Dataset] = {}
        self.entries: dict[str, tuple[str, dict[str, Any]]] = {}
        self.payers: dict[str, str] = {}  # the data set of each entry
        self.draws: dict[str, int] = {}
        self.totals: dict[tuple[str, str], tuple[int, int]] = {}
        # what was spent before facts were fixed, of each data set
        self.before: dict[str, dict[str, int]] = {}
        self.balances = balances
        self.next_balance = next(balances, None) if balances is not None else None
        self.rounded = 0
        self.lists: set[tuple[str, str]] = set()
        self.silent = 0
        self.events = lru_cache(maxsize=256)(_reader(text_of))
        self.cost = lru_cache(maxsize=None)(
            lambda digest, adjacency, order: Room(order, 0.0, adjacency).cost(self.events(digest))
        )

    def take(self, record: Record, head: str | None) -> None:
        try:
            self._link(record, head)
            self._meaning(record)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            DPFlowsError,
        ) as error:
            self.report.problem(
                f"record {record.seq}: cannot be read ({type(error).__name__}: {error})"
            )

    def _link(self, record: Record, head: str | None) -> None:
        report = self.report
        report.records += 1
        if record.seq != report.records:
            report.problem(
                f"record {record.seq}: expected number {report.records}; a record is missing or "
                "was added"
            )
            report.records = int(record.seq)
        if record.previous != self.last:
            report.problem(f"record {record.seq}: the hash of the record before it does not match")
        self.last = record.hash
        if record.hash != record.expected_hash():
            report.problem(f"record {record.seq}: its content does not give its hash")
        if head and record.hash.startswith(head):
            report.head_found_at = record.seq

    def _meaning(self, record: Record) -> None:
        body = json.loads(record.body)
        if record.kind == "opened":
            self._opened(record)
        elif record.kind == chain.FIXED:
            self._fixed(record, body)
        elif record.kind == "reserved":
            self._reserved(record, body)
        elif record.kind == schema.DRAWN:
            self._drawn(record)
        elif record.kind in schema.CLOSING:
            self._closed(record)
        else:
            self.report.problem(f"record {record.seq}: unknown kind {record.kind!r}")

    def _opened(self, record: Record) -> None:
        dataset = Dataset.from_record(record)
        if dataset.name in self.datasets:
            self.report.problem(f"record {record.seq}: {dataset.name!r} is opened a second time")
            return
        if dataset.limited:
            assert dataset.epsilon is not None and dataset.delta is not None
            if dataset.filter not in FILTERS or (dataset.order is None) != (
                dataset.filter == "gdp"
            ):
                self.report.problem(
                    f"record {record.seq}: filter {dataset.filter!r} of {dataset.name!r} does not "
                    f"go with order {dataset.order}"
                )
                return
            _, budget = choose_order(
                dataset.epsilon,
                dataset.delta,
                dataset.conversion,
                dataset.order,
                dataset.filter,
            )
            if not _close(budget, dataset.budget):
                self.report.problem(
                    f"record {record.seq}: budget {dataset.budget} of {dataset.name!r} should be "
                    f"{budget}"
                )
        self._of_opening(record, dataset, dataset.facts)
        self.datasets[dataset.name] = dataset

    def _fixed(self, record: Record, body: dict[str, Any]) -> None:
        """Facts are fixed once, for data that were opened by name alone."""
        dataset = self.datasets[record.dataset]
        if dataset.facts is not None:
            self.report.problem(
                f"record {record.seq}: what maps rows of {dataset.name!r} is fixed a second time"
            )
            return
        facts = RowFacts.from_dict(body["facts"])
        self._of_opening(record, dataset, facts)
        self.datasets[dataset.name] = replace(dataset, facts=facts)
        self.before[dataset.name] = {
            block: spent
            for (name, block), (_, spent) in self.totals.items()
            if name == dataset.name
        }

    def _of_opening(self, record: Record, dataset: Dataset, facts: RowFacts | None) -> None:
        """Facts are of the unit and the division with which the data set was opened."""
        if (
            facts is not None
            and dataset.limited
            and (wrong := facts.other_than(dataset.unit, dataset.blocks))
        ):
            self.report.problem(
                f"record {record.seq}: maps rows otherwise than it was opened ({wrong})"
            )

    def _same_rows(self, record: Record, dataset: Dataset, stated: dict[str, Any] | None) -> None:
        """An entry states the facts that were fixed; those of older versions state none."""
        if not dataset.limited:
            return
        if stated is None:
            self.silent += dataset.facts is not None and not RowFacts.follow(
                dataset.unit, dataset.blocks
            )
        elif dataset.facts is None:
            self.report.problem(
                f"record {record.seq}: states what maps its rows, which nothing fixed before"
            )
        elif changed := dataset.facts.differences(RowFacts.from_dict(stated)):
            self.report.problem(
                f"record {record.seq}: maps rows otherwise than was fixed ({'; '.join(changed)})"
            )

    def _reserved(self, record: Record, body: dict[str, Any]) -> None:
        self.report.entries += 1
        dataset = self.datasets[record.dataset]
        if record.entry in self.entries:
            self.report.problem(
                f"record {record.seq}: entry {record.entry} is reserved a second time"
            )
        self.entries[record.entry] = ("reserved", body)
        self.payers[record.entry] = record.dataset
        self._same_rows(record, dataset, body.get("facts"))
        events = self.events(body["events"])
        self.lists.add((body["events"], Adjacency(body["adjacency"])))
        relation = priced_under(dataset, events) if dataset.limited else events.adjacency
        if (body["adjacency"], body.get("unit", events.unit)) != (str(relation), events.unit):
            self.report.problem(
                f"record {record.seq}: charged for one {body.get('unit')} under "
                f"{body['adjacency']}, but its mechanisms are for one {events.unit} and the budget "
                f"takes them under {relation}"
            )
        if not dataset.limited:
            return
        cost = self.cost(body["events"], body["adjacency"], dataset.order)
        if not _close(cost, body["cost"]) or body["units"] != cost_units(body["cost"]):
            self.report.problem(
                f"record {record.seq}: charged {body['cost']}, but its mechanisms cost {cost}"
            )
        self.rounded += cost != body["cost"]
        if tuple(body["blocks"]) != dataset.blocks.charged(body["read"], dataset.unit):
            self.report.problem(f"record {record.seq}: charged on other blocks than those it read")
        # Older versions, which stated no facts, charged a run on all rows to a block of that name.
        if (
            "facts" in body
            and (name := dataset.blocks.unnamed(body["blocks"], dataset.unit)) is not None
        ):
            self.report.problem(
                f"record {record.seq}: charged on {name!r}, which is no block of {dataset.name!r}"
            )
        self._move(record, body["blocks"], body["units"])

    def _own(self, record: Record) -> None:
        """A record of an entry is of the data set that was charged: another one's budget is not its
        to give back.
        """
        if record.dataset != (payer := self.payers[record.entry]):
            self.report.problem(
                f"record {record.seq}: {record.kind} for {record.dataset!r}, but entry "
                f"{record.entry} is of {payer!r}"
            )

    def _drawn(self, record: Record) -> None:
        self._own(record)
        state, _ = self.entries[record.entry]
        if state != "reserved" or record.entry in self.draws:
            self.report.problem(
                f"record {record.seq}: a first draw of entry {record.entry}, which is {state} "
                "already"
            )
        self.draws.setdefault(record.entry, record.seq)

    def _closed(self, record: Record) -> None:
        self._own(record)
        state, body = self.entries[record.entry]
        if state != "reserved":
            self.report.problem(f"record {record.seq}: entry {record.entry} is {state} already")
            return
        self.entries[record.entry] = (record.kind, body)
        if record.kind == "cancelled":
            if drawn := self.draws.get(record.entry):
                self.report.problem(given_back(record, drawn))
            self._move(record, body["blocks"], -body["units"])

    def _move(self, record: Record, blocks: list[str], units: int) -> None:
        if not units:
            return
        dataset = self.datasets[record.dataset]
        before = self.before.get(dataset.name, {})
        expected = []
        for block in blocks:
            ordinal, spent = self.totals.get((record.dataset, block), (0, 0))
            spent += units
            self.totals[record.dataset, block] = (ordinal + 1, spent)
            expected.append((record.dataset, block, ordinal + 1, record.seq, spent))
            more = carried(dataset.blocks, dataset.facts, before, block) if before else 0
            if units > 0 and spent + more > dataset.limit:
                self.report.problem(
                    f"record {record.seq}: block {block} of {record.dataset!r} is above its budget"
                )
        if self.balances is not None and sorted(self._stored(record.seq)) != sorted(expected):
            self.report.problem(
                f"record {record.seq}: the stored totals differ from the sum of the records"
            )

    def _stored(self, seq: int) -> Iterator[Balance]:
        assert self.balances is not None
        while self.next_balance is not None and self.next_balance[3] <= seq:
            yield self.next_balance
            self.next_balance = next(self.balances, None)

    def finish(self, head: str | None, seconds: float) -> Verification:
        report = self.report
        if self.next_balance is not None:
            report.problem("totals are stored after the last record that moves any")
        if head and report.head_found_at is None:
            report.problem(
                f"the head {head} is not in the chain: records were removed or rewritten, or it is "
                "another ledger"
            )
        if self.rounded:
            report.notes.append(
                f"{self.rounded} prices differ from the stored ones by rounding below "
                f"{PRICE_TOLERANCE:g}"
            )
        if self.silent:
            report.notes.append(
                f"{self.silent} entries do not state what maps their rows, though it was fixed "
                "before: they are of an older version"
            )
        still_open = sum(state == "reserved" for state, _ in self.entries.values())
        if still_open:
            report.notes.append(
                f"{still_open} entries are reserved and not closed; they are charged in full"
            )
        report.mechanism_lists = len(self.lists)
        report.head, report.seconds = self.last if report.records else "", seconds
        return report


def _reader(text_of: Callable[[str], str | None]) -> Callable[[str], Events]:
    def events(digest: str) -> Events:
        text = text_of(digest)
        if text is None or sha256(text.encode()).hexdigest() != digest:
            raise ValueError(f"the mechanisms {digest[:12]} are missing or were changed")
        return Events.from_json(text)

    return events


def _close(value: float, stored: float | None) -> bool:
    return stored is not None and (
        value == stored or abs(value - stored) <= PRICE_TOLERANCE * abs(value)
    )
