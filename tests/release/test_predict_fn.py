"""A stored model in MLflow's own tools: evaluated, copied, under an alias, and called with frames and arrays."""

from __future__ import annotations

import mlflow
import numpy as np
import pytest

from dpcore.errors import InputError
from tasks.record.model import load_model
from tasks.record.predicting import predict_fn
from tests.flows.small import small_frame
from tests.release.runs import World


def test_mlflow_evaluates_copies_and_names_a_stored_model(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    uri = client.get_run(world.train()).data.tags["dpflows.model"]
    frame = small_frame(np.random.default_rng(5), 80)
    rows = frame.drop(columns="paid")
    labels = predict_fn(uri)(rows)
    assert set(labels) <= set(frame["paid"].astype(str)) and labels.shape == (80,)
    found = mlflow.models.evaluate(
        predict_fn(uri),
        data=frame.assign(paid=frame["paid"].astype(str)),
        targets="paid",
        model_type="classifier",
        evaluator_config={"log_explainer": False, "log_model_explainability": False},
    )
    assert found.metrics["accuracy_score"] == pytest.approx(np.mean(labels == frame["paid"].astype(str)))

    version = mlflow.register_model(uri, "first")
    client.set_registered_model_alias("first", "tried", version.version)
    client.copy_model_version("models:/first@tried", "second")
    for name in ("models:/first@tried", "models:/second/1"):
        assert np.array_equal(predict_fn(name, "score")(rows), load_model(uri).predict(rows)["score"])
    turned = rows[rows.columns[::-1]].assign(more=1)
    assert np.array_equal(predict_fn(uri)(turned), labels)
    names = [str(name) for name in load_model(uri).metadata.get_input_schema().input_names()]
    assert np.array_equal(predict_fn(uri)(rows[names].to_numpy(dtype=object)), labels)
    with pytest.raises(InputError, match=f"got none for {names[0]}"):
        predict_fn(uri)(rows.drop(columns=names[0]))
    with pytest.raises(InputError, match="columns"):
        predict_fn(uri)(rows[names].to_numpy(dtype=object)[:, 1:])
    with pytest.raises(InputError, match="output among label, score"):
        predict_fn(uri, "rank")
