"""A loss of the margin whose slope is cut: what a clipped gradient is the gradient of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from dpcore.checks import require_positive
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array, Loss
from dpcore.weighted import Weighted, Wrapped

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
