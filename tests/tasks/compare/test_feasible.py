"""What a comparison refuses from public facts: metrics that no cell can have, more folds than
rows.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpcore.errors import InputError
from tasks.compare import load_compare, resume
from tasks.compare.cell import run_cell
from tasks.compare.config import PrintedLine
from tasks.compare.grid import expand
from tasks.compare.resume import check_metrics, metric_names
from tasks.home import Home
from tasks.kinds.quality import BY_LABEL, predicted
from tests.tasks.compare.test_engine import comparison_of, public


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "foo",
            r"Unknown metric \(for labels of kind binary\) 'foo'; choose one of accuracy, "
            r"average_precision",
        ),
        ("acuracy", "did you mean 'accuracy'"),
        ("mean_squared_error", "Unknown metric"),
        # of columns that are known to matter, which these rows have not
        ("coverage", "Unknown metric"),
    ],
)
def test_a_metric_that_no_cell_can_have_is_refused(
    small: Path, home: Home, name: str, words: str
) -> None:
    public(small)
    with pytest.raises(InputError, match=words):
        resume.make_comparison(comparison_of(small, metrics=["accuracy", name]), home)


@pytest.mark.parametrize("protocol", [{"folds": 301}, {"name": "crossval", "folds": 100_000}])
def test_more_folds_than_rows_are_refused(
    small: Path, home: Home, protocol: dict[str, object]
) -> None:
    with pytest.raises(
        InputError,
        match=r"at most n=300 folds, one for each record of 'small', "
        r"got .*folds=\d+; ",
    ):
        resume.make_comparison(comparison_of(small, protocol=protocol), home)


def test_every_metric_of_a_cell_has_a_name_that_is_taken(small: Path, home: Home) -> None:
    public(small)
    names = ["gradient_evaluations", "minimisation_error", "seconds"]
    comparison = resume.make_comparison(
        comparison_of(small, metrics=names, protocol={"folds": 2}), home
    )
    [cell] = [
        one for one in comparison.cells if one.setting.label.startswith("dp_sgd") and one.fold == 0
    ][:1]
    record = run_cell(cell, comparison.config, comparison.rows, comparison.plans)
    assert {*BY_LABEL["binary"], "objective", "minimisation_error"} <= set(record["metrics"])
    assert set(record["metrics"]) <= metric_names(cell.setting, comparison.config)


@pytest.mark.parametrize(
    ("kind", "loss"), [("binary", "logistic"), ("classes", "softmax"), ("regression", "squared")]
)
def test_the_names_are_those_that_are_measured(kind: str, loss: str) -> None:
    rng = np.random.default_rng(0)
    y = {
        "binary": np.array([-1.0, 1.0] * 4),
        "classes": np.arange(8) % 3,
        "regression": np.arange(8.0),
    }[kind]
    outputs = 3 if kind == "classes" else 1
    label = SimpleNamespace(kind=kind, low=0.0, high=7.0, scaled_to=(-1.0, 1.0))
    job = SimpleNamespace(
        schema=SimpleNamespace(label=label), problem=SimpleNamespace(outputs=outputs)
    )
    part = SimpleNamespace(X=rng.normal(size=(8, 2)), y=y)
    assert set(predicted(job, part, rng.normal(size=2 * outputs), loss)) == set(BY_LABEL[kind])  # type: ignore[arg-type]


def test_a_ranking_names_its_ranks() -> None:
    config = load_compare(None, ["metrics=[map, ndcg_at_8, ndcg]"], "compare_ranking.yaml")
    settings, _ = expand(config)
    check_metrics(config, settings)
    with pytest.raises(InputError, match=r"kind relevance\) 'accuracy'"):
        check_metrics(config.model_copy(update={"metrics": ("accuracy",)}), settings)


def test_a_printed_number_is_of_a_metric_that_is_measured() -> None:
    """Else its line would be drawn in no figure, and nobody would be told."""
    config = load_compare(None, (), "compare_ranking.yaml")
    settings, _ = expand(config)
    for data in ("mq2008", None):
        line = PrintedLine(label="printed", metric="ndcg@8", value=0.45, data=data)
        with pytest.raises(InputError, match=r"'ndcg@8'.*ndcg_at_8"):
            check_metrics(config.model_copy(update={"printed": (line,)}), settings)
    elsewhere = line.model_copy(update={"data": "adult"})
    check_metrics(config.model_copy(update={"printed": (elsewhere,)}), settings)


def test_the_shipped_names_are_taken() -> None:
    for name in (
        "compare_l1.yaml",
        "compare_blsgd_effects.yaml",
        "compare_table3.yaml",
        "bench.yaml",
    ):
        config = load_compare(None, (), name)
        check_metrics(config, expand(config)[0])
