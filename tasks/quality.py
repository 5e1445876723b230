"""How well scores predict labels, by kind of label; and in each group of a declared column."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.data import Data
from dpcore.metrics import (
    accuracy,
    average_precision,
    balanced_accuracy,
    brier_score,
    group_means,
    mean_absolute_error,
    mean_recall,
    mean_squared_error,
    probabilities,
    roc_auc,
)
from tasks.data.groups import check_group

if TYPE_CHECKING:
    from tasks.config import TrainConfig
    from tasks.schema import LabelSpec, Schema
    from tasks.training import Job

Array = np.ndarray

SUBGROUPS = "report/subgroups.json"


def check_subgroup(config: TrainConfig, schema: Schema) -> None:
    """Raise ``InputError`` where ``evaluate.subgroup`` names no column that makes groups."""
    name = config.evaluate.subgroup
    if name is not None:
        check_group(schema, name)


def predicted(job: Job, part: Data, weights: Array, loss: str) -> dict[str, float]:
    """Metrics of linear ``weights`` that were trained with ``loss``; "" for weights that no loss gave.

    Two classes: accuracy, balanced accuracy, ROC AUC, average precision. Several (weights (outputs * d,), class after
    class): accuracy and balanced accuracy of the class with the largest score. Both: the Brier score, where the loss
    estimates probabilities. A regression: see ``regression_errors``.
    """
    kind, scores = job.schema.label.kind, scores_of(job, part, weights)
    if kind == "regression":
        return regression_errors(job.schema.label, part.y, scores)
    if kind == "classes":
        label = np.argmax(scores, axis=1)
        found = {"accuracy": float(np.mean(label == part.y)), "balanced_accuracy": mean_recall(part.y, label)}
    else:
        found = {
            "accuracy": accuracy(part.y, scores),
            "balanced_accuracy": balanced_accuracy(part.y, scores),
            "roc_auc": roc_auc(part.y, scores),
            "average_precision": average_precision(part.y, scores),
        }
    joint = loss == "softmax" if kind == "classes" else loss == "logistic"
    chance = probabilities(loss, scores) if joint else None
    return found if chance is None else found | {"brier_score": brier_score(part.y, chance)}


def regression_errors(label: LabelSpec, y: Array, predicted: Array) -> dict[str, float]:
    """Errors of predictions (n,) of scaled labels ``y`` (n,).

    ``mean_squared_error`` is in the scale of the training (``label.scaled_to``); root_mean_squared_error and
    mean_absolute_error are in the label's own unit. Labels were cut to their declared bounds before.
    """
    low, high = float(label.low or 0.0), float(label.high or 0.0)
    unit = (high - low) / (label.scaled_to[1] - label.scaled_to[0])
    squared = mean_squared_error(y, predicted)
    return {
        "mean_squared_error": squared,
        "root_mean_squared_error": unit * math.sqrt(squared),
        "mean_absolute_error": unit * mean_absolute_error(y, predicted),
    }


def scores_of(job: Job, part: Data, weights: Array) -> Array:
    """Scores (n,), or (n, K) of several classes."""
    if job.schema.label.kind == "classes":
        return np.asarray(part.X @ weights.reshape(job.problem.outputs, -1).T)
    return np.asarray(part.X @ weights)


def by_group(job: Job, part: Data, weights: Array, groups: Array | None, folder: Path | None) -> dict[str, float]:
    """Accuracy (of a regression: mean squared error) in every group; see ``means_by_group``."""
    if groups is None:
        return {}
    scores = scores_of(job, part, weights)
    kind, metric = job.schema.label.kind, "accuracy"
    values: Array
    if kind == "regression":
        metric, values = "mean_squared_error", (scores - part.y) ** 2
    elif kind == "classes":
        values = np.argmax(scores, axis=1) == part.y
    else:
        values = (scores >= 0.0) == (np.asarray(part.y) > 0.0)
    return means_by_group(job, values, metric, groups, folder)


def means_by_group(job: Job, values: Array, metric: str, groups: Array | None, folder: Path | None) -> dict[str, float]:
    """Mean of ``values`` (n,) and size of every group, as ``subgroup.NAME.metric``; empty without ``groups``.

    Groups below ``evaluate.subgroup_least`` records are put together. With ``folder`` the table is written to
    ``report/subgroups.json`` under the names as they are; a metric's name takes fewer letters.
    """
    if groups is None:
        return {}
    least = job.config.evaluate.subgroup_least
    table = group_means(values, groups, least)
    if folder is not None:
        rows = [
            {"group": name, "rows": size, "value": value if math.isfinite(value) else None}
            for name, (size, value) in table.items()
        ]
        head = {"schema_version": 1, "column": job.config.evaluate.subgroup, "least": least, "metric": metric}
        (folder / SUBGROUPS).parent.mkdir(parents=True, exist_ok=True)
        (folder / SUBGROUPS).write_text(json.dumps({**head, "groups": rows}, indent=1), encoding="utf-8")
    found: dict[str, float] = {}
    for key, (size, value) in zip(plain_names(table), table.values(), strict=True):
        found |= {f"subgroup.{key}.{metric}": value, f"subgroup.{key}.rows": float(size)}
    return found


def plain_names(table: Mapping[str, Any]) -> list[str]:
    """The names of ``table`` in letters that MLflow takes for a metric, each once."""
    found: list[str] = []
    for name in table:
        plain = re.sub(r"[^0-9A-Za-z_-]+", "_", name).strip("_")[:60] or "group"
        found.append(plain if plain not in found else f"{plain}_{len(found)}")
    return found
