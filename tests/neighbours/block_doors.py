"""Doors beside the training on a table with blocks: released metric, drift figures, estimated
bounds, exact metrics.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks import training
from tasks.kinds.base import reading_of
from tasks.ledger import Blocks, Ledger, RowFacts
from tasks.options import bounds
from tasks.options.bounds import private_schema
from tasks.options.noisy_metric import release_metrics
from tasks.retraining import drift
from tasks.schema import find_schema
from tests.neighbours.doors import config_of
from tests.neighbours.replay import Door


def opened(schema: Path) -> Ledger:
    """A ledger beside the schema with a budget for its data."""
    found = find_schema(schema)
    ledger = Ledger(f"sqlite:///{schema.with_name('ledger.db')}")
    ledger.init(
        found.name, 8.0, 1e-4, "add_remove", blocks=Blocks.of(found), facts=RowFacts.of(found)
    )
    return ledger


def job_of(schema: Path, paths: list[Path], blocks: Sequence[str], **sections: Any) -> Any:
    """The job of a small training on ``blocks``; of a split by file the first file is the training
    part.
    """
    own = paths[:1] if find_schema(schema).split.kind == "file" else paths
    return training.prepare(config_of(schema, own, data={"blocks": list(blocks)}, **sections))


def metric_door(*blocks: str) -> Door:
    """``evaluate.release`` of fixed weights."""

    def door(schema: Path, paths: list[Path]) -> Any:
        job = job_of(
            schema, paths, blocks, evaluate={"release": {"metric": "accuracy", "epsilon": 0.5}}
        )
        loaded = training.load_records(job)
        stated = {"weights_sha256": "", "config_sha256": "", "ledger": {"entry": ""}}
        (schema.parent / "privacy").mkdir()
        (schema.parent / "privacy/statement.json").write_text(json.dumps(stated))
        weights = np.linspace(-1.0, 1.0, job.problem.dimension)
        with opened(schema) as ledger:
            return release_metrics(job, weights, loaded, ledger, schema.parent)

    return door


def drift_door(block: str) -> Door:
    """Figures of one block."""

    def door(schema: Path, paths: list[Path]) -> Any:
        job = job_of(schema, paths, [block])
        with opened(schema) as ledger:
            return drift.release_drift(0.5, job.config, block, ledger).metrics

    return door


def bounds_door(*blocks: str) -> Door:
    """Bounds of undeclared columns."""

    def door(schema: Path, paths: list[Path]) -> Any:
        job = job_of(schema, paths, blocks)
        found = private_schema(job.schema, bounds.estimate_of(job), reading_of(job))
        return {name: (column.low, column.high) for name, column in found.schema.columns.items()}

    return door


def blocks_training_door(*blocks: str) -> Door:
    """A training on some blocks, and the exact numbers about it that stay inside."""

    def door(schema: Path, paths: list[Path]) -> Any:
        job = job_of(schema, paths, blocks)
        planned, loaded = training.plan_training(job), training.load_records(job)
        sums = training.build_objective(job, loaded)
        with opened(schema) as ledger, training.reserve_budget(job, planned, ledger) as reservation:
            weights = training.fit_model(job, planned, sums, reservation).weights
            reservation.commit()
        return weights.tobytes(), sorted(training.measure(job, weights, loaded, sums).items())

    return door
