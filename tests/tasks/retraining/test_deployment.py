"""The retraining on a schedule: validated parameters, UTC, one at a time; and a served run of the
real command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import run
from flows.commands.ui import prefect_server
from flows.server import free_port
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.retraining import RetrainConfig
from tests.ledger_fixtures import DeclaredLedger
from tests.tasks.retraining.weekly import config_of

ROOT = Path(__file__).resolve().parents[3]


def write_config(folder: Path, **sections: Any) -> Path:
    values = config_of(folder, **sections).model_dump(mode="json", exclude_unset=True)
    (folder / "retrain.yaml").write_text(yaml.safe_dump(values))
    return folder / "retrain.yaml"


def test_the_example_deployment_is_a_valid_configuration() -> None:
    found = yaml.safe_load((ROOT / "conf/prefect.yaml").read_text())
    [deployment] = found["deployments"]
    RetrainConfig.model_validate(deployment["parameters"]["config"])
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert [schedule["timezone"] for schedule in deployment["schedules"]] == ["UTC"]
    module, _, name = deployment["entrypoint"].rpartition(".")
    from importlib import import_module

    assert getattr(import_module(module), name).name == "dpflows-retrain"


@pytest.mark.slow
def test_a_deployment_checks_parameters_and_queues_what_overlaps(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    from flows.retrain import place, retrain_flow

    created = retrain_flow.to_deployment(**place(config_of(tmp_path))).apply()
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment(created)
        [schedule] = deployment.schedules
        assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 3 * * 1", "UTC")
        assert deployment.global_concurrency_limit.limit == 1
        assert deployment.concurrency_options.collision_strategy == "ENQUEUE"
        wrong = config_of(tmp_path).model_dump(mode="json")
        wrong["training"]["privacy"]["epsilon"] = -1
        with pytest.raises(PrefectHTTPStatusError):
            client.create_flow_run_from_deployment(created, parameters={"config": wrong})
        client.delete_deployment(created)
    assert entries(clinic, "clinic") == []


def test_the_command_skips_without_starting_a_server(
    home: Home, clinic: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(write_config(tmp_path))
    from tests.tasks.retraining.test_schedule import RUN

    clinic.reserve("clinic", RUN, ["2026-W04"], period="2026-W04").commit()
    assert run(["retrain", config, "--at", "2026-01-26T03:00"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        out == "Nothing to do: period 2026-W04 of 'clinic' is trained already: nothing was done "
        "and nothing was spent."
    )
    assert (
        run(["retrain", config, "--at", "2026-02-02T03:00", "--set", "training.privacy.epsilon=5"])
        == 3
    )
    assert run(["retrain", config, "--at", "2026-02-02T03:00", "--set", "schedule.every=day"]) == 2
    assert run(["retrain", config, "--serve"]) == 2
    assert "dpflows ui --prefect" in capsys.readouterr().err
    assert run(["retrain", config, "--unlock"]) == 0
    assert len(entries(clinic, "clinic")) == 1


@pytest.mark.slow
def test_a_served_retraining_runs_once_a_period(
    server: str, home: Home, clinic: Ledger, tmp_path: Path
) -> None:
    from prefect.deployments import run_deployment

    config = write_config(tmp_path, name="served")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": server}
    call = [sys.executable, "-m", "flows.cli", "retrain", str(config), "--serve"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(call, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            outcomes = []
            for _ in range(2):
                outcomes.append(_start("dpflows-retrain/served", run_deployment))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=300)
    said = (tmp_path / "log").read_text()
    assert outcomes == [("COMPLETED", "Completed"), ("COMPLETED", "Skipped")], said[-3000:]
    # One line when it starts, and one for each firing.
    lines = said.splitlines()
    assert [line.split("UTC  clinic: ")[-1].split(":")[0] for line in lines[1:]] == [
        "period 2026-W04 trained",
        "skipped",
    ], said
    assert [entry["state"] for entry in entries(clinic, "clinic")] == ["committed"], (
        "the second one did nothing"
    )


@pytest.mark.slow
def test_three_firings_of_a_cron_of_one_minute_train_once_and_say_a_line_each(
    home: Home, small: Path, tmp_path: Path
) -> None:
    """By Prefect's own scheduler, with the server that `dpflows ui --prefect` starts."""
    with DeclaredLedger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        ledger.init("small", 3.0, 1e-4, "add_remove")
    training = config_of(tmp_path).training.model_dump(mode="json", exclude_unset=True)
    training["data"] = {"name": str(small), "path": str(small.with_name("small.csv"))}
    every_minute = {"cron": "* * * * *", "every": "day", "wait_minutes": 5}
    window = {"last": None, "since": None}
    config = write_config(tmp_path, schedule=every_minute, window=window, training=training)
    with prefect_server(home, free_port()) as (api, _), (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "retrain", str(config), "--serve"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": api},
            stdout=log,
            stderr=log,
        )
        try:
            give_up = time.monotonic() + 900
            while len(lines := _firings(tmp_path / "log")) < 3 and time.monotonic() < give_up:
                time.sleep(1)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=300)
    assert "trained" in lines[0] and all("skipped: period" in line for line in lines[1:3]), lines
    with Ledger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        assert [one["state"] for one in entries(ledger, "small")] == ["committed"]


def _firings(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "UTC  small: " in line]


def _start(name: str, run_deployment: Any) -> tuple[str, str]:
    """Start a run of a deployment, which may take a moment to be there; return the state at its
    end.
    """
    give_up = time.monotonic() + 300
    while True:
        try:
            at = datetime(2026, 1, 26, 3, tzinfo=UTC).isoformat()
            found = run_deployment(name, parameters={"at": at}, timeout=300, poll_interval=1)
            return str(found.state_type.value), str(found.state_name)
        except Exception:
            if time.monotonic() > give_up:
                raise
            time.sleep(1)
