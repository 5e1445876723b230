"""What is said at the end of a comparison: the facts beside its numbers, and the summary of a
command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import prefect.runtime.flow_run

from tasks.compare import tracking as children
from tasks.compare.cell import SUPPORT, CellRecord, missing_metrics
from tasks.compare.charge import Charge, charge_words
from tasks.compare.config import CompareConfig
from tasks.compare.folds import is_redrawn
from tasks.compare.ratios import ratios, rows_of
from tasks.compare.resume import Comparison
from tasks.compare.variants import spread_out
from tasks.record.sources import code_version
from tasks.report.facts import machine


def grouped_reasons(comparison: Comparison) -> dict[str, str]:
    """Why parts of the grid were left out: reason -> where."""
    found: dict[str, list[str]] = {}
    for item in comparison.left_out:
        found.setdefault(item.reason, []).append(f"{item.label} ({item.where})")
    return {
        reason: ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        for reason, labels in found.items()
    }


def make_facts(
    comparison: Comparison, charges: dict[str, Charge], seconds: float
) -> dict[str, Any]:
    """What stands beside the numbers in tables, figures and page."""
    config, protocol = comparison.config, comparison.config.protocol
    redrawn = sorted({setting.data for setting in comparison.settings if is_redrawn(setting.job)})
    public = {setting.data: setting.job.public for setting in comparison.settings}
    left_out = [f"left out: {who}: {why}" for why, who in grouped_reasons(comparison).items()]
    return {
        "title": config.title,
        "protocol": f"{protocol.name}: {protocol.words}",
        "folds": protocol.folds,
        "repeats": protocol.partitions,
        "draws": protocol.noise_draws,
        "metrics": named_metrics(config),
        "effects": [effect.to_dict() for effect in spread_out(config.algorithms)[1]],
        "public": public,
        "generated anew for each repeat": (", ".join(redrawn) or None)
        if protocol.partitions > 1
        else None,
        "charge": charge_words(charges, list(comparison.private_jobs)),
        "paired": "every algorithm and epsilon meets the same folds and the same public seeds; "
        "noise is its own",
        "reproducible": config.reproducible,
        "seed": config.seed,
        "seconds": round(seconds, 3),
        "libraries": libraries(comparison) or None,
        "machine": machine(),
        "config": config.model_dump_json(),
        "warnings": [*comparison.warnings, *left_out],
        "code": code_version(),
    }


def named_metrics(config: CompareConfig) -> list[str]:
    """The metrics that the configuration names, ``coverage`` by each of its numbers."""
    named = [name for name in config.metrics or () if name != "coverage"]
    if config.coverage is None or "coverage" not in (config.metrics or ()):
        return named
    return [*named, *(f"coverage_at_{k}" for k in config.coverage.counts), *SUPPORT]


def libraries(comparison: Comparison) -> dict[str, str]:
    """The libraries that trained some of the settings: versions, and what is peculiar to their
    guarantee.
    """
    runs = {
        setting.peer.peer.name: setting.peer
        for setting in comparison.settings
        if setting.peer is not None
    }
    return {name: run.words for name, run in runs.items()}


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


def group_means(name: str, own: Sequence[CellRecord]) -> dict[str, Any]:
    """Means of one setting over its finished cells."""
    done = [record for record in own if record["status"] == "done"]
    columns = {
        key: children.known([r["metrics"].get(key) for r in done])
        for key in children.names_of(done)
    }
    metrics = {key: sum(values) / len(values) for key, values in columns.items() if values}
    times = [record["seconds"] for record in done]
    return {
        "name": name,
        **{
            key: own[0][key]
            for key in ("data", "label", "loss", "l1", "l2", "epsilon", "adjacency")
        },
        "noise_multiplier": own[0].get("noise_multiplier"),
        "spent_epsilon": max(
            filter(None, (record["spent_epsilon"] for record in done)), default=None
        ),
        "cells": len(done),
        "metrics": metrics,
        "sd": {key: sd for key in metrics if (sd := deviation(done, key)) is not None},
        "seconds": sum(times) / len(times) if times else None,
    }
