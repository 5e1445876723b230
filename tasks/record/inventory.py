"""The list of a stored model's files with their hashes: what closes a run is what may be served
afterwards.

The list itself is a file of the run; its hash stands in the ledger's commit record. What MLflow
writes on its own account (``MLmodel``, environments, the input example) is not in it: that is
derived again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import dpcore

FILE = "privacy/files.json"
KEY = "files"  # its hash in the commit record
WEIGHTS_FOLDER, CODE_FOLDER, SCORER = "artifacts/model", "code/dpcore", "scoring.py"
UNCOPIED = "__pycache__"


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
