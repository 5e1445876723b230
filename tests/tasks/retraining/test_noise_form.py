"""``privacy.noise`` reaches every number that leaves: training, drift figures, released metric."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.preprocess.design import Data
from tasks import training
from tasks.data import Loaded, Report
from tasks.kinds import base
from tasks.ledger import Ledger
from tasks.ledger.entries import entries, entry
from tasks.options.noisy_metric import release_metrics
from tasks.retraining import drift
from tests.tasks.retraining.weekly import config_of


def charged(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Every mechanism that the ledger was charged for."""
    for one in entries(ledger, "clinic"):
        for item in json.loads(entry(ledger, one["entry"])["events"])["mechanisms"]:
            yield item.get("mechanism", item)


@pytest.mark.parametrize("form", ["rounded", "discrete"])
def test_every_door_draws_the_noise_of_the_run(clinic: Ledger, tmp_path: Path, form: str) -> None:
    given = config_of(tmp_path).training
    values = given.model_dump(mode="json")
    values["privacy"]["noise"] = form
    values["data"]["blocks"] = ["2026-W02", "2026-W03"]
    values["evaluate"]["release"] = {"metric": "accuracy", "epsilon": 0.2}
    config = type(given).model_validate(values)
    job = training.prepare(config)
    drift.release_drift(0.2, config, "2026-W03", clinic)
    rows = Data(
        np.zeros((4, job.problem.dimension)), np.array([1.0, -1.0, 1.0, -1.0]), job.encoder.design
    )
    loaded = base.Sealed(Loaded(rows, None, Report(4, 0, {}, {}), ""))
    (tmp_path / "privacy").mkdir()
    stated = {"weights_sha256": "", "config_sha256": "", "ledger": {"entry": ""}}
    (tmp_path / "privacy/statement.json").write_text(json.dumps(stated))
    release_metrics(job, np.zeros(job.problem.dimension), loaded, clinic, tmp_path)
    planned = training.plan_training(job)
    training.reserve_budget(job, planned, clinic).cancel()
    kinds = [(item["kind"], bool(item.get("rounding"))) for item in charged(clinic)]
    assert kinds == [("laplace", form == "discrete")] * 2 + [("gaussian", form == "discrete")]
    stored = json.loads((tmp_path / "privacy/metrics.json").read_text())
    assert stored["epsilon"] == pytest.approx(0.2, rel=1e-12)
    assert bool(stored["mechanisms"]["mechanisms"][0].get("rounding")) == (form == "discrete")
    assert clinic.verify().ok
