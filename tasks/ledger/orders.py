"""The one Rényi order of a data set, its budget at that order, and exact counting in whole units.

Admission is a filter: whoever asks for the next run has seen the models before it, so the order must
not follow from what was spent. With one order a fixed in advance, keeping the sum of all costs at a
below B(a) makes everything released (a, B(a))-RDP (Feldman & Zrnic 2021, Theorem 3.1; Lécuyer 2021),
which converts once to (epsilon, delta).
"""

from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

import numpy as np

from dpcore.accounting.conversion import order_budget, order_budgets
from dpcore.accounting.limits import SLACK, order_index
from dpcore.errors import InputError

UNIT = 2**40
"""Costs are counted in whole numbers of 1/UNIT, so sums are exact and do not depend on their order."""

LARGEST = 2.0**20
"""Budgets and costs at or above this are refused: their units would not fit a database integer."""


def choose_order(
    epsilon: float, delta: float, conversion: str = "cks", order: float | None = None
) -> tuple[float, float]:
    """Return (a, B(a)) with a = argmax B(a)/a over the grid, or at the declared ``order``.

    Both depend on (epsilon, delta, conversion) alone. Raises InputError where no budget is positive, for an order off
    the grid, and for an epsilon too large to be counted.
    """
    if epsilon >= LARGEST / 2:
        raise InputError(f"Expected epsilon < {LARGEST / 2:.0f}, got epsilon={epsilon!r}; that bounds nothing.")
    if order is None:
        return order_budget(epsilon, delta, conversion)
    budget = float(order_budgets(epsilon, delta, conversion)[order_index(order)])
    if budget <= 0:
        raise InputError(
            f"Expected an order that can state epsilon={epsilon!r} at delta={delta!r}, got order={order!r}, whose "
            f"budget is {budget:.4g}; declare a larger order, or leave it out."
        )
    return float(order), budget


def cost_units(cost: float) -> int:
    """Return a cost in whole units, rounded up. Raises InputError for one that is negative, infinite or too large."""
    if not (0 <= cost < LARGEST):
        raise InputError(f"Expected a cost in [0, {LARGEST:.0f}), got cost={cost!r}; a ledger cannot hold it.")
    return ceil(cost * UNIT)  # exact: UNIT is a power of two


@lru_cache(maxsize=1024)
def limit_units(budget: float) -> int:
    """Return the most units that may be spent of ``budget``, with the rounding slack of 1e-9."""
    return floor(Fraction(budget) * UNIT * (1 + Fraction(SLACK)))


def left_of(budget: float, spent: int) -> float:
    """Return what is left of ``budget`` after ``spent`` units, as a float that rounding never enlarges."""
    exact = max(Fraction(0), Fraction(budget) - Fraction(spent, UNIT))
    value = float(exact)
    return value if Fraction(value) <= exact else float(np.nextafter(value, 0.0))
