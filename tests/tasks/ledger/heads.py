"""What tests of kept heads share: a fresh process on a ledger, and what each use of a damaged one
says.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dpcore.errors import VerificationFailed
from tasks.ledger import Ledger, LedgerUnavailable, schema
from tests.tasks.ledger.conftest import gaussian


def reopened(ledger: Ledger) -> Ledger:
    ledger.close()
    return Ledger(ledger.store.path)


def each_use_names(ledger: Ledger, words: str) -> None:
    """Reading, writing and verifying of a fresh process all say ``words``; nothing is created in
    its place.
    """
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


def forget_the_note(path: Path) -> None:
    """Leave a ledger as a version before heads were kept left it."""
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER ledger_secret_no_delete")
        connection.execute("DELETE FROM ledger_secret WHERE name = 'head'")
        connection.execute(schema.sqlite_triggers()["ledger_secret_no_delete"])
    connection.close()
    path.with_name(f"{path.name}.head").unlink()
