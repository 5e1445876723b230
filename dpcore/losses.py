"""Losses of linear models: scalar functions of a margin y * (x @ w) or of a residual x @ w - y.

``lipschitz`` bounds the slope and ``smoothness`` the curvature over all arguments, so that ||x||_2
<= r gives a gradient of norm <= r * lipschitz and a Hessian of norm <= r**2 * smoothness. Infinity
means: no such bound, the algorithm has to clip. ``argument`` says what a loss is a function of.
Class weights are declared, public numbers that multiply a record's loss and so its constants; a
loss whose slope is cut is what a clipped gradient is the gradient of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import expit

from dpcore.errors import AssumptionNotMet, InputError, require_positive, unknown_name

Array = np.ndarray


# exp of it is a number still, and what is 1 over it is 0 for any sum.
LARGEST_EXPONENT = 709.0


class Loss(Protocol):
    """What an Objective and a proof need of a loss."""

    @property
    def name(self) -> str: ...

    @property
    def argument(self) -> str: ...  # "margin", "residual", or "scores" of all classes

    @property
    def convex(self) -> bool: ...

    @property
    def lipschitz(self) -> float: ...

    @property
    def smoothness(self) -> float: ...

    def __hash__(self) -> int: ...

    def value(self, z: Array, y: Array | None = None) -> Array:
        """Losses of records with raw scores ``z`` and labels ``y``; of the argument ``z`` where
        ``y`` is left out.
        """
        ...

    def slope(self, z: Array, y: Array | None = None) -> Array:
        """Derivatives of ``value`` in ``z``."""
        ...


class ArgumentLoss(ABC):
    """A loss of one argument t of score and label: a class says value, slope and (almost
    everywhere) curvature in t.
    """

    __slots__ = ()

    def value(self, z: Array, y: Array | None = None) -> Array:
        return self._value(z if y is None else self._at(z, y))

    def slope(self, z: Array, y: Array | None = None) -> Array:
        return self._slope(z if y is None else self._at(z, y))

    def curvature(self, z: Array, y: Array | None = None) -> Array:
        return self._curvature(z if y is None else self._at(z, y))

    @abstractmethod
    def _at(self, z: Array, y: Array) -> Array: ...

    @abstractmethod
    def _value(self, t: Array) -> Array: ...

    @abstractmethod
    def _slope(self, t: Array) -> Array: ...

    @abstractmethod
    def _curvature(self, t: Array) -> Array: ...


class MarginLoss(ArgumentLoss):
    """A loss of the margin t = y z, for labels y in {-1, +1}."""

    __slots__ = ()
    argument: ClassVar[str] = "margin"

    def slope(self, z: Array, y: Array | None = None) -> Array:
        slope = super().slope(z, y)
        return slope if y is None else y * slope

    def _at(self, z: Array, y: Array) -> Array:
        return np.asarray(y * z)


class ResidualLoss(ArgumentLoss):
    """A loss of the residual t = z - y, for targets y."""

    __slots__ = ()
    argument: ClassVar[str] = "residual"

    def _at(self, z: Array, y: Array) -> Array:
        return np.asarray(z - y)


@dataclass(frozen=True, slots=True)
class Logistic(MarginLoss):
    """Logistic loss log(1 + exp(-t)) of the margin t, for y in {-1, +1}."""

    name: ClassVar[str] = "logistic"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25

    def _value(self, t: Array) -> Array:
        # exp and log1p of numpy take whole registers, logaddexp takes one number after the other
        found = np.asarray(np.abs(t))
        if found.dtype.kind != "f":
            found = found.astype(np.float64)
        np.negative(found, out=found)
        np.exp(found, out=found)
        np.log1p(found, out=found)
        found -= np.minimum(t, 0.0)
        return found

    def _slope(self, t: Array) -> Array:
        return np.asarray(-1.0 / (1.0 + np.exp(np.minimum(t, LARGEST_EXPONENT))))

    def _curvature(self, t: Array) -> Array:
        p = expit(t)
        return np.asarray(p * (1.0 - p))


@dataclass(frozen=True, slots=True)
class Hinge(MarginLoss):
    """Hinge loss max(0, 1 - t) of the margin t. Not smooth."""

    name: ClassVar[str] = "hinge"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = inf

    def _value(self, t: Array) -> Array:
        return np.maximum(0.0, 1.0 - t)

    def _slope(self, t: Array) -> Array:
        return np.where(t < 1.0, -1.0, 0.0)

    def _curvature(self, t: Array) -> Array:
        return np.zeros_like(t)


@dataclass(frozen=True, slots=True)
class HuberHinge(MarginLoss):
    """Huber hinge of the margin t: 0 above 1 + h, 1 - t below 1 - h, (1 + h - t)^2 / (4 h) between.

    Chaudhuri, Monteleoni & Sarwate (2011), Section 3.4.2.
    """

    name: ClassVar[str] = "huber_hinge"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0

    h: float = 0.5

    def __post_init__(self) -> None:
        require_positive(h=self.h)

    @property
    def smoothness(self) -> float:
        return 1.0 / (2.0 * self.h)

    def _value(self, t: Array) -> Array:
        gap = np.clip(1.0 + self.h - t, 0.0, 2.0 * self.h)
        return gap * gap / (4.0 * self.h) + np.maximum(0.0, 1.0 - self.h - t)

    def _slope(self, t: Array) -> Array:
        return -np.clip((1.0 + self.h - t) / (2.0 * self.h), 0.0, 1.0)

    def _curvature(self, t: Array) -> Array:
        return np.where(np.abs(1.0 - t) <= self.h, self.smoothness, 0.0)


@dataclass(frozen=True, slots=True)
class Sigmoid(MarginLoss):
    """Sigmoid loss 1 / (1 + exp(t)) of the margin t: smooth, bounded and not convex."""

    name: ClassVar[str] = "sigmoid"
    convex: ClassVar[bool] = False
    lipschitz: ClassVar[float] = 0.25
    smoothness: ClassVar[float] = 0.09622504486493763  # 1 / (6 sqrt 3), at p = 1/2 +- 1/(2 sqrt 3)

    def _value(self, t: Array) -> Array:
        return np.asarray(expit(-t))

    def _slope(self, t: Array) -> Array:
        p = expit(-t)
        return np.asarray(-p * (1.0 - p))

    def _curvature(self, t: Array) -> Array:
        p = expit(-t)
        return np.asarray(p * (1.0 - p) * (1.0 - 2.0 * p))


@dataclass(frozen=True, slots=True)
class Squared(ResidualLoss):
    """Half the squared residual, t^2 / 2. Its slope has no bound, so only algorithms that clip
    accept it.
    """

    name: ClassVar[str] = "squared"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = inf
    smoothness: ClassVar[float] = 1.0

    def _value(self, t: Array) -> Array:
        return np.asarray(t * t / 2.0)

    def _slope(self, t: Array) -> Array:
        return t

    def _curvature(self, t: Array) -> Array:
        return np.ones_like(t)


@dataclass(frozen=True, slots=True)
class HuberRegression(ResidualLoss):
    """Huber loss of the residual t: t^2 / 2 for |t| <= h, h |t| - h^2 / 2 beyond. Huber (1964)."""

    name: ClassVar[str] = "huber_regression"
    convex: ClassVar[bool] = True
    smoothness: ClassVar[float] = 1.0

    h: float = 0.1

    def __post_init__(self) -> None:
        require_positive(h=self.h)

    @property
    def lipschitz(self) -> float:
        return self.h

    def _value(self, t: Array) -> Array:
        inner = np.minimum(np.abs(t), self.h)
        return np.asarray(inner * (np.abs(t) - inner / 2.0))

    def _slope(self, t: Array) -> Array:
        return np.asarray(np.clip(t, -self.h, self.h))

    def _curvature(self, t: Array) -> Array:
        return np.where(np.abs(t) <= self.h, 1.0, 0.0)


losses: dict[str, type] = {
    loss.name: loss for loss in (Logistic, HuberHinge, Hinge, Squared, HuberRegression, Sigmoid)
}


def make_loss(name: str, **parameters: Any) -> Loss:
    """Return the loss called ``name``; raise ``UnknownName`` with near misses."""
    if name not in losses:
        raise unknown_name("loss", name, losses)
    made: Loss = losses[name](**parameters)
    return made


@dataclass(frozen=True, slots=True)
class Weighted:
    """weight(y) * ``base``, with weight ``positive`` for y = +1 and ``negative`` for y = -1.

    Without labels, ``value``, ``slope`` and ``curvature`` are those of a record of the larger
    weight, which bound those of the other; with labels they are multiplied by ``shares``. So slope
    and curvature are bounded by ``largest`` times the bounds of ``base``, for a sum that leaves the
    shares out too. The weights must not be computed from the records.
    """

    base: Loss
    positive: float = 1.0
    negative: float = 1.0

    def __post_init__(self) -> None:
        require_positive(positive=self.positive, negative=self.negative)
        if self.base.argument not in ("margin", "residual"):
            raise InputError(
                f"Expected a loss of two classes for class weights, got loss={self.base.name!r}."
            )

    @property
    def name(self) -> str:
        return (
            f"{self.base.name}, class weights {self.positive:g} (positive) and {self.negative:g} "
            "(negative)"
        )

    @property
    def argument(self) -> str:
        return self.base.argument

    @property
    def convex(self) -> bool:
        return self.base.convex

    @property
    def largest(self) -> float:
        return max(self.positive, self.negative)

    @property
    def lipschitz(self) -> float:
        return self.largest * self.base.lipschitz

    @property
    def smoothness(self) -> float:
        return self.largest * self.base.smoothness

    def value(self, z: Array, y: Array | None = None) -> Array:
        return self._weighted(self.base.value(z, y), y)

    def slope(self, z: Array, y: Array | None = None) -> Array:
        return self._weighted(self.base.slope(z, y), y)

    def curvature(self, z: Array, y: Array | None = None) -> Array:
        return self._weighted(scalar(self.base).curvature(z, y), y)

    def _weighted(self, terms: Array, y: Array | None) -> Array:
        terms = self.largest * terms
        return terms if y is None else terms * self.shares(y)

    def shares(self, y: Array) -> Array:
        """Weight of each label over the larger one, in (0, 1]; the shape of ``y``."""
        return np.where(y > 0.0, self.positive, self.negative) / self.largest


def scalar(loss: Loss) -> ArgumentLoss | Weighted:
    """``loss`` as one of a single score; raises ``AssumptionNotMet`` where it is of several."""
    if not isinstance(loss, ArgumentLoss | Weighted):
        raise AssumptionNotMet(
            f"Expected a loss of one score, got loss={loss.name!r}; use logistic."
        )
    return loss


def without_weights(loss: Loss) -> Loss:
    """The loss without its class weights."""
    return loss.base if isinstance(loss, Weighted) else loss


def plain_name(loss: Loss) -> str:
    """The name of the loss without its class weights."""
    return without_weights(loss).name
