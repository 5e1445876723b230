"""A kind of model is one file and one entry of ``KINDS``: a toy one is registered, trained, tracked
and audited.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import InputError
from tasks import kinds, training
from tasks.audit.mlflow_run import read_run
from tasks.audit.rules_derived import NAME_RULES
from tasks.audit.rules_model import derived
from tasks.compare import parse_compare, resume
from tasks.compare.batch import batches_of, run_batch
from tasks.config import TrainConfig, parse_config
from tasks.home import Home
from tasks.kinds import base
from tasks.ledger import Ledger
from tasks.record import tracking
from tasks.record.example import fault
from tasks.record.model import OWN_SCORES
from tasks.record.stored import load_model
from tests.tasks.compare.test_engine import bench_of
from tests.tasks.kinds.sides import Sides

ROOT = Path(__file__).resolve().parents[3]
ROWS = 400
SCHEMA = """\
schema_version: 1
name: prices
ledger: {ledger}
public: {{n: 400}}
source: {{path: prices.csv}}
columns: {{area: {{kind: numeric, low: 0, high: 100}}, town: {{kind: categorical, levels: [a, b]}}}}
label: {{column: price, kind: regression, low: 0, high: 1000}}
split: {{kind: none}}
"""


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """A private table whose label follows the area, its schema, and a ledger with room for one
    run.
    """
    rng = np.random.default_rng(5)
    area = rng.uniform(0, 100, ROWS)
    price = np.clip(10 * area + rng.normal(scale=30, size=ROWS), 0, 1000)
    pd.DataFrame({"area": area, "town": rng.choice(["a", "b"], ROWS), "price": price}).to_csv(
        tmp_path / "prices.csv", index=False
    )
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    (tmp_path / "prices.yaml").write_text(SCHEMA.format(ledger=ledger))
    Ledger(ledger).init("prices", 4.0, 1e-4, "add_remove")
    return tmp_path / "prices.yaml"


def config_of(prices: Path) -> TrainConfig:
    return parse_config(
        {
            "data": {"name": str(prices), "path": str(prices.parent)},
            "privacy": {"epsilon": 3.0, "delta": 1e-4},
            "algorithm": {"name": "dp_sgd", "steps": 40, "learning_rate": 8.0, "clip_norm": 1.0},
            "evaluate": {"subgroup": "town", "subgroup_least": 10},
            "tracking": {"experiment": "sides"},
        }
    )


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", (Sides(), *kinds.KINDS))


def test_without_its_entry_no_kind_takes_the_configuration(prices: Path) -> None:
    with pytest.raises(InputError, match="use squared or huber_regression"):
        training.prepare(config_of(prices))


class Free:
    def on_charge(self) -> None:
        """Nothing is counted."""


def test_one_evaluation_serves_a_kind_that_it_never_saw(
    prices: Path, tmp_path: Path, registered: None
) -> None:
    job = training.prepare(config_of(prices))
    assert (job.kind.name, job.model, job.problem.loss.name) == ("sides", 0.0, "logistic")
    planned, loaded = training.plan_training(job), training.load_records(job)
    sums, seen = training.build_objective(job, loaded), base.Sealed(job.kind.iterates(job, planned))
    weights = training.fit_model(job, planned, sums, Free(), observers=[seen]).weights  # type: ignore[arg-type]
    found = training.measure(job, weights, loaded, sums, tmp_path, seen)
    towns = [f"subgroup.{town}.{value}" for town in "ab" for value in ("right_side", "rows")]
    expected = ("right_side", "majority_right_side", *towns, "rows_above")
    assert set(found) == {f"internal.{name}" for name in expected}
    page = json.loads((tmp_path / "report/sides.json").read_text())
    assert page["internal"] and page["metrics"] == found
    assert page["curve"][-1] == {"iteration": 40, "right_side": found["internal.right_side"]}
    assert json.loads((tmp_path / "report/subgroups.json").read_text())["metric"] == "right_side"


def test_a_toy_kind_trains_end_to_end(
    server: str, home: Home, prices: Path, registered: None
) -> None:
    from flows.train import train

    summary = train(config_of(prices))

    assert summary["epsilon_spent"] <= 3.0 and summary["conventions"] == {"middle": 0.0}
    found = summary["internal"]
    assert found["right_side"] > 0.8 > found["majority_right_side"]
    assert found["subgroup.a.right_side"] > 0.7 and 150 < found["rows_above"] < 250
    assert summary["released"] == {}
    client = tracking.tracking_client(home)
    folder = Path(client.download_artifacts(summary["run_id"], ""))
    page = json.loads((folder / "report/sides.json").read_text())
    assert page["internal"] and page["metrics"]["internal.right_side"] == found["right_side"]
    assert page["curve"][0]["iteration"] == 0 and page["curve"][-1] == {
        "iteration": 40,
        "right_side": found["right_side"],
    }
    assert (folder / "figures/sides/right_side.png").is_file()
    assert (
        "it tells sides of the middle, no values"
        in json.loads((folder / "privacy/statement.json").read_text())["limits"]
    )
    run = client.get_run(summary["run_id"])
    assert run.data.params["sides.middle"] == "0.0"
    assert len(client.get_metric_history(summary["run_id"], "internal.curve.right_side")) == len(
        page["curve"]
    )
    loaded = load_model(summary["model"])
    scored = loaded.predict(pd.DataFrame({"area": [5.0, 95.0], "town": ["a", "a"]}))
    assert list(scored) == ["side", "chance", "score"]
    assert scored["side"].tolist() == ["below 0", "above 0"]
    assert scored["chance"][0] < 0.5 < scored["chance"][1]
    assert loaded.metadata.get_output_schema().input_names() == list(scored)
    subject = read_run(client, summary["run_id"])
    assert json.loads(subject.model["model.json"])["sides"] == {"middle": 0.0}
    assert [finding for rule in NAME_RULES for finding in rule(subject)] == []
    assert [one.name for one in derived(subject)] == []
    # What is stored as code runs where MLflow loads a model, and nowhere else.
    assert subject.model[OWN_SCORES] == Sides.scores.read_bytes()
    assert fault({**subject.model, OWN_SCORES: b"raise SystemExit"}) == ""


def test_a_kind_with_own_scores_has_to_be_registered(registered: None) -> None:
    assert kinds.own_scores({}) is None
    assert callable(kinds.own_scores({"kind": "sides"}))
    with pytest.raises(InputError, match="did you mean 'sides'"):
        kinds.own_scores({"kind": "side"})


def test_a_toy_kind_is_compared(home: Home, prices: Path, registered: None) -> None:
    """Settings, lines, folds, metrics and curves of a comparison ask the kind as well."""
    text = prices.read_text().replace("name: prices", "name: published")
    prices.write_text(text.replace("public: {n: 400}", "public: {n: 400, public: true}"))
    config = parse_compare(
        {
            "data": {"name": str(prices), "path": str(prices.parent)},
            "objective": {"loss": "logistic"},
            "privacy": {"epsilon": [3.0], "delta": 1e-5},
            "algorithms": [
                {
                    "name": "dp_sgd",
                    "parameters": {"steps": 6, "learning_rate": 8.0, "clip_norm": 1.0},
                }
            ],
            "protocol": {"folds": 2},
            "metrics": ["right_side", "objective"],
            "curve_every": 2,
        }
    )
    comparison = resume.make_comparison(config, home)
    records = [
        record
        for batch in batches_of(comparison.to_run, 4)
        for record in run_batch(batch, bench_of(comparison))
    ]
    assert [record["status"] for record in records] == ["done"] * len(records)
    private = [record for record in records if record["private"]]
    assert len(private) == 2 and {r["label"] for r in records if not r["private"]} == {
        "non_private minmax"
    }
    for record in records:
        assert (
            set(record["metrics"]) == {"right_side", "objective"}
            and record["metrics"]["right_side"] > 0.5
        )
    assert all({"right_side"} <= set(point) for record in private for point in record["curve"][1:])
    with pytest.raises(InputError, match="metric"):
        resume.make_comparison(config.model_copy(update={"metrics": ("accuracy",)}), home)


def test_an_audit_knows_what_registered_kinds_write_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names_of_toy = {
        "params": {"sides.middle": ("0.5",)},
        "artifacts": ("report/sides.json", "figures/sides/a.png"),
    }
    subject = SimpleNamespace(statement=None, attached=(), tags={}, **names_of_toy)

    def names() -> list[str]:
        return [finding.subject for rule in NAME_RULES for finding in rule(subject)]  # type: ignore[arg-type]

    assert names() == ["sides.middle", "report/sides.json", "figures/sides/a.png"]
    monkeypatch.setattr(kinds, "KINDS", (Sides(), *kinds.KINDS))
    assert names() == []


ASKED = re.compile(
    r"job\.(ranker|network)\b|job\.(model|kind) "
    r"(is|==)|isinstance\([\w.]*job\.|job\.kind\.name"
)


def test_no_file_asks_which_kind_a_job_is_of() -> None:
    """What differs between kinds is asked of the kind: nobody looks at its class or at what its
    model is.
    """
    assert ASKED.search("x = 1 if job.ranker is None else 2") and ASKED.search(
        "isinstance(job.kind, Table)"
    )
    assert not ASKED.search("part = job.kind.quality(job, part, weights)")
    files = sorted((*(ROOT / "tasks").rglob("*.py"), *(ROOT / "flows").rglob("*.py")))
    found = [
        f"{path.relative_to(ROOT)}: {hit[0]}"
        for path in files
        for hit in ASKED.finditer(path.read_text())
    ]
    assert found == []
