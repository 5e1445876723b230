"""Whole trainings without an orchestrator, for tests of audit and release."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.cli import run as command
from tasks import training
from tasks.config import TrainConfig
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.options import tune
from tasks.options.base import Run
from tasks.options.noisy_metric import release_metrics
from tasks.record import run, tracking
from tasks.report import attach
from tests.flows.small import write_small
from tests.tasks.training.test_training import config_of

EXPERIMENT = "tests of releases"


@dataclass(frozen=True)
class World:
    """A store, a small private table with its ledger, and the way to train on it."""

    home: Home
    folder: Path

    @property
    def client(self) -> Any:
        return tracking.tracking_client(self.home)

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.db'}"

    def config(self, **sections: dict[str, object]) -> TrainConfig:
        return config_of(self.folder / "small.yaml", **sections)

    def train(self, config: TrainConfig | None = None) -> str:
        """Train, commit and track as the flow does; return the run's id."""
        config = config or self.config()
        job = training.prepare(config)
        client = self.client
        with Ledger(self.ledger_url) as ledger:
            planned = training.fit_to_ledger(job, training.plan_training(job), ledger)
            read = training.read_run(job, planned)
            loaded, objective = read.data, read.known
            experiment = tracking.ensure_experiment(client, self.home, EXPERIMENT)
            run_id = tracking.open_run(client, experiment, None, {})
            folder = self.home.outbox / run_id
            with training.reserve_budget(job, planned, ledger) as reservation:
                result = training.fit_model(job, planned, objective, reservation)
                job, planned, loaded, objective = tune.selected(
                    job, planned, result, loaded, objective, read.encodings
                )
                price = run.convert(planned)
                trained = Run(job, planned, loaded, objective, objective, (), (), result, folder)
                statement = run.commit(trained, price, ledger, reservation)
            metrics = training.measure(job, result.weights, loaded, objective, folder)
            metrics |= release_metrics(job, result.weights, loaded, ledger, folder)
            run.track(client, run_id, replace(trained, metrics=metrics), statement, attach)
        tracking.close_run(client, run_id, "FINISHED")
        return run_id


def make_world(home: Home, folder: Path, epsilon: float = 12.0) -> World:
    """A fresh table and ledger in ``folder``."""
    write_small(folder, np.random.default_rng(7))
    with Ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        ledger.init("small", epsilon, 1e-4, "add_remove")
    return World(home, folder)


def release(
    run_id: str, name: str, key: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, Any]]:
    """``dpflows release`` of a run: the exit code, and what it answered."""
    code = command(
        [
            "release",
            run_id,
            "--to",
            name,
            "--approved-by",
            "A. Person",
            "--key",
            str(key),
            "--json",
            *more,
        ]
    )
    said = capsys.readouterr()
    return code, json.loads(said.out) if code == 0 else {"error": said.err}
