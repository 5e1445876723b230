"""Full disks, locked files, absent servers, old and new schemas: the message says what happened to
the budget.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError

from dpcore.errors import DPFlowsError, InputError
from tasks.ledger import Ledger, LedgerUnavailable, schema, store


def fill_disk(ledger: Ledger) -> None:
    with ledger.store.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def free_disk(ledger: Ledger) -> None:
    with ledger.store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1073741823")


def test_a_full_disk_reserves_nothing_or_leaves_it_charged(sqlite_ledger: Ledger, events) -> None:
    sqlite_ledger.init("east", 1.0, 1e-6, "add_remove")
    fill_disk(sqlite_ledger)
    reservation, refused = None, None
    for count in range(1, 200):
        try:
            reservation = sqlite_ledger.reserve("east", events(1000.0, count))
        except LedgerUnavailable as error:
            refused = error
            break
    assert reservation is not None
    assert (
        "full" in str(refused)
        and "nothing was reserved" in str(refused)
        and "make room" in str(refused)
    )
    reservation.on_charge()
    with pytest.raises(LedgerUnavailable, match="stays reserved, which is charged in full"):
        reservation.forfeit("a reason that fits no page that is left. " * 1000)
    free_disk(sqlite_ledger)
    assert [record.entry for record in sqlite_ledger.open_entries()][-1] == reservation.entry_id
    reservation.commit()
    assert sqlite_ledger.verify().ok


def test_a_locked_file_reserves_nothing(sqlite_ledger: Ledger, events) -> None:
    sqlite_ledger.init("east", 1.0, 1e-6, "add_remove")
    before = sqlite_ledger.room("east")
    other = sqlite3.connect(sqlite_ledger.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Ledger(sqlite_ledger.store.path, timeout=0.1) as waiting:
        with pytest.raises(LedgerUnavailable, match=r"locked.*nothing was reserved.*wait for it"):
            waiting.reserve("east", events(20.0))
        assert waiting.room("east") == before, "readers do not wait"
    other.execute("ROLLBACK")
    other.close()
    assert sqlite_ledger.verify().entries == 0


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_server_on_which_another_flow_writes_is_not_waited_for_without_end(
    ledger: Ledger, events
) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    with (
        ledger.store.writing(),
        Ledger(ledger.store.url.render_as_string(hide_password=False), timeout=1) as waiting,
    ):
        with pytest.raises(
            LedgerUnavailable,
            match=r"lock timeout.*nothing was reserved.*wait for "
            r"it",
        ):
            waiting.reserve("east", events(20.0))
        assert waiting.room("east").left > 0, "readers do not wait"


def test_an_absent_server_reserves_nothing(events) -> None:
    pytest.importorskip("psycopg2")
    with Ledger("postgresql+psycopg2://nobody:secret@127.0.0.1:9/none", timeout=2) as ledger:
        for act in (lambda: ledger.reserve("east", events(20.0), public=True), ledger.head):
            with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1.*server") as failed:
                act()
            assert "secret" not in str(failed.value)


def test_a_server_that_breaks_at_commit_may_have_charged(ledger: Ledger, events) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")

    def break_off(_: Connection) -> None:
        raise OperationalError(
            "COMMIT", None, Exception("server closed the connection unexpectedly")
        )

    event.listen(ledger.store.engine, "commit", break_off)
    words = "nothing was reserved" if ledger.store.path else "unknown.*if it was, it is charged"
    with pytest.raises(LedgerUnavailable, match=words):
        ledger.reserve("east", events(20.0))
    event.remove(ledger.store.engine, "commit", break_off)
    ledger.reserve("east", events(20.0)).commit()
    assert ledger.verify().entries == 1


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnavailable, match="nothing was reserved"):
        Ledger(tmp_path / "file" / "ledger.db").init("east", 1.0, 1e-6, "add_remove")
    (tmp_path / "noise.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(LedgerUnavailable, match="not a database"):
        Ledger(tmp_path / "noise.db").head()


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_half_a_file_is_one_line(tmp_path: Path, events, share: float) -> None:
    path = tmp_path / "whole.db"
    with Ledger(path) as ledger:
        ledger.init("east", 3.0, 1e-6, "add_remove")
        for _ in range(20):
            ledger.reserve("east", events(100.0)).commit()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    half = tmp_path / "half.db"
    half.write_bytes(whole[: int(share * len(whole))])
    with (
        pytest.raises(
            LedgerUnavailable,
            match=r"malformed.* restore the file from a "
            r"copy",
        ),
        Ledger(half) as ledger,
    ):
        ledger.verify()
    with (
        pytest.raises(
            LedgerUnavailable,
            match=r"malformed.*: nothing was "
            r"(changed|reserved)",
        ),
        Ledger(half) as ledger,
    ):
        ledger.reserve("east", events(100.0))


def test_damaged_letters_of_a_table_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    with Ledger(path) as ledger:
        ledger.init("east", 3.0, 1e-6, "add_remove")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(
        path.read_bytes().replace(b"CREATE TABLE ledger_records", b"CREATE TABL\xf8 ledger_records")
    )
    with (
        pytest.raises(
            LedgerUnavailable,
            match=r"malformed.* restore the "
            r"file",
        ) as found,
        Ledger(damaged) as ledger,
    ):
        ledger.verify()
    assert isinstance(found.value.__cause__, UnicodeDecodeError)


@pytest.mark.parametrize("url", ["mysql://host/x", "sqlite://", "sqlite:///:memory:", "://", ""])
def test_addresses_that_are_no_ledger(url: str) -> None:
    with pytest.raises(InputError, match="ledger="):
        Ledger(url)


def test_migrations_keep_every_record(
    ledger: Ledger, events, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    head = ledger.reserve("east", events(20.0)).commit()

    def add_note(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE ledger_events ADD COLUMN note VARCHAR(10)"))

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, add_note))
    with Ledger(ledger.store.url.render_as_string(hide_password=False)) as newer:
        with pytest.raises(InputError, match="dpflows ledger migrate"):
            newer.head()
        assert newer.store.migrate() == 1
        assert newer.store.migrate() == 0
        assert newer.head() == head and newer.verify(head).ok
        newer.reserve("east", events(20.0)).commit()
    monkeypatch.undo()
    with Ledger(ledger.store.url.render_as_string(hide_password=False)) as older:
        with pytest.raises(InputError, match="newer dpflows"):
            older.head()
        with pytest.raises(InputError, match="newer dpflows"):
            older.reserve("east", events(20.0))


def test_an_unfinished_migration_leaves_no_tables(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(connection: Connection) -> None:
        raise DPFlowsError("power cut")

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
    with pytest.raises(DPFlowsError, match="power cut"):
        ledger.init("east", 1.0, 1e-6, "add_remove")
    monkeypatch.undo()
    assert ledger.head() == ""
    ledger.init("east", 1.0, 1e-6, "add_remove")
    assert store.parse_url("ledger.db").drivername == "sqlite"


def test_another_file_at_the_place_of_a_ledger_is_left_as_it_is(tmp_path: Path, events) -> None:
    """A wrong path is a fault of the input (2), not damage (4); neither bytes nor permissions
    change.
    """
    other = tmp_path / "notes.txt"
    other.write_text("not a ledger\n" * 100)
    other.chmod(0o644)
    for act in (
        lambda ledger: ledger.head(),
        lambda ledger: ledger.init("east", 1.0, 1e-6, "add_remove"),
    ):
        with pytest.raises(InputError, match="got another file") as refused:
            act(Ledger(other))
        assert refused.value.exit_code == 2
    assert other.read_text() == "not a ledger\n" * 100 and other.stat().st_mode & 0o777 == 0o644
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("east", 1.0, 1e-6, "add_remove")
    ledger.close()
    (tmp_path / "ledger.db").write_bytes(b"gone" * 400)
    # a head was kept: there was one
    with pytest.raises(LedgerUnavailable, match="not a database") as damaged:
        Ledger(tmp_path / "ledger.db").head()
    assert damaged.value.exit_code == 4
