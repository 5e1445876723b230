"""Rows in every storage that a sum may read, and the neighbours of a small table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from dpcore.features import Column
from dpcore.losses import Array
from dpcore.objective import LinearObjective
from dpcore.objective.coded import CodedRows, Columns, Layout, Table
from dpcore.objective.shards import Local, ShardedObjective
from dpcore.preprocess import Encoder
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.design import EncodingReport
from tests.tape import Made, Stored

# Where the rows of a table end in a shard, for as many rows as there are: a border before and
# behind any of the rows that differ below, and one shard of one row.
CUTS = (2, 5, 6, 11)


def cut(n: int) -> list[slice]:
    """The rows of each shard."""
    ends = [0, *(end for end in CUTS if end < n), n]
    return [slice(a, b) for a, b in pairwise(ends)]


def over(rows: Any, shards: bool, made: type[LinearObjective] = LinearObjective) -> Made:
    """Labels and a loss to the sums over ``rows``, in one piece or in shards."""

    def objective(y: Array, loss: Any) -> Any:
        if not shards:
            return made(rows, y, loss)
        return ShardedObjective(Local([made(rows.take(s), y[s], loss) for s in cut(rows.n)]))

    return objective


def as_levels(shards: bool = False, levels: int = 0) -> Stored:
    """Every row a level of one public column, which has at least ``levels``: with more than 256
    codes take two bytes.
    """

    def stored(X: Array, other: Array) -> tuple[Made, Made]:
        found, codes = np.unique(np.concatenate([X, other]), axis=0, return_inverse=True)
        basis = np.vstack([np.zeros((max(levels - len(found), 0), X.shape[1])), found])
        layout = Layout([Columns("row", csr_array(basis))], np.zeros(X.shape[1]))
        codes = codes.ravel() + len(basis) - len(found)
        sides = codes[: len(X)], codes[len(X) :]
        first, second = (CodedRows(Table.of(layout, [side], []), layout) for side in sides)
        return over(first, shards), over(second, shards)

    return stored


def as_fractions(dtype: Any, shards: bool = False) -> Stored:
    """Every row half of the slope of a level, with fractions of ``dtype``."""

    def stored(X: Array, other: Array) -> tuple[Made, Made]:
        found, codes = np.unique(np.concatenate([X, other]), axis=0, return_inverse=True)
        basis, slopes = csr_array(np.zeros(found.shape)), csr_array(2.0 * found)
        layout = Layout([Columns("row", basis, slopes)], np.zeros(X.shape[1]))
        sides = codes.ravel()[: len(X)], codes.ravel()[len(X) :]
        first, second = (
            CodedRows(Table.of(layout, [side], [np.full(len(side), 0.5)], dtype), layout)
            for side in sides
        )
        return over(first, shards), over(second, shards)

    return stored


def as_matrix(X: Array, other: Array) -> tuple[Made, Made]:
    """Sparse rows."""
    return over(csr_array(X), False), over(csr_array(other), False)


STORED: dict[str, Stored] = {
    "sparse": as_matrix,
    "codes": as_levels(),
    "codes of two bytes": as_levels(levels=300),
    "fractions, single": as_fractions(np.float32),
    "fractions, double": as_fractions(np.float64),
    "shards": as_levels(shards=True),
    "shards, single": as_fractions(np.float32, shards=True),
}

# A table with every kind of column. Numbers stand at the ends of their ranges: there marginals
# move most.
COLUMNS = (
    Column(name="a", kind="categorical", levels=tuple("abcdefg"), fill="zeros", missing=("?",)),
    Column(name="b", kind="numeric", low=0, high=10),
    Column(name="c", kind="ordinal", levels=tuple("xyzw"), fill="zeros"),
    Column(name="d", kind="flag"),
    Column(name="e", kind="categorical", levels=tuple("klm"), drop_first=True),
    Column(name="f", kind="numeric", low=-1, high=1000, fill="zeros"),
    Column(name="g", kind="categorical", levels=tuple(f"g{j}" for j in range(300))),
)
N = 14


def frame(seed: int) -> pd.DataFrame:
    """N records."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.choice(list("abcdefg?"), N),
            "b": rng.choice([0.0, 10.0, 3.7], N),
            "c": rng.choice(list("xyzw"), N),
            "d": rng.integers(0, 2, N).astype(float),
            "e": rng.choice(list("klm"), N),
            "f": rng.choice([-1.0, 1000.0, 12.5, np.nan], N),
            "g": rng.choice([f"g{j}" for j in range(300)], N),
        }
    )


def encoder_of(normalise: str, numeric: str, **settings: Any) -> Encoder:
    return Encoder(COLUMNS, normalise=normalise, numeric=numeric, sparse=True, **settings)


# How the rows of a frame are kept: dense, sparse and coded, in single and double precision.
KEPT: dict[str, Callable[[Encoder, pd.DataFrame], Any]] = {
    "dense, single": lambda encoder, rows: encoder.transform(rows).toarray().astype(np.float32),
    "dense, double": lambda encoder, rows: encoder.transform(rows).toarray(),
    "sparse, single": lambda encoder, rows: encoder.transform(rows).astype(np.float32),
    "sparse, double": lambda encoder, rows: encoder.transform(rows),
    "coded, single": lambda encoder, rows: coded(encoder, rows, np.float32),
    "coded, double": lambda encoder, rows: coded(encoder, rows, np.float64),
}


def coded(encoder: Encoder, rows: pd.DataFrame, dtype: Any) -> CodedRows:
    coding = Coding.of(encoder)
    assert coding is not None
    return coding.rows(coding.table(rows, EncodingReport(), dtype))


@dataclass(frozen=True)
class Pair:
    """Neighbouring tables that differ in the record ``place``: gone, or with other values and
    another label.
    """

    rows: pd.DataFrame
    other: pd.DataFrame
    y: Array
    other_y: Array
    place: int
    removed: bool

    def batch(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """The rows of a batch that holds the record, in both tables."""
        drawn = np.flatnonzero(rng.random(N) < 0.5)
        drawn = np.union1d(drawn, [self.place])
        if not self.removed:
            return drawn, drawn
        left = drawn[drawn != self.place]
        return drawn, left - (left > self.place)


def pair(place: int, removed: bool, seed: int, classes: int) -> Pair:
    """Neighbours under add/remove (``removed``) or replace-one; labels -1 and +1, or class
    numbers.
    """
    rng = np.random.default_rng((seed, 1))
    rows = frame(seed)
    y = rng.choice([-1.0, 1.0], N) if classes == 2 else rng.integers(0, classes, N).astype(float)
    if removed:
        kept = np.arange(N) != place
        return Pair(rows, rows[kept].reset_index(drop=True), y, y[kept], place, True)
    other, other_y = rows.copy(), y.copy()
    if seed % 2:  # other values in every column: the next level, the other end
        for name, level in (("a", "abcdefga"), ("c", "xyzwx"), ("e", "klmk")):
            other.loc[place, name] = level[level.find(str(rows.loc[place, name])) + 1]
        other.loc[place, "g"] = "g0" if rows.loc[place, "g"] == "g7" else "g7"
        other.loc[place, "b"], rows.loc[place, "b"] = 10.0, 0.0
        other.loc[place, "f"], rows.loc[place, "f"] = -1.0, 1000.0
        other.loc[place, "d"] = 1.0 - rows.loc[place, "d"]
    other_y[place] = -y[place] if classes == 2 else (y[place] + 1) % classes
    return Pair(rows, other, y, other_y, place, False)
