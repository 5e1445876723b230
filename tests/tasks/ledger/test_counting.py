"""Exact counting: rounding never lets a budget grow, and the order of charges does not matter."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.accounting import ORDERS
from dpcore.accounting.curves import epsilon_of
from dpcore.errors import BudgetExceeded, InputError
from tasks.ledger import Blocks, Ledger
from tasks.ledger.records import LARGEST, UNIT, choose_order, cost_units, left_of, limit_units

costs = st.floats(min_value=0, max_value=1e5, allow_subnormal=True)


@given(costs)
def test_a_cost_is_never_rounded_down(cost: float) -> None:
    assert Fraction(cost) <= Fraction(cost_units(cost), UNIT) < Fraction(cost) + Fraction(1, UNIT)


@given(costs, costs)
def test_what_is_said_to_be_left_fits(budget: float, spent: float) -> None:
    units = cost_units(min(spent, budget))
    left = left_of(budget, units)
    assert Fraction(left) <= max(Fraction(0), Fraction(budget) - Fraction(units, UNIT))
    if left > 1e-3 * budget:
        assert units + cost_units(left) <= limit_units(budget) + 1


@pytest.mark.parametrize("cost", [-1e-9, float("inf"), float("nan"), LARGEST])
def test_costs_that_cannot_be_counted(cost: float) -> None:
    with pytest.raises(InputError, match="cost="):
        cost_units(cost)


@given(st.floats(0.05, 20), st.floats(-8, -2), st.sampled_from(["cks", "prop21"]))
def test_the_budget_at_the_order_converts_to_the_target(
    epsilon: float, exponent: float, conversion: str
) -> None:
    """A curve that is B at the one order, and unknown elsewhere, gives exactly (epsilon, delta)."""
    delta = 10.0**exponent
    order, budget = choose_order(epsilon, delta, conversion)
    curve = np.where(order == ORDERS, budget, np.inf)
    assert epsilon_of(curve, delta, conversion) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_ledger_does_what_a_sum_of_fractions_does(
    sqlite_ledger: Ledger, events, seed: int
) -> None:
    """Random reservations, cancellations and refusals in three blocks against exact sums in
    memory.
    """
    opened = sqlite_ledger.init(
        "east", 1.0, 1e-6, "add_remove", blocks=Blocks(by="value", column="ward")
    )
    random, spent, still_open = Random(seed), {f"w{i}": Fraction(0) for i in range(3)}, []
    for _ in range(80):
        if still_open and random.random() < 0.4:
            reservation, cost, blocks = still_open.pop(random.randrange(len(still_open)))
            if random.random() < 0.5:
                reservation.cancel()
                spent |= {block: spent[block] - cost for block in blocks}
            else:
                reservation.commit()
            continue
        run = events(random.choice([9.0, 13.0, 30.0]))
        cost = Fraction(float(run.price()[list(ORDERS).index(opened.order)]))
        blocks = random.sample(sorted(spent), random.randint(1, 3))
        fits = all(spent[block] + cost <= Fraction(opened.budget) for block in blocks)
        try:
            still_open.append((sqlite_ledger.reserve("east", run, blocks), cost, blocks))
            spent |= {block: spent[block] + cost for block in blocks}
            assert fits
        except BudgetExceeded:
            assert not fits
    for block, units in sqlite_ledger.spent("east").items():
        assert units / UNIT == pytest.approx(float(spent[block]), abs=1e-9)
    assert sqlite_ledger.verify().ok
