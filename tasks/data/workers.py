"""Shards on the workers of a Dask cluster: each reads its files and keeps its rows, and answers
with sums alone.

The driver has the budget's door and all noise; a worker never sees either. What goes over the
network: weights, which are released, the rows of a secret batch by their numbers, and the exact
sums of shards, which are private; so a scheduler elsewhere is reached by TLS or not at all. Task
functions stand in this module, for one from a script would be pickled with what it holds. No text
of an error leaves a worker, for it may quote a cell: the words stay in a file there. A worker that
is lost takes its rows with it; another reads the same files and gives the same sums, bit for bit.
"""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np

from dpcore.errors import DPFlowsError, InputError
from dpcore.losses import Array, Loss
from dpcore.objective import compiled
from dpcore.objective.linear import LinearObjective
from dpcore.objective.shards import InShards, PerShard, ShardedObjective, Step, ask
from dpcore.preprocess import Encoder
from dpcore.preprocess.coding import Coding
from dpcore.problem import Adjacency
from tasks.data.load import load
from tasks.data.shards import Storage
from tasks.schema import Schema

# Seconds without an answer after which a question is given up, and between looks at who is still
# there.
PATIENCE, LOOK = 900.0, 1.0
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Source:
    """What a worker needs to read its files: declarations alone."""

    token: str
    schema: Schema
    encoder: Encoder
    files: tuple[Any, ...]
    blocks: tuple[str, ...] | None
    loss: Loss
    compiled: bool


@dataclass(frozen=True, slots=True)
class Question:
    """``name(*arguments)`` of the shards of some files, by file: views and arguments, already those
    of its shards.
    """

    side: str
    name: str
    given: dict[int, tuple[Sequence[Step], tuple[Any, ...]]]


_held: dict[tuple[str, int], dict[str, list[LinearObjective]]] = {}


def answer(source: Source, question: Question) -> dict[int, tuple[str, Any]]:
    """A worker's task: by file ("sums", one array a shard), or ("failed", kind of error) without
    any text of it.
    """
    found: dict[int, tuple[str, Any]] = {}
    for file, (steps, arguments) in question.given.items():
        try:
            parts = _rows(source, file)[question.side]
            found[file] = (
                "sums",
                [ask(part, k, steps, question.name, arguments) for k, part in enumerate(parts)],
            )
        except BaseException as error:  # whatever it says may quote a cell
            found[file] = _failure(error)
    return found


def sizes(source: Source, files: Sequence[int]) -> dict[int, tuple[str, Any]]:
    """As ``answer``: the rows of each shard, by side."""
    found: dict[int, tuple[str, Any]] = {}
    for file in files:
        try:
            held = _rows(source, file)
            found[file] = "sums", {side: [part.n for part in parts] for side, parts in held.items()}
        except BaseException as error:
            found[file] = _failure(error)
    return found


def _rows(source: Source, file: int) -> dict[str, list[LinearObjective]]:
    """The objectives of one file's shards, read where this worker has not got them yet."""
    key = source.token, file
    for old in [other for other in _held if other[0] != source.token]:
        del _held[old]
    if key not in _held:
        folder = _folder()
        if compiled.use(source.compiled, folder / "kernels") is not source.compiled:
            raise InputError(
                "Expected numba on every worker, as on the driver; install dpflows[fast]."
            )
        storage = Storage(Coding.of(source.encoder), True)
        found = load(
            source.schema,
            source.encoder,
            [source.files[file]],
            adjacency=Adjacency.ADD_REMOVE,
            blocks=source.blocks,
            spool=folder / "rows",
            storage=storage,
        )
        _held[key] = {"train": _parts(found.train, source), "test": _parts(found.test, source)}
    return _held[key]


def _parts(data: Any, source: Source) -> list[LinearObjective]:
    if data is None:
        return []
    ends = np.cumsum([0, *(part.n for part in data.X.parts)])
    places = zip(data.X.parts, ends[:-1], ends[1:], strict=True)
    return [LinearObjective(rows, data.y[a:b], source.loss) for rows, a, b in places]


def _folder() -> Path:
    """A folder of this process that only its owner opens."""
    folder = Path(tempfile.gettempdir()) / f"dpflows-worker-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise InputError("Expected a folder of the worker that only its owner opens, got another.")
    return folder


def _failure(error: BaseException) -> tuple[str, str]:
    """What is told of an error: its kind. Its words stay in a file here."""
    try:
        path = _folder() / f"errors-{os.getpid()}.txt"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write("".join(traceback.format_exception(error)))
    except Exception:
        logging.getLogger(__name__).debug("The words of an error could not be kept.")
    return "failed", type(error).__name__


class Cluster:
    """The workers of a scheduler, and which of them reads which file; closed with the last who asks
    it.
    """

    def __init__(self, source: Source, client: Any, owned: Any = None) -> None:
        self.source, self.client = source, client
        self._finish = weakref.finalize(self, _close, client, owned)
        self.owner: dict[int, str] = {}
        self.alive: list[str] = []
        self.counts: dict[int, dict[str, list[int]]] = self.ask(
            sizes, list(range(len(source.files)))
        )

    def close(self) -> None:
        """Let the workers go."""
        self._finish()

    def _assign(self, files: Sequence[int], again: bool) -> dict[str, list[int]]:
        """Which worker is asked of which files; who is there is looked up at first and
        ``again``.
        """
        if again or not self.alive:
            self.alive = sorted(self.client.nthreads())
            refuse_open(self.alive)
        alive = self.alive
        if not alive:
            raise DPFlowsError(
                "Expected workers at the scheduler, got none; start some and train again."
            )
        found: dict[str, list[int]] = {}
        for file in files:
            if self.owner.get(file) not in alive:
                self.owner[file] = alive[file % len(alive)]
            found.setdefault(self.owner[file], []).append(file)
        return found

    def ask(self, task: Any, what: Any) -> dict[int, Any]:
        """The answers by file. Files of a worker that is lost are asked of another: sums draw
        nothing.
        """
        wanted = list(what.given) if isinstance(what, Question) else list(what)
        found: dict[int, Any] = {}
        started, again = monotonic(), False
        while len(found) < len(wanted):
            if monotonic() - started > PATIENCE:
                raise DPFlowsError(
                    "Expected an answer of all workers, got none in time; look at their logs."
                )
            open_files = [file for file in wanted if file not in found]
            futures = {
                worker: self.client.submit(
                    task,
                    self.source,
                    _part(what, files),
                    key=f"sums-{uuid4().hex}",
                    pure=False,
                    workers=[worker],
                    allow_other_workers=False,
                )
                for worker, files in self._assign(open_files, again).items()
            }
            again = True  # whoever has not answered may be lost
            for worker, future in futures.items():
                found |= self._told(worker, future, started)
        failed = sorted({str(kind) for state, kind in found.values() if state == "failed"})
        if failed:
            raise InputError(
                f"Expected files that every worker can read as declared, got {', '.join(failed)}; "
                "the words are in errors-*.txt of the worker's folder dpflows-worker-UID, for "
                "they may quote a cell."
            )
        return {file: value for file, (_, value) in found.items()}

    def _told(self, worker: str, future: Any, started: float) -> dict[int, Any]:
        """What a worker answers; nothing where it is lost."""
        from distributed import TimeoutError as Slow

        while monotonic() - started <= PATIENCE:
            try:
                return dict(future.result(timeout=LOOK))
            except (Slow, TimeoutError):
                if worker not in self.client.nthreads():
                    future.cancel()
                    return {}
            except Exception:  # cancelled, killed: whatever it is, its text is not ours to tell
                return {}
        return {}


def unencrypted(address: str) -> bool:
    """Whether what goes to ``address`` leaves this machine, and not by TLS."""
    parts = urlsplit(address)
    return parts.scheme != "tls" and parts.hostname not in LOCAL


def refuse_open(addresses: Sequence[str]) -> None:
    """Raise ``InputError`` where a worker elsewhere would send its sums unencrypted: behind a
    scheduler of this machine, too.
    """
    for address in addresses:
        if unencrypted(address):
            raise InputError(
                f"Expected workers of this machine or with tls:// addresses, got {address}: exact "
                "sums go over the network; start them with TLS."
            )


def _part(what: Any, files: Sequence[int]) -> Any:
    if isinstance(what, Question):
        return Question(what.side, what.name, {file: what.given[file] for file in files})
    return list(files)


def _close(client: Any, owned: Any) -> None:
    try:
        client.close()
        if owned is not None:
            owned.close()
    except Exception:
        logging.getLogger(__name__).debug("A cluster that was gone could not be closed.")


class Remote:
    """The shards of one side on a cluster, in the order of the files
    (``dpcore.objective.shards.Shards``).
    """

    def __init__(self, cluster: Cluster, side: str) -> None:
        self.cluster, self.side = cluster, side
        self._counts = [len(cluster.counts[file][side]) for file in sorted(cluster.counts)]

    @property
    def sizes(self) -> Sequence[int]:
        counts = self.cluster.counts
        return [n for file in sorted(counts) for n in counts[file][self.side]]

    @property
    def width(self) -> int:
        return int(self.cluster.source.encoder.design.dimension)

    @property
    def loss(self) -> Loss:
        return self.cluster.source.loss

    def each(self, steps: Sequence[Step], name: str, arguments: tuple[Any, ...]) -> list[Any]:
        ends = np.cumsum([0, *self._counts])
        given: dict[int, tuple[Sequence[Step], tuple[Any, ...]]] = {}
        for file, (a, b) in enumerate(pairwise(ends)):
            if a < b:
                own = [(step, _mine(values, a, b)) for step, values in steps]
                given[file] = (own, _mine(arguments, a, b))
        found = self.cluster.ask(answer, Question(self.side, name, given))
        return [part for file in sorted(found) for part in found[file]]


def _mine(values: tuple[Any, ...], a: int, b: int) -> tuple[Any, ...]:
    return tuple(PerShard(item[a:b]) if isinstance(item, PerShard) else item for item in values)


class RemoteRows(InShards):
    """Rows of one side that lie on workers, in place of a matrix."""

    def __init__(self, cluster: Cluster, side: str) -> None:
        self.remote = Remote(cluster, side)
        self.shape = (sum(self.remote.sizes), self.remote.width)

    def objective(self, y: Array, made: type[LinearObjective], loss: Loss) -> ShardedObjective:
        return ShardedObjective(self.remote)


def connect(
    address: str | None, workers: int | None, tls: dict[str, str | None]
) -> tuple[Any, Any]:
    """A client of the scheduler at ``address``, or of a cluster of processes on this machine; and
    what to close.

    Raises ``InputError`` where Dask is missing, or a scheduler elsewhere is not reached by TLS.
    """
    try:
        import dask
        from distributed import Client, LocalCluster, Security
    except ImportError:
        raise InputError(
            "Expected Dask for engine.kind=dask, which is not installed; pip install "
            "'dpflows[dask]', or use engine.kind=shards."
        ) from None
    dask.config.set(
        {"distributed.admin.event-loop": "tornado", "distributed.comm.timeouts.connect": "30s"}
    )
    logging.getLogger("distributed").setLevel(logging.ERROR)
    if address is None:
        cluster = LocalCluster(
            n_workers=workers or max(1, len(os.sched_getaffinity(0))),
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=0,
            silence_logs=logging.ERROR,
        )
        return Client(cluster), cluster
    if unencrypted(address):
        raise InputError(
            f"Expected a tls:// address of a scheduler elsewhere, got engine.address={address!r}: "
            "exact sums go over the network; give tls://... with engine.ca, cert and key."
        )
    security = None
    if address.startswith("tls://"):
        missing = [name for name in ("ca", "cert", "key") if not tls.get(name)]
        if missing:
            raise InputError(
                f"Expected engine.{missing[0]} for a tls:// scheduler, got none; name the file."
            )
        security = Security(
            tls_ca_file=tls["ca"],
            tls_client_cert=tls["cert"],
            tls_client_key=tls["key"],
            require_encryption=True,
        )
    try:
        return Client(address, security=security, timeout="30s"), None
    except Exception as error:
        raise DPFlowsError(
            f"Expected the Dask scheduler at {address} to answer, got {type(error).__name__}; "
            "start it, or correct engine.address and the certificates. Nothing was spent."
        ) from None
