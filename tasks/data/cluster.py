"""The driver of a Dask cluster: which worker reads which file, what is asked of them, and what
becomes of a question when a worker, or the scheduler, is lost.

The driver has the budget's door and all noise; a worker never sees either. What goes over the
network: weights, which are released, the rows of a secret batch by their numbers, and the exact
sums of shards, which are private; so a scheduler elsewhere is reached by TLS or not at all. A
worker that is lost takes its rows with it; another reads the same files and gives the same sums,
bit for bit: rows of a batch were drawn here, noise is drawn here when the sums are there.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from time import monotonic
from typing import Any
from uuid import uuid4

import numpy as np

from dpcore.errors import DPFlowsError, InputError
from dpcore.losses import Array, Loss
from dpcore.objective.linear import LinearObjective
from dpcore.objective.shards import InShards, PerShard, ShardedObjective, Step
from tasks.data.scheduler import unencrypted
from tasks.data.store import written
from tasks.data.workers import ChangedRows, Question, Source, answer, leave, sizes

# Seconds without an answer after which a question is given up, and between looks at who is there.
PATIENCE, LOOK = 900.0, 1.0
# How often workers may be lost over one question.
TRIES = 5
SIDES = ("train", "test")


class Cluster:
    """The workers of a scheduler, and which of them reads which file; closed with the last who asks
    it.
    """

    def __init__(self, source: Source, client: Any, owned: Any = None) -> None:
        self.source, self.client = source, client
        self._finish = weakref.finalize(self, _close, client, owned, source.token)
        self.owner: dict[int, str] = {}
        self.alive: list[str] = []
        try:
            self.counts: dict[int, dict[str, list[int]]] = self.read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the workers go."""
        self._finish()

    def read(self) -> dict[int, dict[str, list[int]]]:
        """Have every file read by its worker, one question each; the rows of its shards. What they
        were is kept in ``digests``, which files in ``glances``.
        """
        told, rows = written.get(), 0

        def arrived(counts: Any) -> None:
            nonlocal rows
            rows += sum(sum(counts[side]) for side in SIDES)
            if told is not None:
                told(rows)

        found = self._ask(sizes, list, range(len(self.source.files)), arrived, single=True)
        self.digests = {file: counts.pop("rows") for file, counts in found.items()}
        self.glances = {file: counts.pop("glance") for file, counts in found.items()}
        return found

    def ask(self, question: Question) -> dict[int, Any]:
        """The answers by file."""
        return self._ask(answer, question.of, question.given)

    def _ask(
        self,
        task: Any,
        part: Callable[[Sequence[int]], Any],
        files: Iterable[int],
        arrived: Callable[[Any], None] = lambda _: None,
        single: bool = False,
    ) -> dict[int, Any]:
        """The answers by file. Files of a worker that is lost are asked of another: sums draw
        nothing.
        """
        wanted, found = list(files), {}
        for again in range(TRIES):
            left = [file for file in wanted if file not in found]
            asked = self._submit(task, part, self._assign(left, again > 0), single)
            for worker, future in asked:
                for file, (state, value) in self._told(worker, future).items():
                    if state == "failed":
                        self._drop(asked)
                        raise _refusal(str(value))
                    found[file] = value
                    arrived(value)
            if len(found) == len(wanted):
                return found
        raise DPFlowsError(
            f"Expected workers that stay, lost some {TRIES} times over one question; look at their "
            "logs and their memory."
        )

    def _assign(self, files: Sequence[int], again: bool) -> dict[str, list[int]]:
        """Which worker is asked of which files; who is there is looked up at first and
        ``again``.
        """
        if again or not self.alive:
            self.alive = sorted(self._nthreads())
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

    def _nthreads(self) -> dict[str, int]:
        """Threads by worker; raises ``DPFlowsError`` where the scheduler is gone."""
        with scheduler_told():
            if getattr(self.client, "status", "running") != "running":
                raise ConnectionError
            return dict(self.client.nthreads())

    def _submit(
        self,
        task: Any,
        part: Callable[[Sequence[int]], Any],
        given: dict[str, list[int]],
        single: bool,
    ) -> list[tuple[str, Any]]:
        """A future for each worker, or for each of its files."""
        pieces = [
            (worker, piece)
            for worker, files in given.items()
            for piece in ([[file] for file in files] if single else [files])
        ]
        with scheduler_told():
            return [
                (
                    worker,
                    self.client.submit(
                        task,
                        self.source,
                        part(piece),
                        key=f"sums-{uuid4().hex}",
                        pure=False,
                        workers=[worker],
                        allow_other_workers=False,
                    ),
                )
                for worker, piece in pieces
            ]

    def _told(self, worker: str, future: Any) -> dict[int, Any]:
        """What a worker answers; nothing where it is lost."""
        from distributed import TimeoutError as Slow

        started = monotonic()
        while monotonic() - started <= PATIENCE:
            try:
                return dict(future.result(timeout=LOOK))
            except (Slow, TimeoutError):
                pass
            except Exception:  # cancelled, killed: whatever it is, its text is not ours to tell
                self._nthreads()  # or the scheduler is lost, and all with it
                return {}
            if worker not in self._nthreads():
                future.cancel()
                return {}
        raise DPFlowsError(
            "Expected an answer of all workers, got none in time; look at their logs."
        )

    def _drop(self, asked: Sequence[tuple[str, Any]]) -> None:
        """Take back what was asked and not answered."""
        with suppress(Exception):
            self.client.cancel([future for _, future in asked])


def _refusal(kind: str) -> DPFlowsError:
    if kind == ChangedRows.__name__:
        return DPFlowsError(
            "Expected the rows of a lost worker in the files that it had read, got others: a file "
            "was changed while it trained; train again. What was charged stays charged."
        )
    return InputError(
        f"Expected files that every worker can read as declared, got {kind}; the words are in "
        "errors-*.txt of the worker's folder (workers in the home folder, dpflows-worker-UID in "
        "the temporary one elsewhere), for they may quote a cell."
    )


@contextmanager
def scheduler_told() -> Iterator[None]:
    """Turn whatever a lost scheduler raises into one line."""
    try:
        yield
    except DPFlowsError:
        raise
    except Exception as error:
        raise DPFlowsError(
            f"Expected the Dask scheduler to answer, got {type(error).__name__}: it is gone, and "
            "the sums with it; start it and train again."
        ) from None


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


def _close(client: Any, owned: Any, token: str) -> None:
    try:
        if owned is None and client.status == "running":
            client.run(leave, token, wait=False)
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
        found = self.cluster.ask(Question(self.side, name, given, self.cluster.digests))
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
