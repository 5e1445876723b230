"""How much an algorithm reads: evaluations of single records' gradients and losses, as Fig. 5.2 of Chen (2020)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from dpcore.objective import LinearObjective

Array = np.ndarray

GRADIENTS, LOSSES = "gradient_evaluations", "loss_evaluations"
COUNTS = (GRADIENTS, LOSSES)


class Counted:
    """An objective that counts: a sum over n records of gradients is n evaluations, one of k candidates' losses k n.

    Batches share the count of what they are taken from. Counts follow the sizes of batches: exact, internal numbers.
    """

    def __init__(self, objective: Any, counts: Counter[str] | None = None) -> None:
        self.inner = objective
        self.counts: Counter[str] = Counter() if counts is None else counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def take(self, rows: Array | slice) -> Counted:
        return Counted(self.inner.take(rows), self.counts)

    def transform(self, *arguments: Any, **named: Any) -> Counted:
        return Counted(self.inner.transform(*arguments, **named), self.counts)

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        self.counts[GRADIENTS] += self.inner.n
        return self.inner.gradient_sum(w, clip_norm)

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        self.counts[LOSSES] += len(np.atleast_2d(W)) * self.inner.n
        return self.inner.value_sum(W, clip)

    @property
    def numbers(self) -> dict[str, float]:
        """Evaluations so far, by name."""
        return {name: float(self.counts[name]) for name in COUNTS}


def counting(objective: Any) -> Any:
    """``objective`` with its evaluations counted; as it is where several models share the records."""
    return Counted(objective) if isinstance(objective, LinearObjective) else objective


def evaluations(objective: Any) -> dict[str, float]:
    """What ``counting`` counted; empty where it did not, or where the algorithm took other sums than these."""
    return objective.numbers if isinstance(objective, Counted) and objective.counts else {}


def wanted(metrics: Sequence[str] | None) -> bool:
    """Whether a comparison names one of the counts among its metrics: they are kept only then."""
    return bool(set(metrics or ()) & set(COUNTS))
