"""The minimisation error of comparisons, objectives of single data sets, and Table 3 of Zhang et
al. (2017).
"""

from __future__ import annotations

from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from dpcore.accounting import Target
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run
from tasks.compare import load_compare, resume
from tasks.compare.baselines import MINIMISATION_ERROR, has_optimum, optimum
from tasks.compare.batch import batches_of, run_batch
from tasks.compare.grid import expand
from tasks.compare.tracking import child_name
from tasks.data import load
from tasks.home import Home
from tasks.schema import find_schema
from tests.tasks.compare.test_engine import bench_of, comparison_of, public

CONFIG = str(Path(__file__).parents[3] / "conf" / "compare_table3.yaml")


def least(objective: LinearObjective, problem: Problem, w: np.ndarray) -> float:
    """Mean loss + l2/2 ||w||^2."""
    return float(objective.value_sum(w[None, :])[0]) / objective.n + problem.l2 / 2 * float(w @ w)


@pytest.mark.parametrize("loss", ["logistic", "huber_hinge", "huber_regression", "squared"])
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_optimum_is_one(loss: str, l2: float, sparse: bool) -> None:
    """No point near the minimiser is lower, and its gradient is that of a minimum: found by another
    solver.
    """
    rng = np.random.default_rng(5)
    X = rng.normal(size=(200, 4)) / 4
    y = np.where(X[:, 0] + rng.normal(size=200) / 3 > 0, 1.0, -1.0)
    objective = LinearObjective(csr_array(X) if sparse else X, y, make_loss(loss))
    problem = Problem(n=200, dimension=4, loss=make_loss(loss), norm_bound=2.0, l2=l2)
    assert has_optimum(problem)
    found = optimum(objective, problem)
    w = run(plan("non_private", {}, problem), objective).weights
    assert found == pytest.approx(least(objective, problem, w), abs=1e-6)
    tried = w + rng.normal(scale=0.1, size=(50, 4))
    assert min(least(objective, problem, point) for point in tried) > found - 1e-12


@pytest.mark.parametrize(
    ("loss", "facts"), [("sigmoid", {}), ("hinge", {}), ("logistic", {"l1": 0.1})]
)
def test_what_has_no_optimum_has_no_such_metric(loss: str, facts: dict[str, float]) -> None:
    assert not has_optimum(
        Problem(n=10, dimension=2, loss=make_loss(loss), norm_bound=1.0, **facts)
    )


def test_the_metric_is_the_objective_above_its_least(small: Path, home: Home) -> None:
    public(small)
    objective = {"l2": [0.01, 0.1]}
    preprocess = {"normalise": "cap", "numeric": "minmax"}
    asked = {
        "metrics": ["objective", MINIMISATION_ERROR],
        "objective": objective,
        "preprocess": preprocess,
    }
    comparison = resume.make_comparison(comparison_of(small, **asked), home)
    records = [
        r
        for batch in batches_of(comparison.to_run, 1)
        for r in run_batch(batch, bench_of(comparison))
    ]
    assert {record["status"] for record in records} == {"done"}
    exact = {(r["l2"], r["fold"]): r["metrics"] for r in records if r["algorithm"] == "non_private"}
    assert len(exact) == 6 and all(
        0 <= found[MINIMISATION_ERROR] < 1e-6 for found in exact.values()
    )
    private = [record for record in records if record["private"]]
    for record in private:
        error, base = record["metrics"][MINIMISATION_ERROR], exact[record["l2"], record["fold"]]
        assert error == pytest.approx(record["metrics"]["objective"] - base["objective"], abs=1e-6)
        assert error > 0
    plain = resume.make_comparison(
        comparison_of(small, objective=objective, preprocess=preprocess), home
    )
    assert not plain.finished  # these cells lack the metric


def test_the_table_has_its_own_losses_and_ridges_for_each_data_set() -> None:
    """Zhang et al. (2017), Table 3: bank, adult and credit at 0 and 0.1, wine and bike at 0 and
    0.5.
    """
    config = load_compare(CONFIG)
    settings, left_out = expand(config)
    assert not left_out
    found: dict[str, set[Any]] = {}
    for setting in settings:
        facts = setting.facts
        found.setdefault(setting.data, set()).add((facts["loss"], facts["l2"]))
    logistic, huber = (
        {(loss, 0.0), (loss, l2)} for loss, l2 in (("logistic", 0.1), ("huber_regression", 0.5))
    )
    assert found == {
        "bank": logistic,
        "adult": logistic,
        "credit": logistic,
        "wine": huber,
        "bike": huber,
    }
    assert {s.config.privacy.epsilon for s in settings if s.private} == {0.1, 0.5, 1.0, 2.0}
    assert {s.facts["adjacency"] for s in settings if s.private} == {"replace_one"}
    names = [child_name(setting, config) for setting in settings]
    assert len(set(names)) == len(names)
    assert not resume.objective_words(settings)
    assert load_compare(CONFIG, ["protocol=paper_003"]).protocol.draws == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "files", "loss", "l2", "times", "draws"),
    [
        ("wine", "wine", "huber_regression", 0.0, 1.0, 64),
        ("wine", "wine", "huber_regression", 0.5, 10.0, 8),
        ("bike", "bike/hour.csv.gz", "huber_regression", 0.5, 10.0, 8),
        ("credit", "credit/credit-card-clients.csv.gz", "logistic", 0.1, 10.0, 8),
    ],
)
def test_output_perturbation_is_nearer_the_optimum_and_faster_than_private_sgd(
    shared: Path, name: str, files: str, loss: str, l2: float, times: float, draws: int
) -> None:
    """Zhang et al. (2017), Table 3, on a part: error and processor time at each epsilon.

    Without a ridge the lead is small, .98 to 1.34 times over 64 draws with a standard error of .1,
    so that of the four together is asked for.
    """
    schema = find_schema(name)
    data = load(
        schema, schema.encoder(normalise="unit", numeric="minmax"), shared / "data" / files
    ).train
    design = data.design
    problem = Problem(
        n=data.n, dimension=design.dimension, loss=make_loss(loss), norm_bound=design.norm_bound,
        intercept=design.intercept, adjacency=Adjacency.REPLACE_ONE, l2=l2,
    )  # fmt: skip
    objective = LinearObjective(data.X, data.y, problem.loss)
    best, leads = optimum(objective, problem), []
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        plans = {
            kind: plan(kind, {}, problem, Target(epsilon, 1e-3))
            for kind in ("output_gd", "sgd_adv")
        }
        errors: dict[str, list[float]] = {kind: [] for kind in plans}
        seconds = dict.fromkeys(plans, np.inf)
        for kind in [*plans] * draws:
            start = process_time()
            with threadpool_limits(1):
                w = run(plans[kind], objective).weights
            seconds[kind] = min(seconds[kind], process_time() - start)
            errors[kind].append(least(objective, problem, w) - best)
        ours, theirs = (float(np.mean(errors[kind])) for kind in ("output_gd", "sgd_adv"))
        print(  # noqa: T201
            f"{name} {l2} {epsilon}: {ours:.2e} {theirs:.2e}, time "
            f"x{seconds['sgd_adv'] / seconds['output_gd']:.0f}"
        )
        leads.append(theirs / ours)
        assert times == 1.0 or leads[-1] > times, (epsilon, ours, theirs)
        assert seconds["output_gd"] < seconds["sgd_adv"], (epsilon, seconds)
    assert np.exp(np.mean(np.log(leads))) > times, leads
