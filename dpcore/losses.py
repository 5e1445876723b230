"""Losses of linear models: scalar functions of a margin y * (x @ w) or of a residual x @ w - y.

``lipschitz`` bounds the slope and ``smoothness`` the curvature over all arguments, so that ||x||_2 <= r gives a
gradient of norm <= r * lipschitz and a Hessian of norm <= r**2 * smoothness. Infinity means: no such bound, the
algorithm has to clip. ``argument`` says what the Objective forms; ``value`` and ``slope`` map arrays elementwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import expit

from dpcore.checks import require_positive
from dpcore.errors import unknown_name

Array = np.ndarray


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

    def value(self, z: Array) -> Array: ...

    def slope(self, z: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Logistic:
    """Logistic loss log(1 + exp(-z)) of the margin z, for y in {-1, +1}."""

    name: ClassVar[str] = "logistic"
    argument: ClassVar[str] = "margin"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25

    def value(self, z: Array) -> Array:
        return np.logaddexp(0.0, -z)

    def slope(self, z: Array) -> Array:
        return -expit(-z)

    def curvature(self, z: Array) -> Array:
        p = expit(z)
        return p * (1.0 - p)


@dataclass(frozen=True, slots=True)
class Hinge:
    """Hinge loss max(0, 1 - z) of the margin z. Not smooth."""

    name: ClassVar[str] = "hinge"
    argument: ClassVar[str] = "margin"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = inf

    def value(self, z: Array) -> Array:
        return np.maximum(0.0, 1.0 - z)

    def slope(self, z: Array) -> Array:
        return np.where(z < 1.0, -1.0, 0.0)


@dataclass(frozen=True, slots=True)
class HuberHinge:
    """Huber hinge of the margin z: 0 above 1 + h, 1 - z below 1 - h, (1 + h - z)^2 / (4 h) between.

    Chaudhuri, Monteleoni & Sarwate (2011), Section 3.4.2.
    """

    name: ClassVar[str] = "huber_hinge"
    argument: ClassVar[str] = "margin"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0

    h: float = 0.5

    def __post_init__(self) -> None:
        require_positive(h=self.h)

    @property
    def smoothness(self) -> float:
        return 1.0 / (2.0 * self.h)

    def value(self, z: Array) -> Array:
        gap = np.clip(1.0 + self.h - z, 0.0, 2.0 * self.h)
        return gap * gap / (4.0 * self.h) + np.maximum(0.0, 1.0 - self.h - z)

    def slope(self, z: Array) -> Array:
        return -np.clip((1.0 + self.h - z) / (2.0 * self.h), 0.0, 1.0)

    def curvature(self, z: Array) -> Array:
        return np.where(np.abs(1.0 - z) <= self.h, self.smoothness, 0.0)


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """Sigmoid loss 1 / (1 + exp(z)) of the margin z: smooth, bounded and not convex."""

    name: ClassVar[str] = "sigmoid"
    argument: ClassVar[str] = "margin"
    convex: ClassVar[bool] = False
    lipschitz: ClassVar[float] = 0.25
    smoothness: ClassVar[float] = 0.09622504486493763  # 1 / (6 sqrt 3), at p = 1/2 +- 1/(2 sqrt 3)

    def value(self, z: Array) -> Array:
        return expit(-z)

    def slope(self, z: Array) -> Array:
        p = expit(-z)
        return -p * (1.0 - p)


@dataclass(frozen=True, slots=True)
class Squared:
    """Half the squared residual, z^2 / 2. Its slope has no bound, so only algorithms that clip accept it."""

    name: ClassVar[str] = "squared"
    argument: ClassVar[str] = "residual"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = inf
    smoothness: ClassVar[float] = 1.0

    def value(self, z: Array) -> Array:
        return z * z / 2.0

    def slope(self, z: Array) -> Array:
        return z

    def curvature(self, z: Array) -> Array:
        return np.ones_like(z)


@dataclass(frozen=True, slots=True)
class HuberRegression:
    """Huber loss of the residual z: z^2 / 2 for |z| <= h, h |z| - h^2 / 2 beyond. Huber (1964)."""

    name: ClassVar[str] = "huber_regression"
    argument: ClassVar[str] = "residual"
    convex: ClassVar[bool] = True
    smoothness: ClassVar[float] = 1.0

    h: float = 0.1

    def __post_init__(self) -> None:
        require_positive(h=self.h)

    @property
    def lipschitz(self) -> float:
        return self.h

    def value(self, z: Array) -> Array:
        inner = np.minimum(np.abs(z), self.h)
        return inner * (np.abs(z) - inner / 2.0)

    def slope(self, z: Array) -> Array:
        return np.clip(z, -self.h, self.h)

    def curvature(self, z: Array) -> Array:
        return np.where(np.abs(z) <= self.h, 1.0, 0.0)


losses: dict[str, type] = {loss.name: loss for loss in (Logistic, HuberHinge, Hinge, Squared, HuberRegression, Sigmoid)}


def make_loss(name: str, **parameters: Any) -> Loss:
    """Return the loss called ``name``; raise ``UnknownName`` with near misses."""
    if name not in losses:
        raise unknown_name("loss", name, losses)
    return losses[name](**parameters)
