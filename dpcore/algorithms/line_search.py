"""What the line search family shares: the knobs of the source, the state of a run, the angle of gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import degrees
from typing import Any

import numpy as np

from dpcore.losses import Array

# Chen (2020), 5.6.4.
PAPER: dict[str, Any] = {
    "iterations": 50,
    "sampling_rate": 0.1,
    "search_ratio": 1.0,
    "search_every": 1,
    "query": "difference",
    "armijo": 0.5,
    "backtrack": 0.8,
    "max_queries": 30,
    "first_step": 1.0,
    "momentum": 0.0,
    "decay": False,
    "clip_norm": 3.0,
    "clip_loss": 1.0,
    "growth": 0.3,
    "slope": "noisy",
}


@dataclass(slots=True)
class State:
    """Where a run stands: released numbers and what follows from them."""

    w: Array
    velocity: Array
    multiplier: float
    search_epsilon: float
    clip_norm: float
    clip_loss: float
    first_step: float
    step: float
    previous: Array | None = None
    mean_angle: float = 90.0
    chosen: list[float] = field(default_factory=list)
    searches: int = 0


def angle_between(first: Array, second: Array) -> float:
    """Angle of two vectors in degrees; 90 where one is zero."""
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return degrees(float(np.arccos(np.clip(first @ second / lengths, -1.0, 1.0)))) if lengths > 0 else 90.0
