"""Shared by all tests: the folder with real data and cases, which may be absent."""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import absl.logging
import pytest
from hypothesis import settings

import dpcore.noise
from dpcore.objective import compiled

# Workers share the processors: threads of linear algebra, which find little to share in tests,
# would only spin. Read when numpy is loaded, here and in the processes that tests start.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# dp-accounting brings absl, whose log handler closes the stream that it was born with, pytest's
# capture, when Prefect sets up logging. The real standard error is one that it leaves open.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

# A run of the suite says the same as the one before it: examples and secret noise follow the names
# of the tests. DPFLOWS_TEST_CHANCE=1 draws new ones, to look for what no name has met yet.
CHANCE = os.environ.get("DPFLOWS_TEST_CHANCE") == "1"

# Times of single examples say nothing on a shared machine.
settings.register_profile("dpflows", deadline=None, derandomize=not CHANCE)
settings.load_profile("dpflows")

# One home folder, one Prefect server and one world of trained runs for all directories of a
# process: a second server in it would take the events of the first.
pytest_plugins = ["tests.flow_fixtures", "tests.release_fixtures"]

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent


# Compiled passes take longer to compile than their tests to run: one run of the suite leaves them to
# the next.
compiled.keep_in(ROOT / ".pytest_cache" / "kernels")


class Keys:
    """The keys of secret generators in this process, from the name of the test or the shared
    fixture that runs.
    """

    def __init__(self) -> None:
        self.source = random.Random("collection")
        assert dpcore.noise.secrets is secrets, (
            "secret noise takes its keys from the operating system"
        )
        if not CHANCE:
            dpcore.noise.secrets = SimpleNamespace(
                randbits=lambda bits: self.source.getrandbits(bits)
            )  # type: ignore[assignment]


KEYS = Keys()


# What the tests of one home share, dear to make a second time: its stores, Prefect's server, a
# trained run.
SHARED = {"home", "server", "shared_world", "trained"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the home come first: of two workers one runs them, and the other takes over what is
    left at the end.
    """
    items.sort(key=lambda item: SHARED.isdisjoint(getattr(item, "fixturenames", ())))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    KEYS.source = random.Random(item.nodeid)


# Where pictures are looked at. Elsewhere they are blank, of the same size and with the same words:
# drawing is half of what a small training costs.
DRAWN = (
    *(
        "browser/",
        "flows/test_flow.py",
        "tasks/compare/test_figures.py",
        "tasks/compare/test_page.py",
    ),
    *("tasks/report/test_report.py", "tasks/record/test_statement.py"),
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    figures = sys.modules.get("matplotlib.figure")
    looked_at = item.path.relative_to(TESTS).as_posix().startswith(
        DRAWN
    ) or item.get_closest_marker("slow")
    if figures is None or looked_at:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures.Figure, "draw", lambda self, renderer: None)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    """A fixture that several tests share draws the same, whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    outer, KEYS.source = KEYS.source, random.Random(f"{fixturedef.baseid} {fixturedef.argname}")
    try:
        return (yield)
    finally:
        KEYS.source = outer


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder named by DPFLOWS_SHARED (default: ``shared`` beside the project); skips where it
    is absent.
    """
    folder = Path(os.environ.get("DPFLOWS_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no shared data in {folder}; set DPFLOWS_SHARED")
    return folder


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """What a test or the code under it sets ends with the test: a home folder must not reach the
    next one.
    """
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
