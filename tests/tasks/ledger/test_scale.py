"""A hundred thousand entries: what one reservation, one look and one replay take."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from dpcore.accounting import Events
from tasks.ledger import Ledger
from tests.tasks.ledger.bulk import fill
from tests.tasks.ledger.conftest import gaussian

ENTRIES = 100_000

CHILD = """
import os, sys
from tasks.ledger import Ledger
from tests.tasks.ledger.conftest import gaussian
ledger, run = Ledger(sys.argv[1]), gaussian(100.0)
ledger.reserve("toy", run, public=True).commit()
os.access("begin", 0)
for _ in range(20):
    ledger.reserve("toy", run, public=True).commit()
os.access("end", 0)
"""


def median_seconds(act, times: int = 50) -> float:
    taken = []
    for _ in range(times):
        start = perf_counter()
        act()
        taken.append(perf_counter() - start)
    return statistics.median(taken)


@pytest.mark.slow
def test_a_hundred_thousand_entries(sqlite_ledger: Ledger) -> None:
    """Five times what an empty ledger takes at most: no cost grows with the entries as they do."""
    for name in ("west", "east"):
        sqlite_ledger.init(name, 1000.0, 1e-6, "add_remove", order=32.0)
    mixes: list[Events] = [gaussian(300.0 + number) for number in range(100)]
    first = median_seconds(lambda: sqlite_ledger.reserve("west", mixes[0]).commit())
    fill(sqlite_ledger, "east", mixes, ENTRIES)
    assert median_seconds(lambda: sqlite_ledger.reserve("east", mixes[0]).commit()) < 5.0 * first
    assert median_seconds(lambda: sqlite_ledger.room("east")) < 0.050
    report = sqlite_ledger.verify()
    assert report.entries == ENTRIES + 100 and report.mechanism_lists == len(mixes)
    assert report.seconds < 20


def test_a_small_ledger_filled_at_once_verifies(sqlite_ledger: Ledger) -> None:
    sqlite_ledger.init("east", 1000.0, 1e-6, "add_remove", order=32.0)
    fill(sqlite_ledger, "east", [gaussian(300.0), gaussian(400.0)], 50)
    sqlite_ledger.reserve("east", gaussian(300.0)).commit()
    report = sqlite_ledger.verify()
    assert (report.entries, report.mechanism_lists) == (51, 2)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace to count fsyncs")
def test_each_commit_syncs_log_file_and_head(tmp_path: Path) -> None:
    root, trace = Path(__file__).resolve().parents[3], tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-e",
        "trace=fsync,fdatasync,access,faccessat",
        "-o",
        str(trace),
        sys.executable,
    ]
    command += ["-c", CHILD, str(tmp_path / "ledger.db")]
    done = subprocess.run(
        command,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    between = trace.read_text().split('"begin"')[1].split('"end"')[0]
    # Two commits each: log's heading, log, log again and file when it is carried over, and the head
    # beside it.
    assert 2 * 20 * 4 <= between.count("sync(") <= 2 * 20 * 5
