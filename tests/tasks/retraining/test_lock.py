"""One retraining at a time for a data set: processes with homes of their own that share a ledger,
a file or on PostgreSQL.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dpcore.errors import DPFlowsError
from tasks.ledger import Blocks, Ledger
from tasks.ledger.entries import entries
from tasks.retraining.schedule import break_lock, one_at_a_time
from tasks.schema import find_schema
from tests.ledger_fixtures import DeclaredLedger
from tests.tasks.ledger.conftest import url
from tests.tasks.retraining.weekly import config_of, write_weekly

__all__ = ["url"]

ROUNDS = 4


def hold(address: str, home: str, log: str, rounds: int) -> None:
    """Hold the lock ``rounds`` times, and note each beginning and end in ``log``."""
    os.environ["DPFLOWS_HOME"] = home
    with Ledger(address) as ledger:
        for _ in range(rounds):
            with one_at_a_time(ledger, "clinic", wait_minutes=2, pause=0.01):
                _note(log, "in")
                time.sleep(0.02)
                _note(log, "out")


def hold_and_die(address: str, home: str) -> None:
    os.environ["DPFLOWS_HOME"] = home
    with one_at_a_time(Ledger(address), "clinic"):
        os._exit(9)


def _note(log: str, word: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{word} {os.getpid()}\n".encode())
    os.close(handle)


def opened(address: str) -> Ledger:
    ledger = DeclaredLedger(address)
    ledger.init("clinic", 3.0, 1e-4, "add_remove")
    return ledger


def test_processes_of_two_homes_hold_the_lock_in_turn(url: str, tmp_path: Path) -> None:
    opened(url).close()
    log, fork = tmp_path / "log", multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=hold, args=(url, str(tmp_path / f"home{k}"), str(log), ROUNDS))
        for k in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * 2 * ROUNDS
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        assert (first.split()[0], second.split()[0]) == ("in", "out")
        assert first.split()[1] == second.split()[1], "two held the lock at once"


def test_the_lock_of_a_killed_process_of_another_home_is_taken(url: str, tmp_path: Path) -> None:
    with opened(url) as ledger:
        fork = multiprocessing.get_context("fork")
        worker = fork.Process(target=hold_and_die, args=(url, str(tmp_path / "other")))
        worker.start()
        worker.join()
        assert worker.exitcode == 9
        with one_at_a_time(ledger, "clinic"):
            pass
        assert break_lock(ledger, "clinic") is None


@pytest.mark.slow
def test_two_retrainings_at_once_from_two_homes_train_a_period_once(
    url: str, tmp_path: Path
) -> None:
    """One trains; the other waits for it, sees that the period is done, and charges nothing."""
    write_weekly(tmp_path)
    schema = tmp_path / "clinic.yaml"
    schema.write_text(schema.read_text().replace(f"sqlite:///{tmp_path / 'ledger.db'}", url))
    with DeclaredLedger(url) as ledger:
        ledger.init("clinic", 3.0, 1e-4, "add_remove", blocks=Blocks.of(find_schema(schema)))
    values = config_of(tmp_path, schedule={"wait_minutes": 5}).model_dump(mode="json")
    (tmp_path / "retrain.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "flows.cli", "retrain", str(tmp_path / "retrain.yaml")]
    running = [
        subprocess.Popen(
            [*command, "--at", "2026-01-26T03:00", "--json"],
            env={**os.environ, "DPFLOWS_HOME": str(tmp_path / f"home{k}")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    ended = [process.communicate(timeout=500) for process in running]
    assert [process.returncode for process in running] == [0, 0], ended
    answers = [json.loads(out) for out, _ in ended]
    assert sorted(answer["outcome"] for answer in answers) == ["skipped", "trained"]
    with Ledger(url) as ledger:
        assert len(entries(ledger, "clinic")) == 1 and ledger.verify().ok
        with pytest.raises(DPFlowsError, match="holds its lock"):
            _stand_in(ledger)


def _stand_in(ledger: Ledger) -> None:
    with one_at_a_time(ledger, "clinic"), one_at_a_time(ledger, "clinic"):
        pass
