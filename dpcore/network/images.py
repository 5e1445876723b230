"""What is done to a record by itself, before it is scored or while it is trained on: public rules,
which cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpcore.network.passes import Records

Array = np.ndarray


class Standardise(nn.Module):
    """(x - mean of x) / standard deviation of x, of each record by itself; a constant record
    becomes 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=1, keepdim=True)
        return x / x.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-6)


class Upright(nn.Module):
    """Takes the slant off each ``image`` (channels, height, width), given flat and returned flat.

    With the brightness over the darkest pixel as mass and (r, c) row and column from its centre,
    row r moves by r cov(r, c) / var(r), at most by r, between pixels linearly: then rows and
    columns are uncorrelated. LeCun, Bottou, Bengio & Haffner (1998), section III (deslanting). It
    reads one record and nothing else.
    """

    def __init__(self, image: tuple[int, ...]) -> None:
        super().__init__()
        self.image = tuple(image)

    @property
    def beside(self) -> int:
        """Numbers that a pass holds for a record."""
        return 12 * self.image[0] * self.image[1] * self.image[2]

    def forward(self, x: Tensor) -> Tensor:
        high, wide = self.image[1:]
        x = x.reshape(-1, *self.image)
        mass = (x - x.amin((1, 2, 3), keepdim=True)).sum(1)
        total = mass.sum((1, 2)).clamp_min(1e-6)
        row, column = (torch.arange(size, dtype=x.dtype) - (size - 1) / 2 for size in (high, wide))
        by_row = mass.sum(2)
        middle = (by_row * row).sum(1) / total
        spread = ((by_row * row.square()).sum(1) / total - middle.square()).clamp_min(1e-6)
        across = (mass.sum(1) * column).sum(1) / total
        both = ((mass * column).sum(2) * row).sum(1) / total - middle * across
        slant = (both / spread).clamp(-1.0, 1.0)
        there = column + slant[:, None, None] * (row - middle[:, None])[:, :, None]
        down = (row * (2.0 / high))[:, None].expand_as(there)
        grid = torch.stack([there * (2.0 / wide), down], 3)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False).flatten(1)


@dataclass(frozen=True, slots=True)
class Copies:
    """``count`` copies of a record, moved by up to ``shift`` pixels each way (the edge repeated)
    and, with ``mirror``, left for right: what a record's gradient is the mean over.

    The copies of a record are other choices of the M = (2 shift + 1)^2 moves (twice as many with
    ``mirror``), in an order that follows from the weights, begun at a place that follows from the
    record: so they change from step to step and from record to record, and a clipped sum is a
    function of records and weights alone. One record's contribution is clip(mean over its copies
    of the gradients, C), of norm C at most, whatever the copies are: its price is that of one
    gradient. Augmentation multiplicity: De et al. (2022), section 3.3; Hoffer et al. (2019).
    """

    image: tuple[int, ...]
    count: int = 1
    shift: int = 0
    mirror: bool = False

    @property
    def moves(self) -> int:
        """M, how many copies of a record there are."""
        return (2 * self.shift + 1) ** 2 * (2 if self.mirror else 1)

    def order(self, w: Array) -> Array:
        """The moves (M,) in the order of the public weights ``w``."""
        digest = blake2b(np.ascontiguousarray(w).data, digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest)).permutation(self.moves)

    def of(self, records: Records, order: Array) -> Records:
        """The same records, in ``x`` one behind the other their ``count`` copies."""
        n, (channels, high, wide), p = len(records.y), self.image, self.shift
        first = (records.keys % np.uint64(self.moves)).astype(np.int64)
        chosen = torch.from_numpy(order[(first[:, None] + np.arange(self.count)) % self.moves])
        x = records.x.reshape(n, channels, high, wide)
        x = F.pad(x, (p, p, p, p), mode="replicate") if p else x
        windows = x.unfold(2, high, 1).unfold(3, wide, 1)
        side, rows = 2 * p + 1, torch.arange(n)[:, None]
        place = chosen % side**2
        copies = windows[rows, :, place // side, place % side]
        if self.mirror:
            flipped = (chosen >= side**2)[:, :, None, None, None]
            copies = torch.where(flipped, copies.flip(-1), copies)
        shape = (n * self.count, *records.x.shape[1:])
        return replace(records, x=copies.reshape(shape), squares=None)
