"""Baselines without noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcore.mechanisms.base import Array, Mechanism, l2_distance, mechanism


@mechanism("exact")
@dataclass(frozen=True, slots=True)
class Exact(Mechanism):
    """No noise and an infinite price: for baselines in a door without limit, never for a releasable model."""

    @property
    def sensitivity(self) -> float:
        """Unbounded."""
        return float("inf")

    def release(self, value: Any, rng: np.random.Generator) -> Any:
        """Return ``value`` itself."""
        return value

    def rdp(self, alphas: Array) -> Array:
        """Infinity at every order."""
        return np.full(np.shape(alphas), np.inf)

    def replaced(self) -> Exact:
        """Itself: the price stays infinite."""
        return self

    def distance(self, value: Any, other: Any) -> float:
        """Euclidean distance; it has no bound."""
        return l2_distance(value, other)
