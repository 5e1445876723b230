"""The flows as others call them: from a script, as a subflow, in Prefect's harness, served,
deployed to a worker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tasks.home import SILENCE, Home
from tasks.ledger import Ledger
from tests.tasks.compare.test_engine import comparison_of, public
from tests.tasks.training.test_training import config_of

OURS = ("PREFECT", "MLFLOW", "DPFLOWS", "MPLCONFIGDIR", "PYTEST", "DO_NOT_TRACK")


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a table and nothing of this session's home in the environment."""
    for name in [
        name for name in os.environ if name.startswith(OURS) and not name.startswith("PYTEST")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened(small: Path) -> Ledger:
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 30.0, 1e-3, "add_remove")
    return ledger


def check_home(folder: Path, run_id: str, flow_runs: int = 1) -> None:
    """One finished run in the folder's own home, nothing beside it, nothing left in the outbox."""
    home = Home(folder / "runs")
    client = MlflowClient(home.tracking_uri)
    found = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert sorted(run.info.status for run in found) == ["FINISHED"] * flow_runs
    assert run_id in {run.info.run_id for run in found}
    assert list(home.outbox.iterdir()) == []
    for part in (home.root, home.artifacts, home.outbox):
        assert stat.S_IMODE(part.stat().st_mode) == 0o700
    assert not (folder / "mlflow.db").exists() and not (folder / "mlruns").exists()


def test_a_script_and_another_flow_call_the_training(
    server: str, small: Path, empty_folder: Path
) -> None:
    from prefect import flow

    from flows.train import train_flow

    opened(small)
    config = config_of(small)
    before = dict(os.environ)
    first = train_flow(config)
    assert dict(os.environ) == before | SILENCE

    @flow(name="nightly", log_prints=False)
    def nightly(config: Any) -> dict[str, Any]:
        answer: dict[str, Any] = train_flow(config)
        return answer

    # parameters as a deployment passes them
    second = nightly(config.model_dump(mode="json", exclude_unset=True))
    check_home(empty_folder, first["run_id"], 2)
    check_home(empty_folder, second["run_id"], 2)
    assert first["model"].startswith("models:/m-") and first["flow_run_id"] != second["flow_run_id"]


@pytest.mark.slow
def test_a_script_calls_the_comparison(server: str, small: Path, empty_folder: Path) -> None:
    from flows.compare import compare_flow

    public(small)
    summary = compare_flow(
        comparison_of(small, data=[{"name": str(small), "path": str(small.with_name("small.csv"))}])
    )
    assert summary["cells"]["failed"] == 0
    assert (empty_folder / "runs" / "mlflow.db").is_file()
    assert not (empty_folder / "mlflow.db").exists() and not (empty_folder / "mlruns").exists()
    assert stat.S_IMODE((empty_folder / "runs").stat().st_mode) == 0o700


def test_every_flow_is_rebuilt_from_annotations_that_are_types() -> None:
    """A worker loads a flow from its file, where names in quotes have no meaning yet."""
    from prefect.flows import load_flow_from_entrypoint

    root = Path(__file__).resolve().parents[2]
    for file, name in (
        ("train", "train_flow"),
        ("compare", "compare_flow"),
        ("retrain", "retrain_flow"),
    ):
        found = load_flow_from_entrypoint(f"{root / 'flows' / file}.py:{name}")
        assert found.parameters.properties["config"]
        assert not any(isinstance(kind, str) for kind in found.fn.__annotations__.values())


def test_a_library_that_was_imported_before_falls_silent_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow.telemetry.client as telemetry

    monkeypatch.setattr(telemetry, "_MLFLOW_TELEMETRY_CLIENT", object())
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    from tasks.home import silence

    silence()
    assert telemetry.get_telemetry_client() is None


@pytest.mark.parametrize("chosen", [None, "300"])
def test_a_script_that_starts_prefect_itself_has_it_silent_and_patient(chosen: str | None) -> None:
    """Settings that Prefect reads when it is imported, here after ``flows`` as in any script."""
    script = (
        "import os, flows; print(os.environ['PREFECT_SERVER_ANALYTICS_ENABLED'], "
        "os.environ['PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS'])"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")
    }
    environment |= (
        {} if chosen is None else {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": chosen}
    )
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == ["false", chosen or "120"], done.stderr


SCRIPT = """
import json, sys
from prefect.testing.utilities import prefect_test_harness
with prefect_test_harness(server_startup_timeout=300):
    from flows.train import train_flow
    print("ANSWER", json.dumps(train_flow(json.load(open("config.json")))["run_id"]))
"""


@pytest.fixture
def clean(clean_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a user, with a Prefect of their own in another folder."""
    return {**clean_environment, "PREFECT_HOME": str(tmp_path / "prefect"), "DO_NOT_TRACK": "1"}


@pytest.mark.slow
def test_the_harness_of_prefect_in_an_empty_folder(small: Path, clean: dict[str, str]) -> None:
    opened(small)
    folder = small.parent
    (folder / "config.json").write_text(
        json.dumps(config_of(small).model_dump(mode="json", exclude_unset=True))
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=folder, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    check_home(folder, json.loads(done.stdout.split("ANSWER", 1)[1].strip().splitlines()[0]))


@pytest.fixture
def prefect_server(clean: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user whose Prefect server runs."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)],
        env=clean,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    from flows.server import healthy

    api = f"http://127.0.0.1:{port}/api"
    try:
        give_up = time.monotonic() + 300
        while not healthy(api) and time.monotonic() < give_up:
            time.sleep(0.2)
        yield {**clean, "PREFECT_API_URL": api}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_finished(folder: Path, seconds: float = 240.0) -> str:
    """The id of the one run in the folder's home, once it is finished."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if (folder / "runs" / "mlflow.db").is_file():
            client = MlflowClient(Home(folder / "runs").tracking_uri)
            found = client.search_runs([one.experiment_id for one in client.search_experiments()])
            done = [run.info.run_id for run in found if run.info.status == "FINISHED"]
            if done and not list((folder / "runs" / "outbox").iterdir()):
                return str(done[0])
        time.sleep(1.0)
    raise AssertionError("no run came to its end")


SERVE = """
import json
from flows.train import train_flow
if __name__ == "__main__":
    train_flow.serve(name="direct", parameters={"config": json.load(open("config.json"))})
"""


def prefect(arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["serve", "deploy"])
def test_served_and_deployed_to_a_worker(
    way: str, small: Path, prefect_server: dict[str, str]
) -> None:
    opened(small)
    folder, environment = small.parent, prefect_server
    config = config_of(small).model_dump(mode="json", exclude_unset=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "serve.py").write_text(SERVE)
    if way == "serve":
        command = [sys.executable, "serve.py"]
    else:
        deployment = {
            "name": "direct",
            "entrypoint": "flows.train.train_flow",
            "parameters": {"config": config},
        }
        deployment["work_pool"] = {"name": "pool"}
        (folder / "prefect.yaml").write_text(json.dumps({"deployments": [deployment]}))
        prefect(["work-pool", "create", "pool", "--type", "process"], folder, environment)
        prefect(["deploy", "--all"], folder, environment)
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "pool"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(60):
            found = subprocess.run(
                [sys.executable, "-m", "prefect", "deployment", "run", "dpflows-train/direct"],
                cwd=folder,
                env=environment,
                capture_output=True,
            )
            if found.returncode == 0:
                break
            time.sleep(1.0)
        check_home(folder, until_finished(folder))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=300)
