"""The champion measured beside its challenger by one charged release, and starts that may be
taken.
"""

from __future__ import annotations

import json
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpcore.errors import InputError
from tasks.config import TrainConfig
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.options.noisy_metric import MINE, THEIRS, ConfusionCounts, from_counts, measured
from tasks.record import tracking
from tasks.record.stored import START, Stored, read_stored, without_price
from tasks.retraining import RetrainConfig, check_retraining
from tests.tasks.retraining.test_flow import monday
from tests.tasks.retraining.test_schedule import RUN
from tests.tasks.retraining.weekly import config_of

SPLIT = "split: {kind: hash, by: [age, city, visit], test_share: 0.3, salt: weekly}"
CHARGED = {"metric": "accuracy", "epsilon": 0.2}


def counts_of(X: np.ndarray, y: np.ndarray, w: np.ndarray, other: np.ndarray | None) -> np.ndarray:
    data: Any = SimpleNamespace(X=X, y=y, n=len(y))
    return ConfusionCounts(data, w, 1, other).cells()


def test_a_record_is_in_one_cell_of_two_models_and_their_margins_are_those_of_each() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.choice([-1.0, 1.0], 50)
    for _ in range(20):
        w, other = rng.normal(size=(2, 3))
        both = counts_of(X, y, w, other)
        assert both.shape == (2, 4) and both.sum() == 50
        assert np.array_equal(both @ MINE, counts_of(X, y, w, None))
        assert np.array_equal(both @ THEIRS, counts_of(X, y, other, None))
        assert np.abs(both - counts_of(X[1:], y[1:], w, other)).sum() == 1.0


def test_two_metrics_of_one_release_have_the_errors_that_are_stated() -> None:
    exact, scale = np.array([[300.0, 60.0, 40.0, 100.0], [500.0, 30.0, 20.0, 100.0]]), 5.0
    values, errors = measured(exact, scale, "accuracy")
    assert values["accuracy"] == from_counts(exact @ MINE, scale)[0]["accuracy"]
    assert values["champion_accuracy"] == from_counts(exact @ THEIRS, scale)[0]["accuracy"]
    rng = np.random.default_rng(0)
    drawn = [
        measured(exact + rng.laplace(scale=scale, size=(2, 4)), scale, "accuracy")[0]
        for _ in range(4000)
    ]
    for name, error in errors.items():
        assert np.std([one[name] for one in drawn]) == pytest.approx(error, rel=0.1)


def test_a_champion_needs_a_public_set_or_a_charged_metric(tmp_path: Path) -> None:
    champion = {"model": "clinic", "metric": "accuracy"}
    values = config_of(tmp_path).model_dump(mode="json") | {"champion": champion}

    def asked(release: dict[str, Any] | None) -> RetrainConfig:
        values["training"]["evaluate"]["release"] = release
        return RetrainConfig.model_validate(values)

    check_retraining(asked(CHARGED))
    with pytest.raises(InputError, match=r"champion.model='clinic', got none; name one"):
        check_retraining(asked(None))
    with pytest.raises(InputError, match=r"got training.evaluate.release.metric='balanced_acc"):
        check_retraining(asked({"metric": "balanced_accuracy", "epsilon": 0.2}))
    with pytest.raises(InputError, match=r"Expected no training.evaluate.release.against"):
        check_retraining(asked(CHARGED | {"against": [0.0, 1.0]}))


def with_split(folder: Path) -> None:
    schema = folder / "clinic.yaml"
    schema.write_text(schema.read_text().replace("split: {kind: none}", SPLIT))


def test_a_model_is_measured_beside_another_on_test_records_alone(
    clinic: Ledger, tmp_path: Path
) -> None:
    from tasks import training

    values = config_of(tmp_path).training.model_dump(mode="json")
    values["data"]["blocks"] = ["2026-W02"]
    values["evaluate"]["release"] = CHARGED | {"against": [0.0, 1.0]}
    with pytest.raises(InputError, match=r"Expected a test part for evaluate.release.against"):
        training.prepare(TrainConfig.model_validate(_sized(values, 4)))
    with_split(tmp_path)
    training.prepare(TrainConfig.model_validate(_sized(values, 4)))
    with pytest.raises(InputError, match=r"against with 4 weights, as many .*, got 2"):
        training.prepare(TrainConfig.model_validate(_sized(values, 2)))


def _sized(values: dict[str, Any], size: int) -> dict[str, Any]:
    values["evaluate"]["release"]["against"] = [0.5] * size
    return values


def test_internal_weights_are_no_start_though_their_entry_is_committed(clinic: Ledger) -> None:
    """An internal model may hold what no entry paid for, such as bounds that were read from rows."""
    start = [0.25, -0.5, 0.125, 1.0]
    clinic.reserve("clinic", RUN, ["2026-W09"]).commit({"weights": _digest(start)})
    [reason] = without_price("start", start, "clinic", clinic)
    assert reason.startswith("start: these weights") and "may be released" in reason
    found = {"weights": _digest(start), START: _digest(start)}
    clinic.reserve("clinic", RUN, ["2026-W10"]).commit(found)
    assert without_price("start", start, "clinic", clinic) == []
    assert without_price("start", None, "clinic", clinic) == []
    stored = Stored("r1", np.array(start), "{}", start=False)
    assert "r1 is internal" in stored.unfit("{}", 4)
    assert "r1 has other columns" in stored.unfit("[]", 4) + stored.unfit("{}", 5)
    assert stored._replace(start=True).unfit("{}", 4) == ""


@pytest.mark.slow
def test_a_champion_by_a_charged_metric_and_a_start_of_the_default_algorithm(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    """Two weeks; the second measures both models by the one release that it pays for."""
    from flows.retrain import retrain

    with_split(tmp_path)
    training = config_of(tmp_path).training.model_dump(mode="json") | {
        "algorithm": {"name": "scaled_gd", "steps": 16},
        "evaluate": {"baselines": False, "release": CHARGED},
    }
    champion = {"model": tmp_path.name, "metric": "accuracy"}
    config = config_of(tmp_path, champion=champion, training=training)
    first, second = retrain(config, monday(0)), retrain(config, monday(1))

    assert first["champion"]["won"] and first["champion"]["champion"] is None
    battle, released = second["champion"], second["training"]["released"]
    assert battle["challenger"] == released["accuracy"]
    assert battle["champion"] == released["champion_accuracy"]
    assert battle["public_set"] is None and battle["champion_version"] == "1"
    assert battle["won"] == (battle["challenger"] >= battle["champion"] - 1e-9)
    assert len(entries(clinic, "clinic")) == 4, "a training and its metric, each week"
    assert second["warm_start"] == first["training"]["run_id"]
    assert second["notes"][-1].endswith("is measured on the same records")

    client = tracking.tracking_client(home)
    folder = Path(client.download_artifacts(second["training"]["run_id"], "privacy"))
    statement = json.loads((folder / "statement.json").read_text())
    assert statement["releasable"], statement["reasons"]
    assert any("earlier, charged run" in text for text in statement["limits"])
    assert any("of this model and of one before it" in text for text in statement["released"])
    stored = read_stored(client, first["training"]["run_id"], clinic)
    assert statement["training"]["parameters"]["start"] == stored.weights.tolist()


def _digest(weights: list[float]) -> str:
    buffer = BytesIO()
    np.savez(buffer, weights=np.asarray(weights))
    return sha256(buffer.getvalue()).hexdigest()
