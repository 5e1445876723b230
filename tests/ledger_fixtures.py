"""Ledgers for tests whose matter is the budget, not what a schema declares about rows."""

from __future__ import annotations

from typing import Any

from dpcore.accounting import Events
from dpcore.identity import IDENTITY_RULE
from tasks.ledger import Blocks, Ledger, Reservation, RowFacts
from tasks.ledger.records import Dataset


def facts_of(blocks: Blocks, unit: str = "record") -> RowFacts:
    """What a plain schema of such data declares."""
    by_id = {"user": blocks.user_column, "session": "query", "session_labels": "query"}.get(unit)
    if unit == "record" and blocks.by == "one":
        return RowFacts(unit)
    by = None if blocks.by == "one" else blocks.by
    return RowFacts(unit, by_id, IDENTITY_RULE, True, None, blocks.column, by, blocks.count)


class DeclaredLedger(Ledger):
    """Every charge states the facts of a plain schema where the test gives none."""

    def reserve(self, dataset: str, events: Events, *rest: Any, **more: Any) -> Reservation:
        known = next((found for found in self.datasets() if found.name == dataset), None)
        if known is not None and known.limited and not RowFacts.follow(known.unit, known.blocks):
            more.setdefault("facts", facts_of(known.blocks, known.unit))
        return super().reserve(dataset, events, *rest, **more)


class OlderLedger(Ledger):
    """Charges without facts, as versions did before there were any."""

    def _require_stated(self, target: Dataset, facts: RowFacts | None) -> None:
        """Nothing was asked."""
