"""Which period a trigger is for, and whether anything is left to do for it. Times are UTC.

Which blocks a retraining reads: the last ones of a window that can still pay for it.

One retraining at a time for a data set, among all processes that share a ledger.

A row in the ledger's database, beside its append-only tables, names the process that holds the
lock: a process that is certainly gone loses it. The orchestrator's own limit does not see runs that
were started from a shell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, MetaData, String, Table, Text, select

from dpcore.errors import BudgetExceeded, DPFlowsError, InputError
from tasks import training
from tasks.config import TrainConfig
from tasks.kinds import base
from tasks.ledger import Blocks, Ledger
from tasks.ledger.blocks import FORMS
from tasks.ledger.reader import LedgerReader
from tasks.ledger.reservation import is_gone, this_process
from tasks.options.base import entries_of
from tasks.retraining import ScheduleSection, WindowSection


class Due(NamedTuple):
    """``period``: the newest complete one; ``until``: a day in it; ``idle``: why nothing is to be
    done, or empty.
    """

    period: str
    until: datetime
    idle: str = ""
    note: str = ""


def utc(text: str) -> datetime:
    """Read an ISO time; one without an offset is UTC. Raises InputError for other texts."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"Expected a time like 2026-01-12T03:00, got --at {text!r}; it is read as UTC without "
            "an offset."
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def complete(moment: datetime, every: str) -> tuple[str, datetime]:
    """Return the newest period that was complete at ``moment``, in the ledger's words, and its last
    day.
    """
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if every == "week":
        day -= timedelta(days=day.weekday())
    elif every in ("month", "year"):
        day = day.replace(day=1) if every == "month" else day.replace(month=1, day=1)
    last = day - timedelta(days=1)
    return last.strftime(FORMS[every]), last


def last_day(moment: datetime, every: str) -> datetime:
    """The last day of the period that holds ``moment``."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if every == "week":
        return day + timedelta(days=6 - day.weekday())
    if every == "month":
        return (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
    return day.replace(month=12, day=31) if every == "year" else day


def period_end(text: str, every: str, option: str) -> datetime:
    """The last day of a period, given by its name in the ledger or by a day in it. Raises
    ``InputError``.
    """
    try:
        if every == "week" and "W" in text:
            return datetime.strptime(f"{text}-7", f"{FORMS['week']}-%u").replace(tzinfo=UTC)
        if every in ("month", "year") and text.count("-") < 2:
            return last_day(datetime.strptime(text, FORMS[every]).replace(tzinfo=UTC), every)
        return last_day(datetime.strptime(text, FORMS["day"]).replace(tzinfo=UTC), every)
    except ValueError:
        example = datetime(2026, 1, 18).strftime(FORMS[every])
        raise InputError(
            f"Expected a {every} like {example} or a day in it like 2026-01-18 for {option}, got "
            f"{text!r}."
        ) from None


def require_division(blocks: Blocks, every: str, last: str | None, name: str) -> None:
    """Raise InputError unless the window and the period agree with the blocks of the data set."""
    if last is None:
        return
    if blocks.by not in FORMS:
        raise InputError(
            f"Expected blocks by date for window.last={last!r}, got {name!r} divided by "
            f"{blocks.words()}; set window.last=null to read all of it, or declare `block` in its "
            "schema."
        )
    if blocks.by != every:
        raise InputError(
            f"Expected schedule.every={blocks.by!r}, the division of {name!r}, got {every!r}; one "
            "block is added in each period."
        )


def due(
    ledger: LedgerReader,
    name: str,
    schedule: ScheduleSection,
    scheduled: datetime,
    now: datetime,
    asked: bool = False,
) -> Due:
    """Return the period of a trigger that was ``scheduled``, with the reason where nothing is to be
    done.

    A period is done once its entry in the ledger is committed. A late trigger follows
    ``schedule.late``: it is skipped, or it takes the newest period, so that of several late ones a
    single one runs. A time that a person ``asked`` for is never late: it means its own period.
    """
    if scheduled > now + timedelta(minutes=5):
        raise InputError(
            f"Expected a scheduled time that has come, got {scheduled.isoformat()} at "
            f"{now.isoformat()}; a period is trained when it is complete."
        )
    late, note = now - scheduled, ""
    period, until = complete(scheduled, schedule.every)
    if not asked and late > timedelta(hours=schedule.tolerance_hours):
        words = (
            f"the trigger of {scheduled:%Y-%m-%d %H:%M} UTC comes "
            f"{late.total_seconds() / 3600:.1f} h late"
        )
        newest, newest_until = complete(now, schedule.every)
        if schedule.late == "skip":
            known = ledger.period_state(name, period)
            done = "" if known is None else f"; period {period} is {known}"
            return Due(
                period, until, f"{words}, more than {schedule.tolerance_hours:g} h: skipped{done}"
            )
        note = f"{words}: it runs for the newest period {newest}"
        period, until = newest, newest_until
    return Due(period, until, _state(ledger, name, period, schedule.failed), note)


def _state(ledger: LedgerReader, name: str, period: str, failed: str) -> str:
    state = ledger.period_state(name, period)
    if state == "committed":
        return (
            f"period {period} of {name!r} is trained already: nothing was done and nothing was "
            "spent"
        )
    if state == "reserved":
        return f"period {period} of {name!r} is being trained by another process: nothing was done"
    if state == "forfeited" and failed == "skip":
        return (
            f"period {period} of {name!r} was charged by a run that gave no result: nothing was "
            "done; --set schedule.failed=run_again trains it, which is a second charge"
        )
    return ""


# A share that is compared with itself must not fail by rounding.
ROUNDING = 1e-12


class Reading(NamedTuple):
    """The training that reads ``kept`` blocks, and what was left out because its budget is
    spent.
    """

    config: TrainConfig
    kept: tuple[str, ...]
    left_out: tuple[str, ...]


def _since(names: tuple[str, ...], division: Blocks, since: str, period: str) -> tuple[str, ...]:
    """The blocks of a window from ``since`` on. Raises ``InputError`` where it has none."""
    found = tuple(name for name in names if name >= division.check_block(since))
    if not found:
        raise InputError(
            f"Expected a window with blocks from window.since={since!r} on, got one that ends "
            f"{period}; nothing was spent."
        )
    return found


def choose(
    config: TrainConfig,
    window: WindowSection,
    division: Blocks,
    until: date,
    period: str,
    ledger: LedgerReader,
) -> Reading:
    """Return the training for ``period`` on the blocks of the window that ends at the day
    ``until``.

    Its n is declared rows per block times blocks, never a count. A block whose budget is spent is
    left out, or the run is refused (``BudgetExceeded``), by ``window.exhausted``. Only declarations
    and the ledger are read.
    """
    if window.last is None:
        if window.since is not None:
            raise InputError(
                f"Expected window.last with window.since={window.since!r}, got none: without a "
                "window, which needs blocks by date, data.blocks are read as they are; set "
                "window.last, or leave window.since out."
            )
        return Reading(_with(config, config.data.blocks, period), config.data.blocks or (), ())
    names = division.window(window.last, until)
    if window.since is not None:
        names = _since(names, division, window.since, period)
    kept = names
    # Fewer blocks mean a smaller n and another plan, whose price at the ledger's order may differ a
    # little.
    for _ in names:
        found = _affordable(_with(config, kept, period), kept, ledger, window.exhausted)
        left_out = tuple(name for name in names if name not in found)
        if found == kept:
            return Reading(_with(config, kept, period), kept, left_out)
        kept = found
    raise AssertionError("each round leaves out a block, or is the last")


def _with(config: TrainConfig, blocks: tuple[str, ...] | None, period: str) -> TrainConfig:
    return config.model_copy(
        update={"data": config.data.model_copy(update={"blocks": blocks, "period": period})}
    )


def _affordable(
    config: TrainConfig, blocks: tuple[str, ...], ledger: LedgerReader, policy: str
) -> tuple[str, ...]:
    """The blocks with room for the plan of ``config``, or for the worth of its guarantee if that is
    less.
    """
    job = training.prepare(config)
    planned = training.plan_training(job)
    name, public = job.schema.name, job.public
    room = ledger.room(name, blocks, public=public)
    if room is None:
        return blocks
    cost, worth = room.cost(planned.events), room.worth(base.target_of(config))
    budget = ledger.dataset(name).budget
    assert budget is not None
    beside = sum(map(room.cost, entries_of(job).values()))
    share = ((min(cost, worth) if worth > 0 else cost) + beside) / budget * (1 - ROUNDING)
    try:
        return ledger.window(name, blocks, policy=policy, least=share, public=public).kept
    except BudgetExceeded as error:
        rule = "window.exhausted=refuse" if policy == "refuse" else "all of them"
        raise BudgetExceeded(
            f"Window {blocks[0]} to {blocks[-1]}: blocks without room ({rule}). {error}",
            asked=error.asked,
            left=error.left,
        ) from None


locks = Table(
    "retraining_lock",
    MetaData(),
    Column("dataset", String(200), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("since", String(40), nullable=False),
)


class Busy(DPFlowsError):
    """Another process retrains this data set."""


@contextmanager
def one_at_a_time(
    ledger: Ledger, dataset: str, wait_minutes: float = 0.0, pause: float = 1.0
) -> Iterator[None]:
    """Hold the lock of ``dataset`` for the length of the block; wait for a holder that lives, at
    most so long.

    Raises ``Busy``, which names the holder. Nothing was spent then.
    """
    give_up = time.monotonic() + wait_minutes * 60
    while (holder := _take(ledger, dataset)) is not None:
        if time.monotonic() >= give_up:
            raise Busy(_words(dataset, holder))
        time.sleep(pause)
    try:
        yield
    finally:
        _give(ledger, dataset)


def break_lock(ledger: Ledger, dataset: str) -> dict[str, Any] | None:
    """Remove the lock of ``dataset`` whoever holds it; return the holder, None where there was
    none.
    """
    with ledger.store.writing() as connection:
        holder = _holder(connection, dataset)
        connection.execute(locks.delete().where(locks.c.dataset == dataset))
    return holder


def _take(ledger: Ledger, dataset: str) -> dict[str, Any] | None:
    """Take the lock and return None, or return who holds it. Writers take turns, so two never take
    it at once.
    """
    with ledger.store.writing() as connection:
        holder = _holder(connection, dataset)
        if holder is not None and not is_gone(holder["owner"]):
            return holder
        connection.execute(locks.delete().where(locks.c.dataset == dataset))
        owner, since = (
            json.dumps(this_process(), sort_keys=True),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        connection.execute(locks.insert().values(dataset=dataset, owner=owner, since=since))
    return None


def _give(ledger: Ledger, dataset: str) -> None:
    with ledger.store.writing(
        "the lock of the data set stays until this process ends"
    ) as connection:
        holder = _holder(connection, dataset)
        if holder is not None and holder["owner"] == this_process():
            connection.execute(locks.delete().where(locks.c.dataset == dataset))


def _holder(connection: Connection, dataset: str) -> dict[str, Any] | None:
    locks.create(connection, checkfirst=True)
    row = connection.execute(select(locks).where(locks.c.dataset == dataset)).one_or_none()
    return None if row is None else {"owner": json.loads(row.owner), "since": row.since}


def _words(dataset: str, holder: dict[str, Any]) -> str:
    owner = holder["owner"]
    return (
        f"Expected no other retraining of {dataset!r}, got process {owner['pid']} on "
        f"{owner['host']}, which holds its lock since {holder['since']}; nothing was spent. Wait "
        "for it (schedule.wait_minutes); where that machine is gone for good, use `dpflows "
        "retrain --unlock`."
    )
