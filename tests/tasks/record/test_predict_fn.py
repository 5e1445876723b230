"""A stored model in MLflow's own tools: evaluated, copied, under an alias, served, called with
frames and arrays.
"""

from __future__ import annotations

import json
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import invocations

from dpcore.errors import InputError
from tasks.record.stored import load_model, predict_fn
from tests.flows.small import small_frame
from tests.tasks.release.runs import World


def test_mlflow_evaluates_copies_and_names_a_stored_model(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    # its own: the evaluation is noted at the model
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
    assert found.metrics["accuracy_score"] == pytest.approx(
        np.mean(labels == frame["paid"].astype(str))
    )

    version = mlflow.register_model(uri, "first")
    client.set_registered_model_alias("first", "tried", version.version)
    client.copy_model_version("models:/first@tried", "second")
    for name in ("models:/first@tried", "models:/second/1"):
        assert np.array_equal(
            predict_fn(name, "score")(rows), load_model(uri).predict(rows)["score"]
        )
    turned = rows[rows.columns[::-1]].assign(more=1)
    assert np.array_equal(predict_fn(uri)(turned), labels)
    names = [str(name) for name in load_model(uri).metadata.get_input_schema().input_names()]
    assert np.array_equal(predict_fn(uri)(rows[names].to_numpy(dtype=object)), labels)
    with pytest.raises(InputError, match=f"got none for {names[0]}"):
        predict_fn(uri)(rows.drop(columns=names[0]))
    with pytest.raises(InputError, match="columns"):
        predict_fn(uri)(rows[names].to_numpy(dtype=object)[:, 1:])
    with pytest.raises(InputError, match="output among label, probability, score"):
        predict_fn(uri, "rank")


def test_a_stored_model_is_served_csv_and_json_and_takes_columns_of_every_type(
    shared_world: World, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``mlflow models serve`` does with a request, without its socket; a slow test asks over
    HTTP.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", shared_world.client.tracking_uri)
    loaded = load_model(shared_world.client.get_run(trained).data.tags["dpflows.model"])
    rows = pd.DataFrame({"age": [20, 80], "city": ["south", "north"]})
    expected = loaded.predict(rows)["score"].tolist()
    assert expected[0] != expected[1]

    def served(body: str, kind: str) -> list[float]:
        answer = invocations(body, kind, loaded, loaded.metadata.get_input_schema())
        assert answer.status == 200
        return [row["score"] for row in json.loads(answer.response)["predictions"]]

    turned = rows[["city", "age"]].assign(more="x")
    for frame in (rows, rows.astype({"age": float}), turned):
        assert served(frame.to_csv(index=False), "text/csv") == expected
        split = json.dumps({"dataframe_split": frame.to_dict(orient="split")})
        assert served(split, "application/json") == expected
    assert (
        served(json.dumps({"instances": rows.to_dict(orient="records")}), "application/json")
        == expected
    )

    for kind in (
        "int8",
        "int64",
        "float32",
        "float64",
        "Int64",
        "Float64",
        "object",
        "str",
        "category",
    ):
        assert loaded.predict(rows.astype({"age": kind}))["score"].tolist() == expected, kind
    ones = [
        loaded.predict(rows.assign(age=pd.Series([True, False], dtype=kind)))
        for kind in ("bool", "boolean")
    ]
    assert ones[0].equals(ones[1]) and ones[0].equals(loaded.predict(rows.assign(age=[1, 0])))

    for refused, words in (
        (rows[["city"]], r"columns age, city, got none for age; add it"),
        (rows.to_numpy(), r"got none for age, city; name the columns"),
        (rows.assign(age=["x", "80"]), r"column 'age': 'x' is not a finite number"),
    ):
        with pytest.raises(InputError, match=words):
            loaded.predict(refused)
    with pytest.raises(MlflowException, match="got none for age; add it") as error:
        served(rows[["city"]].to_csv(index=False), "text/csv")
    assert error.value.get_http_status_code() == 400


def test_no_type_of_mlflow_takes_whole_numbers_and_fractions() -> None:
    """Why the columns are of any type: with a declared one MLflow hands over one kind of number."""
    from mlflow.types import ColSpec, DataType, Schema

    columns: dict[str, Any] = {"whole": [39, 50], "fractions": [39.5, 50.0], "flags": [True, False]}
    for kind in DataType:
        taken = []
        for name, values in columns.items():
            try:
                mlflow.models.validate_schema(
                    pd.DataFrame({"age": values}), Schema([ColSpec(kind, "age", required=False)])
                )
            except MlflowException:
                continue
            taken.append(name)
        assert len(taken) <= 1, (kind, taken)
