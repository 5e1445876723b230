"""Every way in which a noisy number leaves the product, each as a function of schema and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from dpcore.accounting import Target
from tasks import training
from tasks.compare import parse_compare, resume
from tasks.compare.cell import run_cell
from tasks.compare.charge import charges
from tasks.config import TrainConfig, parse_config
from tasks.home import Home
from tasks.kinds import base
from tasks.kinds.charge import charge_of
from tasks.ledger import Blocks, Ledger, RowFacts
from tasks.options import bounds, canaries, tune
from tasks.options.base import words_of
from tasks.options.noisy_metric import release_metrics
from tasks.profile.private import draft_private, reading_of
from tasks.retraining import drift
from tasks.schema import find_schema
from tests.neighbours.replay import Door

DELTA = 1e-4
CLIP = 0.05


class Uncharged:
    """Stands in for a reservation where the test is of the values, not of the ledger."""

    def on_charge(self) -> None:
        """Count nothing."""


def config_of(schema: Path, paths: list[Path], **sections: Any) -> TrainConfig:
    """A configuration of one small training on the given files."""
    values: dict[str, Any] = {
        "data": {"name": str(schema), **sections.pop("data", {})},
        "privacy": {"epsilon": 1.0, "delta": DELTA, **sections.pop("privacy", {})},
        "algorithm": {"name": "dp_sgd", "steps": 2, "clip_norm": CLIP, "learning_rate": 0.5},
        "evaluate": {"baselines": False},
    }
    if find_schema(schema).source.kind == "file":
        values["data"]["path"] = str(paths[0].parent)  # where the files lie that the schema names
    return parse_config(values | sections)


def open_ledger(schema: Path, job: base.Job) -> Ledger:
    """A ledger beside the schema with room for a few runs."""
    ledger = Ledger(schema.with_name("ledger.db"))
    blocks = Blocks.of(job.schema)
    ledger.init(
        job.schema.name, 30.0, DELTA, job.problem.adjacency, unit=job.problem.unit, blocks=blocks
    )
    return ledger


def training_door(**sections: Any) -> Door:
    """Plan, load, encode, sum and train; the weights leave."""

    def door(schema: Path, paths: list[Path]) -> Any:
        job = training.prepare(config_of(schema, paths, **sections))
        planned = training.plan_training(job)
        sums = training.build_objective(job, training.load_records(job))
        return training.fit_model(job, planned, sums, Uncharged()).weights.tobytes()  # type: ignore[arg-type]

    return door


def metric_door(**sections: Any) -> Door:
    """Charge and release the accuracy of a public model, as after its training; the file of metrics
    leaves.
    """

    def door(schema: Path, paths: list[Path]) -> Any:
        wanted = {"release": {"epsilon": 0.5, "metric": "accuracy"}, "baselines": False}
        job = training.prepare(config_of(schema, paths, evaluate=wanted, **sections))
        loaded, weights = training.load_records(job), np.linspace(-1.0, 1.0, job.problem.dimension)
        (schema.parent / "privacy").mkdir()
        stated = {"weights_sha256": "", "config_sha256": "", "ledger": {"entry": ""}}
        (schema.parent / "privacy" / "statement.json").write_text(json.dumps(stated))
        with open_ledger(schema, job) as ledger:
            numbers = release_metrics(job, weights, loaded, ledger, schema.parent)
        return numbers, without_entry((schema.parent / "privacy" / "metrics.json").read_text())

    return door


def drift_door(block: str, **sections: Any) -> Door:
    """Charge and release the drift figures of one block."""

    def door(schema: Path, paths: list[Path]) -> Any:
        config = config_of(schema, paths, **sections)
        with open_ledger(schema, training.prepare(config)) as ledger:
            found = drift.release_drift(0.5, config, block, ledger)
        return found.metrics, without_entry(found.text)

    return door


def bounds_door(**sections: Any) -> Door:
    """Estimate undeclared bounds and levels within the run; the completed schema leaves."""

    def door(schema: Path, paths: list[Path]) -> Any:
        job = training.prepare(config_of(schema, paths, **sections))
        planned = training.plan_training(job)
        training.load_records(job)
        complete, planned, notes = bounds.release_bounds(job, planned, Uncharged())  # type: ignore[arg-type]
        sums = training.build_objective(complete, training.load_records(complete))
        weights = training.fit_model(complete, planned, sums, Uncharged()).weights  # type: ignore[arg-type]
        return complete.schema.model_dump_json(exclude={"ledger"}), notes, weights.tobytes()

    return door


def profile_door(adjacency: str, unit: str = "record") -> Door:
    """Draft a schema from charged estimates of one file, with the reading that the budget of such
    units gives.
    """

    def door(schema: Path, paths: list[Path]) -> Any:
        found = find_schema(schema)
        with Ledger(schema.with_name("ledger.db")) as ledger:
            opened = ledger.init(
                found.name,
                30.0,
                DELTA,
                adjacency,
                unit,
                blocks=Blocks.of(found),
                facts=RowFacts.of(found),
            )
            reading = reading_of(opened, paths[0], RowFacts.of(found))
        draft = draft_private(reading, "y", Target(2.0, DELTA), adjacency)
        assert draft.events is not None and draft.events.unit == unit
        return json.dumps(
            {key: value for key, value in draft.values.items() if key != "source"}
        ), draft.notes

    return door


SETTINGS = {"preprocess.numeric": ["minmax", "hats(3)"], "algorithm.learning_rate": [0.5, 4.0]}


def tuning_door(settings: dict[str, Any] | None = None, **sections: Any) -> Door:
    """Search settings and encodings on the records; the selected setting and its weights leave."""

    def door(schema: Path, paths: list[Path]) -> Any:
        wanted = {"grid": settings or SETTINGS, "trials": {"distribution": "poisson", "mean": 4}}
        job = training.prepare(config_of(schema, paths, tune=wanted, **sections))
        planned = training.plan_training(job)
        run = training.read_run(job, planned)
        loaded, sums = run.data, run.sums
        result = training.fit_model(job, planned, sums, Uncharged())  # type: ignore[arg-type]
        chosen, planned, _, _ = tune.selected(job, planned, result, loaded, sums, run.encodings)
        return result.weights.tobytes(), result.notes, planned.parameters, chosen.encoder.to_json()

    return door


def canary_door(**sections: Any) -> Door:
    """Train among canaries whose coins are fixed; the weights leave, what the watch says stays
    inside.
    """

    def door(schema: Path, paths: list[Path]) -> Any:
        job = training.prepare(config_of(schema, paths, audit={"canaries": 20}, **sections))
        planned = training.plan_training(job)
        sums = training.build_objective(job, training.load_records(job))
        with patch.object(canaries, "secure_generator", lambda: np.random.default_rng(9)):
            mixed, watch = canaries.plant_canaries(job, planned, sums)
        result = training.fit_model(job, planned, mixed, Uncharged(), observers=(watch,))  # type: ignore[arg-type]
        return result.weights.tobytes(), result.notes, words_of(job).tags

    return door


def comparison_door(
    algorithm: dict[str, Any] | None = None,
    objective: Any = None,
    blocks: list[str] | None = None,
    **privacy: Any,
) -> Door:
    """Two folds cut by a fixed seed: records of the private cells without exact numbers, and what
    is charged.
    """
    settings = {"steps": 2, "clip_norm": CLIP, "learning_rate": 0.5}
    chosen = algorithm or {"name": "dp_sgd", "parameters": settings}
    more = {} if objective is None else {"objective": objective}

    def door(schema: Path, paths: list[Path]) -> Any:
        home = Home(schema.parent)
        values = {
            "data": {
                "name": str(schema),
                "path": config_of(schema, paths).data.path,
                "blocks": blocks,
            },
            "privacy": {"epsilon": [1.0], "delta": DELTA, **privacy},
            "algorithms": [chosen],
            "protocol": {
                "repeats": 1,
                "folds": 2,
                **({} if objective is None else {"parts": False}),
            },
            **more,
        }
        with patch.object(resume, "secret_seed", lambda *_: bytes(range(32))):
            comparison = resume.make_comparison(parse_compare(values), home)
        [job] = comparison.private_jobs.values()
        assert charge_of(job).blocks == tuple(blocks or ("all",))
        open_ledger(schema, job).close()
        [charge] = charges(comparison, home).values()
        cells = [cell for cell in comparison.to_run if cell.setting.private]
        comparison.rows.check_classes(cells[0].setting)
        records = [
            run_cell(cell, comparison.config, comparison.rows, comparison.plans) for cell in cells
        ]
        inside = ("metrics", "curve", "seconds", "cell")
        left = [
            {key: value for key, value in record.items() if key not in inside} for record in records
        ]
        return left, charge.cost, dict(charge.events.counts)

    return door


def without_entry(text: str) -> dict[str, Any]:
    """What a file of released numbers says, but for the name of its entry in the ledger."""
    return {key: value for key, value in json.loads(text).items() if key != "ledger_entry"}
