"""Coded rows as any other rows: scores by look-up, sums by histogram, norms from a second table.

Everything here is plain numpy, a stretch of rows at a time; ``dpcore.objective.fused`` has compiled
passes for what a training asks most. No norm is stored here: a row's bound is looked up like its
score, so a table of any length takes the memory of one stretch. Compiled passes keep them with the
table, in memory or in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array

from dpcore.losses import Array
from dpcore.objective import compiled
from dpcore.objective.coded.codes import Layout, Squares, Table, plain_squares
from dpcore.objective.rounding import UNIT, quotients, row_norms
from dpcore.objective.rows import SUM_TOLERANCE, Coefficient, Rows, Scaled, groups
from dpcore.objective.sparse import Sparse, canonical
from dpcore.problem import Block

# Rows that are looked up at a time: their numbers stay in the second-level cache.
STRETCH = 32_768


class CodedRows(Rows):
    """The rows of ``table``, each shortened as ``normalise`` says (``none``, ``cap`` or ``unit``)
    by its own norm.

    ``measured`` is the layout that has the norms for that, where columns were taken away since.
    ``seen`` names the stored columns that a pass looks up, all by default.
    """

    def __init__(
        self,
        table: Table,
        layout: Layout,
        normalise: str = "none",
        measured: Layout | None = None,
        seen: Array | None = None,
    ) -> None:
        super().__init__()
        self._table, self.layout, self.normalise = table, layout, normalise
        self.seen = np.arange(len(layout.sizes)) if seen is None else seen
        self.measured = layout if measured is None else measured
        self.n, self.width = table.n, layout.width
        self._zero, self._one = np.zeros(self.width), np.ones(self.width)

    @property
    def table(self) -> Table:
        """Codes and fractions of the rows."""
        return self._table

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.width

    def __matmul__(self, W: Array) -> Array:
        """Scores of all rows: what is asked of a matrix in their place."""
        found = [z for _, z in self.scores(W)]
        return np.concatenate(found) if found else np.empty((0, *W.shape[1:]))

    def __getitem__(self, rows: Array | slice) -> CodedRows:
        return self.take(rows)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    @property
    def X(self) -> csr_array:
        """The rows as a matrix, formed anew: for what has to see single entries."""
        return self.decoded(slice(0, self.n)).X

    @property
    def shortener(self) -> Squares:
        """The norms before rows are shortened."""
        return plain_squares(self.measured)

    @property
    def plain_squares(self) -> Squares:
        """The norms of rows as they are, before they are shortened."""
        return plain_squares(self.layout)

    def squares_of(self, shift: Array, scale: Array) -> Squares:
        """Tables of norms of rows scale * (x - shift); the last ones are kept, for all shards of a
        table.
        """
        kept = self.layout.kept
        known = kept.get("squares")
        if known is None or known[0] is not shift or known[1] is not scale:
            known = kept["squares"] = shift, scale, Squares(self.layout, shift, scale)
        found: Squares = known[2]
        return found

    def decoded(self, rows: slice) -> Sparse:
        """Some rows as a sparse matrix."""
        found = self._unshortened(rows)
        if self.normalise != "none":
            found = csr_array(diags_array(self.factors(rows)) @ found)
        return Sparse(found)

    def _unshortened(self, rows: slice) -> csr_array:
        layout, n = self.layout, rows.stop - rows.start
        ends = np.arange(n + 1)
        found = csr_array(np.ones((n, 1))) @ csr_array(layout.constant[None])
        for k, codes in self._codes(rows):
            place, f = codes.astype(np.int64) + layout.starts[k], self._fraction(k, rows)
            found = (
                found
                + csr_array((np.ones(n), place, ends), shape=(n, layout.levels)) @ layout.basis
            )
            if f is not None:
                found = (
                    found + csr_array((f, place, ends), shape=(n, layout.levels)) @ layout.slopes
                )
        found = canonical(found)
        found.eliminate_zeros()
        found.sort_indices()
        return found

    def pieces(self) -> Iterator[slice]:
        for start in range(0, self.n, STRETCH):
            yield slice(start, min(start + STRETCH, self.n))

    def _codes(self, rows: slice) -> list[tuple[int, Array]]:
        return [(k, self.table.codes(k)[rows]) for k in map(int, self.seen)]

    def _fraction(self, k: int, rows: slice) -> Array | None:
        place = int(self.layout.fraction_of[k])
        return (
            None if place < 0 else np.asarray(self.table.fractions[place, rows], dtype=np.float64)
        )

    def _looked_up(
        self, rows: slice, basis: Array, slopes: Array, squares: Array | None = None
    ) -> Array:
        """sum_j (basis + f slopes (+ f^2 squares)) at the codes of ``rows``: (m,) for tables
        (levels,).
        """
        found = np.zeros((rows.stop - rows.start, *basis.shape[1:]))
        starts = self.layout.starts
        for k, codes in self._codes(rows):
            own = slice(starts[k], starts[k + 1])
            found += basis[own].take(codes, axis=0)
            f = self._fraction(k, rows)
            if f is None:
                continue
            f = f if basis.ndim == 1 else f[:, None]
            found += f * slopes[own].take(codes, axis=0)
            if squares is not None:
                found += f * f * squares[own].take(codes, axis=0)
        return found

    def plain_lengths(self, rows: slice, squares: Squares) -> Array:
        """Bounds of the norms of ``rows``, before they are shortened, for the tables
        ``squares``.
        """
        tables = squares.tables
        return squares.roots(self._looked_up(rows, tables[:, 0], tables[:, 1], tables[:, 2]))

    def factors(self, rows: slice) -> Array:
        """What each of ``rows`` is multiplied by, shape (m,)."""
        lengths = self.plain_lengths(rows, self.shortener)
        if self.normalise == "cap":
            return np.asarray(1.0 / np.maximum(lengths, 1.0))
        short = np.flatnonzero(lengths < 0.1)  # what rounding may hide is no small part of these
        if len(short):
            bare = CodedRows(self.table, self.measured)
            lengths[short] = row_norms(bare._unshortened(rows)[short])
        return np.asarray(np.where(lengths > 0.0, quotients(1.0, lengths), 1.0))

    def norms_at(self, rows: slice) -> Array:
        return self.scaled_norms(rows, self._zero, self._one)

    def lengths_at(self, rows: slice) -> Array:
        return self.norms_at(rows)

    def scaled_norms(self, rows: slice, shift: Array, scale: Array) -> Array:
        """Bounds of the norms of scale * (x - shift) of ``rows``; entry by entry where a row has a
        factor.
        """
        plain = shift is self._zero and scale is self._one
        if self.normalise == "none":
            return self.plain_lengths(
                rows, self.plain_squares if plain else self.squares_of(shift, scale)
            )
        if plain and self.measured is self.layout:
            found = self.plain_lengths(rows, self.shortener) if self.normalise == "cap" else None
            if found is not None:
                return np.asarray(found / np.maximum(found, 1.0) * (1.0 + 4.0 * UNIT))
        return self.decoded(rows).scaled_lengths(shift, scale)

    def _measured(self) -> Array:
        return np.concatenate([self.norms_at(rows) for rows in self.pieces()] or [np.empty(0)])

    def longest(self) -> float:
        return max(
            (float(self.norms_at(rows).max(initial=0.0)) for rows in self.pieces()), default=0.0
        )

    def stretches(self) -> Iterator[tuple[slice, Callable[[Array], Array]]]:
        for rows in self.pieces():
            yield rows, self._times(rows)

    def _times(self, rows: slice) -> Callable[[Array], Array]:
        def times(W: Array) -> Array:
            layout = self.layout
            z = self._looked_up(rows, layout.basis @ W, layout.slopes @ W) + layout.constant @ W
            return z if self.normalise == "none" else np.asarray((z.T * self.factors(rows)).T)

        return times

    def weighted_sum(self, W: Array, coefficient: Coefficient) -> Array:
        layout = self.layout
        basis, slopes, middle = layout.basis @ W, layout.slopes @ W, layout.constant @ W
        heights = _Histograms(layout, W.shape[1:])
        for rows in self.pieces():
            z = self._looked_up(rows, basis, slopes) + middle
            if self.normalise == "none":
                heights.add(self, rows, coefficient(rows, z))
            else:
                factor = self.factors(rows)
                heights.add(self, rows, (coefficient(rows, (z.T * factor).T).T * factor).T)
        return heights.rows_sum()

    def group_sums(self, coefficients: Array, ends: Array) -> Array:
        return np.asarray((groups(coefficients, ends) @ self.X).toarray())

    def column_sum(self) -> Array:
        heights = _Histograms(self.layout, ())
        for rows in self.pieces():
            heights.add(
                self,
                rows,
                np.ones(rows.stop - rows.start) if self.normalise == "none" else self.factors(rows),
            )
        return heights.rows_sum()

    def square_sum(self) -> Array:
        layout = self.layout
        moments = np.zeros((3, layout.levels))
        mass = 0.0
        for rows in self.pieces():
            weight = (
                np.ones(rows.stop - rows.start)
                if self.normalise == "none"
                else self.factors(rows) ** 2
            )
            mass += float(weight.sum())
            for k, codes in self._codes(rows):
                own, f = slice(layout.starts[k], layout.starts[k + 1]), self._fraction(k, rows)
                moments[0, own] += np.bincount(codes, weight, layout.sizes[k])
                if f is not None:
                    moments[1, own] += np.bincount(codes, weight * f, layout.sizes[k])
                    moments[2, own] += np.bincount(codes, weight * f * f, layout.sizes[k])
        found = layout.basis.power(2).T @ moments[0] + layout.slopes.power(2).T @ moments[2]
        found = found + 2.0 * (layout.basis.multiply(layout.slopes).T @ moments[1])
        return np.asarray(found + mass * layout.constant**2)

    def first_broken(self) -> int | None:
        return None  # a table is checked when it is made, and its basis is public

    def scaled_lengths(self, shift: Array, scale: Array) -> Array:
        found = [self.scaled_norms(rows, shift, scale) for rows in self.pieces()]
        return np.concatenate(found or [np.empty(0)])

    def scaled(self, shift: Array, scale: Array) -> CodedScaled:
        """Columns of scale 0 add 0 to scores, sums and norms, so no pass looks them up, unless
        rows are shortened by all that they hold.
        """
        if self.normalise != "none":
            return CodedScaled(self, shift, scale)
        seen = self.layout.active(scale)
        return CodedScaled(CodedRows(self.table, self.layout, seen=seen), shift, scale)

    def within(self, blocks: Sequence[Block]) -> Rows:
        """Itself where basis and blocks say that all is within; a factor above 1 may break a sum of
        parts.
        """
        kept = self.layout.kept
        known = kept.get("inside")
        if known is None or known[0] is not blocks:
            known = kept["inside"] = blocks, self.layout.inside(blocks, SUM_TOLERANCE)
        if self.normalise != "unit" and known[1]:
            return self
        return self.decoded(slice(0, self.n)).within(blocks)

    def bounded(self, norm_bound: float, over: float) -> Rows:
        return self.decoded(slice(0, self.n)).bounded(norm_bound, over)

    def with_matrix(self, X: Any) -> Rows:
        return Sparse(canonical(X))

    def columns(self, keep: Array) -> CodedRows:
        return CodedRows(
            self.table, self.layout.with_columns(np.asarray(keep)), self.normalise, self.measured
        )

    def take(self, rows: Array | slice) -> CodedRows:
        return CodedRows(
            self.table.take(rows), self.layout, self.normalise, self.measured, self.seen
        )

    def gather(self, rows: Array | slice) -> CodedRows:
        if isinstance(rows, slice) or not compiled.in_use():
            return self.take(rows)
        return CodedPick(self, rows)


class CodedPick(CodedRows):
    """Coded rows by their numbers, within range as a sampler's are: a compiled pass reads their
    codes where they stand, all else copies them first.
    """

    def __init__(self, source: CodedRows, picked: Array) -> None:
        super().__init__(
            source.table, source.layout, source.normalise, source.measured, source.seen
        )
        self.whole, self.picked = source, np.ascontiguousarray(picked, dtype=np.int64)
        self.n = len(self.picked)

    @cached_property
    def table(self) -> Table:
        """The copied codes, made when first asked for."""
        return self.whole.table.take(self.picked)


class CodedScaled(Scaled):
    """Rows scale * (x - shift) of coded rows; their norms too are looked up where they are asked
    for.
    """

    inner: CodedRows

    def norms_at(self, rows: slice) -> Array:
        return self.inner.scaled_norms(rows, self.shift, self.scale)

    def lengths_at(self, rows: slice) -> Array:
        return self.norms_at(rows)

    def longest(self) -> float:
        found = (float(self.norms_at(rows).max(initial=0.0)) for rows in self.inner.pieces())
        return max(found, default=0.0)

    def scaled(self, shift: Array, scale: Array) -> CodedScaled:
        return CodedScaled(self.inner, *self._composed(shift, scale))

    def columns(self, keep: Array) -> CodedScaled:
        return CodedScaled(self.inner.columns(keep), self.shift[keep], self.scale[keep])

    def take(self, rows: Array | slice) -> CodedScaled:
        return CodedScaled(self.inner.take(rows), self.shift, self.scale)

    def gather(self, rows: Array | slice) -> CodedScaled:
        return CodedScaled(self.inner.gather(rows), self.shift, self.scale)


class _Histograms:
    """Sums of coefficients by level: what becomes sum_i c_i x_i by one product with the basis."""

    def __init__(self, layout: Layout, shape: tuple[int, ...]) -> None:
        self.layout = layout
        self.heights = np.zeros((layout.levels, *shape))
        self.slopes = np.zeros((layout.levels, *shape))
        self.mass = np.zeros(shape)

    def add(self, rows: CodedRows, where: slice, c: Array) -> None:
        self.mass += c.sum(axis=0)
        layout = self.layout
        for k, codes in rows._codes(where):
            own, size = slice(layout.starts[k], layout.starts[k + 1]), layout.sizes[k]
            self.heights[own] += _counted(codes, c, size)
            f = rows._fraction(k, where)
            if f is not None:
                self.slopes[own] += _counted(codes, c * f if c.ndim == 1 else c * f[:, None], size)

    def rows_sum(self) -> Array:
        """sum_i c_i x_i, of the shape of the weights."""
        layout = self.layout
        total = layout.basis.T @ self.heights + layout.slopes.T @ self.slopes
        return np.asarray(total + np.multiply.outer(layout.constant, self.mass))


def _counted(codes: Array, c: Array, size: int) -> Array:
    if c.ndim == 1:
        return np.bincount(codes, c, size)
    return np.column_stack([np.bincount(codes, column, size) for column in c.T])
