"""``select:`` in a training: one algorithm, one price; the attributes of a sparse model as a table;
known truths.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpcore.algorithms import registry
from dpcore.algorithms.two_phase import SECOND
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.estimators import DPClassifier
from tasks import training
from tasks.config import TrainConfig, parse_config
from tasks.kinds import quality
from tasks.options.select import algorithm_of

SPARSE = {
    "data": {"name": "sparse-linear"},
    "preprocess": {"normalise": "cap", "numeric": "centred"},
    "objective": {"l1": 1e-4},
    "privacy": {"epsilon": 0.5, "delta": 1e-8},
}


def config(**sections: dict[str, object]) -> TrainConfig:
    return parse_config({**SPARSE, **sections})


# ---- both phases are one algorithm
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", SECOND)
def test_a_selection_before_any_clipping_trainer_has_one_price(trainer: str) -> None:
    objective = {"l1": 0.0 if trainer == "dp_adam" else 1e-4}
    chosen = config(
        select={"keep": 25, "share": 0.2},
        algorithm={"name": trainer, "steps": 7},
        objective=objective,
    )
    planned = training.plan_training(training.prepare(chosen))
    assert planned.name == "two_phase" and len(planned.events) == 8
    assert 0.4999 <= planned.spent_epsilon <= 0.5
    first, *rest = [(item.sensitivity / item.sigma) ** 2 for item in planned.events]
    assert first / (first + sum(rest)) == pytest.approx(0.2, rel=1e-9)
    select, train = planned.phases
    assert (select["keep"], select["releases"], train["algorithm"], train["releases"]) == (
        25,
        1,
        trainer,
        7,
    )
    assert select["share"] == pytest.approx(0.2) and train["share"] == pytest.approx(0.8)
    assert select["noise_multiplier"] == pytest.approx(1.0 / np.sqrt(first))


def test_select_is_the_algorithm_two_phase_written_as_a_step() -> None:
    step = config(
        select={"keep": 25, "share": 0.2},
        algorithm={"name": "ssadmm", "steps": 9, "preset": "selection"},
    )
    second = {"second": "ssadmm", "settings": {"horizon": 0.08, "steps": 9}}
    whole = config(algorithm={"name": "two_phase", "keep": 25, "share": 0.2, **second})
    plans = [training.plan_training(training.prepare(chosen)) for chosen in (step, whole)]
    assert plans[0] == plans[1]


def test_auto_trains_by_ssadmm_and_a_given_noise_multiplier_rules_both_phases() -> None:
    chosen = algorithm_of(config(select={}, algorithm={"noise_multiplier": 900.0, "steps": 3}))
    assert chosen.name == "two_phase"
    assert chosen.parameters == {
        "second": "ssadmm",
        "settings": {"steps": 3},
        "noise_multiplier": 900.0,
    }


@pytest.mark.parametrize("name", sorted(set(registry) - set(SECOND)))
def test_what_cannot_follow_a_selection_is_refused(name: str) -> None:
    words = "selects by itself" if name == "two_phase" else "price is not one of clipping alone"
    with pytest.raises(InputError, match=rf"beside select, got '{name}'.*{words}"):
        training.prepare(config(select={"keep": 5}, algorithm={"name": name}))


@pytest.mark.parametrize(
    ("select", "words"),
    [({"keep": 0}, "select.keep"), ({"share": 1.0}, "select.share"), ({"method": "lasso"}, "select.method"),
     ({"kept": 3}, "did you mean 'select.keep'")],
)  # fmt: skip
def test_settings_of_a_selection_out_of_range_are_refused(
    select: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        config(select=select)


def test_ranked_lists_have_no_columns_to_select() -> None:
    with pytest.raises(InputError, match=r"no section select.*relevance"):
        training.prepare(config(data={"name": "search"}, select={"keep": 5}))


def test_a_wrong_setting_of_the_trainer_is_refused_before_a_plan() -> None:
    with pytest.raises(InputError, match="step"):
        training.prepare(config(select={}, algorithm={"name": "ssadmm", "stepz": 3}))
    with pytest.raises(AssumptionNotMet, match="L1"):
        training.plan_training(training.prepare(config(select={}, algorithm={"name": "dp_adam"})))


def test_the_constant_column_may_be_left_out() -> None:
    with_one = training.prepare(config())
    without = training.prepare(config(preprocess={**SPARSE["preprocess"], "intercept": False}))
    assert with_one.problem.dimension == without.problem.dimension + 1 == 101
    assert with_one.problem.intercept and not without.problem.intercept
    assert "intercept" not in without.encoder.design.names


# ---- what a sparse model uses
# -----------------------------------------------------------------------------------


def test_the_table_ranks_weights_and_leaves_zeros_and_the_constant_out(tmp_path: Path) -> None:
    chosen = config(
        data={"name": "census"}, preprocess={"numeric": "hats(3)"}, algorithm={"name": "ssadmm"}
    )
    job = training.prepare(chosen)
    planned = training.plan_training(job)
    names = job.encoder.design.names
    weights = np.zeros(len(names))
    weights[names.index("age~1")], weights[names.index("sex=male")], weights[-1] = -2.0, 1.0, 9.0
    assert quality.write_table(tmp_path, job, planned, weights) == ["age~1", "sex=male"]
    table = json.loads((tmp_path / quality.TABLE).read_text())
    assert table["columns"] == ["rank", "attribute", "column", "weight", "sign"]
    assert table["data"] == [[1, "age", "age~1", -2.0, "-"], [2, "sex", "sex=male", 1.0, "+"]]
    [words] = quality.columns_words(job, planned, weights)
    assert f"2 of {len(names) - 1}" in words and words.endswith("age~1, sex=male")


def test_every_column_of_the_design_belongs_to_a_declared_attribute() -> None:
    job = training.prepare(config(data={"name": "bike-dates"}, objective={"loss": "squared"}))
    owners = quality.attributes(job.encoder)
    assert len(owners) == job.problem.dimension - 1
    assert set(owners) <= {name for name, column in job.schema.columns.items() if column.feature}


def test_dense_models_have_no_table() -> None:
    job = training.prepare(config(objective={"l1": 0.0}, algorithm={"name": "dp_sgd"}))
    planned = training.plan_training(job)
    assert not quality.is_sparse(job, planned)
    assert (
        quality.columns_words(job, planned, np.ones(101))
        == quality.columns_used(job, planned, np.ones(101))
        == []
    )


def test_coverage_of_a_declared_truth() -> None:
    job = training.prepare(config())
    weights = np.zeros(101)
    weights[:16], weights[30:50], weights[-1] = 3.0, 1.0, 100.0
    found = quality.truth_covered(job, weights)
    assert found["coverage_at_20"] == pytest.approx(0.8) == found["support_recall"]
    assert found["coverage_at_40"] == pytest.approx(0.8 + 0.2 * 4 / 64)
    assert found["support_precision"] == pytest.approx(16 / 36)
    assert set(found) > {f"coverage_at_{count}" for count in (20, 25, 30, 40)}
    assert (
        quality.truth_covered(training.prepare(config(data={"name": "census"})), np.zeros(60)) == {}
    )


def test_a_truth_must_name_declared_columns() -> None:
    from tasks.schema import Schema, find_schema

    stored = find_schema("sparse-linear").model_dump()
    with pytest.raises(ValueError, match="relevant names 'x101'"):
        Schema.model_validate({**stored, "relevant": ["x1", "x101"]})


def test_estimators_name_what_they_selected() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 8)) / np.sqrt(8)
    y = np.where(X[:, 2] - X[:, 5] > 0, 1, -1)
    model = DPClassifier(
        "two_phase",
        epsilon=50.0,
        delta=1e-6,
        norm_bound=1.5,
        classes=[-1, 1],
        n=400,
        keep=2,
        random_state=0,
    ).fit(X, y)
    assert sorted(model.selected_features_) == [2, 5] == sorted(model.ranked_features_[:2])
