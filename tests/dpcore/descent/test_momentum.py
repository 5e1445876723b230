"""Momentum changes how fast a descent goes, never where to: the penalty that a caller asks for is
the one that is minimised.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from dpcore.algorithms import registry
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import plan, run

L1 = 0.02
# Next to no noise, and steps that end near the minimum.
QUIET = {
    "dp_sgd": {"steps": 800, "learning_rate": 2.0},
    "ssadmm": {"steps": 800, "learning_rate": 2.0, "penalty_parameter": 0.1},
    "mpadmm": {"steps": 800, "learning_rate": 2.0, "penalty_parameter": 0.1},
    "dp_admm": {"steps": 800, "learning_rate": 2.0, "penalty_parameter": 0.1},
}


def problem_of(adjacency: str) -> tuple[Problem, LinearObjective]:
    rng = np.random.default_rng(0)
    X = rng.random((500, 5))
    X /= np.maximum(X.sum(axis=1, keepdims=True), 1.0)
    y = np.where(X @ np.array([4.0, 2.0, -3.0, 0.0, 0.1]) > 0.6 + 0.3 * rng.normal(size=500), 1, -1)
    made = Problem(
        n=500, dimension=5, loss=make_loss("logistic"), norm_bound=1.0, l1=L1, adjacency=adjacency
    )
    return made, LinearObjective(X, y, made.loss)


def objective(records: LinearObjective, w: np.ndarray) -> float:
    return float(records.value_sum(w[None])[0]) / records.n + L1 * float(np.abs(w).sum())


NAMED = sorted(
    name
    for name, algorithm in registry.items()
    if any(one.name == "momentum" for one in fields(algorithm)) and algorithm.requires.l1
)


@pytest.mark.parametrize("name", NAMED)
def test_momentum_leaves_the_penalty_as_it_is(name: str) -> None:
    found = []
    for momentum in (0.0, 0.8):
        problem, records = problem_of("replace_one")
        given = {**QUIET[name], "noise_multiplier": 1e-6, "clip_norm": 2.0, "momentum": momentum}
        if "learning_rate" in given:
            given["learning_rate"] *= 1.0 - momentum
        planned = plan(name, given, problem)
        found.append(objective(records, run(planned, records, fixed_noise_seed=1).weights))
    least = objective(records, run(plan("non_private", {}, problem), records).weights)
    assert found == pytest.approx([least, least], rel=1e-3), (found, least)


def test_scaled_descent_with_momentum_ends_at_the_penalised_minimum() -> None:
    problem, records = problem_of("add_remove")
    given = {"noise_multiplier": 1e-6, "steps": 800, "horizon": 1e3}
    planned = plan("scaled_gd", given, problem)
    assert planned.algorithm.step_and_momentum(problem, 0.0)[1] > 0.5
    found = objective(records, run(planned, records, fixed_noise_seed=1).weights)
    least = objective(records, run(plan("non_private", {}, problem), records).weights)
    assert found == pytest.approx(least, rel=1e-3)
