"""What a field comes to that is left out stands in the plan: for each algorithm by its being in the
registry.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from dpcore.algorithms import make, registry
from dpcore.losses import Logistic
from dpcore.mechanisms.base import to_dict
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.losses import ListNet
from tests.dpcore.algorithms.test_every_algorithm import small_problem

# Weights to start from: left out they are 0, which is no number of its own.
NO_NUMBER = {"start"}
# With a step or rho that is named, ADMM's x-step is the proximal one of the papers: another schedule.
OTHER_STEPS = {("mpadmm", "learning_rate"), ("mpadmm", "penalty_parameter")}
LEFT_OUT = [
    (name, field.name)
    for name, cls in sorted(registry.items())
    for field in fields(cls)
    if "None" in str(field.type) and field.name not in NO_NUMBER
]


def problems(name: str) -> list[Problem]:
    """A small table, and one whose columns are ranked."""
    adjacency = sorted(registry[name].adjacencies)[0]
    if registry[name].requires.ranking:
        return [
            Problem(
                n=3000,
                dimension=4,
                loss=ListNet(),
                kind="ranking",
                adjacency=Adjacency.ADD_REMOVE,
            )
        ]
    found = [small_problem(name, adjacency, Logistic(), n=3000)]
    if found[0].kind == "linear":
        found.append(replace(found[0], dimension=200, l1=0.05))
    return found


def test_fields_that_may_be_left_out_are_found() -> None:
    assert ("admm_objp", "penalty_parameter") in LEFT_OUT
    assert ("ssadmm", "sampling_rate") in LEFT_OUT, "not the default, but a preset leaves it out"
    assert len(LEFT_OUT) > 50


@pytest.mark.parametrize(("name", "field"), LEFT_OUT)
def test_what_is_left_out_is_shown(name: str, field: str) -> None:
    for problem in problems(name):
        algorithm = make(name, {field: None})
        shown = algorithm.parameters(problem)[field]
        assert isinstance(shown, int | float) and not isinstance(shown, bool), shown
        given = make(name, {field: shown})
        assert given.parameters(problem)[field] == shown, "what was given is what is shown"
        if (name, field) not in OTHER_STEPS:
            assert priced(given, problem) == pytest.approx(priced(algorithm, problem), rel=1e-9)


def priced(algorithm: Any, problem: Problem) -> list[float]:
    """Numbers of all mechanisms that a plan lists."""
    return numbers([to_dict(one) for one in list(algorithm.plan(problem))[:50]])


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers(one)]
    if isinstance(value, list | tuple):
        return [number for one in value for number in numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []
