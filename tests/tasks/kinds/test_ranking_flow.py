"""A private ranking from LETOR files to a stored model that ranks by query, and what is refused
before that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import AssumptionNotMet, InputError
from dpcore.ranking.metrics import NAMED, Conventions
from dpcore.ranking.sessions import Documents, Sessions
from dpcore.ranking.synthetic import search
from flows.cli import run
from tasks import training
from tasks.config import TrainConfig, load_config, parse_config
from tasks.home import Home
from tasks.kinds import base, sessions
from tasks.ledger import Ledger
from tasks.record import model, stored, tracking
from tasks.record.statement import Statement
from tasks.record.wording import to_markdown
from tasks.release.manifest import kind_of, purpose

SCHEMA = """\
schema_version: 1
name: lists
ledger: {ledger}
unit: session
public: {{n: 120}}
source: {{format: letor, path: train.txt}}
features: [{{name: feature, count: 6}}]
label: {{column: grade, kind: relevance, low: 0, high: 2}}
split: {{kind: file, path: test.txt}}
"""
USED = ("feature_1", "feature_3", "feature_9", "feature_11", "feature_15", "feature_20")


def write_letor(path: Path, table: pd.DataFrame) -> None:
    """Documents as LETOR lines."""
    lines = [
        f"{row.grade:.0f} qid:{row.query} "
        + " ".join(f"{i}:{getattr(row, name):g}" for i, name in enumerate(USED, 1))
        for row in table.itertuples()
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """Private sessions in two LETOR files with their schema: 120 to train on, 40 to test on."""
    table = pd.DataFrame(search(160, seed=5))
    write_letor(tmp_path / "train.txt", table[table["query"] < 120])
    write_letor(tmp_path / "test.txt", table[table["query"] >= 120])
    (tmp_path / "lists.yaml").write_text(
        SCHEMA.format(ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    )
    return tmp_path / "lists.yaml"


def config_of(lists: Path, **sections: dict[str, object]) -> TrainConfig:
    values: dict[str, Any] = {
        "data": {"name": str(lists), "path": str(lists.parent)},
        "objective": {"loss": "listnet"},
        "privacy": {"epsilon": 4.0, "delta": 1e-4, "adjacency": "replace_labels"},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return parse_config(values)


def fitted(config: TrainConfig) -> tuple[base.Job, np.ndarray, dict[str, float]]:
    """Plan, load, fit and measure without flow or ledger."""

    class Free:
        def on_charge(self) -> None:
            """Nothing is counted."""

    job = training.prepare(config)
    planned = training.plan_training(job)
    loaded = training.load_records(job)
    sums = training.build_objective(job, loaded)
    result = training.fit_model(job, planned, sums, Free())  # type: ignore[arg-type]
    return job, result.weights, training.measure(job, result.weights, loaded, sums)


def test_flow_leaves_a_stated_ranking_with_curves_and_a_model_by_query(
    server: str, home: Home, lists: Path
) -> None:
    from flows.commands.predict import read_table
    from flows.terminal import summary_rows
    from flows.train import train

    ledger = Ledger(f"sqlite:///{lists.parent / 'ledger.db'}")
    ledger.init("lists", 8.0, 1e-3, "replace_labels", "session_labels")
    config = config_of(
        lists,
        objective={"loss": "bayesrank", "loss_parameters": {"k": 1, "target": "simplex"}},
        algorithm={"name": "privbr", "steps": 5},
        tracking={"experiment": "ranking"},
        ranking={"conventions": "trec_eval", "at": [1, 3], "map_at": [2]},
    )
    summary = train(config)
    assert (summary["unit"], summary["adjacency"], summary["n_kind"]) == (
        "session_labels",
        "replace_labels",
        "exact",
    )
    assert summary["released"] == {} and summary["conventions"]["empty"] == "zero"
    assert summary["internal"]["map"] > summary["internal"]["random_map"] + 0.05
    assert {"ndcg_at_1", "ndcg_at_3", "best_feature_map", "non_private_ndcg_at_3"} <= set(
        summary["internal"]
    )
    table = dict(summary_rows(summary))
    assert "random order" in table["MAP (internal)"] and {
        "NDCG@3 (internal)",
        "MAP@2 (internal)",
    } <= set(table)
    assert (
        "without a relevant document (those: zero; ties: average"
        in table["metrics over (internal)"]
    )
    ledger.verify()

    client = tracking.tracking_client(home)
    curve = client.get_metric_history(summary["run_id"], "internal.curve.map")
    assert [point.step for point in curve] == [0, 1, 2, 3, 4, 5]
    assert curve[-1].value == pytest.approx(summary["internal"]["map"])
    params = client.get_run(summary["run_id"]).data.params
    assert (params["ranking.empty"], params["ranking.at"], params["ranking.gain"]) == (
        "zero",
        "1,3",
        "linear",
    )
    folder = Path(client.download_artifacts(summary["run_id"], ""))
    report = json.loads((folder / "report/ranking.json").read_text())
    assert (
        report["internal"] is True
        and report["metrics"]["random"]["map"] == summary["internal"]["random_map"]
    )
    assert (folder / "figures/ranking/map.png").is_file() and (
        folder / "figures/ranking/ndcg_at_3.png"
    ).is_file()
    page = (folder / "report/report.html").read_text()
    assert (
        "MAP over the iterations" in page
        and "random order" in page
        and "the labels of one session" in page
    )
    statement = Statement.model_validate_json((folder / "privacy/statement.json").read_text())
    assert statement.releasable and any(
        "labels of one session" in text for text in statement.limits
    )
    assert any("as trec_eval takes them do not compare" in text for text in statement.limits)
    assert "session" in to_markdown(statement)

    loaded = stored.load_model(summary["model"])
    scorer = loaded.unwrap_python_model()
    assert kind_of(scorer.card) == "linear" and "ranks the documents of one query" in purpose(
        scorer.card["label"]
    )
    documents = read_table(lists.parent / "test.txt", scorer.encoder, scorer.card)
    scored = loaded.predict(documents)
    assert list(scored.columns) == ["query", "score", "rank"]
    for _, part in scored.groupby("query"):
        assert sorted(part["rank"]) == list(range(1, len(part) + 1))
        assert part.sort_values("rank")["score"].is_monotonic_decreasing
    mixed = documents.sample(frac=1.0, random_state=0)
    pd.testing.assert_series_equal(
        loaded.predict(mixed)["score"].sort_index(), scored["score"], atol=1e-12
    )


def test_scores_of_the_stored_model_are_those_that_were_measured(
    lists: Path, tmp_path: Path
) -> None:
    from tasks.record.scoring import LinearScorer

    config = config_of(
        lists,
        ranking={"scorer": "mlp", "hidden": [4], "activation": "tanh"},
        algorithm={"steps": 3},
    )
    job, weights, _ = fitted(config)
    assert job.model is not None
    model.save_model(
        tmp_path / "m", weights, job.encoder, job.schema, "listnet", {"ranker": asdict(job.model)}
    )

    scorer = LinearScorer()
    scorer.load_context(SimpleNamespace(artifacts={"model": str(tmp_path / "m")}))  # type: ignore[arg-type]
    test = training.load_records(job).open().test
    assert isinstance(test, Sessions)
    frame = pd.DataFrame(test.documents.X, columns=[f"feature{i}" for i in range(1, 7)])
    frame["query"] = np.repeat(test.queries, test.documents.lengths)
    scored = scorer.predict(None, frame)  # type: ignore[arg-type]
    alone = Documents(test.documents.X, test.documents.offsets)
    np.testing.assert_allclose(
        scored["score"], job.model.scores(weights, alone), rtol=0, atol=1e-12
    )
    with pytest.raises(InputError, match="column 'query'"):
        scorer.predict(None, frame.drop(columns="query"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("adjacency", "unit", "algorithm"),
    [("replace_labels", "session_labels", "listnet_one_shot"), ("add_remove", "session", "dp_sgd")],
)
def test_built_in_sessions_are_public_and_beat_the_best_feature(
    adjacency: str, unit: str, algorithm: str
) -> None:
    config = load_config(
        None, ["data.name=search", "objective.loss=listnet", f"privacy.adjacency={adjacency}"]
    )
    job, _, found = fitted(config)
    assert (job.problem.unit, training.plan_training(job).name) == (unit, algorithm)
    assert found["released.map"] == found["internal.map"] > found["internal.best_feature_map"]
    assert found["internal.best_feature_map"] > found["internal.random_map"] + 0.1
    assert found["internal.sessions_test"] > found["internal.sessions_empty"] > 0


@pytest.mark.parametrize("name", ["ranking", "mq2008", "mq2007"])
def test_configurations_of_the_package_are_planned_without_a_file(name: str) -> None:
    root = Path(__file__).resolve().parents[3]
    job = training.prepare(load_config(str(root / "conf" / f"{name}.yaml")))
    planned = training.plan_training(job)
    assert planned.name == "listnet_one_shot" and planned.spent_epsilon <= 1.0
    assert job.problem.documents is None


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"objective": {"loss": "logistic"}}, "for a label of kind relevance, got 'logistic'"),
        (
            {"objective": {"loss_parameters": {"target": "simplex"}}},
            "parameters that loss 'listnet' has",
        ),
        ({"data": {"blocks": ["a"]}}, "no data.blocks for sessions"),
        (
            {"algorithm": {"name": "sgd_adv"}, "privacy": {"adjacency": "replace_one"}},
            "kind='ranking'; use dp_sgd",
        ),
        (
            {"algorithm": {"name": "dp_agd"}, "privacy": {"adjacency": "add_remove"}},
            "kind='ranking'; use dp_sgd",
        ),
        ({"algorithm": {"name": "privbr"}, "privacy": {"adjacency": "add_remove"}}, "adjacency"),
        ({"ranking": {"empti": "skip"}}, "did you mean 'ranking.empty'"),
        ({"ranking": {"at": [0]}}, "a number >= 1 for ranking.at"),
        ({"ranking": {"features": []}}, "features among raw, rank"),
    ],
)
def test_misfits_are_refused_from_public_facts(
    lists: Path, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises((InputError, AssumptionNotMet)) as raised:
        training.plan_training(training.prepare(config_of(lists, **sections)))
    assert words in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"conventions": "letor"}, NAMED["letor"]),
        ({"conventions": "trec_eval"}, NAMED["trec_eval"]),
        ({"conventions": "letor", "short": "keep"}, replace(NAMED["letor"], short="keep")),
        (
            {"discount": "letor", "divisor": "relevant", "gain": "linear"},
            Conventions(discount="letor", divisor="relevant", gain="linear"),
        ),
        ({}, Conventions()),
    ],
)
def test_a_configuration_names_the_conventions_of_its_metrics(
    lists: Path, section: dict[str, Any], expected: Conventions
) -> None:
    config = config_of(lists, ranking=section)
    assert sessions.conventions(config) == expected
    assert bool(sessions.limits(config)) == (expected != Conventions())
    again = config_of(lists, ranking=config.model_dump(mode="json")["ranking"])
    assert sessions.conventions(again) == expected


def test_conventions_of_the_source_go_with_its_preset(lists: Path) -> None:
    assert (
        sessions.conventions(config_of(lists)).empty,
        sessions.conventions(config_of(lists)).divisor,
    ) == (
        "skip",
        "min_k",
    )
    paper = config_of(lists, algorithm={"name": "privbr", "preset": "paper"})
    assert (sessions.conventions(paper).empty, sessions.conventions(paper).divisor) == (
        "zero",
        "retrieved",
    )
    named = config_of(
        lists, algorithm={"name": "privbr", "preset": "paper"}, ranking={"conventions": "letor"}
    )
    assert sessions.conventions(named) == NAMED["letor"]


@pytest.mark.parametrize(
    ("adjacency", "unit"), [("replace_labels", "session_labels"), ("replace_one", "session")]
)
def test_a_budget_of_sessions_has_the_unit_of_its_adjacency(
    adjacency: str, unit: str, home: Home, lists: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--epsilon", "2", "--delta", "1e-3", "--adjacency", adjacency, "--json"]
    assert run(["ledger", "init", str(lists), *asked]) == 0
    assert unit in capsys.readouterr().out
    assert Ledger(f"sqlite:///{lists.parent / 'ledger.db'}").dataset("lists").unit == unit


def test_a_ranking_section_needs_ranking_data() -> None:
    with pytest.raises(InputError, match="no section ranking for data set 'census'"):
        training.prepare(load_config(None, ["data.name=census", "ranking.scorer=linear"]))


def test_a_wrong_number_of_sessions_is_refused_before_anything_is_reserved(lists: Path) -> None:
    lists.write_text(lists.read_text().replace("n: 120", "n: 119"))
    job = training.prepare(config_of(lists))
    with pytest.raises(InputError, match="exactly n=119 records under replace_labels"):
        training.build_objective(job, training.load_records(job))
