"""A small tuned training for tests: 400 rows, settings of which one is good."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpcore.accounting import Target
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import Planned
from dpcore.train.search import Candidate, Search, plan_tuning

RATES = (0.5, 2.0)
DEFAULT = Search()


def problem_of(**changes: Any) -> Problem:
    facts: dict[str, Any] = {
        "n": 400,
        "dimension": 3,
        "loss": make_loss("logistic"),
        "norm_bound": 1.0,
    }
    return Problem(**(facts | changes))


def candidates(problem: Problem, **parameters: tuple[Any, ...]) -> list[Candidate]:
    """One setting for each value of the single parameter that is named; dp_sgd with four steps
    else.
    """
    [(name, values)] = parameters.items()
    return [Candidate({f"algorithm.{name}": v}, {"steps": 4, name: v}, problem) for v in values]


def planned_of(
    problem: Problem,
    search: Search = DEFAULT,
    epsilon: float = 1.0,
    noise: str = "rounded",
    **parameters: Any,
) -> Planned:
    settings = candidates(problem, **(parameters or {"learning_rate": RATES}))
    return plan_tuning("dp_sgd", settings, problem, search, Target(epsilon, 1e-4), noise=noise)


def records(problem: Problem, seed: int = 0) -> LinearObjective:
    """Rows whose first column gives the label away."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(problem.n, problem.dimension))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    return LinearObjective(X, np.where(X[:, 0] > 0, 1.0, -1.0), problem.loss)
