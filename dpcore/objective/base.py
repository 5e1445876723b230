"""What an algorithm may ask of records, and what is checked of all of them."""

from __future__ import annotations

from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from dpcore.losses import Array
from dpcore.objective.rounding import LEAST, MOST, UNIT
from dpcore.problem import Problem

# From so many points on a line two scores of each record serve all of them.
ON_LINE = 4
# No useful model has a weight beyond this; the square of its scores is still a number.
LARGEST_WEIGHT = 1e30


class Objective(Protocol):
    """What an algorithm may ask of a batch of records. Sums, never means."""

    @property
    def n(self) -> int: ...

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array: ...

    def value_sum(self, W: Array, clip: float = inf) -> Array: ...

    def take(self, rows: Array | slice) -> Objective: ...

    def check(self, problem: Problem) -> None:
        """Raise ``InputError`` where the records break what the price relies on: the public facts
        of ``problem``.
        """


def readable(W: Array) -> Array:
    """``W`` with entries cut to +-1e30 and NaN as 0, so that no record's score overflows; ``W``
    itself where it can be.

    inf - inf in the score of one record would make the whole sum NaN, which no clipping bounds and
    no noise hides. The cut depends on released weights alone, and it brings no two points further
    apart.
    """
    if np.vdot(W, W) < LARGEST_WEIGHT**2:
        return W
    return np.asarray(np.clip(np.nan_to_num(W, nan=0.0), -LARGEST_WEIGHT, LARGEST_WEIGHT))


def unscaled(W: Array, shift: Array, scale: Array, intercept: bool) -> Array:
    """Weights for x of the models with weights ``W`` for rows scale * (x - shift), shape (k, d).

    With ``intercept`` the last column is constant, and takes up the shift; without one the scores
    differ by a constant.
    """
    weights: Array = scale * W
    if intercept:
        weights[:, -1] -= weights @ shift
    return weights


def numbers(coefficients: Array) -> Array:
    """``coefficients`` with 0 for what is no number: the score of such a record overflowed, and no
    clip bounds NaN.
    """
    return coefficients if np.isfinite(coefficients.sum()) else np.nan_to_num(coefficients, nan=0.0)


class Line(NamedTuple):
    """Points ends[0] + places[k] ends[1]: ``ends`` (2, d), ``places`` (k,)."""

    ends: Array
    places: Array


def line_of(W: Array) -> Line | None:
    """The line that the rows of ``W`` (k, d) lie on up to rounding, as candidates of a search do;
    None for fewer than ``ON_LINE`` of them, or where there is none.

    Scores follow their points, so those of two serve all, with the rounding of a score: an entry is
    off by some units of the largest of its column. Public weights alone decide.
    """
    if len(W) < ON_LINE:
        return None
    away = W - W[0]
    direction = away[int(np.argmax(np.einsum("ij,ij->i", away, away)))].copy()
    square = float(direction @ direction)
    if not LEAST < square < MOST:
        return None
    places = away @ direction / square
    away -= np.multiply.outer(places, direction)
    if not np.all(np.abs(away).max(axis=0) <= 64.0 * UNIT * np.abs(W).max(axis=0)):
        return None
    return Line(np.stack([W[0], direction]), places)
