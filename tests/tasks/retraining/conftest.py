"""A table that grows by weekly blocks, with its ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.ledger import Blocks, Ledger
from tasks.schema import find_schema
from tests.ledger_fixtures import DeclaredLedger
from tests.tasks.retraining.weekly import write_weekly


@pytest.fixture
def clinic(tmp_path: Path) -> Ledger:
    """The ledger of a weekly table in the working directory: (3, 1e-4), room for three runs at 0.8
    and a little.
    """
    write_weekly(tmp_path)
    ledger = DeclaredLedger(f"sqlite:///{tmp_path / 'ledger.db'}")
    schema = find_schema(tmp_path / "clinic.yaml")
    ledger.init("clinic", 3.0, 1e-4, "add_remove", blocks=Blocks.of(schema))
    return ledger
