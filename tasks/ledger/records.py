"""Records of the hash chain and the data sets that they open, as plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from dpcore.errors import InputError
from dpcore.problem import Adjacency
from tasks.ledger.blocks import Blocks
from tasks.ledger.facts import RowFacts
from tasks.ledger.orders import LARGEST, cost_units, left_of, limit_units

GENESIS = sha256(b"dpflows ledger 1").hexdigest()
"""What the first record names as the hash before it."""

UNITS = ("record", "user", "session", "session_labels")


class Record(NamedTuple):
    """One row of the chain. ``hash`` is the SHA-256 of the canonical JSON list of all fields before it."""

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
    open_record = Record(seq, kind, dataset, entry, period, fingerprint, now, canonical(body), previous, "")
    return open_record._replace(hash=open_record.expected_hash())


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set as it was opened: its guarantee, its one order and the budget there, and its blocks.

    Public data that were opened on the fly have no ``epsilon``: the ledger records their runs and admits them all.
    ``facts`` says what maps a row to its unit and block; None for data that were opened by name alone.
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

    def require_delta(self, n: int | None) -> None:
        """Raise InputError where publishing one of ``n`` units would satisfy the promise (None: n is not known)."""
        if n is None or self.delta is None or self.delta < 1.0 / n:
            return
        raise InputError(
            f"Expected fewer than 1/delta={1.0 / self.delta:.6g} units of {self.name!r}, whose budget was opened with "
            f"delta={self.delta:g}, got the public n={n}: publishing one of them at random would satisfy the promise. "
            "Put public.n back, or read fewer blocks; a budget is never changed."
        )

    def guarantee(self) -> str:
        """Return the whole guarantee in one line."""
        if not self.limited:
            return "public data: runs are recorded, none is refused"
        return (
            f"({self.epsilon:g}, {self.delta:g})-DP per {self.unit} under {self.adjacency} in every block (RDP filter "
            f"at order {self.order:g}, budget {self.budget:.6g}, {self.conversion})"
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
        }

    @classmethod
    def from_record(cls, record: Record) -> Dataset:
        """Return the data set that an opening record stores."""
        body = json.loads(record.body)
        adjacency = None if body["adjacency"] is None else Adjacency(body["adjacency"])
        blocks = Blocks.from_dict(body["blocks"])
        fields = {key: body[key] for key in ("epsilon", "delta", "unit", "conversion", "order", "budget")}
        facts = RowFacts.from_dict(body["facts"]) if "facts" in body else None
        found = {"adjacency": adjacency, "blocks": blocks, "facts": facts, **fields}
        return cls(name=record.dataset, opened_at=record.created_at, **found)
