"""The loss of a network's output layer, as the algorithms see it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from dpcore.errors import InputError, require_count
from dpcore.losses import Array, MarginLoss


@dataclass(frozen=True, slots=True)
class CrossEntropy(MarginLoss):
    """-log softmax(s)_y of the ``outputs`` scores s of a network; in its parameters neither convex
    nor Lipschitz.

    As a function of a margin, the lead z of the true class over all others at equal scores: log(1 +
    (K - 1) e^-z). At z = 0, where a network with equal scores stands, that is log K. Gradients are
    bounded by clipping alone.
    """

    name: ClassVar[str] = "cross_entropy"
    convex: ClassVar[bool] = False
    lipschitz: ClassVar[float] = inf
    smoothness: ClassVar[float] = inf

    outputs: int = 2

    def __post_init__(self) -> None:
        require_count(outputs=self.outputs)
        if self.outputs < 2:
            raise InputError(
                f"Expected at least 2 classes for cross-entropy, got outputs={self.outputs!r}."
            )

    def _value(self, t: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, np.log(self.outputs - 1.0) - t))

    def _slope(self, t: Array) -> Array:
        return np.asarray(-1.0 / (1.0 + np.exp(t) / (self.outputs - 1.0)))

    def _curvature(self, t: Array) -> Array:
        p = -self._slope(t)
        return p * (1.0 - p)
