"""The numbers of a comparison as files that any program reads: cells, curves, summary and facts.

What is said at the end of a comparison: the facts beside its numbers, and the summary of a
command.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import NoneType
from typing import Any

import pandas as pd
import prefect.runtime.flow_run

from tasks.compare import tracking as children
from tasks.compare.cell import CellRecord, missing_metrics
from tasks.compare.charge import Charge
from tasks.compare.grouping import Record, metrics_of
from tasks.compare.ratios import ratios, rows_of
from tasks.compare.resume import Comparison
from tasks.compare.statistics import Summary, resampling, summarise
from tasks.drawing.sheet import write_frame, write_text

COLUMNS = (
    *(
        "cell",
        "data",
        "algorithm",
        "label",
        "encoding",
        "preset",
        "loss",
        "l1",
        "l2",
        "epsilon",
        "delta",
        "adjacency",
        "private",
    ),
    *(
        "noise_multiplier",
        "repeat",
        "fold",
        "draw",
        "n",
        "dimension",
        "status",
        "seconds",
        "spent_epsilon",
        "error",
    ),
)
AS_JSON = ("parameters", "loss_parameters", "warnings")
NUMBERS = (
    "l1",
    "l2",
    "epsilon",
    "delta",
    "noise_multiplier",
    "n",
    "dimension",
    "seconds",
    "spent_epsilon",
)
SUMMARY = (
    *(
        "data",
        "loss",
        "loss_parameters",
        "l1",
        "l2",
        "adjacency",
        "delta",
        "noise_multiplier",
        "epsilon",
        "label",
    ),
    "metric",
    *("mean", "sd", "low", "high", "cells", "draws", "failed", "missing"),
    *("best", "pairs", "difference", "difference_low", "difference_high", "p", "p_holm"),
)


def write(records: Sequence[Record], facts: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write cells.csv, cells.parquet, summary.csv and facts.json to ``folder``, and curves.* where
    cells have curves.

    Metrics are columns named ``metric.NAME``; nested values are JSON text. Returns the files in
    that order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = write_frame(cells_frame(records), folder / "cells")
    written.append(
        write_text(folder / "summary.csv", summary_frame(records, facts).to_csv(index=False))
    )
    curves = curves_frame(records)
    if len(curves):
        written += write_frame(curves, folder / "curves")
    found = {**facts, "cells": count_cells(records), "resampling": resampling(records, facts).words}
    text = json.dumps(plain(found), indent=2, sort_keys=True, allow_nan=False)
    return [*written, write_text(folder / "facts.json", text + "\n")]


def count_cells(records: Sequence[Record]) -> dict[str, int]:
    """Number of cells by status, and in all."""
    counts = {"all": len(records), "done": 0, "failed": 0}
    for record in records:
        status = str(record.get("status"))
        counts[status] = counts.get(status, 0) + 1
    return counts


def cells_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row a cell; the columns are there even without cells."""
    metrics = list(
        dict.fromkeys(name for record in records for name in record.get("metrics") or {})
    )
    frame = pd.DataFrame(
        [cell_row(record, metrics) for record in records],
        columns=[*COLUMNS, *AS_JSON, *(f"metric.{name}" for name in metrics)],
    )
    return _typed(frame, [*NUMBERS, *(f"metric.{name}" for name in metrics)])


def cell_row(record: Record, metrics: Sequence[str]) -> dict[str, Any]:
    """What the table of cells says of one; nested values are JSON text."""
    row = {name: record.get(name) for name in COLUMNS}
    row |= {name: json.dumps(plain(record.get(name)), sort_keys=True) for name in AS_JSON}
    measured = record.get("metrics") or {}
    return row | {f"metric.{name}": measured.get(name) for name in metrics}


def curves_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each point of a curve, with what its cell is."""
    named = (
        "cell",
        "data",
        "label",
        "epsilon",
        "noise_multiplier",
        "delta",
        "adjacency",
        "repeat",
        "fold",
        "draw",
    )
    rows = [
        {name: record.get(name) for name in named}
        | {f"curve.{key}": value for key, value in point.items()}
        for record in records
        for point in record.get("curve") or ()
    ]
    frame = pd.DataFrame(rows)
    return _typed(
        frame, [name for name in map(str, frame) if name.startswith("curve.") or name in NUMBERS]
    )


def summary_frame(records: Sequence[Record], facts: Mapping[str, Any]) -> pd.DataFrame:
    """One row for each algorithm, guarantee and metric: spread, interval and the paired test
    against the best.
    """
    metrics = metrics_of(records, facts)
    rows = [
        summary_row(summary) for metric in metrics for summary in summarise(records, metric, facts)
    ]
    return pd.DataFrame(rows, columns=list(SUMMARY))


def summary_row(summary: Summary) -> dict[str, Any]:
    place, paired = summary.place, summary.paired
    row = place.setting._asdict() | {
        "adjacency": place.relation.adjacency if place.relation else None,
        "delta": place.relation.delta if place.relation else None,
        "noise_multiplier": place.noise,
        "epsilon": summary.epsilon,
        "label": place.label,
    }
    names = ("metric", "mean", "sd", "low", "high", "cells", "draws", "failed", "missing")
    row |= {name: getattr(summary, name) for name in names}
    if paired is not None:
        row |= {"best": paired.best, "pairs": paired.pairs, "p": paired.p, "p_holm": paired.p_holm}
        row |= {
            "difference": paired.mean,
            "difference_low": paired.low,
            "difference_high": paired.high,
        }
    return row


def plain(value: Any) -> Any:
    """``value`` for JSON: other objects become text, numbers that are not finite null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bool, int, NoneType)):
        return value
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def _typed(frame: pd.DataFrame, numbers: Sequence[str]) -> pd.DataFrame:
    """Numeric columns as numbers, the others as text or as one type: what Parquet can store, also
    without rows.

    What is not finite is null, as in JSON.
    """
    for name in frame:
        if name in numbers:
            frame[name] = pd.to_numeric(frame[name], errors="coerce").replace(
                [math.inf, -math.inf], math.nan
            )
        elif not _one_type(frame[name]):
            frame[name] = frame[name].map(lambda item: None if item is None else str(item))
    return frame


def _one_type(column: pd.Series) -> bool:
    return len({type(item) for item in column if item is not None}) <= 1


def summary(
    comparison: Comparison,
    records: Sequence[CellRecord],
    charges: dict[str, Charge],
    parent: str,
    files: Sequence[str],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The end of a comparison as one JSON-able object."""
    config = comparison.config
    states = Counter(record["status"] for record in records)
    return {
        "schema_version": 1,
        "data": [data.name for data in config.data],
        "protocol": config.protocol.words,
        "cells": {
            "all": len(comparison.cells),
            "done": states["done"],
            "failed": states["failed"],
            "kept": len(comparison.finished),
        },
        "children": len(comparison.settings),
        "left_out": [f"{item.label} ({item.where}): {item.reason}" for item in comparison.left_out],
        "failures": failures(records),
        "metrics": list(config.metrics or ()),
        "missing_metrics": missing_metrics(records, config.metrics or ()),
        "charged": {
            data: {"cells": c.cells, "cost": c.cost, "order": c.room.order}
            for data, c in charges.items()
        },
        "means": means(comparison, records),
        "ratios": rows_of(ratios(records, {"metrics": config.metrics or ()})),
        "experiment": config.tracking.experiment,
        "run_id": parent,
        "flow_run_id": str(prefect.runtime.flow_run.id or ""),
        "report": list(files),
        "seconds": seconds,
    }


def failures(records: Sequence[CellRecord]) -> list[dict[str, Any]]:
    """Failed cells, the same failure once with how often it was seen."""
    seen = Counter((r["data"], r["label"], r["error"]) for r in records if r["status"] == "failed")
    return [
        {"data": data, "label": label, "error": error, "cells": n}
        for (data, label, error), n in seen.items()
    ]


def deviation(records: Sequence[CellRecord], metric: str) -> float | None:
    """Standard deviation of ``metric`` over (repeat, fold) cells, draws averaged first; None for
    fewer than two.
    """
    draws: dict[tuple[int, int], list[float]] = {}
    for record in records:
        if (value := record["metrics"].get(metric)) is not None:
            draws.setdefault((record["repeat"], record["fold"]), []).append(value)
    return stdev(map(fmean, draws.values())) if len(draws) > 1 else None


def means(comparison: Comparison, records: Sequence[CellRecord]) -> list[dict[str, Any]]:
    """Mean metrics of each setting with their spread over cells, in their order."""
    groups: dict[str, list[CellRecord]] = {}
    for cell, record in zip(comparison.cells, records, strict=False):
        groups.setdefault(children.child_name(cell.setting, comparison.config), []).append(record)
    return [group_means(name, own) for name, own in groups.items()]


SETTING = ("data", "label", "loss", "l1", "l2", "epsilon", "adjacency")


def metric_means(done: Sequence[CellRecord]) -> dict[str, float]:
    """The mean of each metric over the cells that have it."""
    columns = {
        key: children.known([r["metrics"].get(key) for r in done])
        for key in children.names_of(done)
    }
    return {key: sum(values) / len(values) for key, values in columns.items() if values}


def group_means(name: str, own: Sequence[CellRecord]) -> dict[str, Any]:
    """Means of one setting over its finished cells."""
    done = [record for record in own if record["status"] == "done"]
    metrics = metric_means(done)
    times = [record["seconds"] for record in done]
    spent = [record["spent_epsilon"] for record in done]
    sds = {key: deviation(done, key) for key in metrics}
    return {
        "name": name,
        **{key: own[0][key] for key in SETTING},
        "noise_multiplier": own[0].get("noise_multiplier"),
        "spent_epsilon": max(filter(None, spent), default=None),
        "cells": len(done),
        "metrics": metrics,
        "sd": {key: sd for key, sd in sds.items() if sd is not None},
        "seconds": sum(times) / len(times) if times else None,
    }
