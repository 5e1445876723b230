"""Files of a run and of its model, as bytes, by their exact paths; links and other things that are no plain file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tasks.inventory import WEIGHTS_FOLDER

# A larger file than any of ours is listed, not read; weights of a network may be large.
LARGEST_FILE = 64 << 20
LARGEST_MODEL = 1 << 30
EXAMPLE = "input_example.json"


def contents(root: Path, largest: int = LARGEST_FILE) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Files below ``root`` by their relative paths, larger ones as empty, and the paths of what is no plain file.

    Links are named, not followed: what is behind one can be exchanged without a trace here.
    """
    files: dict[str, bytes] = {}
    odd: list[str] = []
    for folder, inner, names in os.walk(root):
        for name in (*inner, *names):
            path = Path(folder) / name
            where = path.relative_to(root).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                odd.append(where)
            elif path.is_file():
                files[where] = path.read_bytes() if path.stat().st_size <= largest else b""
    return dict(sorted(files.items())), tuple(sorted(odd))


def model_contents(folder: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that a stored model is scored with, by their bare names: those of exactly one place each."""
    inner = f"{WEIGHTS_FOLDER}/"
    found = {path.removeprefix(inner): data for path, data in folder.items() if path.startswith(inner)}
    return found | ({EXAMPLE: folder[EXAMPLE]} if EXAMPLE in folder else {})


def local(uri: str) -> Path | None:
    """The folder that a URI of artifacts names, None where it is not on this disk."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    folder = Path(unquote(parts.path))
    return folder if folder.is_dir() else None
