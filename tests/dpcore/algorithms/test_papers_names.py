"""The names of the papers: in the registry, in a configuration, in a comparison and in an
estimator.
"""

from __future__ import annotations

from dataclasses import fields
from math import sqrt
from pathlib import Path

import pytest

from dpcore.accounting import Target
from dpcore.algorithms import make, registry
from dpcore.errors import UnknownName
from dpcore.estimators.base import algorithm_fields
from dpcore.losses import Logistic
from dpcore.problem import Problem
from dpcore.train import plan
from tasks.compare.grid import expand
from tasks.training import prepare
from tests.tasks.compare.test_engine import comparison_of
from tests.tasks.training.test_training import config_of

NAMES = {
    "SGD-MA": "dp_sgd",
    "OUTPERT-GD": "output_gd",
    "OUTPERT-RSGD": "rsgd_ar",
    "bolt-on": "nsgd",
    "sgd_ma": "dp_sgd",
    "outpert_gd": "output_gd",
    "outpert_rsgd": "rsgd_ar",
    "bolt_on": "nsgd",
}


@pytest.mark.parametrize(("alias", "name"), NAMES.items())
def test_a_papers_name_is_found_everywhere(small: Path, alias: str, name: str) -> None:
    assert registry[alias] is registry[name] and registry.knows(alias)
    adjacency = sorted(registry[name].adjacencies)[-1]
    problem = Problem(n=2500, dimension=3, loss=Logistic(), adjacency=adjacency, l2=0.01)
    planned = plan(alias, {}, problem, Target(1.0, 1e-6))
    assert planned.algorithm.name == name and planned.spent_epsilon <= 1.0 + 1e-9
    guarantee = {"delta": 1e-4, "adjacency": str(adjacency)}
    config = config_of(small, algorithm={"name": alias}, privacy={"epsilon": 1.0, **guarantee})
    assert prepare(config).problem.adjacency is adjacency
    privacy = {"epsilon": [1.0], **guarantee}
    settings, left_out = expand(comparison_of(small, algorithms=[{"name": alias}], privacy=privacy))
    assert alias in {setting.label for setting in settings} and not left_out
    assert algorithm_fields(alias) == {field.name for field in fields(registry[name])}


def test_sgd_ma_takes_batches_of_root_n_and_bolt_on_permutes() -> None:
    problem = Problem(n=2500, dimension=3, loss=Logistic())
    assert make("SGD-MA", {}).rate(problem) == 1 / sqrt(2500)
    assert make("SGD-MA", {"sampling_rate": 0.1}).rate(problem) == 0.1
    assert make("dp_sgd", {}).rate(problem) == 1.0
    [step, *_] = make("SGD-MA", {}, "paper").plan(problem)
    assert step.sampler.rate == 1 / sqrt(2500)
    assert make("bolt-on", {}).permute
    with pytest.raises(UnknownName, match="sgd_ma"):
        make("SGD-MB", {})
