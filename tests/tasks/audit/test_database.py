"""MLflow's database read directly: the same run as through MLflow's client, and only where the
tables are known.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import pytest
from mlflow.entities import Dataset, DatasetInput

from flows.cli import run
from flows.commands.audit import quick
from tasks.audit import audit
from tasks.audit.mlflow_run import KNOWN, Database, read_run
from tasks.audit.subject import attached, own_data
from tasks.home import Home
from tests.tasks.release.runs import World


def database(home: Home) -> Database:
    found = Database.of(home.tracking_uri)
    assert found is not None, (
        f"MLflow's tables changed: compare them with the reader, then add them to {KNOWN}"
    )
    return found


def test_the_run_is_the_one_that_the_client_reads(shared_world: World, trained: str) -> None:
    direct, through_client = (
        database(shared_world.home).read_run(trained),
        read_run(shared_world.client, trained),
    )
    assert direct is not None
    assert asdict(direct) == asdict(through_client)
    assert direct.model["weights.npz"] and direct.files["privacy/statement.json"]


def test_what_somebody_attaches_in_mlflow_is_named(world: World) -> None:
    """A data set with its profile, a parameter, a tag and a metric of the logged model, a tag of a
    version, a description: places of a run that no training fills.
    """
    run_id = world.train()
    client, direct = world.client, database(world.home).read_run(run_id)
    assert direct is not None and direct.attached == ()
    [own] = client.get_run(run_id).inputs.dataset_inputs
    shown = json.loads(own.dataset.schema)["mlflow_colspec"]
    assert {one["name"]: one["type"] for one in shown} == {"age": "double", "city": "string"}
    assert direct.model["encoder.json"] and own.dataset.profile is None
    uri = client.get_run(run_id).data.tags["dpflows.model"]
    model = uri.removeprefix("models:/")
    rows = Dataset("rows of June", "digest", "local", "{}", profile='{"positives": 412}')
    client.log_inputs(run_id, [DatasetInput(rows)])
    client.log_model_params(model, {"positives": "412"})
    client.set_logged_model_tags(model, {"levels": "north, south"})
    client.create_registered_model("attached")
    version = client.create_model_version("attached", uri, run_id)
    client.set_model_version_tag("attached", version.version, "positives", "412")
    client.set_tag(run_id, "mlflow.note.content", "412 positives")
    client.set_tag(run_id, "mlflow.positives", "412")
    direct, through_client = database(world.home).read_run(run_id), read_run(client, run_id)
    assert direct is not None and asdict(direct) == asdict(through_client)
    assert direct.attached == (
        "dataset rows of June",
        "param positives of the model",
        "tag levels of the model",
        "tag positives of version 1 of attached",
    )
    findings = audit(direct).findings
    assert {"attached", "note_changed", "tag_unknown"} <= {one.code for one in findings}


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 32},
        {"profile": '{"positives": 412}'},
        {"source": "/home/somebody/june.csv"},
        {"source_type": "local"},
        {"schema": None},
        {"tags": (("mlflow.data.context", "training"), ("positives", "412"))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_data_set_is_the_training_s_own_in_every_part_or_it_is_named(
    shared_world: World, trained: str, change: dict[str, object]
) -> None:
    """Those of MLflow's inputs that follow from the stored encoder alone are no finding."""
    found = database(shared_world.home).read_run(trained)
    assert found is not None
    own = own_data(found.tags["dpflows.data"], found.model["encoder.json"])
    assert own is not None and attached([own], own, (), (), ()) == ()
    assert attached([own._replace(**change)], own, (), (), ()) == (f"dataset {own.name}",)
    assert attached([own], own_data("other", found.model["encoder.json"]), (), (), ()) != ()
    assert own_data("small", b"[]") is None and own_data("small", None) is None


def test_what_the_pages_show_is_read_too(world: World) -> None:
    run_id = world.train()
    with sqlite3.connect(world.home.root / "mlflow.db") as connection:
        changed = (
            'update latest_metrics set value = 0.01 where run_uuid = ? and "key" = '
            "'spent.epsilon'"
        )
        assert connection.execute(changed, (run_id,)).rowcount == 1
    subject = database(world.home).read_run(run_id)
    assert subject is not None and subject.metrics["spent.epsilon"][-1] == 0.01
    assert "shown_differs" in audit(subject).codes


def test_nan_and_several_values_are_kept(world: World) -> None:
    run_id = world.train()
    for step, value in enumerate((0.5, float("nan"), 0.25)):
        world.client.log_metric(run_id, "internal.odd", value, timestamp=1000 + step, step=step)
    subject = database(world.home).read_run(run_id)
    assert subject is not None
    first, second, third = subject.metrics["internal.odd"]
    assert (first, third) == (0.5, 0.25) and second != second


def test_the_tag_is_one_that_the_client_reads_and_can_change(world: World) -> None:
    run_id = world.train()
    for words in ("clean", "blocked: a"):
        database(world.home).set_tag(run_id, "dpflows.audit", words)
        assert world.client.get_run(run_id).data.tags["dpflows.audit"] == words
    world.client.set_tag(run_id, "dpflows.audit", "again")
    subject = database(world.home).read_run(run_id)
    assert subject is not None and subject.tags["dpflows.audit"] == "again"


def test_a_model_that_is_not_ready_is_no_model(world: World) -> None:
    run_id = world.train()
    with sqlite3.connect(world.home.root / "mlflow.db") as connection:
        connection.execute("update logged_models set status = 3 where source_run_id = ?", (run_id,))
    direct, through_client = database(world.home).read_run(run_id), read_run(world.client, run_id)
    assert direct is not None and direct.model == through_client.model == {}
    assert direct.model_run == through_client.model_run == run_id


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:5000",
        "postgresql://host/db",
        "sqlite:///{folder}/none.db",
        "sqlite:///{folder}/x?y=1",
    ],
)
def test_other_stores_are_left_to_the_client(tmp_path: Path, uri: str) -> None:
    assert Database.of(uri.format(folder=tmp_path)) is None


def test_unknown_tables_are_left_to_the_client(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    for revision, known in ((KNOWN[0], True), ("0123456789ab", False)):
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute("create table alembic_version (version_num varchar)")
            connection.execute("insert into alembic_version values (?)", (revision,))
        assert (Database.of(f"sqlite:///{path}") is not None) is known


def test_runs_that_are_deleted_or_not_there_are_left_to_the_client(
    world: World, home: Home
) -> None:
    run_id = world.train()
    assert quick(run_id) is not None
    assert quick("0" * 32) is None and quick("a-model") is None
    world.client.delete_run(run_id)
    assert quick(run_id) is None


def test_command_gives_the_same_findings_either_way(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = world.train()
    world.client.set_tag(run_id, "dpflows.releasable", "no")
    found = []
    for way in (quick, lambda name: None):
        monkeypatch.setattr("flows.commands.audit.quick", way)
        assert run(["audit", run_id, "--ledger", world.ledger_url, "--json"]) == 4
        found.append(capsys.readouterr().out.split('"seconds"')[0])
        assert world.client.get_run(run_id).data.tags["dpflows.audit"] == "blocked: shown_differs"
    assert found[0] == found[1]


CALL = (
    "import sys; from flows.cli import run; code = run(sys.argv[1:]); print(*sys.modules); "
    "sys.exit(code)"
)


def test_command_imports_nothing_that_it_does_not_use(shared_world: World, trained: str) -> None:
    call = [
        sys.executable,
        "-c",
        CALL,
        "audit",
        trained,
        "--ledger",
        shared_world.ledger_url,
        "--json",
    ]
    done = subprocess.run(call, capture_output=True, text=True, env=environment(shared_world))
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert "tasks.audit" in imported
    assert not {"mlflow", "prefect", "sklearn", "pandas", "matplotlib"} & imported


@pytest.mark.slow
def test_command_takes_less_than_three_seconds(shared_world: World, trained: str) -> None:
    call = [
        sys.executable,
        "-m",
        "flows.cli",
        "audit",
        trained,
        "--ledger",
        shared_world.ledger_url,
    ]
    times = []
    for _ in range(3):
        started = perf_counter()
        subprocess.run(call, check=True, capture_output=True, env=environment(shared_world))
        times.append(perf_counter() - started)
    assert min(times) < 3.0, times


def environment(world: World) -> dict[str, str]:
    """That of a user of the store, with the project importable from anywhere."""
    return {
        **os.environ,
        "DPFLOWS_HOME": str(world.home.root),
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
    }
