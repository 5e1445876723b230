"""Processor time of the hot paths on one thread; aims are 20x and 60x the epoch of a
per-example-gradient library.
"""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from dpcore.accounting import Target
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import Planned, plan, run
from tests.test_auto_accuracy import whole_table

pytestmark = pytest.mark.slow


def adult(shared: Path) -> tuple[LinearObjective, Problem]:
    """Adult one-hot as CSR (105 columns), with its problem."""
    data = whole_table(shared, "adult", "minmax")
    facts = {"norm_bound": data.design.norm_bound, "blocks": data.design.blocks, "intercept": True}
    problem = Problem(
        n=data.n, dimension=data.design.dimension, loss=make_loss("logistic"), **facts
    )
    return LinearObjective(data.X, data.y, make_loss("logistic")), problem


def least_seconds(planned: Planned, objective: LinearObjective, repeats: int) -> float:
    """Processor time of the fastest run: other processes on the machine count less than in wall
    time.
    """
    times = []
    for _ in range(repeats):
        start = process_time()
        run(planned, objective)
        times.append(process_time() - start)
    return min(times)


@pytest.mark.parametrize(("batch", "milliseconds"), [(256, 34.0), (4096, 8.0)])
def test_epoch_of_noisy_descent_on_poisson_batches(
    shared: Path, batch: int, milliseconds: float
) -> None:
    """The bar is for a quiet machine; twice that fails."""
    objective, problem = adult(shared)
    settings = {
        "steps": round(problem.n / batch),
        "sampling_rate": batch / problem.n,
        "noise_multiplier": 1.0,
    }
    planned = plan("dp_sgd", settings, problem)
    best = least_seconds(planned, objective, 9)
    print(f"batch {batch}: {1000 * best:.1f} ms an epoch, aim {milliseconds}")  # noqa: T201
    assert 1000 * best < 2 * milliseconds


def test_auto_on_adult(shared: Path) -> None:
    objective, problem = adult(shared)
    planned = plan("auto", {}, problem, Target(0.4, 1e-8))
    best = least_seconds(planned, objective, 3)
    print(f"auto: {best:.2f} s for {len(planned.events)} releases")  # noqa: T201
    assert best < 2.0
