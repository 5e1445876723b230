"""The stored model: plain files, no pickle, raw columns in, label and score out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.special import expit, softmax

from dpcore.accounting import Target
from dpcore.errors import InputError
from dpcore.losses import Weighted, make_loss
from dpcore.objective.multiclass import Softmax
from dpcore.problem import Block, Problem
from dpcore.train import plan
from tasks import record
from tasks.home import Home
from tasks.record import model, tracking
from tasks.record import stored as record_stored
from tasks.record.explain import Explanation
from tasks.record.scoring import LinearScorer
from tasks.release.registry import model_uri
from tasks.schema import Schema, find_schema
from tests.flows.small import small_frame

PICKLES = (".pkl", ".pickle", ".joblib", ".skops", ".pt")


@pytest.fixture
def stored(home: Home, small: Path) -> tuple[str, str, np.ndarray]:
    """A model of the small table in MLflow: URI, run id, weights."""
    schema = find_schema(str(small))
    encoder = schema.encoder()
    weights = np.array([1.0, 0.5, -0.5, -0.4])
    client = tracking.tracking_client(home)
    run_id = tracking.open_run(
        client, tracking.ensure_experiment(client, home, "tests of models"), None, {}
    )
    folder = home.outbox / run_id / "model"
    stated = {"probability": {"from": "logistic", "calibrated": False}}
    model.save_model(folder, weights, encoder, schema, "logistic", stated)
    uri = model.log_model(client, run_id, folder, encoder, schema)
    client.set_tag(run_id, record.MODEL, uri)
    tracking.close_run(client, run_id, "FINISHED")
    return uri, run_id, weights


def test_prediction_equals_the_product_of_encoded_row_and_weights(
    stored: tuple[str, str, np.ndarray], small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    uri, _, weights = stored
    frame = small_frame(np.random.default_rng(1), 20).drop(columns="paid")
    assert frame["age"].dtype.kind == "i"
    scored = record_stored.load_model(uri).predict(frame)
    expected = find_schema(str(small)).encoder().transform(frame) @ weights
    np.testing.assert_allclose(scored["score"], expected, rtol=0, atol=1e-12)
    assert list(scored["label"]) == ["yes" if score >= 0 else "no" for score in expected]
    assert list(scored.columns) == ["label", "probability", "score"]
    np.testing.assert_allclose(scored["probability"], 1.0 / (1.0 + np.exp(-expected)), rtol=1e-12)


def test_a_stored_model_is_explained_from_its_files_alone(small: Path, tmp_path: Path) -> None:
    """Also one of a regression, in the label's unit; what a row gets adds up to its score."""
    schema = find_schema(str(small))
    encoder, weights = schema.encoder(), np.array([1.0, 0.5, -0.5, -0.4])
    model.save_model(tmp_path, weights, encoder, schema, "logistic")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found = Explanation.of_files(files)
    assert found is not None and found.unit == "log-odds of 'yes'"
    assert {term.name for term in found.model.terms} == {"age", "city"}
    assert any("from before" in note for note in found.notes)
    frame = small_frame(np.random.default_rng(1), 20).drop(columns="paid")
    for row, x in zip(found.rows(encoder, frame), encoder.transform(frame), strict=True):
        assert row["score"] == pytest.approx(float(x @ weights), abs=1.0)  # shortened constant
        assert row["score"] == pytest.approx(
            row["constant"] + sum(term["adds"] for term in row["terms"])
        )
    card = json.loads(files["model.json"])
    card["label"] = {"kind": "regression", "column": "y", "bounds": [0, 10], "scaled_to": [-1, 1]}
    scaled = Explanation.of(encoder, card, weights)
    assert scaled.model.terms[0].values == pytest.approx(5.0 * found.model.terms[0].values)
    for broken in ({**card, "network": {}}, {**card, "label": {"kind": "relevance"}}):
        with pytest.raises(InputError, match="linear model of a table"):
            Explanation.of(encoder, broken, weights)


def test_fine_bins_that_were_left_out_are_named() -> None:
    """By the weights alone: a column whose bins have one is not named, nor one without bins."""
    encoder = find_schema("adult").encoder(normalise="none", numeric="hats(8)+bins(256)")
    fine = {part.name: part for part in encoder.parts if part.fine}
    card = {"label": {"kind": "binary", "positive": ">50K"}, "loss": "logistic", "data": "adult"}
    weights = np.zeros(encoder.design.dimension)
    weights[fine["capital-gain"].start + 3] = 1.0
    (note,) = (one for one in Explanation.of(encoder, card, weights).notes if "Fine bins" in one)
    assert note.endswith(f"chance: {', '.join(name for name in fine if name != 'capital-gain')}.")
    for part in fine.values():
        weights[part.start] = 1.0
    assert not any("Fine bins" in one for one in Explanation.of(encoder, card, weights).notes)


def test_stored_files_are_plain_and_hold_no_row_of_the_data(
    stored: tuple[str, str, np.ndarray], home: Home
) -> None:
    uri, _, _ = stored
    folder = next(home.artifacts.rglob(uri.removeprefix("models:/"))) / "artifacts"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in PICKLES]
    example = json.loads((folder / "input_example.json").read_text())
    assert example["data"] == [[0.0, "north"], [100.0, "south"]]
    assert (folder / "requirements.txt").read_text().startswith("mlflow==")
    card = (folder / "MLmodel").read_text()
    for place in (home.root, Path(model.SCORER_FILE).parent, Path.home()):
        assert str(place) not in card
    assert not re.search(r"(^|[\s'\"])(file:|/)", card)
    words = yaml.safe_load(card)["metadata"]
    assert words["columns"] == {"age": "number, cut to 0 .. 100", "city": "one of north, south"}
    assert words["answers"] == {
        "label": "predicted paid",
        "probability": "of 'yes': not calibrated, it orders rows; what the loss takes the score for",
        "score": "margin: 'yes' from 0 on, the log-odds of the probability",
    }


def scorer_of(folder: Path, weights: np.ndarray, label: dict, of_kind: dict) -> LinearScorer:
    """The scorer of a model of columns x, y with ``weights`` and such a label."""
    text = {"schema_version": 1, "name": "t", "public": {"n": 9}, "label": {"column": "z", **label},
            "columns": {name: {"kind": "numeric", "low": -1, "high": 1} for name in "xy"}}  # fmt: skip
    schema = Schema.model_validate(text)
    model.save_model(folder, weights, schema.encoder(), schema, "any", of_kind)
    scorer, context = LinearScorer(), SimpleNamespace(artifacts={"model": str(folder)})
    scorer.load_context(context)  # type: ignore[arg-type]
    return scorer


CLASSES = {"kind": "classes", "levels": ["a", "b", "c"]}
BINARY = {"positive": "p", "negative": "n"}


@pytest.mark.parametrize(
    ("label", "loss", "stated"),
    [(BINARY, "logistic", "logistic"), (CLASSES, "softmax", "softmax"), (CLASSES, "logistic", "one_vs_rest"),
     (BINARY, "hinge", None), (CLASSES, "hinge", None)],
)  # fmt: skip
def test_probability_is_that_of_the_estimators_and_of_the_quality(
    tmp_path: Path, label: dict, loss: str, stated: str | None
) -> None:
    """Of the positive label, or of the most likely class; none where the loss states none, and none
    of models from before it was given."""
    outputs = 3 if label is CLASSES else 1
    made = Softmax() if loss == "softmax" else make_loss(loss)
    problem = Problem(n=100, dimension=3, loss=made, outputs=outputs, intercept=True)
    planned = plan("dp_sgd", {}, problem, Target(1.0, 1e-5))
    said = model.probability_card(planned)
    assert said == ({"probability": {"from": stated, "calibrated": False}} if stated else {})
    weights = np.random.default_rng(0).normal(size=3 * outputs)
    scorer = scorer_of(tmp_path / "new", weights, label, said)
    frame = pd.DataFrame({"x": [-1.0, 0.3, 1.0], "y": [1.0, -0.2, 0.9]})
    found = scorer.scored(frame)
    old = scorer_of(tmp_path / "old", weights, label, {}).scored(frame)
    assert old.equals(found.drop(columns="probability", errors="ignore"))
    if stated is None:
        assert list(found.columns) == ["label", "score"]
        return
    scores = scorer.encoder.transform(frame) @ weights.reshape(outputs, 3).T
    if stated == "logistic":
        expected = expit(scores[:, 0])
    elif stated == "softmax":
        expected = softmax(scores, axis=1).max(axis=1)
    else:
        expected = expit(scores).max(axis=1) / expit(scores).sum(axis=1)
    np.testing.assert_allclose(found["probability"], expected, rtol=1e-12)


def test_a_model_says_whether_its_probabilities_were_calibrated() -> None:
    blocks = (Block((0,), "numeric"), Block((1,), "numeric"))
    problem = Problem(
        n=5000, dimension=3, loss=make_loss("logistic"), intercept=True, blocks=blocks
    )
    for goal, calibrated in (("probability", True), ("accuracy", False)):
        planned = plan("scaled_gd", {"goal": goal}, problem, Target(1.0, 1e-5))
        assert model.probability_card(planned)["probability"]["calibrated"] is calibrated
    weighted = replace(problem, loss=Weighted(make_loss("logistic"), positive=2.0))
    assert model.probability_card(plan("scaled_gd", {}, weighted, Target(1.0, 1e-5))) == {}


def test_values_that_were_not_declared_are_refused_by_name(
    stored: tuple[str, str, np.ndarray],
) -> None:
    with pytest.raises(InputError, match="'nort' is not a declared level"):
        record_stored.load_model(stored[0]).predict(pd.DataFrame({"age": [1.0], "city": ["nort"]}))


def test_models_are_found_by_run_uri_and_registered_name(
    stored: tuple[str, str, np.ndarray], home: Home
) -> None:
    uri, run_id, _ = stored
    client = tracking.tracking_client(home)
    assert model_uri(client, run_id) == uri
    assert model_uri(client, uri) == uri
    if not client.search_registered_models("name = 'payers'"):
        client.create_registered_model("payers")
    version = client.create_model_version("payers", uri, run_id).version
    assert model_uri(client, "payers") == f"models:/payers/{version}"
    client.set_registered_model_alias("payers", "released", version)
    assert model_uri(client, "payers") == "models:/payers@released"
    assert (
        len(
            record_stored.load_model("models:/payers@released").predict(
                pd.DataFrame({"age": [1], "city": ["north"]})
            )
        )
        == 1
    )


@pytest.mark.parametrize(
    ("name", "words"), [("pajers", "Unknown model"), ("0" * 32, "Expected a run of this store")]
)
def test_unknown_models_are_named(home: Home, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_uri(tracking.tracking_client(home), name)
    with pytest.raises(InputError, match="can be loaded"):
        record_stored.load_model("models:/nothing/1")
