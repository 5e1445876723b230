"""Line search descent on the full data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpcore.algorithms.base import Preset, register
from dpcore.algorithms.dp_blsgd import DPBLSGD, PAPER


@register("dp_blgd")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPBLGD(DPBLSGD):
    """``dp_blsgd`` on the full data; a failed search raises the gradient budget as DP-AGD does.

    Without sampling nothing is amplified and reading the same rows again is what the price assumes.
    Chen (2020), 5.6.3.
    """

    presets: ClassVar[dict[str, Preset]] = {
        "paper": PAPER.but(
            sampling_rate=(1.0, "Chen (2020), 5.6.3, pp. 72-75: all records"),
            budget_growth=("difference", "Chen (2020), 5.6.3, pp. 72-75: that of DP-AGD"),
        )
    }

    sampling_rate: float = 1.0
    budget_growth: str = "difference"
