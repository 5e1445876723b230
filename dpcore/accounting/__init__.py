"""Prices of mechanisms: Rényi curves, their conversion to (epsilon, delta), calibration, and the door that charges."""

from __future__ import annotations

from collections.abc import Iterable

from dpcore.accounting.budget import Budget, Released, open_door, release_once
from dpcore.accounting.calibrate import calibrate
from dpcore.accounting.conversion import delta_of, epsilon_of
from dpcore.accounting.events import Events
from dpcore.accounting.limits import Allowance, Room, Target
from dpcore.accounting.orders import ORDERS
from dpcore.mechanisms import Mechanism
from dpcore.problem import Adjacency


def epsilon(mechanisms: Iterable[Mechanism], delta: float, conversion: str = "cks") -> float:
    """Epsilon at ``delta`` of ``mechanisms`` run one after the other, by Rényi composition and one conversion."""
    return epsilon_of(Events.of(mechanisms, adjacency=Adjacency.ADD_REMOVE).price(), delta, conversion)


def delta(mechanisms: Iterable[Mechanism], epsilon: float, conversion: str = "cks") -> float:
    """Delta at ``epsilon`` of ``mechanisms`` run one after the other, by Rényi composition and one conversion."""
    return delta_of(Events.of(mechanisms, adjacency=Adjacency.ADD_REMOVE).price(), epsilon, conversion)


__all__ = [
    "ORDERS",
    "Allowance",
    "Budget",
    "Events",
    "Released",
    "Room",
    "Target",
    "calibrate",
    "delta",
    "epsilon",
    "open_door",
    "release_once",
]
