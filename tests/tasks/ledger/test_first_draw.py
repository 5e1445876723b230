"""The first draw of a run is a record: what was drawn cannot be given back."""

from __future__ import annotations

import json
import sqlite3

import pytest

from dpcore.errors import DPFlowsError, VerificationFailed
from tasks.ledger import Ledger, LedgerUnavailable
from tasks.ledger.records import Record, next_record
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


def cancelled_by_hand(ledger: Ledger, entry: str) -> None:
    """Give an entry's budget back as somebody with full access to the file can: chain, totals and
    triggers all fit.
    """
    with sqlite3.connect(ledger.store.path) as connection:
        rows = [
            Record(*row) for row in connection.execute("SELECT * FROM ledger_records ORDER BY seq")
        ]
        units = next(json.loads(row.body)["units"] for row in rows if row.entry == entry)
        last = rows[-1]
        record = next_record(
            (last.seq, last.hash), "cancelled", "east", {"reason": "by hand"}, entry
        )
        connection.execute(
            "INSERT INTO ledger_records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", tuple(record)
        )
        columns = "SELECT ordinal, units FROM ledger_balances ORDER BY ordinal DESC LIMIT 1"
        [(ordinal, spent)] = connection.execute(columns)
        connection.execute(
            "INSERT INTO ledger_balances VALUES ('east', 'all', ?, ?, ?)",
            (ordinal + 1, record.seq, spent - units),
        )
    connection.close()


@pytest.mark.parametrize("head", ["kept", "forgotten"])
def test_a_cancellation_after_the_first_draw_is_refused_and_shown(
    ledger: Ledger, head: str
) -> None:
    reservation = ledger.reserve("east", gaussian(50.0))
    reservation.on_charge()
    with pytest.raises(DPFlowsError, match="Expected no draw before a cancellation"):
        ledger.close_entry(reservation.entry_id, "east", "cancelled", {"reason": "by hand"})
    cancelled_by_hand(ledger, reservation.entry_id)
    words = f"cancels entry {reservation.entry_id} .* first draw is record 12"
    if head == "kept":
        each_use_names(ledger, words)
        return
    ledger.close()
    forget_the_note(ledger.store.path)
    with reopened(ledger) as opened, pytest.raises(VerificationFailed, match=words):
        opened.verify()


def test_the_first_draw_alone_is_recorded_before_anything_is_drawn(ledger: Ledger) -> None:
    reservation = ledger.reserve("east", gaussian(50.0, 3))
    before = ledger.verification().records
    for _ in range(3):
        reservation.on_charge()
        assert ledger.verification().records == before + 1
    reservation.commit()
    untouched = ledger.reserve("east", gaussian(50.0))
    untouched.cancel()
    assert ledger.verify().ok


def test_a_draw_that_cannot_be_recorded_is_none(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
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
