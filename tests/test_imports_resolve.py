"""What a module takes from another of the product stands there, also where the import waits in a
rare branch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dpcore", "tasks", "flows")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def where(module: str) -> Path | None:
    """The file of a module or package; None where there is none."""
    stem = ROOT.joinpath(*module.split("."))
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)


def at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported: its own and those under its if, try, for and
    with.
    """
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                yield from at_import(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from at_import(handler.body)


@cache
def names_of(path: Path) -> frozenset[str]:
    """Names that importing the file makes."""
    names = {"__name__", "__doc__", "__file__", "__path__"}
    for node in at_import(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        else:
            stored = (
                n
                for n in ast.walk(node)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            )
            names |= {name.id for name in stored}
    return frozenset(names)


def holds(module: str, name: str) -> bool:
    path = where(module)
    return path is not None and (name in names_of(path) or where(f"{module}.{name}") is not None)


def imported(tree: ast.AST) -> Iterator[tuple[int, str, str | None, str]]:
    """Line, module, name (None: the module itself) and the name that it has here, of each import of
    the product.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "the product imports by whole names"
            if node.module and node.module.split(".")[0] in PACKAGES:
                for alias in node.names:
                    yield node.lineno, node.module, alias.name, alias.asname or alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    yield node.lineno, alias.name, None, alias.asname or alias.name


def unresolved(text: str) -> list[str]:
    """Imports, and attributes of imported modules, that nothing of the product answers to."""
    tree, faults, modules = ast.parse(text), [], {}
    for line, module, name, here in imported(tree):
        if where(module) is None or (name is not None and not holds(module, name)):
            faults.append(f"line {line}: {module} {name or ''}")
        whole = module if name is None else f"{module}.{name}"
        if where(whole) is not None:
            modules[here] = whole
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and node.value.id not in own and not holds(module, node.attr):
                faults.append(f"line {node.lineno}: {module} {node.attr}")
    return faults


def test_every_import_of_the_product_resolves() -> None:
    found = {
        p.relative_to(ROOT).as_posix(): unresolved(p.read_text(encoding="utf-8")) for p in MODULES
    }
    assert not {name: faults for name, faults in found.items() if faults}


@pytest.mark.parametrize(
    "text",
    [
        "def rare():\n    from tasks.home import no_such_name",
        "def rare():\n    from tasks.no_such_module import thing",
        "def rare():\n    import dpcore.no_such_module",
        "def rare():\n    from tasks import home\n    home.no_such_name()",
    ],
)
def test_a_name_that_is_gone_is_found(text: str) -> None:
    assert len(unresolved(text)) == 1
