"""Lines without privacy: a ceiling for every encoding, the same beside a training, and errors in a
label's own unit.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpcore import train as dpcore_train
from dpcore.losses import Logistic
from dpcore.objective.multiclass import Softmax
from dpcore.problem import Problem
from flows.terminal import quality_rows
from tasks import training
from tasks.compare import load_compare, resume
from tasks.compare.batch import batches_of, run_batch
from tasks.compare.cell import objective_value
from tasks.compare.config import ProtocolSection
from tasks.compare.export import cells_frame
from tasks.compare.grid import expand
from tasks.compare.variants import of_training
from tasks.home import Home
from tasks.kinds import sessions, table
from tests.tasks.compare.test_engine import bench_of, comparison_of, public
from tests.tasks.training.test_training import config_of

REGRESSION = """\
schema_version: 1
name: small
public: {n: 300, public: true}
source: {path: small.csv}
columns:
  age: {kind: numeric, low: 0, high: 100}
  city: {kind: categorical, levels: [north, south]}
label: {column: rent, kind: regression, low: 0, high: 4000}
split: {kind: none}
"""


def records_of(comparison: resume.Comparison) -> list[dict[str, Any]]:
    return [
        r
        for batch in batches_of(comparison.to_run, 1)
        for r in run_batch(batch, bench_of(comparison))
    ]


def to_regression(schema: Path) -> np.ndarray:
    """Make the label of the small table a rent between 0 and 4000; returns it."""
    schema.write_text(REGRESSION)
    table = schema.with_name("small.csv")
    frame = pd.read_csv(table)
    noise = np.random.default_rng(3).normal(scale=300, size=len(frame))
    frame["rent"] = np.clip(15 * frame["age"] + 800 * (frame["city"] == "north") + noise, 0, 4000)
    frame.drop(columns="paid").to_csv(table, index=False)
    return frame["rent"].to_numpy()


def measured_by_training(config: Any) -> dict[str, float]:
    """Internal numbers of a training at weights 0: those of the baselines do not depend on it."""
    job = training.prepare(config)
    loaded = training.load_records(job)
    objective = training.build_objective(job, loaded)
    found = training.measure(job, np.zeros(job.problem.dimension), loaded, objective)
    return {
        key.removeprefix("internal."): value
        for key, value in found.items()
        if key.startswith("internal.")
    }


def test_every_encoding_has_a_ceiling_that_is_named_by_it(small: Path, home: Home) -> None:
    """A file says non_private in the column of the algorithm; the encoding is a field and a part of
    the label.
    """
    public(small)
    algorithms = [
        "auto",
        "dp_sgd",
        {"name": "dp_adam", "preprocess": {"normalise": "unit", "intercept": False}},
    ]
    settings, _ = expand(
        comparison_of(small, algorithms=algorithms, privacy={"epsilon": [1], "delta": 1e-4})
    )
    lines = [setting.facts for setting in settings if not setting.private]
    assert [line["label"] for line in lines] == [
        *(
            "majority",
            "non_private hats(8)+bins(256)",
            "non_private minmax cap",
            "non_private minmax unit no intercept",
        ),
    ]
    assert {line["algorithm"] for line in lines[1:]} == {"non_private"}
    private = {setting.facts["encoding"] for setting in settings if setting.private}
    assert private == {line["encoding"] for line in lines[1:]}
    for setting in settings:
        if setting.private:
            [line] = [s for s in settings if s.label == f"non_private {setting.facts['encoding']}"]
            assert line.job.encoder.to_json() == setting.job.encoder.to_json()
    frame = cells_frame([line | {"metrics": {}} for line in lines])
    assert list(frame["encoding"]) == [line["encoding"] for line in lines]


def test_an_objective_of_one_entry_alone_has_lines_too(small: Path) -> None:
    config = comparison_of(
        small, algorithms=["dp_sgd", {"name": "dp_adam", "loss": "huber_hinge", "l2": 0.1}]
    )
    places = {
        (s.facts["loss"], s.facts["l2"])
        for s in expand(config)[0]
        if s.facts["algorithm"] == "non_private"
    }
    assert places == {("logistic", None), ("huber_hinge", 0.1)}


@pytest.mark.parametrize("name", ["auto", "dp_sgd", "dp_agd"])
def test_a_training_and_a_comparison_have_one_ceiling(small: Path, home: Home, name: str) -> None:
    """Also where the algorithm has a ridge of its own, which is none of the ceiling."""
    public(small)
    config = config_of(
        small, algorithm={"name": name, **({"steps": 8} if name == "dp_sgd" else {"steps": None})}
    )
    algorithm = {
        key: value for key, value in config.algorithm.model_dump().items() if value is not None
    }
    config = config.model_copy(update={"algorithm": type(config.algorithm)(**algorithm)})
    beside = measured_by_training(config)
    comparison = resume.make_comparison(
        of_training(config, ProtocolSection(name="crossval", folds=1)), home
    )
    [line] = [cell for cell in comparison.cells if cell.setting.facts["algorithm"] == "non_private"]
    [record] = run_batch(batches_of([line], 1)[0], bench_of(comparison))
    for metric in ("accuracy", "roc_auc", "brier_score"):
        assert record["metrics"][metric] == pytest.approx(beside[f"non_private_{metric}"], abs=1e-9)


def test_the_line_without_privacy_is_the_least_objective_under_l1(small: Path, home: Home) -> None:
    public(small)
    config = comparison_of(
        small,
        objective={"l1": [0, 0.003], "l2": [0.001]},
        preprocess={"normalise": "unit", "numeric": "minmax"},
        algorithms=[{"name": "dp_sgd", "parameters": {"steps": 200}}],
        privacy={"noise_multiplier": [0.05], "delta": 1e-4},
        protocol={"repeats": 1, "folds": 1},
    )
    comparison = resume.make_comparison(config, home)
    records = records_of(comparison)
    for l1 in (0.0, 0.003):
        found = {r["algorithm"]: r["metrics"].get("objective") for r in records if r["l1"] == l1}
        assert found["non_private"] < found["dp_sgd"] < 1.2 * found["non_private"]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_l1_in_the_objective_leaves_constants_out(outputs: int, intercept: bool) -> None:
    """Of each class of a joint model too."""
    loss = Softmax() if outputs > 1 else Logistic()
    problem = Problem(
        n=2, dimension=3, loss=loss, l1=0.1, l2=0.01, outputs=outputs, intercept=intercept
    )
    objective = SimpleNamespace(n=2, value_sum=lambda w: np.array([5.0]))
    setting = SimpleNamespace(job=SimpleNamespace(problem=problem, kind=table.Table))
    weights = np.tile([1.0, -2.0, 4.0], outputs)
    found = objective_value(setting, SimpleNamespace(objective=objective), weights)  # type: ignore[arg-type]
    assert found == pytest.approx(2.5 + outputs * (0.1 * (3 if intercept else 7) + 0.005 * 21))


def test_a_regression_stands_beside_the_mean_of_its_label_in_the_labels_unit(
    small: Path, home: Home
) -> None:
    rent = to_regression(small)
    objective = {"loss": "squared"}
    beside = measured_by_training(config_of(small, objective=objective))
    assert beside["mean_label_root_mean_squared_error"] == pytest.approx(rent.std())
    assert beside["mean_label_mean_absolute_error"] == pytest.approx(
        np.abs(rent - rent.mean()).mean()
    )
    assert beside["mean_label_mean_squared_error"] == pytest.approx(rent.var() / 2000**2)
    assert 200 < beside["non_private_root_mean_squared_error"] < 400 < rent.std()  # noise is 300

    comparison = resume.make_comparison(comparison_of(small, objective=objective), home)
    means = [r for r in records_of(comparison) if r["algorithm"] == "mean_label"]
    assert [(r["label"], r["status"]) for r in means] == [("mean_label", "done")] * 3
    for cell in (cell for cell in comparison.cells if cell.setting.label == "mean_label"):
        part = comparison.rows.part(cell)
        train, test = (2000 * (1 + np.asarray(y)) for y in (part.objective.y, part.test.y))
        [record] = [r for r in means if r["fold"] == cell.fold]
        wanted = np.sqrt(np.mean((test - train.mean()) ** 2))
        assert record["metrics"]["root_mean_squared_error"] == pytest.approx(wanted)


def test_the_table_of_a_regression_says_units_and_baselines() -> None:
    internal = {
        "mean_squared_error": 0.021, "mean_label_mean_squared_error": 0.06, "non_private_mean_squared_error": 0.02,
        "root_mean_squared_error": 312.44, "mean_label_root_mean_squared_error": 500.123,
        "non_private_root_mean_squared_error": 301.0, "mean_absolute_error": 200.0,
    }  # fmt: skip
    assert quality_rows(internal) == [
        (
            "mean squared error, scaled label (internal)",
            "0.0210 (mean of the label 0.0600, non-private 0.0200)",
        ),
        (
            "root mean squared error, label's unit (internal)",
            "312.4 (mean of the label 500.1, non-private 301)",
        ),
    ]


def test_the_table_of_a_training_says_what_may_leave() -> None:
    internal = {"accuracy": 0.8167, "majority_accuracy": 0.5233}
    beside = "0.8167 (majority 0.5233)"
    assert quality_rows(internal) == [("accuracy (internal)", beside)]
    assert quality_rows(internal, {"accuracy": 0.8167}) == [("accuracy (released)", beside)]
    assert quality_rows(internal, {"accuracy": 0.8032}) == [
        ("accuracy (internal)", beside),
        ("accuracy (released, with noise)", "0.8032"),
    ]


def test_the_ceiling_of_rankers_is_measured_by_their_conventions() -> None:
    """A preset of a source has conventions of its own; a ceiling by other ones would be another
    number.
    """
    config = load_compare(None, (), "compare_ranking.yaml")
    [entry, *_] = [
        one.model_copy(update={"preset": "paper"})
        for one in config.algorithms
        if one.name == "privbr"
    ]
    changed = config.model_copy(update={"algorithms": (entry,), "ranking": None})
    settings, _ = expand(changed)
    meant = {setting.private: sessions.conventions(setting.config) for setting in settings}
    assert meant[True] == meant[False]


def test_the_baselines_of_a_training_keep_to_one_thread(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that find nothing to share spin: four times the processor time of the whole
    evaluation.
    """
    seen: list[int] = []
    whole = dpcore_train.run

    def counted(*arguments: Any, **options: Any) -> Any:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return whole(*arguments, **options)

    monkeypatch.setattr(table, "run", counted)
    with threadpool_limits(2):
        measured_by_training(config_of(small))
    assert set(seen) == {1}


@pytest.mark.parametrize("normalise", ["none", "unit", "cap"])
def test_the_majority_class_ranks_nobody(small: Path, normalise: str) -> None:
    """The constant column of a row of unit norm is none: its scores ranked records by their
    norms.
    """
    public(small)
    preprocess = {"normalise": normalise, "numeric": "minmax"}
    trained = measured_by_training(config_of(small, preprocess=preprocess))
    assert trained["majority_roc_auc"] == 0.5 and trained["majority_balanced_accuracy"] == 0.5
