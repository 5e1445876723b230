"""Files that lie where people and MLflow look: each is the one that the training wrote, or the
audit names it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.audit import audit
from tasks.audit.mlflow_run import Database
from tasks.audit.subject import Subject, ledger_facts, local
from tests.tasks.release.runs import World


def subject_of(world: World, run_id: str) -> Subject:
    database = Database.of(world.home.tracking_uri)
    assert database is not None
    found = database.read_run(run_id)
    assert found is not None
    facts, metric = ledger_facts(found.files, world.ledger_url)
    return dataclasses.replace(found, ledger=facts, metric_ledger=metric)


def codes(world: World, run_id: str) -> set[str]:
    return audit(subject_of(world, run_id)).codes


@pytest.fixture(scope="module")
def places(shared_world: World, trained: str) -> tuple[Path, Path]:
    """The folders of the run's files and of its model."""
    root = local(shared_world.client.get_run(trained).info.artifact_uri)
    place = local(subject_of(shared_world, trained).place)
    assert root is not None and place is not None
    return root, place


@contextmanager
def put_back(folder: Path, copy: Path) -> Iterator[None]:
    shutil.copytree(folder, copy, symlinks=True)
    try:
        yield
    finally:
        shutil.rmtree(folder)
        shutil.move(copy, folder)


def append(text: str) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        path.write_bytes(path.read_bytes() + text.encode())

    return do


def replace(old: str, new: str) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        found = path.read_text()
        assert old in found
        path.write_text(found.replace(old, new))

    return do


def create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


def linked(path: Path) -> None:
    kept = path.with_name(f".{path.name}")
    path.rename(kept)
    path.symlink_to(kept)


RUN: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a line in the statement for people": (
        "privacy/statement.md",
        append("Epsilon is 0.\n"),
        "text_changed",
    ),
    "a script in the page": (
        "privacy/statement.html",
        append("<script>x()</script>"),
        "text_changed",
    ),
    "no statement for people": ("privacy/statement.md", Path.unlink, "text_missing"),
    "names in the trace": (
        "privacy/trace.json",
        replace("spent_epsilon", "accuracy"),
        "text_changed",
    ),
    "the curve": ("privacy/curve.json", append(" "), "text_changed"),
    "the list of files": ("privacy/files.json", append(" "), "model_list_changed"),
    "a link": ("privacy/statement.md", linked, "link_stored"),
}
MODEL: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a line in the scorer": ("scoring.py", append("print('x')\n"), "model_file_changed"),
    "a line in the code": ("code/dpcore/errors.py", append("x = 1\n"), "model_file_changed"),
    "compiled code": ("code/dpcore/__pycache__/errors.cpython-311.pyc", create, "model_file_added"),
    "another loader": ("MLmodel", replace("loaders.code_model", "model"), "model_file_changed"),
    "other words for a column": ("MLmodel", replace("cut to 0", "cut to 9"), "model_file_changed"),
    "another folder of weights": (
        "MLmodel",
        replace("path: artifacts/model", "path: code"),
        "model_file_changed",
    ),
    "another package": ("requirements.txt", append("\nevil==1.0"), "model_file_changed"),
    "another package for conda": (
        "conda.yaml",
        replace("- conda-forge", "- evil"),
        "model_file_changed",
    ),
    "another build": ("python_env.yaml", replace("- wheel", "- evil"), "model_file_changed"),
    "rows": ("train_rows.csv", create, "model_file_added"),
    "rows in the request": (
        "serving_input_example.json",
        replace("[", "[ 41.0,"),
        "model_file_changed",
    ),
    "a decoy": ("decoy/weights.npz", create, "model_file_added"),
    "no scorer": ("scoring.py", Path.unlink, "model_file_missing"),
    "linked weights": ("artifacts/model/weights.npz", linked, "link_stored"),
}


@pytest.mark.parametrize("name", [*RUN, *MODEL])
def test_changed_file_is_named(
    shared_world: World, trained: str, places: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    root, (path, change, expected) = (
        (places[0], RUN[name]) if name in RUN else (places[1], MODEL[name])
    )
    assert codes(shared_world, trained) == set()
    with put_back(root, tmp_path / "copy"):
        change(root / path)
        assert expected in codes(shared_world, trained)


def test_metrics_of_another_run_are_named(world: World) -> None:
    """Copied with everything that belongs to them: file, and the ledger's entry that it names."""
    asked = {"release": {"metric": "accuracy", "epsilon": 0.5}}
    first, second = (world.train(world.config(evaluate=asked)) for _ in range(2))
    roots = [local(world.client.get_run(one).info.artifact_uri) for one in (first, second)]
    assert roots[0] is not None and roots[1] is not None
    shutil.copy(roots[0] / "privacy/metrics.json", roots[1] / "privacy/metrics.json")
    values = json.loads((roots[1] / "privacy/metrics.json").read_text())["values"]
    with sqlite3.connect(world.home.root / "mlflow.db") as connection:
        for table in ("metrics", "latest_metrics"):
            change = (
                f"update {table} set value = ? where run_uuid = ? and \"key\" = 'released.accuracy'"
            )
            connection.execute(change, (values["accuracy"], second))
    assert codes(world, second) == {"metrics_of_another_run"}


def test_place_of_the_registry_is_compared(world: World) -> None:
    run_id = world.train()
    subject = subject_of(world, run_id)
    world.client.create_registered_model("placed")
    world.client.create_model_version("placed", subject.tags["dpflows.model"], run_id)
    assert codes(world, run_id) == set()
    with sqlite3.connect(world.home.root / "mlflow.db") as connection:
        connection.execute(
            "update model_versions set storage_location = '/elsewhere' where name = 'placed'"
        )
    assert codes(world, run_id) == {"version_location"}
