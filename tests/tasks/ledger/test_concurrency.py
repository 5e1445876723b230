"""Many processes at one budget, and processes that are killed: never above the budget, never
under-counted.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import event

from dpcore.errors import BudgetExceeded
from tasks.ledger import Ledger
from tasks.ledger.engines import private_file
from tasks.ledger.records import UNIT
from tests.tasks.ledger.conftest import gaussian


def spend(url: str, seed: int, sizes: list[float]) -> list[str]:
    """Reserve runs of random size until even the smallest is refused; end each in a random way."""
    random, entries, refused = Random(seed), [], 0
    with Ledger(url, timeout=60) as ledger:
        while refused < 3:
            events = gaussian(random.choice(sizes) if not refused else max(sizes))
            try:
                reservation = ledger.reserve("east", events)
            except BudgetExceeded:
                refused += 1
                continue
            entries.append(reservation.entry_id)
            ending = random.randrange(4)
            if ending:
                reservation.on_charge()
            {
                0: reservation.cancel,
                1: reservation.commit,
                2: lambda r=reservation: r.forfeit("failed"),
            }.get(ending, lambda: None)()
    return entries


def answering(answers, work, *arguments) -> None:
    """Send back what ``work`` returns, or the error that it raises, so that nobody waits for a
    process that failed.
    """
    try:
        answers.put(work(*arguments))
    except Exception as error:
        answers.put(error)


def all_answers(workers: list[tuple]) -> list:
    """Run (function, arguments...) in one process each, at once."""
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "fork")
    answers = context.Queue()
    processes = [context.Process(target=answering, args=(answers, *worker)) for worker in workers]
    for process in processes:
        process.start()
    found = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return found


@pytest.mark.parametrize(
    ("sizes", "least"),
    [([20.0, 30.0, 40.0], 20), pytest.param([40.0, 80.0, 160.0], 100, marks=pytest.mark.slow)],
)
def test_eight_processes_never_overspend_and_lose_no_entry(
    url: str, sizes: list[float], least: int
) -> None:
    with Ledger(url) as ledger:
        opened = ledger.init("east", 1.0, 1e-6, "add_remove")
    found = all_answers([(spend, url, seed, sizes) for seed in range(8)])
    assert all(isinstance(answer, list) for answer in found), found
    entries = [entry for answer in found for entry in answer]
    with Ledger(url) as ledger:
        report = ledger.verify()
        assert report.entries == len(entries) == len(set(entries)) >= least
        assert ledger.spent("east")["all"] <= opened.budget * UNIT * (1 + 1e-9)
        assert ledger.room("east").left < max(sizes) ** -2 * opened.order, "the budget was used up"


def first_write(url: str) -> str:
    with Ledger(url, timeout=60) as ledger:
        return ledger.reserve("toy", gaussian(50.0), public=True).commit()


def test_processes_that_meet_at_a_ledger_that_does_not_exist_yet(url: str) -> None:
    heads = all_answers([(first_write, url)] * 8)
    assert all(isinstance(head, str) for head in heads), heads
    with Ledger(url) as ledger:
        assert ledger.verify().entries == len(set(heads)) == 8 and len(ledger.datasets()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_may_use_its_parents_ledger(ledger: Ledger) -> None:
    """The child opens connections of its own; the parent's go on."""
    ledger.init("east", 1.0, 1e-6, "add_remove")

    def reserve() -> str:
        return ledger.reserve("east", gaussian(50.0)).commit()

    heads = {reserve(), *all_answers([(reserve,), (reserve,)]), reserve()}
    assert ledger.verify().entries == len(heads) == 4


def train(url: str, out: Path, fatal: int, answers) -> None:
    """Train twice, with a noisy value leaving after each charge, and die at step ``fatal`` (0:
    live).
    """
    step = 0

    def tick(*_: object) -> None:
        nonlocal step
        step += 1
        if step == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = Ledger(url)
    ledger.head()
    for name in ("before_cursor_execute", "after_cursor_execute", "begin", "commit"):
        event.listen(ledger.store.engine, name, tick)
    for _ in range(2):
        reservation = ledger.reserve("east", gaussian(50.0, 3))
        tick()
        for _ in range(3):
            reservation.on_charge()
            tick()
            with out.open("a") as file:
                file.write(reservation.entry_id + "\n")
            tick()
        reservation.commit()
        tick()
    answers.put(step)


def run_child(url: str, out: Path, fatal: int) -> int:
    """Return the number of steps of a training that lived, minus the signal of one that died."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=train, args=(url, out, fatal, answers))
    child.start()
    child.join(timeout=300)
    return child.exitcode or answers.get()


def killed_at(url: str, out: Path, fatal: int) -> None:
    """Kill a training at its ``fatal``-th step and check that every value that left is charged."""
    with Ledger(url) as ledger:
        before = ledger.spent("east").get("all", 0)
        ledger.close()
        assert run_child(url, out, fatal) == -signal.SIGKILL
        left = out.read_text().split() if out.exists() else []
        charged = {}
        with ledger.store.reading() as connection:
            for row in connection.exec_driver_sql(
                "SELECT entry, body FROM ledger_records WHERE kind = 'reserved'"
            ):
                charged[row.entry] = json.loads(row.body)["releases"]
        assert all(left.count(entry) <= charged[entry] for entry in left)
        spent = ledger.spent("east").get("all", 0)
        assert spent >= before
        still_open = {record.entry for record in ledger.open_entries()}
        assert set(ledger.reap(kept=())) == still_open
        assert ledger.spent("east").get("all", 0) == spent, "a reaper gives nothing back"
        assert ledger.verify().ok and not ledger.open_entries()


@pytest.fixture
def steps(sqlite_ledger: Ledger, tmp_path: Path) -> int:
    """How many steps a whole training has; the first one also stores the mechanisms, so the second
    is counted.
    """
    sqlite_ledger.init("east", 100.0, 1e-6, "add_remove")
    sqlite_ledger.close()
    return [run_child(str(sqlite_ledger.store.path), tmp_path / "whole", 0) for _ in range(2)][1]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_killed_trainings_are_charged(sqlite_ledger: Ledger, steps: int, tmp_path: Path) -> None:
    for number, fatal in enumerate(range(2, steps, steps // 8)):
        killed_at(str(sqlite_ledger.store.path), tmp_path / f"out{number}", fatal)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_two_hundred_killed_trainings_are_charged(
    sqlite_ledger: Ledger, steps: int, tmp_path: Path
) -> None:
    """Every step of reserve, draw, write and commit at least once, then random ones."""
    random = Random(1)
    points = [*range(1, steps + 1), *(random.randint(1, steps) for _ in range(200 - steps))]
    for number, fatal in enumerate(points):
        killed_at(str(sqlite_ledger.store.path), tmp_path / f"out{number}", fatal)


def test_preparing_the_file_keeps_the_locks_of_open_connections(tmp_path: Path) -> None:
    """POSIX drops a process's locks on a file when it closes any handle of it: another writer would
    get in.
    """
    path = tmp_path / "ledger.db"
    private_file(path)
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        private_file(path)
        code = (
            f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        connection.execute("ROLLBACK")
    assert "database is locked" in other.stderr
