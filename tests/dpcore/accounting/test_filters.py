"""Why admission has to be a filter: golden files g06 and g12."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from dpcore.accounting.curves import epsilon_of, order_budgets
from dpcore.mechanisms import renyi


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1))


def test_golden_6_going_on_while_some_order_has_room_is_no_filter(shared: Path) -> None:
    for row in json.loads((shared / "golden/g06_filter.json").read_text())["rows"]:
        orders, delta, epsilon = row["orders"], row["delta"], row["eps"]
        budgets = order_budgets(epsilon, delta, "cks", np.array(orders))
        p, q = np.array(row["P"]), np.array(row["Q"])
        first_p, first_q = (np.array(law) for law in row["stage1"])
        branches = [(np.array(a), np.array(b)) for a, b in row["stage2"]]
        # Each branch has room at its own order before and after it runs ...
        spent = [divergence(first_p, first_q, order) for order in orders]
        for (branch_p, branch_q), order, budget, used in zip(
            branches, orders, budgets, spent, strict=True
        ):
            assert used + divergence(branch_p, branch_q, order) <= budget * (1 + 1e-6)
        # ... and yet the run as a whole misses the target by far.
        true_delta = float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0)))
        assert true_delta == pytest.approx(row["actual_over_delta"] * delta, rel=1e-6)
        assert true_delta > 1.9 * delta
        # Staying below the budget at ONE order fixed in advance refuses one of the branches.
        for index, order in enumerate(orders):
            worst = max(spent[index] + divergence(a, b, order) for a, b in branches)
            assert worst > budgets[index]


def test_golden_12_budgets_at_each_order(shared: Path) -> None:
    for row in json.loads((shared / "golden/g12_filter.json").read_text())["rows"]:
        order = np.array([float(row["alpha"])])
        assert order_budgets(row["eps"], row["delta"], "cks", order)[0] == pytest.approx(
            row["B_plain_cks"], rel=1e-8
        )
        assert order_budgets(row["eps"], row["delta"], "prop21", order)[0] == pytest.approx(
            row["B_prop21"], rel=1e-8
        )
        # The weighted form with weight w is the plain budget at w delta.
        weighted = order_budgets(row["eps"], 0.9 * row["delta"], "cks", order)[0]
        assert weighted == pytest.approx(row["B_w09"], rel=1e-8)


def test_golden_12_dividing_by_the_drawn_size_leaks_the_size(shared: Path) -> None:
    """Noise of sigma / |B| in p coordinates tells |B| = k from k + 1: D_a of two centred
    Gaussians.
    """
    for row in json.loads((shared / "golden/g12_filter.json").read_text())["batch_size_leak"]:
        p, k, a = row["p"], row["k"], row["alpha"]
        first, second = 1.0 / k, 1.0 / (k + 1)
        values = []
        for s, t in ((first, second), (second, first)):
            mixed = a * t**2 + (1 - a) * s**2
            values.append(
                p * (np.log(t / s) + np.log(t**2 / mixed) / (2 * (a - 1))) if mixed > 0 else np.inf
            )
        assert max(values) == pytest.approx(float(row["leak"]), rel=1e-4)
    # At the dissertation's first setting that is as much as the unamplified gradient itself costs.
    assert renyi.gaussian(np.array([2.0]), 0.004)[0] == pytest.approx(1.6e-5, rel=1e-6)


def test_one_order_fixed_in_advance_is_a_filter_on_the_golden_branches(shared: Path) -> None:
    """Replace each branch by 'stop' where it does not fit at the fixed order: the whole then keeps
    its delta.
    """
    for row in json.loads((shared / "golden/g06_filter.json").read_text())["rows"]:
        first_p, first_q = (np.array(law) for law in row["stage1"])
        for index, order in enumerate(row["orders"]):
            budget = order_budgets(row["eps"], row["delta"], "cks", np.array([order]))[0]
            used = divergence(first_p, first_q, order)
            p, q = [], []
            for outcome in range(3):
                fits = (
                    outcome < 2
                    and used + divergence(*map(np.array, row["stage2"][outcome]), order) <= budget
                )
                laws = row["stage2"][outcome] if fits else [[1.0], [1.0]]
                p.extend(first_p[outcome] * np.array(laws[0]))
                q.extend(first_q[outcome] * np.array(laws[1]))
            true_delta = float(
                np.sum(np.maximum(np.array(p) - np.exp(row["eps"]) * np.array(q), 0.0))
            )
            assert true_delta <= row["delta"] * (1 + 1e-9), index


def test_ten_tenths_fit_one_and_an_eleventh_does_not() -> None:
    """Rounding in the conversion stays far below the slack of 1e-9 that admission allows."""
    order = np.array([32.0])
    budget = order_budgets(1.0, 1e-8, "cks", order)
    assert epsilon_of(10 * (budget / 10), 1e-8, orders=order) <= 1.0 * (1 + 1e-12)
    assert epsilon_of(11 * (budget / 10), 1e-8, orders=order) > 1.0
