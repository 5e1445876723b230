"""Class weights of a binary problem: declared, public numbers that multiply a record's loss and so its constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.checks import require_positive
from dpcore.errors import InputError
from dpcore.losses import Array, Loss


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What a loss made from ``base`` keeps of it: the argument, and whether it is convex."""

    base: Loss

    @property
    def argument(self) -> str:
        return self.base.argument

    @property
    def convex(self) -> bool:
        return self.base.convex


@dataclass(frozen=True, slots=True)
class Weighted(Wrapped):
    """weight(y) * ``base``, with weight ``positive`` for y = +1 and ``negative`` for y = -1.

    ``value``, ``slope`` and ``curvature`` are those of a record of the larger weight, which bound those of the other;
    sums over records multiply them by ``shares``. So slope and curvature are bounded by ``largest`` times the bounds of
    ``base``, for a sum that leaves the shares out too. The weights must not be computed from the records.
    """

    positive: float = 1.0
    negative: float = 1.0

    def __post_init__(self) -> None:
        require_positive(positive=self.positive, negative=self.negative)
        if self.base.argument not in ("margin", "residual"):
            raise InputError(f"Expected a loss of two classes for class weights, got loss={self.base.name!r}.")

    @property
    def name(self) -> str:
        return f"{self.base.name}, class weights {self.positive:g} (positive) and {self.negative:g} (negative)"

    @property
    def largest(self) -> float:
        return max(self.positive, self.negative)

    @property
    def lipschitz(self) -> float:
        return self.largest * self.base.lipschitz

    @property
    def smoothness(self) -> float:
        return self.largest * self.base.smoothness

    def value(self, z: Array) -> Array:
        return self.largest * self.base.value(z)

    def slope(self, z: Array) -> Array:
        return self.largest * self.base.slope(z)

    def shares(self, y: Array) -> Array:
        """Weight of each label over the larger one, in (0, 1]; the shape of ``y``."""
        return np.where(y > 0.0, self.positive, self.negative) / self.largest

    def curvature(self, z: Array) -> Array:
        return self.largest * self.base.curvature(z)  # type: ignore[attr-defined]


def class_shares(loss: Loss, y: Array) -> Array | None:
    """What the terms of records with labels ``y`` are multiplied by; None where the loss has no class weights."""
    return loss.shares(y) if isinstance(loss, Weighted) else None


def without_weights(loss: Loss) -> Loss:
    """The loss without its class weights."""
    return loss.base if isinstance(loss, Weighted) else loss


def plain_name(loss: Loss) -> str:
    """The name of the loss without its class weights."""
    return without_weights(loss).name
