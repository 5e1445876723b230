"""What code needs, found in its own sources: the packages of a scorer, all files behind a cell; and
the list of a stored model's files with their hashes: what closes a run is what may be served after.

The list is a file of the run; its hash stands in the ledger's commit record. What MLflow writes on
its own account (``MLmodel``, environments, the input example) is not in it: that is derived again.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import dpcore

# Imported only where a model is a network.
NETWORK_ONLY = ("dpcore.network", "safetensors")
# Imported only where an extra is installed, or where rows are a table of Arrow.
OPTIONAL = ("dpcore.objective.kernels", "dpcore.objective.coded.kernels", "pyarrow")
OURS = "dpcore"
# Distributions with another name than what they bring.
OTHER_NAMES = {"sklearn": "scikit-learn"}


INVENTORY = "privacy/files.json"
INVENTORY_KEY = "files"  # its hash in the commit record
WEIGHTS_FOLDER, CODE_FOLDER, SCORER = "artifacts/model", "code/dpcore", "scoring.py"
UNCOPIED = "__pycache__"


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
            if module.startswith(OPTIONAL) or (not network and module.startswith(NETWORK_ONLY)):
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


ROOT = Path(__file__).resolve().parents[2]
# Where the rules of planning stand: nothing of them is read from elsewhere.
PLANNING = (
    "dpcore",
    *(f"tasks/{name}" for name in ("config", "kinds", "options", "schema", "training")),
)
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
    "numba",
    "llvmlite",
    "pyreadstat",
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


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


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
    elif _is_for_types(node):
        for other in getattr(node, "orelse", ()):
            yield from imported(other, package)
    else:
        for child in ast.iter_child_nodes(node):
            yield from imported(child, package)


def inventory(model: Path, requirements: Iterable[str]) -> str:
    """JSON: SHA-256 of every file of the model folder that this version writes, by its path there;
    its packages.
    """
    own = {
        f"{WEIGHTS_FOLDER}/{path.relative_to(model).as_posix()}": path
        for path in plain_files(model)
    }
    files = {name: _hash(path.read_bytes()) for name, path in own.items()}
    stored = {
        "schema_version": 1,
        "files": files | code_hashes(),
        "requirements": list(requirements),
    }
    return json.dumps(stored, indent=1, sort_keys=True)


def code_hashes() -> dict[str, str]:
    """SHA-256 of the scorer and of the code that travels with it, as this version writes them."""
    package = Path(dpcore.__file__).parent
    files = {
        f"{CODE_FOLDER}/{path.relative_to(package).as_posix()}": path
        for path in plain_files(package)
    }
    files[SCORER] = Path(__file__).with_name("scoring.py")
    return {name: _hash(path.read_bytes()) for name, path in files.items()}


@lru_cache(maxsize=1)
def rules() -> str:
    """The first 16 digits of the SHA-256 of all sources that a plan follows from: what a training
    states of the rules that it was planned by.
    """
    digest = sha256()
    for place in PLANNING:
        for file in sorted((ROOT / place).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def plain_files(root: Path) -> Iterator[Path]:
    """Files below ``root`` that a copy of its code takes along."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and UNCOPIED not in path.relative_to(root).parts:
            yield path


def read_inventory(text: bytes) -> tuple[Mapping[str, str], Sequence[str]]:
    """Files and packages of a list; raises ``ValueError``, ``KeyError`` or ``TypeError`` for a text
    that is none.
    """
    stored = json.loads(text)
    files, packages = stored["files"], stored["requirements"]
    if not isinstance(files, dict) or not isinstance(packages, list):
        raise TypeError("a list of files holds names and hashes")
    return files, packages


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()
