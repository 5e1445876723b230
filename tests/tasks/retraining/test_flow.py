"""The retraining flow on a weekly table: one training a period, spent blocks, warm start, champion
on public rows.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.errors import BudgetExceeded, DPFlowsError, InputError
from dpcore.objective.shards import ShardedObjective
from tasks import training
from tasks.config import TrainConfig
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.ledger.entries import entries, realised_epsilon
from tasks.ledger.records import UNIT
from tasks.record import tracking
from tasks.record.stored import without_price
from tests.tasks.retraining.test_schedule import RUN
from tests.tasks.retraining.weekly import config_of

FIRST = datetime(2026, 1, 12, 3, tzinfo=UTC)  # the Monday after 2026-W02


def monday(week: int) -> datetime:
    return FIRST + timedelta(weeks=week)


def test_a_skip_is_a_state_of_its_own_and_a_paused_data_set_trains_nothing(
    server: str,
    home: Home,
    clinic: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect.client.orchestration import get_client

    from flows import story
    from flows.retrain import retrain, retrain_flow

    heard: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(story, "send", lambda event, about, payload: heard.append((event, payload)))
    config = config_of(tmp_path)
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name("dpflows:clinic", 0)
        with pytest.raises(DPFlowsError, match="somebody paused this data set; nothing was spent"):
            retrain(config, monday(2))
        assert entries(clinic, "clinic") == []
        client.upsert_global_concurrency_limit_by_name("dpflows:clinic", 1)

    clinic.reserve("clinic", RUN, ["2026-W04"], period="2026-W04").commit()
    state = retrain_flow(config, monday(2), return_state=True)
    assert (state.name, state.type.value) == ("Skipped", "COMPLETED")
    assert "period 2026-W04 of 'clinic' is trained already" in str(state.message)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
    assert run.name == "clinic 2026-01-26 eps 0.8 retraining"
    assert {"clinic", "retraining"} <= set(run.tags)
    assert [event for event, _ in heard] == ["dpflows.failed", "dpflows.skipped"]
    assert heard[1][1]["period"] == "2026-W04"


@pytest.mark.slow
def test_a_schedule_goes_on_while_new_blocks_come(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    """Five weeks by the real flow; every block ends within its budget, and a second trigger does
    nothing.
    """
    from flows.retrain import retrain

    champion = {
        "data": str(tmp_path / "public.yaml"),
        "path": str(tmp_path / "public.csv"),
        "model": tmp_path.name,
    }
    config = config_of(tmp_path, champion=champion)
    answers: list[dict[str, Any]] = [retrain(config, monday(week)) for week in range(5)]
    assert [answer["outcome"] for answer in answers] == ["trained"] * 5
    assert [answer["period"] for answer in answers] == [f"2026-W0{week}" for week in range(2, 7)]
    assert answers[0]["blocks"] == ["2026-W02"], "no block before the first one"
    assert answers[4]["blocks"] == ["2026-W04", "2026-W05", "2026-W06"]
    assert [answer["training"]["public_n"] for answer in answers] == [60, 120, 180, 180, 180]
    again = retrain(config, monday(4))
    assert (again["outcome"], "trained already" in again["reason"]) == ("skipped", True)
    assert len(entries(clinic, "clinic")) == 5

    limit = clinic.dataset("clinic").budget * UNIT * (1 + 1e-9)
    assert max(clinic.spent("clinic").values()) <= limit
    assert max(realised_epsilon(clinic, "clinic").values()) <= 3.0
    assert clinic.verify().ok

    # Each run began where the one before it ended, and says so.
    runs = [answer["training"]["run_id"] for answer in answers]
    assert [answer["warm_start"] for answer in answers] == [None, *runs[:-1]]
    client = tracking.tracking_client(home)
    folder = Path(client.download_artifacts(runs[1], ""))
    statement = json.loads((folder / "privacy/statement.json").read_text())
    assert statement["releasable"] and any(
        "earlier, charged run" in text for text in statement["limits"]
    )
    assert len(statement["training"]["parameters"]["start"]) == 4
    assert (
        without_price("start", statement["training"]["parameters"]["start"], "clinic", clinic) == []
    )
    assert without_price("start", [0.1, 0.2, 0.3, 0.4], "clinic", clinic) != []

    # Champion and challenger were compared on the public rows alone.
    battles = [answer["champion"] for answer in answers]
    assert battles[0]["champion"] is None
    won = [index for index, battle in enumerate(battles) if battle["won"]]
    for index, battle in enumerate(battles[1:], start=1):
        if any(earlier < index for earlier in won):
            assert battle["won"] == (battle["challenger"] >= battle["champion"] - 1e-9)
    if won:
        version = client.get_model_version_by_alias(tmp_path.name, "candidate")
        assert version.run_id == runs[won[-1]]
    parents = {client.get_run(run).data.tags["mlflow.parentRunId"] for run in runs}
    assert len(parents) == 1, "the periods of a schedule stand below one run"
    tags = client.get_run(runs[4]).data
    assert (
        tags.tags["dpflows.period"] == "2026-W06"
        and "released.public_balanced_accuracy" in tags.metrics
    )


def test_a_window_in_shards_has_the_sums_of_one_in_memory(clinic: Ledger, tmp_path: Path) -> None:
    """The rows of other blocks have no place in a shard."""
    values = config_of(tmp_path).training.model_dump(mode="json")
    values["data"]["blocks"] = ["2026-W03", "2026-W05"]
    found = []
    for kind in ("memory", "shards"):
        job = training.prepare(TrainConfig.model_validate(values | {"engine": {"kind": kind}}))
        sums = training.read_run(job, training.plan_training(job)).sums.open()
        assert sums.n == 120 and isinstance(sums, ShardedObjective) is (kind == "shards")
        sums.check(job.problem)
        w = np.linspace(-1.0, 1.0, sums.dimension)
        found.append(sums.gradient_sum(w, 0.3))
    assert np.abs(found[0] - found[1]).max() < 1e-4  # fractions are kept in single precision


@pytest.mark.slow
def test_periods_in_shards_are_trained_charged_and_followed(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    """With a champion on public rows, which lie in memory; nothing is left."""
    from flows.retrain import retrain

    champion = {
        "data": str(tmp_path / "public.yaml"),
        "path": str(tmp_path / "public.csv"),
        "model": tmp_path.name,
    }
    values = config_of(tmp_path).training.model_dump(mode="json")
    config = config_of(
        tmp_path, champion=champion, training=values | {"engine": {"kind": "shards"}}
    )
    answers: list[dict[str, Any]] = [retrain(config, monday(week)) for week in range(2)]
    assert [answer["outcome"] for answer in answers] == ["trained"] * 2
    runs = [answer["training"]["run_id"] for answer in answers]
    assert [answer["warm_start"] for answer in answers] == [None, runs[0]]
    assert all(answer["champion"]["challenger"] is not None for answer in answers)
    assert [entry["state"] for entry in entries(clinic, "clinic")] == ["committed"] * 2
    assert list((home.root / "rows").iterdir()) == []


@pytest.mark.slow
def test_spent_blocks_are_left_out_and_said(
    server: str, home: Home, clinic: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.retrain import retrain

    wide = config_of(
        tmp_path,
        training=config_of(tmp_path, warm_start="none").training.model_dump(mode="json")
        | {"privacy": {"epsilon": 2.2, "delta": 1e-4}},
        warm_start="none",
    )
    first = retrain(wide, monday(2))
    assert first["blocks"] == ["2026-W02", "2026-W03", "2026-W04"]
    second = retrain(wide, monday(3))
    assert (second["blocks"], second["left_out"]) == (["2026-W05"], ["2026-W03", "2026-W04"])
    assert "left out, since their budget is spent: 2026-W03, 2026-W04" in second["notes"][0]
    assert second["training"]["public_n"] == 60
    before = clinic.head()
    with pytest.raises(BudgetExceeded, match=r"exhausted=refuse"):
        retrain(
            config_of(
                tmp_path, window={"exhausted": "refuse"}, training=wide.training.model_dump()
            ),
            monday(4),
        )
    assert clinic.head() == before


def test_weights_that_were_changed_are_no_start(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    from flows.retrain import retrain
    from tasks.record.stored import model_folder, read_stored

    config = config_of(tmp_path)
    run_id = retrain(config, monday(0))["training"]["run_id"]
    client = tracking.tracking_client(home)
    weights = (
        model_folder(client, client.get_run(run_id).data.tags["dpflows.model"]) / "weights.npz"
    )
    np.savez(weights, weights=np.ones(4))
    answer = retrain(config, monday(1))
    assert answer["warm_start"] is None
    assert "as its ledger entry holds them" in answer["notes"][0]
    with pytest.raises(InputError, match="encoder of run"):
        encoder = model_folder(
            client, client.get_run(answer["training"]["run_id"]).data.tags["dpflows.model"]
        )
        (encoder / "encoder.json").write_text(
            (encoder / "encoder.json").read_text().replace("1", "2")
        )
        read_stored(client, answer["training"]["run_id"], clinic)
