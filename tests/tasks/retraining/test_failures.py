"""Crashes, full disks, locked files, absent servers: the budget is never counted too low, and the
next start clears up.

Ledger and MLflow are looked at after a real command in a process of its own; `driver.py` brings the
failure about.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from dpcore.errors import DPFlowsError
from flows.server import get_json
from tasks import training
from tasks.home import Home
from tasks.ledger import Ledger, LedgerUnavailable
from tasks.ledger.reader import LedgerReader
from tasks.record import tracking
from tasks.retraining.schedule import break_lock
from tests.flows.test_flow import runs_of, states
from tests.tasks.retraining.test_deployment import write_config
from tests.tasks.training.test_training import config_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def ledger(small: Path) -> Ledger:
    """The ledger of the small table, with room for two runs at epsilon 1."""
    found = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    found.init("small", 3.0, 1e-4, "add_remove")
    return found


def command(
    point: str, event: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``dpflows`` with ``event`` at ``point``; the home folder and the server are those of this
    test session.
    """
    call = [sys.executable, "-m", "tests.tasks.retraining.driver", point, event, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(call, env=environment, capture_output=True, text=True, timeout=900)


def training_of(small: Path, experiment: str) -> list[str]:
    values = {
        "data.name": small,
        "data.path": small.with_name("small.csv"),
        "privacy.delta": 1e-4,
        "algorithm.steps": 8,
        "tracking.experiment": experiment,
        "evaluate.baselines": "false",
    }
    return [
        "train",
        *(part for key, value in values.items() for part in ("--set", f"{key}={value}")),
    ]


def next_start(ledger: Ledger, experiment: str) -> None:
    """What the next training does first with what a dead process left."""
    from flows.steps import open_store

    open_store(experiment)
    ledger.reap(kept=())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "left", "reaped"),
    [
        ("before", ["reserved"], ["reserved", "forfeited"]),
        ("during", ["reserved"], ["reserved", "forfeited"]),
        ("after", ["reserved"], ["reserved", "forfeited"]),
        ("committed", ["reserved", "committed"], ["reserved", "committed"]),
    ],
)
def test_a_killed_training_stays_charged_and_its_run_is_closed_by_the_next_one(
    server: str,
    home: Home,
    small: Path,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    left: list[str],
    reaped: list[str],
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    experiment = f"killed {point}"
    whole = ledger.room("small").left
    done = command(point, "kill", *training_of(small, experiment), PREFECT_API_URL=server)
    assert done.returncode == -9, done.stderr
    assert states(ledger) == left
    spent = whole - ledger.room("small").left
    assert spent > 0.1
    assert [run.info.status for run in runs_of(home, experiment)] == ["RUNNING"]
    next_start(ledger, experiment)
    assert states(ledger) == reaped
    assert whole - ledger.room("small").left == spent, "a reaper gives nothing back"
    [run] = runs_of(home, experiment)
    assert run.info.status == "KILLED"
    flow_run = get_json(f"{server}/flow_runs/{run.data.tags['dpflows.flow_run']}")
    assert flow_run["state_type"] == "CRASHED"
    assert ledger.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "closed", "words"),
    [
        ("before", "cancelled", "nothing was spent"),
        ("during", "forfeited", "stays charged in full"),
    ],
)
def test_termination_says_what_happened_to_the_budget(
    server: str, home: Home, small: Path, ledger: Ledger, point: str, closed: str, words: str
) -> None:
    experiment = f"terminated {point}"
    done = command(point, "term", *training_of(small, experiment), PREFECT_API_URL=server)
    assert done.returncode == 130, done.stderr
    assert words in done.stderr
    assert states(ledger) == ["reserved", closed]
    assert [run.info.status for run in runs_of(home, experiment)] == ["KILLED"]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before", "during", "after"])
def test_a_full_disk_leaves_the_run_charged(
    server: str, home: Home, small: Path, ledger: Ledger, point: str
) -> None:
    experiment = f"full {point}"
    done = command(point, "full", *training_of(small, experiment), PREFECT_API_URL=server)
    assert done.returncode == 1, done.stderr
    assert "stays charged in full" in done.stderr
    assert ledger.room("small").left < ledger.dataset("small").budget
    next_start(ledger, experiment)
    assert states(ledger) == ["reserved", "forfeited"]
    assert {run.info.status for run in runs_of(home, experiment)} <= {"KILLED", "FAILED"}
    assert ledger.verify().ok


@pytest.mark.slow
def test_a_prefect_server_that_dies_during_the_fit(
    home: Home, small: Path, ledger: Ledger, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    """The training was paid for: its model is committed and stored, whatever the orchestrator has
    seen of it.
    """
    environment = clean_environment | {"DPFLOWS_HOME": str(tmp_path / "runs")}
    call = [
        sys.executable,
        "-m",
        "tests.tasks.retraining.driver",
        "after",
        "server",
        *training_of(small, "server"),
    ]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "done, charged and stored, but Prefect could not record its end" in done.stderr
    assert states(ledger) == ["reserved", "committed"]


def test_an_absent_prefect_server_spends_nothing(
    home: Home,
    small: Path,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from flows.cli import run

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert run(training_of(small, "no server")) == 1
    assert (
        "Expected a Prefect server at PREFECT_API_URL=http://127.0.0.1:9/api"
        in capsys.readouterr().err
    )
    assert states(ledger) == []


def test_an_absent_mlflow_spends_nothing(
    server: str, home: Home, small: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.train import train

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(
        DPFlowsError,
        match=r"Expected MLflow's store at http://127\.0\.0\.1:9 to answer: nothing "
        r"was spent",
    ):
        train(config_of(small))
    assert states(ledger) == []


def test_an_mlflow_that_fails_after_the_fit_keeps_the_model(
    server: str, home: Home, small: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.steps import reporter
    from flows.train import train

    said: list[str] = []
    shown: list[dict[str, Any]] = []

    class Listener:
        def step(self, name: str) -> None: ...
        def progress(self, done: int, total: int) -> None: ...
        def result(self, summary: dict[str, Any]) -> None:
            shown.append(summary)

        def say(self, text: str) -> None:
            said.append(text)

    def unreachable(*_: Any) -> None:
        raise MlflowException("connection refused")

    monkeypatch.setattr(tracking, "log_params", unreachable)
    token = reporter.set(Listener())
    with pytest.raises(MlflowException):
        train(config_of(small, tracking={"experiment": "mlflow gone"}))
    reporter.reset(token)
    assert states(ledger) == ["reserved", "committed"]
    [run] = runs_of(home, "mlflow gone")
    # The numbers are told before anything is written to MLflow.
    assert [(one["run_id"], one["model"], "accuracy" in one["internal"]) for one in shown] == [
        (run.info.run_id, None, True)
    ]
    assert run.info.status == "FAILED"
    folder = home.outbox / run.info.run_id
    assert str(folder) in said[-1] and "charged" in said[-1]
    assert (folder / "model/weights.npz").is_file() and (
        folder / "privacy/statement.json"
    ).is_file()


@contextmanager
def locked(ledger: Ledger) -> Iterator[None]:
    """Another process writes to the ledger and does not end."""
    other = sqlite3.connect(ledger.store.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_locked_ledger_spends_nothing_or_leaves_the_run_charged(
    server: str, home: Home, small: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.train import train

    monkeypatch.setattr(LedgerReader.__init__, "__defaults__", (0.1,))
    whole = ledger.room("small").left
    with locked(ledger), pytest.raises(LedgerUnavailable, match=r"locked.*nothing was reserved"):
        train(config_of(small, tracking={"experiment": "locked"}))
    assert (states(ledger), ledger.room("small").left) == ([], whole)

    real, holders = training.run, []

    def run_and_lock(*arguments: Any, **others: Any) -> Any:
        result = real(*arguments, **others)
        holders.append(locked(ledger))
        holders[-1].__enter__()
        return result

    monkeypatch.setattr(training, "run", run_and_lock)
    with pytest.raises(
        LedgerUnavailable,
        match=r"locked.*stays reserved, which is charged in "
        r"full",
    ):
        train(config_of(small, tracking={"experiment": "locked"}))
    holders[-1].__exit__(None, None, None)
    assert states(ledger) == ["reserved"]
    assert ledger.room("small").left < whole
    assert {run.info.status for run in runs_of(home, "locked")} == {"FAILED"}


@pytest.mark.slow
def test_a_killed_retraining_is_not_charged_again_by_itself(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    """The next trigger takes the lock over, closes entry and run, says that the period was charged,
    and stops.
    """
    config = str(write_config(tmp_path, drift={"epsilon": 0.05}))
    when = ["retrain", config, "--at", "2026-01-26T03:00"]
    done = command("during", "kill", *when, PREFECT_API_URL=server)
    assert done.returncode == -9, done.stderr
    assert states(clinic) == ["reserved"]
    spent = clinic.spent("clinic")
    done = command("none", "none", *when, PREFECT_API_URL=server)
    assert done.returncode == 0, done.stderr
    assert "charged by a run that gave no result" in " ".join(done.stdout.split())
    assert states(clinic) == ["reserved", "forfeited"] and clinic.spent("clinic") == spent
    again = command(
        "none",
        "none",
        *when,
        "--set",
        "schedule.failed=run_again",
        "--json",
        PREFECT_API_URL=server,
    )
    assert again.returncode == 0, again.stderr
    answer = json.loads(again.stdout)
    assert (answer["outcome"], answer["period"]) == ("trained", "2026-W04")
    assert 0 <= answer["drift"]["positive_share"] <= 1
    assert states(clinic) == ["reserved", "forfeited", *["reserved", "committed"] * 2]
    # the period's own run, the killed training and the new one
    ends = sorted(run.info.status for run in runs_of(home, tmp_path.name))
    assert ends == ["FINISHED", "FINISHED", "KILLED"]
    assert break_lock(clinic, "clinic") is None
