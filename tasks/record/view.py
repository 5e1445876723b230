"""What MLflow's pages show at first: columns and charts of an experiment, colours.

MLflow keeps a shared view (its button "Share view") as JSON in a tag of the experiment; a link that
names the tag opens it. Released numbers stand before internal ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from tasks.drawing.chart import COLOURS

if TYPE_CHECKING:
    from mlflow import MlflowClient

SHARED = "mlflow.sharedViewState."
VIEW = "dpflows.view"  # tag of an experiment: the key of the view of its latest comparison
TRAININGS = "dpflows.trainings"  # the key of the view of its trainings
TRAINING_KEY = "dpflows-trainings"
TAG_LENGTH = 5000
COLUMNS = 2  # of charts: with three their titles and axes are cut at 1,440 px
COLOUR = "mlflow.runColor"
PARENT = "mlflow.parentRunId"
# The side of MLflow's pages that is about models and not about prompts.
SIDE = "workflowType=machine_learning"
KIND = {"mlflow.experimentKind": "custom_model_development"}


def run_title(data: str, algorithm: str, epsilon: float) -> str:
    """The name of a training: ``visits · scaled_gd · ε 0.5``."""
    return f"{data} · {algorithm} · ε {epsilon:g}"


def run_place(experiment: str, run_id: str) -> str:
    """The page of a run, below the address of MLflow's pages."""
    return f"#/experiments/{experiment}/runs/{run_id}"


def colour(index: int) -> str:
    """A colour that is told from its neighbours; MLflow's own ones follow from ids."""
    return COLOURS[index % len(COLOURS)]


def write_view(
    client: MlflowClient, experiment: str, key: str, state: Mapping[str, Any], tag: str
) -> bool:
    """Keep a view under ``key`` and name it in ``tag``; False where it is too long for MLflow."""
    text = json.dumps(state, separators=(",", ":"))
    if len(text) > TAG_LENGTH:
        return False
    client.set_experiment_tag(experiment, f"{SHARED}{key}", text)
    client.set_experiment_tag(experiment, tag, key)
    return True


def show_trainings(client: MlflowClient, experiment: str, metrics: Sequence[str]) -> None:
    """The view of an experiment's trainings: guarantee and main metric as columns, quality against
    epsilon, epsilon spent along the iterations.
    """
    found = client.get_experiment(experiment)
    kept = found.tags.get(SHARED + TRAINING_KEY, "")  # one of an earlier version is written anew
    if f'"columns":{COLUMNS}' in kept and (not metrics or metrics[0] in kept):
        return
    columns = [
        "params.`data.name`",
        *(f"params.`{key}`" for key in GUARANTEE),
        *(f"metrics.`{name}`" for name in metrics),
        *(f"tags.`{key}`" for key in ("dpflows.releasable", "dpflows.released_as")),
    ]
    charts = [
        *(scatter(f"{name} against epsilon", "privacy.epsilon", name) for name in metrics[:1]),
        line_chart("epsilon spent along the iterations", ["spent.epsilon"]),
        *(bar(name) for name in metrics),
    ]
    state = view_state("", columns, charts, "Trainings")
    write_view(client, experiment, TRAINING_KEY, state, TRAININGS)


GUARANTEE = ("privacy.epsilon", "privacy.delta", "privacy.adjacency", "data.n", "algorithm.name")


def view_state(
    search: str,
    columns: Sequence[str],
    charts: Sequence[Mapping[str, Any]],
    title: str,
    order: str = "attributes.start_time",
    opened: str | None = None,
) -> dict[str, Any]:
    """The state of MLflow's page of runs: filter, order, columns, an opened parent, and charts."""
    section = str(uuid5(NAMESPACE_URL, f"{title}{search}"))
    shared = {
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 100,
    }
    return {
        "searchFilter": search,
        "orderByKey": order,
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "selectedColumns": list(columns),
        "runsExpanded": {} if opened is None else {opened: True},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunSections": [
            {
                "uuid": section,
                "name": title,
                "display": True,
                "isReordered": False,
                "deleted": False,
                "isGenerated": False,
                "columns": COLUMNS,
            }
        ],
        "compareRunCharts": [
            {"uuid": f"{section}-{k}", **shared, **chart} for k, chart in enumerate(charts)
        ],
    }


def bar(name: str) -> dict[str, Any]:
    """A bar for each run."""
    return {"type": "BAR", "metricKey": name, "displayName": name}


def scatter(title: str, parameter: str, metric: str) -> dict[str, Any]:
    """A point for each run: a metric against a parameter."""
    return {
        "type": "SCATTER",
        "displayName": title,
        "xaxis": {"key": parameter, "type": "PARAM"},
        "yaxis": {"key": metric, "type": "METRIC"},
    }


def parallel(title: str, parameters: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    """A line for each run through few axes, so that their labels can be read."""
    return {
        "type": "PARALLEL",
        "displayName": title,
        "selectedParams": list(parameters),
        "selectedMetrics": list(metrics),
        "showAllRuns": False,
    }


def line_chart(title: str, keys: Sequence[str], against: str | None = None) -> dict[str, Any]:
    """A chart of stepped metrics, all of ``keys`` in one; ``against`` another metric of the same
    steps, or the steps.
    """
    return {
        "type": "LINE",
        "metricKey": keys[0],
        "selectedMetricKeys": list(keys),
        "displayName": title,
        "xAxisKey": "step" if against is None else "metric",
        "selectedXAxisMetricKey": against or "",
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


def view_of(tags: Mapping[str, str], tag: str = VIEW) -> str | None:
    """The key of the view that ``tag`` of an experiment names."""
    return tags.get(tag)
