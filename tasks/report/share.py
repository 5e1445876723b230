"""The part that a run has in the budget of its data set, as the ledger has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.ledger.reader import LedgerReader
from tasks.ledger.views import entries


@dataclass(frozen=True, slots=True)
class Step:
    """A charged entry: when, and the share of the budget that it costs."""

    at: str
    share: float
    own: bool
    state: str


@dataclass(frozen=True, slots=True)
class Share:
    """Charged entries of ``block``, the fullest one that the run reads, oldest first. ``limited``: it has a budget."""

    dataset: str
    limited: bool
    guarantee: str
    block: str = ""
    steps: Sequence[Step] = ()

    @property
    def before(self) -> float:
        """What was charged before the run's first entry."""
        first = next((k for k, step in enumerate(self.steps) if step.own), len(self.steps))
        return sum(step.share for step in self.steps[:first])

    @property
    def own(self) -> float:
        return sum(step.share for step in self.steps if step.own)

    @property
    def after(self) -> float:
        """What others were charged since."""
        return sum(step.share for step in self.steps) - self.before - self.own

    @property
    def left(self) -> float:
        return max(0.0, 1.0 - sum(step.share for step in self.steps))


def share_of(ledger: LedgerReader, dataset: str, blocks: Iterable[str], own: Iterable[str]) -> Share | None:
    """The share of the entries ``own`` in the fullest of ``blocks``; None where the ledger has no such data set."""
    found = next((one for one in ledger.datasets() if one.name == dataset), None)
    if found is None:
        return None
    if not found.limited or not found.budget:
        return Share(dataset, False, "")
    charged = [entry for entry in entries(ledger, dataset) if entry["state"] != "cancelled"]
    names, mine = list(blocks), set(own)
    touched = {block for entry in charged if entry["entry"] in mine for block in entry["blocks"]} or set(names)
    totals = {block: sum(_cost(entry) for entry in charged if block in entry["blocks"]) for block in sorted(touched)}
    if not totals:
        return None
    block = max(totals, key=lambda name: totals[name])
    steps = [
        Step(entry["at"], _cost(entry) / found.budget, entry["entry"] in mine, entry["state"])
        for entry in charged
        if block in entry["blocks"]
    ]
    return Share(dataset, True, found.guarantee(), block, steps)


def _cost(entry: Mapping[str, Any]) -> float:
    return float(entry["cost"])
