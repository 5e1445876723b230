"""The one Rényi order of a data set, its budget at that order, and exact counting in whole units.

Admission is a filter: whoever asks for the next run has seen the models before it, so the order must
not follow from what was spent. With one order a fixed in advance, keeping the sum of all costs at a
below B(a) makes everything released (a, B(a))-RDP (Feldman and Zrnic 2021, Theorem 3.1; Lécuyer 2021),
which converts once to (epsilon, delta).
"""

from fractions import Fraction
from math import ceil, floor, isfinite

import numpy as np

from dpcore.accounting.orders import ORDERS
from dpcore.errors import InputError, unknown_name

UNIT = 2**40
"""Costs are counted in whole numbers of 1/UNIT, so sums are exact and do not depend on their order."""

SLACK = Fraction(1, 10**9)
"""Relative rounding slack of admission: ten spends of 0.1 fit a budget of 1."""

LARGEST = 2.0**20
"""Budgets and costs at or above this are refused: their units would not fit a database integer."""

FORMULAS = ("cks", "prop21")


def order_budgets(epsilon: float, delta: float, conversion: str = "cks", orders: np.ndarray = ORDERS) -> np.ndarray:
    """Return B(a), the Rényi divergence at each order a that still converts to (epsilon, delta); shape (k,).

    cks:     B(a) = epsilon - ln(1 - 1/a) + ln(delta a) / (a - 1)     Canonne, Kamath and Steinke (2020), Prop. 12
    prop21:  B(a) = epsilon - ln(1/delta) / (a - 1)                   Mironov (2017), Proposition 3

    B may be negative: at that order nothing can be admitted. Raises InputError for values out of range.
    """
    if not (isfinite(epsilon) and 0 < epsilon < LARGEST):
        raise InputError(f"Expected a finite epsilon > 0 (and < {LARGEST:.0f}), got epsilon={epsilon!r}; choose e.g. 1.0.")
    if not 0 < delta < 1:
        raise InputError(f"Expected delta in (0, 1), got delta={delta!r}; choose one well below 1/n, e.g. 1e-6.")
    if conversion not in FORMULAS:
        raise unknown_name("conversion", conversion, FORMULAS)
    if conversion == "prop21":
        return epsilon - np.log(1 / delta) / (orders - 1)
    return epsilon - np.log1p(-1 / orders) + (np.log(delta) + np.log(orders)) / (orders - 1)


def choose_order(epsilon: float, delta: float, conversion: str = "cks", order: float | None = None) -> tuple[float, float]:
    """Return (a, B(a)) with a = argmax B(a)/a over the grid, or the declared ``order``.

    The maximum of B(a)/a lets in the most Gaussian noise, whose price grows like a. Both depend on
    (epsilon, delta, conversion) alone. Raises InputError where no budget is positive, or for an order off the grid.
    """
    budgets = order_budgets(epsilon, delta, conversion)
    if order is None:
        best = int(np.argmax(budgets / ORDERS))
    else:
        best = int(np.argmin(np.abs(ORDERS - order)))
        if ORDERS[best] != order:
            raise InputError(f"Expected an order on the grid, got order={order!r}; the nearest is {ORDERS[best]:g}.")
    if budgets[best] <= 0:
        where = "no order of the grid" if order is None else f"not even order {order:g}"
        raise InputError(
            f"Expected a budget that an order can hold, but {where} has room at epsilon={epsilon:g}, delta={delta:g} "
            f"({conversion}); use a larger epsilon or delta{'' if order is None else ', or leave the order to the ledger'}."
        )
    return float(ORDERS[best]), float(budgets[best])


def order_index(order: float) -> int:
    """Return the place of ``order`` in the grid; raises InputError when it is not there."""
    [places] = np.nonzero(ORDERS == order)
    if len(places) != 1:
        raise InputError(f"Expected an order of this version's grid, got {order!r}; the ledger was made by another version.")
    return int(places[0])


def cost_units(cost: float) -> int:
    """Return a cost in whole units, rounded up. A cost of LARGEST or more, or infinity, is an InputError."""
    if not (0 <= cost < LARGEST):
        raise InputError(f"Expected a cost in [0, {LARGEST:.0f}), got {cost!r}; the run has no price that a ledger can hold.")
    return ceil(Fraction(cost) * UNIT)


def limit_units(budget: float) -> int:
    """Return the most units that may be spent of ``budget``, with the rounding slack of 1e-9."""
    return floor(Fraction(budget) * UNIT * (1 + SLACK))


def left_of(budget: float, spent: int) -> float:
    """Return what is left of ``budget`` after ``spent`` units, as a float that rounding never enlarges."""
    exact = max(Fraction(0), Fraction(budget) - Fraction(spent, UNIT))
    value = float(exact)
    return value if Fraction(value) <= exact else float(np.nextafter(value, 0.0))
