"""What MLflow's own pages show of a comparison: lines against epsilon in the parent, and a view with chosen columns.

MLflow keeps a shared view (its button "Share view") as JSON in a tag of the experiment; this writes such a tag, so that
a link opens all runs of one comparison with algorithm, epsilon, delta and adjacency as columns, and curves overlaid.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric

from tasks.compare.cell import Record
from tasks.compare.config import CompareConfig
from tasks.compare.grid import Setting
from tasks.compare.tracking import COMPARISON, child_name

VIEW = "dpflows.view"  # tag of an experiment: the key of the view of its latest comparison
SHARED = "mlflow.sharedViewState."
TAG_LENGTH = 5000
THOUSANDTHS = "by_1000_epsilon"


def first_metric(records: Sequence[Record], config: CompareConfig) -> str | None:
    """The metric that lines are drawn of: the first of the configuration, else of the records."""
    seen = dict.fromkeys(name for record in records for name in record["metrics"])
    return next((name for name in (*(config.metrics or ()), *seen) if name in seen), None)


def prefix_of(setting: Setting) -> str:
    return "released" if setting.job.public else "internal"


def lines_of(
    cells: Sequence[tuple[Setting, Record]], config: CompareConfig, metric: str
) -> dict[str, dict[int, float]]:
    """Mean of ``metric`` by line and 1000 epsilon, over finished private cells.

    A step of MLflow is a whole number, so epsilon 0.4 is step 400.
    """
    values: dict[str, dict[int, list[float]]] = {}
    keys: dict[str, str] = {}
    for setting, record in cells:
        value, epsilon = record["metrics"].get(metric), record["epsilon"]
        if epsilon is not None and value is not None:
            name = child_name(setting, config).replace(f" {setting.level}", "")
            key = keys.setdefault(name, f"{prefix_of(setting)}.{metric}_{THOUSANDTHS}/{metric_name(name, len(keys))}")
            values.setdefault(key, {}).setdefault(round(1000 * epsilon), []).append(value)
    return {key: {step: float(np.mean(found)) for step, found in own.items()} for key, own in values.items()}


def metric_name(name: str, number: int) -> str:
    """``name`` in the letters that MLflow takes; with its ``number`` where others were replaced, so that it is one."""
    plain = re.sub(r"[^A-Za-z0-9_. :-]+", "_", name.replace("=", ":"))
    return plain if plain == name.replace("=", ":") else f"{plain} {number}"


def write_view(
    client: MlflowClient,
    experiment: str,
    parent: str,
    cells: Sequence[tuple[Setting, Record]],
    config: CompareConfig,
) -> None:
    """Write the lines to the parent and the view to the experiment; nothing where no cell has a metric."""
    client.set_tag(parent, COMPARISON, parent)
    metric = first_metric([record for _, record in cells], config)
    if metric is None:
        return
    lines = lines_of(cells, config, metric)
    now = int(time.time() * 1000)
    points = [Metric(key, value, now, step) for key, own in lines.items() for step, value in sorted(own.items())]
    client.log_batch(parent, metrics=points)
    names = {f"{prefix_of(setting)}.{metric}" for setting, _ in cells}
    curves = {f"{prefix_of(s)}.curve.{metric}" for s, r in cells if any(metric in point for point in r["curve"])}
    key = f"dpflows-{parent[:12]}"
    best_first = sorted(lines, key=lambda line: -max(lines[line].values()))
    for count in range(len(lines), -1, -1):  # a tag may be too short for the names of all lines: the best stay
        state = view_state(parent, sorted(names), sorted(best_first[:count]), sorted(curves))
        text = json.dumps(state, separators=(",", ":"))
        if len(text) <= TAG_LENGTH:
            client.set_experiment_tag(experiment, f"{SHARED}{key}", text)
            client.set_experiment_tag(experiment, VIEW, key)
            return


def view_state(parent: str, names: Sequence[str], lines: Sequence[str], curves: Sequence[str]) -> dict[str, Any]:
    """The state of MLflow's page of runs: filter, order, columns, the parent opened, and charts."""
    section = str(uuid5(NAMESPACE_URL, parent))
    charts: list[dict[str, Any]] = []
    if lines:
        charts.append(line_chart(f"{names[0]} against 1000 epsilon", lines))
    charts += [line_chart(f"{name} against iterations", [name]) for name in curves]
    charts += [{"type": "BAR", "metricKey": name, "displayName": name} for name in (*names, "internal.fit_seconds")]
    shared = {"metricSectionId": section, "deleted": False, "isGenerated": False, "runsCountToCompare": 100}
    columns = [f"params.`{key}`" for key in ("label", "epsilon", "delta", "adjacency", "loss")]
    # MLflow shows metrics at the left of parameters: more of them would push epsilon out of the window.
    columns += [f"metrics.`{key}`" for name in names for key in (name, f"{name}_sd")]
    return {
        "searchFilter": f"tags.`{COMPARISON}` = '{parent}'",
        "orderByKey": f"metrics.`{names[0]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "selectedColumns": [*columns, "metrics.`internal.fit_seconds`"],
        "runsExpanded": {parent: True},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunSections": [
            {
                "uuid": section,
                "name": "Comparison",
                "display": True,
                "isReordered": False,
                "deleted": False,
                "isGenerated": False,
            }
        ],
        "compareRunCharts": [{"uuid": f"{section}-{k}", **shared, **chart} for k, chart in enumerate(charts)],
    }


def line_chart(title: str, keys: Sequence[str]) -> dict[str, Any]:
    """A chart of stepped metrics, all of ``keys`` in one."""
    return {
        "type": "LINE",
        "metricKey": keys[0],
        "selectedMetricKeys": list(keys),
        "displayName": title,
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "displayPoints": True,
        "range": {},
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": False,
    }


def view_of(tags: Mapping[str, str]) -> str | None:
    """The key of the view of an experiment's latest comparison."""
    return tags.get(VIEW)
