"""A loss of the margin whose slope is cut: what a clipped gradient is the gradient of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from dpcore.checks import require_positive
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array, Loss
from dpcore.weighted import Weighted

# Margins within which the slope is looked for that the cut begins at: beyond, a slope of a known loss is constant.
WIDEST = 50.0


@dataclass(frozen=True, slots=True)
class Capped:
    """``base`` where its slope is at least -``cap``, continued as a straight line of slope -``cap`` before that.

    For a decreasing convex loss of the margin that is convex too, of slope at most ``cap`` in size, and its curvature
    is that of ``base`` or 0: the smoothness stays. It has a kink in the slope, as huber_hinge has.
    """

    base: Loss
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
    def argument(self) -> str:
        return self.base.argument

    @property
    def convex(self) -> bool:
        return self.base.convex

    @property
    def lipschitz(self) -> float:
        return min(self.base.lipschitz, self.cap)

    @property
    def smoothness(self) -> float:
        return self.base.smoothness

    def value(self, z: Array) -> Array:
        start = self._start()
        inside = np.maximum(z, start)
        return self.base.value(inside) + self.cap * (inside - z)

    def slope(self, z: Array) -> Array:
        return np.maximum(self.base.slope(z), -self.cap)

    def curvature(self, z: Array) -> Array:
        return np.where(self.base.slope(z) > -self.cap, self.base.curvature(z), 0.0)  # type: ignore[attr-defined]

    def _start(self) -> float:
        """The margin below which the loss is a straight line."""

        def excess(z: float) -> float:
            return float(self.base.slope(np.array([z]))[0]) + self.cap

        if excess(-WIDEST) >= 0.0:
            return -WIDEST
        return WIDEST if excess(WIDEST) <= 0.0 else float(brentq(excess, -WIDEST, WIDEST, xtol=1e-12))


def capped(loss: Loss, cap: float) -> Loss:
    """``loss`` with slopes cut at ``cap`` (times its class weights); the loss itself where none is steeper."""
    if isinstance(loss, Weighted):
        return replace(loss, base=capped(loss.base, cap))
    return loss if cap >= loss.lipschitz else Capped(loss, cap)
