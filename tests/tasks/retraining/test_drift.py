"""Drift figures: charged to the newest block alone, within their sensitivity, refused where there
is no bound.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting.events import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Gaussian
from dpcore.preprocess.design import Data
from tasks.ledger import Ledger
from tasks.retraining import drift
from tasks.schema import find_schema
from tests.flows.small import small_frame
from tests.tasks.retraining.weekly import ROWS, config_of


def training_on(folder: Path, *blocks: str):
    training = config_of(folder).training
    return training.model_copy(update={"data": training.data.model_copy(update={"blocks": blocks})})


def test_figures_of_the_newest_block_are_charged_to_it(clinic: Ledger, tmp_path: Path) -> None:
    found = drift.release_drift(
        0.5, training_on(tmp_path, "2026-W02", "2026-W03"), "2026-W03", clinic
    )
    assert set(clinic.spent("clinic")) == {"2026-W03"}
    stored = json.loads(found.text)
    [mechanism] = stored["mechanisms"]["mechanisms"]
    assert mechanism["sensitivity"] == 3.0, "label, age and city"
    assert mechanism["scale"] == 6.0
    # Laplace noise of scale 6 passes 100 with chance exp(-16).
    assert abs(stored["positive"] + stored["negative"] - ROWS) < 200
    assert set(stored["histograms"]) == {"age", "city"}
    assert len(stored["histograms"]["age"]) == drift.BINS
    assert 0 <= found.metrics["released.drift_positive_share"] <= 1
    assert clinic.verify().ok


def test_a_block_without_room_gives_no_figures_and_says_so(clinic: Ledger, tmp_path: Path) -> None:
    opened = clinic.dataset("clinic")
    most = Gaussian(1.0, (opened.order / (2 * 0.98 * opened.budget)) ** 0.5)
    clinic.reserve("clinic", Events.of([most], adjacency="add_remove"), ["2026-W03"]).commit()
    head = clinic.head()
    found = drift.release_drift(2.0, training_on(tmp_path, "2026-W03"), "2026-W03", clinic)
    assert (found.text, found.metrics) == ("", {}) and "no drift figures of 2026-W03" in found.note
    assert clinic.head() == head


def test_one_record_moves_the_counts_by_one_a_column(clinic: Ledger, tmp_path: Path) -> None:
    encoder = find_schema(tmp_path / "clinic.yaml").encoder(
        normalise="none", intercept=False, sparse=False
    )
    frame = small_frame(np.random.default_rng(1), 30)
    X = np.asarray(encoder.transform(frame[["age", "city"]]))
    y = np.where(frame["paid"] == "yes", 1.0, -1.0)
    whole = drift.BlockCounts(Data(X, y, encoder.design)).counts()
    moves = []
    for row in range(30):
        kept = np.arange(30) != row
        moves.append(
            np.abs(whole - drift.BlockCounts(Data(X[kept], y[kept], encoder.design)).counts()).sum()
        )
    assert max(moves) == pytest.approx(1.0 + len(encoder.design.blocks))


def test_what_has_no_bound_is_refused(clinic: Ledger, tmp_path: Path) -> None:
    schema = find_schema(tmp_path / "clinic.yaml")
    drift.require_drift(None, schema.model_copy(update={"unit": "user"}))
    drift.require_drift(0.1, schema)
    with pytest.raises(InputError, match="unit 'user'"):
        drift.require_drift(0.1, schema.model_copy(update={"unit": "user"}))
