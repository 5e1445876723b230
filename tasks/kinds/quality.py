"""How well scores predict labels, by kind of label; and in each group of a declared column.

Which attributes a sparse model uses: a table of its weights, words for the statement, coverage of a
known truth.

Everything here follows from released weights and declarations, so it may leave with them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.algorithms import registry
from dpcore.metrics import (
    accuracy,
    average_precision,
    balanced_accuracy,
    brier_score,
    coverage,
    group_means,
    log_loss,
    mean_absolute_error,
    mean_recall,
    mean_squared_error,
    probabilities,
    r2,
    roc_auc,
    support_precision_recall,
)
from dpcore.penalties import features, ranked_columns
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.preprocess.design import Data
from dpcore.train import Planned
from tasks.drawing.curves import curve_figure
from tasks.kinds.base import Job, Metrics

if TYPE_CHECKING:
    from tasks.schema import LabelSpec


Array = np.ndarray

# Numbers by kind of label, of models that predict one.
BY_LABEL = {
    "binary": (
        "accuracy",
        "balanced_accuracy",
        "roc_auc",
        "average_precision",
        "brier_score",
        "log_loss",
    ),
    "classes": ("accuracy", "balanced_accuracy", "brier_score", "log_loss"),
    "regression": ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error", "r2"),
}
SUBGROUPS = "report/subgroups.json"


def predicted(job: Job, part: Data, weights: Array, loss: str) -> dict[str, float]:
    """Metrics of linear ``weights`` that were trained with ``loss``; "" for the majority class,
    which scores all alike.

    Two classes: accuracy, balanced accuracy, ROC AUC, average precision. Several (weights (outputs
    * d,), class after class): accuracy and balanced accuracy of the class with the largest score.
      Both: the Brier score and the log loss,
    where the loss estimates probabilities. A regression: see ``regression_errors``.
    """
    kind = job.schema.label.kind
    scores = scores_of(job, part, weights) if loss else same_scores(job, part, weights)
    if kind == "regression":
        return regression_errors(job.schema.label, part.y, scores)
    if kind == "classes":
        label = np.argmax(scores, axis=1)
        found = {
            "accuracy": float(np.mean(label == part.y)),
            "balanced_accuracy": mean_recall(part.y, label),
        }
    else:
        found = {
            "accuracy": accuracy(part.y, scores),
            "balanced_accuracy": balanced_accuracy(part.y, scores),
            "roc_auc": roc_auc(part.y, scores),
            "average_precision": average_precision(part.y, scores),
        }
    joint = loss == "softmax" if kind == "classes" else loss == "logistic"
    chance = probabilities(loss, scores) if joint else None
    if chance is None:
        return found
    return found | {
        "brier_score": brier_score(part.y, chance),
        "log_loss": log_loss(part.y, scores),
    }


def regression_errors(label: LabelSpec, y: Array, predicted: Array) -> dict[str, float]:
    """Errors of predictions (n,) of scaled labels ``y`` (n,).

    ``mean_squared_error`` is in the scale of the training (``label.scaled_to``);
    root_mean_squared_error and mean_absolute_error are in the label's own unit. Labels were cut to
    their declared bounds before. ``r2`` is the share of the variance of ``y`` that is explained.
    """
    low, high = float(label.low or 0.0), float(label.high or 0.0)
    unit = (high - low) / (label.scaled_to[1] - label.scaled_to[0])
    squared = mean_squared_error(y, predicted)
    return {
        "mean_squared_error": squared,
        "root_mean_squared_error": unit * math.sqrt(squared),
        "mean_absolute_error": unit * mean_absolute_error(y, predicted),
        "r2": r2(y, predicted),
    }


def same_scores(job: Job, part: Data, weights: Array) -> Array:
    """The weights of the constant column as the scores of every record.

    Where rows are scaled to unit norm their constant column is not, and would rank the records by
    their norms.
    """
    constant = weights.reshape(job.problem.outputs, -1)[:, -1]
    return (
        np.tile(constant, (len(part.y), 1))
        if job.schema.label.kind == "classes"
        else np.full(len(part.y), constant[0])
    )


def scores_of(job: Job, part: Data, weights: Array) -> Array:
    """Scores (n,), or (n, K) of several classes."""
    if job.schema.label.kind == "classes":
        return np.asarray(part.X @ weights.reshape(job.problem.outputs, -1).T)
    return np.asarray(part.X @ weights)


def right_or_error(job: Job, part: Data, weights: Array) -> tuple[str, Array]:
    """Whether each record is predicted rightly (``accuracy``), or its squared error; with the name
    of the mean.
    """
    scores, kind = scores_of(job, part, weights), job.schema.label.kind
    if kind == "regression":
        return "mean_squared_error", (scores - part.y) ** 2
    if kind == "classes":
        return "accuracy", np.argmax(scores, axis=1) == part.y
    return "accuracy", (scores >= 0.0) == (np.asarray(part.y) > 0.0)


def means_by_group(
    job: Job, values: Array, metric: str, groups: Array | None, folder: Path | None
) -> dict[str, float]:
    """Mean of ``values`` (n,) and size of every group, as ``subgroup.NAME.metric``; empty without
    ``groups``.

    Groups below ``evaluate.subgroup_least`` records are put together. With ``folder`` the table is
    written to ``report/subgroups.json`` under the names as they are; a metric's name takes fewer
    letters.
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
        head = {
            "schema_version": 1,
            "column": job.config.evaluate.subgroup,
            "least": least,
            "metric": metric,
        }
        (folder / SUBGROUPS).parent.mkdir(parents=True, exist_ok=True)
        (folder / SUBGROUPS).write_text(
            json.dumps({**head, "groups": rows}, indent=1), encoding="utf-8"
        )
    found: dict[str, float] = {}
    for key, (size, value) in zip(plain_names(table), table.values(), strict=True):
        found |= {f"subgroup.{key}.{metric}": value, f"subgroup.{key}.rows": float(size)}
    return found


def write_numbers(
    job: Job, folder: Path, named: Mapping[str, Metrics], found: Metrics, curve: Sequence[Metrics]
) -> None:
    """The numbers as JSON, and the curves as figures; ``named``: the metrics of the model and of
    each baseline.
    """
    kind = job.kind
    stored = {
        "schema_version": 1,
        "internal": not job.public,
        **kind.page(job, named, found),
        "curve": list(curve),
    }
    (folder / kind.numbers).parent.mkdir(parents=True, exist_ok=True)
    (folder / kind.numbers).write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if not curve:
        return
    (folder / kind.figures).mkdir(parents=True, exist_ok=True)
    rows = [{"label": f"private {kind.noun}", "curve": curve}]
    title = f"{job.schema.name}{kind.measured_on}{'' if job.public else ' (internal)'}"
    for metric in kind.curves(job):
        lines = {
            kind.baseline_words.get(name, name.rstrip("_").replace("_", " ")): values[metric]
            for name, values in named.items()
            if name and math.isfinite(values.get(metric, math.nan))
        }
        curve_figure(rows, lines, metric, title, folder / kind.figures / f"{metric}.png")


def plain_names(table: Mapping[str, Any]) -> list[str]:
    """The names of ``table`` in letters that MLflow takes for a metric, each once."""
    found: list[str] = []
    for name in table:
        plain = re.sub(r"[^0-9A-Za-z_-]+", "_", name).strip("_")[:60] or "group"
        found.append(plain if plain not in found else f"{plain}_{len(found)}")
    return found


TABLE = "tables/attributes.json"
# How MLflow knows which files of a run are tables.
TABLE_TAG = "mlflow.loggedArtifacts"
TABLE_NOTE = json.dumps([{"path": TABLE, "type": "table"}])
# What stands between the name of an attribute and the part of it that a column holds: a level, a
# hat, part of a date.
MARKS = ("=", "~", ".")
# Sizes K of a selection for which coverage of the truth is measured (Chen 2020, 4.6.6).
COUNTS = (20, 25, 30, 40)
# A statement names at most this many columns; the table has them all.
NAMED = 60


def is_sparse(job: Job, planned: Planned) -> bool:
    """Whether the model is one of few columns: trained with an L1 penalty, or by an algorithm that
    selects.
    """
    return job.problem.kind == "linear" and (job.problem.l1 > 0 or registry[planned.name].selects)


def used(job: Job, weights: Array) -> list[dict[str, Any]]:
    """One row for each weight that is not zero, by falling size: rank, attribute, column, (class,)
    weight, sign.

    Sizes compare where columns have one scale, as one-hot, min-max and centred columns have.
    Without the constant.
    """
    names, owners = job.encoder.design.names, attributes(job.encoder)
    W = weights.reshape(job.problem.outputs, -1)
    rows: list[dict[str, Any]] = []
    for column in ranked_columns(W, job.problem.intercept):
        for label, weight in enumerate(W[:, column]):
            if weight == 0.0:
                continue
            kind = {"class": job.schema.label.levels[label]} if job.problem.outputs > 1 else {}
            place = {"rank": len(rows) + 1, "attribute": owners[column], "column": names[column]}
            rows.append(
                {**place, **kind, "weight": float(weight), "sign": "+" if weight > 0 else "-"}
            )
    return rows


def write_table(folder: Path, job: Job, planned: Planned, weights: Array) -> list[str]:
    """Write the table of ``used`` to ``folder`` in MLflow's layout; return the columns' names,
    largest weight first.
    """
    rows = used(job, weights)
    heads = list(rows[0]) if rows else ["rank", "attribute", "column", "weight", "sign"]
    path = folder / TABLE
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"columns": heads, "data": [list(row.values()) for row in rows]}
    path.write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
    return columns_used(job, planned, weights)


def columns_used(job: Job, planned: Planned, weights: Array) -> list[str]:
    """Names of the columns with a weight, largest first; empty where the model is not a sparse
    one.
    """
    if not is_sparse(job, planned):
        return []
    return list(dict.fromkeys(row["column"] for row in used(job, weights)))


def columns_words(job: Job, planned: Planned, weights: Array) -> list[str]:
    """A line for the statement: which columns the released model uses."""
    if not is_sparse(job, planned):
        return []
    names = columns_used(job, planned, weights)
    shown = ", ".join(names[:NAMED]) or "none"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    total = job.problem.dimension - int(job.problem.intercept)
    return [
        f"the columns that the model uses, {len(names)} of {total}, which its weights show: "
        f"{shown}{more}"
    ]


def attributes(encoder: Encoder | MatrixEncoder) -> list[str]:
    """The declared column that each column of the design comes from, the constant left out."""
    declared = sorted(encoder.inputs, key=len, reverse=True)
    names = encoder.design.names[: -1 if encoder.design.intercept else None]
    return [
        next((c for c in declared if name == c or name.startswith(_starts(c))), name)
        for name in names
    ]


def _starts(column: str) -> tuple[str, ...]:
    return tuple(column + mark for mark in MARKS)


def truth_covered(job: Job, weights: Array) -> dict[str, float]:
    """xi_K, precision and recall of the attributes that the schema declares as relevant; empty
    where it does not.

    An attribute counts by its largest weight.
    """
    if not job.schema.relevant:
        return {}
    owners = attributes(job.encoder)
    names = list(dict.fromkeys(owners))
    sizes = np.abs(features(weights.reshape(job.problem.outputs, -1), job.problem.intercept)).max(
        axis=0
    )
    largest = np.array(
        [max(size for size, owner in zip(sizes, owners, strict=True) if owner == n) for n in names]
    )
    relevant = [names.index(name) for name in job.schema.relevant]
    precision, recall = support_precision_recall(largest, relevant)
    found = {
        f"coverage_at_{count}": coverage(largest, relevant, count)
        for count in COUNTS
        if count <= len(names)
    }
    return {**found, "support_precision": precision, "support_recall": recall}
