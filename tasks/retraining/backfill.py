"""Past periods, oldest first, and whether the budget holds for all of them before the first is
trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dpcore.accounting import Events
from dpcore.accounting.limits import Room
from dpcore.errors import BudgetExceeded, InputError
from tasks import training
from tasks.kinds.charge import require_files
from tasks.ledger import Blocks, Ledger
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import cost_units
from tasks.options.base import entries_of
from tasks.retraining import RetrainConfig, schedule
from tasks.retraining import schedule as retraining_schedule
from tasks.schema import find_schema

MOST = 1000  # periods in one call


class Planned(NamedTuple):
    """One period of a backfill: ``at`` is the time from which it is complete; ``idle`` why it needs
    no training.
    """

    period: str
    at: datetime
    idle: str
    blocks: tuple[str, ...]
    left_out: tuple[str, ...]


class Rehearsal(LedgerReader):
    """A ledger as it will be when the runs that were planned so far are charged; nothing is
    written.
    """

    def __init__(self, ledger: LedgerReader) -> None:
        self.store, self._known = ledger.store, dict(ledger._known)
        self.pending: dict[str, int] = {}

    def spent(self, dataset: str, blocks: Iterable[str] | None = None) -> dict[str, int]:
        """Units in each block, those of planned runs included."""
        names = None if blocks is None else list(blocks)
        found = super().spent(dataset, names)
        wanted = {*found, *self.pending} if names is None else names
        return {name: found.get(name, 0) + self.pending.get(name, 0) for name in wanted}

    def room(
        self, dataset: str, blocks: Sequence[str] | None = None, public: bool = False
    ) -> Room | None:
        """What every one of ``blocks`` will have left."""
        now = super().room(dataset, blocks, public)
        if now is None:
            return None
        known = self.dataset(dataset)
        charged = None if blocks is None else known.blocks.charged(blocks, known.unit)
        fullest = max(self.spent(dataset, charged).values(), default=0)
        return Room(now.order, known.left(fullest), now.adjacency, dataset)

    def charge(
        self, dataset: str, events: Events, blocks: Sequence[str], public: bool = False
    ) -> None:
        """Count a planned run on the blocks that it will read."""
        room = self.room(dataset, blocks, public)
        if room is None:
            return
        known = self.dataset(dataset)
        units = cost_units(room.cost(events))
        for block in known.blocks.charged(blocks, known.unit):
            self.pending[block] = self.pending.get(block, 0) + units


def periods(first: str, last: str | None, every: str, now: datetime) -> list[tuple[str, datetime]]:
    """The periods from ``first`` to ``last`` (default: the newest complete one), oldest first, with
    a day in each.

    Each is named as in the ledger, or by a day in it. Raises ``InputError`` for another text, for a
    range that runs backwards, and for a period that is not complete.
    """
    newest, newest_until = schedule.complete(now, every)
    until = schedule.period_end(first, every, "--from")
    end = newest_until if last is None else schedule.period_end(last, every, "--to")
    if end.date() > newest_until.date():
        raise InputError(
            f"Expected --to up to {newest}, the newest complete period, got {last!r}; leave it out."
        )
    if until.date() > end.date():
        raise InputError(
            f"Expected --from before --to, got {first!r} and {last or newest!r}; give the older "
            "period first."
        )
    found: list[tuple[str, datetime]] = []
    while until.date() <= end.date():
        at = until.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        found.append((schedule.complete(at, every)[0], at))
        until = schedule.last_day(at, every)
        if len(found) > MOST:
            raise InputError(
                f"Expected at most {MOST} periods, got {first!r} to {last or newest!r}; take fewer."
            )
    return found


def rehearse(config: RetrainConfig, first: str, last: str | None, ledger: Ledger) -> list[Planned]:
    """Plan every period of the range in order, each on what the ones before it leave of the budget.

    Raises ``BudgetExceeded``, before anything is reserved, where one of them could not be paid by
    then.
    """
    now = datetime.now(UTC)
    schema = find_schema(config.training.data.name)
    division, view = Blocks.of(schema), Rehearsal(ledger)
    wanted = periods(first, last, config.schedule.every, now)
    found: list[Planned] = []
    for period, at in wanted:
        due = schedule.due(ledger, schema.name, config.schedule, at, now, asked=True)
        kept: tuple[str, ...] = ()
        left_out: tuple[str, ...] = ()
        if not due.idle:
            try:
                kept, left_out = _plan(config, division, due, view)
            except BudgetExceeded as error:
                raise BudgetExceeded(
                    f"Backfill {wanted[0][0]} to {wanted[-1][0]}: the budget does not hold for "
                    f"{period}, with {len([one for one in found if not one.idle])} runs before it; "
                    f"nothing was trained. {error}",
                    asked=error.asked,
                    left=error.left,
                ) from None
        found.append(Planned(period, at, due.idle, kept, left_out))
    return found


def _plan(
    config: RetrainConfig, division: Blocks, due: schedule.Due, view: Rehearsal
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Plan one period as its training will, and count it; the blocks that it reads and those that
    it leaves out.
    """
    reading = retraining_schedule.choose(
        config.training, config.window, division, due.until.date(), due.period, view
    )
    job = training.prepare(reading.config)
    planned = training.plan_within(job, view)
    require_files(job)
    for events in (planned.events, *entries_of(job).values()):
        view.charge(job.schema.name, events, job.blocks, job.public)
    return reading.kept, reading.left_out
