"""In what a budget should count to admit most runs like one: at which Rényi order, or in mu^2.

The order that follows from (epsilon, delta) alone suits full-batch Gaussians. A run on small random
batches with little noise can cost many times the whole budget there and little elsewhere; Gaussian
and pure releases fit best in mu^2. What a data set counts in is fixed when it is opened, so that is
the time to choose, from a plan, which no record was read for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import floor, inf

from dpcore.accounting import gaussian_filter
from dpcore.accounting.curves import ORDERS, order_budgets
from dpcore.accounting.events import Events
from dpcore.accounting.limits import SLACK
from dpcore.errors import BudgetExceeded, PriceUnknown
from tasks.ledger.records import Dataset, price_for, priced_under

# A choice that admits fewer than this many times the runs is not worth another budget.
WORTH = 1.05


@dataclass(frozen=True, slots=True)
class Counting:
    """What one run costs of a budget that counts at ``order`` (None: in mu^2)."""

    order: float | None
    budget: float
    cost: float

    @property
    def runs(self) -> float:
        """How many such runs fill the budget."""
        return self.budget / self.cost if self.cost > 0 else inf

    @property
    def admitted(self) -> int | None:
        """How many such runs fit; None without end."""
        return None if self.runs == inf else floor(self.runs * (1 + SLACK))

    @property
    def option(self) -> str:
        """How ``dpflows ledger init`` is told."""
        return "--filter gdp" if self.order is None else f"--order {self.order:g}"

    def left(self, budget: float) -> int | None:
        """How many such runs fit what is left."""
        return None if self.cost <= 0 else floor(budget / self.cost * (1 + SLACK))


def counting_of(dataset: Dataset, events: Events) -> Counting:
    """Return what ``events`` cost in a data set as it was opened; raises PriceUnknown."""
    assert dataset.budget is not None
    return Counting(dataset.order, dataset.budget, price_for(dataset, events)[1])


def best_counting(dataset: Dataset, events: Events) -> Counting:
    """Return the counting that admits most runs like ``events`` under a data set's promise."""
    return max(_countings(dataset, events), key=lambda one: one.runs)


def _countings(dataset: Dataset, events: Events) -> Iterator[Counting]:
    assert dataset.epsilon is not None and dataset.delta is not None
    adjacency = priced_under(dataset, events)
    with suppress(PriceUnknown):
        cost = gaussian_filter.cost_of(events, adjacency)
        yield Counting(None, gaussian_filter.budget_of(dataset.epsilon, dataset.delta), cost)
    budgets = order_budgets(dataset.epsilon, dataset.delta, dataset.conversion)
    for order, budget, cost in zip(ORDERS, budgets, events.price(adjacency), strict=True):
        if budget > 0:
            yield Counting(float(order), float(budget), float(cost))


@dataclass(frozen=True, slots=True)
class ManyRuns:
    """A limit: so many equal ``runs`` fill a data set's budget, counted as suits them best."""

    dataset: Dataset
    runs: int

    def ratio(self, events: Events) -> float:
        return self.runs / best_counting(self.dataset, events).runs

    def refusal(self, events: Events) -> BudgetExceeded:
        best = best_counting(self.dataset, events)
        return BudgetExceeded(
            f"Expected {self.runs} runs within ({self.dataset.epsilon:g}, {self.dataset.delta:g}), "
            f"but {best.admitted} like this fit at best ({best.option}); raise epsilon, or leave "
            "noise_multiplier to the calibration.",
            asked=float(self.runs),
            left=best.runs,
        )
