"""A run planned again from its own configuration: honest runs of each kind pass, edited ones are
named.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.algorithms import registry
from dpcore.train import Planned, Result
from flows.cli import run
from flows.commands.audit import read
from tasks import training
from tasks.audit import Severity, Subject, audit
from tasks.audit.planned import ENCODER, PLANS, plan_again
from tasks.audit.recompute import price_of
from tasks.audit.rules_derived import _settings, asked
from tasks.audit.subject import CONFIG, MECHANISMS, STATEMENT
from tasks.config import parse_config
from tasks.home import Home
from tasks.kinds.base import Job
from tasks.ledger import Blocks, Ledger
from tasks.options import bounds, tune
from tasks.options.base import Run
from tasks.record import run as record_run
from tasks.record import sources
from tests.flows.small import SCHEMA, small_frame
from tests.tasks.release.runs import World

USERS = SCHEMA.replace("n: 300", "n: 100, rows_per_user: 3").replace(
    "columns:\n", "columns:\n  who: {{kind: user}}\n"
)
WEEKS = SCHEMA.replace("n: 300", "rows_per_block: 100").replace(
    "columns:\n", "columns:\n  day: {{kind: block}}\n"
)
OPEN = SCHEMA.replace("age: {{kind: numeric, low: 0, high: 100}}", "age: {{kind: numeric}}")
LISTS = """\
schema_version: 1
name: small
unit: session
ledger: {ledger}
public: {{n: 60}}
source: {{path: small.csv}}
columns:
  query: {{kind: id}}
  age: {{kind: numeric, low: 0, high: 100}}
label: {{column: grade, kind: relevance, low: 0, high: 2}}
split: {{kind: none}}
"""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "scaled_gd": (SCHEMA, {"algorithm": {"name": "scaled_gd"}}),
    "dp_sgd on batches": (
        SCHEMA,
        {"algorithm": {"name": "dp_sgd", "steps": 8, "sampling_rate": 0.1}},
    ),
    "noise that was given": (
        SCHEMA,
        {
            "algorithm": {"name": "dp_sgd", "steps": 8, "noise_multiplier": 90.0},
            "privacy": {"delta": 1e-4},
        },
    ),
    "discrete noise": (SCHEMA, {"privacy": {"delta": 1e-4, "noise": "discrete"}}),
    "users": (USERS + "unit: user\n", {}),
    "windows of blocks": (
        WEEKS + "block: {{column: day, by: week}}\n",
        {"data": {"blocks": ["2026-W02", "2026-W03"]}},
    ),
    "private bounds": (
        OPEN + "bounds: private\nbounds_share: 0.3\n",
        {"privacy": {"epsilon": 6.0, "delta": 1e-4}},
    ),
    "tuned": (
        SCHEMA,
        {
            "tune": {
                "grid": {"algorithm.learning_rate": [0.5, 4.0], "objective.l2": [None, 0.01]},
                "trials": {"distribution": "negative_binomial", "mean": 4},
            }
        },
    ),
    "tuned over columns": (
        SCHEMA,
        {
            "tune": {
                "grid": {
                    "preprocess.numeric": ["minmax", "hats(4)"],
                    "preprocess.normalise": ["cap", "unit"],
                },
                "trials": {"distribution": "negative_binomial", "mean": 4},
            }
        },
    ),
    "warm start": (
        SCHEMA,
        {"algorithm": {"name": "dp_sgd", "steps": 8, "start": [0.25, -0.5, 0.125, 1.0]}},
    ),
    "select": (
        SCHEMA,
        {"select": {"keep": 2, "share": 0.2}, "algorithm": {"name": "dp_sgd", "steps": 5}},
    ),
    "ranking": (
        LISTS,
        {
            "objective": {"loss": "listnet"},
            "privacy": {"delta": 1e-4, "adjacency": "replace_labels"},
            "algorithm": {"name": "auto"},
        },
    ),
}


def table() -> pd.DataFrame:
    """300 rows that any of the schemas describes."""
    rng = np.random.default_rng(7)
    frame = small_frame(rng)
    frame["who"] = [f"p{number % 100}" for number in range(300)]
    frame["day"] = np.repeat(["2026-01-05", "2026-01-14", "2026-01-20"], 100)
    return frame.assign(
        query=[f"q{number // 5}" for number in range(300)], grade=rng.integers(0, 3, 300)
    )


def committed(
    folder: Path, schema: str, sections: dict[str, Any], epsilon: float = 12.0
) -> Subject:
    """A run up to its commit, with made-up weights: what is planned does not depend on them."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    table().to_csv(folder / "small.csv", index=False)
    (folder / "small.yaml").write_text(schema.format(ledger=url) + "undeclared: ignore\n")
    values: dict[str, Any] = {
        "privacy": {"delta": 1e-4},
        "algorithm": {"name": "dp_sgd", "steps": 8},
        **sections,
    }
    data = {
        "name": str(folder / "small.yaml"),
        "path": str(folder / "small.csv"),
        **sections.get("data", {}),
    }
    job = training.prepare(parse_config(values | {"data": data}))
    with Ledger(url) as ledger:
        ledger.init(
            "small",
            epsilon,
            1e-4,
            str(job.problem.adjacency),
            job.problem.unit,
            blocks=Blocks.of(job.schema),
        )
        planned = training.fit_to_ledger(job, training.plan_training(job), ledger)
        with training.reserve_budget(job, planned, ledger) as reservation:
            if bounds.estimate_of(job) is not None:
                job, planned, _ = bounds.release_bounds(job, planned, reservation)
            reservation.on_charge()
            weights = np.zeros(job.problem.dimension)
            result = Result(weights, planned.events, [{"release": 1, "setting": 2}], [], 0.1)
            parts = any(
                name.startswith("preprocess.") for name in sections.get("tune", {}).get("grid", ())
            )
            # columns of a setting are its own
            loaded: Any = training.load_records(job) if parts else None
            sums: Any = training.build_objective(job, loaded) if parts else None
            built = tune.all_encoded(job) if parts else ()
            job, planned, _, _ = tune.selected(job, planned, result, loaded, sums, built)
            price = record_run.convert(planned)
            run = Run(job, planned, loaded, sums, sums, result=result, folder=folder / "run")
            record_run.commit(run, price, ledger, reservation)
    files = {name: (folder / "run" / name).read_bytes() for name in (CONFIG, STATEMENT, MECHANISMS)}
    model = {"encoder.json": (folder / "run" / "model" / "encoder.json").read_bytes()}
    return Subject("made", "FINISHED", True, files=files, model=model)


def ledger_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.db'}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_run_of_each_kind_is_as_planned(home: Home, tmp_path: Path, kind: str) -> None:
    subject = committed(tmp_path, *KINDS[kind])
    tmp_path.joinpath("small.csv").unlink()  # no file of the data is opened
    assert plan_again(subject, ledger_of(tmp_path)) == []


def changed(subject: Subject, name: str, change: Callable[[Any], Any]) -> Subject:
    """The run with a file changed, and all hashes that its statement holds computed again."""
    stored = json.loads(subject.files[name])
    change(stored)
    files = {**subject.files, name: json.dumps(stored, indent=1, sort_keys=True).encode()}
    statement = json.loads(files[STATEMENT])
    for key, of in (("config_sha256", CONFIG), ("mechanisms_sha256", MECHANISMS)):
        statement[key] = sha256(files[of]).hexdigest()
    return replace(subject, files={**files, STATEMENT: json.dumps(statement).encode()})


EDITS: dict[str, Callable[[Any], Any]] = {
    "steps": lambda c: c["algorithm"].update(steps=9),
    "clip": lambda c: c["algorithm"].update(clip_norm=0.5),
    "noise": lambda c: c["algorithm"].update(noise_multiplier=500.0),
    "sampling rate": lambda c: c["algorithm"].update(sampling_rate=0.1),
    "algorithm": lambda c: c["algorithm"].update(name="dp_adam"),
    "epsilon": lambda c: c["privacy"].update(epsilon=2.0),
    "delta": lambda c: c["privacy"].update(delta=1e-5),
    "conversion": lambda c: c["privacy"].update(conversion="mironov"),
    "adjacency": lambda c: c["privacy"].update(adjacency="replace_one"),
    "form of the noise": lambda c: c["privacy"].update(noise="discrete"),
    "ridge": lambda c: c["objective"].update(l2=0.5),
    "loss": lambda c: c["objective"].update(loss="huber_hinge"),
    "encoding": lambda c: c["preprocess"].update(numeric="hats(4)"),
    "no plan": lambda c: c["algorithm"].update(name="no such"),
}


@pytest.fixture(scope="module")
def subject(shared_world: World, trained: str) -> Subject:
    return read(shared_world.client, trained, shared_world.ledger_url)


def blocking(subject: Subject, world: World) -> list[str]:
    return [
        one.line()
        for one in plan_again(subject, world.ledger_url)
        if one.severity is Severity.BLOCK
    ]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_configuration_is_named(shared_world: World, subject: Subject, edit: str) -> None:
    assert plan_again(subject, shared_world.ledger_url) == []
    assert blocking(changed(subject, CONFIG, EDITS[edit]), shared_world)


def test_both_values_are_named(shared_world: World, subject: Subject) -> None:
    found = blocking(changed(subject, CONFIG, EDITS["steps"]), shared_world)
    assert any("training.parameters.steps is 9, stored is 8" in line for line in found), found


def test_other_mechanisms_and_promises_are_named(shared_world: World, subject: Subject) -> None:
    fewer = changed(subject, MECHANISMS, lambda m: m["order"][0].__setitem__(1, 4))
    assert any("mechanisms_not_as_planned" in line for line in blocking(fewer, shared_world))
    smaller = changed(subject, STATEMENT, lambda s: s["data"].update(dimension=3))
    assert any(
        "data.dimension is 4, stored is 3" in line for line in blocking(smaller, shared_world)
    )


def test_what_cannot_be_planned_is_a_note_and_other_versions_warn(
    shared_world: World, subject: Subject
) -> None:
    gone = changed(subject, CONFIG, lambda c: c["data"].update(name="gone.yaml"))
    [found] = plan_again(gone, shared_world.ledger_url)
    assert (found.code, found.severity) == (
        "not_planned_again",
        Severity.NOTE,
    ) and "gone.yaml" in found.what
    older = changed(subject, STATEMENT, lambda s: s["versions"].update(dpflows="0.0.1"))
    assert plan_again(older, shared_world.ledger_url) == []
    again = plan_again(changed(older, CONFIG, EDITS["steps"]), shared_world.ledger_url)
    assert again and {one.severity for one in again} == {Severity.WARN}


def by_other_rules(subject: Subject) -> Subject:
    return changed(subject, STATEMENT, lambda s: s["versions"].update(rules="0" * 16))


def test_a_run_planned_by_other_rules_is_a_warning(
    shared_world: World, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan cannot be made again; its price can."""
    assert plan_again(by_other_rules(subject), shared_world.ledger_url) == []

    def ruled(job: Job, *limits: Any) -> Planned:
        planned = training.plan_training(job, *limits)
        algorithm: Any = planned.algorithm
        return replace(planned, algorithm=replace(algorithm, learning_rate=9.0))

    monkeypatch.setattr("tasks.audit.planned.plan_training", ruled)
    [same] = plan_again(subject, shared_world.ledger_url)
    assert (same.code, same.severity) == ("not_as_planned", Severity.BLOCK)
    [other] = plan_again(by_other_rules(subject), shared_world.ledger_url)
    assert (other.code, other.severity) == ("planned_by_other_rules", Severity.WARN)
    assert "training.parameters.learning_rate is 9.0" in other.what


@pytest.mark.parametrize("edit", EDITS)
def test_who_claims_other_rules_gets_no_edit_through(
    shared_world: World, subject: Subject, edit: str
) -> None:
    found = by_other_rules(changed(subject, CONFIG, EDITS[edit]))
    named = [*plan_again(found, shared_world.ledger_url), *asked(found)]
    assert Severity.BLOCK in {one.severity for one in named}, [one.line() for one in named]


FORGED: dict[str, Callable[[Any], Any]] = {
    "fewer releases": lambda s: s["mechanisms"]["order"][0].__setitem__(1, 4),
    "smaller epsilon": lambda s: s["guarantee"].update(epsilon=0.1),
    "larger epsilon": lambda s: s["guarantee"].update(epsilon=9.0, target_epsilon=9.0),
    "more records": lambda s: s["data"].update(public_n=s["data"]["public_n"] * 10),
    "another relation": lambda s: s["guarantee"].update(adjacency="replace_one"),
    "another data set": lambda s: s["data"].update(name="other"),
    "other blocks": lambda s: s["ledger"].update(blocks=["2026"]),
}


@pytest.mark.parametrize("forged", FORGED)
def test_who_claims_other_rules_gets_no_wrong_number_through(
    shared_world: World, subject: Subject, forged: str
) -> None:
    found = by_other_rules(changed(subject, STATEMENT, FORGED[forged]))
    assert found.statement is not None
    named = [
        *plan_again(found, shared_world.ledger_url),
        *asked(found),
        *price_of(found.statement),
    ]
    assert Severity.BLOCK in {one.severity for one in named}, [one.line() for one in named]


def test_bounds_that_were_changed_since_block_by_whatever_rules(home: Home, tmp_path: Path) -> None:
    found = committed(tmp_path, *KINDS["scaled_gd"])
    schema = tmp_path / "small.yaml"
    schema.write_text(schema.read_text().replace("high: 100", "high: 50"))
    [one] = plan_again(by_other_rules(found), ledger_of(tmp_path))
    assert (one.code, one.severity) == ("encoder_not_as_planned", Severity.BLOCK)


@pytest.mark.parametrize("more", [{}, {"dtype": "float32"}])
def test_what_rules_decide_hides_nothing_that_was_declared(
    shared_world: World, subject: Subject, more: dict[str, str]
) -> None:
    encoder = json.loads(subject.model[ENCODER])
    encoder |= {"intercept": not encoder["intercept"], **more}
    forged = replace(subject, model={**subject.model, ENCODER: json.dumps(encoder).encode()})
    found = plan_again(by_other_rules(forged), shared_world.ledger_url)
    assert ("encoder.intercept", Severity.BLOCK) in {(one.subject, one.severity) for one in found}


def test_runs_before_the_rules_were_stated_have_the_list_of_their_code(
    shared_world: World, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = changed(subject, STATEMENT, lambda s: s["versions"].pop("rules"))
    edited = changed(before, CONFIG, lambda c: c["algorithm"].update(steps=9))

    def severities(found: Subject) -> set[Severity]:
        return {one.severity for one in plan_again(found, shared_world.ledger_url)}

    assert severities(edited) == {Severity.BLOCK}
    other = changed(edited, sources.INVENTORY, lambda s: s["files"].update({PLANS: "0" * 64}))
    assert severities(other) == {Severity.WARN}
    none = changed(edited, sources.INVENTORY, lambda s: s.update(files={}))
    assert severities(none) == {Severity.BLOCK}


EDITED_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuned over columns": lambda c: c["tune"]["grid"].update(
        {"preprocess.numeric": ["minmax", "hats(8)"]}
    ),
    "warm start": lambda c: c["algorithm"].update(start=[0.25, -0.5, 0.125, 2.0]),
}


@pytest.mark.filterwarnings("ignore:pace of 'output_gd' is called:DeprecationWarning")
@pytest.mark.parametrize("configured", ["pace", "step_rule"])
@pytest.mark.parametrize("stated", ["pace", "step_rule"])
def test_a_parameter_that_got_another_name_is_the_same_one(
    home: Home, tmp_path: Path, configured: str, stated: str
) -> None:
    """Runs that were stored before have the old name, in configuration or statement."""
    sections = {
        "privacy": {"delta": 1e-4, "adjacency": "replace_one"},
        "algorithm": {"name": "output_gd", configured: "paper"},
    }
    run = committed(tmp_path, SCHEMA, sections)

    def renamed(statement: Any) -> None:
        parameters = statement["training"]["parameters"]
        parameters[stated] = parameters.pop("step_rule")

    run = changed(run, STATEMENT, renamed)
    assert [*plan_again(run, ledger_of(tmp_path)), *asked(run)] == []
    found = changed(
        run, STATEMENT, lambda s: s["training"]["parameters"].update({stated: "horizon"})
    )
    assert {one.code for one in plan_again(found, ledger_of(tmp_path))} == {"not_as_planned"}
    assert {one.code for one in asked(found)} == {"not_as_configured"}


@pytest.mark.parametrize("kind", EDITED_KINDS)
def test_a_changed_search_over_columns_or_start_is_named(
    home: Home, tmp_path: Path, kind: str
) -> None:
    subject = committed(tmp_path, *KINDS[kind])
    found = plan_again(changed(subject, CONFIG, EDITED_KINDS[kind]), ledger_of(tmp_path))
    assert found and {one.severity for one in found} == {Severity.BLOCK}


def test_a_release_says_what_it_could_not_plan_again(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note does not stop it, and nobody can miss it."""
    run_id = world.train()
    monkeypatch.setattr("tasks.audit.planned.software", lambda: {"dpflows": "99.0"})
    monkeypatch.setattr(
        "tasks.audit.planned.plan_training", lambda *_: (_ for _ in ()).throw(ImportError("torch"))
    )
    release = [
        "release",
        run_id,
        "--to",
        "with a note",
        "--approved-by",
        "A. Person",
        "--key",
        str(key),
    ]
    assert run(release) == 0
    assert "not_planned_again" in capsys.readouterr().out.replace("\n", "")
    assert run([*release, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert len(notes) == 1 and "not_planned_again" in notes[0] and "torch" in notes[0]


def test_a_schema_that_became_another_is_named(home: Home, tmp_path: Path) -> None:
    subject = committed(tmp_path, *KINDS["users"])
    path = tmp_path / "small.yaml"
    path.write_text(path.read_text().replace("n: 100", "n: 90"))
    assert "data.public_n is 90, stored is 100" in " ".join(
        one.line() for one in plan_again(subject, ledger_of(tmp_path))
    )
    path.write_text(
        path.read_text()
        .replace("n: 90", "n: 100")
        .replace("{kind: user}", "{kind: user, missing: [p1]}")
    )
    assert "not_plannable" in {one.code for one in plan_again(subject, ledger_of(tmp_path))}


def test_more_noise_is_right_where_the_budget_was_used_up(home: Home, tmp_path: Path) -> None:
    subject = committed(tmp_path, SCHEMA, {"privacy": {"epsilon": 1.0, "delta": 1e-4}}, epsilon=1.0)
    assert {one.severity for one in plan_again(subject, ledger_of(tmp_path))} == {Severity.NOTE}


def test_the_commands_plan_again(
    shared_world: World, trained: str, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = shared_world.folder / "small.yaml"
    text = schema.read_text()
    release = [
        "release",
        trained,
        "--to",
        "planned again",
        "--approved-by",
        "A. Person",
        "--key",
        str(key),
    ]
    try:
        schema.write_text(text.replace("n: 300", "n: 299"))
        assert run(["audit", trained]) == 0
        assert run([*release, "--ledger", shared_world.ledger_url]) == 4
        assert "not_as_planned" in capsys.readouterr().err
    finally:
        schema.write_text(text)
    assert run(["audit", trained, "--replan", "--ledger", shared_world.ledger_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize("name", ["dp_gd", "DP-SGD", "SGD-MA"])
def test_a_run_under_a_papers_name_audits_as_under_ours(shared_world: World, name: str) -> None:
    settings = {"name": name, "steps": 3, "sampling_rate": 1.0}
    run_id = shared_world.train(shared_world.config(algorithm=settings))
    report = audit(read(shared_world.client, run_id, shared_world.ledger_url))
    assert not report.blocked, [finding.line() for finding in report.findings]


def test_every_alias_is_asked_for_what_it_stands_for() -> None:
    assert registry.aliases
    for alias, name in registry.aliases.items():
        for spelled in (alias, alias.upper().replace("_", "-")):
            given, stated = _settings({"name": spelled}, {}, name)["algorithm.name"]
            assert given == stated
    assert _settings({"name": "dp_gd"}, {}, "nsgd")["algorithm.name"] == ("dp_sgd", "nsgd")
