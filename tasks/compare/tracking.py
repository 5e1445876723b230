"""A comparison in MLflow: one parent run, and a child for each line at each guarantee, written in
bulk.

What MLflow's own pages show of a comparison: lines against epsilon in the parent, and a view with
chosen columns.

MLflow keeps a shared view (its button "Share view") as JSON in a tag of the experiment; this writes
such a tag, so that a link opens all runs of one comparison with algorithm, epsilon, delta and
adjacency as columns, and curves overlaid.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from tasks.compare.cell import CellRecord
from tasks.compare.config import NON_PRIVATE, CompareConfig
from tasks.compare.grid import Setting
from tasks.compare.statistics import interval
from tasks.compare.variants import losses_of, several
from tasks.drawing import curves
from tasks.drawing.chart import INK, REFERENCE
from tasks.record import tracking, view

PARENT = view.PARENT
COMPARISON = "dpflows.comparison"  # tag of all runs of a comparison: the id of its parent
TABLE = "cells.json"
COLUMNS = ("repeat", "fold", "draw", "status", "error", "n", "seconds", "spent_epsilon", "cell")


def child_name(setting: Setting, config: CompareConfig) -> str:
    """For example "adult dp_sgd eps=0.4"; loss, penalty and adjacency where the comparison has
    several.
    """
    facts, shown = setting.facts, several(config, setting.config.data.name)
    parts = [setting.data, setting.label]
    parts += [setting.level] if setting.private else []
    parts += [facts["loss"]] if shown["loss"] else []
    parts += [
        f"{name}={facts[name]:g}"
        for name in ("l1", "l2")
        if shown[name] and facts[name] is not None
    ]
    parts += [facts["adjacency"]] if shown["adjacency"] and setting.private else []
    return " ".join(parts)


def child_params(setting: Setting, config: CompareConfig) -> dict[str, Any]:
    """The columns of MLflow's table of runs."""
    facts, protocol = setting.facts, config.protocol
    shown = {
        key: facts[key]
        for key in ("data", "algorithm", "label", "encoding", "loss", "l1", "dimension")
    }
    shown |= {
        "l2": "own rule" if facts["l2"] is None else facts["l2"],
        "preset": facts["preset"] or "none",
    }
    shown |= {
        key: "none" if facts[key] is None else facts[key]
        for key in ("epsilon", "delta", "adjacency")
    }
    shown |= {} if setting.noise_multiplier is None else {"epsilon": "from the noise"}
    shown |= {
        "protocol": protocol.name,
        "repeats": protocol.repeats,
        "folds": protocol.folds,
        "draws": protocol.draws,
    }
    shown |= {f"loss.{key}": value for key, value in facts["loss_parameters"].items()}
    return shown | {f"algorithm.{key}": value for key, value in facts["parameters"].items()}


def child_metrics(setting: Setting, records: Sequence[CellRecord]) -> dict[str, float]:
    """Mean, sd and interval of every metric over the finished cells; exact numbers on private rows
    are ``internal``, those on published rows ``released``."""
    prefix = "released" if setting.job.public else "internal"
    done = [record for record in records if record["status"] == "done"]
    columns = {
        f"{prefix}.{name}": [r["metrics"].get(name) for r in done] for name in names_of(done)
    }
    columns["internal.fit_seconds"] = [record["seconds"] for record in done]
    found: dict[str, float] = {"cells.done": len(done), "cells.failed": len(records) - len(done)}
    for name, values in columns.items():
        found |= spread(name, np.array(known(values), dtype=float))
    if spent := known([record["spent_epsilon"] for record in done]):
        found["spent.epsilon"] = max(spent)
    return found


def known(values: Sequence[float | None]) -> list[float]:
    """Those that are numbers: what is undefined is in no mean."""
    return [value for value in values if value is not None and isfinite(value)]


def names_of(records: Sequence[CellRecord]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record["metrics"]))


def spread(name: str, values: np.ndarray) -> dict[str, float]:
    """Mean under ``name``; ``_sd`` beside it for two cells and more, ``_low`` and ``_high`` for
    three and more.
    """
    if not len(values):
        return {}
    found = {name: float(values.mean())}
    if len(values) > 1:
        found[f"{name}_sd"] = float(values.std(ddof=1))
    low, high = interval(values)
    if low is not None and high is not None:
        found |= {f"{name}_low": low, f"{name}_high": high}
    return found


def mean_curve(setting: Setting, records: Sequence[CellRecord]) -> list[Metric]:
    """The curves of the cells, averaged step by step over the cells that have the step."""
    prefix = "released" if setting.job.public else "internal"
    points = points_of(records)
    now = int(time.time() * 1000)
    steps = {step for _, step in points}
    kept = {
        int(row["step"])
        for row in curves.thin([{"step": s} for s in sorted(steps)], curves.CURVE_POINTS)
    }
    return [
        Metric(
            "spent.epsilon" if key == "spent_epsilon" else f"{prefix}.curve.{key}",
            float(np.mean(values)),
            now,
            step,
        )
        for (key, step), values in sorted(points.items())
        if step in kept
    ]


def points_of(records: Sequence[CellRecord]) -> dict[tuple[str, int], list[float]]:
    """Values of the cells' curves by name and step."""
    points: dict[tuple[str, int], list[float]] = {}
    for point in (point for record in records for point in record["curve"]):
        for key, value in point.items():
            if key != "step" and value is not None and isfinite(value):
                points.setdefault((key, int(point["step"])), []).append(value)
    return points


def open_child(
    client: MlflowClient, experiment: str, parent: str, setting: Setting, config: CompareConfig
) -> str:
    """Create the RUNNING child of a setting with its parameters; returns its id."""
    tags = {PARENT: parent, COMPARISON: parent, "dpflows.data": setting.data}
    tags["dpflows.algorithm"] = setting.config.algorithm.name
    tags[view.COLOUR] = colour_of(setting.label, setting.config.algorithm.name, config)
    run_id = tracking.open_run(client, experiment, child_name(setting, config), tags)
    tracking.log_params(client, run_id, child_params(setting, config))
    return run_id


def colour_of(label: str, algorithm: str, config: CompareConfig) -> str:
    """The colour of a setting's run: one for each algorithm, and others for lines without privacy
    beside them.
    """
    labels = [entry.shown for entry in config.algorithms]
    if label in labels:
        return view.colour(labels.index(label))
    return INK if algorithm == NON_PRIVATE else REFERENCE


def close_child(
    client: MlflowClient, run_id: str, setting: Setting, records: Sequence[CellRecord], status: str
) -> None:
    """Write what the cells of a setting came to, as metrics, curves and a table, and end the
    run.
    """
    now = int(time.time() * 1000)
    curve = mean_curve(setting, records)
    numbers = child_metrics(setting, records)
    if any(point.key == "spent.epsilon" for point in curve):
        numbers.pop("spent.epsilon", None)
    metrics = [Metric(key, float(value), now, 0) for key, value in numbers.items()]
    tags = [RunTag("mlflow.loggedArtifacts", json.dumps([{"path": TABLE, "type": "table"}]))]
    client.log_batch(run_id, metrics=[*metrics, *curve], tags=tags)
    client.log_text(run_id, json.dumps(cell_table(records)), TABLE)
    tracking.close_run(client, run_id, status)


def cell_table(records: Sequence[CellRecord]) -> dict[str, Any]:
    """Folds and draws as MLflow shows a table: columns and rows."""
    names = names_of(records)
    rows = [
        [r.get(column) for column in COLUMNS] + [r["metrics"].get(name) for name in names]
        for r in records
    ]
    return {"columns": [*COLUMNS, *names], "data": rows}


def parent_levels(config: CompareConfig) -> dict[str, str]:
    """The values of epsilon, or of the noise from which it follows."""
    noise = config.privacy.noise_multiplier
    if noise is None:
        return {"epsilon": ", ".join(f"{epsilon:g}" for epsilon in config.epsilons)}
    return {
        "epsilon": "from the noise",
        "noise_multiplier": ", ".join(f"{value:g}" for value in noise),
    }


def parent_params(config: CompareConfig, counts: Mapping[str, int]) -> dict[str, Any]:
    """What a comparison was, in the parent's columns."""
    return {
        "data": ", ".join(data.name for data in config.data),
        "algorithms": ", ".join(entry.shown for entry in config.algorithms),
        "losses": ", ".join(
            dict.fromkeys(loss for data in config.data for loss in losses_of(config, data))
        ),
        **parent_levels(config),
        "delta": config.delta,
        "adjacency": ", ".join(map(str, config.privacy.adjacency)),
        "protocol": config.protocol.words,
        "runner": config.runner,
        "seed": config.seed,
        **{f"cells.{key}": value for key, value in counts.items()},
    }


BY = "by_epsilon"
EPSILON = "epsilon"  # of the parent, at the steps of its lines: what they are drawn against


def first_metric(records: Sequence[CellRecord], config: CompareConfig) -> str | None:
    """The metric that lines are drawn of: the first of the configuration, else of the records."""
    seen = dict.fromkeys(name for record in records for name in record["metrics"])
    return next((name for name in (*(config.metrics or ()), *seen) if name in seen), None)


def prefix_of(setting: Setting) -> str:
    return "released" if setting.job.public else "internal"


def lines_of(
    cells: Sequence[tuple[Setting, CellRecord]], config: CompareConfig, metric: str
) -> dict[str, dict[int, float]]:
    """Mean of ``metric`` by line and 1000 epsilon, over finished private cells.

    A step of MLflow is a whole number, so epsilon 0.4 is step 400; charts are drawn against the
    metric ``epsilon`` of the same steps.
    """
    values: dict[str, dict[int, list[float]]] = {}
    keys: dict[str, str] = {}
    for setting, record in cells:
        value, epsilon = record["metrics"].get(metric), record["epsilon"]
        if epsilon is not None and value is not None:
            name = child_name(setting, config).replace(f" {setting.level}", "")
            key = keys.setdefault(
                name, f"{prefix_of(setting)}.{metric}_{BY}/{metric_name(name, len(keys))}"
            )
            values.setdefault(key, {}).setdefault(round(1000 * epsilon), []).append(value)
    return {
        key: {step: float(np.mean(found)) for step, found in own.items()}
        for key, own in values.items()
    }


def metric_name(name: str, number: int) -> str:
    """``name`` in the letters that MLflow takes; with its ``number`` where others were replaced, so
    that it is one.
    """
    plain = re.sub(r"[^A-Za-z0-9_. :-]+", "_", name.replace("=", ":"))
    return plain if plain == name.replace("=", ":") else f"{plain} {number}"


def line_points(lines: Mapping[str, Mapping[int, float]]) -> list[Metric]:
    now = int(time.time() * 1000)
    points = [
        Metric(key, value, now, step)
        for key, own in lines.items()
        for step, value in sorted(own.items())
    ]
    axis = {step for own in lines.values() for step in own}
    return points + [Metric(EPSILON, step / 1000, now, step) for step in sorted(axis)]


def has_curve(record: CellRecord, metric: str) -> bool:
    return any(metric in point for point in record["curve"])


def write_view(
    client: MlflowClient,
    experiment: str,
    parent: str,
    cells: Sequence[tuple[Setting, CellRecord]],
    config: CompareConfig,
) -> None:
    """Write the lines to the parent and the view to the experiment; nothing where no cell has a
    metric.
    """
    client.set_tag(parent, COMPARISON, parent)
    metric = first_metric([record for _, record in cells], config)
    if metric is None:
        return
    lines = lines_of(cells, config, metric)
    client.log_batch(parent, metrics=line_points(lines))
    names = {f"{prefix_of(setting)}.{metric}" for setting, _ in cells}
    curves = {f"{prefix_of(s)}.curve.{metric}" for s, r in cells if has_curve(r, metric)}
    key = f"dpflows-{parent[:12]}"
    best_first = sorted(lines, key=lambda line: -max(lines[line].values()))
    # a tag may be too short for the names of all lines: the best stay
    for count in range(len(lines), -1, -1):
        state = comparison_view(parent, sorted(names), sorted(best_first[:count]), sorted(curves))
        if view.write_view(client, experiment, key, state, view.VIEW):
            return


def comparison_view(
    parent: str, names: Sequence[str], lines: Sequence[str], curves: Sequence[str]
) -> dict[str, Any]:
    """The page of runs of one comparison: its lines against epsilon, curves, bars."""
    charts: list[dict[str, Any]] = []
    if lines:
        charts.append(view.line_chart(f"{names[0]} against epsilon", lines, EPSILON))
        # The lines are numbers of one run, so of one colour; a point is of its own run.
        charts.append(view.scatter(f"{names[0]} by epsilon", "epsilon", names[0]))
    charts += [view.line_chart(f"{name} against iterations", [name]) for name in curves]
    charts.append(view.parallel("label, epsilon and quality", ["label", "epsilon"], names))
    charts += [view.bar(name) for name in (*names, "internal.fit_seconds")]
    columns = [f"params.`{key}`" for key in ("label", "epsilon", "delta", "adjacency", "loss")]
    # MLflow shows metrics at the left of parameters: more of them would push epsilon out of the
    # window.
    columns += [f"metrics.`{key}`" for name in names for key in (name, f"{name}_sd")]
    return view.view_state(
        f"tags.`{COMPARISON}` = '{parent}'",
        [*columns, "metrics.`internal.fit_seconds`"],
        charts,
        "Comparison",
        f"metrics.`{names[0]}`",
        parent,
    )
