"""What a declared table becomes: codes and fractions of each row, and the public basis that says
what they stand for.

Row i is x_i = b + sum_j (B_j[c_ij] + f_ij S_j[c_ij]): column j of the table has code c_ij and,
where a number is encoded, a fraction f_ij in [0, 1]; the rows of basis B and slopes S are public,
and no two columns share an entry. A level of a categorical column, an interval between two hats, a
missing value (an empty row of B) all are codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dpcore.errors import InputError
from dpcore.losses import Array
from dpcore.objective.rounding import UNIT
from dpcore.objective.sparse import TINY, times, weighted

# Codes of one byte; columns without a fraction are joined as long as their product has no more
# levels.
SMALL = 256
# Codes of two bytes. What has more levels is no coded column.
MOST_LEVELS = 65_536


@dataclass(frozen=True, slots=True)
class Columns:
    """One declared column: ``basis`` and ``slopes`` (levels, d) of its codes; no slopes where it
    has no fraction.
    """

    name: str
    basis: csr_array
    slopes: csr_array | None = None

    @property
    def levels(self) -> int:
        return int(self.basis.shape[0])


class Layout:
    """How coded columns are stored, and the public tables of their levels; from declarations alone.

    ``columns`` in their order, ``constant`` (d,) is added to every row. Columns with a fraction
    stand alone; the others are joined first-fit into products of at most ``pack`` levels, whose
    code is first + levels * second + ... Tables of all stored columns stand one below the other:
    column k has the rows ``starts[k]`` .. ``starts[k + 1] - 1``.
    """

    def __init__(self, columns: Sequence[Columns], constant: Array, pack: int = SMALL) -> None:
        self.columns, self.constant, self.pack = (
            tuple(columns),
            np.asarray(constant, dtype=np.float64),
            pack,
        )
        for column in self.columns:
            if not 0 < column.levels <= MOST_LEVELS:
                raise InputError(
                    f"Expected 1 to {MOST_LEVELS} levels in a coded column, got {column.levels} in "
                    f"{column.name!r}; keep such a table as a sparse matrix."
                )
        self._require_apart()
        self.kept: dict[str, Any] = {}  # what was computed of it last, for whoever computes it
        self.groups = _joined([(c.levels, c.slopes is not None) for c in self.columns], pack)
        sizes = [int(np.prod([self.columns[j].levels for j in group])) for group in self.groups]
        narrow = [k for k, size in enumerate(sizes) if size <= SMALL]
        wide = [k for k, size in enumerate(sizes) if size > SMALL]
        self.groups = [self.groups[k] for k in narrow + wide]
        self.sizes = [sizes[k] for k in narrow + wide]
        self.narrow, self.wide = len(narrow), len(wide)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        # The fraction of each stored column, -1 where it has none.
        sloped = [any(self.columns[j].slopes is not None for j in group) for group in self.groups]
        self.fraction_of = np.where(sloped, np.cumsum(sloped) - 1, -1).astype(np.int64)
        declared = [j for j, column in enumerate(self.columns) if column.slopes is not None]
        self._fraction_order = [
            declared.index(g[0]) for g, has in zip(self.groups, sloped, strict=True) if has
        ]

    @property
    def width(self) -> int:
        """Entries of a row."""
        return len(self.constant)

    @property
    def levels(self) -> int:
        """Rows of all tables together."""
        return int(self.starts[-1])

    @property
    def fractions(self) -> int:
        """How many stored columns have one."""
        return int(np.count_nonzero(self.fraction_of >= 0))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with fractions in single precision, its label not counted."""
        return self.narrow + 2 * self.wide + 4 * self.fractions

    @cached_property
    def basis(self) -> csr_array:
        """B, (levels, d)."""
        return self._stacked(False)

    @cached_property
    def slopes(self) -> csr_array:
        """S, (levels, d); empty rows for columns without a fraction."""
        return self._stacked(True)

    def scores(self, w: Array) -> tuple[Array, Array]:
        """B @ w and S @ w of weights (d,), shape (levels,) each."""
        slopes = times(self.slopes, w) if self.fractions else np.zeros(self.levels)
        return times(self.basis, w), slopes

    def sums(self, heights: Array, tilts: Array, mass: float) -> Array:
        """sum_i c_i x_i from the histograms of c_i and of c_i f_i (levels,) and the sum of c_i;
        shape (d,).
        """
        total = weighted(self.basis, self.width, heights, 0) + mass * self.constant
        return total + weighted(self.slopes, self.width, tilts, 0) if self.fractions else total

    def active(self, scale: Array) -> Array:
        """The stored columns that tell an entry whose ``scale`` (d,) is not 0, in their order; of
        the last scale it is kept.
        """
        known = self.kept.get("active")
        if known is None or known[0] is not scale:
            seen = abs(self.basis) @ (scale != 0.0) + abs(self.slopes) @ (scale != 0.0)
            told = np.maximum.reduceat(seen, self.starts[:-1]) if self.levels else np.empty(0)
            known = self.kept["active"] = scale, np.flatnonzero(told)
        found: Array = known[1]
        return found

    def _require_apart(self) -> None:
        """Raise ``InputError`` where an entry of a row has a part in two columns: norms would not
        add up.
        """
        seen = (self.constant != 0.0).astype(np.int64)
        for column in self.columns:
            tables = [column.basis] if column.slopes is None else [column.basis, column.slopes]
            seen[np.unique(np.concatenate([table.indices for table in tables]))] += 1
        if (seen > 1).any():
            raise InputError(
                "Expected coded columns of entries of their own, got two that share one."
            )

    def _stacked(self, sloped: bool) -> csr_array:
        """The tables of all stored columns; the row of a product is the sum of the rows of its
        codes.
        """
        rows, places, values, start = [], [], [], 0
        for group, size in zip(self.groups, self.sizes, strict=True):
            step = 1
            for column in (self.columns[j] for j in group):
                table = column.slopes if sloped else column.basis
                if table is not None:
                    picked = table[np.arange(size) // step % column.levels].tocoo()
                    rows.append(picked.row + start)
                    places.append(picked.col)
                    values.append(picked.data)
                step *= column.levels
            start += size
        empty = [np.empty(0)]
        found = csr_array(
            (
                np.concatenate(values or empty).astype(np.float64),
                (
                    np.concatenate(rows or empty).astype(np.int64),
                    np.concatenate(places or empty).astype(np.int64),
                ),
            ),
            shape=(self.levels, self.width),
        )
        found.sum_duplicates()
        return found

    def _most(self, ends: Sequence[csr_array], member: Array) -> float:
        """The largest product of a row with ``member`` (d,), levels and fractions at will."""
        sums = np.maximum(*(np.maximum(end @ member, 0.0) for end in ends))
        largest = np.maximum.reduceat(sums, self.starts[:-1]) if self.levels else sums
        return float(member @ self.constant) + float(largest.sum())

    def stored(self, codes: Sequence[Array]) -> list[Array]:
        """Codes of the stored columns from those of the declared ones, each (n,), in the width that
        they are kept.
        """
        found = []
        for k, group in enumerate(self.groups):
            total, step = np.zeros(len(codes[0]), dtype=np.uint32), 1
            for j in group:
                total += np.asarray(codes[j]).astype(np.uint32) * np.uint32(step)
                step *= self.columns[j].levels
            found.append(total.astype(np.uint8 if k < self.narrow else np.uint16))
        return found

    def stored_fractions(self, fractions: Sequence[Array]) -> list[Array]:
        """Fractions of the stored columns from those of the declared ones."""
        return [fractions[j] for j in self._fraction_order]

    def with_columns(self, keep: Array) -> Layout:
        """The same codes for the entries ``keep`` of a row alone."""
        kept = [
            Columns(c.name, c.basis[:, keep], None if c.slopes is None else c.slopes[:, keep])
            for c in self.columns
        ]
        return Layout(kept, self.constant[keep], self.pack)

    def inside(self, blocks: Sequence[Any], tolerance: float) -> bool:
        """Whether all rows have values in [0, 1] and sums of at most 1 in each one-hot block, as
        the tables show.

        Entries are linear in the fraction, so the two ends of an interval decide.
        """
        ends = [self.basis, csr_array(self.basis + self.slopes)]
        values = np.concatenate([end.data for end in ends])
        low = min(values.min(initial=0.0), self.constant.min(initial=0.0))
        high = max(values.max(initial=0.0), self.constant.max(initial=0.0))
        if low < 0.0 or high > 1.0:
            return False
        for block in (b for b in blocks if b.kind == "one_hot" and len(b.columns) > 1):
            member = np.zeros(self.width)
            member[list(block.columns)] = 1.0
            if self._most(ends, member) > 1.0 + tolerance:
                return False
        return True


def _joined(columns: Sequence[tuple[int, bool]], pack: int) -> list[list[int]]:
    """First-fit: each column without a fraction joins the first product that stays within ``pack``
    levels.
    """
    groups: list[list[int]] = []
    sizes: list[int] = []
    for j, (levels, sloped) in enumerate(columns):
        fits = (k for k, size in enumerate(sizes) if size and size * levels <= pack)
        k = None if sloped else next(fits, None)
        if k is None:
            groups.append([j])
            sizes.append(0 if sloped else levels)
        else:
            groups[k].append(j)
            sizes[k] *= levels
    return groups


@dataclass(frozen=True, slots=True)
class Table:
    """Codes and fractions of n rows, column after column: ``narrow`` (k, n) uint8, ``wide`` (k, n)
    uint16, ``fractions`` (k, n) float32 or float64.

    Arrays may be mapped files; ``folder`` is there as long as they are. Sums rely on codes below
    the number of levels and fractions in [0, 1]: no look-up checks them, so ``check`` does, when a
    table is made or opened. ``kept`` is what passes found last, for all views of the rows together.
    """

    narrow: Array
    wide: Array
    fractions: Array
    folder: Path | None = field(default=None, kw_only=True)
    kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def n(self) -> int:
        return int(self.narrow.shape[1])

    def codes(self, k: int) -> Array:
        """The codes of the stored column k, shape (n,)."""
        few = len(self.narrow)
        return np.asarray(self.narrow[k] if k < few else self.wide[k - few])

    def check(self, layout: Layout) -> None:
        """Raise ``InputError`` where a code has no level, a fraction is outside [0, 1], or shapes
        differ.
        """
        shapes = self.narrow.shape[0], self.wide.shape[0], self.fractions.shape[0]
        if shapes != (layout.narrow, layout.wide, layout.fractions) or not (
            self.narrow.shape[1] == self.wide.shape[1] == self.fractions.shape[1]
        ):
            raise InputError(
                f"Expected {layout.narrow}, {layout.wide} and {layout.fractions} coded columns, "
                f"got {shapes}; the table was altered."
            )
        for k, size in enumerate(layout.sizes):
            if self.n and int(self.codes(k).max()) >= size:
                raise InputError(
                    "Expected codes of declared levels alone, got another; the table was altered."
                )
        for column in self.fractions:  # NaN fails the comparison
            if self.n and not (float(column.min()) >= 0.0 and float(column.max()) <= 1.0):
                raise InputError(
                    "Expected fractions in [0, 1], got another; the table was altered."
                )

    def take(self, rows: Array | slice) -> Table:
        """Some of the rows."""
        parts = self.narrow, self.wide, self.fractions
        return Table(*(np.ascontiguousarray(part[:, rows]) for part in parts))

    @classmethod
    def of(
        cls,
        layout: Layout,
        codes: Sequence[Array],
        fractions: Sequence[Array],
        dtype: Any = np.float32,
    ) -> Table:
        """From the codes of the declared columns and the fractions of those that have one, each
        (n,).
        """
        n = len(codes[0]) if len(codes) else 0
        stored = layout.stored(codes) if len(codes) else []
        parts = (
            np.array(stored[: layout.narrow], dtype=np.uint8).reshape(layout.narrow, n),
            np.array(stored[layout.narrow :], dtype=np.uint16).reshape(layout.wide, n),
            np.array(layout.stored_fractions(fractions), dtype=dtype).reshape(layout.fractions, n),
        )
        table = cls(*parts)
        table.check(layout)
        return table

    @classmethod
    def joined(cls, tables: Sequence[Table]) -> Table:
        """The rows of several tables, one after the other."""
        parts = zip(*((t.narrow, t.wide, t.fractions) for t in tables), strict=True)
        return cls(*(np.ascontiguousarray(np.concatenate(part, axis=1)) for part in parts))


class Squares:
    """||scale * (x_i - shift)||^2 by look-up: m + k + sum_j (c0 + f c1 + f^2 c2) at the codes of
    row i.

    With m = ||scale * shift||^2 every stored entry replaces s^2 m^2 by s^2 (v - m)^2, v linear in
    the fraction. The terms may cancel, so a root is taken of their sum and of what rounding can
    hide, relative to the largest terms that the tables hold: the bounds never lack anything (Higham
    2002, section 3.1).
    """

    def __init__(self, layout: Layout, shift: Array, scale: Array) -> None:
        squared, shift = scale**2, np.asarray(shift, dtype=np.float64)
        self.tables = np.zeros((layout.levels, 3))
        self.tables[:, 0] = _entrywise(
            layout.basis, lambda v, e: squared[e] * v * (v - 2.0 * shift[e])
        )
        self.tables[:, 1] = 2.0 * (
            (layout.basis.multiply(layout.slopes)) @ squared - layout.slopes @ (squared * shift)
        )
        self.tables[:, 2] = _entrywise(layout.slopes, lambda v, e: squared[e] * v * v)
        constant = layout.constant
        self.middle = float(squared @ shift**2)
        self.start = self.middle + float(squared @ (constant * (constant - 2.0 * shift)))
        size = _entrywise(
            layout.basis, lambda v, e: squared[e] * np.abs(v) * (np.abs(v) + 2.0 * np.abs(shift[e]))
        )
        size += 2.0 * (abs(layout.slopes) @ (squared * np.abs(shift)))
        size += 2.0 * (abs(layout.basis).multiply(abs(layout.slopes)) @ squared) + self.tables[:, 2]
        each = np.maximum.reduceat(size, layout.starts[:-1]).sum() if layout.levels else 0.0
        alone = 2.0 * self.middle + float(
            squared @ (np.abs(constant) * (np.abs(constant) + 2.0 * np.abs(shift)))
        )
        terms = 3 * len(layout.sizes) + int(np.diff(layout.basis.indptr).max(initial=0)) + 16
        self.hidden = (
            2.0 * UNIT * (terms * (alone + each) + layout.width * alone) + layout.width * TINY
        )

    @cached_property
    def by_power(self) -> Array:
        """The tables by the power of the fraction, (3, levels)."""
        return np.ascontiguousarray(self.tables.T)

    def roots(self, sums: Array) -> Array:
        """Upper bounds of the norms from the looked-up sums, shape (n,)."""
        return np.asarray(
            np.sqrt(np.maximum(sums + self.start, 0.0) + self.hidden) * (1.0 + 4.0 * UNIT)
        )


def plain_squares(layout: Layout) -> Squares:
    """Tables of the norms of rows as they are, made once a layout."""
    found: Squares | None = layout.kept.get("plain")
    if found is None:
        nothing = np.zeros(layout.width)
        found = layout.kept["plain"] = Squares(layout, nothing, nothing + 1.0)
    return found


def _entrywise(table: csr_array, f: Callable[[Array, Array], Array]) -> Array:
    """Row sums of f(value, column) over the stored entries, shape (levels,)."""
    return np.asarray(
        csr_array((f(table.data, table.indices), table.indices, table.indptr), table.shape).sum(
            axis=1
        )
    )
