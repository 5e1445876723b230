"""Rényi curves on the grid: the shape in which prices are added and stored."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpcore.accounting.orders import ORDERS
from dpcore.checks import require_nonnegative
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism


@lru_cache(maxsize=4096)
def curve_of(mechanism: Mechanism) -> Array:
    """Price of one run of ``mechanism`` at every order of ``ORDERS``: read-only float64, computed once.

    Curves of adaptively chosen mechanisms add: Mironov (2017), Proposition 1.
    """
    curve = np.array(mechanism.rdp(ORDERS), dtype=np.float64)
    curve.setflags(write=False)
    return curve


def zcdp_curve(rho: float) -> Array:
    """a rho: what rho-zero-concentrated DP means. Bun & Steinke (2016), Definition 1.1."""
    require_nonnegative(rho=rho)
    return ORDERS * rho


def pure_curve(epsilon: float) -> Array:
    """The least curve that every epsilon-DP mechanism has (randomised response attains it)."""
    require_nonnegative(epsilon=epsilon)
    return renyi.pure(ORDERS, epsilon)
