"""The nuclear norm acts on the weight matrix of a joint model, and is refused where there is
none.
"""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.accounting import Allowance, Target
from dpcore.algorithms import make
from dpcore.errors import AssumptionNotMet
from dpcore.estimators import DPClassifier
from dpcore.losses import Logistic
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.penalties import penalty_of
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run
from tests.multiclass import AlwaysWrong, joint_problem, replayed

CLASSES, COLUMNS, ROWS = 5, 8, 800
FAMILY = ("ssadmm", "mpadmm", "dp_admm", "admm_objp")
JOINT = ("ssadmm", "mpadmm")
LONG = {
    "steps": 1200,
    "learning_rate": 2.0,
    "schedule": "constant",
    "clip_norm": 2.0,
    "penalty_parameter": 0.1,
}


def one_direction() -> tuple[np.ndarray, np.ndarray]:
    """Five ordered classes that depend on one direction of the features, and a constant column."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(ROWS, COLUMNS - 1)) / np.sqrt(COLUMNS) / 1.5
    along = X @ np.array([1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    y = np.digitize(
        along + 0.1 * rng.normal(size=ROWS), np.quantile(along, [0.2, 0.4, 0.6, 0.8])
    ).astype(float)
    X = np.column_stack([X, np.full(ROWS, 0.25)])
    return X / np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None], y


def joint(strength: float) -> Problem:
    return Problem(
        n=ROWS, dimension=COLUMNS, loss=Softmax(), outputs=CLASSES, l1=strength, intercept=True
    )


def fitted(name: str, penalty: str, strength: float) -> tuple[np.ndarray, MulticlassObjective]:
    objective = MulticlassObjective(*one_direction(), Softmax())
    planned = plan(name, {**LONG, "penalty": penalty, "noise_multiplier": 1e-9}, joint(strength))
    return run(planned, objective, fixed_noise_seed=0).weights.reshape(CLASSES, COLUMNS), objective


def rank(weights: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(weights[:, :-1], tol=1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINT)
def test_the_rank_of_a_joint_model_falls_and_z_is_a_proximal_point(name: str) -> None:
    weights, objective = fitted(name, "nuclear", 0.008)
    assert 1 <= rank(weights) <= 2 < rank(fitted(name, "l1", 0.008)[0])
    assert np.any(weights[:, -1] != 0), "the constant column is not penalised"
    step = 2.0
    gradient = objective.gradient_sum(weights.ravel()).reshape(weights.shape) / ROWS
    again = penalty_of(joint(0.008), "nuclear").prox(weights - step * gradient, step)
    assert np.linalg.norm(again - weights) <= 5e-4 * np.linalg.norm(weights)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("name", JOINT)
def test_matrices_keep_the_bounds_of_their_releases(name: str, adjacency: Adjacency) -> None:
    settings = {
        "steps": 2,
        "clip_norm": 0.05,
        "learning_rate": 10.0,
        "penalty_parameter": 0.5,
        "penalty": "nuclear",
    }
    more = {"perturb": "xzy"} if name == "mpadmm" else {}
    facts = joint_problem(adjacency, loss=AlwaysWrong(), l1=0.02, l2=0.1)
    ratios = replayed(make(name, {**settings, **more}), facts, AlwaysWrong())
    assert max(ratios) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("name", FAMILY)
def test_a_single_weight_vector_has_no_rank_to_lower(name: str, outputs: int) -> None:
    """Two classes, and several classes one against the rest, are refused in the plan."""
    facts = Problem(
        n=500, dimension=3, loss=Logistic(), adjacency="replace_one", l1=1e-3, outputs=outputs
    )
    with pytest.raises(AssumptionNotMet, match=r"loss='softmax'.*penalty='nuclear'.*penalty='l1'"):
        plan(name, {"penalty": "nuclear"}, facts, Target(1.0, 1e-5))


def test_estimators_train_a_matrix_and_refuse_a_vector_before_a_charge() -> None:
    X, y = one_direction()
    shared = {
        "epsilon": 20.0,
        "delta": 1e-5,
        "n": ROWS,
        "l1": 0.03,
        "penalty": "nuclear",
        "norm_bound": 1.1,
    }
    model = DPClassifier("ssadmm", classes=range(CLASSES), steps=30, **shared).fit(X[:, :-1], y)
    assert model.planned_.problem.loss.name == "softmax" and rank(model.weights_) < CLASSES
    budget = Allowance(50.0, 1e-5)
    for loss, classes, labels in (
        ("huber_hinge", range(CLASSES), y),
        ("logistic", (0, 1), np.minimum(y, 1.0)),
    ):
        with pytest.raises(AssumptionNotMet, match="nuclear"):
            DPClassifier("ssadmm", loss=loss, classes=classes, budget=budget, **shared).fit(
                X[:, :-1], labels
            )
    assert budget.spent == 0.0 and not budget.history
