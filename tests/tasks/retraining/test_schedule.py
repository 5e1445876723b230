"""Which period a trigger is for: done ones, late ones, failed ones; and one retraining at a
time.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from dpcore.accounting.events import Events
from dpcore.errors import BudgetExceeded, InputError
from dpcore.mechanisms import Gaussian
from tasks.ledger import Blocks, Ledger
from tasks.ledger.reservation import this_process
from tasks.retraining import ScheduleSection, WindowSection, champion, load_retraining
from tasks.retraining import schedule as retraining_schedule
from tasks.retraining.schedule import (
    Busy,
    break_lock,
    choose,
    complete,
    due,
    locks,
    one_at_a_time,
    require_division,
    utc,
)
from tasks.schema import find_schema
from tests.tasks.retraining.weekly import config_of

ON_TIME = datetime(2026, 1, 26, 3, tzinfo=UTC)  # the Monday after 2026-W04
RUN = Events.of([Gaussian(1.0, 40.0)], adjacency="add_remove")


@pytest.mark.parametrize(
    ("every", "moment", "period", "last"),
    [
        ("week", ON_TIME, "2026-W04", "2026-01-25"),
        ("week", datetime(2026, 1, 4, 23, 59, tzinfo=UTC), "2025-W52", "2025-12-28"),
        ("week", datetime(2027, 1, 4, tzinfo=UTC), "2026-W53", "2027-01-03"),
        ("day", ON_TIME, "2026-01-25", "2026-01-25"),
        ("month", datetime(2024, 3, 1, tzinfo=UTC), "2024-02", "2024-02-29"),
        ("year", ON_TIME, "2025", "2025-12-31"),
    ],
)
def test_newest_complete_period(every: str, moment: datetime, period: str, last: str) -> None:
    name, day = complete(moment, every)
    assert (name, day.date().isoformat()) == (period, last)


def test_a_period_is_trained_once(clinic: Ledger) -> None:
    schedule = ScheduleSection()
    assert due(clinic, "clinic", schedule, ON_TIME, ON_TIME).idle == ""
    first = clinic.reserve("clinic", RUN, ["2026-W04"], period="2026-W04")
    assert "another process" in due(clinic, "clinic", schedule, ON_TIME, ON_TIME).idle
    first.cancel()
    assert due(clinic, "clinic", schedule, ON_TIME, ON_TIME).idle == "", (
        "a cancelled run spent nothing"
    )
    second = clinic.reserve("clinic", RUN, ["2026-W04"], period="2026-W04")
    second.on_charge()
    second.forfeit("out of memory")
    idle = due(clinic, "clinic", schedule, ON_TIME, ON_TIME).idle
    assert "gave no result" in idle and "second charge" in idle
    assert due(clinic, "clinic", ScheduleSection(failed="run_again"), ON_TIME, ON_TIME).idle == ""
    clinic.reserve("clinic", RUN, ["2026-W04"], period="2026-W04").commit()
    assert "trained already" in due(clinic, "clinic", schedule, ON_TIME, ON_TIME).idle
    assert (
        due(
            clinic, "clinic", schedule, ON_TIME + timedelta(weeks=1), ON_TIME + timedelta(weeks=1)
        ).idle
        == ""
    )


def test_late_triggers_follow_the_policy(clinic: Ledger) -> None:
    now = ON_TIME + timedelta(weeks=2, hours=1)
    missed = [ON_TIME, ON_TIME + timedelta(weeks=1)]
    for scheduled in missed:
        found = due(clinic, "clinic", ScheduleSection(late="skip"), scheduled, now)
        assert "late" in found.idle and "skipped" in found.idle
    once = ScheduleSection(late="run_once")
    found = [due(clinic, "clinic", once, scheduled, now) for scheduled in missed]
    assert {one.period for one in found} == {"2026-W06"} and "newest period" in found[0].note
    clinic.reserve("clinic", RUN, ["2026-W06"], period="2026-W06").commit()
    assert "trained already" in due(clinic, "clinic", once, missed[1], now).idle, (
        "of several late ones a single one runs"
    )
    in_time = due(clinic, "clinic", once, ON_TIME, ON_TIME + timedelta(hours=23))
    assert (in_time.period, in_time.idle) == ("2026-W04", "")
    with pytest.raises(InputError, match="that has come"):
        due(clinic, "clinic", once, now + timedelta(days=1), now)


def test_times_are_utc() -> None:
    assert utc("2026-01-12T03:00").utcoffset() == timedelta(0)
    assert utc("2026-01-12T03:00+02:00").hour == 1
    with pytest.raises(InputError, match="2026-01-12T03:00"):
        utc("monday")


def test_periods_agree_with_the_division(clinic: Ledger) -> None:
    weeks = clinic.dataset("clinic").blocks
    require_division(weeks, "week", "3 weeks", "clinic")
    require_division(Blocks(), "month", None, "other")
    with pytest.raises(InputError, match=r"Expected schedule\.every='week'"):
        require_division(weeks, "day", "3 weeks", "clinic")
    with pytest.raises(InputError, match=r"window\.last=null"):
        require_division(Blocks(), "week", "3 weeks", "other")


def test_one_at_a_time_with_the_owner_alive(clinic: Ledger) -> None:
    with one_at_a_time(clinic, "clinic"):
        words = f"process {this_process()['pid']}.*nothing was spent.*--unlock"
        with pytest.raises(Busy, match=words), one_at_a_time(clinic, "clinic"):
            pass
        with one_at_a_time(clinic, "other"):
            pass
    with one_at_a_time(clinic, "clinic"):
        assert break_lock(clinic, "clinic") is not None
        with one_at_a_time(clinic, "clinic"):
            pass
    assert break_lock(clinic, "clinic") is None


def test_the_lock_of_a_dead_process_is_taken(clinic: Ledger) -> None:
    with one_at_a_time(clinic, "clinic"):
        dead = json.dumps(this_process() | {"pid": 2**22 - 3, "started": "1"})
        with clinic.store.writing() as connection:
            connection.execute(update(locks).values(owner=dead))
        with one_at_a_time(clinic, "clinic"):
            pass
        far = json.dumps(this_process() | {"host": "elsewhere"})
        with clinic.store.writing() as connection:
            connection.execute(
                locks.insert().values(dataset="clinic", owner=far, since="2026-01-01")
            )
        with pytest.raises(Busy, match="on elsewhere"), one_at_a_time(clinic, "clinic"):
            pass
    assert break_lock(clinic, "clinic") is not None, "nobody removes the lock of another host"
    assert clinic.verify().ok


def test_window_leaves_out_or_refuses_exhausted_blocks(clinic: Ledger, tmp_path: Path) -> None:
    (tmp_path / "clinic.csv").unlink()
    config = config_of(tmp_path)
    division = Blocks.of(find_schema(tmp_path / "clinic.yaml"))
    until = datetime(2026, 1, 25)

    def chosen(exhausted: str = "leave_out") -> retraining_schedule.Reading:
        section = config.window.model_copy(update={"exhausted": exhausted})
        return retraining_schedule.choose(
            config.training, section, division, until, "2026-W04", clinic
        )

    reading = chosen()
    assert (reading.kept, reading.left_out) == (("2026-W02", "2026-W03", "2026-W04"), ())
    assert (reading.config.data.blocks, reading.config.data.period) == (reading.kept, "2026-W04")
    opened = clinic.dataset("clinic")
    most = Events.of(
        [Gaussian(1.0, (opened.order / (2 * 0.98 * opened.budget)) ** 0.5)], adjacency="add_remove"
    )
    clinic.reserve("clinic", most, ["2026-W03"]).commit()
    reading = chosen()
    assert (reading.kept, reading.left_out) == (("2026-W02", "2026-W04"), ("2026-W03",))
    with pytest.raises(BudgetExceeded, match=r"exhausted=refuse.*2026-W03"):
        chosen("refuse")
    clinic.reserve("clinic", most, ["2026-W02", "2026-W04"]).commit()
    with pytest.raises(BudgetExceeded, match="all of them"):
        chosen()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("schedule.cron=every monday", "a cron expression of five fields for schedule.cron"),
        ("schedule.cron=61 3 * * 1", "a cron expression of five fields for schedule.cron"),
        ("schedule.late=maybe", "'run_once' or 'skip' for schedule.late"),
        ("training.privacy.epsilon=-1", "a number > 0 for training.privacy.epsilon"),
        ("training.data.period=2026-W04", "no training.data.period"),
        ("champion.model=visits", "champion.data"),
        ("warm_start=released", "champion.model with warm_start"),
        ("window.lst=3", "did you mean 'window.last'"),
    ],
)
def test_configurations_that_make_no_sense(
    override: str, words: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as raised:
        load_retraining(None, [override])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_backfilled_period_starts_from_no_later_model(
    clinic: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a schedule would have given then: the newest model of that time, whenever it was
    trained.
    """
    charged = {
        week: clinic.reserve("clinic", RUN, [week], period=week)
        for week in ("2026-W02", "2026-W05")
    }
    plain = clinic.reserve("clinic", RUN, ["2026-W03"])
    entries = {week: made.entry_id for week, made in charged.items()}
    runs = [
        ("late", entries["2026-W05"]),
        ("early", entries["2026-W02"]),
        ("undated", plain.entry_id),
        ("lost", "?"),
    ]
    monkeypatch.setattr(champion, "finished_runs", lambda client, dataset: runs)
    config: Any = SimpleNamespace(warm_start="previous")

    def chosen(period: str | None) -> str | None:
        return champion._source(config, None, "clinic", clinic, period)  # type: ignore[arg-type]

    assert (chosen("2026-W06"), chosen("2026-W05"), chosen(None)) == ("late", "late", "late")
    assert (chosen("2026-W04"), chosen("2026-W02"), chosen("2026-W01")) == (
        "early",
        "early",
        "undated",
    )


def test_a_first_block_without_a_window_is_refused(clinic: Ledger, tmp_path: Path) -> None:
    training = config_of(tmp_path).training
    window = WindowSection(last=None, since="2026-W01")
    with pytest.raises(InputError, match=r"window\.last with window\.since='2026-W01'"):
        choose(training, window, Blocks("week", "visit"), date(2026, 2, 1), "2026-W05", clinic)


CRONS = ("0 3 * * 1", "0 3 L * *", "0 3 * * 5#2", "0 3 * * MON-FRI", "*/5 * * * *", "0 3 1 * 1")


@pytest.mark.parametrize("cron", CRONS)
def test_a_cron_fires_as_the_scheduler_says(cron: str) -> None:
    """What the configuration takes, Prefect takes, and both mean the same times."""
    from prefect._vendor.croniter import croniter

    from tasks.retraining import ScheduleSection, next_firing

    assert ScheduleSection(cron=cron).cron == cron
    clock, now = croniter(cron, datetime(2026, 1, 1)), datetime(2026, 1, 1)
    for _ in range(20):
        now = next_firing(cron, now)
        assert now == clock.get_next(datetime)


@pytest.mark.parametrize("cron", ["0 3 * * 5L", "0 3 LW * *", "0 3 * * friL"])
def test_a_cron_that_the_scheduler_does_not_know_is_refused_here(cron: str) -> None:
    from prefect._vendor.croniter import CroniterError, croniter

    from tasks.retraining import ScheduleSection

    with pytest.raises(CroniterError):
        croniter(cron)
    with pytest.raises(ValueError, match="that Prefect knows"):
        ScheduleSection(cron=cron)


def test_a_schedule_that_fires_too_rarely_for_its_periods_is_named() -> None:
    from tasks.retraining import ScheduleSection, rare

    now = datetime(2026, 1, 1, tzinfo=UTC)
    for cron, every in (("0 3 * * 1", "week"), ("0 3 1 * *", "month"), ("0 3 * * *", "day")):
        assert rare(ScheduleSection(cron=cron, every=every), now) == ""  # type: ignore[arg-type]
    found = rare(ScheduleSection(cron="0 3 * * 1", every="day"), now)
    assert "up to 7 days between firings" in found and "newest day alone" in found


def test_a_window_without_rows_names_its_blocks(tmp_path: Path) -> None:
    """The table ends before the window begins."""
    from tasks.data import Reading
    from tasks.schema import find_schema

    (tmp_path / "late.yaml").write_text(
        "schema_version: 1\nname: late\npublic: {rows_per_block: 10}\nsource: {path: "
        "late.csv}\ncolumns:\n  day: {kind: block}\n  age: {kind: numeric, low: 0, high: "
        "9}\nblock: {column: day, by: week}\nlabel: {column: paid, positive: 'yes', negative: "
        "'no'}\nsplit: {kind: none}\n"
    )
    (tmp_path / "late.csv").write_text("day,age,paid\n2026-01-05,3,yes\n2026-01-06,4,no\n")
    schema = find_schema(str(tmp_path / "late.yaml"))
    reading = Reading(schema, str(tmp_path / "late.csv"), blocks=("2026-W20", "2026-W21"))
    with pytest.raises(InputError, match="no row of the blocks 2026-W20, 2026-W21 belongs to"):
        reading.load(schema.encoder())
