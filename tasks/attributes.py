"""Which attributes a sparse model uses: a table of its weights, words for the statement, coverage of a known truth.

Everything here follows from released weights and declarations, so it may leave with them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.algorithms import registry
from dpcore.metrics import coverage, support_precision_recall
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.proximal import features
from dpcore.selection import ranked_columns
from dpcore.train import Planned
from tasks.model import raw_columns
from tasks.training import Job

Array = np.ndarray

TABLE = "tables/attributes.json"
# How MLflow knows which files of a run are tables.
TABLE_TAG = "mlflow.loggedArtifacts"
TABLE_NOTE = json.dumps([{"path": TABLE, "type": "table"}])
# What stands between the name of an attribute and the part of it that a column holds: a level, a hat, part of a date.
MARKS = ("=", "~", ".")
# Sizes K of a selection for which coverage of the truth is measured (Chen 2020, 4.6.6).
COUNTS = (20, 25, 30, 40)
# A statement names at most this many columns; the table has them all.
NAMED = 60


def is_sparse(job: Job, planned: Planned) -> bool:
    """Whether the model is one of few columns: trained with an L1 penalty, or by an algorithm that selects."""
    return job.problem.kind == "linear" and (job.problem.l1 > 0 or registry[planned.name].selects)


def used(job: Job, weights: Array) -> list[dict[str, Any]]:
    """One row for each weight that is not zero, by falling size: rank, attribute, column, (class,) weight, sign.

    Sizes compare where columns have one scale, as one-hot, min-max and centred columns have. Without the constant.
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
            rows.append({**place, **kind, "weight": float(weight), "sign": "+" if weight > 0 else "-"})
    return rows


def write_table(folder: Path, job: Job, planned: Planned, weights: Array) -> list[str]:
    """Write the table of ``used`` to ``folder`` in MLflow's layout; return the columns' names, largest weight first."""
    rows = used(job, weights)
    heads = list(rows[0]) if rows else ["rank", "attribute", "column", "weight", "sign"]
    path = folder / TABLE
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"columns": heads, "data": [list(row.values()) for row in rows]}
    path.write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
    return columns_used(job, planned, weights)


def columns_used(job: Job, planned: Planned, weights: Array) -> list[str]:
    """Names of the columns with a weight, largest first; empty where the model is not a sparse one."""
    if not is_sparse(job, planned):
        return []
    return list(dict.fromkeys(row["column"] for row in used(job, weights)))


def words(job: Job, planned: Planned, weights: Array) -> list[str]:
    """A line for the statement: which columns the released model uses."""
    if not is_sparse(job, planned):
        return []
    names = columns_used(job, planned, weights)
    shown = ", ".join(names[:NAMED]) or "none"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    total = job.problem.dimension - int(job.problem.intercept)
    return [f"the columns that the model uses, {len(names)} of {total}, which its weights show: {shown}{more}"]


def attributes(encoder: Encoder | MatrixEncoder) -> list[str]:
    """The declared column that each column of the design comes from, the constant left out."""
    declared = sorted(raw_columns(encoder), key=len, reverse=True)
    names = encoder.design.names[: -1 if encoder.design.intercept else None]
    return [next((c for c in declared if name == c or name.startswith(_starts(c))), name) for name in names]


def _starts(column: str) -> tuple[str, ...]:
    return tuple(column + mark for mark in MARKS)


def truth_covered(job: Job, weights: Array) -> dict[str, float]:
    """xi_K, precision and recall of the attributes that the schema declares as relevant; empty where it does not.

    An attribute counts by its largest weight.
    """
    if not job.schema.relevant:
        return {}
    owners = attributes(job.encoder)
    names = list(dict.fromkeys(owners))
    sizes = np.abs(features(weights.reshape(job.problem.outputs, -1), job.problem.intercept)).max(axis=0)
    largest = np.array([max(size for size, owner in zip(sizes, owners, strict=True) if owner == n) for n in names])
    relevant = [names.index(name) for name in job.schema.relevant]
    precision, recall = support_precision_recall(largest, relevant)
    found = {f"coverage_at_{count}": coverage(largest, relevant, count) for count in COUNTS if count <= len(names)}
    return {**found, "support_precision": precision, "support_recall": recall}
