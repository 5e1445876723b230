"""A lower bound on epsilon from outputs on two neighbours, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import Any

import numpy as np
from scipy.stats import beta

# Chance that a bound is above the truth, by the choice of confidence below.
FALSE_ALARM = 1e-6


class NoiselessDoor:
    """Gives what each query answers on ``objective``, and keeps it in ``values``."""

    def __init__(self, objective: Any, values: list[np.ndarray]) -> None:
        self.objective, self.values = objective, values

    def release(self, mechanism: Any, query: Any) -> np.ndarray:
        self.values.append(query(self.objective))
        return self.values[-1]

    def note(self, **numbers: float) -> None:
        pass


def exact_values(algorithm: Any, facts: Any, objectives: Iterable[Any]) -> list[np.ndarray]:
    """What an algorithm of one release would release without noise on each of ``objectives``."""
    values: list[np.ndarray] = []
    for objective in objectives:
        algorithm.fit(facts, NoiselessDoor(objective, values), np.random.default_rng(0))
    return values


def least_epsilon(first: np.ndarray, second: np.ndarray, delta: float) -> float:
    """Epsilon that the scores of two neighbours rule out below, with confidence 1 -
    ``FALSE_ALARM``; at least 0.

    A threshold is picked on one half of the scores, so that the estimate there is largest; on the
    other half the chance of passing it is bounded from below on the first data set and from above
    on the second (Clopper & Pearson 1934).
    """
    half = len(first) // 2
    grid = np.quantile(
        np.concatenate([first[:half], second[:half]]), 1.0 - np.geomspace(0.9, 1e-5, 300)
    )
    threshold = max(grid, key=lambda t: _bound(first[:half], second[:half], t, delta))
    return max(_bound(first[half:], second[half:], threshold, delta), 0.0)


def _bound(first: np.ndarray, second: np.ndarray, threshold: float, delta: float) -> float:
    hits, misses = int(np.sum(first > threshold)), int(np.sum(second > threshold))
    low = beta.ppf(FALSE_ALARM / 2, hits, len(first) - hits + 1) if hits else 0.0
    high = (
        beta.ppf(1 - FALSE_ALARM / 2, misses + 1, len(second) - misses)
        if misses < len(second)
        else 1.0
    )
    return log((low - delta) / high) if low > delta else -np.inf
