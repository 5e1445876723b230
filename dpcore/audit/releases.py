"""An attacker who sees every noisy release and knows both neighbours: what each release says about which one it was.

A release r of noise sigma with values a and b on the neighbours says <b - a, r - a> / sigma^2, the log-likelihood ratio
up to a constant of that fit. Queries follow from earlier releases, which the attacker has, so a and b are known to it.
The parts are kept apart by mechanism and time (a few sums), so that noise which is missing in one of them, or shared by
two, can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.objective import LinearObjective
from dpcore.train import Planned

# Sums that alike releases are kept in: fits are hundreds, and a statistic of many parts would fit their noise.
PARTS = 4


def groups_of(planned: Planned) -> Array | None:
    """The sum that each release belongs to, shape (releases,); None unless several Gaussian sums are released."""
    events = list(planned.events)
    if planned.algorithm.adaptive or len(events) < 2 or not all(type(one) is Gaussian for one in events):
        return None
    groups: list[int] = []
    for _, alike in groupby(events):
        count = len(list(alike))
        start = groups[-1] + 1 if groups else 0
        groups += list(start + np.arange(count) * min(PARTS, count) // count)
    return np.array(groups)


def marking(door: type[Budget], pair: tuple[LinearObjective, LinearObjective], groups: Array) -> type[Budget]:
    """A door like ``door`` that keeps in ``marks`` what its releases say about which of ``pair`` they saw."""

    class Marking(door):  # type: ignore[valid-type, misc]
        def __init__(self, *arguments: Any, **others: Any) -> None:
            super().__init__(*arguments, **others)
            self.marks = np.zeros(int(groups[-1]) + 1)

        def release(self, mechanism: Mechanism, query: Callable[[Any], Any]) -> Any:
            released = super().release(mechanism, query)
            first, second = query(pair[0]), query(pair[1])
            gained = np.vdot(second - first, released - first) / mechanism.sigma**2  # type: ignore[attr-defined]
            self.marks[groups[self.releases - 1]] += gained
            return released

    return Marking
