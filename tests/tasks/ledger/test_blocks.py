"""Blocks: names, windows, parallel composition, whom a budget covers, and a schedule that can go on
for ever.
"""

from __future__ import annotations

from datetime import date, timedelta
from io import BytesIO

import numpy as np
import pytest

from dpcore.accounting import Events
from dpcore.errors import BudgetExceeded, InputError
from tasks.ledger import Blocks, Ledger
from tasks.ledger.entries import realised_epsilon
from tasks.ledger.records import UNIT
from tasks.report.facts import history
from tasks.report.figures import draw

WEEKS = Blocks(by="week", column="visit", rows_per_block=1000)


def costing(ledger: Ledger, events, name: str, share: float) -> Events:
    """50 Gaussian releases that cost ``share`` of a block's budget, hardly less."""
    opened = ledger.dataset(name)
    return events((50 * opened.order / (2 * share * opened.budget)) ** 0.5 * (1 + 1e-9), 50)


def test_who_names_no_blocks_is_told_where_they_are_named() -> None:
    with pytest.raises(
        InputError,
        match=r"got none; name them, for example "
        r"data\.blocks=\[2026-W02\]",
    ):
        WEEKS.charged(["all"], "record")


@pytest.mark.parametrize(
    ("by", "last", "until", "names"),
    [
        ("week", "3 weeks", date(2026, 1, 7), ("2025-W52", "2026-W01", "2026-W02")),
        ("week", 2, date(2027, 1, 2), ("2026-W52", "2026-W53")),
        ("month", "3 months", date(2026, 3, 31), ("2026-01", "2026-02", "2026-03")),
        ("day", "2 days", date(2024, 3, 1), ("2024-02-29", "2024-03-01")),
        ("year", 2, date(2024, 2, 29), ("2023", "2024")),
    ],
)
def test_windows(by: str, last, until: date, names) -> None:
    blocks = Blocks(by=by, column="visit", rows_per_block=7)
    assert blocks.window(last, until) == names
    assert all(blocks.check_block(name) == name for name in names)


@pytest.mark.parametrize("name", ["2026-W54", "2026-W5", "2026-05", "all", "", "h0"])
def test_names_that_are_no_week(name: str) -> None:
    with pytest.raises(InputError, match="2026-W02"):
        WEEKS.check_block(name)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"by": "week"}, "column"),
        ({"column": "visit"}, "no column"),
        ({"by": "hash", "column": "id"}, "count"),
        ({"by": "week", "column": "id", "count": 4}, "count"),
        ({"by": "fortnight", "column": "id"}, "fortnight"),
        ({"rows_per_user": 4}, "user_column"),
        ({"rows_per_block": 0}, "rows_per_block"),
    ],
)
def test_divisions_that_make_no_sense(fields, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Blocks(**fields)


@pytest.mark.parametrize("last", ["12 months", "0", "-1", "weeks", "1.5 weeks"])
def test_windows_that_make_no_sense(last: str) -> None:
    with pytest.raises(InputError, match="12 weeks"):
        WEEKS.window(last, date(2026, 1, 1))


def test_a_run_is_charged_on_every_block_that_it_reads_or_on_none(ledger: Ledger, events) -> None:
    opened = ledger.init("clinic", 3.0, 1e-6, "add_remove", blocks=WEEKS)
    half = costing(ledger, events, "clinic", 0.6)
    ledger.reserve("clinic", half, ["2026-W01", "2026-W02"]).commit()
    assert ledger.room("clinic", ["2026-W03"]).left == opened.budget, (
        "blocks are charged in parallel"
    )
    with pytest.raises(BudgetExceeded, match="block 2026-W02"):
        ledger.reserve("clinic", half, ["2026-W04", "2026-W03", "2026-W02"])
    assert ledger.spent("clinic", ["2026-W03", "2026-W04"]) == {"2026-W03": 0, "2026-W04": 0}
    for read in (["all"], [], ["2026"]):
        with pytest.raises(InputError):
            ledger.reserve("clinic", half, read)
    cancelled = ledger.reserve("clinic", half, ["2026-W05", "2026-W06"])
    cancelled.cancel()
    assert ledger.room("clinic", ["2026-W05"]).left == opened.budget
    assert ledger.verify().ok


def test_an_exhausted_block_is_refused_or_left_out_by_policy(ledger: Ledger, events) -> None:
    ledger.init("clinic", 3.0, 1e-6, "add_remove", blocks=WEEKS)
    most = costing(ledger, events, "clinic", 0.9)
    ledger.reserve("clinic", most, ["2026-W02"]).commit()
    weeks = ("2026-W01", "2026-W02", "2026-W03")
    with pytest.raises(BudgetExceeded, match="2026-W02"):
        ledger.window("clinic", weeks, most)
    window = ledger.window("clinic", weeks, most, policy="leave_out")
    assert (window.kept, window.left_out) == (("2026-W01", "2026-W03"), ("2026-W02",))
    assert ledger.window("clinic", weeks, policy="leave_out", least=0.2).left_out == ("2026-W02",)
    ledger.reserve("clinic", most, window.kept).commit()
    with pytest.raises(BudgetExceeded):
        ledger.window("clinic", weeks, most, policy="leave_out")
    assert ledger.window("toy", weeks, most, public=True).kept == weeks


def test_a_user_level_budget_is_charged_wherever_a_user_may_be(ledger: Ledger, events) -> None:
    """Rows of a person may lie in every week, so weeks do not compose in parallel for persons;
    hashes of ids do.
    """
    run = events(100.0, unit="user")
    user = {"user_column": "patient", "rows_per_user": 5}
    with pytest.raises(InputError, match="user_column"):
        ledger.init("none", 3.0, 1e-6, "add_remove", unit="user", blocks=WEEKS)
    divisions = {
        "weeks": (Blocks(by="week", column="visit", **user), ["2026-W01"], {"all"}),
        "declared": (
            Blocks(by="week", column="visit", one_block_per_person=True, **user),
            ["2026-W01"],
            {"2026-W01"},
        ),
        "hashes": (
            Blocks(by="hash", column="patient", count=16, **user),
            ["h03", "h15"],
            {"h03", "h15"},
        ),
        "other": (Blocks(by="hash", column="ward", count=16, **user), ["h03"], {"all"}),
    }
    for name, (blocks, read, charged) in divisions.items():
        ledger.init(name, 3.0, 1e-6, "add_remove", unit="user", blocks=blocks)
        ledger.reserve(name, run, read).commit()
        assert set(ledger.spent(name)) == charged
        assert "person" in blocks.covers("user")
    assert "k blocks" in WEEKS.covers("record")
    assert ledger.verify().ok


def test_another_division_of_the_same_rows_is_no_fresh_budget(
    sqlite_ledger: Ledger, events
) -> None:
    sqlite_ledger.init("clinic", 3.0, 1e-6, "add_remove", blocks=WEEKS)
    other = Blocks(by="week", column="discharge")
    with pytest.raises(InputError, match="never changed"):
        sqlite_ledger.reserve("clinic", events(100.0), ["2026-W01"], division=other)
    sqlite_ledger.reserve("clinic", events(100.0), ["2026-W01"], division=WEEKS).commit()


def retrain(ledger: Ledger, run: Events, weeks: int) -> None:
    """Retrain at the end of each week on the window of 12 weeks."""
    for week in range(weeks):
        window = WEEKS.window("12 weeks", date(2026, 1, 5) + timedelta(weeks=week))
        ledger.reserve("clinic", run, window, division=WEEKS, period=window[-1]).commit()


def test_three_years_of_weekly_retrainings(sqlite_ledger: Ledger, events) -> None:
    """156 runs on growing weekly blocks with a window of 12: each block ends within (3, 1e-6), and
    none was refused.
    """
    opened = sqlite_ledger.init("clinic", 3.0, 1e-6, "add_remove", blocks=WEEKS)
    run = costing(sqlite_ledger, events, "clinic", 1 / 12)
    retrain(sqlite_ledger, run, 156)
    spent = sqlite_ledger.spent("clinic")
    assert len(spent) == 156 + 11
    assert max(spent.values()) <= opened.budget * UNIT * (1 + 1e-9)
    assert sorted(spent.values())[len(spent) // 2] > 0.999 * opened.budget * UNIT, (
        "the budget is used, not spared"
    )
    assert max(realised_epsilon(sqlite_ledger, "clinic").values()) <= 3.0
    with pytest.raises(BudgetExceeded):
        sqlite_ledger.reserve("clinic", run, ["2026-W10"])
    assert sqlite_ledger.verify().entries == 156


@pytest.mark.parametrize("share", [1 / 12, 0.9])
def test_the_budget_per_block_over_time_is_drawn(
    sqlite_ledger: Ledger, events, share: float
) -> None:
    sqlite_ledger.init("clinic", 3.0, 1e-6, "add_remove", blocks=WEEKS)
    run = costing(sqlite_ledger, events, "clinic", share)
    if share < 0.5:
        retrain(sqlite_ledger, run, 14)
    else:
        sqlite_ledger.reserve("clinic", run, ["2026-W01", "2026-W02"]).cancel()
        sqlite_ledger.reserve("clinic", run, ["2026-W02"]).commit()
    story = history(sqlite_ledger, "clinic")
    assert story.shares.max() == pytest.approx(1.0 if share < 0.5 else share, rel=1e-6)
    if share < 0.5:
        assert story.shares.shape == (14 + 11, 14) and np.all(np.diff(story.shares) >= 0)
    else:
        assert story.shares == pytest.approx(np.array([[share, 0, 0], [share, 0, share]]), rel=1e-6)
    picture = BytesIO()
    draw(story).savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")
