"""Line search descent whose clips shrink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpcore.algorithms.base import Preset, register
from dpcore.algorithms.dp_blsgd import DPBLSGD, PAPER


@register("dp_blsgd_ac")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPBLSGDAC(DPBLSGD):
    """``dp_blsgd`` whose clips shrink by ``clip_decay`` when the gradient budget grew. Chen (2020),
    5.5.4.

    The condition reads released gradients and indices alone, so it costs nothing.
    """

    presets: ClassVar[dict[str, Preset]] = {
        "paper": PAPER.but(clip_decay=(0.05, "Chen (2020), 5.6.4, pp. 72-75: zeta"))
    }

    clip_decay: float = 0.05
