"""A number that does not exist is absent, or null with a reason, wherever metrics are read: a walk
over the readers.

Each reader gets four cells of an algorithm, one of them (or all) without the number, written in
every way in which that happens; no reader may answer 0, a mean that counts it as one, or "nan".
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.metrics import (
    average_precision,
    balanced_accuracy,
    brier_score,
    group_means,
    log_loss,
    mean_recall,
    r2,
    roc_auc,
)
from dpcore.ranking.metrics import ranking_report
from dpcore.ranking.sessions import Sessions
from tasks.compare import figures, page
from tasks.compare.export import write
from tasks.compare.statistics import summarise
from tasks.compare.tracking import known, spread
from tasks.drawing.curves import mean_curves
from tasks.release.gate import Candidate, Champion, Policy, decide
from tests.tasks.compare.cells import cell

METRIC = "roc_auc"
VALUES = (0.5, 0.7, 0.9)
MEAN = 0.7
UNDEFINED: dict[str, dict[str, Any]] = {
    "nan": {METRIC: nan},
    "infinity": {METRIC: inf},
    "null": {METRIC: None},
    "absent": {"accuracy": 0.8},
}
Records = list[dict[str, Any]]


def cells(metrics: dict[str, Any], values: tuple[float, ...]) -> Records:
    own = [{METRIC: value} for value in values] + [metrics]
    return [
        cell(label, epsilon, 0, fold, metrics=found, curve=[{"step": 1, "iteration": 1, **found}])
        for label in ("auto", "dp_sgd")
        for epsilon in (0.5, 1.0)
        for fold, found in enumerate(own)
    ]


def by_summary(records: Records, folder: Path) -> list[float | None]:
    found = summarise(records, METRIC, {})
    assert all(one.missing == 1 for one in found)
    return [one.mean for one in found]


def by_table(records: Records, folder: Path) -> list[float | None]:
    write(records, {}, folder)
    frame = pd.read_csv(folder / "summary.csv")
    text = (folder / "cells.csv").read_text()
    assert "nan" not in text.lower() and "inf," not in text.lower()
    rows = [
        row
        for row in csv.DictReader(text.splitlines())
        if row["fold"] == str(len(records) // 4 - 1)
    ]
    assert all(row.get(f"metric.{METRIC}", "") == "" for row in rows)
    chosen = frame[frame.metric == METRIC]["mean"] if "metric" in frame else []
    return [None if np.isnan(value) else float(value) for value in chosen]


def by_facts(records: Records, folder: Path) -> list[float | None]:
    write(records, {"undefined": nan}, folder)
    assert (
        json.loads((folder / "facts.json").read_text(), parse_constant=pytest.fail)["undefined"]
        is None
    )
    return []


def by_page(records: Records, folder: Path) -> list[float | None]:
    text = page.write_page(records, {}, [], folder / "page.html").read_text()
    assert ">nan" not in text.lower() and ">inf" not in text.lower()
    return [MEAN] if "0.7" in text else []


def by_figures(records: Records, folder: Path) -> list[float | None]:
    charts = [
        one
        for one in figures.all_charts(records, {"metrics": [METRIC]})
        if "seconds" not in one.stem
    ]
    return [y for one in charts for panel in one.panels for line in panel.lines for y in line.mean]


def by_tracking(records: Records, folder: Path) -> list[float | None]:
    found = spread(METRIC, np.array(known([one["metrics"].get(METRIC) for one in records])))
    assert all(isfinite(value) for value in found.values())
    return [found[METRIC]] if found else []


def by_curves(records: Records, folder: Path) -> list[float | None]:
    return [float(y) for _, ys in mean_curves(records, METRIC).values() for y in ys]


READERS: dict[str, Callable[[Records, Path], list[float | None]]] = {
    "summaries": by_summary,
    "tables": by_table,
    "facts": by_facts,
    "page": by_page,
    "figures": by_figures,
    "tracked means": by_tracking,
    "curves": by_curves,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", UNDEFINED)
def test_a_cell_without_the_number_is_in_no_mean(reader: str, kind: str, tmp_path: Path) -> None:
    found = READERS[reader](cells(UNDEFINED[kind], VALUES), tmp_path)
    assert found or reader == "facts"
    assert found == pytest.approx([MEAN] * len(found))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", UNDEFINED)
def test_cells_without_any_number_have_no_mean(reader: str, kind: str, tmp_path: Path) -> None:
    assert not [
        value
        for value in READERS[reader](cells(UNDEFINED[kind], ()), tmp_path)
        if value is not None
    ]


@pytest.mark.parametrize("value", [nan, inf, -inf, None])
def test_gate_and_champion_take_no_undefined_number(value: float | None) -> None:
    """For the candidate it is a refusal that names the metric; of a champion nothing is gained,
    with a margin asked.
    """

    def asked(
        mine: float | None, theirs: float | None, gain: float = 0.1, **rules: Any
    ) -> list[str]:
        one = Candidate("c", True, True, {} if mine is None else {METRIC: mine})  # type: ignore[arg-type]
        champion = Champion("1", {} if theirs is None else {METRIC: theirs})
        policy = Policy(max_epsilon=inf, metric=METRIC, min_gain=gain, **rules)
        found = decide([one], champion, policy, 1.0, 1e-6)
        assert (found.promote is None) == bool(found.reasons)
        return list(found.reasons)

    for rules in ({}, {"min_value": 0.1}, {"max_value": 0.9}):
        assert METRIC in " ".join(asked(value, 0.5, **rules))
    assert METRIC in " ".join(asked(0.9, value))
    assert asked(0.9, 0.5) == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "metric",
    [roc_auc, balanced_accuracy, average_precision, brier_score, log_loss, r2, mean_recall],
)
@pytest.mark.parametrize("n", [0, 3])
def test_metrics_of_nothing_are_no_numbers(metric: Callable, n: int) -> None:
    """No records, or scores that are none."""
    if n == 0 or metric is not mean_recall:  # which takes classes, not scores
        assert not np.isfinite(metric(np.ones(n), np.full(n, nan)))


def test_groups_and_queries_without_records_have_no_mean() -> None:
    assert group_means(np.array([]), np.array([]), 1) == {}
    found = group_means(np.array([1.0, nan, 0.0]), np.array(["a", "a", "b"]), 1)
    assert not isfinite(found["a"][1]) and found["b"] == (1, 0.0)
    sessions = Sessions.from_rows(np.ones((4, 1)), np.zeros(4), np.array([1, 1, 2, 2]))
    report = ranking_report(sessions, np.arange(4.0))
    assert all(
        not isfinite(value) for name, value in report.items() if name.startswith(("map", "ndcg"))
    )
