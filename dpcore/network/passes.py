"""Which records are summed together: those that are alike by a hash of what they are, wherever they
stand.

A sum in single precision is rounded, and which way depends on all that was added before. Were
records summed in their order, one record less would move the rest by one place and could change
every rounding after it: with records chosen for it by far more than its own contribution. So a
record's place follows from its content, and ``Network`` adds leaves: with one record more or less
one leaf and one pass change, and all other sums are the same bits. By which share a record's
gradient is added stands here too, with the norms that say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpcore.network import MARGINS

Array = np.ndarray

# Records of a pass at most; of a leaf of it, which is summed in the precision of the network; and
# how many leaves are then added in it.
MOST, LEAF, TOGETHER = 1024, 192, 8
# Share taken off clips, by the network's precision. Norms are upper bounds.
MARGIN = {torch.float32: MARGINS["single"], torch.float64: MARGINS["double"]}
# A pass is filled up to so many records, and what is computed number by number in it to a multiple
# of so many numbers: libraries take other kernels for a few rows, and other instructions for the
# last numbers that fill no two registers of 16, here of each of two threads. The last digits of a
# record's scores and slopes would depend on how many others stand beside it.
LEAST, WHOLE = 16, 64
# Squared norms of more numbers than this are formed in float64.
LONG = 8192


@dataclass(frozen=True, slots=True)
class Records:
    """Features ``x`` and labels ``y`` of n records in the order of their ``keys``, and squared
    norms of the features where the first layer asks for them.
    """

    x: Tensor
    y: Tensor
    keys: Array
    squares: Tensor | None = None

    def __getitem__(self, rows: Any) -> Records:
        """The records of a slice, or of places that rise."""
        squares = None if self.squares is None else self.squares[rows]
        return Records(self.x[rows], self.y[rows], self.keys[rows], squares)


def keys_of(x: Tensor, y: Tensor) -> Array:
    """A number for each record ``x`` with label ``y``, shape (n,), uint64: 64 bits of BLAKE2b."""
    size = prod(x.shape[1:]) * x.element_size()
    data = x.contiguous().numpy().reshape(-1).view(np.uint8).data
    digests = (
        blake2b(data[i * size : (i + 1) * size], digest_size=8, salt=label.to_bytes(8)).digest()
        for i, label in enumerate(y.tolist())
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def passes(keys: Array, rows: int) -> list[tuple[slice, list[slice]]]:
    """The passes of at most ``rows`` records with the sorted ``keys`` (n,), each with the slices of
    it that are leaves.
    """
    return [(part, cut(keys[part], min(LEAF, rows))) for part in cut(keys, rows)]


def cut(keys: Array, most: int) -> list[slice]:
    """Slices of at most ``most`` of the sorted ``keys``: the largest sets of keys with a common
    binary prefix.

    A key more or less changes the slices alone that hold its prefix, together at most ``most`` + 1
    keys. More than ``most`` equal keys, which are of equal records, are cut by their places.
    """
    found: list[slice] = []
    left = [(0, len(keys), 63)]
    while left:
        start, stop, bit = left.pop()
        if stop - start <= most or bit < 0:
            found += [slice(i, min(i + most, stop)) for i in range(start, stop, most)]
            continue
        second = (int(keys[start]) >> bit | 1) << bit  # the first key whose next bit is set
        middle = start + int(np.searchsorted(keys[start:stop], np.uint64(second)))
        left += [(middle, stop, bit - 1), (start, middle, bit - 1)]
    return found


class Sums:
    """Where clipped gradients are added, by parameter: a vector of float64, and two of the
    network's precision.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        self.shapes = {id(parameter): parameter.shape for parameter in parameters}
        ends = list(accumulate((shape.numel() for shape in self.shapes.values()), initial=0))
        self.places = {key: slice(*ends[i : i + 2]) for i, key in enumerate(self.shapes)}
        self._few, self._leaf = (
            torch.empty(ends[-1], dtype=dtype),
            torch.empty(ends[-1], dtype=dtype),
        )
        self.start()

    def start(self) -> None:
        """Begin a sum, in memory of its own."""
        self.total = torch.zeros(len(self._few), dtype=torch.float64)

    def of(self, parameter: Tensor) -> Tensor:
        """The float64 sum of ``parameter``, in its shape."""
        return self.total[self.places[id(parameter)]].view(self.shapes[id(parameter)])

    def add(
        self, parameter: Tensor, out: Tensor, left: Tensor, right: Tensor, leaves: list[slice]
    ) -> None:
        """Add ``left`` (n, m)' times ``right`` (n, k) to ``out``, a view of the sum of
        ``parameter``.
        """
        place, shape = self.places[id(parameter)], (left.shape[1], right.shape[1])
        few, leaf = self._few[place].view(shape), self._leaf[place].view(shape)
        for i, rows in enumerate(leaves):
            if i % TOGETHER:
                few += torch.mm(left[rows].T, right[rows], out=leaf)
                continue
            if i:
                out += few.view(out.shape)
            torch.mm(left[rows].T, right[rows], out=few)
        out += few.view(out.shape)


def filled(x: Tensor, y: Tensor, whole: int) -> tuple[Tensor, Tensor]:
    """Records ``x``, ``y`` with copies of the first behind them, up to ``LEAST`` and a multiple of
    ``whole``.
    """
    missing = max(LEAST - len(x), -len(x) % whole)
    if missing <= 0 or not len(x):
        return x, y
    more = (torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in (x, y))
    return next(more), next(more)


def shares(squared: Tensor, clip_norm: float, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """min(1, C / norm) of each record, as ``dtype``, the network's precision, and which records are
    finite (None: all).

    A gradient that overflowed is no number, and no scaling bounds it: its record contributes
    nothing.
    """
    norms = squared.sqrt()
    sound = None if bool(torch.isfinite(norms).all()) else torch.isfinite(norms)
    if clip_norm == inf:
        share = torch.ones_like(norms)
    else:
        share = (clip_norm * (1.0 - MARGIN[dtype]) / norms.clamp_min(1e-30)).clamp_max(1.0)
        # Numbers without full digits may be rounded up.
        share = torch.where(share < torch.finfo(dtype).tiny, 0.0, share)
    return (share if sound is None else share.where(sound, 0.0)).to(dtype), sound


def kept(x: Tensor, sound: Tensor | None) -> Tensor:
    """``x`` (n, ...) with zeros for the records that are not finite: 0 times infinity is no
    number.
    """
    return x if sound is None else x.masked_fill(~sound.view(-1, *[1] * (x.dim() - 1)), 0.0)


def lengths(x: Tensor) -> Tensor:
    """Squared norm of each record's k numbers, shape (n,), float64, never too small.

    In arithmetic of unit rounding u the computed norm squared is at least (1 - u)^(k + 2) >= 1 - (k
    + 2) u of the true one, in any order of summation (k - 1 additions, a square and a root; Higham
      2002, section 3.1). It is divided by
    that; what may underflow is added.
    """
    x = x.flatten(1)
    k = x.shape[1]
    norms = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64 if k > LONG else None)
    return bounded(norms, x)


def bounded(norms: Tensor, x: Tensor) -> Tensor:
    """``lengths`` from the ``norms`` (n,) that were computed of the records ``x``."""
    k, limits = prod(x.shape[1:]), torch.finfo(norms.dtype)
    squared = (norms.double().square() + k * limits.tiny) / (1.0 - (k + 3) * limits.eps / 2.0)
    # as where squares are formed in x's precision
    return torch.where(squared > torch.finfo(x.dtype).max, inf, squared)


def least_hidden(places: int) -> float:
    """h such that sizes of at most h**-0.5 C a record make two float64 sums over a pass of b <=
    ``MOST`` records, of b places terms each, err by 5e-5 C at most: 2 (b places + 4) 2^-53 b
    h^-0.5.
    """
    return float((2.0 * (MOST * places + 4) * 2.0**-53 * MOST / 5e-5) ** 2)
