"""Comparisons at given noise: nothing is asked of epsilon, which follows from the price of each algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.config import TrainConfig
from tasks.fitting import WEAK_EPSILON

if TYPE_CHECKING:
    from tasks.compare.config import CompareConfig

# A noise multiplier that is given "must fit" the target; this one is there to be converted and admits every price.
OPEN_EPSILON = 1e12
# Two prices that differ by no more than this share are one epsilon: folds differ in size by one record.
SAME = 0.01


def check_given(config: CompareConfig) -> None:
    """Raise ``ValueError`` where noise is given twice, or epsilon beside it."""
    if config.privacy.noise_multiplier is None:
        return
    if config.privacy.epsilon is not None:
        raise ValueError(
            "privacy.epsilon or privacy.noise_multiplier, one of them, but both are given: the other one follows; "
            "leave one out (--set privacy.epsilon=null)"
        )
    twice = next((entry.shown for entry in config.algorithms if "noise_multiplier" in entry.parameters), None)
    if twice is not None:
        raise ValueError(
            f"privacy.noise_multiplier or that of algorithm {twice!r}, one of them, but both are given: leave one out"
        )


def levels(config: CompareConfig, base: TrainConfig) -> list[tuple[TrainConfig, float | None]]:
    """``base`` at every epsilon, or at every given noise multiplier (with it), in the order of the configuration."""
    if config.privacy.noise_multiplier is None:
        return [(_at(base, epsilon), None) for epsilon in config.epsilons]
    found: list[tuple[TrainConfig, float | None]] = []
    for noise in config.privacy.noise_multiplier:
        algorithm = base.algorithm.model_copy(update={"noise_multiplier": noise})
        found.append((_at(base.model_copy(update={"algorithm": algorithm}), OPEN_EPSILON), noise))
    return found


def _at(config: TrainConfig, epsilon: float) -> TrainConfig:
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"epsilon": epsilon})})


def weak(noise: float | None, spent: float) -> list[str]:
    """A warning where the epsilon that followed from given noise promises next to nothing."""
    if noise is None or spent <= WEAK_EPSILON:
        return []
    return [f"noise_multiplier={noise:g} gives epsilon={spent:.3g}, which protects hardly anybody."]


def same_price(items: Sequence[tuple[Any, float | None]]) -> list[list[Any]]:
    """Items with their epsilon, parted so that those of one part have the same one (within ``SAME``)."""
    parts: list[list[Any]] = []
    first = -math.inf
    for item, spent in sorted(items, key=lambda pair: math.inf if pair[1] is None else pair[1]):
        value = math.inf if spent is None else spent
        if not parts or value > first * (1.0 + SAME):
            parts.append([])
            first = value
        parts[-1].append(item)
    return parts


def price_words(curves: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """Epsilon in the middle and at the end of the curves of each label, as the captions of Chen (2020), Figure 6.1.

    Said once where all labels have the same; for more than two different ones the range alone: a table has them all.
    """
    told: dict[str, list[str]] = {}
    ends: list[float] = []
    for label, points in curves.items():
        spent = {int(point["step"]): float(point["spent_epsilon"]) for point in points if point.get("spent_epsilon")}
        if not spent:
            continue
        last = max(spent)
        middle = min(spent, key=lambda step: abs(step - last / 2))
        steps = dict.fromkeys((middle, last))
        ends.append(spent[last])
        told.setdefault(", ".join(f"{spent[step]:.3g} at {step}" for step in steps), []).append(label)
    if len(told) == 1:
        return f"epsilon {next(iter(told))}"
    if len(told) > 2:
        return f"epsilon {min(ends):.3g} to {max(ends):.3g} after the last iteration"
    return "; ".join(f"{', '.join(labels)}: epsilon {words}" for words, labels in told.items())
