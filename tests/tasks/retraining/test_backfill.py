"""Past periods: a time that is given means its own period, and a range is paid for as a whole or
not at all.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpcore.errors import BudgetExceeded, InputError
from flows.cli import run
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.retraining import RetrainConfig, ScheduleSection
from tasks.retraining.backfill import periods, rehearse
from tasks.retraining.schedule import due, last_day, period_end
from tests.tasks.retraining.test_deployment import write_config
from tests.tasks.retraining.weekly import config_of

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)  # a Wednesday of 2026-W10
STRICT = {"schedule": {"tolerance_hours": 24.0, "wait_minutes": 0}}


@pytest.mark.parametrize(
    ("every", "first", "last", "expected"),
    [
        ("week", "2026-W07", None, ["2026-W07", "2026-W08", "2026-W09"]),
        ("week", "2025-12-31", "2026-W02", ["2026-W01", "2026-W02"]),
        ("week", "2026-W53", "2026-W53", None),
        ("month", "2025-12", "2026-02-14", ["2025-12", "2026-01", "2026-02"]),
        ("month", "2024-02-29", "2024-02", ["2024-02"]),
        ("year", "2023", "2025", ["2023", "2024", "2025"]),
        (
            "day",
            "2026-02-27",
            "2026-03-02",
            ["2026-02-27", "2026-02-28", "2026-03-01", "2026-03-02"],
        ),
        ("week", "2026-W08", "2026-W07", None),
        ("week", "2026-W10", "2026-W10", None),
        ("week", "long ago", None, None),
    ],
)
def test_periods_of_a_range(
    every: str, first: str, last: str | None, expected: list[str] | None
) -> None:
    if expected is None:
        with pytest.raises(InputError, match=r"--from|--to"):
            periods(first, last, every, NOW)
        return
    found = periods(first, last, every, NOW)
    assert [name for name, _ in found] == expected
    assert [moment for _, moment in found] == sorted(moment for _, moment in found)


def test_last_days() -> None:
    assert last_day(datetime(2026, 12, 30, tzinfo=UTC), "month").day == 31
    assert period_end("2026-W01", "week", "--from").date().isoformat() == "2026-01-04"


@pytest.mark.parametrize("late", ["run_once", "skip"])
def test_a_time_that_was_asked_for_is_never_late(clinic: Ledger, late: str) -> None:
    rules = ScheduleSection(late=late, tolerance_hours=1)  # type: ignore[arg-type]
    found = due(clinic, "clinic", rules, datetime(2026, 1, 26, tzinfo=UTC), NOW, asked=True)
    assert (found.period, found.idle, found.note) == ("2026-W04", "", "")
    assert (
        due(clinic, "clinic", rules, datetime(2026, 1, 26, tzinfo=UTC), NOW).period != "2026-W04"
        or late == "skip"
    )


def wide(folder: Path, exhausted: str) -> RetrainConfig:
    """Windows of five weeks, at 1.6 a run: a block of (3, 1e-4) pays for three of them and not for
    four.
    """
    config = config_of(
        folder, **STRICT, window={"last": "5 weeks", "since": "2026-W02", "exhausted": exhausted}
    )
    privacy = config.training.privacy.model_copy(update={"epsilon": 1.6})
    return config.model_copy(
        update={"training": config.training.model_copy(update={"privacy": privacy})}
    )


def test_the_budget_is_asked_for_the_whole_range(clinic: Ledger, tmp_path: Path) -> None:
    before = clinic.head()
    plan = rehearse(config_of(tmp_path, **STRICT), "2026-W02", "2026-W06", clinic)
    assert [len(one.blocks) for one in plan] == [1, 2, 3, 3, 3]
    assert len(rehearse(wide(tmp_path, "refuse"), "2026-W02", "2026-W04", clinic)) == 3
    with pytest.raises(
        BudgetExceeded,
        match=r"2026-W02 to 2026-W06: .* 2026-W05, with 3 runs "
        r".*nothing was trained",
    ):
        rehearse(wide(tmp_path, "refuse"), "2026-W02", "2026-W06", clinic)
    left = rehearse(wide(tmp_path, "leave_out"), "2026-W02", "2026-W06", clinic)
    assert [one.left_out for one in left] == [(), (), (), ("2026-W02",), ("2026-W02", "2026-W03")]
    assert clinic.head() == before


def test_the_command_refuses_a_range_before_anything_starts(
    home: Home, clinic: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(
        write_config(
            tmp_path, **wide(tmp_path, "refuse").model_dump(mode="json", exclude_unset=True)
        )
    )
    assert run(["retrain", config, "--from", "2026-W02", "--to", "2026-W06"]) == 3
    assert "nothing was trained" in capsys.readouterr().err
    assert entries(clinic, "clinic") == []
    for wrong in (
        ["--to", "2026-W06"],
        ["--from", "2026-W02", "--at", "2026-02-02"],
        ["--from", "x", "--serve"],
    ):
        assert run(["retrain", config, *wrong]) == 2


@pytest.mark.slow
def test_a_past_time_trains_its_own_period_and_a_range_the_rest_oldest_first(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    """A schedule with its usual tolerance, long after the fact."""
    from flows.retrain import backfill, retrain

    config = config_of(tmp_path, **STRICT)
    first = retrain(config, datetime(2026, 1, 19, 3, tzinfo=UTC))
    assert (first["outcome"], first["period"], first["blocks"]) == (
        "trained",
        "2026-W03",
        ["2026-W02", "2026-W03"],
    )
    plan = rehearse(config, "2026-W02", "2026-W04", clinic)
    assert "trained already" in plan[1].idle
    answer = backfill(config, plan)
    assert [(one["period"], one["outcome"]) for one in answer["periods"]] == [
        ("2026-W02", "trained"),
        ("2026-W03", "skipped"),
        ("2026-W04", "trained"),
    ]
    assert [one["period"] for one in entries(clinic, "clinic")] == [
        "2026-W03",
        "2026-W02",
        "2026-W04",
    ]
    assert list(plan[2].blocks) == answer["periods"][2]["blocks"]
    json.dumps(answer)
