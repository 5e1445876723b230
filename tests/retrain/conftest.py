"""The home folder and the Prefect server of the flow tests, and a table that grows by weekly blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.server import healthy
from tasks.ledger import Blocks, Ledger
from tasks.schema import find_schema
from tests.flows.conftest import clean_environment, home, small  # noqa: F401
from tests.retrain.weekly import write_weekly


@pytest.fixture
def clinic(tmp_path: Path) -> Ledger:
    """The ledger of a weekly table in the working directory: (3, 1e-4), room for three runs at 0.8 and a little."""
    write_weekly(tmp_path)
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    schema = find_schema(tmp_path / "clinic.yaml")
    ledger.init("clinic", 3.0, 1e-4, "add_remove", blocks=Blocks.of(schema))
    return ledger


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of Prefect's test harness: the one of the other flow tests where it runs already."""
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    running = str(PREFECT_API_URL.value())
    if healthy(running):
        yield running
        return
    with prefect_test_harness(server_startup_timeout=120):
        yield str(PREFECT_API_URL.value())
