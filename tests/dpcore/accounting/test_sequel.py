"""A training after other releases: both together meet the limits, and the training keeps to what
was reserved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.accounting.limits import LimitAfter, PriceCap
from dpcore.algorithms import registry
from dpcore.errors import BudgetExceeded, InputError, PriceUnknown
from dpcore.losses import make_loss
from dpcore.mechanisms import Exponential, Gaussian, Laplace
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, replan, run
from tests.dpcore.algorithms.test_every_algorithm import CASES

BEFORE = Events.of(
    [Exponential(1.0, 30.0, two_sided=True)] * 4 + [Gaussian(1.0, 20.0)] * 8, adjacency="add_remove"
)
PROBLEM = Problem(n=500, dimension=40, loss=make_loss("logistic"), l2=1e-2, intercept=True)
TARGET = Target(1.0, 1e-5)


def test_then_is_the_list_of_both_in_order() -> None:
    second = Events.of([Gaussian(1.0, 20.0)] * 2 + [Gaussian(1.0, 5.0)], adjacency="add_remove")
    joint = BEFORE.then(second)
    assert list(joint) == [*BEFORE, *second]
    assert joint == Events.of([*BEFORE, *second], adjacency="add_remove")
    np.testing.assert_allclose(joint.price(), BEFORE.price() + second.price(), rtol=1e-12)
    with pytest.raises(PriceUnknown, match="one relation"):
        BEFORE.then(Events.of([Gaussian(1.0, 5.0)], adjacency="replace_one"))
    with pytest.raises(PriceUnknown, match="one relation"):
        BEFORE.then(Events.of([Gaussian(1.0, 5.0)], adjacency="add_remove", unit="user"))


@pytest.mark.parametrize("name", ["dp_sgd", "scaled_gd", "objective_perturbation", "dp_agd"])
def test_the_composition_meets_the_target(name: str) -> None:
    planned = plan(name, {}, PROBLEM, TARGET, before=BEFORE)
    assert planned.target is not None and planned.target.accountant == "rdp"
    assert list(planned.events)[: len(BEFORE)] == list(BEFORE)
    assert 0.99 < planned.spent_epsilon <= 1.0 + 1e-9
    alone = plan(name, {}, PROBLEM, TARGET)
    assert planned.algorithm.noise_multiplier > alone.algorithm.noise_multiplier


def test_what_comes_before_may_leave_no_room() -> None:
    with pytest.raises(BudgetExceeded):
        plan("dp_sgd", {}, PROBLEM, Target(0.1, 1e-5), before=BEFORE)
    with pytest.raises(InputError, match="after estimated bounds"):
        plan("dp_sgd", {}, PROBLEM, Target(1.0, 1e-5, accountant="pld"), before=BEFORE)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("dp_sgd", {}),
        ("scaled_gd", {}),
        ("objective_perturbation", {"noise": "gamma"}),
        ("dp_agd", {}),
    ],
)
def test_the_training_on_fewer_columns_stays_below_its_reserved_curve(
    name: str, parameters: dict[str, str]
) -> None:
    planned = plan(name, parameters, PROBLEM, TARGET, before=BEFORE)
    known = replan(planned, replace(PROBLEM, dimension=5))
    assert known.own is not None and known.events == planned.events
    reserved = planned.events.price() - BEFORE.price()
    finite = np.isfinite(reserved)
    ratio = known.own.price()[finite] / reserved[finite]
    assert ratio.max() <= 1.0 + 1e-6 and ratio.max() == pytest.approx(1.0, abs=1e-3)
    X = np.random.default_rng(0).normal(size=(500, 5)) / 10
    result = run(known, LinearObjective(X, np.sign(X[:, 0]), PROBLEM.loss), fixed_noise_seed=1)
    assert np.all(result.events.price()[finite] <= reserved[finite] * (1.0 + 1e-6))
    assert result.trace[-1]["spent_epsilon"] <= 1.0 + 1e-9
    assert result.trace[0]["spent_epsilon"] > TARGET.spent(BEFORE) * 0.99


def test_classes_one_against_the_rest_are_planned_again_on_fewer_columns() -> None:
    planned = plan("dp_sgd", {}, replace(PROBLEM, outputs=3), TARGET, before=BEFORE)
    known = replan(planned, replace(PROBLEM, outputs=3, dimension=5))
    assert known.own is not None and np.all(
        known.own.price() <= (planned.events.price() - BEFORE.price()) * 1.000001
    )


@pytest.mark.parametrize("dimension", [5, 60])
def test_noise_that_a_user_gave_is_raised_where_it_no_longer_fits(dimension: int) -> None:
    given = {"noise": "gamma", "noise_multiplier": 50.0}
    planned = plan("objective_perturbation", given, PROBLEM, TARGET, before=BEFORE)
    known = replan(planned, replace(PROBLEM, dimension=dimension), keep_noise=True)
    cap = PriceCap(planned_events(planned))
    fits = cap.ratio(planned_events(replace(planned, problem=known.problem))) <= 1.0
    assert (known.algorithm.noise_multiplier == 50.0) == fits
    assert known.algorithm.noise_multiplier >= 50.0 and cap.ratio(known.own) <= 1.0 + 1e-6


def planned_events(planned) -> Events:
    return Events.of(planned.algorithm.plan(planned.problem), adjacency="add_remove")


def test_a_training_does_not_start_before_what_comes_first() -> None:
    planned = plan("dp_sgd", {}, PROBLEM, TARGET, before=BEFORE)
    with pytest.raises(InputError, match="releases before the training"):
        run(planned, LinearObjective(np.zeros((3, 40)), np.ones(3), PROBLEM.loss))


def test_limits_say_what_they_refuse() -> None:
    one = Events.of([Gaussian(1.0, 1.0)], adjacency="add_remove")
    assert LimitAfter(TARGET, BEFORE).ratio(one) == TARGET.ratio(BEFORE.then(one))
    assert "price is epsilon" in str(LimitAfter(TARGET, BEFORE).refusal(one))
    assert PriceCap(one).ratio(one) == 1.0
    # pure epsilon 1 has a flat curve, the Gaussian's rises: the ratio is largest at the first order
    pure = Events.of([Laplace(1.0, 1.0)], adjacency="add_remove")
    curves = pure.price() / one.price()
    assert curves.max() > 5 * curves.min()
    assert PriceCap(one).ratio(pure) == pytest.approx(curves.max())
    twice = PriceCap(one).ratio(one.then(one))
    assert twice == pytest.approx(2.0)
    assert "2 times as much" in str(PriceCap(one).refusal(one.then(one)))


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_every_algorithm_follows_an_estimate_within_what_was_reserved(
    name: str, adjacency: Adjacency
) -> None:
    before = Events.of([Gaussian(1.0, 20.0)] * 8, adjacency=adjacency)
    facts = {"adjacency": adjacency, **getattr(registry[name], "small_problem", {})}
    planned = plan(name, {}, replace(PROBLEM, **facts), Target(2.0, 1e-5), before=before)
    known = replan(planned, replace(PROBLEM, **facts, dimension=6))
    reserved = planned.events.price() - before.price()
    finite = np.isfinite(reserved) & (reserved > 1e-9)
    assert np.all(known.own.price()[finite] <= reserved[finite] * (1.0 + 1e-6))
    assert Target(2.0, 1e-5, accountant="rdp").ratio(known.before.then(known.own)) <= 1.0 + 1e-6
