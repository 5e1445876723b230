"""A home folder, a Prefect server and a small private table for the tests of flows and command
line.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tasks.home import Home
from tests.flows.small import write_small

# Prefect and MLflow read their environment when they are imported, so it is set before any test
# module imports them.
ROOT = Path(tempfile.mkdtemp(prefix="dpflows-tests-"))
atexit.register(shutil.rmtree, ROOT, ignore_errors=True)
HOME = Home(ROOT / "runs").prepare()
# a parallel worker inherits those of the process that started it
os.environ.update(HOME.defaults())


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Home:
    """The home folder of this test session, with the test in an empty working directory."""
    monkeypatch.setenv("DPFLOWS_HOME", str(HOME.root))
    monkeypatch.delenv("DPFLOWS_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    return HOME


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of Prefect's test harness: one server and an empty database for all flow
    tests.
    """
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=900):
        yield str(PREFECT_API_URL.value())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A private table of 300 rows, its schema ``small.yaml`` and its ledger's URL, in the working
    directory.
    """
    write_small(tmp_path, np.random.default_rng(7))
    return tmp_path / "small.yaml"


@pytest.fixture
def clean_environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user: nothing of this session's home, and the project importable from
    any folder.
    """
    ours = ("PREFECT", "MLFLOW", "DPFLOWS", "MPLCONFIGDIR", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
