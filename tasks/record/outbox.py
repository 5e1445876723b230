"""The outbox: trained and charged models between the ledger's commit and their place in MLflow.

A folder for each run, with everything that tracking needs, so that another process can go on where
one was killed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.home import Home
from tasks.ledger.reservation import is_gone, this_process

PENDING = "pending.json"
MEASURED = "measured.json"


@dataclass(frozen=True, slots=True)
class Pending:
    """What tracking needs beside the files of a run; ``hashes`` are those that close the ledger's
    entry.
    """

    entry: str
    dataset: str
    title: str
    delta: float
    seconds: float
    draws: int
    params: dict[str, Any]
    tags: dict[str, str]
    hashes: dict[str, str]
    owner: dict[str, Any]

    def write(self, folder: Path) -> None:
        """The last file of a folder: where it stands, all others are whole and on disk."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                _sync(path)
        write_whole(folder / PENDING, json.dumps({"schema_version": 1, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> Pending | None:
        """What ``write`` stored; None for a folder that was not finished, or is not of this
        version.
        """
        try:
            stored = json.loads((folder / PENDING).read_text(encoding="utf-8"))
            return cls(**{name: stored[name] for name in cls.__dataclass_fields__})
        except (OSError, ValueError, KeyError, TypeError):
            return None


def write_whole(path: Path, text: str) -> None:
    """Write ``path`` so that it is there whole or not at all, on disk when this returns."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    _sync(beside)
    beside.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Keep what was measured until it is in MLflow."""
    write_whole(folder / MEASURED, json.dumps(dict(metrics)))


def kept_metrics(folder: Path) -> dict[str, float]:
    """What ``keep_metrics`` stored; {} where the run was not measured."""
    try:
        return {
            str(name): float(value)
            for name, value in json.loads((folder / MEASURED).read_text()).items()
        }
    except (OSError, ValueError, AttributeError):
        return {}


def waiting(home: Home) -> Iterator[tuple[Path, Pending]]:
    """Finished folders whose process is gone, oldest first; those of living processes are
    theirs.
    """
    if not home.outbox.is_dir():
        return
    for folder in sorted(home.outbox.iterdir(), key=lambda path: path.stat().st_mtime):
        pending = Pending.read(folder)
        if pending is not None and (is_gone(pending.owner) or pending.owner == this_process()):
            yield folder, pending


def entries() -> list[str]:
    """The ledger's entries of the trainings that wait in the home."""
    return [pending.entry for _, pending in waiting(Home.find())]


def words(home: Home) -> str:
    """What the next start says; empty where nothing waits."""
    found = [folder.name for folder, _ in waiting(home)]
    if not found:
        return ""
    many = (
        f"{len(found)} trained and charged models are"
        if len(found) > 1
        else "one trained and charged model is"
    )
    return (
        f"{many} not in MLflow yet ({', '.join(found[:3])}): `dpflows recover` stores what was "
        "paid for"
    )


def remove(folder: Path) -> None:
    """Remove a folder whose content is in MLflow; its first file goes first, so that half of it is
    nothing.
    """
    (folder / PENDING).unlink(missing_ok=True)
    shutil.rmtree(folder)
