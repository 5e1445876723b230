"""Rényi curve to (epsilon, delta) and back: golden file g01, case 06, and what must hold for any
curve.
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.accounting.curves import (
    ORDERS,
    best_order,
    delta_of,
    epsilon_of,
    order_budget,
    order_budgets,
)
from dpcore.errors import InputError
from dpcore.mechanisms import Gaussian, gaussian_epsilon

INTEGERS = np.arange(2.0, 501.0)


def gaussian(sigma: float, steps: int, orders: np.ndarray = ORDERS) -> np.ndarray:
    return steps * Gaussian(1.0, sigma).rdp(orders)


def test_orders_are_sorted_and_reach_far() -> None:
    assert np.all(np.diff(ORDERS) > 0)
    assert ORDERS[0] < 1.05
    assert ORDERS[-1] == 2**14
    assert not ORDERS.flags.writeable


def test_golden_1_both_conversions_and_the_exact_value(shared: Path) -> None:
    for row in json.loads((shared / "golden/g01_conversion.json").read_text())["rows"]:
        sigma, steps, delta = row["sigma"], row["T"], row["delta"]
        curve = gaussian(sigma, steps, INTEGERS)
        assert epsilon_of(curve, delta, "prop21", INTEGERS) == pytest.approx(
            row["prop21_int"], rel=1e-9
        )
        assert best_order(curve, delta, "prop21", INTEGERS) == row["prop21_alpha"]
        assert epsilon_of(curve, delta, "cks", INTEGERS) == pytest.approx(row["cks_int"], rel=1e-9)
        assert best_order(curve, delta, "cks", INTEGERS) == row["cks_alpha"]
        assert gaussian_epsilon(delta, sqrt(steps) / sigma) == pytest.approx(row["exact"], rel=1e-9)
        ours = epsilon_of(gaussian(sigma, steps), delta)
        assert row["exact"] <= ours <= row["dp_accounting_default_orders"] * (1 + 1e-10)


@pytest.mark.parametrize(
    ("sigma", "steps", "delta", "exact", "prop21"),
    [
        (4.0, 100, 1e-5, 13.206712, 15.131463),
        (10.0, 20, 1e-6, 1.994527, 2.451293),
        (1.0, 1, 1e-3, 3.138671, 4.226939),
    ],
)
def test_case_06_lies_between_the_exact_value_and_prop_21(
    sigma, steps, delta, exact, prop21
) -> None:
    orders = np.arange(2.0, 513.0)
    assert epsilon_of(gaussian(sigma, steps, orders), delta, "prop21", orders) == pytest.approx(
        prop21, abs=1e-5
    )
    assert gaussian_epsilon(delta, sqrt(steps) / sigma) == pytest.approx(exact, abs=1e-5)
    for conversion in ("cks", "prop21"):
        assert exact <= epsilon_of(gaussian(sigma, steps), delta, conversion) <= prop21 + 1e-9


def test_case_06_an_order_near_one_does_not_win_with_a_false_zero() -> None:
    orders = np.array([1.00000001, 2, 3, 4, 8])
    assert epsilon_of(gaussian(4.0, 100, orders), 1e-5, "prop21", orders) == pytest.approx(
        15.131463, abs=1e-5
    )


def test_case_06_order_one_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="order=1"):
        epsilon_of(np.ones(3), 1e-5, "prop21", np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_case_06_delta_outside_the_unit_interval_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match="delta"):
        epsilon_of(gaussian(4.0, 100), delta)


def test_case_06_noise_zero_is_refused() -> None:
    with pytest.raises(InputError, match="sigma"):
        Gaussian(1.0, 0.0)


@pytest.mark.parametrize("conversion", ["cks", "prop21"])
def test_no_steps_cost_exactly_nothing(conversion: str) -> None:
    assert epsilon_of(np.zeros(len(ORDERS)), 1e-5, conversion) == 0.0
    assert delta_of(np.zeros(len(ORDERS)), 0.1, conversion) == 0.0


@pytest.mark.parametrize("conversion", ["cks", "prop21"])
def test_unknown_prices_stay_infinite(conversion: str) -> None:
    nothing_known = np.full(len(ORDERS), np.inf)
    assert epsilon_of(nothing_known, 1e-5, conversion) == np.inf
    assert delta_of(nothing_known, 3.0, conversion) == 1.0


def test_unknown_conversion_names_near_misses() -> None:
    with pytest.raises(InputError, match="cks"):
        epsilon_of(np.ones(len(ORDERS)), 1e-5, "cksx")


@given(
    sigma=st.floats(0.3, 1e4),
    log_delta=st.floats(-34.0, -5.0),
    conversion=st.sampled_from(["cks", "prop21"]),
)
def test_epsilon_and_delta_are_inverse(sigma: float, log_delta: float, conversion: str) -> None:
    curve, delta = gaussian(sigma, 1), float(np.exp(log_delta))
    epsilon = epsilon_of(curve, delta, conversion)
    assert epsilon >= 0.0
    if epsilon > 1e-9:
        assert delta_of(curve, epsilon, conversion) == pytest.approx(delta, rel=1e-6)


@given(sigma=st.floats(0.05, 1e3), steps=st.integers(1, 10**6), log_delta=st.floats(-34.0, -2.0))
@settings(max_examples=200)
def test_never_below_the_exact_gaussian_and_cks_never_above_prop_21(
    sigma, steps, log_delta
) -> None:
    delta = float(np.exp(log_delta))
    cks = epsilon_of(gaussian(sigma, steps), delta)
    assert cks >= gaussian_epsilon(delta, sqrt(steps) / sigma) * (1 - 1e-12)
    assert cks <= epsilon_of(gaussian(sigma, steps), delta, "prop21")


@given(
    sigma=st.floats(0.3, 100.0),
    more=st.floats(1.001, 10.0),
    steps=st.integers(1, 1000),
    log_delta=st.floats(-30, -5),
)
def test_epsilon_falls_with_noise_and_rises_with_steps(sigma, more, steps, log_delta) -> None:
    delta = float(np.exp(log_delta))
    assert epsilon_of(gaussian(sigma * more, steps), delta) <= epsilon_of(
        gaussian(sigma, steps), delta
    )
    assert epsilon_of(gaussian(sigma, steps + 1), delta) >= epsilon_of(
        gaussian(sigma, steps), delta
    )


def test_small_epsilon_and_tiny_delta_have_an_order() -> None:
    for epsilon, delta in ((0.005, 1e-3), (0.005, 1e-15), (20.0, 1e-15), (20.0, 1e-3)):
        order, budget = order_budget(epsilon, delta)
        assert budget > 0
        assert order in ORDERS


def test_order_budget_is_where_the_conversion_gives_the_target_back() -> None:
    order, budget = order_budget(1.0, 1e-8)
    assert epsilon_of(np.array([budget]), 1e-8, orders=np.array([order])) == pytest.approx(
        1.0, rel=1e-12
    )
    assert budget / order == pytest.approx(np.max(order_budgets(1.0, 1e-8) / ORDERS))


def test_order_budget_refuses_what_no_order_can_state() -> None:
    with pytest.raises(InputError, match="epsilon"):
        order_budget(1e-9, 1e-15)
