"""Processes that end while rows are encoded or read: killed, interrupted, on a full disk. Nothing
stays, and nothing is spent that was not drawn.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tasks.data import store
from tasks.data.load import load
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.schema import find_schema

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

LONGEST = 240.0
# Encode a table into shards of 64 rows; say so at the second one, and wait there or go on.
DRIVER = """
import resource, sys, time
from pathlib import Path
from tasks.data import store
from tasks.data.load import load
from tasks.schema import find_schema
from dpcore.preprocess.coding import Coding

store.SHARD_ROWS = 64
schema = find_schema(sys.argv[1])
encoder = schema.encoder(normalise="none", numeric="hats(8)")
if sys.argv[3] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
stored, seen = store._stored, []

def watched(path, part):
    found = stored(path, part)
    if "shard-00001" in path.name and sys.argv[3] == "wait":
        print("writing", flush=True)
        time.sleep(600)
    return found

store._stored = watched
storage = store.Storage(Coding.of(encoder), True, 300)
load(schema, encoder, sys.argv[1].replace(".yaml", ".csv"), spool=Path(sys.argv[2]), storage=storage)
"""


def driver(small: Path, what: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(small), str(small.parent / "spool"), what],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_what_a_killed_process_left_goes_with_the_next_that_reads(
    small: Path, clean_environment: dict[str, str]
) -> None:
    spool = small.parent / "spool"
    process = driver(small, "wait", clean_environment)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    [folder] = spool.glob(f"{store.PREFIX}*")
    assert folder.stat().st_mode & 0o777 == 0o700 and len(list(folder.iterdir())) > 2
    store.sweep(spool)
    assert folder.exists()  # its process lives
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert folder.exists()  # nobody was left to remove it
    schema = find_schema(str(small))
    table = str(small.with_name("small.csv"))
    encoder = schema.encoder(normalise="none", numeric="minmax")
    load(schema, encoder, table, spool=spool)  # a small table, as a matrix
    assert not list(spool.glob(f"{store.PREFIX}*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"), [("wait", "KeyboardInterrupt"), ("limit", "make room there")]
)
def test_an_interrupt_and_a_full_disk_leave_nothing(
    small: Path, clean_environment: dict[str, str], what: str, words: str
) -> None:
    process = driver(small, what, clean_environment)
    if what == "wait":
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=LONGEST)
    assert process.returncode and words in error
    assert not list((small.parent / "spool").glob(f"{store.PREFIX}*"))


@pytest.fixture
def large(small: Path, clean_environment: dict[str, str]) -> Iterator[Callable[..., Popen]]:
    """A training of 400,000 rows in shards, started with further arguments."""
    rows = small.with_name("small.csv")
    header, *lines = rows.read_text().splitlines()
    with rows.open("w") as file:
        file.write(f"{header}\n")
        for k in np.random.default_rng(0).integers(0, len(lines), 400_000):
            file.write(f"{lines[k]}\n")
    small.write_text(small.read_text().replace("n: 300", "n: 400000"))
    environment = clean_environment | {"DPFLOWS_HOME": str(small.parent / "home")}
    call = [sys.executable, "-m", "flows.cli"]
    opened = ["ledger", "init", str(small), "--epsilon", "9", "--delta", "1e-7"]
    subprocess.run([*call, *opened], env=environment, check=True, capture_output=True)
    settings = [f"data.name={small}", f"data.path={rows}", "engine.kind=shards"]
    settings += ["privacy.delta=1e-8", "algorithm.name=scaled_gd"]
    started: list[Popen] = []

    def start(*more: str) -> Popen:
        given = [part for one in (*settings, *more) for part in ("--set", one)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([*call, "train", *given], env=environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


Popen = subprocess.Popen


def wait_for(true: Callable[[], object], process: Popen) -> None:
    started = time.monotonic()
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - started < LONGEST
        time.sleep(0.002)


def states(small: Path) -> list[str]:
    with Ledger(small.parent / "ledger.db") as ledger:
        return [entry["state"] for entry in entries(ledger, "small")]


def encoding(small: Path) -> list[Path]:
    return list((small.parent / "home" / "rows").glob(f"{store.PREFIX}*"))


@pytest.mark.slow
def test_an_interrupt_while_encoding_spends_nothing(
    small: Path, large: Callable[..., Popen]
) -> None:
    process = large()
    wait_for(lambda: encoding(small), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST)
    assert process.returncode == 130
    assert states(small) == [] and encoding(small) == []


@pytest.mark.slow
def test_a_kill_while_encoding_spends_nothing_and_one_while_training_is_charged_once(
    small: Path, large: Callable[..., Popen]
) -> None:
    process = large()
    wait_for(lambda: encoding(small), process)
    process.kill()
    process.communicate()
    assert states(small) == [] and len(encoding(small)) == 1

    process = large("algorithm.steps=20000")
    wait_for(lambda: states(small), process)
    assert encoding(small) == []  # what was left, and the rows that are read now
    time.sleep(0.5)
    process.kill()
    process.communicate()
    assert encoding(small) == [] and len(states(small)) == 1

    process = large()
    _, error = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, error
    assert states(small) == ["forfeited", "committed"] and encoding(small) == []
