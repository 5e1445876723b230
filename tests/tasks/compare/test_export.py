"""The files of numbers, with ordinary and awkward cells."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tasks.compare.export import write
from tests.tasks.compare.cells import cell, failed, grid


def test_files_agree_with_the_cells(tmp_path: Path) -> None:
    records = grid(["auto", "dp_sgd"], [0.1, 1.0])
    names = [
        path.name for path in write(records, {"public": True, "odd": {1.0, float("inf")}}, tmp_path)
    ]
    assert names == ["cells.csv", "cells.parquet", "summary.csv", "facts.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    cells = pd.read_parquet(tmp_path / "cells.parquet")
    assert len(cells) == len(records)
    assert cells["metric.accuracy"].tolist() == [
        record["metrics"]["accuracy"] for record in records
    ]
    summary = pd.read_csv(tmp_path / "summary.csv")
    one = summary[
        (summary.label == "auto") & (summary.epsilon == 0.1) & (summary.metric == "accuracy")
    ]
    wanted = cells[(cells.label == "auto") & (cells.epsilon == 0.1)]["metric.accuracy"].mean()
    assert one["mean"].item() == pytest.approx(wanted)
    assert json.loads((tmp_path / "facts.json").read_text())["cells"]["done"] == len(records)


@pytest.mark.parametrize("records", [[], [failed(cell("auto", 1.0))], [cell("auto", 1.0)]], ids=len)
def test_awkward_cells(records: list[dict], tmp_path: Path) -> None:
    write(records, {}, tmp_path)
    assert (
        len(pd.read_csv(tmp_path / "cells.csv"))
        == len(pd.read_parquet(tmp_path / "cells.parquet"))
        == len(records)
    )


def test_curves_have_a_table(tmp_path: Path) -> None:
    curve = [{"step": k, "spent_epsilon": 0.1 * k, "accuracy": 0.8} for k in (1, 2)]
    write([cell("auto", 1.0, curve=curve)], {}, tmp_path)
    assert pd.read_parquet(tmp_path / "curves.parquet")["curve.step"].tolist() == [1, 2]
