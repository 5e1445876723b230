"""What the default suite is: it says nothing about how fast the machine is, or how busy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
CLOCKS = {"perf_counter", "process_time", "thread_time"}
# Default tests that read a clock: each compares two times of one run, far apart.
RATIOS = {"test_draws_cost_the_batch_and_not_the_table"}
# Calls that wait for something else than the test itself, in seconds of patience for a machine that does much besides.
WAITS = {"wait", "communicate", "join", "get", "urlopen", "run", "check_output", "result"}
PATIENCE = 100
# Short waits that are meant to run out.
RUN_OUT = {("flows/test_stores.py", 1.5), ("browser/chrome.py", 10)}


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
    files = [(path, path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    timed = {
        name for path, text in files for name, used in default_tests(ast.parse(text), text) if used & CLOCKS
    }  # fmt: skip
    assert timed == RATIOS


def test_default_tests_wait_for_a_busy_machine() -> None:
    """No wait gives up before ``PATIENCE``: it ends when the thing is there, so a long one costs nothing."""
    short = []
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            for word in node.keywords:
                if called in WAITS and word.arg == "timeout" and isinstance(word.value, ast.Constant):
                    where = (path.relative_to(TESTS).as_posix(), word.value.value)
                    short += [(*where, node.lineno)] if where[1] < PATIENCE and where not in RUN_OUT else []
    assert short == []
