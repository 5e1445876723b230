"""Limits that a run must fit: its own (epsilon, delta), the room of a ledger, an allowance that
outlives fits.

Limits of a run that follows other releases under one guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from threading import Lock
from typing import Any, Protocol

import numpy as np

from dpcore.accounting import gaussian_filter
from dpcore.accounting.curves import (
    CONVERSIONS,
    ORDERS,
    epsilon_of,
    order_budget,
    order_budgets,
)
from dpcore.accounting.events import Events
from dpcore.accounting.exact import (
    SHARE,
    advanced_epsilon,
    exactly_gaussian,
    gdp_epsilon,
    has_profile,
    pld_epsilon,
    profile_epsilon,
    pure_total,
)
from dpcore.errors import (
    BudgetExceeded,
    InputError,
    PriceUnknown,
    here,
    require_choice,
    require_maker,
    require_open_unit,
    require_positive,
)
from dpcore.mechanisms.base import GRID_SHARE
from dpcore.problem import Adjacency

# A sum that passes its limit by less than this share is rounding: ten times 0.1 fits 1.0, an
# eleventh does not.
SLACK = 1e-9

ACCOUNTANTS = ("auto", "rdp", "pld", "gdp", "profile", "pure", "advanced")
# ``auto`` without distributions: what a search for noise asks many times.
PLAIN = "plain"
# Lists of more distinct mechanisms than this are not composed by distributions unless asked for.
FEW = 4


class Limit(Protocol):
    """Something that a planned run must fit."""

    def ratio(self, events: Events) -> float:
        """Price over what is allowed; at most 1 + ``SLACK`` fits. Falls as noise grows."""
        ...

    def refusal(self, events: Events) -> BudgetExceeded:
        """The error that says what was asked and what is allowed."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The (epsilon, delta) of one run.

    ``accountant``: ``rdp`` converts the Rényi curve; ``gdp`` is the exact composition of Gaussian
    releases without sampling; ``profile`` the delta(epsilon) that a single release states for
    itself; ``pure`` adds pure epsilons; ``pld`` composes privacy-loss distributions; ``advanced``
    is the advanced composition theorem, a baseline. ``auto`` is the first of ``gdp``, ``profile``
    and ``pure`` that applies, else the least of ``rdp`` and ``pld``, and ``rdp`` where there is no
    distribution. All but ``rdp`` describe the very list of events, so an adaptive run, which only
    keeps below its curve, is stated by ``rdp`` (``dpcore.train.plan``). Discrete noise is stated by
    ``gdp``, ``profile`` and ``pld`` at delta (1 - 1e-5).
    """

    epsilon: float
    delta: float
    conversion: str = "cks"
    accountant: str = "auto"

    def __post_init__(self) -> None:
        require_positive(epsilon=self.epsilon)
        require_open_unit(delta=self.delta)
        require_choice(tuple(sorted(CONVERSIONS)), conversion=self.conversion)
        if self.accountant != PLAIN:
            require_choice(ACCOUNTANTS, accountant=self.accountant)

    def accountant_of(self, events: Events) -> str:
        """The accountant that speaks for ``events``."""
        closed = self._closed_form(events)
        if closed != "rdp" or not self.asks_distributions(events):
            return closed
        try:
            return "pld" if self.composed(events) < self._by_curve(events) else "rdp"
        except PriceUnknown:
            return "rdp"

    def asks_distributions(self, events: Events) -> bool:
        """Whether ``auto`` composes distributions for ``events``, where they have any."""
        few = len(events.table) <= FEW and events.rules > 1
        return self.accountant == "auto" and few and self._closed_form(events) == "rdp"

    def _closed_form(self, events: Events) -> str:
        """The accountant that this target uses but for distributions."""
        if self.accountant not in ("auto", PLAIN):
            return self.accountant
        if exactly_gaussian(events.counts):
            return "gdp"
        if has_profile(events.counts):
            return "profile"
        return "pure" if pure_total(events.counts) < inf else "rdp"

    def spent(self, events: Events) -> float:
        """Epsilon of ``events`` at this target's delta."""
        match self.accountant_of(events):
            case "gdp":
                return gdp_epsilon(events.counts, self._delta(events))
            case "pld":
                return self.composed(events)
            case "advanced":
                return advanced_epsilon(events.counts, self.delta)
            case accountant:
                spent = self._by_curve(events)
                if accountant == "pure":
                    return min(spent, pure_total(events.counts))
                if accountant == "profile" and has_profile(events.counts):
                    return min(spent, profile_epsilon(events.counts[0][0], self._delta(events)))
                return spent

    def composed(self, events: Events, share: float = SHARE) -> float:
        """Epsilon by distributions in cells of a ``share`` of it; raises ``PriceUnknown``."""
        return pld_epsilon(events.charged, self._delta(events), share=share)

    def _delta(self, events: Events) -> float:
        return self.delta * (1.0 - GRID_SHARE) if events.on_grid else self.delta

    def _by_curve(self, events: Events) -> float:
        return epsilon_of(events.price(), self.delta, self.conversion)

    def plain(self) -> Target:
        """The same without distributions, which take a good part of a second each time."""
        cheap = {"auto": PLAIN, "pld": "rdp"}
        return replace(self, accountant=cheap.get(self.accountant, self.accountant))

    def ratio(self, events: Events) -> float:
        if self.accountant == "auto":  # a run that fits by its curve need not be composed
            by_curve = self.plain().spent(events) / self.epsilon
            if by_curve <= 1.0:
                return by_curve
        return self.spent(events) / self.epsilon

    def refusal(self, events: Events) -> BudgetExceeded:
        asked = self.spent(events)
        return BudgetExceeded(
            f"Expected a run within epsilon={self.epsilon:g} at delta={self.delta:g}, but its "
            f"price is epsilon={asked:.6g}; raise epsilon, or leave noise_multiplier to the "
            "calibration.",
            asked=asked,
            left=self.epsilon,
        )


def target_among(limits: Sequence[Limit]) -> Target | None:
    """The run's own (epsilon, delta), if one is given."""
    return next((limit for limit in limits if isinstance(limit, Target)), None)


@dataclass(frozen=True, slots=True)
class Room:
    """What a ledger has left at the one order of a data set, for runs priced under its
    ``adjacency``; without an order what is left of mu^2 (``gaussian_filter``).
    """

    order: float | None
    left: float
    adjacency: Adjacency
    name: str = "ledger"

    def ratio(self, events: Events) -> float:
        asked = self.cost(events)
        if asked == 0:
            return 0.0
        return asked / self.left if self.left > 0 else inf

    def cost(self, events: Events) -> float:
        """What ``events`` are charged; raises ``PriceUnknown`` where there is no price."""
        if self.order is None:
            return gaussian_filter.cost_of(events, self.adjacency)
        return float(events.price(self.adjacency)[order_index(self.order)])

    def worth(self, target: Target) -> float:
        """What the guarantee of ``target`` is worth here: the most that a run which has it and
        nothing else is charged.
        """
        if self.order is None:
            return gaussian_filter.budget_of(target.epsilon, target.delta)
        budgets = order_budgets(target.epsilon, target.delta, target.conversion)
        return float(budgets[order_index(self.order)])

    @property
    def where(self) -> str:
        """In what it counts."""
        return "in mu^2" if self.order is None else f"at its order {self.order:g}"

    def refusal(self, events: Events) -> BudgetExceeded:
        asked = self.cost(events)
        return BudgetExceeded(
            f"Expected a run within the budget of {self.name!r}: {self.where} {self.left:.6g} is "
            f"left and {asked:.6g} was asked; lower epsilon, or wait for new blocks.",
            asked=asked,
            left=self.left,
        )


@dataclass(frozen=True, slots=True)
class Charged:
    """A run that a ledger will be charged for, whichever room it has: the noise is that of the
    curve, which is what is charged.
    """

    def ratio(self, events: Events) -> float:
        return 0.0

    def refusal(self, events: Events) -> BudgetExceeded:
        return BudgetExceeded("Expected no refusal of a run without a limit.", asked=0.0, left=inf)


def order_index(order: float) -> int:
    """Position of ``order`` on the grid; raise ``InputError`` where it is not on it."""
    index = int(np.searchsorted(ORDERS, order))
    if index == len(ORDERS) or ORDERS[index] != order:
        raise InputError(
            f"Expected an order of the grid, got order={order!r}; see dpcore.accounting.ORDERS."
        )
    return index


@dataclass(eq=False)
class Allowance:
    """A lasting budget for fits in one process: an (epsilon, delta) filter at one order, shared by
    reference.

    Admission is a filter at the order that leaves most relative room (Feldman & Zrnic 2021; Lécuyer
    2021), so later fits may depend on earlier results. ``copy``, ``deepcopy`` and scikit-learn's
    ``clone`` return the same object: a grid search cannot spend on a copy. One lock makes it safe
    for threads; a forked copy in another process refuses.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE
    conversion: str = "cks"
    spent: float = field(default=0.0, init=False)
    history: list[Events] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        require_positive(epsilon=self.epsilon)
        require_open_unit(delta=self.delta)
        self.adjacency = Adjacency(self.adjacency)
        self.order, self.limit = order_budget(self.epsilon, self.delta, self.conversion)
        self._lock = Lock()
        self._maker = here()

    @property
    def room(self) -> Room:
        """What is left, as a limit for ``plan``. Raises ``DPFlowsError`` in another process than
        its own.
        """
        require_maker(self._maker, "an Allowance")
        return Room(self.order, self.limit - self.spent, Adjacency(self.adjacency), "allowance")

    @property
    def spent_epsilon(self) -> float:
        """Realised conversion of all fits so far: a diagnostic. The guarantee is (epsilon,
        delta).
        """
        if not self.history:
            return 0.0
        total = sum(events.price(self.adjacency) for events in self.history)
        return epsilon_of(np.asarray(total), self.delta, self.conversion)

    def charge(self, events: Events) -> None:
        """Take the price of ``events`` or raise ``BudgetExceeded`` and change nothing."""
        # before the lock, which a fork may have copied while it was held
        require_maker(self._maker, "an Allowance")
        with self._lock:
            room = self.room
            cost = float(events.price(self.adjacency)[order_index(self.order)])
            if not self.spent + cost <= self.limit * (1.0 + SLACK):
                raise room.refusal(events)
            self.history.append(events)
            self.spent += cost

    @contextmanager
    def reserved(self, events: Events) -> Iterator[Callable[[], None]]:
        """Charge ``events`` for a block; what is yielded must be called before the first draw of
        rows or noise.

        A block that fails before that call read no record, so it gets its price back. After it
        nothing is returned.
        """
        # known by its identity among equal charges, whether it came to stand or not
        own = replace(events)
        drawn = False

        def before_draw() -> None:
            nonlocal drawn
            drawn = True

        try:
            self.charge(own)
            yield before_draw
        except BaseException:
            if not drawn:
                self._give_back(own)
            raise

    def _give_back(self, own: Events) -> None:
        with self._lock:
            self.history[:] = [one for one in self.history if one is not own]
            at = order_index(self.order)
            self.spent = sum((float(one.price(self.adjacency)[at]) for one in self.history), 0.0)

    def __copy__(self) -> Allowance:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Allowance:
        return self

    def __sklearn_clone__(self) -> Allowance:
        return self

    def __reduce__(self) -> Any:
        raise InputError(
            "Expected an Allowance to stay in its process: a pickled copy would be spent twice. "
            "Search with n_jobs=1 or a threading backend, or use a ledger."
        )


@dataclass(frozen=True, slots=True)
class LimitAfter:
    """``limit`` for a run that comes after the releases ``before``: both together must fit it."""

    limit: Limit
    before: Events

    def ratio(self, events: Events) -> float:
        return self.limit.ratio(self.before.then(events))

    def refusal(self, events: Events) -> BudgetExceeded:
        return self.limit.refusal(self.before.then(events))


@dataclass(frozen=True, slots=True)
class PriceCap:
    """At no Rényi order dearer than ``reserved``, under any relation that a ledger may charge
    (``Events.prices``).

    A run that is chosen after earlier releases and obeys this costs what was reserved, by the
    one-order filter theorem at each order (Feldman & Zrnic 2021; Lécuyer 2021).
    """

    reserved: Events

    def ratio(self, events: Events) -> float:
        asked, allowed = events.prices(), self.reserved.prices()
        # a price that is no number is no price within the limit
        bounded = np.isfinite(allowed) & ~(asked <= 0)
        with np.errstate(divide="ignore"):
            ratios = asked[bounded] / allowed[bounded]
        return float(ratios.max(initial=0.0))

    def refusal(self, events: Events) -> BudgetExceeded:
        ratio = self.ratio(events)
        return BudgetExceeded(
            f"Expected a run within the price that was reserved for it, but it costs {ratio:.6g} "
            "times as much at some order; leave noise_multiplier to the calibration.",
            asked=ratio,
            left=1.0 if ratio < inf else 0.0,
        )


# What a run may have to fit beside its own target.
Further = Room | PriceCap | Charged
