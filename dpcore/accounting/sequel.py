"""Limits of a run that follows other releases under one guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from dpcore.accounting.events import Events
from dpcore.accounting.limits import Limit
from dpcore.errors import BudgetExceeded


@dataclass(frozen=True, slots=True)
class After:
    """``limit`` for a run that comes after the releases ``before``: both together must fit it."""

    limit: Limit
    before: Events

    def ratio(self, events: Events) -> float:
        return self.limit.ratio(self.before.then(events))

    def refusal(self, events: Events) -> BudgetExceeded:
        return self.limit.refusal(self.before.then(events))


@dataclass(frozen=True, slots=True)
class Within:
    """At no Rényi order dearer than ``reserved``, under any relation that a ledger may charge (``Events.prices``).

    A run that is chosen after earlier releases and obeys this costs what was reserved, by the one-order filter theorem
    at each order (Feldman & Zrnic 2021; Lécuyer 2021).
    """

    reserved: Events

    def ratio(self, events: Events) -> float:
        asked, allowed = events.prices(), self.reserved.prices()
        bounded = np.isfinite(allowed) & ~(asked <= 0)  # a price that is no number is no price within the limit
        with np.errstate(divide="ignore"):
            ratios = asked[bounded] / allowed[bounded]
        return float(ratios.max(initial=0.0))

    def refusal(self, events: Events) -> BudgetExceeded:
        ratio = self.ratio(events)
        return BudgetExceeded(
            f"Expected a run within the price that was reserved for it, but it costs {ratio:.6g} times as much at some "
            "order; leave noise_multiplier to the calibration.",
            asked=ratio,
            left=1.0 if ratio < inf else 0.0,
        )
