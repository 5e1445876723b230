"""The page of the budget: what it says of each data set, and that it can be read anywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flows.cli import run
from tasks.home import Home
from tasks.ledger import Blocks, Ledger
from tasks.record import index
from tasks.report.budget import alarms, budget_page
from tests.flows.test_command_line import summary
from tests.ledger_fixtures import DeclaredLedger
from tests.tasks.retraining.test_schedule import RUN


@pytest.fixture
def spent(tmp_path: Path) -> Ledger:
    """Two data sets: one of weekly blocks with three runs, and one that was never touched."""
    ledger = DeclaredLedger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.init("visits", 3.0, 1e-4, "add_remove", blocks=Blocks("week", "day"))
    ledger.init("quiet", 1.0, 1e-6, "add_remove")
    for week in ("2026-W02", "2026-W03"):
        ledger.reserve("visits", RUN, [week, "2026-W03"], period=week).commit()
    return ledger


def test_the_page_says_what_is_left_and_what_still_fits(spent: Ledger) -> None:
    releases = [
        {
            "data": "visits",
            "name": "visits",
            "version": "3",
            "epsilon": 0.8,
            "delta": 1e-4,
            "approved_by": "A. <Person>",
            "at": "2026-01-20T10:00:00",
        }
    ]
    page = budget_page(spent, {"visits": ["2026-02-02 03:00 UTC (weekly)"]}, releases, ["1 waits."])
    assert "<h2>visits</h2>" in page and "<h2>quiet</h2>" in page
    left = spent.room("visits", ["2026-W03"])
    assert left is not None and left.left > 0
    cost = (float(spent.dataset("visits").budget or 0.0) - left.left) / 2
    times = int(left.left / cost * (1 + 1e-9))
    assert f"<strong>{times}</strong> more runs like the newest, by the ledger" in page
    assert "more runs like the newest, by exact Gaussian composition" in page
    assert "2026-02-02 03:00 UTC (weekly)" in page and "Alarm: 1 waits." in page
    assert "A. &lt;Person&gt;" in page and "visits@3" in page
    assert page.count("<rect") == 2 * 2  # two blocks at two changes
    assert "No block was touched yet" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page), "nothing is loaded from elsewhere"
    assert "<script" not in page


def test_alarms_name_what_is_low_and_what_was_lost() -> None:
    report = {"blocks": [{"block": "2026-W02", "share_left": 0.1}]}
    charged: list[dict[str, Any]] = [{"state": "forfeited"}, {"state": "reserved"}]
    assert alarms(report, charged) == [
        "less than 20% of the budget is left in 2026-W02.",
        "1 charged run gave no result.",
        "1 entry is open: training, or died.",
    ]
    assert alarms({"blocks": []}, []) == []


def test_ledger_show_writes_the_page_for_its_owner_alone(
    spent: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path)
    index.note_run(home, summary("a" * 32))
    answer = {"run_id": "a" * 32, "name": "visits", "version": "3", "bundle": "x"}
    index.note_release(home, answer | {"epsilon": 0.5, "delta": 1e-6}, "A. Person")
    page = tmp_path / "pages" / "budget.html"
    assert run(["ledger", "show", "--html", str(page)]) == 0
    text = page.read_text()
    assert "visits@3" in text and "A. Person" in text
    assert page.stat().st_mode & 0o777 == 0o600
    assert "0.8609" not in text, "internal numbers of a run do not stand beside its release"
