"""The head kept beside a ledger: what was once on disk cannot vanish."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

import pytest

from flows.cli import run
from tasks.ledger import Ledger, engines
from tasks.ledger.engines import LedgerDamaged
from tasks.ledger.records import GENESIS
from tasks.ledger.witness import SLOT, Damaged, Head, Witness
from tests.tasks.ledger.conftest import gaussian
from tests.tasks.ledger.heads import each_use_names, forget_the_note, reopened


@pytest.fixture
def ledger(sqlite_ledger: Ledger) -> Ledger:
    sqlite_ledger.init("east", 3.0, 1e-6, "add_remove")
    for _ in range(3):
        with sqlite_ledger.reserve("east", gaussian(50.0)) as reservation:
            reservation.on_charge()
            reservation.commit()
    return sqlite_ledger


@pytest.mark.parametrize("lost", ["file", "content", "log"])
def test_a_ledger_that_vanished_is_not_opened_anew(ledger: Ledger, lost: str) -> None:
    ledger.close()
    path = ledger.store.path
    if lost == "file":
        path.unlink()
    elif lost == "content":
        os.truncate(path, 0)
    else:
        # Without the file itself its log is nothing.
        path.with_name(f"{path.name}-wal").write_bytes(b"")
        path.unlink()
    each_use_names(
        ledger,
        r"ends at record 0, but its head file .* holds record 10 .*restore the "
        r"file",
    )
    assert not path.exists() or not path.stat().st_size, "nothing was made in its place"
    assert [run(["ledger", act, "--ledger", str(path)]) for act in ("show", "verify")] == [4, 4]


def test_an_older_copy_is_named_without_anybody_s_help(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    copy = tmp_path / "older.db"
    shutil.copy(ledger.store.path, copy)
    ledger.reserve("east", gaussian(50.0)).commit()
    ledger.close()
    shutil.copy(copy, ledger.store.path)
    each_use_names(ledger, "ends at record 10, but its head file .* holds record 12")


def test_a_rewritten_end_of_the_same_length_is_named(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    other = tmp_path / "other.db"
    for ending in ("", ".head"):
        shutil.copy(f"{ledger.store.path}{ending}", f"{other}{ending}")
    for store in (ledger, Ledger(other)):
        store.reserve("east", gaussian(50.0)).commit()
        store.close()
    shutil.copy(other, ledger.store.path)
    each_use_names(ledger, "record 12 is not the one whose hash")


def test_every_commit_is_in_the_file_itself(ledger: Ledger) -> None:
    """The log may be lost whole, while the ledger is open: nothing of it is missing."""
    ledger.reserve("east", gaussian(50.0)).commit()
    alone = ledger.store.path.with_name("alone.db")
    shutil.copy(ledger.store.path, alone)
    with Ledger(alone) as copy:
        assert copy.head() == ledger.head() and copy.verify().ok


def test_a_long_lived_process_notices_too(ledger: Ledger) -> None:
    ledger.room("east")
    witness = ledger.store.witness
    head = witness.read()
    witness.write(head._replace(seq=head.seq + 5))
    with pytest.raises(LedgerDamaged, match="ends at record 10"):
        ledger.reserve("east", gaussian(50.0))


def test_the_key_of_the_fingerprints_is_kept_as_a_digest(ledger: Ledger) -> None:
    with sqlite3.connect(ledger.store.path) as connection:
        connection.execute("DROP TRIGGER ledger_secret_no_update")
        [(key,)] = connection.execute("SELECT value FROM ledger_secret WHERE name = 'fingerprint'")
        connection.execute(
            "UPDATE ledger_secret SET value = ? WHERE name = 'fingerprint'", ("0" * 64,)
        )
    connection.close()
    assert key.encode() not in ledger.store.witness.path.read_bytes()
    each_use_names(ledger, "key of its fingerprints was changed")


def test_a_damaged_head_file_is_named(ledger: Ledger) -> None:
    path = ledger.store.witness.path
    content = path.read_bytes()
    path.write_bytes(b"x" + content[1:])
    assert ledger.store.witness.read() is not None, "one slot is left"
    path.write_bytes(b"x" * len(content))
    each_use_names(ledger, r"head file .* is damaged .*verify --keep")
    assert run(["ledger", "verify", "--keep", "--ledger", str(ledger.store.path)]) == 0
    goes_on(ledger)


def goes_on(ledger: Ledger) -> None:
    """A fresh process charges, and nothing is missed any more."""
    with reopened(ledger) as opened:
        opened.reserve("east", gaussian(50.0)).commit()
        report = opened.verify()
        assert report.ok and not report.unkept and opened.store.witness.read().hash == opened.head()


def test_a_torn_or_late_write_leaves_the_newest_head(tmp_path: Path) -> None:
    witness = Witness.beside(tmp_path / "ledger.db")
    assert witness.read() is None
    for seq in (3, 4, 7, 5):
        witness.write(Head(seq, f"{seq:064d}", "0" * 16))
    assert witness.read() == Head(7, f"{7:064d}", "0" * 16)
    content = witness.path.read_bytes()
    newest = 0 if Head.of_slot(content[:SLOT]) == witness.read() else SLOT
    witness.path.write_bytes(content[: newest + 20] + b"\0" * 9 + content[newest + 29 :])
    assert witness.read() == Head(4, f"{4:064d}", "0" * 16)
    witness.path.write_bytes(b"\0" * 2 * SLOT)
    with pytest.raises(Damaged):
        witness.read()


def test_a_ledger_of_before_heads_were_kept_opens_verifies_and_gets_one(ledger: Ledger) -> None:
    ledger.close()
    forget_the_note(ledger.store.path)
    with reopened(ledger) as opened:
        report = opened.verify()
        assert report.ok and not report.unkept
        assert opened.room("east").left > 0 and not opened.store.witness.path.exists()
    goes_on(ledger)


def test_a_head_file_that_is_gone_is_missed(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who shortens a ledger removes the head file too: nothing is charged until somebody says that
    it may go on.
    """
    older = tmp_path / "older.db"
    ledger.close()
    shutil.copy(ledger.store.path, older)
    ledger.reserve("east", gaussian(50.0)).commit()
    ledger.close()
    shutil.copy(older, ledger.store.path)
    path = ledger.store.witness.path
    path.unlink()
    words = f"head file {path} is gone: nothing tells whether records were lost"
    for act in (
        lambda opened: opened.init("west", 3.0, 1e-6, "add_remove"),
        lambda opened: opened.reserve("east", gaussian(50.0)),
    ):
        with pytest.raises(LedgerDamaged, match=words), reopened(ledger) as opened:
            act(opened)
    assert not path.exists(), "it is not made again by the way"
    with reopened(ledger) as opened:
        caplog.clear()
        assert [opened.room("east").left > 0 for _ in range(3)] == [True] * 3
        assert [words in record.getMessage() for record in caplog.records] == [True], "said once"
        assert words in opened.verify().unkept and words in " ".join(opened.verify().notes)
    address = ["--ledger", str(ledger.store.path)]
    assert (
        run(["ledger", "verify", "--keep", "--head", "0" * 64, *address]) == 4 and not path.exists()
    )
    assert run(["ledger", "verify", "--keep", "--file", str(older)]) == 2
    assert run(["ledger", "verify", "--keep", *address]) == 0
    goes_on(ledger)


def test_the_way_on_from_lost_records_says_what_was_lost(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.close()
    older = tmp_path / "older.db"
    shutil.copy(ledger.store.path, older)
    ledger.reserve("east", gaussian(50.0)).commit()
    lost = ledger.head()
    ledger.close()
    shutil.copy(older, ledger.store.path)
    capsys.readouterr()
    assert run(["ledger", "verify", "--keep", "--json", "--ledger", str(ledger.store.path)]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert f"kept before: record 12 ({lost[:16]}); kept now: record 10" in notes
    goes_on(ledger)


def test_a_whole_ledger_that_is_lost_for_good_is_begun_anew(ledger: Ledger) -> None:
    ledger.close()
    ledger.store.path.unlink()
    assert run(["ledger", "verify", "--keep", "--ledger", str(ledger.store.path)]) == 0
    with reopened(ledger) as opened:
        opened.init("east", 3.0, 1e-6, "add_remove")
    goes_on(ledger)


def test_a_process_killed_before_the_first_commit_is_not_missed(tmp_path: Path) -> None:
    """The first head says that there is no record yet."""
    with Ledger(tmp_path / "ledger.db") as opened:
        with pytest.raises(KeyError), opened.store.writing():
            raise KeyError
        assert opened.store.witness.read().seq == 0
    with Ledger(tmp_path / "ledger.db") as opened:
        assert opened.verify().ok and opened.datasets() == []
        opened.init("east", 3.0, 1e-6, "add_remove")
        opened.init("west", 3.0, 1e-6, "add_remove")
        assert opened.verify().ok and opened.store.witness.read().seq == 2
    Witness.beside(tmp_path / "ledger.db").replace(
        opened.store.witness.read()._replace(seq=0, hash=GENESIS)
    )
    with Ledger(tmp_path / "ledger.db") as opened:
        assert opened.verify().ok, (
            "killed before the head was written: the records follow from the first one"
        )


def test_a_head_on_a_server_is_kept_in_the_home(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that was shortened, or made anew under its name; each home keeps what it has
    seen.
    """
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path / "home"))
    with Ledger(url, timeout=20) as ledger:
        ledger.init("east", 3.0, 1e-6, "add_remove")
        ledger.reserve("east", gaussian(50.0)).commit()
        engine, witness = ledger.store.engine, ledger.store.witness
        assert witness.read().hash == ledger.head() and witness.path.stat().st_mode & 0o077 == 0
        server = engine.dialect.name == "postgresql"
        assert witness.path.is_relative_to(tmp_path / "home" / "heads") is server
        with engine.begin() as connection:
            for table in ("ledger_records", "ledger_balances"):
                off = (
                    f"DROP TRIGGER {table}_append_only ON {table}"
                    if server
                    else f"DROP TRIGGER {table}_no_delete"
                )
                connection.exec_driver_sql(off)
                connection.exec_driver_sql(f"DELETE FROM {table} WHERE seq > 1")
    with (
        Ledger(url, timeout=20) as opened,
        pytest.raises(LedgerDamaged, match="ends at record 1, but its head file"),
    ):
        opened.room("east")
    witness.path.unlink()
    with (
        Ledger(url, timeout=20) as opened,
        pytest.raises(
            LedgerDamaged,
            match=r"head file .* is "
            r"gone",
        ),
    ):
        opened.reserve("east", gaussian(50.0))
    if server:
        monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path / "another"))
        with Ledger(url, timeout=20) as opened:
            opened.reserve("east", gaussian(50.0)).commit()
            assert opened.store.witness.read().hash == opened.head()
        with opened.store.engine.begin() as connection:
            for table in ("balances", "records", "events", "secret", "lock", "schema"):
                connection.exec_driver_sql(f"DROP TABLE ledger_{table}")
        for act in (
            lambda one: one.room("east"),
            lambda one: one.init("west", 3.0, 1e-6, "add_remove"),
        ):
            with (
                Ledger(url, timeout=20) as opened,
                pytest.raises(LedgerDamaged, match="ends at record 0, but its"),
            ):
                act(opened)
        with Ledger(url, timeout=20) as opened:
            assert (
                opened.store.engine.connect()
                .exec_driver_sql("SELECT to_regclass('ledger_records')")
                .scalar()
                is None
            )
            assert opened.keep_head().ok
            opened.init("east", 3.0, 1e-6, "add_remove")
            assert opened.verify().ok


def test_a_record_is_on_disk_when_its_writer_returns(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file holds it, and was synced by the checkpoint; where a reader holds the log back the
    log is synced.
    """
    synced: list[str] = []
    monkeypatch.setattr(
        engines.os,
        "fsync",
        lambda file: synced.append(str(Path(f"/proc/self/fd/{file}").readlink())),
    )
    ledger.reserve("east", gaussian(50.0)).commit()
    assert not synced
    with ledger.store.reading() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM ledger_records").scalar_one()
        with Ledger(ledger.store.path) as other:
            other.reserve("east", gaussian(50.0))
    assert synced and set(synced) == {f"{ledger.store.path}-wal"}


def test_a_head_that_is_behind_is_a_process_that_was_killed(ledger: Ledger) -> None:
    head, path = ledger.head(), ledger.store.witness.path
    kept = path.read_bytes()
    ledger.reserve("east", gaussian(50.0)).commit()
    path.write_bytes(kept)
    with reopened(ledger) as opened:
        assert opened.head() != head and opened.verify(head).ok


def verify_as_nobody(path: str, answers: multiprocessing.Queue) -> None:
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        with Ledger(path) as opened:
            report = opened.verify()
            answers.put((report.records, opened.head()))
            opened.reserve("east", gaussian(50.0))
    except Exception as error:
        answers.put(str(error))


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and permissions")
@pytest.mark.parametrize("log", ["none", "pending"])
def test_a_copy_that_cannot_be_written_is_verified(
    ledger: Ledger, tmp_path: Path, log: str
) -> None:
    if log == "pending":
        with ledger.store.reading() as reader:
            # A view that is still open keeps the log from being carried over.
            reader.exec_driver_sql("SELECT count(*) FROM ledger_records").scalar_one()
            with Ledger(ledger.store.path) as other:
                other.reserve("east", gaussian(50.0)).commit()
            copy = copied(ledger, tmp_path)
        assert copy.with_name(f"{copy.name}-wal").stat().st_size
    else:
        ledger.close()
        copy = copied(ledger, tmp_path)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=verify_as_nobody, args=(str(copy), answers))
    child.start()
    child.join(timeout=300)
    with Ledger(ledger.store.path) as opened:
        assert answers.get(timeout=300) == (12 if log == "pending" else 10, opened.head())
    assert "check the permissions" in answers.get(timeout=300)
    assert {file.name for file in copy.parent.iterdir()} <= {
        "copy.db",
        "copy.db-wal",
        "copy.db.head",
    }


def copied(ledger: Ledger, tmp_path: Path) -> Path:
    """File and log of a ledger in a folder that nobody may write to."""
    folder = tmp_path / "archive"
    folder.mkdir()
    for ending in ("", "-wal", ".head"):
        source = ledger.store.path.with_name(ledger.store.path.name + ending)
        if source.exists():
            shutil.copy(source, folder / f"copy.db{ending}")
            (folder / f"copy.db{ending}").chmod(0o444)
    folder.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    return folder / "copy.db"
