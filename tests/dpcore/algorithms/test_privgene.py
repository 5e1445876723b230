"""Genetic search by the exponential mechanism: what its cap of losses does to a rare class."""

from __future__ import annotations

import numpy as np

from dpcore.accounting import Target
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import plan, run


def test_a_rare_class_is_not_given_up() -> None:
    """One in five positive, hardly told apart: by losses cut at twice log 2 the best model is sure
    that all are negative, at a mean loss far above that of w = 0 (log 2)."""
    rng = np.random.default_rng(3)
    n = 5_000
    y = np.where(rng.random(n) < 0.2, 1.0, -1.0)
    X = np.column_stack([0.1 * rng.normal(size=n) + 0.02 * y, np.full(n, 0.9)])
    X /= np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None]
    problem, objective = (
        Problem(n=n, dimension=2, loss=Logistic()),
        LinearObjective(X, y, Logistic()),
    )

    def mean_loss(**parameters: float) -> float:
        w = run(
            plan("privgene", parameters, problem, Target(4.0, 1e-6)),
            objective,
            seed=2,
            fixed_noise_seed=1,
        ).weights
        return float(objective.value_sum(w[None, :])[0]) / n

    assert mean_loss() < 0.6 < np.log(2) < mean_loss(clip_loss=2 * np.log(2))
