"""Comparisons from the command line: MLflow's runs, the ledger, exit codes, and what a killed
process leaves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from dpcore.errors import BudgetExceeded
from flows.compare import reserve_all
from flows.steps import reporter
from tasks.compare import charge as compare_charge
from tasks.compare import resume
from tasks.compare.folds import Rows
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.ledger.schema import DRAWN
from tasks.record import tracking
from tests.flows.test_flow import records as ledger_records
from tests.tasks.compare.test_engine import bench_of, comparison_of, public
from tests.tasks.peers.fake_peer import fake_python


def runs_of(experiment: str, home: Home) -> list[Any]:
    client = MlflowClient(home.tracking_uri)
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id]) if found else []


@pytest.mark.slow
def test_a_parent_with_a_named_child_for_every_line_and_epsilon(
    server: str, home: Home, small: Path
) -> None:
    from flows.compare import compare

    public(small)
    config = comparison_of(
        small, tracking={"experiment": "children", "name": "ours"}, curve_every=1
    )
    summary = compare(config)
    assert summary["cells"] == {"all": 18, "done": 18, "failed": 0, "kept": 0}
    runs = {run.info.run_name: run for run in runs_of("children", home)}
    names = [
        "dp_sgd steps=3 eps=0.5",
        "dp_sgd steps=3 eps=1",
        "dp_adam steps=3 eps=0.5",
        "dp_adam steps=3 eps=1",
    ]
    assert set(runs) == {
        "ours",
        *(f"small {name}" for name in [*names, "majority", "non_private minmax cap"]),
    }
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    child = runs["small dp_sgd steps=3 eps=0.5"]
    assert child.data.tags["mlflow.parentRunId"] == runs["ours"].info.run_id
    assert child.data.params["epsilon"] == "0.5"
    assert (child.data.params["adjacency"], child.data.params["delta"]) == ("add_remove", "0.0001")
    assert {"released.accuracy", "released.accuracy_sd", "released.accuracy_low"} <= set(
        child.data.metrics
    )
    client = tracking.tracking_client(home)
    assert [p.step for p in client.get_metric_history(child.info.run_id, "spent.epsilon")] == [
        1,
        2,
        3,
    ]
    report = {file.path for file in client.list_artifacts(runs["ours"].info.run_id, "report")}
    assert {"report/cells.csv", "report/comparison.html", "report/facts.json"} <= report
    again = compare(config)
    assert again["cells"] == {"all": 18, "done": 18, "failed": 0, "kept": 18}
    assert again["means"] == summary["means"]


@pytest.mark.slow
def test_private_rows_are_one_committed_entry_a_setting(
    server: str, home: Home, small: Path
) -> None:
    from flows.compare import compare

    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 60.0, 1e-3, "add_remove")
    config = comparison_of(small, tracking={"experiment": "private comparison"})
    summary = compare(config)
    assert summary["charged"]["small"]["cells"] == 12
    kinds = [record.kind for record in ledger_records(ledger)]
    assert [kind for kind in kinds if kind != DRAWN] == ["reserved"] * 4 + ["committed"] * 4
    closed = [record for record in ledger_records(ledger) if record.kind == "committed"]
    assert [json.loads(record.body)["draws"] for record in closed] == [9] * 4
    ledger.verify()
    prefixes = {
        key.split(".")[0] for run in runs_of("private comparison", home) for key in run.data.metrics
    }
    assert prefixes <= {"internal", "spent", "cells", "epsilon"}  # epsilon is the configured one
    assert compare(config)["charged"] == {}
    assert len(ledger_records(ledger)) == len(kinds)
    with pytest.raises(BudgetExceeded):
        compare(comparison_of(small, privacy={"epsilon": [20.0, 21.0], "delta": 1e-4}))
    assert len(ledger_records(ledger)) == len(kinds)


def test_a_stopped_comparison_pays_for_the_settings_that_had_begun_alone(
    home: Home, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(reporter.get(), "say", said.append, raising=False)
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 60.0, 1e-3, "add_remove")
    comparison = resume.make_comparison(comparison_of(small), home)
    [charge] = (charges := compare_charge.charges(comparison, home)).values()
    whole = ledger.room("small").left

    def left() -> float:
        room = ledger.room("small")
        assert room is not None
        return float(room.left)

    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:
        made = reserve_all(stack, comparison, charges, home)
        assert list(made) == [id(setting) for setting, _ in charge.parts] and len(made) == 4
        assert whole - left() == pytest.approx(charge.cost, rel=1e-9)
        second = list(made.values())[1]
        second.on_charge()
        raise KeyboardInterrupt
    states = [entry["state"] for entry in entries(ledger, "small")]
    assert sorted(states) == ["cancelled"] * 3 + ["forfeited"]
    own = charge.room.cost(charge.parts[1][1])
    assert whole - left() == pytest.approx(own, rel=1e-9) and 0 < own < charge.cost
    assert "of 4 settings 1 stay charged in full" in said[-1]
    ledger.verify()


def test_a_cell_draws_on_the_reservation_of_its_own_setting(home: Home, small: Path) -> None:
    comparison = resume.make_comparison(comparison_of(small), home)
    bench = bench_of(comparison)
    drawn: Counter[int] = Counter()
    private = [setting for setting in comparison.settings if setting.private]
    bench.charges = {id(one): partial(drawn.update, [id(one)]) for one in private}
    cells = {id(cell.setting): cell for cell in comparison.cells}
    exact = next(one for one in comparison.settings if not one.private)
    for setting in (private[2], exact):
        assert bench.run(cells[id(setting)])["status"] == "done"
    assert drawn == {id(private[2]): 3}


@pytest.mark.slow
def test_one_failed_cell_stops_no_other(
    server: str, home: Home, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.compare import compare

    public(small)
    whole = Rows.part

    def part(self: Rows, cell: Any) -> Any:
        if (cell.setting.label, cell.fold) == ("majority", 1):
            raise ValueError("a fault of this cell")
        return whole(self, cell)

    monkeypatch.setattr(Rows, "part", part)
    summary = compare(comparison_of(small, tracking={"experiment": "one fault"}))
    assert (summary["cells"]["failed"], summary["cells"]["done"]) == (1, 17)
    [failure] = summary["failures"]
    assert failure == {
        "data": "small",
        "label": "majority",
        "error": "ValueError: a fault of this cell",
        "cells": 1,
    }


SLOW = """\
schema_version: 1
data: [census]
privacy: {epsilon: [1]}
algorithms: [{name: dp_sgd, parameters: {steps: 400}}]
protocol: {repeats: 4, folds: 3}
workers: 1
tracking: {experiment: killed}
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_that_is_ended_goes_on_where_it_was(
    clean_environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    """Killed outright, or interrupted: finished cells are kept, MLflow's runs do not stay
    RUNNING.
    """
    (tmp_path / "slow.yaml").write_text(SLOW)
    environment = {**clean_environment, "DPFLOWS_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "flows.cli", "compare", "slow.yaml", "--json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 300
    lines = 0
    while lines < 14 and time.monotonic() < deadline and process.poll() is None:
        lines = sum(
            file.read_bytes().count(b"\n") for file in (tmp_path / "home" / "cells").glob("*.jsonl")
        )
        time.sleep(0.05)
    os.kill(process.pid, number)
    process.communicate(timeout=300)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    [journal] = (tmp_path / "home" / "cells").glob("*.jsonl")
    kept = journal.read_bytes().count(b"\n")
    assert 14 <= kept < 36
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cells"] == {"all": 36, "done": 36, "failed": 0, "kept": kept}
    states = Counter(run.info.status for run in runs_of("killed", Home(tmp_path / "home")))
    assert "RUNNING" not in states
    assert states["KILLED"] >= 1


SPREAD = """\
schema_version: 1
data: [census]
privacy: {epsilon: [1]}
algorithms: [{name: dp_sgd, parameters: {steps: 20}}]
protocol: {repeats: 1, folds: 2}
workers: 2
reproducible: true
tracking: {experiment: spread}
"""


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["processes", "dask"])
def test_other_processes_do_the_same_cells(
    clean_environment: dict[str, str], tmp_path: Path, runner: str
) -> None:
    """With noise from the seed the numbers are those of threads, bit for bit: rows, folds and plans
    are the same.
    """
    if runner == "dask":
        pytest.importorskip("prefect_dask", reason="no prefect-dask; the extra dask brings it")
    (tmp_path / "spread.yaml").write_text(SPREAD)
    means = []
    for name in ("threads", runner):
        environment = {**clean_environment, "DPFLOWS_HOME": str(tmp_path / name)}
        command = [
            sys.executable,
            "-m",
            "flows.cli",
            "compare",
            "spread.yaml",
            "--json",
            "--set",
            f"runner={name}",
        ]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        summary = json.loads(done.stdout)
        assert summary["cells"] == {"all": 6, "done": 6, "failed": 0, "kept": 0}
        means.append([(mean["name"], mean["metrics"]) for mean in summary["means"]])
        [journal] = (tmp_path / name / "cells").glob("*.jsonl")
        assert journal.read_bytes().count(b"\n") == 6
    assert means[0] == means[1]


@pytest.mark.slow
def test_a_failed_cell_gives_exit_code_1(clean_environment: dict[str, str], tmp_path: Path) -> None:
    """A library whose training fails, among lines that do not: they are done, and the command says
    what failed.
    """
    environment = {**clean_environment, "DPFLOWS_HOME": str(tmp_path / "home")}
    python = fake_python(tmp_path / "fake", train="raise ValueError('a fault of the library')")
    config = SPREAD.replace(
        "reproducible: true", f"peers: {{python: {python}, libraries: [{{name: opacus}}]}}"
    )
    (tmp_path / "fails.yaml").write_text(config.replace("spread", "fails"))
    command = [sys.executable, "-m", "flows.cli", "bench", "fails.yaml"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stderr
    assert (
        "failed 2x: census opacus: PeerError: opacus: ValueError: a fault of the library"
        in " ".join(done.stdout.replace("│", " ").split())
    )
    assert "Failed: census opacus" in done.stderr
    runs = {run.info.run_name: run for run in runs_of("fails", Home(tmp_path / "home"))}
    assert runs["census opacus eps=1"].info.status == "FAILED"
    assert runs["census dp_sgd steps=20 eps=1"].info.status == "FINISHED"
    assert runs["bench census"].info.status == "FINISHED"
    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert again.returncode == 1 and "6 of 8 cells are finished already" in again.stderr
    (tmp_path / "fake" / "python").unlink()
    fake_python(tmp_path / "fake")
    mended = subprocess.run(
        [*command, "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert mended.returncode == 0, mended.stderr
    [ratio] = json.loads(mended.stdout)["ratios"]
    assert (ratio["label"], ratio["peer"], ratio["peer_seconds"]) == (
        "dp_sgd steps=20",
        "opacus",
        0.5,
    )


@pytest.mark.slow
def test_crossval_is_named_so(clean_environment: dict[str, str], tmp_path: Path) -> None:
    environment = {**clean_environment, "DPFLOWS_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "flows.cli", "crossval", "--folds", "2", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    [parent] = [
        run
        for run in runs_of(json.loads(done.stdout)["experiment"], Home(tmp_path / "home"))
        if "mlflow.parentRunId" not in run.data.tags
    ]
    assert parent.info.run_name == "crossval census"
    assert parent.data.tags["dpflows.command"] == "crossval"
