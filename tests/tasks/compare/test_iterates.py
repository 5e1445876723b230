"""Curves of linear models: which points are noted, that watching changes nothing, and the figure
that they make.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.accounting.observers import Call, Iterates, View
from dpcore.algorithms import registry
from dpcore.losses import Logistic
from dpcore.mechanisms import Gaussian
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run
from tasks.compare import resume
from tasks.compare.cell import run_cell
from tasks.compare.figures import all_charts
from tasks.home import Home
from tests.dpcore.algorithms.test_every_algorithm import CASES, small_problem
from tests.dpcore.algorithms.test_every_algorithm import small as small_algorithm
from tests.tape import Tape, neighbours
from tests.tasks.compare.test_engine import comparison_of, public

N, MOST = 60, 60
# In these the release hands out a minimiser, and the tape asks for gradients of its own.
MINIMISERS = ("objective_perturbation", "amp", "admm_objp")
REPLAYED = [case for case in CASES if case.values[0] not in MINIMISERS]
NAMES = sorted({case.values[0] for case in CASES})


def made(adjacency: Adjacency) -> tuple[Problem, LinearObjective]:
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.uniform(size=(N, 2)), np.ones(N)]) / np.sqrt(3)
    problem = Problem(
        n=N,
        dimension=3,
        loss=Logistic(),
        l2=0.01,
        norm_bound=1.0,
        adjacency=adjacency,
        intercept=True,
    )
    return problem, LinearObjective(X, np.where(rng.uniform(size=N) < 0.5, -1.0, 1.0), problem.loss)


@pytest.mark.parametrize(("name", "adjacency"), REPLAYED)
def test_every_point_follows_from_what_was_released(name: str, adjacency: Adjacency) -> None:
    """On the neighbour, with the same releases played in, the points are the same, bit for bit."""
    problem = small_problem(name, adjacency, Logistic())
    algorithm = small_algorithm(name)
    first, second, differing = neighbours(problem, 1)
    planned = Events.of(algorithm.plan(problem), adjacency=adjacency)
    log, seen = None, []
    for rows in (first, second):
        iterates = Iterates(MOST, intercept=problem.intercept)
        removed = adjacency is Adjacency.ADD_REMOVE and rows is second
        tape = Tape(
            rows, differing, planned, algorithm.adaptive, removed, log, 1, observers=[iterates]
        )
        algorithm.fit(problem, tape, np.random.default_rng(1))
        log = tape.log
        seen.append(list(iterates))
    assert [step for step, _ in seen[0]] == [step for step, _ in seen[1]]
    for (_, one), (_, other) in zip(*seen, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_watching_changes_nothing(name: str) -> None:
    """Bit for bit the same weights from the same noise, and a point for a release at most."""
    adjacency = min(registry[name].adjacencies & {Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE})
    problem = small_problem(name, adjacency, Logistic())
    planned = plan(name, dict(registry[name].small), problem, Target(5.0, 1e-3))
    objective, _, _ = neighbours(problem, 1)
    plain = run(planned, objective, seed=1, fixed_noise_seed=4)
    iterates = Iterates(MOST, intercept=problem.intercept)
    result = run(planned, objective, seed=1, observers=[iterates], fixed_noise_seed=4)
    np.testing.assert_array_equal(result.weights, plain.weights)
    assert iterates.releases == len(plain.events)
    steps = [step for step, _ in iterates]
    assert steps == sorted(set(steps)) and all(0 <= step < iterates.releases for step in steps)


def test_points_of_noisy_descent_are_its_iterates() -> None:
    """Without noise to speak of, the points of dp_sgd are those of plain descent: w, then w - eta
    (g / n + l2 w).
    """
    problem, objective = made(Adjacency.ADD_REMOVE)
    parameters = {"steps": 4, "noise_multiplier": 1e-9, "learning_rate": 0.5, "clip_norm": 10.0}
    parameters |= {"momentum": 0.0, "schedule": "constant"}
    planned = plan("dp_sgd", parameters, problem)
    iterates = Iterates(MOST)
    run(planned, objective, seed=1, observers=[iterates])
    points = [w for _, w in iterates]
    assert len(points) == 4
    for before, after in pairwise(points):
        step = before - 0.5 * (objective.gradient_sum(before) / N + problem.l2 * before)
        np.testing.assert_allclose(after, step, atol=1e-6)


def test_points_on_scaled_columns_are_weights_for_the_columns_as_they_are() -> None:
    problem, objective = made(Adjacency.ADD_REMOVE)
    shift, scale = np.array([0.2, 0.1, 0.0]), np.array([2.0, 3.0, 0.5])
    iterates = Iterates(MOST, intercept=True)
    w = np.array([0.3, -0.2, 0.7])
    iterates.asked(
        Call(
            "gradient_sum",
            (w,),
            5,
            (View("transform", (shift, scale)), View("take", (slice(0, 5),))),
        )
    )
    iterates.asked(Call("gradient_sum", (w,), 5, (View("columns", (np.array([0]),)),)))
    [(step, found)] = iterates
    assert step == 0
    # the constant column is 1
    plain = LinearObjective(objective.X * np.sqrt(3), objective.y, problem.loss)
    [(_, scores)] = plain.transform(shift, scale).rows.scores(w)
    np.testing.assert_allclose(plain.X @ found, scores, atol=1e-12)


def test_no_more_points_than_wanted_evenly_spread() -> None:
    iterates = Iterates(5, every=3)
    for value in range(100):
        iterates.asked(Call("gradient_sum", (np.array([value]),), 1))
        # a second gradient of a release is not noted
        iterates.asked(Call("gradient_sum", (np.array([-1.0]),), 1))
        iterates.released(Gaussian(1.0, 1.0), None, lambda batch: batch, None)
    steps = [step for step, _ in iterates]
    assert [int(w[0]) for _, w in iterates] == steps
    assert (
        len(steps) <= 5
        and len(set(np.diff(steps))) == 1
        and steps[0] == 0
        and np.diff(steps)[0] % 3 == 0
    )


def test_a_comparison_draws_a_metric_against_iterations(small: Path, home: Home) -> None:
    public(small)
    algorithms: list[dict[str, Any]] = [{"name": "dp_sgd", "parameters": {"steps": 6}}]
    config = comparison_of(small, algorithms=algorithms, curve_every=2, protocol={"folds": 2})
    comparison = resume.make_comparison(config, home)
    records = [
        run_cell(cell, config, comparison.rows, comparison.plans) for cell in comparison.cells
    ]
    private = [record for record in records if record["private"]]
    for record in private:
        assert [point["step"] for point in record["curve"]] == [2, 4, 6]
        assert record["curve"][-1]["accuracy"] == record["metrics"]["accuracy"]
        assert record["curve"][-1]["objective"] == record["metrics"]["objective"]
        spent = [point["spent_epsilon"] for point in record["curve"]]
        assert spent == sorted(spent) and spent[-1] == pytest.approx(record["spent_epsilon"])
    [chart] = [
        one for one in all_charts(records, {"metrics": ["accuracy"]}) if one.x_name == "iteration"
    ]
    assert chart.stem.endswith("accuracy_vs_iterations")
    lines = chart.numbers()
    lines = lines[
        (lines["label"] == "dp_sgd steps=6") & lines["panel"].str.contains("epsilon = 0.5")
    ]
    assert list(lines["iteration"]) == [2, 4, 6]
    own = [record["metrics"]["accuracy"] for record in private if record["epsilon"] == 0.5]
    assert list(lines["mean"])[-1] == pytest.approx(float(np.mean(own)))
