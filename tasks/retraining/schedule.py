"""Which period a trigger is for, and whether anything is left to do for it. Times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dpcore.errors import InputError
from tasks.ledger import Blocks
from tasks.ledger.blocks import FORMS
from tasks.ledger.reader import LedgerReader
from tasks.retraining.config import ScheduleSection


class Due(NamedTuple):
    """``period``: the newest complete one; ``until``: a day in it; ``idle``: why nothing is to be done, or empty."""

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
            f"Expected a time like 2026-01-12T03:00, got --at {text!r}; it is read as UTC without an offset."
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def complete(moment: datetime, every: str) -> tuple[str, datetime]:
    """Return the newest period that was complete at ``moment``, in the ledger's words, and its last day."""
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
    """The last day of a period, given by its name in the ledger or by a day in it. Raises ``InputError``."""
    try:
        if every == "week" and "W" in text:
            return datetime.strptime(f"{text}-7", f"{FORMS['week']}-%u").replace(tzinfo=UTC)
        if every in ("month", "year") and text.count("-") < 2:
            return last_day(datetime.strptime(text, FORMS[every]).replace(tzinfo=UTC), every)
        return last_day(datetime.strptime(text, FORMS["day"]).replace(tzinfo=UTC), every)
    except ValueError:
        example = datetime(2026, 1, 18).strftime(FORMS[every])
        raise InputError(
            f"Expected a {every} like {example} or a day in it like 2026-01-18 for {option}, got {text!r}."
        ) from None


def require_division(blocks: Blocks, every: str, last: str | None, name: str) -> None:
    """Raise InputError unless the window and the period agree with the blocks of the data set."""
    if last is None:
        return
    if blocks.by not in FORMS:
        raise InputError(
            f"Expected blocks by date for window.last={last!r}, got {name!r} divided by {blocks.words()}; set "
            "window.last=null to read all of it, or declare `block` in its schema."
        )
    if blocks.by != every:
        raise InputError(
            f"Expected schedule.every={blocks.by!r}, the division of {name!r}, got {every!r}; one block is added in "
            "each period."
        )


def due(
    ledger: LedgerReader, name: str, schedule: ScheduleSection, scheduled: datetime, now: datetime, asked: bool = False
) -> Due:
    """Return the period of a trigger that was ``scheduled``, with the reason where nothing is to be done.

    A period is done once its entry in the ledger is committed. A late trigger follows ``schedule.late``: it is skipped,
    or it takes the newest period, so that of several late ones a single one runs. A time that a person ``asked`` for is
    never late: it means its own period.
    """
    if scheduled > now + timedelta(minutes=5):
        raise InputError(
            f"Expected a scheduled time that has come, got {scheduled.isoformat()} at {now.isoformat()}; a period is "
            "trained when it is complete."
        )
    late, note = now - scheduled, ""
    period, until = complete(scheduled, schedule.every)
    if not asked and late > timedelta(hours=schedule.tolerance_hours):
        words = f"the trigger of {scheduled:%Y-%m-%d %H:%M} UTC comes {late.total_seconds() / 3600:.1f} h late"
        newest, newest_until = complete(now, schedule.every)
        if schedule.late == "skip":
            known = ledger.period_state(name, period)
            done = "" if known is None else f"; period {period} is {known}"
            return Due(period, until, f"{words}, more than {schedule.tolerance_hours:g} h: skipped{done}")
        note = f"{words}: it runs for the newest period {newest}"
        period, until = newest, newest_until
    return Due(period, until, _state(ledger, name, period, schedule.failed), note)


def _state(ledger: LedgerReader, name: str, period: str, failed: str) -> str:
    state = ledger.period_state(name, period)
    if state == "committed":
        return f"period {period} of {name!r} is trained already: nothing was done and nothing was spent"
    if state == "reserved":
        return f"period {period} of {name!r} is being trained by another process: nothing was done"
    if state == "forfeited" and failed == "skip":
        return (
            f"period {period} of {name!r} was charged by a run that gave no result: nothing was done; "
            "--set schedule.failed=run_again trains it, which is a second charge"
        )
    return ""
