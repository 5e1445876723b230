"""What MLflow shows of a comparison: lines against epsilon, and a view whose link opens with the
right columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow.utils.validation import _validate_metric_name

from tasks.compare import resume
from tasks.compare.tracking import COMPARISON, colour_of, comparison_view, lines_of, write_view
from tasks.home import Home
from tasks.record.view import SHARED, TAG_LENGTH, VIEW, view_of
from tests.tasks.compare.test_engine import comparison_of, public


class Client:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.metrics: list[Any] = []

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.tags[f"{run} {key}"] = value

    def set_experiment_tag(self, experiment: str, key: str, value: str) -> None:
        self.tags[key] = value

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        self.metrics += metrics


def cells_of(small: Path, home: Home, **values: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Made records for the cells of a small comparison: the accuracy is 0.7 + fold / 100 + epsilon
    / 10.
    """
    comparison = resume.make_comparison(comparison_of(small, **values), home)
    found = []
    for cell in comparison.cells:
        facts = cell.setting.facts
        accuracy = 0.7 + cell.fold / 100 + (facts["epsilon"] or 0) / 10
        record = {
            **facts,
            "metrics": {"accuracy": accuracy},
            "curve": [{"step": 1, "accuracy": accuracy}],
        }
        found.append((cell.setting, record))
    return found, comparison.config


def test_lines_are_means_over_folds_at_a_thousand_epsilon(small: Path, home: Home) -> None:
    cells, config = cells_of(small, home)
    broken = [
        (setting, {**record, "metrics": {}}) if n == 0 else (setting, record)
        for n, (setting, record) in enumerate(cells)
    ]
    lines = lines_of(broken, config, "accuracy")
    assert set(lines) == {
        f"internal.accuracy_by_epsilon/small dp_{name} steps:3" for name in ("sgd", "adam")
    }
    for own in lines.values():
        assert own == {500: pytest.approx(0.76), 1000: pytest.approx(0.81)}


def test_two_adjacencies_are_two_lines(small: Path, home: Home) -> None:
    public(small)
    privacy = {"epsilon": [1.0], "delta": 1e-4, "adjacency": ["add_remove", "replace_one"]}
    cells, config = cells_of(small, home, privacy=privacy)
    names = sorted(lines_of(cells, config, "accuracy"))
    assert names[0] == "released.accuracy_by_epsilon/small dp_adam steps:3 add_remove"
    assert len(names) == 4 and sum("replace_one" in name for name in names) == 2


def test_the_view_has_filter_columns_and_overlaid_curves(small: Path, home: Home) -> None:
    cells, config = cells_of(small, home)
    client: Any = Client()
    write_view(client, "7", "abcdefabcdefabcd", cells, config)
    assert client.tags[f"abcdefabcdefabcd {COMPARISON}"] == "abcdefabcdefabcd"
    key = view_of(client.tags)
    state = json.loads(client.tags[f"{SHARED}{key}"])
    assert state["searchFilter"] == f"tags.`{COMPARISON}` = 'abcdefabcdefabcd'"
    assert state["selectedColumns"][:4] == [
        "params.`label`",
        "params.`epsilon`",
        "params.`delta`",
        "params.`adjacency`",
    ]
    charts = {chart["displayName"]: chart for chart in state["compareRunCharts"]}
    overlaid = charts["internal.accuracy against epsilon"]["selectedMetricKeys"]
    drawn = {metric.key for metric in client.metrics}
    assert len(overlaid) == 2 and drawn == {*overlaid, "epsilon"}
    # Drawn against epsilon itself, which stands at the steps of the lines.
    against = charts["internal.accuracy against epsilon"]
    assert (against["xAxisKey"], against["selectedXAxisMetricKey"]) == ("metric", "epsilon")
    assert {m.step: m.value for m in client.metrics if m.key == "epsilon"} == {500: 0.5, 1000: 1.0}
    [lines] = [chart for chart in state["compareRunCharts"] if chart["type"] == "PARALLEL"]
    assert lines["selectedParams"] == ["label", "epsilon"]
    assert charts["internal.curve.accuracy against iterations"]["type"] == "LINE"
    [section] = state["compareRunSections"]
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {section["uuid"]}


def test_points_are_of_runs_whose_colours_differ(small: Path, home: Home) -> None:
    """Lines by epsilon are numbers of one run, which MLflow draws in one colour."""
    cells, config = cells_of(small, home)
    client: Any = Client()
    write_view(client, "7", "abc", cells, config)
    state = json.loads(client.tags[f"{SHARED}{client.tags[VIEW]}"])
    [points] = [chart for chart in state["compareRunCharts"] if chart["type"] == "SCATTER"]
    assert (points["xaxis"]["key"], points["yaxis"]["key"]) == ("epsilon", "internal.accuracy")
    settings = {setting.label: setting.config.algorithm.name for setting, _ in cells}
    assert {"non_private", "majority"} <= set(settings.values()) and len(settings) >= 4
    colours = {colour_of(label, name, config) for label, name in settings.items()}
    assert len(colours) == len(set(settings.values()))


def test_of_lines_too_many_for_a_tag_the_best_are_drawn(small: Path, home: Home) -> None:
    many = [
        {"name": "dp_sgd", "label": f"{n} {'long' * 20}", "parameters": {"steps": n + 1}}
        for n in range(60)
    ]
    cells, config = cells_of(
        small, home, algorithms=many, privacy={"epsilon": [1.0], "delta": 1e-4}
    )
    client: Any = Client()
    write_view(client, "7", "abc", cells, config)
    assert VIEW in client.tags
    assert all(len(text) <= TAG_LENGTH for text in client.tags.values())
    assert len(client.metrics) == 61  # and epsilon
    state = json.loads(client.tags[f"{SHARED}{client.tags[VIEW]}"])
    [drawn] = [
        chart for chart in state["compareRunCharts"] if "against epsilon" in chart["displayName"]
    ]
    values = {m.key: m.value for m in client.metrics if m.key != "epsilon"}
    shown = {key: values.pop(key) for key in drawn["selectedMetricKeys"]}
    assert 5 < len(shown) < 60 and min(shown.values()) >= max(values.values())


def test_names_are_such_as_mlflow_takes_and_stay_different(small: Path, home: Home) -> None:
    labels = ["a, (b)", "a; [b]", "../a/b", "ä=1", "a=1"]
    algorithms = [
        {"name": "dp_sgd", "label": label, "parameters": {"steps": 2}} for label in labels
    ]
    cells, config = cells_of(small, home, algorithms=algorithms)
    names = list(lines_of(cells, config, "accuracy"))
    assert len(names) == len(labels)
    for name in names:
        _validate_metric_name(name)


def test_nothing_is_written_without_a_metric() -> None:
    from tasks.compare import parse_compare

    client: Any = Client()
    config = parse_compare({"data": "census", "algorithms": [{"name": "dp_sgd"}]})
    write_view(client, "7", "abc", [], config)
    assert client.tags == {f"abc {COMPARISON}": "abc"} and not client.metrics
    assert view_of({}) is None
    assert comparison_view("p", ["released.accuracy"], [], [])["compareRunCharts"]
