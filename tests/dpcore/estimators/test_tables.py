"""Estimators and encoders take the tables that people have, with the names of their columns."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpcore.errors import InputError
from dpcore.estimators import DPClassifier, DPRanker, DPRegressor
from dpcore.preprocess import Encoder
from dpcore.preprocess.frames import arrow_frame, as_frame

polars = pytest.importorskip("polars")

X = pd.DataFrame({"age": np.linspace(0, 1, 60), "pay": np.tile([0.0, 0.5, 1.0], 20)})
Y = (X["age"] > 0.5).astype(int)
TABLES: dict[str, Any] = {
    "pandas": X,
    "nullable": X.astype("Float64"),
    "Arrow-backed": X.astype(pd.ArrowDtype(pa.float64())),
    "objects": X.astype(object),
    "categories": X.astype("category"),
    "Arrow table": pa.Table.from_pandas(X),
    "Arrow batch": pa.RecordBatch.from_pandas(X),
    "polars": polars.from_pandas(X),
    "lazy polars": polars.from_pandas(X).lazy(),
}
LABELS: dict[str, Any] = {
    "series": Y,
    "nullable": Y.astype("Int64"),
    "Arrow": pa.array(Y),
    "polars": polars.Series(Y),
    "list": Y.tolist(),
}


def exact(**more: Any) -> DPClassifier:
    return DPClassifier(algorithm="non_private", classes=[0, 1], n=60, **more)


@pytest.mark.parametrize("make", TABLES)
def test_every_table_gives_the_model_of_the_array(make: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        model = exact().fit(TABLES[make], Y)
    assert model.feature_names_in_.tolist() == ["age", "pay"]
    assert model.get_feature_names_out().tolist() == ["age", "pay"]
    plain = exact().fit(X.to_numpy(), Y.to_numpy())
    np.testing.assert_array_equal(model.weights_, plain.weights_)
    np.testing.assert_array_equal(model.predict(TABLES[make]), plain.predict(X.to_numpy()))
    assert plain.get_feature_names_out().tolist() == ["x0", "x1"]


@pytest.mark.parametrize("make", LABELS)
def test_every_list_of_labels_is_one(make: str) -> None:
    model = exact().fit(X, LABELS[make], sample_weight=None)
    np.testing.assert_array_equal(model.weights_, exact().fit(X, Y).weights_)


@pytest.mark.parametrize("make", ["polars", "Arrow table", "lazy polars"])
def test_regression_and_ranking_take_them_too(make: str) -> None:
    table = TABLES[make]
    target = X["age"].to_numpy()
    regression = DPRegressor(algorithm="non_private", target_bounds=(0, 1), n=60)
    assert regression.fit(table, target).feature_names_in_.tolist() == ["age", "pay"]
    groups = np.repeat(np.arange(12), 5)
    ranker = DPRanker(algorithm="non_private", adjacency="add_remove", n=12)
    scores = ranker.fit(table, Y, groups=polars.Series(groups)).decision_function(table, groups)
    np.testing.assert_array_equal(scores, ranker.decision_function(X, groups))


def test_bounds_by_the_names_of_columns() -> None:
    named = exact(bounds={"pay": (0, 2), "age": (0, 1)}).fit(TABLES["polars"], Y)
    listed = exact(bounds=([0, 0], [1, 2])).fit(X, Y)
    np.testing.assert_array_equal(named.weights_, listed.weights_)
    for bounds, rows in (({"pay": (0, 2)}, X), ({"pay": (0, 2), "age": (0, 1)}, X.to_numpy())):
        with pytest.raises(InputError, match=r"bounds=\{column: \(low, high\)\} of every column"):
            exact(bounds=bounds).fit(rows, Y)


@pytest.mark.parametrize("classes", [[0.0, np.nan], ["a", None], [0, pd.NA]])
def test_classes_with_a_gap_are_refused(classes: list[Any]) -> None:
    with pytest.raises(InputError, match="no NaN or None among them"):
        DPClassifier(classes=classes).fit(X, Y)


def test_names_that_are_not_those_of_fit_are_refused() -> None:
    model = exact().fit(X, Y)
    assert model.get_feature_names_out(["age", "pay"]).tolist() == ["age", "pay"]
    with pytest.raises(InputError, match="Expected input_features as in fit"):
        model.get_feature_names_out(["pay", "age"])


def test_whole_numbers_beside_gaps_stay_whole() -> None:
    """As floats two ids would be one."""
    table = pa.table({"id": [2**53, 2**53 + 1, None], "x": [1, None, 3]})
    frame = arrow_frame(table, numbers={"x"})
    assert frame["id"].tolist() == [2**53, 2**53 + 1, None]
    assert frame["x"].dtype == np.float64 and np.isnan(frame["x"][1])
    assert as_frame(polars.from_arrow(table))["id"].tolist() == [2**53, 2**53 + 1, None]
    assert as_frame(table.to_batches()[0]).shape == (3, 2)
    array = np.zeros((2, 2))
    assert as_frame(array) is array


def test_an_encoder_takes_tables_of_others() -> None:
    columns = [
        {"name": "age", "kind": "numeric", "low": 0, "high": 1},
        {"name": "ward", "kind": "categorical", "levels": ["A", "B"], "fill": "zeros"},
    ]
    encoder = Encoder(columns, normalise="none", sparse=False)
    frame = pd.DataFrame({"age": [0.5, 1.0, 0.0], "ward": ["A", None, "B"]})
    expected = encoder.transform(frame)
    for table in (polars.from_pandas(frame), pa.Table.from_pandas(frame)):
        np.testing.assert_array_equal(encoder.transform(table), expected)
