"""What the default suite is: it says nothing about how fast the machine is, how busy, or what
chance brought.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dpcore import noise
from dpcore.noise import secret_stream, secure_generator
from tests.conftest import CHANCE

TESTS = Path(__file__).parent
CLOCKS = {"perf_counter", "process_time", "thread_time"}
# Default tests that read a clock: each compares two times of one run, far apart.
RATIOS = {"test_draws_cost_the_batch_and_not_the_table"}
# Calls that wait for something else than the test itself, in seconds of patience for a machine that
# does much besides.
WAITS = {
    "wait",
    "communicate",
    "join",
    "get",
    "urlopen",
    "run",
    "check_output",
    "result",
    "prefect_test_harness",
}
LIMITS = {"timeout", "server_startup_timeout"}
PATIENCE = 300
# Short waits that are meant to run out.
RUN_OUT = {("tasks/stores/test_stores.py", 1.5), ("browser/chrome.py", 10)}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def is_slow(node: ast.FunctionDef, text: str) -> bool:
    """Whether the mark stands at the test or at its file."""
    return "pytestmark = pytest.mark.slow" in text or any(
        ast.unparse(mark).startswith("pytest.mark.slow") for mark in node.decorator_list
    )


def names_in(node: ast.AST) -> set[str]:
    """Names and attributes that stand in a piece of code."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def default_tests(tree: ast.AST, text: str) -> Iterator[tuple[str, set[str]]]:
    """(name, names that it and the helpers of its file use) of each test that is not slow."""
    uses = {node.name: names_in(node) for node in functions(tree)}
    for node in functions(tree):
        if node.name.startswith("test_") and not is_slow(node, text):
            found = set(uses[node.name])
            while more := {name for known in found & uses.keys() for name in uses[known]} - found:
                found |= more
            yield node.name, found


def test_no_default_test_has_a_bar_of_seconds() -> None:
    """Speed bars are marked slow; a default test may compare two times of one run."""
    files = [
        (path, path.read_text(encoding="utf-8"))
        for path in TESTS.rglob("test_*.py")
        if path != Path(__file__)
    ]
    timed = {
        name
        for path, text in files
        if any(clock in text for clock in CLOCKS)
        for name, used in default_tests(parsed(path), text)
        if used & CLOCKS
    }
    assert timed == RATIOS
    measured = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path, text in files
        if "seconds" in text
        for test in functions(parsed(path))
        if not is_slow(test, text)
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if "'seconds'" in ast.unparse(node)
    ]
    assert measured == []


def test_default_tests_wait_for_a_busy_machine() -> None:
    """No wait gives up before ``PATIENCE``: it ends when the thing is there, so a long one costs
    nothing.
    """
    short = []
    sources = [
        path for path in TESTS.rglob("*.py") if "timeout" in path.read_text(encoding="utf-8")
    ]
    for path in sources:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            for word in node.keywords:
                if called in WAITS and word.arg in LIMITS and isinstance(word.value, ast.Constant):
                    where = (path.relative_to(TESTS).as_posix(), word.value.value)
                    short += (
                        [(*where, node.lineno)]
                        if where[1] < PATIENCE and where not in RUN_OUT
                        else []
                    )
    assert short == []


@pytest.fixture(scope="module")
def shared_draws() -> list[int]:
    return [int(one) for one in secure_generator().integers(2**60, size=2)]


@pytest.mark.skipif(CHANCE, reason="new draws were asked for")
def test_secret_noise_follows_the_name_of_the_test(
    request: pytest.FixtureRequest, shared_draws: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [secure_generator().bit_generator for _ in range(2)]
    monkeypatch.setattr(noise.secrets, "randbits", random.Random(request.node.nodeid).getrandbits)
    for one in drawn:
        assert one.random_raw() == secret_stream().random_raw()
    assert shared_draws == DRAWS[type(drawn[0]).__name__]


# What a fixture of this file draws, whichever test asks for it first, by the stream of the machine.
DRAWS = {
    "AESCounter": [573673092665969184, 1083220201733487953],
    "ChaCha": [56824474632480557, 614309064644657869],
}


GENERATORS = {"default_rng", "RandomState", "SeedSequence", "random", "secrets"}


def test_no_test_draws_from_a_generator_without_a_seed() -> None:
    """Else a bar on what was drawn fails now and then."""
    unseeded = []
    for path in TESTS.rglob("*.py"):
        if not re.search(
            r"default_rng|RandomState|SeedSequence|np\.random|secrets\.",
            path.read_text(encoding="utf-8"),
        ):
            continue
        for node in ast.walk(parsed(path)):
            # Text is made of few calls alone: of all of them it would take longer than the rest.
            if isinstance(node, ast.Call) and names_in(node.func) & GENERATORS:
                called = ast.unparse(node.func)
                bare = called.endswith(("default_rng", "RandomState", "SeedSequence")) and not (
                    node.args + node.keywords
                )
                if bare or called.startswith(("np.random.r", "np.random.n", "secrets.")):
                    unseeded.append(f"{path.relative_to(TESTS)}:{node.lineno}: {called}")
    assert unseeded == []
