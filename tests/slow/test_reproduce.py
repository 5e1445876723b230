"""The quick protocol of some figures of the sources: every cell is trained and measured, and the
figures have the numbers that the text prints. A figure whose run is ended goes on where it was.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flows.compare import make_facts
from tasks.compare import load_compare
from tasks.compare.batch import batches_of, run_batch
from tasks.compare.figures import write_figures
from tasks.compare.resume import make_comparison
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tests.tasks.compare.test_engine import bench_of, public

pytestmark = pytest.mark.slow
REPRODUCE = Path(__file__).parents[2] / "conf" / "reproduce"


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("figure_4_3", {"accuracy", "objective"}),
        ("figure_5_2", {"gradient_evaluations", "loss_evaluations"}),
        ("figure_5_5", {"accuracy", "objective"}),
        ("figure_6_2", {"map", "ndcg_at_8"}),
    ],
)
def test_the_quick_protocol_of_a_figure(
    shared: Path,
    tmp_path: Path,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    metrics: set[str],
) -> None:
    monkeypatch.setenv("DPFLOWS_DATA", str(shared / "data"))
    config = load_compare(str(REPRODUCE / f"{name}.yaml"), ["protocol=quick"])
    comparison = make_comparison(config, home)
    bench = bench_of(comparison)
    records = [
        record for batch in batches_of(comparison.cells, 1) for record in run_batch(batch, bench)
    ]
    assert {record["status"] for record in records} == {"done"}
    assert all(metrics <= record["metrics"].keys() for record in records if record["private"])
    facts = make_facts(comparison, {}, 1.0)
    drawn = [path for path in write_figures(records, tmp_path, facts) if path.suffix == ".csv"]
    for line in config.printed:
        values = [
            float(row["mean"])
            for path in drawn
            for row in csv.DictReader(path.open(encoding="utf-8"))
            if row["label"] == line.label
        ]
        assert values and set(values) == {line.value}


def cells_in(home: Path) -> list[dict[str, Any]]:
    """The finished cells of the journals, each as often as it was written."""
    lines = [line for file in home.glob("cells/*.jsonl") for line in file.read_bytes().split(b"\n")]
    read = [json.loads(line) for line in lines if line.endswith(b"}")]
    return [entry for entry in read if entry.get("status") == "done"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_figure_that_is_ended_goes_on_and_pays_for_what_is_left(
    small: Path, clean_environment: dict[str, str], number: signal.Signals
) -> None:
    """Figure 4.1 on private rows, killed outright or interrupted: no cell is trained twice, and
    those that were finished are not charged again. What was interrupted stays charged where noise
    was drawn, what was killed as a whole.
    """
    home = small.with_name("runs")
    with Ledger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        ledger.init("small", 100.0, 1e-3, "replace_one")
    data = f"data=[{{name: {small}, path: {small.with_name('small.csv')}}}]"
    settings = [data, "protocol={repeats: 4, folds: 5}", "workers=1"]
    settings += ["privacy.epsilon=[0.1]", "objective.l1=[1.0e-4]"]
    command = [sys.executable, "-m", "flows.cli", "compare", str(REPRODUCE / "figure_4_1.yaml")]
    command += ["--json", *(word for setting in settings for word in ("--set", setting))]
    environment = {**clean_environment, "DPFLOWS_HOME": str(home)}

    def started(**options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=environment, cwd=small.parent, text=True, stdout=subprocess.PIPE, **options
        )

    def finish() -> dict[str, Any]:
        process = started()
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        found: dict[str, Any] = json.loads(out)
        return found

    process = started(stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(cells_in(home)) < 45 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, number)
    process.communicate(timeout=300)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    before = cells_in(home)
    private = sum(cell["private"] for cell in before)
    assert 45 <= len(before) < 140 and private

    summary = finish()
    cells = summary["cells"]
    assert (cells["done"], cells["failed"], cells["kept"]) == (cells["all"], 0, len(before))
    keys = [cell["cell"] for cell in cells_in(home)]
    assert len(keys) == len(set(keys)) == cells["all"]
    assert summary["charged"]["small"]["cells"] == 5 * 20 - private
    assert finish()["charged"] == {}
    with Ledger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        states = [entry["state"] for entry in entries(ledger, "small")]
        ledger.verify()
    found = Counter(states)
    again = found.pop("committed")
    assert found.total() == 5 and 1 <= again <= 5
    assert found["forfeited"] == (5 if number == signal.SIGKILL else 5 - found["cancelled"])
    assert (found["cancelled"] > 0) is (number == signal.SIGINT)


@pytest.mark.skipif(sys.platform == "win32", reason="needs groups of processes")
@pytest.mark.parametrize("runner", ["threads", "processes", "dask"])
def test_an_interrupt_at_a_terminal_ends_every_process_and_keeps_what_is_finished(
    small: Path, clean_environment: dict[str, str], runner: str
) -> None:
    """A terminal sends it to the whole group: workers that heard it themselves were waited for
    without end.
    """
    if runner == "dask":
        pytest.importorskip("prefect_dask", reason="no prefect-dask; the extra dask brings it")
    public(small)
    home = small.with_name("runs")
    data = f"data=[{{name: {small}, path: {small.with_name('small.csv')}}}]"
    settings = [data, "protocol={repeats: 2, folds: 5}", "workers=1", f"runner={runner}"]
    settings += ["privacy.epsilon=[0.1]", "objective.l1=[1.0e-4]", "printed=[]"]
    command = [sys.executable, "-m", "flows.cli", "compare", str(REPRODUCE / "figure_4_1.yaml")]
    command += ["--json", *(word for setting in settings for word in ("--set", setting))]

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env={**clean_environment, "DPFLOWS_HOME": str(home)}, cwd=small.parent,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    process = started()
    deadline = time.monotonic() + 300
    while len(cells_in(home)) < 20 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=300)  # until the last process that holds its output is gone
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline + 300:
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    kept = len(cells_in(home))
    assert 20 <= kept < 70
    out, _ = started().communicate(timeout=300)
    cells = json.loads(out)["cells"]
    assert (cells["done"], cells["failed"], cells["kept"]) == (70, 0, kept)
