"""Files of a run and of its model, as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# A larger file than any of ours is listed, not read.
LARGEST_FILE = 64 << 20


def contents(root: Path) -> Iterator[tuple[str, bytes]]:
    """Files below ``root`` with their relative paths; larger ones than any of ours as empty."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield path.relative_to(root).as_posix(), path.read_bytes() if path.stat().st_size <= LARGEST_FILE else b""


def model_contents(root: Path) -> dict[str, bytes]:
    """Files of a stored model by their bare name: those beside it and those of the model's own folder."""
    beside = (root, root / "artifacts" / "model", root / "artifacts")
    found = {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.parent in beside}
    found |= {path.name: path.read_bytes() for path in root.rglob("weights.npz")}
    for name in ("encoder.json", "model.json"):
        found |= {path.name: path.read_bytes() for path in root.rglob(name) if path.parent.name == "model"}
    return found
