"""What the line search family shares: its knobs, the state of a run, angles of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import degrees, isfinite

import numpy as np

from dpcore.errors import (
    if_given,
    require_below_one,
    require_choice,
    require_count,
    require_fraction,
    require_open_unit,
    require_positive,
)
from dpcore.losses import Array
from dpcore.objective.rounding import FAR, within

GROWTH = ("none", "always", "adaptive", "difference")
# Candidates of a search that are formed at a time: together at most this many numbers, and never
# fewer than one.
FORMED_NUMBERS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSearchSettings:
    """The knobs of the family with their ranges; ``dp_blsgd`` says what each means."""

    noise_multiplier: float = 2.0
    iterations: int = 200
    sampling_rate: float = 0.3
    search_rate: float | None = None
    search_ratio: float = 1.0
    search_every: int = 20
    query: str = "difference"
    slope: str = "unbiased"
    noise: str = "laplace"
    armijo: float = 0.3
    backtrack: float = 0.5
    max_queries: int = 4
    first_step: float | None = None
    stretch: float = 1.4
    momentum: float | None = None
    decay: bool = True
    clip_norm: float | None = None
    clip_loss: float | None = None
    clip_decay: float = 0.0
    budget_growth: str = "adaptive"
    growth: float = 0.3
    angle_high: float = 1.1
    angle_low: float = 0.5
    angle_memory: float = 0.8
    reset_every: int = 10
    reset_factor: float = 1.2
    on_failure: str = "retry"

    def __post_init__(self) -> None:
        require_positive(
            noise_multiplier=self.noise_multiplier,
            search_ratio=self.search_ratio,
            stretch=self.stretch,
            growth=self.growth,
            angle_high=self.angle_high,
            angle_low=self.angle_low,
            reset_factor=self.reset_factor,
        )
        require_count(
            iterations=self.iterations,
            search_every=self.search_every,
            max_queries=self.max_queries,
            reset_every=self.reset_every,
        )
        require_fraction(sampling_rate=self.sampling_rate)
        require_choice(("difference", "quotient"), query=self.query)
        require_choice(("noisy", "unbiased"), slope=self.slope)
        require_choice(("laplace", "gaussian"), noise=self.noise)
        require_choice(GROWTH, budget_growth=self.budget_growth)
        require_choice(("retry", "smallest_step"), on_failure=self.on_failure)
        require_open_unit(armijo=self.armijo, backtrack=self.backtrack)
        require_below_one(clip_decay=self.clip_decay, angle_memory=self.angle_memory)
        if_given(require_fraction, search_rate=self.search_rate)
        if_given(require_below_one, momentum=self.momentum)
        if_given(
            require_positive,
            first_step=self.first_step,
            clip_norm=self.clip_norm,
            clip_loss=self.clip_loss,
        )


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
    return (
        degrees(float(np.arccos(np.clip(first @ second / lengths, -1.0, 1.0))))
        if lengths > 0
        else 90.0
    )


def public_part(penalty: Array, cap: float) -> Array:
    """``penalty`` of candidates less the least of them, at most ``FAR`` caps: what a score adds to
    its sum of losses cut to ``cap``.

    What all share changes no choice, and what is that far behind is never chosen; but rounding to
    the size of either would move what a record adds.
    """
    least = float(penalty.min())
    gaps = penalty - least if isfinite(least) else np.zeros_like(penalty)
    return within(np.minimum(gaps, FAR * cap), FAR * cap)


def candidates(w: Array, v: Array, etas: Array) -> Iterator[Array]:
    """Rows w and w - eta v for every eta, (k, d) at a time: all at once where they are small, else
    one by one.
    """
    steps = np.concatenate([[0.0], etas])
    rows = max(1, FORMED_NUMBERS // len(w))
    for start in range(0, len(steps), rows):
        yield w - np.outer(steps[start : start + rows], v)
