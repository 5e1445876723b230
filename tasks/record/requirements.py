"""What the code of a stored model needs: the packages that its scorer imports, found in the sources
themselves.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import dpcore

# Imported only where a model is a network.
NETWORK_ONLY = ("dpcore.network", "safetensors")
OURS = "dpcore"
# Distributions with another name than what they bring.
OTHER_NAMES = {"sklearn": "scikit-learn"}


@cache
def requirements(scorer: Path, network: bool = False) -> tuple[str, ...]:
    """``package==version`` of each distribution that ``scorer`` imports, itself or through the code
    of ours it carries.

    ``network``: whether the model is a network, which needs torch too.
    """
    found = sorted({distribution(name) for name in libraries(scorer, network)})
    # A build is not part of the version that an index offers: 2.0+cpu is installed from 2.0.
    return tuple(f"{name}=={version(name).partition('+')[0]}" for name in found)


def libraries(scorer: Path, network: bool = False) -> set[str]:
    """Top-level names of what is imported from outside our own code and Python's library."""
    names, seen, waiting = set(), set(), [scorer]
    while waiting:
        path = waiting.pop()
        for module in imports(path):
            if not network and module.startswith(NETWORK_ONLY):
                continue
            top = module.split(".")[0]
            if top != OURS:
                names.add(top)
                continue
            for file in files_of(module):
                if file not in seen:
                    seen.add(file)
                    waiting.append(file)
    return names - set(sys.stdlib_module_names)


def imports(path: Path) -> Iterator[str]:
    """Absolute names of what a file imports when it runs, inside functions too; those for type
    checkers do not run.
    """
    for node in running(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            # ``from package import module`` imports the module too.
            yield from (
                f"{node.module}.{alias.name}"
                for alias in node.names
                if node.module.split(".")[0] == OURS
            )


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree without what stands under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        yield node
        yield from running(node)


def files_of(module: str) -> Iterator[Path]:
    """The files that run when a module of ours is imported: its own, and those of the packages that
    hold it.
    """
    root = Path(dpcore.__file__).parent.parent
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:length])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                yield file


def distribution(name: str) -> str:
    """The distribution that brings a top-level name."""
    known = OTHER_NAMES.get(name, name)
    try:
        version(known)
    except PackageNotFoundError:
        # Slow, since it reads the list of files of every package: for a part of a library in place
        # of the whole.
        return sorted(packages_distributions()[name])[0]
    return known
