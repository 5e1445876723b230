"""The steps as plain functions: what is refused from public facts, what the ledger admits, what
stays sealed.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from dpcore.errors import BudgetExceeded, InputError
from tasks import training
from tasks.config import TrainConfig, parse_config
from tasks.kinds import base, table
from tasks.kinds.charge import require_files
from tasks.ledger import Ledger


def config_of(schema: Path, **sections: dict[str, object]) -> TrainConfig:
    """A configuration for the small table: a quick fit, delta below 1/300."""
    values: dict[str, dict[str, object]] = {
        "data": {"name": str(schema), "path": str(schema.with_name("small.csv"))},
        "privacy": {"delta": 1e-4},
        "algorithm": {"name": "dp_sgd", "steps": 8},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return parse_config(values)


def test_problem_follows_from_declarations_alone(small: Path) -> None:
    small.with_name("small.csv").unlink()
    job = training.prepare(config_of(small))
    assert (job.problem.n, job.problem.dimension, job.problem.norm_bound) == (300, 4, 1.0)
    with pytest.raises(InputError, match="does not exist"):
        require_files(job)


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("algorithm", {"name": "dp_sdg"}, "did you mean 'dp_sgd'"),
        ("algorithm", {"stepz": 3}, "did you mean 'steps'"),
        ("algorithm", {"name": "non_private", "steps": 5}, "whose result has no guarantee"),
        ("objective", {"loss": "logistik"}, "did you mean 'logistic'"),
        ("objective", {"loss_parameters": {"h": 1.0}}, "parameter of loss 'logistic'"),
        (
            "privacy",
            {"delta": 0.01},
            "Expected privacy.delta below 1/n=0.00333 for the public n=300, got 0.01",
        ),
    ],
)
def test_misfits_are_refused_with_a_way_out(
    small: Path, section: str, values: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError) as raised:
        training.plan_training(training.prepare(config_of(small, **{section: values})))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_loss_that_the_proof_does_not_allow_is_refused(small: Path) -> None:
    sections = {
        "privacy": {"adjacency": "replace_one"},
        "objective": {"loss": "hinge"},
        "algorithm": {"name": "output_gd"},
    }
    with pytest.raises(
        InputError, match="Expected a smooth loss for 'output_gd', got loss='hinge'"
    ):
        training.plan_training(training.prepare(config_of(small, **sections)))


def test_delta_of_a_paper_is_allowed_and_marked(small: Path) -> None:
    job = training.prepare(config_of(small, privacy={"delta": 0.01}, algorithm={"preset": "paper"}))
    assert "can never be released" in job.warnings[0]


def test_ledger_admits_a_run_of_its_whole_budget_and_then_refuses(
    small: Path, tmp_path: Path
) -> None:
    job = training.prepare(config_of(small))
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        planned = training.plan_training(job)
        with pytest.raises(InputError, match="ledger init"):
            training.fit_to_ledger(job, planned, ledger)
        ledger.init("small", 1.0, 1e-4, "add_remove")
        admitted = training.fit_to_ledger(job, planned, ledger)
        assert admitted.spent_epsilon <= 1.0
        with training.reserve_budget(job, admitted, ledger) as reservation:
            reservation.on_charge()
            reservation.commit()
        with pytest.raises(BudgetExceeded) as raised:
            training.fit_to_ledger(job, planned, ledger)
        assert raised.value.left is not None


def test_a_run_is_refused_rather_than_trained_with_more_noise_than_asked_for(
    small: Path, tmp_path: Path
) -> None:
    job = training.prepare(config_of(small))
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.init("small", 0.5, 1e-4, "add_remove")
        with pytest.raises(BudgetExceeded):
            training.fit_to_ledger(job, training.plan_training(job), ledger)


def test_sealed_values_neither_print_nor_travel() -> None:
    sealed = base.Sealed(np.array([123456.0]))
    assert "123456" not in repr(sealed)
    with pytest.raises(TypeError, match="Private rows stay"):
        pickle.dumps(sealed)


def test_numbers_on_private_rows_are_internal(small: Path) -> None:
    job = training.prepare(config_of(small))
    loaded = training.load_records(job)
    objective = training.build_objective(job, loaded)
    found = training.measure(job, np.array([0.1, 0.2, -0.1, 0.0]), loaded, objective)
    assert {name.partition(".")[0] for name in found} == {"internal"}
    assert {
        "internal.accuracy",
        "internal.majority_accuracy",
        "internal.non_private_accuracy",
    } <= set(found)


def test_an_epsilon_that_protects_hardly_anybody_is_said(small: Path) -> None:
    assert not training.prepare(config_of(small, privacy={"epsilon": 8.0})).warnings
    (warning,) = training.prepare(config_of(small, privacy={"epsilon": 99.0})).warnings
    assert "privacy.epsilon=99 protects hardly anybody" in warning


def test_an_error_says_in_which_section_it_stands(small: Path) -> None:
    with pytest.raises(InputError, match=r"^algorithm dp_sgd: Expected a whole number steps"):
        training.plan_training(training.prepare(config_of(small, algorithm={"steps": -5})))
    with pytest.raises(InputError, match=r"^preprocess: Expected numeric"):
        training.prepare(config_of(small, preprocess={"numeric": "hats(x)"}))


def test_declared_class_weights_multiply_the_constants_and_are_stated(small: Path) -> None:
    plain = training.prepare(config_of(small))
    label = 'label: {column: paid, positive: "yes", negative: "no"'
    text = small.read_text()
    small.write_text(text.replace(label, f"{label}, weights: {{positive: 3, negative: 1}}"))
    job = training.prepare(config_of(small))
    assert job.problem.lipschitz == 3 * plain.problem.lipschitz
    assert job.problem.loss.name == "logistic, class weights 3 (positive) and 1 (negative)"
    auto = config_of(small, algorithm={"name": "auto"})
    assert table.encoding_of(auto, job.problem.loss, job.schema)["numeric"] == "hats(8)+bins(256)"
    rows = training.build_objective(job, training.load_records(job)).open()
    even = training.build_objective(plain, training.load_records(plain)).open()
    w = np.zeros(4)
    assert rows.value_sum(w)[0] == pytest.approx(np.log(2) * np.where(even.y > 0, 3, 1).sum())
    planned = training.plan_training(job)
    assert (
        planned.parameters["clip_norm"] == 3 * training.plan_training(plain).parameters["clip_norm"]
    )

    small.write_text(text.replace(label, f"{label}, weights: {{positive: balanced}}"))
    with pytest.raises(InputError, match=r"label\.weights\.positive.*'balanced'"):
        training.prepare(config_of(small))
    small.write_text(text.replace(label, f"{label}, weights: {{positve: 2}}"))
    with pytest.raises(
        InputError,
        match=r"unknown key label\.weights\.positve; did you mean "
        r"positive",
    ):
        training.prepare(config_of(small))


@pytest.mark.parametrize(
    ("rows", "warned"), [(300, False), (150, False), (149, True), (600, False), (601, True)]
)
def test_the_operator_is_told_where_the_count_is_far_from_the_nominal_one(
    rows: int, warned: bool
) -> None:
    text = table.count_warning(300, rows, "record")
    assert bool(text) == warned
    assert not warned or (
        str(rows) in text and "operator alone" in text and "blocks, public.n or" in text
    )


def test_class_weights_are_refused_for_a_network(small: Path) -> None:
    label = 'label: {column: paid, positive: "yes", negative: "no"'
    small.write_text(small.read_text().replace(label, f"{label}, weights: {{positive: 3}}"))
    with pytest.raises(InputError, match=r"no label\.weights in schema 'small' for a network"):
        training.prepare(config_of(small, model={"kind": "mlp"}))


@pytest.mark.parametrize("name", ["a9a", "bank-dat", "mnist"])
def test_the_default_algorithm_takes_files_of_numbers(name: str) -> None:
    values = {"data": {"name": name}, "privacy": {"delta": 1e-8}}
    job = training.prepare(
        parse_config(values | ({"objective": {"loss": "softmax"}} if name == "mnist" else {}))
    )
    assert training.plan_training(job).name == "scaled_gd"


def test_without_a_constant_column_no_weights_stand_for_the_majority(small: Path) -> None:
    job = training.prepare(config_of(small, preprocess={"intercept": False}))
    assert baselines_of(job) == ["non_private_"]
    assert baselines_of(training.prepare(config_of(small))) == ["majority_", "non_private_"]


def baselines_of(job: base.Job) -> list[str]:
    loaded = training.load_records(job)
    rows, sums = loaded.open().train, training.build_objective(job, loaded).open()
    return list(job.kind.baselines(job, rows, rows, sums))


def test_a_goal_is_said_once(small: Path) -> None:
    def job_of(**algorithm: object) -> base.Job:
        data = {"name": str(small), "path": str(small.with_name("small.csv"))}
        values = {"data": data, "privacy": {"delta": 1e-4}, "evaluate": {"goal": "auc"}}
        return training.prepare(parse_config({**values, "algorithm": algorithm}))

    assert job_of().algorithm.parameters["goal"] == "auc"
    assert job_of(goal="auc").algorithm.parameters["goal"] == "auc"
    for goal in ("probability", "accuracy"):
        with pytest.raises(InputError, match=r"evaluate\.goal='auc' and algorithm\.goal="):
            job_of(goal=goal)
    with pytest.raises(InputError, match=r"for evaluate\.goal='auc', got 'dp_sgd'"):
        job_of(name="dp_sgd")
