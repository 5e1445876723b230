"""Every way in which a noisy number leaves the product, each as a function of schema and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks import training
from tasks.config import TrainConfig, parse_config
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
    config = parse_config(values | sections)
    return config.model_copy(update={"data": config.data.model_copy(update={"path": paths})})


def training_door(**sections: Any) -> Door:
    """Plan, load, encode, sum and train; the weights leave."""

    def door(schema: Path, paths: list[Path]) -> Any:
        job = training.prepare(config_of(schema, paths, **sections))
        planned = training.plan_training(job)
        sums = training.build_objective(job, training.load_records(job))
        return training.fit_model(job, planned, sums, Uncharged()).weights.tobytes()  # type: ignore[arg-type]

    return door
