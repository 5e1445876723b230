"""Several classes: sums of the joint softmax, its clip, one class against the rest, and what auto
chooses.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Target
from dpcore.algorithms import make, registry
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import HuberHinge, Logistic, Squared, losses, make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.train import plan, run
from dpcore.train.one_vs_rest import OneVsRest
from dpcore.train.planning import encoding, resolve
from tests.multiclass import CLASSES, COLUMNS, replayed
from tests.multiclass import joint_problem as problem


def rows(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, COLUMNS)), rng.integers(0, CLASSES, n).astype(float)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_gradient_is_that_of_the_value(sparse: bool, scaled: bool) -> None:
    X, y = rows()
    objective = MulticlassObjective(csr_array(X) if sparse else X, y, Softmax())
    if scaled:
        objective = objective.transform(
            np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 2.0, 0.1, 3.0])
        )
    w = np.random.default_rng(1).normal(size=CLASSES * COLUMNS)
    steps = 1e-6 * np.eye(len(w))
    numeric = (objective.value_sum(w + steps) - objective.value_sum(w - steps)) / 2e-6
    assert np.allclose(objective.gradient_sum(w), numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sparse", [True, False])
def test_clipped_sum_is_the_sum_of_clipped_gradients(sparse: bool) -> None:
    X, y = rows()
    objective = MulticlassObjective(csr_array(X) if sparse else X, y, Softmax())
    w = np.random.default_rng(1).normal(size=CLASSES * COLUMNS)
    total = np.zeros_like(w)
    for i in range(len(y)):
        one = objective.take(np.array([i])).gradient_sum(w)
        total += one * min(1.0, 0.3 / np.linalg.norm(one))
    assert np.allclose(objective.gradient_sum(w, 0.3), total)


def test_bounds_of_the_loss_are_bounds_and_are_met() -> None:
    z = np.array([[40.0, -40.0, 0.0], [-40.0, 40.0, 0.0], [0.0, 0.0, 0.0]])
    slopes = Softmax().slope(z, np.array([1, 1, 2]))
    assert np.linalg.norm(slopes, axis=1).max() == pytest.approx(sqrt(2.0))
    p = np.array([0.5, 0.5, 0.0])
    assert np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max() == pytest.approx(
        Softmax().smoothness
    )


def test_two_classes_are_logistic_regression_in_the_difference() -> None:
    X, _ = rows()
    y = (X[:, 0] > 0).astype(float)
    w = np.random.default_rng(2).normal(size=COLUMNS)
    joint = MulticlassObjective(X, y, Softmax()).gradient_sum(np.concatenate([-w / 2, w / 2]))
    single = LinearObjective(X, 2 * y - 1, Logistic()).gradient_sum(w)
    assert np.allclose(joint[COLUMNS:], single) and np.allclose(joint[:COLUMNS], -single)


@pytest.mark.parametrize("name", ["dp_sgd", "scaled_gd", "dp_agd"])
@pytest.mark.parametrize("loss", [Logistic(), HuberHinge()])
def test_one_against_the_rest_keeps_the_bounds(name: str, loss) -> None:
    algorithm = OneVsRest.of(make(name, registry[name].small))
    facts = problem(loss=loss, l2=0.1)
    if not algorithm.adaptive:
        assert len(algorithm.plan(facts)) == CLASSES * len(
            algorithm.inner.plan(replace(facts, outputs=1))
        )
    assert max(replayed(algorithm, facts, loss)) <= 1 + 1e-9


def test_one_noise_multiplier_for_all_classes_meets_the_target() -> None:
    facts = problem(loss=Logistic(), n=1000)
    planned = plan("dp_sgd", {"steps": 20}, facts, Target(1.0, 1e-5))
    assert planned.spent_epsilon == pytest.approx(1.0, rel=1e-3) and len(planned.events) == 60
    assert planned.algorithm.inner.noise_multiplier == planned.algorithm.noise_multiplier
    assert planned.parameters["steps"] == 20
    single = plan("dp_sgd", {"steps": 60}, replace(facts, outputs=1), Target(1.0, 1e-5))
    assert planned.algorithm.noise_multiplier == pytest.approx(single.algorithm.noise_multiplier)


def test_the_runs_of_all_classes_are_stated_by_the_accountant_of_the_algorithm() -> None:
    planned = plan("sgd_adv", {}, problem(loss=Logistic(), n=1000), Target(1.0, 1e-5))
    assert planned.target is not None and planned.target.accountant == "advanced"
    assert planned.spent_epsilon <= 1.0 + 1e-6


def test_labels_that_are_no_class_numbers_are_refused_before_anything_runs() -> None:
    planned = plan("dp_sgd", {"steps": 2}, problem(), Target(1.0, 1e-5))
    charged: list[int] = []
    for wrong in ([0.0, 1.0, 3.0, 0.0, 0.0, 0.0], [0.5] * 6, [-1.0] * 6):
        objective = MulticlassObjective(np.zeros((6, COLUMNS)), np.array(wrong), Softmax())
        with pytest.raises(InputError, match="class numbers 0 to 2"):
            run(planned, objective, on_charge=lambda: charged.append(1))
    assert charged == []


def test_an_algorithm_of_one_margin_refuses_the_joint_loss_and_names_the_way() -> None:
    with pytest.raises(AssumptionNotMet, match=r"one margin.*loss='logistic'.*against the rest"):
        plan("objective_perturbation", {}, problem(), Target(1.0, 1e-5))


@pytest.mark.parametrize("loss", sorted(losses))
def test_auto_follows_from_the_loss_and_the_kind_of_model(loss: str) -> None:
    facts = problem(loss=make_loss(loss), outputs=1)
    name, parameters, reason = resolve("auto", {"steps": 3}, facts, None)
    assert name in registry and parameters == {"steps": 3} and repr(loss) in reason
    assert plan("auto", {"steps": 3}, facts, Target(1.0, 1e-5)).name == name
    assert resolve("auto", {}, replace(facts, kind="network"), None)[0] == "dp_sgd"
    assert resolve("amp", {}, facts, None) == ("amp", {}, "")


def test_auto_names_the_encoding_that_goes_with_it() -> None:
    assert encoding("auto", "logistic") == {"normalise": "none", "numeric": "hats(8)+bins(256)"}
    assert (
        encoding("amp", "logistic")
        == encoding("auto", "sigmoid")
        == {"normalise": "cap", "numeric": "minmax"}
    )


def test_auto_for_known_losses() -> None:
    for loss in (Logistic(), HuberHinge(), Squared()):
        assert resolve("auto", {}, problem(loss=loss, outputs=1), None)[0] == "scaled_gd"
    assert resolve("auto", {}, problem(), None)[0] == "scaled_gd"
