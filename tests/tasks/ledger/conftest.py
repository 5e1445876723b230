"""Ledgers for the tests: SQLite always, PostgreSQL where DPFLOWS_TEST_POSTGRES names a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from dpcore.accounting import Events
from dpcore.mechanisms import Gaussian
from tasks.ledger import Ledger
from tests.ledger_fixtures import DeclaredLedger


def gaussian(
    noise_multiplier: float, count: int = 1, adjacency: str = "add_remove", unit: str = "record"
) -> Events:
    """``count`` Gaussian releases of sensitivity 1."""
    return Events.of([Gaussian(1.0, noise_multiplier)] * count, adjacency=adjacency, unit=unit)


def _fresh_schema() -> Iterator[str]:
    server = os.environ.get("DPFLOWS_TEST_POSTGRES")
    if not server:
        pytest.skip("no PostgreSQL: set DPFLOWS_TEST_POSTGRES to a postgresql+psycopg2:// URL")
    url = make_url(server)
    name = f"ledger_test_{uuid4().hex[:12]}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield url.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a ledger that does not exist yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state' / 'ledger.db'}"
    else:
        yield from _fresh_schema()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with DeclaredLedger(url, timeout=20) as opened:
        yield opened


@pytest.fixture
def sqlite_ledger(tmp_path: Path) -> Iterator[Ledger]:
    with DeclaredLedger(tmp_path / "ledger.db", timeout=5) as opened:
        yield opened


@pytest.fixture
def events() -> Callable[..., Events]:
    return gaussian
