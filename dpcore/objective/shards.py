"""Rows that are larger than a machine: sums over shards, each an ordinary objective, added in the
order of the shards.

Where a shard is asked (in this process, on a worker elsewhere) is a matter of its ``Shards``; the
order of the sums is not, so results are the same bit for bit wherever they were made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import Any, Protocol

import numpy as np

from dpcore.errors import InputError
from dpcore.losses import Array, Loss
from dpcore.objective.coded.codes import Table
from dpcore.objective.coded.rows import CodedRows
from dpcore.objective.linear import LinearObjective
from dpcore.problem import Block, Problem

# Rows of a shard.
SHARD_ROWS = 2**20
# What a sum over shards can tell; of ``LinearObjective`` the rest needs single rows side by side.
OFFERED = frozenset({"within", "transform", "column_sum", "square_sum", "columns", "as_rows"})

NOT_RISING = (
    "Expected rows of a sharded table in rising order, got another: a walk in an order of its own "
    "needs all rows in one memory; use engine.kind=memory."
)

Step = tuple[str, tuple[Any, ...]]


class PerShard(tuple[Any, ...]):
    """Arguments that differ from shard to shard, one for each."""


class Shards(Protocol):
    """Where the shards are, and how each is asked the same question."""

    @property
    def sizes(self) -> Sequence[int]: ...

    @property
    def width(self) -> int: ...

    @property
    def loss(self) -> Loss: ...

    def each(self, steps: Sequence[Step], name: str, arguments: tuple[Any, ...]) -> list[Any]:
        """``name(*arguments)`` of every shard, seen through the views ``steps``, in their order."""


class Local:
    """Shards in this process: objectives over mapped files, asked one after the other."""

    def __init__(self, parts: Sequence[LinearObjective]) -> None:
        if not parts:
            raise InputError(
                "Expected at least one shard of records, got none; check the path and the split."
            )
        self.parts = parts

    @property
    def sizes(self) -> Sequence[int]:
        return [part.n for part in self.parts]

    @property
    def width(self) -> int:
        return self.parts[0].dimension

    @property
    def loss(self) -> Loss:
        return self.parts[0].loss

    def each(self, steps: Sequence[Step], name: str, arguments: tuple[Any, ...]) -> list[Any]:
        return [ask(part, k, steps, name, arguments) for k, part in enumerate(self.parts)]


def ask(part: Any, k: int, steps: Sequence[Step], name: str, arguments: tuple[Any, ...]) -> Any:
    """``name(*arguments)`` of the shard ``part``, number k, seen through ``steps``."""
    for step, given in steps:
        part = getattr(part, step)(
            *(item[k] if isinstance(item, PerShard) else item for item in given)
        )
    return getattr(part, name)(
        *(item[k] if isinstance(item, PerShard) else item for item in arguments)
    )


class ShardedObjective:
    """The sums of ``LinearObjective`` over shards that lie elsewhere, with the same names and
    meanings.

    A view (``within``, ``transform``, ``columns``, ``take``) is a step that every shard takes when
    it is asked, so nothing is copied before. Rows are numbered through all shards. Single rows,
    their norms and scores have no place
    here: an algorithm that asks for them is refused before it is planned (``OFFERED``).
    """

    parts: Sequence[Any] = ()

    def __init__(
        self, shards: Shards, steps: Sequence[Step] = (), sizes: Sequence[int] | None = None
    ) -> None:
        self._shards, self._steps = shards, tuple(steps)
        self._sizes = tuple(shards.sizes if sizes is None else sizes)
        self.n = sum(self._sizes)
        self.loss = shards.loss

    @property
    def dimension(self) -> int:
        return self._shards.width

    def check(self, problem: Problem) -> None:
        """Raise ``InputError`` unless number, labels, columns and norms are as ``problem``
        declares.
        """
        problem.check_count(self.n)
        self._each("check_rows", problem)

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over records of the gradient at ``w`` (d,), each scaled down to norm
        ``clip_norm``.
        """
        return self._sum("gradient_sum", np.asarray(w), clip_norm)

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over records of the loss, each cut to [0, ``clip``], for every row of ``W`` (k,
        d).
        """
        return self._sum("value_sum", np.atleast_2d(W), clip)

    def column_sum(self, center: Array | float = 0.0) -> Array:
        """Sum over records of x_i - ``center``, shape (d,)."""
        return self._sum("column_sum", center)

    def square_sum(self) -> Array:
        """Sum over records of x_i^2 by column, shape (d,)."""
        return self._sum("square_sum")

    def score_counts(self, w: Array, edges: Array) -> Array:
        """How many records of each label have a score in each cell of ``edges``; (2, k)."""
        return self._sum("score_counts", w, edges)

    def right_count(self, w: Array) -> float:
        """How many records have their own class as the one of largest score."""
        return float(self._sum("right_count", w))

    def take(self, rows: Array | slice) -> ShardedObjective:
        """The records ``rows``, which rise: a sum over shards knows no other order."""
        local, sizes = self._local(rows)
        return self._view("take", (local,), sizes)

    def within(self, blocks: tuple[Block, ...]) -> ShardedObjective:
        """The same records with values clipped to [0, 1] and one-hot blocks scaled down to sum <=
        1.
        """
        return self._view("within", (blocks,))

    def transform(self, shift: Array, scale: Array) -> ShardedObjective:
        """The same records with features scale * (x - shift)."""
        return self._view("transform", (shift, scale))

    def columns(self, keep: Array) -> ShardedObjective:
        """The same records with the columns ``keep`` alone."""
        return self._view("columns", (keep,))

    def against_rest(self, label: int, loss: Loss) -> ShardedObjective:
        """The same records with label +1 for class ``label`` and -1 for all others."""
        return self._view("against_rest", (label, loss))

    def unweighted(self) -> ShardedObjective:
        """The same records without class weights."""
        return self._view("unweighted", ())

    def as_rows(self) -> tuple[ShardedObjective, float]:
        """Records and a weight: this objective's unclipped sums are the weight times theirs."""
        return self, 1.0

    def _view(
        self, name: str, arguments: tuple[Any, ...], sizes: Sequence[int] | None = None
    ) -> ShardedObjective:
        steps = (*self._steps, (name, arguments))
        return ShardedObjective(self._shards, steps, self._sizes if sizes is None else sizes)

    def _each(self, name: str, *arguments: Any) -> list[Any]:
        return self._shards.each(self._steps, name, arguments)

    def _sum(self, name: str, *arguments: Any) -> Array:
        """The answers of all shards, added one after the other."""
        first, *others = self._each(name, *arguments)
        total = np.array(first, dtype=np.float64)
        for part in others:
            total += part
        return total

    def _local(self, rows: Array | slice) -> tuple[PerShard, list[int]]:
        """The rows of each shard by their numbers there, and how many."""
        ends = np.cumsum(self._sizes)
        if isinstance(rows, slice):
            if (rows.step or 1) < 1:
                raise InputError(NOT_RISING)
            chosen = range(*rows.indices(self.n))
            pieces: list[Any] = [
                _within(chosen, int(end) - size, size)
                for end, size in zip(ends, self._sizes, strict=True)
            ]
            lengths = [
                len(range(*piece.indices(size)))
                for piece, size in zip(pieces, self._sizes, strict=True)
            ]
            return PerShard(pieces), lengths
        rows = np.asarray(rows)
        if len(rows) > 1 and not np.all(rows[1:] >= rows[:-1]):
            raise InputError(NOT_RISING)
        cuts = np.searchsorted(rows, ends)
        places = np.concatenate([[0], cuts])
        pieces = [
            rows[a:b] - (end - size)
            for a, b, end, size in zip(places[:-1], places[1:], ends, self._sizes, strict=True)
        ]
        return PerShard(pieces), [len(piece) for piece in pieces]


def _within(rows: range, first: int, size: int) -> slice:
    """The numbers in a shard of those of ``rows`` that lie in it: ``size`` rows from ``first``
    on.
    """
    step = rows.step
    start = rows.start if rows.start >= first else first + (rows.start - first) % step
    stop = min(rows.stop, first + size)
    return slice(min(start - first, size), max(stop - first, 0), step)


class InShards(ABC):
    """Rows that no matrix holds, in place of one: how many, how wide, and their sums."""

    shape: tuple[int, int]

    @abstractmethod
    def objective(self, y: Array, made: type[LinearObjective], loss: Loss) -> ShardedObjective:
        """The sums over these rows with labels ``y`` (n,)."""


class ShardedRows(InShards):
    """Coded rows in shards, in place of a matrix: its shape, and its products with weights."""

    def __init__(self, parts: Sequence[CodedRows]) -> None:
        self.parts = parts
        self.shape = (sum(part.n for part in parts), parts[0].width if parts else 0)

    def __matmul__(self, W: Array) -> Array:
        found = [z for part in self.parts for _, z in part.scores(W)]
        return np.concatenate(found) if found else np.empty((0, *W.shape[1:]))

    def every(self, stride: int) -> CodedRows:
        """Every ``stride``-th row, in memory."""
        found, place = [], 0
        for part in self.parts:
            found.append(part.table.take(slice(-place % stride, part.n, stride)))
            place += part.n
        first = self.parts[0]
        return CodedRows(Table.joined(found), first.layout, first.normalise)

    def objective(self, y: Array, made: type[LinearObjective], loss: Loss) -> ShardedObjective:
        """The sums over these rows with labels ``y`` (n,)."""
        ends = np.cumsum([0, *(part.n for part in self.parts)])
        places = zip(self.parts, ends[:-1], ends[1:], strict=True)
        return ShardedObjective(Local([made(part, y[a:b], loss) for part, a, b in places]))
