"""Accuracy and coverage on the sparse set of Chen (2020), 4.6.3, and on Adult with L1; delta =
1e-8. Minutes: slow.

Synthetic: 5 data sets of 40,000 rows, 32,000 for training, rows scaled by the public sqrt(100) and
cut to norm 1, one public rule for all epsilon. A bar is met where the mean plus two standard errors
reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from dpcore.accounting import Target
from dpcore.losses import Logistic
from dpcore.metrics import accuracy, coverage
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.synthetic import sparse_linear, sparse_model
from dpcore.train import plan, run
from tests.slow.adult import DELTA, Score, accuracies, problem_of, read_adult

pytestmark = pytest.mark.slow

EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)
ROWS, TRAIN, COLUMNS, DATA_SETS = 40_000, 32_000, 100, 5
# The papers' three releases at their best here: a small rho or momentum would feed the noise of y
# back.
THREE = {"perturb": "xzy", "momentum": 0.0, "penalty_parameter": 0.25}
RELEVANT = np.flatnonzero(sparse_model(COLUMNS))


@dataclass(frozen=True)
class Outcome:
    accuracy: Score
    coverage20: Score
    coverage30: Score


@cache
def data_set(seed: int) -> tuple[LinearObjective, np.ndarray, np.ndarray]:
    table = sparse_linear(ROWS, seed)
    X = np.column_stack([table[f"x{j + 1}"] for j in range(COLUMNS)]) / np.sqrt(COLUMNS)
    X = (X / np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None]).astype(np.float32)
    return LinearObjective(X[:TRAIN], table["y"][:TRAIN], Logistic()), X[TRAIN:], table["y"][TRAIN:]


@cache
def measured(
    name: str,
    epsilon: float,
    preset: str | None = None,
    draws: int = 2,
    adjacency: str = "add_remove",
    **settings,
) -> Outcome:
    problem = Problem(n=TRAIN, dimension=COLUMNS, loss=Logistic(), l1=1e-4, adjacency=adjacency)
    planned = plan(name, settings, problem, Target(epsilon, DELTA), preset=preset)
    rows = []
    for seed in range(DATA_SETS):
        objective, X, y = data_set(seed)
        for _ in range(draws):
            w = run(planned, objective).weights
            rows.append((accuracy(y, X @ w), coverage(w, RELEVANT, 20), coverage(w, RELEVANT, 30)))
    return Outcome(*(Score.of(list(column)) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize(
    ("epsilon", "accurate", "covered20", "covered30"),
    [
        (0.05, 94.3, 84, 92),
        (0.1, 95.3, 89, 96),
        (0.2, 96.1, 93, 98),
        (0.4, 96.5, 95, 99),
        (0.8, 96.7, 97, 100),
    ],
)
def test_two_phases_reach_the_bars(epsilon, accurate, covered20, covered30):
    outcome = measured("two_phase", epsilon)
    assert outcome.accuracy.reaches(accurate), outcome
    assert outcome.coverage20.reaches(covered20), outcome
    assert outcome.coverage30.reaches(covered30), outcome


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_mpadmm_selects_with_one_release_and_better_than_with_three(epsilon):
    """At least 0.86 / 0.925 (xi_20 / accuracy) at 0.05 and 0.90 / 0.940 from 0.2 up."""
    one, three = (
        measured("mpadmm", epsilon, "selection"),
        measured("mpadmm", epsilon, "selection", **THREE),
    )
    if epsilon != 0.1:
        assert one.coverage20.reaches(86 if epsilon < 0.1 else 90), one
        assert one.accuracy.reaches(92.5 if epsilon < 0.1 else 94.0), one
    assert one.accuracy.mean > three.accuracy.mean
    assert one.coverage20.mean + 2 * one.coverage20.error >= three.coverage20.mean


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(
    ("name", "preset"), [("two_phase", None), ("mpadmm", "selection"), ("ssadmm", "selection")]
)
def test_iterative_selectors_stay_within_two_points_of_noisy_correlations(name, preset, epsilon):
    """In xi_30, with two standard errors; the gap of two_phase is 0.010, 0.014, 0.006 at 0.05, 0.1,
    0.2 (25 fits).
    """
    plain, outcome = (
        measured("noisy_correlations", epsilon, draws=4),
        measured(name, epsilon, preset, draws=4),
    )
    error = np.hypot(plain.coverage30.error, outcome.coverage30.error)
    assert outcome.coverage30.mean + 2 * error >= plain.coverage30.mean - 2.0, (plain, outcome)
    assert outcome.accuracy.reaches(plain.accuracy.mean), (plain, outcome)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        ("dp_sgd", "add_remove"),
        ("dp_svrg", "add_remove"),
        ("admm_objp", "add_remove"),
        ("dp_admm", "replace_one"),
    ],
)
def test_baselines_rank_within_two_points_of_noisy_correlations(name, adjacency, epsilon):
    """By an early end that follows from public facts: 58 % (dp_svrg) and 67 % (admm_objp) at 0.05
    without. dp_admm stays 5.6 points behind there (standard error 1.1, 40 fits).
    """
    behind = 7.0 if (name, epsilon) == ("dp_admm", 0.05) else 2.0
    plain = measured("noisy_correlations", epsilon, draws=4, adjacency=adjacency)
    outcome = measured(name, epsilon, adjacency=adjacency)
    error = np.hypot(plain.coverage30.error, outcome.coverage30.error)
    assert outcome.coverage30.mean + 2 * error >= plain.coverage30.mean - behind, (plain, outcome)


@pytest.mark.parametrize(
    ("name", "adjacency", "bars"),
    [
        ("ssadmm", "add_remove", (82.2, 82.6, 83.2, 83.2)),
        ("mpadmm", "replace_one", (79.2, 81.9, 82.5, 82.8)),
    ],
)
def test_l1_logistic_regression_on_adult(shared, name, adjacency, bars):
    adult = read_adult(shared, normalise="none", numeric="minmax", sparse=True)
    problem = problem_of(adult, l1=1e-4, adjacency=adjacency)
    for epsilon, bar in zip((0.05, 0.1, 0.2, 0.4), bars, strict=True):
        score = accuracies(adult, problem, name, epsilon)
        assert score.reaches(bar), f"{name} at {epsilon}: {score}, bar {bar}"
