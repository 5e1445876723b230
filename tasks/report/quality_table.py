"""The metrics of a run beside the baselines and other draws, as rows of a table and of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from tasks.report.figures import Row

BASELINES = {
    "majority_": "majority class",
    "mean_label_": "mean of the label",
    "random_": "random order",
    "best_feature_": "best feature",
    "non_private_": "non-private",
}
TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "roc_auc": "ROC AUC",
    "average_precision": "average precision",
    "brier_score": "Brier score",
    "mean_squared_error": "mean squared error, scaled label",
    "root_mean_squared_error": "root mean squared error, label's unit",
    "mean_absolute_error": "mean absolute error, label's unit",
    "map": "MAP",
}
LOWER = ("brier_score", "mean_squared_error", "root_mean_squared_error", "mean_absolute_error")
# Counts, times and attacks that stand among the internal numbers and say nothing about quality.
OTHER = ("rows_", "sessions_", "fit_seconds", "curve.", "subgroup.", "canary.", "empirical.")
# Rows, and cells that were filled, clipped or unknown, by the part of the data.
COUNTED = ("_train", "_test")


def title(key: str) -> str:
    """The name of a metric as people write it."""
    if key.startswith("ndcg_at_"):
        return f"NDCG@{key.removeprefix('ndcg_at_')}"
    return TITLES.get(key, key.replace("_", " "))


def metric_keys(internal: Mapping[str, float]) -> list[str]:
    """Names of the metrics of the model itself, known ones first, in their order."""
    found = [key for key in internal if not key.startswith((*BASELINES, *OTHER)) and not key.endswith(COUNTED)]
    known = list(TITLES)
    return sorted(found, key=lambda key: (known.index(key) if key in known else len(known), found.index(key)))


def rows(internal: Mapping[str, float], draws: Sequence[Mapping[str, float]]) -> list[Row]:
    """A row for each metric of the model."""
    return [
        Row(
            title=title(key),
            value=internal[key],
            draws=[one[key] for one in draws if key in one],
            baselines={name: internal[p + key] for p, name in BASELINES.items() if p + key in internal},
            note=" (lower is better)" if key in LOWER else "",
        )
        for key in metric_keys(internal)
    ]


def table(found: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table; the columns of the spread only where a metric has other draws."""
    names = list(dict.fromkeys(name for row in found for name in row.baselines))
    spread = any(row.draws for row in found)
    head = ["metric", "this run", *(["mean", "standard deviation", "lowest to highest"] if spread else []), *names]
    lines = []
    for row in found:
        every = [row.value, *row.draws]
        between = f"{number(min(every))} to {number(max(every))}"
        shown = [number(fmean(every)), number(stdev(every)), between] if row.draws else ["", "", ""]
        beside = [number(row.baselines[name]) if name in row.baselines else "" for name in names]
        lines.append([f"{row.title}{row.note}", number(row.value), *(shown if spread else []), *beside])
    return head, lines


def number(value: float) -> str:
    """Four decimals for a share, four digits for what is larger or much smaller."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 10 or value == 0 else f"{value:.4g}"
