"""Shards on a worker of a Dask cluster: it reads its files, keeps their rows, and answers with sums
alone.

Task functions stand in this module, for one from a script would be pickled with what it holds. No
text of an error leaves a worker, for it may quote a cell: the words stay in a file there.
"""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from stat import S_ISDIR
from threading import Lock
from time import monotonic, time
from typing import Any

import numpy as np

from dpcore.errors import InputError
from dpcore.losses import Loss
from dpcore.objective import compiled
from dpcore.objective.linear import LinearObjective
from dpcore.objective.shards import PerShard, Step, ask
from dpcore.preprocess import Encoder
from dpcore.preprocess.coding import Coding
from dpcore.problem import Adjacency
from tasks.data.load import load
from tasks.data.store import Storage
from tasks.readers.once import glance
from tasks.schema import Schema

# Seconds that a worker keeps rows which nobody asks for, and words of errors.
IDLE, WORDS = 3600.0, 86_400.0
# Steps of views that a worker knows again, the last ones: a training takes one or two at a time.
VIEWS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """What a worker needs to read its files: declarations alone.

    ``rows`` is the public number of a file's rows, for the disk that they take; ``folder`` is where
    workers of this machine keep them (None: the temporary folder of wherever they are).
    """

    token: str
    schema: Schema
    encoder: Encoder
    files: tuple[Any, ...]
    blocks: tuple[str, ...] | None
    loss: Loss
    compiled: bool
    rows: int = 0
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """``name(*arguments)`` of the shards of some files, by file: views and arguments, already those
    of its shards.

    ``rows`` are the digests of the files' encoded rows when they were first read: a worker that
    reads them for another has the same rows, or none.
    """

    side: str
    name: str
    given: dict[int, tuple[Sequence[Step], tuple[Any, ...]]]
    rows: Mapping[int, str] = field(default_factory=dict)

    def of(self, files: Sequence[int]) -> Question:
        """The part of it that is asked of some files."""
        given = {file: self.given[file] for file in files}
        rows = {file: self.rows[file] for file in files if file in self.rows}
        return Question(self.side, self.name, given, rows)


class ChangedRows(InputError):
    """A file that was read for a lost worker has other rows than before."""


@dataclass(slots=True)
class _Rows:
    """The shards of one driver's files on this worker, by file and side, when they were asked last,
    and the last views of them.
    """

    files: dict[int, dict[str, list[LinearObjective]]] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    asked: float = 0.0
    views: dict[bytes, Step] = field(default_factory=dict)

    def seen(self, step: Step) -> Step:
        """The view as it was asked for first, if it is one of the last: a question brings a copy of
        what makes it, and a shard knows a view, and the norms in it, by the objects that make it.
        Rows of a batch, which are secret, are not kept.
        """
        if any(isinstance(item, PerShard) for item in step[1]):
            return step
        key = pickle.dumps(step)
        found = self.views[key] = self.views.pop(key, step)
        for old in list(self.views)[:-VIEWS]:
            del self.views[old]
        return found


_held: dict[str, _Rows] = {}
# One question at a time: passes are compiled or plain for a whole process, and a file is read once.
_one = Lock()


def answer(source: Source, question: Question) -> dict[int, tuple[str, Any]]:
    """A worker's task: by file ("sums", one array a shard), or ("failed", kind of error) without
    any text of it.
    """

    def sums(file: int) -> list[Any]:
        steps, arguments = question.given[file]
        parts = _rows(source, file, question.rows.get(file))[question.side]
        steps = [_held[source.token].seen(step) for step in steps]
        return [ask(part, k, steps, question.name, arguments) for k, part in enumerate(parts)]

    return _told_of(source, question.given, sums)


def sizes(source: Source, files: Sequence[int]) -> dict[int, tuple[str, Any]]:
    """As ``answer``: the rows of each shard, by side, the digest of all of them (``rows``), and
    which file it was (``glance``).
    """

    def counts(file: int) -> dict[str, Any]:
        found = {side: [part.n for part in parts] for side, parts in _rows(source, file).items()}
        seen = glance(source.files[file])
        return {**found, "rows": _held[source.token].digests[file], "glance": seen}

    return _told_of(source, files, counts)


def _told_of(
    source: Source, files: Iterable[int], work: Callable[[int], Any]
) -> dict[int, tuple[str, Any]]:
    """``work`` of each file; of an error its kind, for whatever it says may quote a cell."""
    found: dict[int, tuple[str, Any]] = {}
    with _one:
        for file in files:
            try:
                found[file] = "sums", work(file)
            except BaseException as error:
                found[file] = _failure(source, error)
    return found


def forget(token: str) -> None:
    """Let the rows of a driver go."""
    _held.pop(token, None)


async def leave(token: str) -> None:
    """``forget`` for whoever does not wait."""
    forget(token)


def _rows(
    source: Source, file: int, expected: str | None = None
) -> dict[str, list[LinearObjective]]:
    """The objectives of one file's shards, read where this worker has not got them yet; raises
    ``ChangedRows`` where they are not those of the digest ``expected``.
    """
    now = monotonic()
    for token in [one for one, rows in list(_held.items()) if now - rows.asked > IDLE]:
        del _held[token]
    folder = _folder(source)
    if compiled.use(source.compiled, folder / "kernels") is not source.compiled:
        raise InputError("Expected numba on every worker, as on the driver; install dpflows[fast].")
    mine = _held.setdefault(source.token, _Rows())
    if file not in mine.files:
        found = load(
            source.schema,
            source.encoder,
            [source.files[file]],
            adjacency=Adjacency.ADD_REMOVE,
            blocks=source.blocks,
            spool=folder / "rows",
            storage=Storage(Coding.of(source.encoder), True, source.rows),
            whole=False,
        )
        parts = {
            "train": _parts(found.train, source),
            "test": _parts(found.test, source),
        }
        mine.digests[file] = _digest(parts)
        if expected not in (None, mine.digests[file]):
            raise ChangedRows(
                "Expected the rows that were read first, got others; do not change them."
            )
        mine.files[file] = parts
    mine.asked = monotonic()
    return mine.files[file]


def _digest(parts: Mapping[str, Sequence[LinearObjective]]) -> str:
    """Of all encoded rows of a file with their labels, by side."""
    found = blake2b(digest_size=16)
    for side in sorted(parts):
        for part in parts[side]:
            rows: Any = part.rows
            for array in (rows.table.narrow, rows.table.wide, rows.table.fractions, part.y):
                found.update(f"{side} {array.shape}".encode())
                found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _parts(data: Any, source: Source) -> list[LinearObjective]:
    if data is None:
        return []
    ends = np.cumsum([0, *(part.n for part in data.X.parts)])
    places = zip(data.X.parts, ends[:-1], ends[1:], strict=True)
    return [LinearObjective(rows, data.y[a:b], source.loss) for rows, a, b in places if rows.n]


def _folder(source: Source) -> Path:
    """A folder of this process that only its owner opens, and no link to one."""
    place = source.folder or f"{tempfile.gettempdir()}/dpflows-worker-{os.getuid()}"
    folder = Path(place)
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise InputError("Expected a folder of the worker that only its owner opens, got another.")
    for words in folder.glob("errors-*.txt"):
        if time() - words.stat().st_mtime > WORDS:
            words.unlink(missing_ok=True)
    return folder


def _failure(source: Source, error: BaseException) -> tuple[str, str]:
    """What is told of an error: its kind. Its words stay in a file here."""
    try:
        path = _folder(source) / f"errors-{os.getpid()}.txt"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write("".join(traceback.format_exception(error)))
    except Exception:
        logging.getLogger(__name__).debug("The words of an error could not be kept.")
    return "failed", type(error).__name__
