"""Adult, delta = 1e-8: accuracy of the smooth algorithms at their defaults, and their speed against
a plain fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from dpcore.accounting import Target
from dpcore.algorithms import registry
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective
from dpcore.train import plan, run
from tests.slow.adult import DELTA, EPSILONS, accuracies, problem_of, read_adult

pytestmark = pytest.mark.slow

# name, adjacency, rows, least accuracy in percent at each epsilon (figures of tuned prototypes)
BARS = [
    ("rsgd_ar", "replace_one", "unit", (77.0, 78.6, 80.2, 81.4, 82.1, 82.4)),
    ("objective_perturbation", "add_remove", "unit", (79.9, 82.2, 82.8, 83.3, 83.7, 83.8)),
    ("amp", "replace_one", "unit", (76.2, 78.2, 81.0, 82.3, 82.7, 82.8)),
    ("dp_agd", "add_remove", "none", (80.5, 82.0, 82.0, 82.7, 82.7, 83.1)),
]


@pytest.mark.parametrize(("name", "adjacency", "rows", "bars"), BARS)
def test_accuracy_at_the_defaults(
    shared: Path, name: str, adjacency: str, rows: str, bars: tuple[float, ...]
) -> None:
    data = read_adult(shared, normalise=rows)
    problem = problem_of(data, adjacency=adjacency, l2=registry[name].default_l2)
    scores = {epsilon: accuracies(data, problem, name, epsilon) for epsilon in EPSILONS}
    print(name, adjacency, {epsilon: str(score) for epsilon, score in scores.items()})  # noqa: T201
    assert all(score.reaches(bar) for score, bar in zip(scores.values(), bars, strict=True)), scores


def least_times(*fits: Callable[[], object], repeats: int = 5) -> list[float]:
    """Process seconds of the quickest of ``repeats`` runs of each, in turns: other work on the
    machine meets all. One thread each: those that wait for a core would count as work.
    """
    least = [np.inf] * len(fits)
    with threadpool_limits(1):
        for _ in range(repeats):
            for index, fit in enumerate(fits):
                start = process_time()
                fit()
                least[index] = min(least[index], process_time() - start)
    return least


@pytest.mark.parametrize("form", ["csr", "dense"])
@pytest.mark.parametrize(
    ("name", "adjacency"),
    [("objective_perturbation", "add_remove"), ("objective_perturbation", "replace_one"), ("amp", "replace_one"),
     ("output_gd", "replace_one")],
)  # fmt: skip
def test_a_fit_takes_at_most_twice_the_time_of_a_plain_one(
    shared: Path, form: str, name: str, adjacency: str
) -> None:
    """Process time against scikit-learn's L-BFGS on the same matrix at the same penalty, epsilon 1,
    plan included.
    """
    data = read_adult(shared, normalise="unit")
    X = data.X if form == "csr" else np.asarray(data.X.toarray())
    n, l2 = len(data.y), 1e-3
    objective = LinearObjective(X, data.y, Logistic())
    problem = problem_of(data, n=n, adjacency=adjacency, l2=l2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=1 / (n * l2), fit_intercept=False, max_iter=1000)
        plain, ours = least_times(
            lambda: model.fit(X, data.y),
            lambda: run(plan(name, {}, problem, Target(1.0, DELTA)), objective),
        )
    print(  # noqa: T201
        f"{name} {adjacency} {form}: {ours / plain:.2f} times a plain fit of {1000 * plain:.0f} ms"
    )
    assert ours <= 2.0 * plain, f"{ours:.3f} s against {plain:.3f} s"


def test_twenty_epochs_of_rsgd_ar_take_less_than_half_a_second(shared: Path) -> None:
    data = read_adult(shared, normalise="unit")
    problem = problem_of(data, n=len(data.y), adjacency="replace_one", l2=1e-4)
    planned = plan("rsgd_ar", {"epochs": 20}, problem, Target(0.4, DELTA))
    for X in (data.X, data.X.toarray()):
        objective = LinearObjective(X, data.y, Logistic())
        [seconds] = least_times(lambda objective=objective: run(planned, objective), repeats=3)
        assert seconds < 0.5


def test_dp_agd_spends_its_time_in_its_passes(shared: Path) -> None:
    """All candidates go through one matrix product."""
    data = read_adult(shared, normalise="none")
    objective = LinearObjective(data.X, data.y, Logistic())
    planned = plan("dp_agd", {}, problem_of(data, n=len(data.y), l2=1e-4), Target(0.4, DELTA))
    rounds = len(run(planned, objective).events) / 2
    W = np.random.default_rng(0).normal(size=(21, data.design.dimension))
    fit, gradient, losses = least_times(
        lambda: run(planned, objective),
        lambda: objective.gradient_sum(W[0], 1.5),
        lambda: objective.value_sum(W, 2.0),
    )
    assert fit <= 3.0 * rounds * (gradient + losses)
