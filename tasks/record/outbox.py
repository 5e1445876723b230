"""The outbox: trained and charged models between the ledger's commit and their place in MLflow.

A folder for each run, with everything that tracking needs, so that another process can go on where
one was killed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tasks.home import Home, sync, write_whole
from tasks.ledger.reservation import is_gone, this_process

PENDING = "pending.json"
BEGUN = "begun.json"
METRICS = "privacy/metrics.json"
FORFEITED = "forfeited.json"
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
                sync(path)
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


@dataclass(frozen=True, slots=True)
class Begun:
    """Whose folder it is, from its first file on: what is to be said of it where the process ends
    before the result is whole.
    """

    entry: str
    dataset: str
    owner: dict[str, Any]
    config: dict[str, Any]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / BEGUN, json.dumps({"schema_version": 1, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> Begun | None:
        """What ``write`` stored; None where it is not there."""
        try:
            stored = json.loads((folder / BEGUN).read_text(encoding="utf-8"))
            return cls(**{name: stored[name] for name in cls.__dataclass_fields__})
        except (OSError, ValueError, KeyError, TypeError):
            return None


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


def hashes_of(folder: Path, entry: str) -> Mapping[str, str] | None:
    """The hashes that close ``entry``; None where its result does not lie whole in ``folder``."""
    pending = Pending.read(folder)
    return pending.hashes if pending is not None and pending.entry == entry else None


def half(home: Home) -> list[Path]:
    """Folders without a whole result whose process lives, or ended before; those that are settled
    are left out.
    """
    return sorted(
        folder
        for folder in home.outbox.iterdir()
        if not (folder / PENDING).exists() and not (folder / FORFEITED).exists()
    )


def settle(folder: Path) -> None:
    """Note that the entry of a whole result is forfeited: it waits for nothing any more."""
    (folder / PENDING).replace(folder / FORFEITED)


def drop_half(folder: Path) -> None:
    """Remove what a training wrote that ended before its result was whole."""
    if not (folder / PENDING).exists():
        shutil.rmtree(folder, ignore_errors=True)


def metric_of(folder: Path, training: str) -> tuple[str, str] | None:
    """The entry and the SHA-256 of a noisy metric of the entry ``training`` that lies whole in
    ``folder``; None without one.
    """
    try:
        text = (folder / METRICS).read_bytes()
        stored = json.loads(text)
        return (
            (str(stored["ledger_entry"]), sha256(text).hexdigest())
            if stored["of"]["training_entry"] == training
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def entries() -> list[str]:
    """The ledger's entries of what waits in the home: trainings, and noisy metrics of their
    models.
    """
    found = []
    for folder, pending in waiting(Home.find()):
        metric = metric_of(folder, pending.entry)
        found += [pending.entry, *([metric[0]] if metric else [])]
    return found


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
