"""What a released model does on rows that were made up from its declarations: free, and enough to
see a constant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from dpcore.features import Column
from tasks.record.example import example_columns

ROWS = 64
# Scores that differ by less than this share of their size differ by rounding.
ROUNDING = 1e-9


def fault(model: Mapping[str, bytes]) -> str:
    """Why a model is of no use on ``ROWS`` made-up rows, given its files; empty where it is of
    some.

    A model that gives every row one score ranks nothing and predicts one class or one number.
    Weights are released, and rows come from declared bounds and levels, so this reads no record.
    """
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
        context: Any = SimpleNamespace(artifacts={"model": folder})
        scorer.load_context(context)
        found = scorer.predict(
            context, made_up(json.loads(model["encoder.json"]), card["label"].get("query"))
        )
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
            f"it gives every row the same score: "
            f"{'it orders nothing' if 'rank' in found else 'it tells nothing'}"
        )
    return ""


def made_up(encoder: Mapping[str, Any], query: str | None) -> pd.DataFrame:
    """Rows between the declared bounds and of the declared levels; of a ranking all documents of
    one query.
    """
    rng = np.random.default_rng(0)
    columns = (
        {} if encoder["encoder"] == "matrix" else {one["name"]: one for one in encoder["columns"]}
    )
    rows: dict[str, Any] = {}
    for name, (first, last) in example_columns(encoder, query).items():
        if isinstance(first, float) and isfinite(first) and isfinite(last) and name != query:
            flag = name in columns and Column.from_dict(columns[name]).kind == "flag"
            rows[name] = (
                rng.integers(0, 2, ROWS).astype(float) if flag else rng.uniform(first, last, ROWS)
            )
        else:
            levels = list(Column.from_dict(columns[name]).levels) if name in columns else []
            values = np.array(levels or [first, last], dtype=object)
            rows[name] = values[rng.integers(0, len(values), ROWS)]
    return pd.DataFrame(rows)
