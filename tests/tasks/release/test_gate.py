"""What the gate refuses whatever a policy says, and that it sees a champion among any number of
registered models.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import nan
from pathlib import Path

import numpy as np
import pytest

from dpcore.ranking.model import RankingModel
from tasks import training
from tasks.record import model
from tasks.record.example import fault
from tasks.release import registry
from tasks.release.gate import Candidate, Champion, Policy, decide
from tasks.release.registry import model_uri
from tasks.schema import Schema, find_schema
from tests.tasks.kinds.test_ranking_flow import SCHEMA as RANKING
from tests.tasks.release.runs import World
from tests.tasks.release.test_release import policy, release

REGRESSION = """\
schema_version: 1
name: prices
public: {n: 200, public: true}
source: {path: prices.csv}
columns: {area: {kind: numeric, low: 0, high: 100}, town: {kind: categorical, levels: [a, b, c]}}
label: {column: price, kind: regression, low: 0, high: 1000}
split: {kind: none}
"""


def refused(rules: Policy | None = None, champion: Champion | None = None, **facts: object) -> str:
    one = Candidate("c", True, True, **{"metrics": {}, **facts})  # type: ignore[arg-type]
    found = decide([one], champion, rules or Policy(), 1.0, 1e-6)
    assert (found.promote is None) == bool(found.reasons)
    return "; ".join(found.reasons)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"delta": 1e-3, "n": 1000}, "not below 1/n"),
        ({"delta": 0.9e-3, "n": 1000}, ""),
        (
            {"metrics": {"map": 0.4}, "baselines": {"random_map": 0.4}},
            "no better than random order",
        ),
        ({"metrics": {"map": 0.41}, "baselines": {"random_map": 0.4}}, ""),
        (
            {
                "metrics": {"mean_squared_error": 0.2},
                "baselines": {"mean_label_mean_squared_error": 0.1},
            },
            "no better than the mean",
        ),
        (
            {
                "metrics": {"mean_squared_error": 0.09},
                "baselines": {"mean_label_mean_squared_error": 0.1},
            },
            "",
        ),
        ({"metrics": {"balanced_accuracy": 0.2}, "classes": 5}, "one class only"),
        ({"metrics": {"balanced_accuracy": 0.3}, "classes": 5}, ""),
        ({"metrics": {"balanced_accuracy": 0.5}}, "one class only"),
        ({"metrics": {"map": nan}}, "not a number"),
        ({"fault": "it gives every row the same score: it orders nothing"}, "orders nothing"),
    ],
)
def test_no_policy_lets_a_trivial_or_weak_model_through(
    facts: dict[str, object], words: str
) -> None:
    found = refused(**facts)
    assert words in found if words else found == ""


def test_of_an_error_less_is_better() -> None:
    rules, before = (
        Policy(metric="mean_squared_error", min_gain=0.01),
        Champion("3", {"mean_squared_error": 0.2}),
    )
    assert refused(rules, before, metrics={"mean_squared_error": 0.18}) == ""
    assert "gains -0.0200" in refused(rules, before, metrics={"mean_squared_error": 0.22})
    assert "0.3000 > 0.25" in refused(
        Policy(metric="mean_squared_error", max_value=0.25), metrics={"mean_squared_error": 0.3}
    )
    better = Candidate("a", True, True, {"mean_squared_error": 0.1})
    worse = Candidate("b", True, True, {"mean_squared_error": 0.15})
    assert decide([worse, better], before, rules, 1.0, 1e-6).promote == "a"


@pytest.mark.parametrize("before", [{}, {"accuracy": nan}])
def test_no_gain_over_a_champion_without_the_metric_can_be_shown(before: dict[str, float]) -> None:
    given = {"metrics": {"accuracy": 0.9}}
    assert "version 3 has no accuracy" in refused(
        Policy(metric="accuracy", min_gain=0.1), Champion("3", before), **given
    )
    assert refused(Policy(metric="accuracy"), Champion("3", before), **given) == ""


def stored(
    folder: Path, schema: Schema, weights: np.ndarray, ranker: RankingModel | None = None
) -> dict[str, bytes]:
    model.save_model(
        folder / "model",
        weights,
        schema.encoder(),
        schema,
        "logistic",
        {} if ranker is None else {"ranker": asdict(ranker)},
    )
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


@pytest.mark.parametrize("kind", ["linear", "regression", "ranking"])
def test_a_model_that_is_a_constant_is_seen_on_made_up_rows(kind: str, tmp_path: Path) -> None:
    from tests.flows.small import SCHEMA as LINEAR

    text = {"linear": LINEAR, "regression": REGRESSION, "ranking": RANKING}[kind]
    (tmp_path / "given.yaml").write_text(
        text.format(ledger="sqlite:///l.db") if "{ledger}" in text else text
    )
    schema = find_schema(str(tmp_path / "given.yaml"))
    ranker = RankingModel(("raw",)) if kind == "ranking" else None
    d = schema.encoder().design.dimension
    useful = np.linspace(-1.0, 1.0, d)
    assert fault(stored(tmp_path, schema, useful, ranker)) == ""
    assert "same score" in fault(stored(tmp_path, schema, np.zeros(d), ranker))
    assert "weights are not numbers" in fault(stored(tmp_path, schema, np.full(d, nan), ranker))


def test_a_constant_model_is_not_released(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = training.fit_model

    def flat(*given: object) -> object:
        result = fit(*given)  # type: ignore[arg-type]
        return replace(result, weights=np.zeros_like(result.weights))

    monkeypatch.setattr(training, "fit_model", flat)
    code, answer = release(world, world.train(), "flat", key, capsys)
    assert code == 4
    assert "gives every row the same score" in answer["error"]
    assert registry.aliases(world.client, "flat") == {}


@pytest.mark.slow
def test_a_champion_is_seen_among_120_registered_models(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A list of models comes in pages of 100, in the order of their names: this one is on the
    second.
    """
    client = world.client
    for number in range(120):
        if registry.find_model(client, f"many {number:03d}") is None:
            client.create_registered_model(f"many {number:03d}")
    first, second = world.train(), world.train()
    assert release(world, first, "zz late", key, capsys)[1]["previous"] is None
    rules = policy(tmp_path, metric="accuracy", min_gain=0.1)
    assert registry.aliases(client, "zz late") == {"released": "1"}
    code, answer = release(world, second, "zz late", key, capsys)
    assert (code, answer["version"], answer["previous"]) == (0, "2", "1")
    assert release(world, first, "zz late", key, capsys, "--policy", rules)[1]["previous"] == "2"
    assert model_uri(client, "zz late") == "models:/zz late@released"
    assert len(registry.model_names(client)) > 120
    from flows.cli import run

    capsys.readouterr()
    assert run(["audit", "zz late", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == first
