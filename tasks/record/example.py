"""Rows made up from declarations: the input example, and what a released model does on such."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from math import isclose, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dpcore.features import Column, FeatureGroup

# Decimals that a table keeps as JSON.
ROUNDED = 1e-9


def example_columns(encoder: Mapping[str, Any], query: str | None = None) -> dict[str, list[Any]]:
    """Columns of two rows, from an encoder as a dict: lower bounds and first levels, upper bounds
    and last levels.

    ``query`` names the column of a ranking that says which documents belong together: here both.
    """
    rows: dict[str, list[Any]] = {} if query is None else {query: ["q1", "q1"]}
    if encoder["encoder"] == "matrix":
        groups = [FeatureGroup(**group) for group in encoder["groups"]]
        return rows | {
            name: [float(group.low), float(group.high)] for group in groups for name in group.names
        }
    columns: list[Any] = [Column.from_dict(column) for column in encoder["columns"]]
    return rows | {column.name: _ends(column) for column in columns}


def _ends(column: Any) -> list[Any]:
    """The first and the last value that a column is declared to hold."""
    if column.buckets:
        return ["made up", "made up as well"]
    if column.levels:
        return [column.levels[0], column.levels[-1]]
    if column.kind == "flag":
        return [0.0, 1.0]
    if column.kind == "date":
        return [str(column.low), str(column.high)]
    return [float(column.low), float(column.high)]


def output_columns(card: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a model's answer with MLflow's types, from its card."""
    if "outputs" in card:  # a kind with scores of its own says so itself
        return {str(name): str(kind) for name, kind in card["outputs"].items()}
    label = card["label"]
    if label["kind"] == "relevance":
        return {label["query"]: "string", "score": "double", "rank": "long"}
    return {"label": "double" if label["kind"] == "regression" else "string", "score": "double"}


def is_example(stored: bytes, encoder: Mapping[str, Any], query: str | None = None) -> bool:
    """Whether a stored input example (JSON: ``columns``, ``data`` by rows) is the one made from the
    declarations.

    Raises what reading a text that is none raises: ``ValueError``, ``KeyError`` or ``TypeError``.
    """
    found, expected = json.loads(stored), example_columns(encoder, query)
    rows = list(zip(*expected.values(), strict=True))
    return list(found["columns"]) == list(expected) and _same_rows(found["data"], rows)


def _same_rows(found: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> bool:
    sizes = [len(row) for row in found] == [len(row) for row in expected]
    return sizes and all(
        _same(*pair)
        for rows in zip(found, expected, strict=True)
        for pair in zip(*rows, strict=True)
    )


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(found, int | float) and isclose(
            found, expected, rel_tol=ROUNDED, abs_tol=ROUNDED
        )
    return bool(found == expected)


ROWS = 64
# Scores that differ by less than this share of their size differ by rounding.
ROUNDING = 1e-9


def fault(model: Mapping[str, bytes]) -> str:
    """Why a model is of no use on ``ROWS`` made-up rows, given its files; empty where it is of
    some.

    A model that gives every row one score ranks nothing and predicts one class or one number.
    Weights are released, and rows come from declared bounds and levels, so this reads no record.
    """
    from pandas import DataFrame  # an auditor, who verifies a bundle, may not have it

    from tasks.kinds import own_scores
    from tasks.record.scoring import LinearScorer

    card = json.loads(model["model.json"])
    with np.load(BytesIO(model["weights.npz"]), allow_pickle=False) as arrays:
        if not np.isfinite(arrays["weights"]).all():
            return "its weights are not numbers"
    with TemporaryDirectory() as folder:
        for name, data in model.items():
            if "/" not in name:
                (Path(folder) / name).write_bytes(data)
        scorer = LinearScorer()
        scorer.read(Path(folder), own_scores(card))
        rows = made_up(json.loads(model["encoder.json"]), card["label"].get("query"))
        found = scorer.scored(DataFrame(rows))
    scores = found["score"].to_numpy(dtype=np.float64)
    if not np.isfinite(scores).all():
        return "its scores are too large to be numbers"
    spread, size = float(np.ptp(scores)), float(np.abs(scores).max())
    same_label = (
        "label" not in found
        or found["label"].nunique() == 1
        or card["label"]["kind"] == "regression"
    )
    if spread <= ROUNDING * size and same_label:
        return (
            "it gives every row the same score: "
            f"{'it orders nothing' if 'rank' in found else 'it tells nothing'}"
        )
    return ""


def _numbers(rng: np.random.Generator, column: Column | None, first: float, last: float) -> Any:
    if column is not None and column.kind == "flag":
        return rng.integers(0, 2, ROWS).astype(float)
    return rng.uniform(first, last, ROWS)


def made_up(encoder: Mapping[str, Any], query: str | None) -> dict[str, Any]:
    """Columns of rows between the declared bounds and of the declared levels; of a ranking all
    documents of one query.
    """
    rng = np.random.default_rng(0)
    declared = [] if encoder["encoder"] == "matrix" else encoder["columns"]
    columns = {one["name"]: Column.from_dict(one) for one in declared}
    rows: dict[str, Any] = {}
    for name, (first, last) in example_columns(encoder, query).items():
        column = columns.get(name)
        if isinstance(first, float) and isfinite(first) and isfinite(last) and name != query:
            rows[name] = _numbers(rng, column, first, last)
        else:
            levels = () if column is None else column.levels
            values = np.array(list(levels) or [first, last], dtype=object)
            rows[name] = values[rng.integers(0, len(values), ROWS)]
    return rows
