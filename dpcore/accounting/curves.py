"""The one grid of Rényi orders on which every curve of this project lives.

Rényi curves on the grid: the shape in which prices are added and stored.

From a Rényi curve to (epsilon, delta) and back, in log space.

CKS (the default), for a curve e(a) over orders a > 1:

    epsilon = min_a  e(a) + ln(1 - 1/a) - ln(delta a) / (a - 1)          at least 0

Canonne, Kamath & Steinke (2020), Proposition 12; Balle, Barthe, Gaboardi, Hsu & Sato (2020),
Theorem 21. Prop. 2.1 of the dissertation, Mironov (2017), Proposition 3: epsilon = min_a e(a) +
ln(1/delta) / (a - 1); up to 1.23 times larger, kept for comparison with printed numbers.

Both are joined with the total-variation bound of Bretagnolle & Huber (1979): the divergence at any
order above 1 is at least the Kullback-Leibler divergence, and TV <= sqrt(1 - exp(-KL)), so delta >=
sqrt(1 - exp(-min_a e(a))) needs no epsilon at all. It makes zero steps cost exactly zero. No
adjacency enters here: the result holds for the curve's own.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpcore.errors import InputError, require_open_unit, require_positive, unknown_name
from dpcore.mechanisms.base import Mechanism


def _grid() -> np.ndarray:
    """1.01 to 1.07 for strong privacy loss, tenths to 10.9, integers to 64, then eight orders an
    octave to 2^14.

    The tenths and the small integers hold the default orders of dp-accounting, so no price here is
    looser for want of an order. Between 64 and 2^14 neighbouring orders differ by 9 %, which costs
    at most 0.1 % of epsilon.
    """
    near_one = [1.01, 1.02, 1.03, 1.05, 1.07]
    tenths = [1 + k / 10 for k in range(1, 100)]
    integers = range(11, 65)
    octaves = [round(2 ** (6 + k / 8)) for k in range(1, 65)]
    return np.array([*near_one, *tenths, *integers, *octaves], dtype=np.float64)


ORDERS: np.ndarray = _grid()
ORDERS.setflags(write=False)


@lru_cache(maxsize=4096)
def curve_of(mechanism: Mechanism) -> Array:
    """Price of one run of ``mechanism`` at every order of ``ORDERS``: read-only float64, computed
    once.

    Curves of adaptively chosen mechanisms add: Mironov (2017), Proposition 1.
    """
    curve = np.array(mechanism.rdp(ORDERS), dtype=np.float64)
    curve.setflags(write=False)
    return curve


Array = np.ndarray


def _cks(orders: Array, log_delta: float) -> Array:
    epsilon: Array = np.log1p(-1.0 / orders) - (log_delta + np.log(orders)) / (orders - 1.0)
    return epsilon


def _prop21(orders: Array, log_delta: float) -> Array:
    return -log_delta / (orders - 1.0)


CONVERSIONS = {"cks": _cks, "prop21": _prop21}


def epsilon_of(
    curve: Array, delta: float, conversion: str = "cks", orders: Array = ORDERS
) -> float:
    """Least epsilon that ``curve`` (shape of ``orders``) gives at ``delta``; never negative,
    infinity where none.

    Raises ``InputError`` for delta outside (0, 1) or an order that is not above 1, ``UnknownName``
    for a conversion.
    """
    offsets = _offsets_for(orders, delta, conversion)
    total = curve + offsets
    least = float(total.min())
    if not least > 0.0:
        return 0.0 if least == least else np.inf
    lowest = float(curve.min())
    return 0.0 if lowest < 1.0 and -np.expm1(-lowest) <= delta * delta else least


def delta_of(
    curve: Array, epsilon: float, conversion: str = "cks", orders: Array = ORDERS
) -> float:
    """Least delta that ``curve`` gives at ``epsilon`` >= 0; at most 1, the inverse of
    ``epsilon_of``.
    """
    if not epsilon >= 0.0:
        raise InputError(f"Expected epsilon >= 0, got epsilon={epsilon!r}.")
    _check(orders, conversion)
    lowest = float(curve.min())
    if lowest <= 0.0:
        return 0.0
    # The conversion solved for ln(delta), order by order.
    # inf - inf: what is never bounded has no delta below 1, at any epsilon
    with np.errstate(invalid="ignore"):
        log_delta = np.where(np.isinf(curve), np.inf, (orders - 1.0) * (curve - epsilon))
    if conversion == "cks":
        log_delta = log_delta + (orders - 1.0) * np.log1p(-1.0 / orders) - np.log(orders)
    log_total_variation = 0.5 * np.log(-np.expm1(-lowest))
    return float(np.exp(min(float(log_delta.min()), log_total_variation, 0.0)))


def best_order(
    curve: Array, delta: float, conversion: str = "cks", orders: Array = ORDERS
) -> float:
    """The order at which the conversion of ``curve`` is least."""
    return float(orders[int(np.argmin(curve + _offsets_for(orders, delta, conversion)))])


def order_budgets(
    epsilon: float, delta: float, conversion: str = "cks", orders: Array = ORDERS
) -> Array:
    """B(a), the divergence at each order that still converts to (epsilon, delta); negative where
    nothing fits.
    """
    require_positive(epsilon=epsilon)
    return epsilon - _offsets_for(orders, delta, conversion)


def order_budget(epsilon: float, delta: float, conversion: str = "cks") -> tuple[float, float]:
    """The order a = argmax B(a)/a of the grid and its budget B(a), for a filter at one order fixed
    in advance.

    B(a)/a is the most Gaussian noise-to-signal that fits. Both depend on (epsilon, delta,
    conversion) alone. Feldman & Zrnic (2021), Theorem 3.1; Lécuyer (2021). Raises ``InputError``
    where no order has a positive budget.
    """
    budgets = order_budgets(epsilon, delta, conversion)
    best = int(np.argmax(budgets / ORDERS))
    if budgets[best] <= 0.0:
        raise InputError(
            f"Expected an epsilon that some order can state, got epsilon={epsilon!r} at "
            f"delta={delta!r}: no order has room; raise epsilon or delta."
        )
    return float(ORDERS[best]), float(budgets[best])


def _offsets_for(orders: Array, delta: float, conversion: str) -> Array:
    if orders is ORDERS:
        return _grid_offsets(delta, conversion)
    return _offsets(orders, delta, conversion)


@lru_cache(maxsize=256)
def _grid_offsets(delta: float, conversion: str) -> Array:
    offsets = _offsets(ORDERS, delta, conversion)
    offsets.setflags(write=False)
    return offsets


def _offsets(orders: Array, delta: float, conversion: str) -> Array:
    require_open_unit(delta=delta)
    _check(orders, conversion)
    return CONVERSIONS[conversion](orders, float(np.log(delta)))


def _check(orders: Array, conversion: str) -> None:
    if conversion not in CONVERSIONS:
        raise unknown_name("conversion", conversion, CONVERSIONS)
    if orders is not ORDERS and not np.all(orders > 1.0):
        bad = float(np.min(orders))
        raise InputError(
            f"Expected Rényi orders > 1, got order={bad:g}; leave it out, or use ORDERS."
        )
