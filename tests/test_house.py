"""The house: which files there are, where they stand, and that imports go down and never round.

The limits are what has been reached; none may rise. What still reaches up is named, so that it can
only shrink.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutants import MUTANTS
from tests.way import climbs, way

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dpcore", "tasks", "flows")

FILES = 311
LOOSE = {"dpcore": 10, "tasks": 1}
ROOMS = {"dpcore": (21, 89), "tasks": (19, 86)}  # folders and loose modules, arrows between two
COMPLEX = 47  # functions with more than ten ways through them
MOVES = 22  # between files of tasks, from a configuration to what is to be trained
WAY = 14, 2  # files and climbs of a configuration through the training flow, call by call
LONGEST = 400  # lines of a file
IGNORES = 4  # lines that the type checker is told to pass over
CIRCLES: list[list[str]] = []
DOORS = {  # files that make a budget or ask for a secret generator, beside the door itself
    "dpcore/noise.py",
    "dpcore/accounting/budget.py",
    "dpcore/audit/attack.py",
    "tasks/options/canaries.py",
}


@cache
def files() -> tuple[Path, ...]:
    return tuple(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def arrows() -> dict[str, set[str]]:
    """File -> files that it imports, inside functions too."""
    by_name = {
        place(path)[:-3].replace("/", ".").removesuffix(".__init__"): place(path)
        for path in files()
    }
    found: dict[str, set[str]] = defaultdict(set)
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[tuple[str, ...]] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [(alias.name,) for alias in node.names]
            for choice in names:
                used = next((by_name[name] for name in choice if name in by_name), None)
                if used and used != place(path):
                    found[place(path)].add(used)
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    for node in list(graph):
        if node not in number:
            visit(node)
    return sorted(found)


def room(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else path


def rooms(package: str) -> tuple[int, int]:
    """Folders and loose modules of ``package``, and the arrows between two of them."""
    inside = {
        (room(a), room(b))
        for a, used in arrows().items()
        for b in used
        if a.startswith(package) and b.startswith(package) and room(a) != room(b)
    }
    found = {
        room(place(path))
        for path in files()
        if place(path).startswith(f"{package}/") and place(path) != f"{package}/__init__.py"
    }
    return len(found), len(inside)


def test_there_are_no_more_files_than_the_house_has_rooms_for() -> None:
    assert len(files()) <= FILES


def test_few_modules_stand_loose() -> None:
    for package, most in LOOSE.items():
        loose = [path.name for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
        assert len(loose) <= most, loose


def test_files_import_no_file_that_imports_them() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]
    assert circles(arrows()) == CIRCLES


def test_rooms_import_no_room_that_imports_them() -> None:
    seen = {(room(a), room(b)) for a, used in arrows().items() for b in used if room(a) != room(b)}
    assert not {(a, b) for a, b in seen if a < b and (b, a) in seen}


def test_few_arrows_lie_between_rooms() -> None:
    for package, most in ROOMS.items():
        count, lie = rooms(package)
        assert count <= most[0] and lie <= most[1], (package, count, lie)


def test_one_file_makes_budgets_and_few_ask_for_secrets() -> None:
    def asks(path: Path) -> bool:
        calls = (
            node.func
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        )
        return any(getattr(call, "id", None) in ("Budget", "secure_generator") for call in calls)

    assert {place(path) for path in files() if asks(path)} <= DOORS


def test_no_file_is_longer_than_a_person_reads() -> None:
    assert not {
        place(path): count for path in files() if (count := path.read_text().count("\n")) > LONGEST
    }


def branches(node: ast.AST) -> int:
    """Ways through ``node`` beside the first, as radon counts them: inner functions are part of the
    outer one.
    """
    match node:
        case ast.BoolOp(values=values):
            own = len(values) - 1
        case (
            ast.If()
            | ast.IfExp()
            | ast.Assert()
            | ast.Lambda()
            | ast.FunctionDef()
            | ast.AsyncFunctionDef()
        ):
            own = 1
        case ast.For(orelse=other) | ast.AsyncFor(orelse=other) | ast.While(orelse=other):
            own = 1 + bool(other)
        case ast.Try(handlers=handlers, orelse=other):
            own = len(handlers) + bool(other)
        case ast.comprehension(ifs=conditions):
            own = 1 + len(conditions)
        case ast.match_case(pattern=pattern):
            own = 0 if isinstance(pattern, ast.MatchAs) and pattern.pattern is None else 1
        case _:
            own = 0
    return own + sum(map(branches, ast.iter_child_nodes(node)))


def test_few_functions_have_more_than_ten_ways_through_them() -> None:
    (small,) = ast.parse(
        "def f(a, b):\n    for x in a:\n        if x and b:\n            return [y for y in x if y]"
    ).body
    assert branches(small) == 6
    functions = (node for path in files() for node in ast.walk(ast.parse(path.read_text())))
    found = [
        one.name for one in functions if isinstance(one, ast.FunctionDef) and branches(one) > 10
    ]
    assert len(found) <= COMPLEX


def moves_of_prepare() -> list[str]:
    """The files of ``tasks`` that preparing a training enters, by a call or a return, in order;
    schema, configuration and data left out, for every way leads through them.
    """
    from tasks.config import load_config
    from tasks.training import prepare

    given = load_config(str(ROOT / "conf" / "train.yaml"))
    prepare(given)  # imports, and what is kept between calls
    trail: list[str] = []
    left_out = ("tasks/schema/", "tasks/config/", "tasks/data/")
    before = sys.getprofile()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        at = frame if event == "call" else frame.f_back
        name = "" if at is None else at.f_code.co_filename
        if not name.startswith(f"{ROOT}/tasks/"):
            return
        file = Path(name).relative_to(ROOT).as_posix()
        if not file.startswith(left_out) and trail[-1:] != [file]:
            trail.append(file)

    sys.setprofile(watch)
    try:
        prepare(given)
    finally:
        sys.setprofile(before)
    return trail


def test_preparing_a_training_goes_a_straight_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path))
    assert len(moves_of_prepare()) - 1 <= MOVES


def test_the_flow_of_a_training_is_read_from_top_to_bottom() -> None:
    trail = way()
    assert {"tasks/kinds/table.py", "tasks/record/run.py"} < {file for file, _ in trail}
    assert len({file for file, _ in trail}) <= WAY[0] and len(climbs(trail)) <= WAY[1]
    assert climbs([("tasks/a.py", "f"), ("flows/b.py", "g"), ("tasks/a.py", "h")]) == [
        ("flows/b.py", "g")
    ]


def test_no_choice_stands_inside_a_choice() -> None:
    """``a if b else c if d else e`` is read twice: a function, a table or two lines say it once."""

    def nested(node: ast.AST) -> bool:
        return isinstance(node, ast.IfExp) and any(
            isinstance(inner, ast.IfExp) for inner in ast.iter_child_nodes(node)
        )

    found = {
        (place(path), node.lineno)
        for path in files()
        for node in ast.walk(ast.parse(path.read_text()))
        if nested(node)
    }
    assert not found


def test_every_mutant_is_planted_in_a_line_that_is_there() -> None:
    strays = [
        mutant.name for mutant in MUTANTS if (ROOT / mutant.file).read_text().count(mutant.old) != 1
    ]
    assert strays == []


def test_who_forfeits_keeps_what_can_be_recovered() -> None:
    calls = [
        line
        for path in files()
        if path.name != "ledger.py"
        for line in path.read_text().splitlines()
        if ".reap(" in line
    ]
    assert len(calls) >= 5 and all("kept=outbox.entries()" in line for line in calls)


def test_the_type_checker_passes_over_few_lines() -> None:
    told = "type: " + "ignore"
    assert sum(path.read_text().count(told) for path in files()) <= IGNORES


def test_tests_stand_where_their_sources_stand() -> None:
    """A folder of ``tests/dpcore`` or ``tests/tasks`` has the name of a folder or a module
    there.
    """
    strays = [
        place(folder)
        for package in ("dpcore", "tasks")
        for folder in (ROOT / "tests" / package).rglob("*")
        if folder.is_dir() and any(folder.glob("*.py"))
        for source in [ROOT / folder.relative_to(ROOT / "tests")]
        if not source.is_dir() and not source.with_suffix(".py").is_file()
    ]
    assert strays == []
