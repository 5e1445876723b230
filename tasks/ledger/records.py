"""Records of the hash chain and the data sets that they open, as plain values.

The one Rényi order of a data set, its budget at that order, and exact counting in whole units.

Admission is a filter: whoever asks for the next run has seen the models before it, so the order
must not follow from what was spent. With one order a fixed in advance, keeping the sum of all costs
at a below B(a) makes everything released (a, B(a))-RDP (Feldman & Zrnic 2021, Theorem 3.1; Lécuyer
2021), which converts once to (epsilon, delta).

Which runs a budget takes, and under which adjacency it prices them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np

from dpcore.accounting import gaussian_filter
from dpcore.accounting.curves import order_budget, order_budgets
from dpcore.accounting.events import Events
from dpcore.accounting.limits import SLACK, Room, order_index
from dpcore.errors import AssumptionNotMet, InputError, PriceUnknown
from dpcore.problem import Adjacency
from tasks.ledger.blocks import Blocks
from tasks.ledger.facts import RowFacts

UNIT = 2**40
"""Costs are counted in whole numbers of 1/UNIT, so sums are exact and do not depend on their order.
"""

LARGEST = 2.0**20
"""Budgets and costs at or above this are refused: their units would not fit a database integer."""


def choose_order(
    epsilon: float,
    delta: float,
    conversion: str = "cks",
    order: float | None = None,
    filter: str = "rdp",
) -> tuple[float | None, float]:
    """Return (a, B(a)) with a = argmax B(a)/a over the grid, or at the declared ``order``; for
    filter gdp (None, the largest mu^2).

    All depend on (epsilon, delta, conversion) alone. Raises InputError where no budget is positive,
    for an order off the grid, and for an epsilon too large to be counted.
    """
    if epsilon >= LARGEST / 2:
        raise InputError(
            f"Expected epsilon < {LARGEST / 2:.0f}, got epsilon={epsilon!r}; that bounds nothing."
        )
    if filter == "gdp":
        if order is not None:
            raise InputError(
                f"Expected no order with filter=gdp, which counts mu^2, got order={order!r}; leave "
                "one of them out."
            )
        return None, gaussian_filter.budget_of(epsilon, delta)
    if order is None:
        return order_budget(epsilon, delta, conversion)
    budget = float(order_budgets(epsilon, delta, conversion)[order_index(order)])
    if budget <= 0:
        raise InputError(
            f"Expected an order that can state epsilon={epsilon!r} at delta={delta!r}, got "
            f"order={order!r}, whose budget is {budget:.4g}; declare a larger order, or leave it "
            "out."
        )
    return float(order), budget


def cost_units(cost: float) -> int:
    """Return a cost in whole units, rounded up. Raises InputError for one that is negative,
    infinite or too large.
    """
    if not (0 <= cost < LARGEST):
        raise InputError(
            f"Expected a cost in [0, {LARGEST:.0f}), got cost={cost!r}; a ledger cannot hold it."
        )
    return ceil(cost * UNIT)  # exact: UNIT is a power of two


@lru_cache(maxsize=1024)
def limit_units(budget: float) -> int:
    """Return the most units that may be spent of ``budget``, with the rounding slack of 1e-9."""
    return floor(Fraction(budget) * UNIT * (1 + Fraction(SLACK)))


def left_of(budget: float, spent: int) -> float:
    """Return what is left of ``budget`` after ``spent`` units, as a float that rounding never
    enlarges.
    """
    exact = max(Fraction(0), Fraction(budget) - Fraction(spent, UNIT))
    value = float(exact)
    return value if Fraction(value) <= exact else float(np.nextafter(value, 0.0))


GENESIS = sha256(b"dpflows ledger 1").hexdigest()
"""What the first record names as the hash before it."""

OF = "of"
"""Under which name the entry of a number about a model holds the hash of the model's weights."""

# How a data set counts: prices at one Rényi order, or mu^2 of Gaussian and pure releases.
FILTERS = ("rdp", "gdp")

UNITS = ("record", "user", "session", "session_labels")


class Record(NamedTuple):
    """One row of the chain. ``hash`` is the SHA-256 of the canonical JSON list of all fields before
    it.
    """

    seq: int
    kind: str
    dataset: str
    entry: str
    period: str | None
    fingerprint: str | None
    created_at: str
    body: str
    previous: str
    hash: str

    def expected_hash(self) -> str:
        """Return the hash that the other fields give."""
        return sha256(canonical(list(self[:-1])).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def next_record(
    before: tuple[int, str] | None,
    kind: str,
    dataset: str,
    body: dict[str, Any],
    entry: str = "",
    period: str | None = None,
    fingerprint: str | None = None,
) -> Record:
    """Return the record that follows ``before`` = (seq, hash), or the first one."""
    seq, previous = (before[0] + 1, before[1]) if before else (1, GENESIS)
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    open_record = Record(
        seq, kind, dataset, entry, period, fingerprint, now, canonical(body), previous, ""
    )
    return open_record._replace(hash=open_record.expected_hash())


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set as it was opened: its guarantee, its one order and the budget there, and its
    blocks.

    Public data that were opened on the fly have no ``epsilon``: the ledger records their runs and
    admits them all. ``facts`` says what maps a row to its unit and block; None for data that were
    opened by name alone.
    """

    name: str
    epsilon: float | None
    delta: float | None
    adjacency: Adjacency | None
    unit: str
    conversion: str
    order: float | None
    budget: float | None
    blocks: Blocks
    opened_at: str = ""
    facts: RowFacts | None = None
    filter: str = "rdp"

    @property
    def limited(self) -> bool:
        return self.budget is not None

    @property
    def limit(self) -> int:
        """The most units that a block may have spent."""
        assert self.budget is not None
        return limit_units(self.budget)

    def left(self, spent: int) -> float:
        """Return what a block that has spent ``spent`` units has left at the order."""
        assert self.budget is not None
        return left_of(self.budget, spent)

    def admits(self, spent: int, cost: float) -> bool:
        """Return whether a block that has spent ``spent`` units can pay ``cost`` at the order."""
        return cost < LARGEST and spent + cost_units(cost) <= self.limit

    def has_room(self, spent: int, cost: float) -> bool:
        """Return whether such a block has anything left, and can pay ``cost``."""
        return self.left(spent) > 0 and self.admits(spent, cost)

    def require_delta(self, n: int | None) -> None:
        """Raise InputError where publishing one of ``n`` units would satisfy the promise (None: n
        is not known).
        """
        if n is None or self.delta is None or self.delta < 1.0 / n:
            return
        raise InputError(
            f"Expected fewer than 1/delta={1.0 / self.delta:.6g} units of {self.name!r}, whose "
            f"budget was opened with delta={self.delta:g}, got the public n={n}: publishing one of "
            "them at random would satisfy the promise. Put public.n back, or read fewer blocks; a "
            "budget is never changed."
        )

    def cost(self, events: Events, adjacency: Adjacency) -> float:
        """Return what ``events`` are charged under ``adjacency``; raises PriceUnknown."""
        assert self.adjacency is not None
        return Room(self.order, 0.0, adjacency).cost(events)

    @property
    def counting(self) -> str:
        """Return in words where the budget counts."""
        return "in mu^2" if self.order is None else f"at its order {self.order:g}"

    def guarantee(self) -> str:
        """Return the whole guarantee in one line."""
        if not self.limited:
            return "public data: runs are recorded, none is refused"
        counted = (
            f"gdp filter, mu^2 at most {self.budget:.6g}"
            if self.order is None
            else f"RDP filter at order {self.order:g}, budget {self.budget:.6g}, {self.conversion}"
        )
        return (
            f"({self.epsilon:g}, {self.delta:g})-DP per {self.unit} under {self.adjacency} in "
            f"every block ({counted})"
        )

    def to_body(self) -> dict[str, Any]:
        """Return what the opening record stores."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": None if self.adjacency is None else str(self.adjacency),
            "unit": self.unit,
            "conversion": self.conversion,
            "order": self.order,
            "budget": self.budget,
            "blocks": self.blocks.to_dict(),
            **({} if self.facts is None else {"facts": self.facts.to_dict()}),
            **({} if self.filter == "rdp" else {"filter": self.filter}),
        }

    @classmethod
    def from_record(cls, record: Record) -> Dataset:
        """Return the data set that an opening record stores."""
        body = json.loads(record.body)
        adjacency = None if body["adjacency"] is None else Adjacency(body["adjacency"])
        blocks = Blocks.from_dict(body["blocks"])
        fields = {
            key: body[key] for key in ("epsilon", "delta", "unit", "conversion", "order", "budget")
        }
        facts = RowFacts.from_dict(body["facts"]) if "facts" in body else None
        found = {
            "adjacency": adjacency,
            "blocks": blocks,
            "facts": facts,
            "filter": body.get("filter", "rdp"),
            **fields,
        }
        return cls(name=record.dataset, opened_at=record.created_at, **found)


def priced_under(dataset: Dataset, events: Events) -> Adjacency:
    """Return the adjacency under which ``events`` are charged to ``dataset``; raises
    AssumptionNotMet where refused.

    ============================
    ========================================================================== budget
        takes
    ============================
    ========================================================================== add_remove
        add_remove
    replace_one                   replace_one; add_remove, re-priced (2C, two-sided selection, Lemma
        2.3 at 2C)
    replace_labels                replace_labels; a session-level run at its replace-one price
    unit record, user, session    the same unit
    unit session_labels           session_labels; session
    ============================
    ==========================================================================
    """
    budget, run = dataset.adjacency, events.adjacency
    assert budget is not None
    whole_session = dataset.unit == "session_labels" and events.unit == "session"
    if events.unit != dataset.unit and not whole_session:
        raise AssumptionNotMet(
            f"Expected a run whose unit is {dataset.unit!r} for the budget of {dataset.name!r}, "
            f"got unit={events.unit!r}; {_unit_way_out(dataset.unit, events.unit)}"
        )
    if whole_session:
        return Adjacency.REPLACE_ONE
    if budget == Adjacency.ADD_REMOVE and run != Adjacency.ADD_REMOVE:
        raise AssumptionNotMet(
            f"Expected a run proved for add_remove for the budget of {dataset.name!r}, got "
            f"adjacency={run}; use an algorithm with an add_remove proof (dp_sgd with Poisson "
            "batches); a budget keeps its relation."
        )
    if budget == Adjacency.REPLACE_ONE and run == Adjacency.REPLACE_LABELS:
        raise AssumptionNotMet(
            f"Expected a run that protects whole records for the budget of {dataset.name!r}, got "
            f"adjacency={run}; train with adjacency=replace_one; a budget keeps its relation."
        )
    return budget


def price_for(dataset: Dataset, events: Events) -> tuple[Adjacency, float]:
    """Return (adjacency, cost) of ``events`` as ``dataset`` is charged for them."""
    adjacency = priced_under(dataset, events)
    try:
        return adjacency, dataset.cost(events, adjacency)
    except PriceUnknown as error:
        raise PriceUnknown(
            f"The budget of {dataset.name!r} ({adjacency}) has no price for this run: {error}"
        ) from error


def _unit_way_out(budget: str, run: str) -> str:
    if (budget, run) == ("session", "session_labels"):
        return (
            "a budget for whole sessions is not covered by a proof about labels: train with "
            "unit='session'."
        )
    return f"train with unit={budget!r}: put it back in the data schema; a budget keeps its unit."
