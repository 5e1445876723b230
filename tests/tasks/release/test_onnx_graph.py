"""The exported graph answers as the scorer does, row by row: every map, every rule for gaps and
undeclared levels, every kind of label."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import InputError, VerificationFailed
from dpcore.preprocess import Encoder, MatrixEncoder
from tasks.record import model
from tasks.record.scoring import LinearScorer, RefusedRows
from tasks.release.contents import CLOSE, require_same, run_onnx
from tasks.release.onnx_graph import to_onnx
from tasks.schema import Schema

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

COLUMNS: dict[str, Any] = {
    "age": {"kind": "numeric", "low": 18, "high": 90},
    "pay": {"kind": "numeric", "low": -1000, "high": 90000, "fill": 120},
    "debt": {"kind": "numeric", "low": 5, "high": 5000, "fill": "zeros"},
    "fixed": {"kind": "numeric", "low": 3, "high": 3},
    "own": {"kind": "flag"},
    "city": {"kind": "categorical", "levels": ["north", "south", "7"], "unknown": "other"},
    "job": {"kind": "categorical", "levels": ["a", "b", "é"], "drop_first": True, "missing": ["?"],
            "fill": "b"},
    "tier": {"kind": "categorical", "levels": ["x", "y"], "unknown": "zeros", "fill": "zeros"},
    "grade": {"kind": "ordinal", "levels": ["low", "mid", "high"], "unknown": "zeros"},
}  # fmt: skip
LABELS: dict[str, dict[str, Any]] = {
    "logistic": {"positive": "yes", "negative": "no"},
    "hinge": {"positive": "yes", "negative": "no"},
    "softmax": {"kind": "classes", "levels": ["r", "g", "b"]},
    "one_vs_rest": {"kind": "classes", "levels": ["r", "g", "b"]},
    "squared": {"kind": "regression", "low": 0, "high": 500},
}


def rows(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Rows of all that cells may be: within and beyond the bounds, on them, gaps, other texts."""

    def number(low: float, high: float) -> Any:
        span = high - low + 1.0
        odd = [np.nan, np.inf, -np.inf, low, high, (low + high) / 2]
        return np.where(
            rng.random(n) < 0.2, rng.choice(odd, n), rng.uniform(low - span / 4, high + span / 4, n)
        )

    def text(*levels: Any) -> Any:
        return rng.choice(np.array([*levels, *levels, None, "", "other"], dtype=object), n)

    frame = {"age": number(18, 90), "pay": number(-1000, 90000), "debt": number(5, 5000),
             "fixed": number(3, 3), "own": rng.choice([0.0, 1.0], n), "city": text("north", "south", "7"),
             "job": text("a", "b", "é", "?"), "tier": text("x", "y"), "grade": text("low", "mid", "high")}  # fmt: skip
    return pd.DataFrame(frame)


def scorer_of(folder: Path, schema: Schema, encoder: Any, loss: str, rng: Any) -> tuple[Any, Any]:
    """The scorer of random weights, and its files."""
    outputs = len(schema.label.levels) if schema.label.kind == "classes" else 1
    weights = rng.normal(size=outputs * encoder.design.dimension)
    stated = {"probability": {"from": loss, "calibrated": False}}
    model.save_model(
        folder, weights, encoder, schema, loss, {} if loss in ("hinge", "squared") else stated
    )
    scorer = LinearScorer()
    scorer.load_context(SimpleNamespace(artifacts={"model": str(folder)}))  # type: ignore[arg-type]
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return scorer, (files, to_onnx(files, weights))


def one_by_one(scorer: Any, frame: pd.DataFrame) -> list[dict[str, Any] | None]:
    """The scorer's answer for each row, None where it refuses it."""
    found: list[dict[str, Any] | None] = []
    for row in range(len(frame)):
        try:
            found.append(scorer.predict(None, frame.iloc[[row]]).iloc[0].to_dict())
        except RefusedRows:
            found.append(None)
    return found


def compared(scorer: Any, graph: bytes, frame: pd.DataFrame) -> int:
    """Compare every row; how many were refused."""
    found = run_onnx(graph, scorer.encoder, frame)
    expected, close = one_by_one(scorer, frame), CLOSE[scorer.encoder.dtype]
    for row, answer in enumerate(expected):
        for name, values in found.items():
            value = values[row]
            if answer is None:
                assert value == "" if isinstance(value, str) else np.isnan(value), (name, row)
            elif isinstance(value, str):
                assert value == answer[name]
            else:
                assert value == pytest.approx(answer[name], rel=close, abs=close), (name, row)
    kept = [row for row, answer in enumerate(expected) if answer is not None]
    if kept:
        assert list(found) == list(scorer.predict(None, frame.iloc[kept[:1]]).columns)
    return len(frame) - len(kept)


SETTINGS = [
    {"numeric": numeric, "normalise": normalise, "intercept": intercept, "dtype": dtype}
    for (numeric, normalise), (intercept, dtype) in product(
        [("minmax", "none"), ("hats(8)+bins(16)", "cap"), ("log", "unit"), ("bins(5)", "cap"),
         ("centred", "none"), ("hats(4)", "unit")],
        [(True, "float64"), (False, "float32")],
    )
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: "-".join(map(str, one.values())))
def test_a_table_is_scored_as_by_the_model(tmp_path: Path, setting: dict[str, Any]) -> None:
    rng = np.random.default_rng(SETTINGS.index(setting))
    loss = list(LABELS)[SETTINGS.index(setting) % len(LABELS)]
    crosses = [["city", {"pay": "bins(6)"}], ["own", "tier"], [{"debt": "hats(3)"}, "grade"]]
    if setting["numeric"] == "centred":
        crosses = crosses[:2]
    schema = Schema.model_validate(
        {
            "schema_version": 1,
            "name": "t",
            "public": {"n": 10},
            "columns": COLUMNS,
            "label": {"column": "z", **LABELS[loss]},
        }
    )
    encoder = schema.encoder(**setting, crosses=crosses)
    assert isinstance(encoder, Encoder)
    scorer, (files, graph) = scorer_of(tmp_path / "m", schema, encoder, loss, rng)
    frame = rows(rng, 30)
    refused = compared(scorer, graph, frame)
    assert 0 < refused < len(frame)
    clean = frame.fillna({"age": 40.0}).replace({"age": {np.inf: 50.0, -np.inf: 20.0}})
    clean = clean.assign(grade="mid", job="b", city="north", fixed=3.0)
    require_same(graph, files, clean, scorer.predict(None, clean))
    with pytest.raises(VerificationFailed, match="made-up rows"):
        require_same(graph, files, clean, scorer.predict(None, clean).assign(score=9.0))


@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_numbered_columns_are_scored_as_by_the_model(
    tmp_path: Path, normalise: str, loss: str
) -> None:
    rng = np.random.default_rng(3)
    groups = [{"name": "v", "count": 3, "low": -1, "high": 2, "fill": 0.5},
              {"name": "h", "count": 4, "kind": "one_hot"}, {"name": "w", "count": 2, "low": 0, "high": 9}]  # fmt: skip
    schema = Schema.model_validate(
        {
            "schema_version": 1,
            "name": "t",
            "public": {"n": 10},
            "features": groups,
            "label": {"column": "z", **LABELS[loss]},
        }
    )
    encoder = schema.encoder(normalise=normalise)
    assert isinstance(encoder, MatrixEncoder)
    scorer, (_, graph) = scorer_of(tmp_path / "m", schema, encoder, loss, rng)
    frame = pd.DataFrame(rng.uniform(-2, 3, size=(40, 9)), columns=list(encoder.inputs))
    frame.iloc[:, 3:7] = rng.uniform(0, 0.6, size=(40, 4))
    frame.iloc[3, 0], frame.iloc[5, 8] = np.nan, np.nan
    assert compared(scorer, graph, frame) == 1


@pytest.mark.parametrize(
    ("column", "words"),
    [({"kind": "date", "low": "2020-01-01", "high": "2021-01-01"}, "dates in 'day'"),
     ({"kind": "categorical", "levels": ["hash(8)"]}, "hashed levels in 'day'")],
)  # fmt: skip
def test_what_no_graph_stands_for_is_refused(
    tmp_path: Path, column: dict[str, Any], words: str
) -> None:
    columns = {**COLUMNS, "day": column}
    schema = Schema.model_validate(
        {
            "schema_version": 1,
            "name": "t",
            "public": {"n": 10},
            "columns": columns,
            "label": {"column": "z", **LABELS["hinge"]},
        }
    )
    with pytest.raises(InputError, match=words):
        scorer_of(tmp_path, schema, schema.encoder(), "hinge", np.random.default_rng(0))
