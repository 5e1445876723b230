"""The sums that a training asks most, in one compiled pass where there is one; None where there is
none.

Rows are cut into chunks of fixed length. Each has sums of its own, which are added in the order of
the rows, so the result is the same bit for bit for any number of threads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from dpcore.losses import Array, Loss
from dpcore.objective import compiled
from dpcore.objective.coded.codes import Layout, Squares
from dpcore.objective.coded.rows import CodedPick, CodedRows
from dpcore.objective.compiled import Terms, terms_of
from dpcore.objective.rows import Dense, Rows, Scaled
from dpcore.objective.sparse import Sparse, SparsePick

# Rows that are summed by themselves, few for the reason of ``sparse.STRETCH``: what one record
# moves by the roundings of others stays below 1e-6 of the clip.
CHUNK = 2**16
# From so many rows on a second thread gains more than it costs to start.
THREADED = 500_000
# No numbers of rows: all of them.
ALL = np.empty(0, np.int64)
# The pass over rows of each storage, and the arrays that it reads.
STORED: dict[type, tuple[str, Callable[[Any], list[Array]]]] = {
    Sparse: ("csr_gradient", lambda rows: [*rows.unsigned, ALL]),
    Dense: ("dense_gradient", lambda rows: [rows.X]),
    SparsePick: ("csr_gradient", lambda rows: [*rows.source.unsigned, rows.picked]),
}
# Norms take at most this share of what a disk has left: ledger and records want room there too.
SPARED = 0.5
# Norms beyond this are left to the slow way, where quotients lose no digits.
LONGEST = 1e100

# Weights, what their scores lose to the shift, and the places of points on a line (none: no line).
Points = tuple[Array, Array, Array]


def threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_chunks(n: int, work: Callable[[int, int], Any], workers: int | None = None) -> list[Any]:
    """``work(begin, end)`` of every chunk of n rows, in their order. The caller works too."""
    ends = [(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]
    workers = min(threads() if workers is None else workers, len(ends))
    if n < THREADED or workers < 2:
        return [work(*piece) for piece in ends]
    found, left = {}, iter(ends)

    def take(_: int) -> None:
        for piece in left:
            found[piece] = work(*piece)

    with ThreadPoolExecutor(workers - 1) as pool:
        others = pool.map(take, range(1, workers))
        try:
            take(0)
            list(others)
        finally:
            list(left)  # after an error or an interruption nobody begins another chunk
    return [found[piece] for piece in ends]


def gradient(
    rows: Rows, y: Array, loss: Loss, w: Array, clip: float, workers: int | None = None
) -> Array | None:
    """sum_i clip(c_i, clip / ||x_i||) x_i at ``w`` (d,), or None where no kernel does it."""
    terms = terms_of(loss)
    if terms is None or not compiled.in_use() or w.ndim != 1 or len(y) == 0:
        return None
    if rows.scaling is None:
        sums = _sums(rows, rows, y, terms, w, None, clip, workers)
        return None if sums is None else sums[0]
    shift, scale = rows.scaling
    inner: Any = rows
    sums = _sums(inner.inner, rows, y, terms, scale * w, (shift, scale), clip, workers)
    if sums is None:
        return None
    total, mass = sums
    return np.asarray(scale * (total - mass * shift))


def _sums(
    inner: Rows,
    rows: Rows,
    y: Array,
    terms: Terms,
    w: Array,
    view: tuple[Array, Array] | None,
    clip: float,
    workers: int | None,
) -> tuple[Array, float] | None:
    """Sum of c_i x_i and of c_i over rows x_i before the shift and scale ``view``; None where no
    kernel does it.
    """
    if type(inner) in STORED:
        middle = 0.0 if view is None else float(view[0] @ w)
        return _stored(inner, rows, y, terms, w, middle, clip, workers)
    if not isinstance(inner, CodedRows):
        return None
    seen = (np.zeros(len(w)), np.ones(len(w))) if view is None else view
    return _coded(inner, y, terms, w, seen, view is not None, clip, workers)


def _coded(
    rows: CodedRows,
    y: Array,
    terms: Terms,
    w: Array,
    view: tuple[Array, Array],
    scaled: bool,
    clip: float,
    workers: int | None,
) -> tuple[Array, float] | None:
    """Sum of c_i x_i and of c_i, of coded rows x_i before the shift."""
    mode = _mode(rows, scaled)
    if mode is None:
        return None
    from dpcore.objective.coded import kernels as coded_kernels

    layout = rows.layout
    squares = rows.squares_of(*view) if scaled else rows.plain_squares
    if not squares.start + squares.tables.max(initial=0.0) < LONGEST**2:
        return None
    active = layout.active(view[1]) if scaled else np.arange(len(layout.sizes))
    middle = float(layout.constant @ w) - float(view[0] @ w)
    if isinstance(rows, CodedPick) and _pays(rows, squares):
        _coded(rows.whole, np.zeros(rows.whole.n), terms, w, view, scaled, clip, workers)
    norms, known = _norms(rows, squares)
    picked = rows.picked if isinstance(rows, CodedPick) else ALL
    table = _table(rows.whole if isinstance(rows, CodedPick) else rows, active)
    scores = np.stack([*layout.scores(w), np.zeros(layout.levels)])
    given = (table, scores, squares.by_power, norms, known, picked, y)
    rest = (middle, (squares.start, squares.hidden, mode), terms, clip)

    def work(begin: int, end: int) -> tuple[Array, float]:
        sums = np.zeros((2, layout.levels))
        mass = coded_kernels.coded_gradient(*given, begin, end, *rest, sums)
        return sums, mass

    parts = in_chunks(len(y), work, workers)
    if len(norms) == rows.n and not isinstance(rows, CodedPick):
        rows.table.kept["norms"] = squares, norms
    sums, mass = np.asarray(sum(part[0] for part in parts)), float(sum(part[1] for part in parts))
    return layout.sums(sums[0], sums[1], mass), mass


def _norms(rows: CodedRows, squares: Squares) -> tuple[Array, bool]:
    """Norms of rows, looked up once a scaling, and whether they are known; else room for them, none
    where they are not to be kept: eight bytes a row of a table, of the last scaling alone, whatever
    of its views it is of. Those of rows in files are kept in a file, from the second pass on.
    """
    whole = rows.whole if isinstance(rows, CodedPick) else rows
    kept = whole.table.kept
    found = kept.get("norms")  # read once: another thread may put those of another scaling there
    if found is not None and found[0] is squares:
        known: Array = found[1]
        return known[rows.picked] if isinstance(rows, CodedPick) else known, True
    if isinstance(rows, CodedPick):
        return np.empty(0), False
    kept.pop("norms", None)  # before there is room for others
    if not _mapped(rows):
        return np.empty(rows.n), False
    room = _room(rows, np.float64) if kept.get("asked for") is squares else np.empty(0)
    kept["asked for"] = squares
    return room, False


def beside(rows: Rows, kind: type[np.generic]) -> Array:
    """A number a row, not yet set, where the rows are: in a file if there is room, or in memory."""
    found = _room(rows, kind) if type(rows) is CodedRows and _mapped(rows) else np.empty(0, kind)
    return found if len(found) == rows.n else np.empty(rows.n, kind)


def _room(rows: CodedRows, kind: type[np.generic]) -> Array:
    """A number a row in a file without a name beside those of the rows; none where the disk is
    full or the system cannot say so before.
    """
    if rows.table.folder is None or not hasattr(os, "posix_fallocate"):
        return np.empty(0, kind)
    try:
        if 8 * rows.n > SPARED * shutil.disk_usage(rows.table.folder).free:
            return np.empty(0)
        with TemporaryFile(dir=rows.table.folder) as file:
            os.posix_fallocate(file.fileno(), 0, 8 * rows.n)
            return np.memmap(file, kind, "r+", shape=rows.n)
    except OSError:
        return np.empty(0, kind)


def _pays(rows: CodedPick, squares: Squares) -> bool:
    """Whether as many rows were picked by now as all are, and the norms of all are not known."""
    whole, kept = rows.whole, rows.whole.table.kept
    kept["picked"] = kept.get("picked", 0) + rows.n
    if _mapped(whole) or kept["picked"] < whole.n:
        return False
    kept["picked"], found = 0, kept.get("norms")
    return found is None or found[0] is not squares


def _mapped(rows: CodedRows) -> bool:
    table = rows.table
    return any(isinstance(p, np.memmap) for p in (table.narrow, table.wide, table.fractions))


def _in_order(layout: Layout, active: Array) -> tuple[Array, tuple[int, int, int]]:
    """The columns in the order that passes take them, codes of one byte first and those without
    fractions before others; where those end that go by four, without fractions, and by two.
    """
    few, sloped = active < layout.narrow, layout.fraction_of[active] >= 0
    levels, hats = active[few & ~sloped], active[few & sloped]
    order = np.concatenate([levels, hats, active[~few]])
    plain = len(levels)
    return order, (plain - plain % 4, plain, plain + len(hats) - len(hats) % 2)


def _table(rows: CodedRows, active: Array | None = None) -> tuple[Any, ...]:
    """Codes and fractions as passes take them, with their columns, or with the ``active`` ones."""
    layout, table = rows.layout, rows.table
    columns, ends = _in_order(layout, np.arange(len(layout.sizes)) if active is None else active)
    parts = table.narrow, table.wide, table.fractions, layout.fraction_of
    return (*parts, columns, ends, layout.starts[columns])


def _mode(rows: CodedRows, scaled: bool) -> int | None:
    """0: rows as they are; 1 and 2: cut or brought to norm 1. None where their norms take more than
    a table, or fractions are double, as no training stores them: one more precision is one more
    pass to compile.
    """
    stored = rows.whole.table if isinstance(rows, CodedPick) else rows.table
    if stored.fractions.dtype != np.float32:
        return None
    if rows.normalise == "none":
        return 0
    if scaled or rows.measured is not rows.layout:
        return None
    if rows.normalise == "cap":
        return 1
    return 2 if rows.shortener.start >= 0.01 else None


def _stored(
    inner: Any,
    rows: Rows,
    y: Array,
    terms: Terms,
    w: Array,
    middle: float,
    clip: float,
    workers: int | None,
) -> tuple[Array, float] | None:
    """As ``_coded`` for stored rows, whose norms are stored too."""
    from dpcore.objective import kernels

    norms = np.ascontiguousarray(rows.norms) if clip != inf else np.empty(len(y))
    if clip != inf and not float(norms.max(initial=0.0)) < LONGEST:
        return None
    name, parts_of = STORED[type(inner)]
    run, stored = getattr(kernels, name), parts_of(inner)

    def work(begin: int, end: int) -> tuple[Array, float]:
        total = np.zeros(len(w))
        return total, run(*stored, norms, y, begin, end, w, middle, *terms, clip, total)

    if len(y) <= CHUNK:
        return work(0, len(y))
    parts = in_chunks(len(y), work, workers)
    return np.asarray(sum(part[0] for part in parts)), float(sum(part[1] for part in parts))


def softmax_gradient(
    rows: Rows, labels: Array, W: Array, clip: float, workers: int | None = None
) -> Array | None:
    """sum_i x_i (p_i - e_y)' at ``W`` (d, K), each record's part scaled down to norm ``clip``;
    shape (d, K), or None where no kernel does it.
    """
    inner, scaling = rows.inner if isinstance(rows, Scaled) else rows, rows.scaling
    if not compiled.in_use() or not isinstance(inner, CodedRows) or len(labels) == 0:
        return None
    mode = _mode(inner, scaling is not None)
    shift, scale = (0.0 * W[:, 0], np.ones(len(W))) if scaling is None else scaling
    squares = inner.plain_squares if scaling is None else inner.squares_of(shift, scale)
    if mode is None or not squares.start + squares.tables.max(initial=0.0) < LONGEST**2:
        return None
    weights = W if scaling is None else (W.T * scale).T
    heights, tilts, mass = _softmax_sums(
        inner, labels, weights, (mode, squares, shift), clip, workers
    )
    layout = inner.layout
    total = layout.basis.T @ heights + np.multiply.outer(layout.constant, mass)
    if layout.fractions:
        total += layout.slopes.T @ tilts
    return np.asarray(((total - np.multiply.outer(shift, mass)).T * scale).T)


def _softmax_sums(
    rows: CodedRows,
    labels: Array,
    W: Array,
    seen: tuple[int, Squares, Array],
    clip: float,
    workers: int | None,
) -> tuple[Array, Array, Array]:
    """Histograms (levels, K) and the sum (K,) of what each record has for a gradient in its
    scores.
    """
    from dpcore.objective.coded import kernels as coded_kernels

    layout, (mode, squares, shift) = rows.layout, seen
    scores, slopes = (layout.basis @ W).ravel(), (layout.slopes @ W).ravel()
    middle = layout.constant @ W - shift @ W
    given = (_table(rows), scores, slopes, squares.by_power, labels)
    rest = (middle, (squares.start, squares.hidden, mode), clip)

    def work(begin: int, end: int) -> tuple[Array, Array, Array]:
        heights, tilts, mass = np.zeros(scores.size), np.zeros(scores.size), np.zeros(W.shape[1])
        coded_kernels.coded_softmax(*given, begin, end, *rest, heights, tilts, mass)
        return heights.reshape(-1, W.shape[1]), tilts.reshape(-1, W.shape[1]), mass

    parts = in_chunks(len(labels), work, workers)
    heights, tilts, mass = (np.asarray(sum(part[k] for part in parts)) for k in range(3))
    return heights, tilts, mass


def values(
    rows: Rows,
    y: Array,
    loss: Loss,
    W: Array,
    clip: float,
    workers: int | None = None,
    places: Array | None = None,
) -> Array | None:
    """sum_i min(loss_i, clip) for every row of ``W`` (k, d), shape (k,), or None where no kernel
    does it. With ``places`` (k,): for the points W[0] + places W[1] of a line.
    """
    terms = terms_of(loss)
    if terms is None or not compiled.in_use() or len(y) == 0:
        return None
    inner, scaling = rows.inner if isinstance(rows, Scaled) else rows, rows.scaling
    weights = W if scaling is None else W * scaling[1]
    middle = np.zeros(len(W)) if scaling is None else weights @ scaling[0]
    along = np.empty(0) if places is None else places
    if isinstance(inner, CodedRows):
        return _coded_values(inner, y, terms, (weights, middle, along), clip, workers)
    if not isinstance(inner, Sparse):
        return None
    return _sparse_values(inner, y, terms, (weights, middle, along), clip, workers)


def _coded_values(
    rows: CodedRows, y: Array, terms: Terms, points: Points, clip: float, workers: int | None
) -> Array | None:
    mode = _mode(rows, False)
    if mode is None:
        return None
    from dpcore.objective.coded import kernels as coded_kernels

    layout, squares = rows.layout, rows.shortener
    W, offset, along = points
    scores, slopes = (layout.basis @ W.T).ravel(), (layout.slopes @ W.T).ravel()
    given = (_table(rows), scores, slopes, squares.by_power, y)
    shape = squares.start, squares.hidden, mode
    rest = (W @ layout.constant, offset, along, shape, terms, clip)

    def work(begin: int, end: int) -> Array:
        totals = np.zeros(len(along) or len(W))
        coded_kernels.coded_values(*given, begin, end, *rest, totals)
        return totals

    return np.asarray(sum(in_chunks(len(y), work, workers)))


def _sparse_values(
    inner: Sparse, y: Array, terms: Terms, points: Points, clip: float, workers: int | None
) -> Array:
    from dpcore.objective import kernels

    W, middle, along = points
    stored, side = inner.unsigned, np.ascontiguousarray(W.T).ravel()

    def work(begin: int, end: int) -> Array:
        totals = np.zeros(len(along) or len(W))
        kernels.csr_values(*stored, y, begin, end, side, middle, along, *terms, clip, totals)
        return totals

    return np.asarray(sum(in_chunks(len(y), work, workers)))
