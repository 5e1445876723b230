"""Adult as the accuracy tests use it: all 48,842 rows, seeded 80/20 splits, mean and standard error
over fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import vstack

from dpcore.accounting import Target
from dpcore.losses import make_loss
from dpcore.metrics import accuracy
from dpcore.objective import LinearObjective
from dpcore.preprocess.design import Data
from dpcore.problem import Problem
from dpcore.train import plan, run
from tasks.data import load
from tasks.schema import find_schema

EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
DELTA = 1e-8
TRAIN_ROWS = 39_074  # 80 % of 48,842, rounded up


@dataclass(frozen=True)
class Score:
    """Mean and standard error in percent."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: list[float]) -> Score:
        return cls(
            100 * float(np.mean(values)), 100 * float(np.std(values, ddof=1) / np.sqrt(len(values)))
        )

    def __str__(self) -> str:
        return f"{self.mean:.2f} +- {self.error:.2f}"

    def reaches(self, bar: float) -> bool:
        """Whether the mean plus two standard errors reaches ``bar``."""
        return self.mean + 2 * self.error >= bar


def read_adult(shared: Path, **encoding: Any) -> Data:
    """Both files of Adult in one table, encoded by the declared schema."""
    schema = find_schema("adult")
    folder = shared / "data" / "adult"
    loaded = load(
        schema, schema.encoder(**encoding), folder / "adult.data.gz", folder / "adult.test.gz"
    )
    train, test = loaded.train, loaded.test
    stack = vstack if train.sparse else np.vstack
    return Data(stack([train.X, test.X]), np.concatenate([train.y, test.y]), train.design)


def problem_of(data: Data, n: int = TRAIN_ROWS, **facts: Any) -> Problem:
    """The public facts for an L2-regularised logistic regression on ``data``."""
    design = data.design
    return Problem(
        n=n,
        dimension=design.dimension,
        loss=make_loss("logistic"),
        norm_bound=design.norm_bound,
        blocks=design.blocks,
        intercept=design.intercept,
        **facts,
    )


def accuracies(
    data: Data,
    problem: Problem,
    name: str,
    epsilon: float,
    splits: int = 5,
    draws: int = 2,
    **parameters: Any,
) -> Score:
    """Test accuracy of ``name`` at (epsilon, DELTA) over seeded splits and noise draws."""
    scores = []
    planned = plan(name, parameters, problem, Target(epsilon, DELTA))
    for split in range(splits):
        order = np.random.default_rng(split).permutation(data.n)
        train, test = data.take(np.sort(order[: problem.n])), data.take(order[problem.n :])
        objective = LinearObjective(train.X, train.y, problem.loss)
        scores += [accuracy(test.y, test.X @ run(planned, objective).weights) for _ in range(draws)]
    return Score.of(scores)


__all__ = ["DELTA", "EPSILONS", "Score", "accuracies", "problem_of", "read_adult"]
