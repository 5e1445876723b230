"""What one ssADMM iteration costs: one gradient of one mini-batch, then work that does not grow
with the data.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest

from dpcore.algorithms import make
from dpcore.descent.admm import Iterate
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective
from dpcore.penalties import make_penalty
from dpcore.problem import Problem
from dpcore.train import plan, run


class Counted(LinearObjective):
    """Notes the number of rows of every gradient that is computed."""

    seen: list[int]

    def take(self, rows):
        batch = super().take(rows)
        batch.seen = self.seen
        return batch

    def gradient_sum(self, w, clip_norm=np.inf):
        self.seen.append(self.n)
        return super().gradient_sum(w, clip_norm)


def records(n: int, d: int) -> Counted:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) / np.sqrt(d) / 2
    objective = Counted(
        X / np.maximum(np.linalg.norm(X, axis=1), 1)[:, None],
        np.sign(rng.normal(size=n)),
        Logistic(),
    )
    objective.seen = []
    return objective


@pytest.mark.parametrize(("name", "gradients"), [("ssadmm", 1), ("mpadmm", 1), ("dp_admm", 2)])
def test_an_iteration_computes_one_gradient_per_release(name, gradients):
    objective = records(1000, 6)
    problem = Problem(n=1000, dimension=6, loss=Logistic(), adjacency="replace_one", l1=1e-3)
    settings = {"steps": 7, **({"sampling_rate": 0.1} if name == "ssadmm" else {})}
    run(plan(name, {"noise_multiplier": 5.0, **settings}, problem), objective)
    share = {"ssadmm": 100, "mpadmm": 1000, "dp_admm": 500}[name]
    if name == "ssadmm":  # Poisson batches vary
        assert len(objective.seen) == 7 * gradients
        assert abs(np.mean(objective.seen) - share) < 0.3 * share
    else:
        assert objective.seen == [share] * 7 * gradients


@pytest.mark.slow
def test_the_updates_of_z_and_y_take_a_small_share_of_an_iteration():
    """40,000 x 100 records, batches of 4,000: the O(d) part is below a fifth of the mini-batch
    gradient.
    """
    objective = records(40_000, 100)
    problem = Problem(n=40_000, dimension=100, loss=Logistic(), l1=1e-3)
    algorithm = make("ssadmm", {"sampling_rate": 0.1})
    batch = objective.take(np.arange(0, 40_000, 10))
    at, penalty = Iterate.start(100), make_penalty("l1", strength=1e-3)

    def best(work) -> float:
        times = []
        for _ in range(30):
            start = perf_counter()
            work()
            times.append(perf_counter() - start)
        return min(times)

    gradient = best(lambda: batch.gradient_sum(at.x, algorithm.clip(problem)))
    updates = best(lambda: at.moved(at.x - 0.1 * at.pull(0.1), 0.1, penalty, 100))
    assert updates < gradient / 5
