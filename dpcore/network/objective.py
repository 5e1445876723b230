"""Private sums over the records of a network, with the methods of ``LinearObjective``."""

from __future__ import annotations

from math import inf
from typing import Any, Self

import numpy as np
import torch

from dpcore.errors import InputError
from dpcore.network.clipping import MARGIN
from dpcore.network.loss import CrossEntropy
from dpcore.network.network import Network

Array = np.ndarray


class NetworkObjective:
    """Sums of the cross-entropy and its gradient over the rows of ``X`` (n, inputs) with class numbers ``y`` (n,).

    Weights w (d,) are the displacement from the network's public start. ``gradient_sum(w, C)`` scales each record's
    gradient down to norm C, so a record added or removed moves the sum by at most C and a replaced one by 2C;
    ``value_sum`` cuts losses alike. Norms are upper bounds, rounding included (``clipping.lengths``). For the rounding
    of sums, and of scores that vary in their last digits with the size of a batch, all clips are cut short by
    ``clipping.MARGIN``: by 0.002 in single precision, 1e-12 in double. For sums of up to 60,000 records the 0.002 is
    measured on adversarial records, twice the worst that was found, and not proved: a bound for all records would grow
    with their number and cost a quarter of the clip norm.
    """

    def __init__(self, network: Network, X: Any, y: Array) -> None:
        X = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
        if X.ndim != 2 or X.shape[1] != network.spec.inputs:
            raise InputError(
                f"Expected rows of {network.spec.inputs} numbers, as many as the network takes, got shape {X.shape}."
            )
        if np.shape(y) != (len(X),):
            raise InputError(f"Expected one label per row, got {len(X)} rows and labels of shape {np.shape(y)}.")
        if not np.isfinite(np.sum(X, dtype=np.float64)) and not np.all(np.isfinite(X)):
            row = int(np.flatnonzero(~np.isfinite(X).all(axis=1))[0])
            raise InputError(f"Expected finite features, got NaN or inf in record {row}; fill it by the schema.")
        self.network = network
        self.loss = CrossEntropy(network.spec.outputs)
        self.y = np.asarray(y, dtype=np.float64)
        if np.any((self.y != np.floor(self.y)) | (self.y < 0) | (self.y >= network.spec.outputs)):
            raise InputError(
                f"Expected class numbers 0 to {network.spec.outputs - 1} as labels, got others; encode the classes."
            )
        self.x = network.described(X)
        self.labels = torch.from_numpy(self.y.astype(np.int64))

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def dimension(self) -> int:
        """Number of weights."""
        return self.network.dimension

    def check_records(self, dimension: int, norm_bound: float) -> None:
        """Raise ``InputError`` unless the network has ``dimension`` parameters; rows need no bound, all is clipped."""
        if self.dimension != dimension:
            raise InputError(f"Expected a network of {dimension} parameters, got {self.dimension}.")

    def take(self, rows: Array | slice) -> Self:
        """The records ``rows`` as an objective of their own."""
        batch = object.__new__(type(self))
        batch.network, batch.loss = self.network, self.loss
        index = rows if isinstance(rows, slice) else torch.from_numpy(np.asarray(rows, dtype=np.int64))
        batch.x, batch.labels, batch.y = self.x[index], self.labels[index], self.y[rows]
        return batch

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over records of the gradient at ``w`` (d,), each scaled down to norm ``clip_norm``; shape (d,).

        A record whose gradient is not finite contributes nothing.
        """
        return self.network.gradient_sum(w, self.x, self.labels, clip_norm)

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over records of the loss, each cut to [0, ``clip``], for every row of ``W`` (k, d); shape (k,).

        A loss that is not finite counts as ``clip``.
        """
        totals, clip = [], clip * (1.0 - MARGIN[self.network.dtype])
        for w in np.atleast_2d(W):
            self.network.load(w)
            losses = self.network.losses(self.x, self.labels)
            totals.append(float(np.minimum(np.nan_to_num(losses, nan=inf, posinf=inf), clip).sum()))
        return np.array(totals)

    def scores(self, w: Array) -> Array:
        """Scores of every record at ``w``, shape (n, outputs)."""
        self.network.load(w)
        return np.asarray(self.network.scores_now(self.x).double().numpy())
