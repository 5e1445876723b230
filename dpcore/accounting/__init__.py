"""Prices of mechanisms: Rényi curves, their conversion to (epsilon, delta), calibration, and the
door that charges.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from dpcore.accounting.budget import Budget, Released, open_door, release_once
from dpcore.accounting.calibrate import calibrate
from dpcore.accounting.curves import ORDERS, delta_of, epsilon_of
from dpcore.accounting.events import Events
from dpcore.accounting.exact import pure_total
from dpcore.accounting.limits import Allowance, Room, Target
from dpcore.errors import InputError
from dpcore.mechanisms import Mechanism
from dpcore.problem import Adjacency


def epsilon(
    mechanisms: Iterable[Mechanism],
    delta: float,
    conversion: str = "cks",
    adjacency: Adjacency | str | None = None,
) -> float:
    """Epsilon at ``delta`` of ``mechanisms`` run one after the other: the least of Rényi and basic
    composition.

    Rényi curves are added and converted once; pure epsilons are added where all have one.
    ``adjacency``: the relation that the price is asked under; None is the one that the mechanisms
    are proved for (a sampler without replacement: ``replace_one``). A mechanism that is proved for
    any is taken as built for that relation, its sensitivity as said; where none says one it is
    ``add_remove``. Raises ``InputError`` for mechanisms of several relations, ``PriceUnknown``
    where no theorem restates them.
    """
    events, asked = _events(mechanisms, adjacency)
    return min(epsilon_of(events.price(asked), delta, conversion), _pure(events, asked))


def delta(
    mechanisms: Iterable[Mechanism],
    epsilon: float,
    conversion: str = "cks",
    adjacency: Adjacency | str | None = None,
) -> float:
    """Delta at ``epsilon`` of ``mechanisms`` run one after the other; 0 from the sum of pure
    epsilons on.

    Composition and ``adjacency`` as in ``epsilon``. Without noise it is 1, at infinite epsilon too.
    """
    events, asked = _events(mechanisms, adjacency)
    bound = delta_of(events.price(asked), epsilon, conversion)
    return 0.0 if _pure(events, asked) <= epsilon and bound < 1.0 else bound


def _events(
    mechanisms: Iterable[Mechanism], adjacency: Adjacency | str | None
) -> tuple[Events, Adjacency]:
    """The releases under the relation that they are proved for, and the relation that is asked."""
    items = tuple(mechanisms)
    proved = {Adjacency(item.proved_for) for item in items if item.proved_for is not None}
    if len(proved) > 1:
        raise InputError(
            f"Expected mechanisms of one relation, got {' and '.join(sorted(map(str, proved)))}; "
            "build them for one."
        )
    own = next(iter(proved), Adjacency(adjacency or Adjacency.ADD_REMOVE))
    return Events.of(items, adjacency=own), own if adjacency is None else Adjacency(adjacency)


def _pure(events: Events, asked: Adjacency) -> float:
    """Sum of pure epsilons, under the relation that the releases were built for alone."""
    return pure_total(events.counts) if asked is events.adjacency else inf


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
