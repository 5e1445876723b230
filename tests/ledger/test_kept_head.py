"""The head kept beside a ledger: what was once on disk cannot vanish, and what was drawn cannot be given back."""

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

from dpcore.errors import DPFlowsError, VerificationFailed
from flows.cli import run
from tasks.ledger import Ledger, LedgerUnavailable
from tasks.ledger.records import Record, next_record
from tasks.ledger.store import LedgerDamaged
from tasks.ledger.witness import SLOT, Damaged, Head, Witness
from tests.ledger.conftest import gaussian


@pytest.fixture
def ledger(sqlite_ledger: Ledger) -> Ledger:
    sqlite_ledger.init("east", 3.0, 1e-6, "add_remove")
    for _ in range(3):
        with sqlite_ledger.reserve("east", gaussian(50.0)) as reservation:
            reservation.on_charge()
            reservation.commit()
    return sqlite_ledger


def reopened(ledger: Ledger) -> Ledger:
    ledger.close()
    return Ledger(ledger.store.path)


def each_use_names(ledger: Ledger, words: str) -> None:
    """Reading, writing and verifying of a fresh process all say ``words``; nothing is created in its place."""
    for act in (
        lambda opened: opened.room("east"),
        lambda opened: opened.init("west", 3.0, 1e-6, "add_remove"),
        lambda opened: opened.reserve("east", gaussian(50.0)),
    ):
        with pytest.raises(LedgerUnavailable, match=words) as raised, reopened(ledger) as opened:
            act(opened)
        assert raised.value.exit_code == 4 and "\n" not in str(raised.value)
    with reopened(ledger) as opened, pytest.raises(VerificationFailed, match=words):
        opened.verify()


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
    each_use_names(ledger, r"ends at record 0, but its head file .* holds record 10 .*restore the file")
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
    shutil.copy(ledger.store.path, other)
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
        [(key,)] = connection.execute("SELECT value FROM ledger_secret")
        connection.execute("UPDATE ledger_secret SET value = ?", ("0" * 64,))
    connection.close()
    assert key.encode() not in ledger.store.witness.path.read_bytes()
    each_use_names(ledger, "key of its fingerprints was changed")


def test_a_damaged_head_file_is_named(ledger: Ledger) -> None:
    path = ledger.store.witness.path
    content = path.read_bytes()
    path.write_bytes(b"x" + content[1:])
    assert ledger.store.witness.read() is not None, "one slot is left"
    path.write_bytes(b"x" * len(content))
    each_use_names(ledger, r"head file .* is damaged .*remove that file")
    path.unlink()
    with reopened(ledger) as opened:
        opened.reserve("east", gaussian(50.0)).commit()
        assert opened.verify().ok and path.exists()


def test_a_torn_or_late_write_leaves_the_newest_head(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "ledger.db")
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


def test_a_ledger_without_a_head_opens_verifies_and_gets_one(ledger: Ledger) -> None:
    """One of an earlier version, or a copy."""
    ledger.store.witness.path.unlink()
    with reopened(ledger) as opened:
        assert opened.verify().ok and opened.room("east").left > 0 and not opened.store.witness.path.exists()
        opened.reserve("east", gaussian(50.0)).commit()
        assert opened.store.witness.read().hash == opened.head()


def test_a_head_that_is_behind_is_a_process_that_was_killed(ledger: Ledger) -> None:
    head, path = ledger.head(), ledger.store.witness.path
    kept = path.read_bytes()
    ledger.reserve("east", gaussian(50.0)).commit()
    path.write_bytes(kept)
    with reopened(ledger) as opened:
        assert opened.head() != head and opened.verify(head).ok


def cancelled_by_hand(ledger: Ledger, entry: str) -> None:
    """Give an entry's budget back as somebody with full access to the file can: chain, totals and triggers all fit."""
    with sqlite3.connect(ledger.store.path) as connection:
        rows = [Record(*row) for row in connection.execute("SELECT * FROM ledger_records ORDER BY seq")]
        units = next(json.loads(row.body)["units"] for row in rows if row.entry == entry)
        last = rows[-1]
        record = next_record((last.seq, last.hash), "cancelled", "east", {"reason": "by hand"}, entry)
        connection.execute("INSERT INTO ledger_records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", tuple(record))
        columns = "SELECT ordinal, units FROM ledger_balances ORDER BY ordinal DESC LIMIT 1"
        [(ordinal, spent)] = connection.execute(columns)
        connection.execute(
            "INSERT INTO ledger_balances VALUES ('east', 'all', ?, ?, ?)", (ordinal + 1, record.seq, spent - units)
        )
    connection.close()


@pytest.mark.parametrize("head", ["kept", "forgotten"])
def test_a_cancellation_after_the_first_draw_is_refused_and_shown(ledger: Ledger, head: str) -> None:
    reservation = ledger.reserve("east", gaussian(50.0))
    reservation.on_charge()
    with pytest.raises(DPFlowsError, match="Expected no draw before a cancellation"):
        ledger.close_entry(reservation.entry_id, "east", "cancelled", {"reason": "by hand"})
    cancelled_by_hand(ledger, reservation.entry_id)
    words = f"cancels entry {reservation.entry_id} .* first draw is record 12"
    if head == "kept":
        each_use_names(ledger, words)
        return
    ledger.store.witness.path.unlink()
    with reopened(ledger) as opened, pytest.raises(VerificationFailed, match=words):
        opened.verify()


def test_the_first_draw_alone_is_recorded_before_anything_is_drawn(ledger: Ledger) -> None:
    reservation = ledger.reserve("east", gaussian(50.0, 3))
    before = ledger.check().records
    for _ in range(3):
        reservation.on_charge()
        assert ledger.check().records == before + 1
    reservation.commit()
    untouched = ledger.reserve("east", gaussian(50.0))
    untouched.cancel()
    assert ledger.verify().ok


def test_a_draw_that_cannot_be_recorded_is_none(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation = ledger.reserve("east", gaussian(50.0))

    def fails(*_: object) -> None:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "note_draw", fails)
        with pytest.raises(LedgerUnavailable):
            reservation.on_charge()
    assert reservation.draws == 0
    reservation.cancel()
    assert ledger.verify().ok


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
def test_a_copy_that_cannot_be_written_is_verified(ledger: Ledger, tmp_path: Path, log: str) -> None:
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
    assert {file.name for file in copy.parent.iterdir()} <= {"copy.db", "copy.db-wal"}


def copied(ledger: Ledger, tmp_path: Path) -> Path:
    """File and log of a ledger in a folder that nobody may write to."""
    folder = tmp_path / "archive"
    folder.mkdir()
    for ending in ("", "-wal"):
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
