"""What an auditor must see: changed, removed, added and rolled-back rows, wrong prices, wrong
totals.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting.limits import order_index
from dpcore.errors import VerificationFailed
from tasks.ledger import Ledger, chain, schema
from tasks.ledger.records import GENESIS, Record, canonical, cost_units


@pytest.fixture
def ledger(sqlite_ledger: Ledger, events) -> Ledger:
    sqlite_ledger.init("east", 1.0, 1e-6, "add_remove")
    for sigma in (20.0, 30.0):
        sqlite_ledger.reserve("east", events(sigma)).commit({"weights": "a" * 64})
    sqlite_ledger.reserve("east", events(25.0)).cancel()
    assert sqlite_ledger.verify().ok
    return sqlite_ledger


def tamper(ledger: Ledger, *statements: str) -> None:
    """Change the file as somebody with full access to it can."""
    with sqlite3.connect(ledger.store.path) as connection:
        triggers = schema.sqlite_triggers()
        for name in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            assert connection.execute(statement).rowcount
        for trigger in triggers.values():
            connection.execute(trigger)
    connection.close()


def rewrite(ledger: Ledger, seq: int, **changes: object) -> None:
    """Change a record's body, hash the chain again from there and forget the kept head, as a
    careful forger does.
    """
    connection = sqlite3.connect(ledger.store.path)
    for name in schema.sqlite_triggers():
        connection.execute(f"DROP TRIGGER {name}")
    rows = [Record(*row) for row in connection.execute("SELECT * FROM ledger_records ORDER BY seq")]
    previous = GENESIS
    for row in rows:
        body = row.body if row.seq != seq else canonical(json.loads(row.body) | changes)
        row = row._replace(body=body, previous=previous)
        previous = row.expected_hash()
        change = "UPDATE ledger_records SET body = ?, previous = ?, hash = ? WHERE seq = ?"
        connection.execute(change, (body, row.previous, previous, row.seq))
    for trigger in schema.sqlite_triggers().values():
        connection.execute(trigger)
    connection.commit()
    connection.close()
    ledger.store.witness.path.unlink()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "UPDATE ledger_records SET body = replace(body, '\"releases\":1', '\"releases\":0') "
            "WHERE seq = 2",
            "content",
        ),
        ("UPDATE ledger_records SET created_at = '2020-01-01' WHERE seq = 4", "content"),
        ("DELETE FROM ledger_records WHERE seq IN (4, 5)", "missing"),
        ("UPDATE ledger_events SET text = replace(text, '30.0', '300.0')", "changed"),
        ("DELETE FROM ledger_events", "missing"),
        ("UPDATE ledger_balances SET units = 0 WHERE ordinal = 2", "stored totals"),
        ("DELETE FROM ledger_balances WHERE ordinal = 4", "stored totals"),
        ("INSERT INTO ledger_balances VALUES ('east', 'all', 5, 99, 0)", "after the last record"),
    ],
)
def test_a_changed_row_is_found(ledger: Ledger, statement: str, words: str) -> None:
    tamper(ledger, statement)
    with pytest.raises(VerificationFailed, match=words) as failed:
        ledger.verify()
    assert failed.value.exit_code == 4


@pytest.mark.parametrize(
    ("seq", "changes", "words"),
    [
        (2, {"cost": 1e-9, "units": 1100}, "its mechanisms cost"),
        (2, {"units": 1}, "its mechanisms cost"),
        (2, {"blocks": []}, "other blocks"),
        (1, {"budget": 50.0}, "budget 50"),
        (1, {"epsilon": 50.0}, "should be"),
    ],
)
def test_a_forged_price_or_budget_is_found_although_the_hashes_fit(
    ledger: Ledger, seq, changes, words
) -> None:
    head = ledger.head()
    rewrite(ledger, seq, **changes)
    report = ledger.verification()
    assert any(words in problem for problem in report.problems)
    assert not any("hash" in problem for problem in report.problems)
    assert any("not in the chain" in problem for problem in ledger.verification(head).problems)


def test_a_run_that_was_let_in_above_the_budget_is_found(
    ledger: Ledger, events, monkeypatch
) -> None:
    """Written by a program without the check: hashes, prices and totals all fit."""
    monkeypatch.setattr(chain, "admit", lambda *_: None)
    ledger.reserve("east", events(2.0)).commit()
    with pytest.raises(VerificationFailed, match="block all of 'east' is above its budget"):
        ledger.verify()


def test_an_older_copy_is_found_by_the_head(ledger: Ledger, events, tmp_path: Path) -> None:
    ledger.close()
    copy = tmp_path / "copy.db"
    shutil.copy(ledger.store.path, copy)
    head = ledger.reserve("east", events(40.0)).commit()
    with Ledger(copy) as old:
        assert old.verify().ok
        with pytest.raises(VerificationFailed, match="not in the chain"):
            old.verify(head)
    assert ledger.verify(head[:16]).head_found_at == 9


def test_a_price_that_differs_by_rounding_is_a_note(ledger: Ledger) -> None:
    with ledger.store.reading() as connection:
        body = json.loads(
            connection.exec_driver_sql("SELECT body FROM ledger_records WHERE seq = 2").scalar_one()
        )
    nudged = float(np.nextafter(body["cost"], 1.0))
    assert cost_units(nudged) == body["units"]
    rewrite(ledger, 2, cost=nudged)
    report = ledger.verify()
    assert any("rounding" in note for note in report.notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"adjacency": "add_remove", "cost": None, "units": None},
            "under add_remove, but its mechanisms",
        ),
        ({"unit": "user"}, "charged for one user"),
    ],
)
def test_a_charge_under_another_relation_or_unit_is_found(
    sqlite_ledger: Ledger, events, changes, words: str
) -> None:
    """A careful forger: the price is that of the relation which is written there."""
    sqlite_ledger.init("east", 1.0, 1e-6, "replace_one")
    sqlite_ledger.reserve("east", events(40.0)).commit({"weights": "a" * 64})
    assert sqlite_ledger.verification().ok
    if "cost" in changes:
        cost = float(events(40.0).price()[order_index(sqlite_ledger.dataset("east").order)])
        changes = changes | {"cost": cost, "units": cost_units(cost)}
    rewrite(sqlite_ledger, 2, **changes)
    problems = sqlite_ledger.verification().problems
    assert any(words in problem for problem in problems)
    assert not any("its mechanisms cost" in problem for problem in problems)
