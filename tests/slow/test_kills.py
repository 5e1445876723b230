"""Trainings that are killed at random moments, from an empty home on: the next command works,
nothing paid is lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mlflow import MlflowClient

from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.record import ENTRY, MODEL

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")]

KILLS = 60
HOMES = 6
LONGEST = 300.0


def command(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.Popen(
        call, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def done(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    process = command(folder, environment, *arguments)
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, f"{arguments}: {err}"
    return out


def training(folder: Path) -> list[str]:
    config = folder / "train.yaml"
    config.write_text(
        f"schema_version: 1\ndata: {{name: {folder / 'small.yaml'}, path: "
        f"{folder / 'small.csv'}}}\nprivacy: {{epsilon: 1.0, delta: 1.0e-4}}\nalgorithm: {{name: "
        "dp_sgd, steps: 8}\n"
    )
    return ["train", str(config), "--json"]


def kill_at(folder: Path, environment: dict[str, str], seconds: float) -> bool:
    """Start a training and kill it, and it alone, after ``seconds``; whether it still ran."""
    process = command(folder, environment, *training(folder))
    try:
        process.communicate(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True


def check(folder: Path, environment: dict[str, str]) -> None:
    """The next commands work; what was committed is stored, and what is stored was committed."""
    done(folder, environment, "recover", "--json")
    summary: dict[str, Any] = json.loads(done(folder, environment, *training(folder)))
    done(folder, environment, "ledger", "verify", "--ledger", str(folder / "ledger.db"), "--json")
    with Ledger(folder / "ledger.db") as ledger:
        found = {entry["entry"]: entry["state"] for entry in entries(ledger, "small")}
        assert not ledger.open_entries()
    client = MlflowClient(f"sqlite:///{folder / 'runs' / 'mlflow.db'}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    stored = {
        run.data.tags[ENTRY]: run
        for run in client.search_runs(experiments)
        if MODEL in run.data.tags
    }
    committed = {entry for entry, state in found.items() if state == "committed"}
    assert committed == set(stored), (
        "a model that was paid for is lost, or one that was not paid for is stored"
    )
    assert {run.info.status for run in stored.values()} == {"FINISHED"}
    assert summary["ledger_entry"] in committed


def kills(folder: Path, environment: dict[str, str], random: Random, count: int) -> int:
    """Kill ``count`` trainings in one home that is empty at first, then look at what is left."""
    (folder / "runs").mkdir(exist_ok=True)
    environment = environment | {"DPFLOWS_HOME": str(folder / "runs")}
    done(
        folder,
        environment,
        "ledger",
        "init",
        str(folder / "small.yaml"),
        "--epsilon",
        "60",
        "--delta",
        "1e-4",
    )
    killed, whole = 0, 40.0
    while killed < count:
        started = time.monotonic()
        if kill_at(folder, environment, random.uniform(0.2, whole)):
            killed += 1
        else:
            whole = time.monotonic() - started
    check(folder, environment)
    return killed


@pytest.mark.parametrize("seed", range(HOMES))
def test_sixty_kills_lose_nothing(
    small: Path, clean_environment: dict[str, str], seed: int
) -> None:
    assert kills(small.parent, clean_environment, Random(seed), KILLS // HOMES) == KILLS // HOMES
