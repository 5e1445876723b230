"""Tuned runs from table to released bundle: what stands in MLflow, statement and ledger, and what
must not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpcore.mechanisms.repeated import Repeated
from dpcore.train import Planned
from flows.cli import run
from flows.commands.audit import read
from flows.terminal import summary_rows
from tasks import training
from tasks.audit import audit
from tasks.audit.recompute import agrees, independent_epsilon
from tasks.config import TrainConfig
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.record import statement, tracking
from tasks.record.statement import Statement
from tasks.release.trials import charged
from tests.flows.test_flow import records
from tests.tasks.options.test_tune_section import tuned_config
from tests.tasks.release.runs import World

TRIALS = 9973
NUMBER = re.compile(rf"(?<![\w.]){TRIALS}(\.0)?(?![\w.])")


def few_but_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim ``TRIALS`` trials and run the first three: whoever writes the number down writes this
    one.
    """

    def release(self: Repeated, value: Any, rng: Any) -> Any:
        trials = self.draw(rng)
        return max((value(rng) for _ in range(min(trials, 3))), key=lambda one: one[0])[1]

    monkeypatch.setattr(Repeated, "draw", lambda self, rng: TRIALS)
    monkeypatch.setattr(Repeated, "release", release)


def texts(client: Any, run_id: str) -> dict[str, str]:
    """Everything that a run of MLflow shows, as text by name."""
    found = client.get_run(run_id)
    folder = Path(client.download_artifacts(run_id, ""))
    files = {
        str(p.relative_to(folder)): p.read_bytes().decode(errors="replace")
        for p in folder.rglob("*")
        if p.is_file()
    }
    values = {
        **found.data.params,
        **found.data.tags,
        **{k: repr(v) for k, v in found.data.metrics.items()},
    }
    return {**files, **values}


def settings_of(world: World, grid: dict[str, Any] | None = None, **sections: Any) -> TrainConfig:
    return tuned_config(world.folder / "small.yaml", grid, **sections)


def statement_of(client: Any, run_id: str) -> Statement:
    path = client.download_artifacts(run_id, "privacy/statement.json")
    return Statement.model_validate_json(Path(path).read_text())


def test_flow_from_table_to_stored_model(
    server: str, home: Home, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.train import train

    few_but_many(monkeypatch)
    with Ledger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        ledger.init("small", 3.0, 1e-4, "add_remove")
        release = {"metric": "accuracy", "epsilon": 0.1}
        config = tuned_config(
            small, tracking={"experiment": "tuned"}, evaluate={"release": release}
        )
        summary = train(config)
        entries = charged(ledger, "small")
        ledger.verify()
    assert [[item.kind for item in entry.events] for entry in entries] == [
        ["repeat_negative_binomial"],
        ["laplace"],
    ]
    assert 0.999 < summary["epsilon_spent"] <= 1.0
    assert set(summary["released"]) == {"accuracy"}
    search = summary["parameters"]["tuning"]
    assert search["selected"]["algorithm.learning_rate"] == summary["parameters"]["learning_rate"]
    client = tracking.tracking_client(home)
    shown = texts(client, summary["run_id"])
    assert not [name for name, text in shown.items() if NUMBER.search(text)]
    assert not NUMBER.search(json.dumps(summary))
    bodies = [json.loads(record.body) for record in records(ledger)]
    assert not NUMBER.search(json.dumps(bodies)) and [
        body["draws"] for body in bodies if "draws" in body
    ] == [1, 1]
    found = client.get_run(summary["run_id"]).data
    assert {name for name in found.metrics if "second" in name} == {"internal.fit_seconds"}
    assert [p.value for p in client.get_metric_history(summary["run_id"], "spent.epsilon")] == [
        summary["epsilon_spent"]
    ]
    rows = dict(summary_rows(summary))
    assert "of 4 settings, within epsilon" in rows["selected"]
    assert found.params["objective.l2"] == str(search["selected"]["objective.l2"] or 0.0)


@pytest.fixture(scope="session")
def tuned_run(shared_world: World) -> str:
    """The id of a finished tuned run; nothing of it may be changed."""
    return shared_world.train(settings_of(shared_world))


def test_statement_says_how_the_setting_was_found(shared_world: World, tuned_run: str) -> None:
    stated = statement_of(shared_world.client, tuned_run)
    said = (
        "Hyper-parameters were selected with a random number of trials; the number is not released"
    )
    assert sum(said in text for text in stated.limits) == 1
    assert not [text for text in stated.limits if "choosing them by looking" in text]
    search = stated.training.parameters["tuning"]
    assert stated.training.l2 == (search["selected"]["objective.l2"] or 0.0)
    assert any("nothing of other trials" in text for text in stated.released)
    assert "Papernot & Steinke (2022)" in stated.sensitivity and "Abadi" in stated.sensitivity
    assert stated.noise.startswith("rounded") and stated.samplers == ["full_batch"]
    words = Path(
        shared_world.client.download_artifacts(tuned_run, "privacy/statement.md")
    ).read_text()
    assert "1 x repeat_negative_binomial" in words and "gaussian (" in words


def test_the_selected_encoding_is_stored_with_the_model(shared_world: World) -> None:
    run_id = shared_world.train(
        settings_of(shared_world, {"preprocess.numeric": ["hats(4)", "hats(8)"]})
    )
    subject = read(shared_world.client, run_id, shared_world.ledger_url)
    stated = subject.statement
    assert stated is not None and not audit(subject).blocked
    numeric = stated.training.parameters["tuning"]["selected"]["preprocess.numeric"]
    assert json.loads(subject.model["encoder.json"])["numeric"] == numeric
    assert stated.data.dimension == {"hats(4)": 7, "hats(8)": 11}[numeric]
    assert subject.param("preprocess.numeric") == numeric
    assert "internal.accuracy" in subject.metrics


def test_audit_finds_nothing_in_a_tuned_run(shared_world: World, tuned_run: str) -> None:
    report = audit(read(shared_world.client, tuned_run, shared_world.ledger_url))
    assert not report.blocked, report.codes
    assert "price_not_independent" not in {finding.code for finding in report.findings}


def plan_of(world: World, **sections: Any) -> Planned:
    return training.plan_training(training.prepare(settings_of(world, **sections)))


def test_exact_noise_is_named(shared_world: World) -> None:
    planned = plan_of(shared_world, privacy={"noise": "discrete", "delta": 1e-4})
    assert statement.noise_form(json.loads(planned.events.to_json())).startswith("discrete")


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({}, 1e-6),
        ({"tune": {"trials": {"distribution": "poisson", "mean": 4}}}, 1e-6),
        ({"tune": {"trials": {"mean": 4}, "grid": {"algorithm.steps": [4, 8]}}}, 1e-6),
        ({"tune": {"trials": {"mean": 4}}, "algorithm": {"sampling_rate": 0.2}}, None),
        ({"algorithm": {"sampling_rate": 0.2}}, 1e-6),
        ({"privacy": {"adjacency": "replace_one", "delta": 1e-4}}, 1e-6),
        ({"grid": {"algorithm.steps": [4, 8]}}, None),
    ],
)
def test_other_code_prices_a_search_whose_settings_cost_the_same(
    shared_world: World, sections: dict[str, Any], precision: float | None
) -> None:
    planned = plan_of(shared_world, **sections)
    stated: Any = SimpleNamespace(
        guarantee=statement.guarantee(planned), renyi=statement.renyi(planned)
    )
    found = independent_epsilon(planned.events, stated)
    assert (found is None) is (precision is None)
    if found is not None:
        assert found[2] == pytest.approx(found[1], rel=precision)
        assert agrees(*found, planned.events)
        assert not agrees(found[0], found[1], found[2] * 1.1, planned.events)
        assert not agrees(found[0], found[1], found[2] * 0.9, planned.events)


@pytest.mark.parametrize("field", ["gamma", "eta", "counts", "sigma"])
def test_a_changed_search_is_seen(shared_world: World, tuned_run: str, field: str) -> None:
    """The audit of a statement whose law or trials were made cheaper."""
    subject = read(shared_world.client, tuned_run, shared_world.ledger_url)
    stored = json.loads(subject.files["privacy/statement.json"])
    [law] = stored["mechanisms"]["mechanisms"]
    cheaper = {"gamma": 0.9, "eta": -0.4}
    if field in cheaper:
        law[field] = cheaper[field]
    elif field == "counts":
        law["trials"][0]["counts"] = [1, 1]
    else:
        law["trials"][0]["mechanisms"][0]["sigma"] *= 2
    files = {**subject.files, "privacy/statement.json": json.dumps(stored).encode()}
    report = audit(
        type(subject)(**{**{n: getattr(subject, n) for n in subject.__slots__}, "files": files})
    )
    assert {"epsilon_recomputed", "statement_changed"} <= report.codes


@pytest.mark.slow
def test_release_gate_takes_a_tuned_run_as_one_and_a_sweep_as_many(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Case 12: a search with a named theorem costs its own epsilon; runs beside it are charged all
    the same.
    """
    policy = tmp_path / "policy.yaml"
    policy.write_text("max_epsilon: 1.1\n")
    tuned = world.train(settings_of(world))

    def gate(run_id: str) -> tuple[int, Any]:
        options = [
            "--to",
            "searched",
            "--approved-by",
            "A. Person",
            "--key",
            str(key),
            "--policy",
            str(policy),
        ]
        code = run(["release", run_id, *options, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if code == 0 else said.err

    code, answer = gate(tuned)
    assert code == 0, answer
    assert answer["epsilon"] == pytest.approx(1.0, abs=1e-3)
    assert (
        run(["verify", answer["bundle"], "--key", answer["signer"], "--expect", "searched@1"]) == 0
    )
    capsys.readouterr()
    bundle = Path(answer["bundle"])
    assert len(json.loads((bundle / "privacy/tuning.json").read_text())["trials"]) == 1
    world.train(settings_of(world))
    code, said = gate(world.train(settings_of(world)))
    assert code == 4 and "> 1.1 that the policy allows" in said


def test_a_plan_of_a_tuned_training_is_made_once(shared_world: World) -> None:
    assert plan_of(shared_world) is plan_of(shared_world)
