"""``auto`` takes steps on batches where public facts say that they are as good as full ones, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from dpcore.accounting import Target
from dpcore.accounting.limits import Charged, Limit, Room
from dpcore.algorithms.scaled_gd import ScaledGD
from dpcore.losses import make_loss
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan
from dpcore.train.planning import DEARER, RATE, ROWS, SIGNAL

ADULT = {"n": 48_842, "dimension": 106, "norm_bound": 1.0, "intercept": True}


def planned(
    epsilon: float, *limits: Limit, name: str = "auto", settings: Any = None, **facts: Any
) -> Any:
    problem = Problem(loss=make_loss("logistic"), **(ADULT | facts))
    return plan(name, settings or {}, problem, Target(epsilon, 1e-8), *limits)


def test_where_the_signal_is_large_a_sixteenth_of_the_records_makes_a_step() -> None:
    found, full = planned(1.0), planned(1.0, name="scaled_gd")
    sampled, whole = found.algorithm, full.algorithm
    assert isinstance(sampled, ScaledGD) and isinstance(whole, ScaledGD)
    assert sampled.sampling_rate == RATE and whole.sampling_rate == 1.0
    assert whole.signal(full.problem) >= SIGNAL and RATE * found.problem.n >= ROWS
    assert sampled.noise_multiplier / RATE <= DEARER * whole.noise_multiplier
    assert 0.99 < found.spent_epsilon <= 1.0
    assert "batches" in found.reason and "batches" not in full.reason
    assert found.target.accountant_of(found.events) == "pld"


@pytest.mark.parametrize(
    ("epsilon", "limits", "settings", "facts"),
    [
        (0.4, (), {}, {}),  # too little signal
        (1.0, (), {}, {"n": 30_000}),  # batches too small
        (4.0, (), {}, {}),  # little noise: a batch costs more
        (1.0, (), {}, {"adjacency": Adjacency.REPLACE_ONE}),
        (1.0, (Charged(),), {}, {}),  # by the curve, which is what is charged
        (1.0, (Room(8.0, 1e9, Adjacency.ADD_REMOVE),), {}, {}),
        (1.0, (Room(None, 1e9, Adjacency.ADD_REMOVE),), {}, {}),  # a ledger that counts mu^2
        (1.0, (), {"sampling_rate": 1.0}, {}),
    ],
)
def test_elsewhere_and_where_a_rate_is_named_steps_are_full(
    epsilon: float, limits: tuple[Limit, ...], settings: Any, facts: Any
) -> None:
    assert planned(epsilon, *limits, settings=settings, **facts).algorithm.sampling_rate == 1.0


def test_a_ledger_at_one_order_is_not_charged_more_by_a_share_that_counts() -> None:
    """Orders differ in what a batch costs there: the rule asks at that of the ledger."""
    full = planned(1.0, name="scaled_gd")
    for order in (4.0, 16.0, 64.0):
        room = Room(order, 1e9, Adjacency.ADD_REMOVE)
        found = planned(1.0, room)
        whole = planned(1.0, room, name="scaled_gd")
        assert room.cost(found.events) <= DEARER * room.cost(whole.events)
    assert full.algorithm.sampling_rate == 1.0
