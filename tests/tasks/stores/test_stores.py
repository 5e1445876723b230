"""Stores of a home folder: made by one process at a time, never half, upgraded with a way back."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from dpcore.errors import DPFlowsError
from tasks import stores as stores_made
from tasks.home import Home
from tasks.stores import Database, ensure_stores, making_stores, revision

ROOT = Path(__file__).resolve().parents[3]

# A process that makes a store as a library would: its tables one by one, each only once. It writes
# down that it began.
MAKER = """
import os, sqlite3, sys, time
from pathlib import Path
from tasks import stores
from tasks.home import Home

folder, pause = Path(sys.argv[1]), float(sys.argv[2])

def create(path, lock):
    with (folder / "began").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    database = sqlite3.connect(path, isolation_level=None)
    for table in ("runs", "alembic_version"):
        database.execute(f"CREATE TABLE {table} (version_num TEXT)")
        time.sleep(pause)
    database.execute("INSERT INTO alembic_version VALUES ('a1')")
    database.close()

store = stores.Database("numpy", folder / "toy.db", create, create, "runs")
stores.stores_to_make = lambda home, *_: {} if stores._known(folder, store) else {folder: [store]}
stores.ensure_stores(Home(folder), prefect=False)
print(stores.revision(store.path))
"""


def start(folder: Path, pause: float = 0.05) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(folder), str(pause)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_make_a_store_once(tmp_path: Path) -> None:
    started = [start(tmp_path) for _ in range(8)]
    assert [process.communicate(timeout=300)[0].strip() for process in started] == ["a1"] * 8
    assert [process.returncode for process in started] == [0] * 8
    assert len((tmp_path / "began").read_text().split()) == 1
    assert json.loads((tmp_path / stores_made.KNOWN).read_text())["numpy"]["revision"] == "a1"


def test_a_maker_that_is_killed_leaves_no_half_store(tmp_path: Path) -> None:
    killed = start(tmp_path, pause=60)
    give_up = time.monotonic() + 300
    while not list(tmp_path.glob("toy.db.making-*")) and time.monotonic() < give_up:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "toy.db").exists()
    assert start(tmp_path).communicate(timeout=300)[0].strip() == "a1"
    assert list(tmp_path.glob("toy.db.making-*")) == []


def test_the_lock_holds_as_long_as_a_child_of_a_killed_maker_works(tmp_path: Path) -> None:
    """An upgrade in place goes on in the child; nobody may begin another one beside it."""
    code = (
        "import os, subprocess, sys; from pathlib import Path; from tasks.stores import "
        "making_stores\nwith making_stores(Path(sys.argv[1])) as lock:\n    "
        "subprocess.Popen([sys.executable, '-c', 'input()'], pass_fds=(lock,)); print('held', "
        "flush=True)\n    os.kill(os.getpid(), 9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        assert maker.stdout is not None
        assert maker.stdin is not None
        assert maker.stdout.readline().strip() == "held"
        assert maker.wait(timeout=300) == -signal.SIGKILL
        waits = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from tasks.stores import *\nwith making_stores(Path({str(tmp_path)!r})): pass",
            ],
            cwd=ROOT,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waits.wait(timeout=1.5)
        maker.stdin.write("\n")
        maker.stdin.close()
        assert waits.wait(timeout=300) == 0


def toy(folder: Path, upgrade: object, create: object = None) -> Database:
    def make(path: Path, lock: int) -> None:
        write(path, "CREATE TABLE runs (id); CREATE TABLE alembic_version (version_num)", "a1")

    return Database("numpy", folder / "toy.db", create or make, upgrade, "runs")  # type: ignore[arg-type]


def write(path: Path, script: str, number: str | None) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)
        if number is not None:
            database.executescript(
                f"DELETE FROM alembic_version; INSERT INTO alembic_version VALUES ('{number}')"
            )
        database.commit()


def ensure(folder: Path, store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(stores_made, "stores_to_make", lambda *_: {folder: [store]})
        ensure_stores(Home(folder), prefect=False)


def rows(path: Path) -> list[object]:
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT id FROM runs")]


def test_an_upgrade_keeps_rows_and_the_copy_goes_when_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "toy.db",
        "CREATE TABLE alembic_version (version_num); CREATE TABLE runs (id)",
        "a0",
    )
    write(tmp_path / "toy.db", "INSERT INTO runs VALUES (7)", None)

    def upgrade(path: Path, lock: int) -> None:
        assert rows(path.with_name("toy.db.before-upgrade")) == [7]
        write(path, "ALTER TABLE runs ADD COLUMN name", "a1")

    ensure(tmp_path, toy(tmp_path, upgrade), monkeypatch)
    assert (rows(tmp_path / "toy.db"), revision(tmp_path / "toy.db")) == ([7], "a1")
    assert not (tmp_path / "toy.db.before-upgrade").exists()


def test_an_upgrade_that_was_killed_is_done_again_from_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "toy.db",
        "CREATE TABLE alembic_version (version_num); CREATE TABLE runs (id)",
        "a0",
    )
    write(tmp_path / "toy.db", "INSERT INTO runs VALUES (7)", None)
    calls = []

    def upgrade(path: Path, lock: int) -> None:
        calls.append(path)
        # fails where the column stands already
        write(path, "ALTER TABLE runs ADD COLUMN name", None)
        if len(calls) == 1:
            raise KeyboardInterrupt
        write(path, "", "a1")

    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path, toy(tmp_path, upgrade), monkeypatch)
    # Also for the version that made the tables, where one goes back to it: they are not those any
    # more.
    stores_made._remember(tmp_path, toy(tmp_path, upgrade))
    assert not stores_made._known(tmp_path, toy(tmp_path, upgrade))
    ensure(tmp_path, toy(tmp_path, upgrade), monkeypatch)
    assert (rows(tmp_path / "toy.db"), revision(tmp_path / "toy.db")) == ([7], "a1")


def refuses(path: Path, lock: int) -> None:
    write(path, "DELETE FROM runs" if rows(path) else "", None)
    raise DPFlowsError("table runs already exists")


def test_half_tables_of_a_killed_first_start_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "toy.db", "CREATE TABLE runs (id)", None)
    ensure(tmp_path, toy(tmp_path, refuses), monkeypatch)
    assert revision(tmp_path / "toy.db") == "a1"
    assert (tmp_path / "toy.db.unusable").is_file()


def test_a_store_in_use_is_never_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / "toy.db",
        "CREATE TABLE alembic_version (version_num); CREATE TABLE runs (id)",
        "a0",
    )
    write(tmp_path / "toy.db", "INSERT INTO runs VALUES (7)", None)
    with pytest.raises(
        DPFlowsError,
        match=r"it is as it was, and nothing was spent.*move the file "
        r"away",
    ):
        ensure(tmp_path, toy(tmp_path, refuses), monkeypatch)
    assert rows(tmp_path / "toy.db") == [7]


def test_a_database_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(DPFlowsError, match="Expected a database that can be read at"):
        ensure(tmp_path, toy(tmp_path, refuses), monkeypatch)
    assert (tmp_path / "toy.db").stat().st_size == 1800


def test_a_block_inside_another_goes_on_with_the_lock(tmp_path: Path) -> None:
    with making_stores(tmp_path) as outer, making_stores(tmp_path) as inner:
        assert outer == inner
    with making_stores(tmp_path):
        pass


def test_stores_of_another_place_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for name in stores_made.PREFECT_URLS:
        monkeypatch.setenv(name, "postgresql+asyncpg://somewhere/else")
    assert stores_made.stores_to_make(Home(tmp_path)) == {}


ENSURE = """
import sys
from pathlib import Path
from tasks.home import Home
from tasks.stores import ensure_stores, revision
home = Home(Path(sys.argv[1])).prepare()
ensure_stores(home)
print(revision(home.root / "mlflow.db"), revision(home.prefect / "prefect.db"))
"""


@pytest.mark.slow
def test_the_real_stores_are_made_and_upgraded_once_by_four_at_once(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """Prefect's tables go back by one revision in between, as an older version would have left
    them; about 30 s.
    """

    def at_once() -> set[str]:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", ENSURE, str(tmp_path)],
                env=clean_environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        said = {process.communicate(timeout=300)[0].strip() for process in started}
        assert [process.returncode for process in started] == [0] * 4
        return said

    [made] = at_once()
    assert "None" not in made
    before = revision(tmp_path / "prefect" / "prefect.db")
    environment = {**clean_environment, **Home(tmp_path).environment()}
    call = [sys.executable, "-m", "prefect", "server", "database", "downgrade", "-r", "-1", "-y"]
    subprocess.run(call, env=environment, check=True, capture_output=True, timeout=300)
    assert revision(tmp_path / "prefect" / "prefect.db") != before
    assert at_once() == {made}
    assert list(tmp_path.rglob("*.making-*")) == []


@pytest.mark.slow
def test_eight_first_starts_at_once_twenty_times(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """Each trains, or is refused for its budget: no store of the home is made by two.
    DPFLOWS_TEST_ROUNDS sets 20.
    """
    for number in range(int(os.environ.get("DPFLOWS_TEST_ROUNDS", "20"))):
        environment = {**clean_environment, "DPFLOWS_HOME": str(tmp_path / f"home{number}")}
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "train", "--json"],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=(tmp_path / f"error{index}").open("w"),
            )
            for index in range(8)
        ]
        codes = [process.wait(timeout=900) for process in started]
        said = {
            index: (tmp_path / f"error{index}").read_text()[-500:]
            for index in range(8)
            if codes[index] not in (0, 3)
        }
        assert not said, f"round {number}: {said}"
