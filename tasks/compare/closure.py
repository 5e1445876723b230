"""What the numbers of a cell depend on beside its configuration: the sources that compute it, and
their libraries.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENTRY = "tasks.compare.cell"  # its function ``run_cell`` gives all numbers of a record
# Libraries that numbers go through: they read, sum, draw and price. Another version of one undoes
# finished cells.
LIBRARIES = (
    "numpy",
    "scipy",
    "scikit-learn",
    "torch",
    "pandas",
    "pyarrow",
    "randomgen",
    "dp-accounting",
)


@lru_cache(maxsize=1)
def code_version() -> str:
    """SHA-256 of the sources and library versions that a record depends on."""
    digest = sha256(source_digest().encode())
    for name in LIBRARIES:
        digest.update(f"{name} {installed(name)}\n".encode())
    return digest.hexdigest()


def installed(name: str) -> str:
    """The version of a library; "none" where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def source_digest(root: Path = ROOT, entry: str = ENTRY) -> str:
    """SHA-256 of all sources of the import closure of ``entry`` below ``root``."""
    digest = sha256()
    for name, file in closure(root, entry).items():
        digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def closure(root: Path = ROOT, entry: str = ENTRY) -> dict[str, Path]:
    """Modules below ``root`` that ``entry`` imports, directly or not, by name: at the top of a file
    or in a function.

    What stands under ``if TYPE_CHECKING`` is not imported. Of a package that looks for its own
    modules (``pkgutil.iter_modules``) all are taken. Nothing is executed.
    """
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        file = source_of(root, name)
        if name in found or file is None:
            continue
        found[name] = file
        waiting += parents(name)
        names = names_in(
            file.read_bytes(), name if file.name == "__init__.py" else name.rpartition(".")[0]
        )
        waiting += names
        if "pkgutil.iter_modules" in names:
            waiting += [f"{name}.{other.stem}" for other in file.parent.glob("*.py")]
            waiting += [
                f"{name}.{other.parent.name}" for other in file.parent.glob("*/__init__.py")
            ]
    return dict(sorted(found.items()))


def source_of(root: Path, name: str) -> Path | None:
    """The file of a module below ``root``; None for one of another place."""
    path = root.joinpath(*name.split("."))
    return next(
        (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None
    )


def parents(name: str) -> list[str]:
    """The packages of a module, which are imported before it."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


@lru_cache(maxsize=1024)
def names_in(source: bytes, package: str) -> tuple[str, ...]:
    """Names that a source may import, each once."""
    return tuple(dict.fromkeys(imported(ast.parse(source), package)))


def imported(node: ast.AST, package: str) -> Iterator[str]:
    """Names that may be modules: of ``from a import b`` both ``a`` and ``a.b``. ``package`` is that
    of the file.
    """
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for other in node.orelse:
            yield from imported(other, package)
    else:
        for child in ast.iter_child_nodes(node):
            yield from imported(child, package)
