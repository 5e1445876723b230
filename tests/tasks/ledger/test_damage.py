"""Ledger files that are shortened, overwritten, mixed up or lost in many ways: verify names each,
in one line.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dpcore.errors import DPFlowsError, VerificationFailed
from tasks.ledger import Ledger, LedgerUnavailable
from tests.tasks.ledger.conftest import gaussian

TABLES = ("ledger_records", "ledger_events", "ledger_balances", "ledger_secret")


class Copy:
    """A ledger of about forty records, closed, with an older copy of its file and a log that is not
    carried over.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.older, self.log = (
            folder / "ledger.db",
            folder / "older.db",
            folder / "pending-wal",
        )
        with Ledger(self.path) as ledger:
            ledger.init("east", 100.0, 1e-6, "add_remove")
            for number in range(12):
                with ledger.reserve("east", gaussian(50.0 + number % 3)) as reservation:
                    reservation.on_charge()
                    reservation.commit()
                if number == 6:
                    shutil.copy(self.path, self.older)
        with Ledger(self.path) as ledger, ledger.store.reading() as view:
            # While a view is open the log cannot be carried over: the newest records stand there
            # alone.
            view.exec_driver_sql("SELECT count(*) FROM ledger_records").scalar_one()
            with Ledger(self.path) as other:
                other.reserve("east", gaussian(60.0)).commit()
            self.kept = {
                path.name: path.read_bytes()
                for path in folder.iterdir()
                if path.name.startswith("ledger.db")
            }

    def restored(self, folder: Path) -> Path:
        """The files as they were while the log was pending, in ``folder``."""
        folder.mkdir()
        for name, content in self.kept.items():
            if not name.endswith("-shm"):
                (folder / name).write_bytes(content)
        return folder / "ledger.db"


def content(path: Path) -> list[object] | None:
    """All rows that are believed and whether SQLite finds the file whole; None where they cannot be
    read.
    """
    try:
        connection = sqlite3.connect(path)
        try:
            rows = [
                connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()
                for table in TABLES[:1]
            ]
            rows += [
                connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
                for table in TABLES[1:]
            ]
            schema = connection.execute(
                "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"
            ).fetchall()
            return [rows, schema, connection.execute("PRAGMA integrity_check").fetchall()]
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def shorten(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size)])


def overwrite(path: Path, random: Random) -> None:
    whole = bytearray(path.read_bytes())
    start, length = random.randrange(len(whole)), random.choice([1, 16, 200, 4096])
    whole[start : start + length] = random.randbytes(min(length, len(whole) - start))
    path.write_bytes(whole)


def zero_page(path: Path, random: Random) -> None:
    whole = bytearray(path.read_bytes())
    page = random.randrange(len(whole) // 4096)
    whole[page * 4096 : (page + 1) * 4096] = bytes(4096)
    path.write_bytes(whole)


def damage(copy: Copy, path: Path, random: Random) -> str:
    """Do one random thing to the files at ``path``; say what."""
    log = path.with_name("ledger.db-wal")
    kinds: dict[str, Callable[[], object]] = {
        "log shortened": lambda: shorten(log, random),
        "log lost": log.unlink,
        "log overwritten": lambda: overwrite(log, random),
        "file shortened": lambda: shorten(path, random),
        "file overwritten": lambda: overwrite(path, random),
        "page of zeros": lambda: zero_page(path, random),
        "file lost": path.unlink,
        "older copy": lambda: (log.unlink(), shutil.copy(copy.older, path)),
        "head damaged": lambda: path.with_name("ledger.db.head").write_bytes(random.randbytes(384)),
    }
    kind = random.choice(list(kinds))
    kinds[kind]()
    return kind


def said(path: Path) -> str:
    """What ``verify`` says, and that a reservation says something too or is sound; empty where all
    is well.
    """
    try:
        with Ledger(path) as ledger:
            ledger.verify()
    except (VerificationFailed, LedgerUnavailable) as error:
        return str(error)
    return ""


def use(path: Path) -> None:
    """What any run does first: it either works or ends in an error of ours."""
    try:
        with Ledger(path) as ledger:
            ledger.datasets()
            ledger.reserve("east", gaussian(70.0)).cancel()
    except DPFlowsError as error:
        assert "\n" not in str(error)


def damaged(copy: Copy, folder: Path, random: Random, count: int) -> None:
    found: dict[str, int] = {}
    with_log = copy.restored(folder / "whole")
    before = content(with_log)
    assert before is not None and said(copy.restored(folder / "sound")) == ""
    number = 0
    while sum(found.values()) < count:
        number += 1
        path = copy.restored(folder / f"case{number}")
        kind = damage(copy, path, random)
        seen = folder / f"seen{number}"
        shutil.copytree(path.parent, seen)
        if kind != "head damaged" and content(seen / path.name) == before:
            # It hit bytes that mean nothing: neither a row nor the structure is another one.
            assert said(path) == ""
            continue
        words = said(path)
        assert words and "\n" not in words, f"case {number}: {kind} is not named"
        use(path)
        found[kind] = found.get(kind, 0) + 1
        shutil.rmtree(path.parent)
        shutil.rmtree(seen)
    assert len(found) >= min(6, count // 2), found


def test_damaged_ledgers_are_named(tmp_path: Path) -> None:
    damaged(Copy(tmp_path), tmp_path, Random(3), 12)


@pytest.mark.slow
def test_a_hundred_damaged_ledgers_are_named(tmp_path: Path) -> None:
    damaged(Copy(tmp_path), tmp_path, Random(4), 100)
