"""Losses of linear models: scalar functions of a margin y * (x @ w) or of a residual x @ w - y.

``lipschitz`` bounds the slope and ``smoothness`` the curvature over all arguments, so that ||x||_2 <= r gives a
gradient of norm <= r * lipschitz and a Hessian of norm <= r**2 * smoothness. Infinity means: no such bound, the
algorithm has to clip. ``argument`` says what the Objective forms; ``value`` and ``slope`` map arrays elementwise.

Class weights of a binary problem: declared, public numbers that multiply a record's loss and so its constants.

A loss of the margin whose slope is cut: what a clipped gradient is the gradient of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from dpcore.errors import AssumptionNotMet, InputError, require_positive, unknown_name

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


# Margins within which the slope is looked for that the cut begins at: beyond, a slope of a known loss is constant.
WIDEST = 50.0


@dataclass(frozen=True, slots=True)
class Capped(Wrapped):
    """``base`` where its slope is at least -``cap``, continued as a straight line of slope -``cap`` before that.

    For a decreasing convex loss of the margin that is convex too, of slope at most ``cap`` in size, and its curvature
    is that of ``base`` or 0: the smoothness stays. It has a kink in the slope, as huber_hinge has.
    """

    cap: float

    def __post_init__(self) -> None:
        require_positive(cap=self.cap)
        if self.base.argument != "margin" or not self.base.convex:
            raise AssumptionNotMet(
                f"Expected a convex loss of the margin for slope_cap, got loss={self.base.name!r}; leave slope_cap out."
            )

    @property
    def name(self) -> str:
        return f"{self.base.name}, slope at most {self.cap:g}"

    @property
    def lipschitz(self) -> float:
        return min(self.base.lipschitz, self.cap)

    @property
    def smoothness(self) -> float:
        return self.base.smoothness

    def value(self, z: Array) -> Array:
        inside = np.maximum(z, line_start(self.base, self.cap))  # type: ignore[arg-type]
        return self.base.value(inside) + self.cap * (inside - z)

    def slope(self, z: Array) -> Array:
        return np.maximum(self.base.slope(z), -self.cap)

    def curvature(self, z: Array) -> Array:
        return np.where(self.base.slope(z) > -self.cap, self.base.curvature(z), 0.0)  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def line_start(base: Loss, cap: float) -> float:
    """The margin z where the slope of ``base`` is -``cap``: before it the capped loss is a straight line.

    Cut to [-50, 50]. Kept, for a solver asks for values often.
    """

    def excess(z: float) -> float:
        return float(base.slope(np.array([z]))[0]) + cap

    if excess(-WIDEST) >= 0.0:
        return -WIDEST
    return WIDEST if excess(WIDEST) <= 0.0 else float(brentq(excess, -WIDEST, WIDEST, xtol=1e-12))


def capped(loss: Loss, cap: float) -> Loss:
    """``loss`` with slopes cut at ``cap`` (times its class weights); the loss itself where none is steeper."""
    if isinstance(loss, Weighted):
        return replace(loss, base=capped(loss.base, cap))
    return loss if cap >= loss.lipschitz else Capped(loss, cap)
