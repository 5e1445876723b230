"""The section ``tune``: which grids are taken, what a plan says, and what the ledger is charged."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpcore.accounting.events import Events
from dpcore.errors import BudgetExceeded, InputError
from dpcore.mechanisms import Composition, Gaussian, RepeatNegativeBinomial
from dpcore.mechanisms.repeated import Repeated
from flows.cli import run
from tasks import training as training_steps
from tasks.config import TrainConfig, load_config
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.options import tune as options_tune
from tasks.release.gate import Candidate, Policy, decide
from tasks.release.trials import charged, search_epsilon
from tasks.retraining import RetrainConfig, check_retraining
from tests.tasks.training.test_training import config_of

CONF = Path(__file__).resolve().parents[3] / "conf"
GRID = {"algorithm.learning_rate": [0.5, 4.0], "objective.l2": [None, 0.01]}


def tuned_config(
    schema: Path, grid: Any = None, tune: dict[str, Any] | None = None, **sections: Any
) -> TrainConfig:
    return config_of(
        schema,
        tune={
            "grid": grid or GRID,
            "trials": {"distribution": "negative_binomial", "mean": 4},
            **(tune or {}),
        },
        **sections,
    )


def plan_of(config: TrainConfig) -> Any:
    return training_steps.plan_training(training_steps.prepare(config))


def test_every_setting_has_its_parameters_and_its_problem(small: Path) -> None:
    planned = plan_of(tuned_config(small))
    settings = planned.algorithm.settings
    assert [tuple(one.values.values()) for one in settings] == [
        (0.5, None),
        (0.5, 0.01),
        (4.0, None),
        (4.0, 0.01),
    ]
    assert [one.algorithm.learning_rate for one in settings] == [0.5, 0.5, 4.0, 4.0]
    assert [one.problem.l2 for one in settings] == [0.0, 0.01, 0.0, 0.01]
    assert planned.spent_epsilon == pytest.approx(1.0, abs=1e-3)
    nested = plan_of(
        tuned_config(
            small, {"algorithm": {"learning_rate": [0.5, 4.0]}, "objective": {"l2": [None, 0.01]}}
        )
    )
    assert nested.events == planned.events


def test_every_encoding_has_columns_of_its_own(small: Path) -> None:
    grid = {"preprocess.numeric": ["minmax", "hats(4)"], "algorithm.learning_rate": [1.0, 2.0]}
    job = training_steps.prepare(tuned_config(small, grid))
    planned = training_steps.plan_training(job)
    settings = planned.algorithm.settings  # type: ignore[attr-defined]
    assert [one.part for one in settings] == [0, 1, 0, 1]
    sums = training_steps.read_run(job, planned).sums
    sizes = [part.dimension for part in sums.open().parts]
    assert sizes == [4, 7] and [one.problem.dimension for one in settings] == [4, 7, 4, 7]
    assert {part.n for part in sums.open().parts} == {sums.open().n}


def test_grid_from_the_command_line(home: Home, small: Path) -> None:
    config = load_config(
        None, ["tune.grid.algorithm.learning_rate=[1, 2, 4]", "tune.trials.mean=3"]
    )
    assert config.tune is not None
    assert options_tune.grid_of(config.tune) == {"algorithm.learning_rate": (1, 2, 4)}


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (
            {"privacy.epsilon": [1, 2]},
            "got 'privacy.epsilon': the promise is fixed before the records are read",
        ),
        (
            {"privacy": {"adjacency": ["add_remove", "replace_one"]}},
            "got 'privacy.adjacency': the promise is fixed",
        ),
        ({"data.name": ["a", "b"]}, "got 'data.name': which records are read"),
        (
            {"preprocess.intercept": [True, False]},
            "got 'preprocess.intercept': the constant column belongs",
        ),
        ({"preprocess.numeric": ["minmax", "logs"]}, "preprocess"),
        ({"preprocess.numbers": ["minmax", "log"]}, "preprocess.numbers"),
        ({"objective.loss": ["logistic", "hinge"]}, "got 'objective.loss': the model's kind"),
        ({"evaluate.baselines": [True, False]}, "got 'evaluate.baselines'"),
        ({"seed": [1, 2]}, "got 'seed': it has no part in the training"),
        (
            {"algorithm.name": ["dp_sgd", "output_gd"]},
            "got 'algorithm.name': one search tunes one algorithm",
        ),
        ({"algorithm.preset": ["paper", None]}, "got 'algorithm.preset': it stands for several"),
        (
            {"algorithm.noise_multiplier": [1, 2]},
            "got 'algorithm.noise_multiplier': the noise follows",
        ),
        ({"algorithm.start": [[0.0], [1.0]]}, "got 'algorithm.start': a start is a model"),
        ({"algorithm.a.b": [1, 2]}, "it is no single parameter"),
        ({"algoritm.steps": [1, 2]}, "key of tune.grid"),
        ({"algorithm.steps": 4}, "a list of values for tune.grid.algorithm.steps, got 4"),
        ({"algorithm.steps": []}, "a list of values for tune.grid.algorithm.steps"),
        ({"algorithm.steps": [4]}, "2 to 1000 settings in tune.grid, got 1"),
        ({"algorithm.steps": list(range(1, 1002))}, "2 to 1000 settings in tune.grid, got 1001"),
        ({"algorithm.steps": [[4], [5]]}, "single values in tune.grid.algorithm.steps"),
        ({"algorithm.stepz": [4, 5]}, "did you mean 'steps'"),
        ({"algorithm.steps": [4, 0]}, "steps"),
        ({"objective.l2": [0.1, -1.0]}, "a number >= 0 for objective.l2, got -1.0"),
        ({"objective.l1": ["much", 0.1]}, "for objective.l1, got 'much'"),
    ],
)
def test_grids_that_move_more_than_the_training_are_refused(
    small: Path, grid: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as raised:
        plan_of(tuned_config(small, grid))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_empty_grid_is_refused(small: Path) -> None:
    with pytest.raises(InputError, match=r"2 to 1000 settings in tune\.grid, got 0"):
        plan_of(config_of(small, tune={"grid": {}}))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"algorithm": {"noise_multiplier": 3.0}},
            "algorithm.noise_multiplier follows from the budget",
        ),
        (
            {"privacy": {"accountant": "pld"}},
            "auto, rdp or pure for a tuned training, got accountant='pld'",
        ),
        ({"privacy": {"accountant": "gdp"}}, "got accountant='gdp'"),
        ({"algorithm": {"name": "majority", "steps": 4}}, "majority"),
        ({"tune": {"trials": {"mean": 1.0}}}, "a number > 1 for tune.trials.mean, got 1.0"),
        ({"tune": {"trials": {"distribution": "fixed"}}}, "tune.trials.distribution"),
        (
            {"tune": {"trials": {"distribution": "poisson", "mean": 4, "eta": 1}}},
            "no eta for the Poisson law",
        ),
        ({"tune": {"score": {"metric": "roc_auc"}}}, "tune.score.metric"),
        ({"tune": {"score": {"share": 1.0}}}, "tune.score.share"),
    ],
)
def test_what_has_no_proof_is_refused(small: Path, sections: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as raised:
        plan_of(tuned_config(small, **sections))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def rewritten(schema: Path, old: str, new: str) -> Path:
    """The small schema with a change."""
    text = schema.read_text()
    assert old in text
    schema.write_text(text.replace(old, new))
    return schema


def test_labels_without_right_predictions_are_refused(small: Path) -> None:
    label = "label: {column: size, kind: regression, low: 0, high: 1}"
    schema = rewritten(small, 'label: {column: paid, positive: "yes", negative: "no"}', label)
    with pytest.raises(InputError, match="which a label of kind regression has not"):
        plan_of(tuned_config(schema, objective={"loss": "squared"}))


def test_ranking_users_and_networks_are_refused(home: Home, small: Path) -> None:
    """Each with its reason; nothing of the data is opened."""
    grid = "tune.grid.algorithm.learning_rate=[0.5, 1]"
    with pytest.raises(InputError, match="a label of kind relevance has not; fix the parameters"):
        plan_of(load_config(str(CONF / "ranking.yaml"), [grid]))
    with pytest.raises(InputError, match="no section tune beside model"):
        plan_of(load_config(str(CONF / "mnist_mlp.yaml"), [grid]))
    schema = rewritten(small, "public: {n: 300}", "unit: user\npublic: {n: 100, rows_per_user: 3}")
    schema = rewritten(schema, "label:", "  patient: {kind: user}\nlabel:")
    with pytest.raises(
        InputError, match="the score's noise is for one record, and the unit is user"
    ):
        plan_of(tuned_config(schema, privacy={"delta": 1e-4}))


def test_bounds_that_are_not_declared_are_refused(small: Path) -> None:
    schema = rewritten(small, "age: {kind: numeric, low: 0, high: 100}", "age: {kind: numeric}")
    schema = rewritten(schema, "split:", "bounds: private\nsplit:")
    with pytest.raises(InputError, match="bounds and levels must be declared before the search"):
        plan_of(tuned_config(schema))


def test_plan_shows_what_a_search_costs(
    home: Home, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small.with_name("tune.yaml")
    file.write_text(json.dumps(tuned_config(small).model_dump(mode="json")))
    assert run(["plan", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    search = report["tuning"]
    assert search["settings"] == 4 and search["expected_trials"] == pytest.approx(4.0)
    assert search["grid"] == {"algorithm.learning_rate": [0.5, 4.0], "objective.l2": [None, 0.01]}
    assert 0.4 < search["trial_epsilon"] < report["epsilon"] <= 1.0
    assert report["releases"] == 1 and "tuning" not in report["parameters"]
    assert run(["plan", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "trial_epsilon" in shown and "[0.5, 4]" in shown and "expected_trials 4" in shown


def test_the_ledger_is_charged_the_composed_price_and_refuses_what_is_not_left(small: Path) -> None:
    job = training_steps.prepare(tuned_config(small))
    with Ledger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        ledger.init("small", 1.3, 1e-4, "add_remove")
        planned = training_steps.fit_to_ledger(job, training_steps.plan_training(job), ledger)
        with training_steps.reserve_budget(job, planned, ledger) as reservation:
            reservation.on_charge()
        [entry] = charged(ledger, "small")
        assert entry.events == planned.events
        assert [item.kind for item in entry.events] == ["repeat_negative_binomial"]
        with pytest.raises(BudgetExceeded):
            training_steps.fit_to_ledger(job, training_steps.plan_training(job), ledger)


KILLED = """
import os, signal, sys
from pathlib import Path
from dpcore.train.search import Tuned
from dpcore.mechanisms.repeated import Repeated
from tasks import training
from tasks.ledger import Ledger
from tests.tasks.options.test_tune_section import tuned_config

seen = []
attempt = Tuned.attempt
def counted(*given):
    seen.append(1)
    if len(seen) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(*given)
Tuned.attempt, Repeated.draw = counted, lambda self, rng: 5
job = training.prepare(tuned_config(Path(sys.argv[1])))
with Ledger(sys.argv[2]) as ledger:
    planned = training.plan_training(job)
    objective = training.build_objective(job, training.load_records(job))
    with training.reserve_budget(job, planned, ledger) as reservation:
        training.fit_model(job, planned, objective, reservation)
"""


@pytest.mark.slow
def test_killed_between_two_trials_everything_stays_charged(small: Path) -> None:
    url = f"sqlite:///{small.with_name('ledger.db')}"
    with Ledger(url) as ledger:
        ledger.init("small", 3.0, 1e-4, "add_remove")
        before = ledger.room("small", ("all",), public=False)
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(small), url], cwd=root, check=False, timeout=300
    )
    assert done.returncode == -signal.SIGKILL
    planned = plan_of(tuned_config(small))
    with Ledger(url) as ledger:
        [entry] = charged(ledger, "small")
        assert entry.events == planned.events
        assert len(ledger.reap(kept=())) == 1
        after = ledger.room("small", ("all",), public=False)
        assert before is not None and after is not None
        cost = before.ratio(planned.events) * before.left
        assert before.left - after.left == pytest.approx(cost, rel=1e-6)
        assert [one.entry for one in charged(ledger, "small")] == [entry.entry]


def test_case_12_a_search_of_random_size_costs_less_than_the_six_and_more_than_one(
    shared: Path,
) -> None:
    """The six trainings of case 12 as one charged search: the theorem's price, not the winner's
    3.2349.
    """
    case = shared / "cases" / "12-release-gate-after-tuning"
    with (case / "candidates.csv").open() as file:
        rows = list(csv.DictReader(file))
    noise, steps = float(rows[0]["noise_multiplier"]), int(rows[0]["steps_done"])
    one = [Gaussian(1.0, noise)] * steps
    trial = Composition((one[0],), (steps,))
    search = RepeatNegativeBinomial.of_mean((trial,), float(len(rows)), 0.0)
    assert isinstance(search, Repeated)
    alone = search_epsilon([Events.of(one, adjacency="add_remove")], "add_remove", 1e-5, "prop21")
    six = search_epsilon(
        [Events.of(one, adjacency="add_remove")] * len(rows), "add_remove", 1e-5, "prop21"
    )
    events = Events.of([search], adjacency="add_remove")
    tuned = search_epsilon([events], "add_remove", 1e-5, "prop21")
    assert (alone, six) == (pytest.approx(3.2349, abs=5e-5), pytest.approx(8.6338, abs=5e-5))
    assert alone < 4.7 < tuned < 5.0 < six
    winner = Candidate("c1", True, True, {"balanced_accuracy": 0.742, "accuracy": 0.781}, events)
    for limit, promoted in ((5.0, "c1"), (4.0, None)):
        policy = Policy(max_epsilon=limit, metric="balanced_accuracy", min_gain=0.005)
        assert decide([winner], None, policy, tuned, 1e-5).promote == promoted


def test_a_champion_needs_columns_that_no_search_changes(home: Home, small: Path) -> None:
    training_config = tuned_config(small, {"preprocess.numeric": ["minmax", "log"]}).model_dump(
        mode="json"
    )
    champion = {"data": "census"}
    with pytest.raises(
        InputError,
        match=r"no preprocess in training\.tune\.grid beside "
        r"champion\.data='census'",
    ):
        check_retraining(
            RetrainConfig.model_validate({"training": training_config, "champion": champion})
        )
    check_retraining(RetrainConfig.model_validate({"training": training_config}))
    training_config["tune"] = {"grid": GRID}
    check_retraining(
        RetrainConfig.model_validate({"training": training_config, "champion": champion})
    )
