"""Shared by all tests: the folder with real data and cases, which may be absent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import absl.logging
import pytest
from hypothesis import settings

# Workers share the processors: threads of linear algebra, which find little to share in tests, would only spin. Read
# when numpy is loaded, here and in the processes that tests start.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# dp-accounting brings absl, whose log handler closes the stream that it was born with, pytest's capture, when Prefect
# sets up logging. The real standard error is one that it leaves open.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

# Times of single examples say nothing on a shared machine.
settings.register_profile("dpflows", deadline=None)
settings.load_profile("dpflows")

# One home folder, one Prefect server and one world of trained runs for all directories of a process: a second server
# in it would take the events of the first.
pytest_plugins = ["tests.flow_fixtures", "tests.release_fixtures"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder named by DPFLOWS_SHARED (default: ``shared`` beside the project); skips where it is absent."""
    folder = Path(os.environ.get("DPFLOWS_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no shared data in {folder}; set DPFLOWS_SHARED")
    return folder


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """What a test or the code under it sets ends with the test: a home folder must not reach the next one."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
