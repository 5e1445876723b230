"""``python -m tests.way``: a configuration through ``train_flow``, read call by call.

A reader begins at ``train_flow`` and reads top to bottom. Where a function is called that takes the
configuration or what is made of it (``TrainConfig``, ``Job``, ``Run``), he opens its file and reads
that function first, each of them once. Hooks of a kind are those of a table, which the shipped
configuration is, and hooks of an option are read where they are declared. A *climb* is a function
on a higher floor (flows, tasks, dpcore) than the one that was read before it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = "flows/train.py", "train_flow"
CARRIED = {"TrainConfig", "Job", "Run"}
# Whose hooks are meant where something of that name is asked.
HOOKS = {
    "kind": (("tasks/kinds/table.py", "Table"), ("tasks/kinds/base.py", "Kind")),
    "option": (("tasks/options/base.py", "Option"),),
}
FLOORS = {"flows": 3, "tasks": 2, "dpcore": 1}

Definition = ast.FunctionDef | ast.ClassDef
Place = tuple[str, Definition | None]  # a file, and a definition in it; None for the file itself


@cache
def module(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def file_of(name: str) -> str | None:
    """The file of a module that is ours."""
    base = name.replace(".", "/")
    choices = (f"{base}.py", f"{base}/__init__.py")
    return next((path for path in choices if (ROOT / path).is_file()), None)


def defined(body: list[ast.stmt], name: str) -> Definition | None:
    return next(
        (
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ),
        None,
    )


def named(path: str, name: str) -> Place | None:
    """What a bare name means in a file: a definition, an import, or a step that is made of one."""
    body = module(path).body
    if found := defined(body, name):
        return path, found
    for node in body:
        match node:
            case ast.ImportFrom(module=str(origin), names=names):
                for alias in names:
                    if name == (alias.asname or alias.name):
                        whole, part = file_of(f"{origin}.{alias.name}"), file_of(origin)
                        return (whole, None) if whole else part and named(part, alias.name)
            case ast.Assign(targets=[ast.Name(id=made)], value=ast.Call(args=[first, *_])):
                if made == name:
                    return meant(path, first)
    return None


def meant(path: str, called: ast.expr) -> Place | None:
    """What is called in a file, where that can be read from names alone."""
    match called:
        case ast.Name(id=name):
            return named(path, name)
        case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
            for file, cls in HOOKS.get(owner, ()):
                holder = defined(module(file).body, cls)
                if isinstance(holder, ast.ClassDef) and (hook := defined(holder.body, name)):
                    return file, hook
            found = named(path, owner) if isinstance(called.value, ast.Name) else None
            return named(found[0], name) if found and found[1] is None else None
    return None


def calls(node: ast.AST) -> Iterator[ast.expr]:
    """What is called inside ``node``, in the order of the calls: arguments before the call."""
    for inner in ast.iter_child_nodes(node):
        yield from calls(inner)
    if isinstance(node, ast.Call):
        yield node.func


def carries(function: ast.FunctionDef) -> bool:
    """Whether a parameter is the configuration, or what is made of it."""
    given = [*function.args.args, *function.args.kwonlyargs]
    words = [word for one in given if one.annotation for word in ast.walk(one.annotation)]
    return any(isinstance(word, ast.Name) and word.id in CARRIED for word in words)


def way() -> list[tuple[str, str]]:
    """File and name of each function that is read, in order."""
    trail: list[tuple[str, str]] = []

    def read(path: str, function: ast.FunctionDef) -> None:
        if (path, function.name) in trail:
            return
        trail.append((path, function.name))
        for called in (one for line in function.body for one in calls(line)):
            match meant(path, called):
                case (str(file), ast.FunctionDef() as inner) if carries(inner):
                    read(file, inner)

    first = defined(module(START[0]).body, START[1])
    assert isinstance(first, ast.FunctionDef)
    read(START[0], first)
    return trail


def climbs(trail: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The functions that stand on a higher floor than the one that was read before them."""
    floors = [FLOORS[path.split("/")[0]] for path, _ in trail]
    return [
        one for one, (last, floor) in zip(trail[1:], pairwise(floors), strict=True) if floor > last
    ]


def main() -> None:
    trail = way()
    up = climbs(trail)
    for one in trail:
        sys.stdout.write(f"{'up ' if one in up else '   '}{one[0]}: {one[1]}\n")
    sys.stdout.write(f"{len({path for path, _ in trail})} files, {len(up)} climbs\n")


if __name__ == "__main__":
    main()
