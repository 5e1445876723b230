"""MLflow through an explicit client: absolute places, closed runs, finite numbers."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import record
from tasks.drawing import curves
from tasks.home import Home
from tasks.record import tracking
from tests.tasks.release.runs import make_world

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(home: Home) -> tuple[tracking.MlflowClient, str]:
    client = tracking.tracking_client(home)
    return client, tracking.ensure_experiment(client, home, "tests of tracking")


def test_artifacts_of_an_experiment_stay_in_the_home_folder(
    store: tuple[tracking.MlflowClient, str], home: Home
) -> None:
    client, experiment = store
    location = client.get_experiment(experiment).artifact_location
    assert location.startswith(home.artifacts.as_uri())
    assert tracking.ensure_experiment(client, home, "tests of tracking") == experiment


def test_runs_of_dead_processes_are_closed_and_others_are_not(
    store: tuple[tracking.MlflowClient, str],
) -> None:
    client, experiment = store
    ours = tracking.open_run(client, experiment, None, {})
    code = (
        "import json; from tasks.ledger.reservation import this_process; "
        "print(json.dumps(this_process()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    orphan = tracking.open_run(client, experiment, None, {record.OWNER: done.stdout.strip()})
    assert json.loads(done.stdout)["pid"] > 0
    assert tracking.close_stale_runs(client) == [orphan]
    assert client.get_run(orphan).info.status == "KILLED"
    assert client.get_run(ours).info.status == "RUNNING"
    tracking.close_run(client, ours, "FINISHED")


def test_numbers_that_are_not_finite_become_tags(store: tuple[tracking.MlflowClient, str]) -> None:
    client, experiment = store
    run_id = tracking.open_run(client, experiment, None, {})
    tracking.log_metrics(
        client, run_id, {"internal.a": 1.0, "internal.b": math.inf, "internal.c": math.nan}
    )
    tracking.close_run(client, run_id, "FINISHED")
    data = client.get_run(run_id).data
    assert data.metrics == {"internal.a": 1.0}
    assert data.tags["not_finite.internal.b"] == "inf"


def test_a_second_measurement_is_shown_and_a_resumed_one_writes_what_is_missing(
    store: tuple[tracking.MlflowClient, str],
) -> None:
    client, experiment = store
    run_id = tracking.open_run(client, experiment, None, {})
    for value in (0.3, 0.1):
        tracking.log_metrics(client, run_id, {"internal.a": value})
    tracking.log_metrics(client, run_id, {"internal.a": 0.7, "internal.b": 2.0}, resumed=True)
    tracking.close_run(client, run_id, "FINISHED")
    assert client.get_run(run_id).data.metrics == {"internal.a": 0.1, "internal.b": 2.0}
    points = client.get_metric_history(run_id, "internal.a")
    assert [(point.step, point.value) for point in points] == [(0, 0.3), (1, 0.1)]


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    trace = [{"release": k, "spent_epsilon": k / 5000, "step_size": 0.1} for k in range(1, 5001)]
    points = [point for point in tracking.curve_points(trace) if point.key == "spent.epsilon"]
    assert len(points) <= curves.CURVE_POINTS
    assert (points[0].step, points[-1].step) == (1, 5000)
    assert {point.key for point in tracking.curve_points(trace[:2])} == {
        "spent.epsilon",
        "released.step_size",
    }


def test_no_module_uses_the_run_of_the_thread() -> None:
    """MLflow's module-level functions write to whatever run is active in the thread, or open one
    that nobody closes.
    """
    pattern = re.compile(
        r"\bmlflow\.(log_\w+|set_tag\w*|start_run|end_run|active_run|set_experiment|autolog)\b"
    )
    for folder in ("dpcore", "tasks", "flows"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not pattern.search(path.read_text(encoding="utf-8")), path


def test_a_picture_that_breaks_does_not_keep_a_paid_model_from_being_recorded(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: object) -> None:
        raise AssertionError("a picture of something else")

    for name in ("budget_figure", "written", "write_terms"):
        monkeypatch.setattr(f"tasks.record.run.{name}", broken)
    monkeypatch.setattr("tests.tasks.release.runs.attach", broken)
    world = make_world(home, tmp_path)
    run_id = world.train()
    found = world.client.get_run(run_id)
    assert found.info.status == "FINISHED" and found.data.tags[record.MODEL].startswith("models:/")
    assert not (home.outbox / run_id).exists()
    assert [said.args[0] for said in caplog.records if "drawn" in said.msg] == [
        "budget", "curves", "terms", "page"
    ]  # fmt: skip


def test_a_full_disk_is_not_taken_for_a_broken_picture() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        tracking.drawn("terms", full)
