"""What a comparison on private rows costs: every cell, all composed, as one list of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from dpcore.accounting.events import Events
from dpcore.accounting.limits import SLACK, Room
from dpcore.errors import InputError
from tasks.compare.config import CompareConfig
from tasks.compare.grid import Cell, Plans, Setting
from tasks.compare.resume import Comparison
from tasks.home import Home
from tasks.kinds.charge import require_declared
from tasks.ledger import Ledger, ledger_url


@dataclass(frozen=True)
class Charge:
    """The composed price of the cells to run on one private data set, and what its ledger has
    left; ``parts``: the same by setting, each of which is reserved by itself.
    """

    data: str
    parts: tuple[tuple[Setting, Events], ...]
    cells: int
    lines: int
    events: Events
    cost: float
    room: Room

    @property
    def words(self) -> str:
        after = self.room.left - self.cost
        exact = (
            f" ({self.lines} of them lines without privacy: exact, internal numbers)"
            if self.lines
            else ""
        )
        return (
            f"{self.data}: {self.cells + self.lines} cells{exact} cost {self.cost:.6g} in the "
            f"ledger ({self.room.where}); {self.room.left:.6g} is left, {after:.6g} after it."
        )


def charge_words(charges: Mapping[str, Charge], private: Sequence[str]) -> str:
    """What a comparison costs, or why it costs nothing; ``private`` are the names of its private
    data sets.
    """
    if charges:
        return "; ".join(charge.words for charge in charges.values())
    if not private:
        return "public data, nothing is charged"
    return (
        f"every private cell on {', '.join(private)} was finished and charged before, nothing is "
        "charged now"
    )


def compose(cells: Sequence[Cell], config: CompareConfig, plans: Plans) -> Events:
    """The events of all cells one after the other. Folds share rows, so nothing composes in
    parallel: all is added.
    """
    counted: Counter[int] = Counter()
    known: dict[int, Events] = {}
    for cell in cells:
        planned = plans.of(cell.setting, cell.setting.problem(config.protocol.folds, cell.fold))
        counted[id(planned)] += 1
        known[id(planned)] = planned.events
    each = [times(known[key], count) for key, count in counted.items()]
    adjacencies = sorted({str(events.adjacency) for events in each})
    if len(adjacencies) > 1:
        raise InputError(
            "Expected one adjacency for a comparison on private rows, whose price is one sum, "
            f"got {', '.join(adjacencies)}; run one comparison for each."
        )
    return reduce(lambda first, second: first.then(second), each)


def by_setting(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of each setting, in their order."""
    found: dict[int, list[Cell]] = {}
    for cell in cells:
        found.setdefault(id(cell.setting), []).append(cell)
    return list(found.values())


def times(events: Events, count: int) -> Events:
    """``events`` as often as ``count`` cells run them."""
    if len(events.order) == 1 and events.table[0].charges(2) == 2:
        index, each = events.order[0]
        return replace(events, order=((index, each * count),))
    if events.rounds > 1:
        return replace(events, rounds=events.rounds * count)
    return replace(events, order=events.order * count)


def charge_for(
    cells: Sequence[Cell], config: CompareConfig, plans: Plans, ledger: Ledger
) -> Charge:
    """Price the cells of one private data set and ask its ledger; nothing is written and no record
    is read.

    Raises ``BudgetExceeded`` where the ledger has less left, ``InputError`` where the data set has
    no budget.
    """
    job = cells[0].setting.job
    private = [cell for cell in cells if cell.setting.private]
    events = compose(private, config, plans)
    require_declared(job, ledger)
    room = ledger.room(job.schema.name, job.blocks)
    if room is None:
        raise InputError(
            f"Expected a ledger with a limit for private data {job.schema.name!r}, got one without."
        )
    if room.order is None:
        _require_planned(private, config, plans)
    cost = room.cost(events)
    parts = tuple(
        (group[0].setting, compose(group, config, plans)) for group in by_setting(private)
    )
    lines = len(cells) - len(private)
    found = Charge(job.schema.name, parts, len(private), lines, events, cost, room)
    if not room.ratio(events) <= 1 + SLACK:
        refusal = room.refusal(events)
        raise type(refusal)(f"{found.words} {refusal}", asked=refusal.asked, left=refusal.left)
    return found


def _require_planned(cells: Sequence[Cell], config: CompareConfig, plans: Plans) -> None:
    """Raise ``InputError`` for adaptive runs of a comparison, which keep below their curve alone,
    where a ledger counts mu^2.
    """
    for cell in cells:
        planned = plans.of(cell.setting, cell.setting.problem(config.protocol.folds, cell.fold))
        if planned.algorithm.adaptive:
            raise InputError(
                "Expected planned algorithms in a comparison on data opened with filter=gdp, got "
                f"the adaptive {planned.name!r}; leave it out, or train it alone."
            )


def charges(comparison: Comparison, home: Home) -> dict[str, Charge]:
    """What the cells to run cost on each private data set, by its name; raises ``BudgetExceeded``
    where it is short.

    The ledgers are only read.
    """
    found: dict[str, Charge] = {}
    for data, job in comparison.private_jobs.items():
        cells = comparison.charged(data)
        if not any(cell.setting.private for cell in cells):
            continue
        with Ledger(ledger_url(job.config, job.schema, home)) as ledger:
            found[data] = charge_for(cells, comparison.config, comparison.plans, ledger)
    return found
