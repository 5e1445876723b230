"""The table of what is believed, walked: every tampering that it gives rise to is named by audit,
release or verify.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from dpcore.errors import DPFlowsError
from flows.commands.audit import registered
from tasks.audit import Severity, audit
from tasks.audit.rules_model import WRITTEN_LATER
from tasks.record.sources import CODE_FOLDER
from tasks.release.bundle import open_bundle
from tasks.release.keys import load_key, own_fingerprint
from tasks.release.verify import verify_files
from tests.tasks.release.believed import BUNDLE_FILES, MODEL_FILES, RUN_FILES, TABLE
from tests.tasks.release.scene import Scene
from tests.tasks.release.tampering import ALL, Tampering

LEAST = 120
SAMPLE = 6
# One for each rule that nothing else by default asks.
ALWAYS = (
    "home forge front.json",
    "ledger remove head file",
    "mlflow edit both spent.delta",
    "model edit scoring.py",
    "model plain edit code/dpcore",
    "run field edit privacy/statement.json:created",
    "run link config.json",
    "run swap privacy/metrics.json",
)


@contextmanager
def put_back(scene: Scene, place: Path) -> Iterator[None]:
    """Everything that a tampering may touch is as it was afterwards; databases in place, since they
    stay open.
    """
    folders = [scene.files_of(scene.run), scene.model_of(scene.run), scene.bundle.parent]
    beside = [path for path in scene.world.folder.iterdir() if path.name.startswith("ledger.db")]
    files = [path for path in beside if not path.name.endswith(("-wal", "-shm", ".db"))]
    for number, path in enumerate(folders):
        shutil.copytree(path, place / f"folder{number}")
    for number, path in enumerate(files):
        shutil.copyfile(path, place / f"file{number}")
    for number, path in enumerate((scene.database, scene.ledger)):
        backup(path, place / f"{number}.db")
    try:
        yield
    finally:
        for number, path in enumerate((scene.database, scene.ledger)):
            backup(place / f"{number}.db", path)
        for path in set(scene.world.folder.glob("ledger.db*")) - set(beside):
            if not path.name.endswith(("-wal", "-shm")):
                path.unlink()
        for number, path in enumerate(files):
            shutil.copyfile(place / f"file{number}", path)
        for number, path in enumerate(folders):
            shutil.rmtree(path)
            shutil.move(place / f"folder{number}", path)


def backup(source: Path, target: Path) -> None:
    """Copy one SQLite database over another."""
    with closing(sqlite3.connect(source)) as first, closing(sqlite3.connect(target)) as second:
        first.backup(second)


def named(scene: Scene, tampering: Tampering) -> str:
    """What verify says of the bundle, or an audit of the name; empty for nothing."""
    try:
        if tampering.bundle:
            trusted = [own_fingerprint(load_key(scene.attacker.with_name("key.pem")))]
            return " ".join(
                verify_files(open_bundle(scene.bundle), None, f"{scene.name}@1", trusted).names
            )
        _, subject, more = registered(scene.world.client, scene.name, scene.world.ledger_url, False)
    except DPFlowsError as error:
        return str(error)
    return " ".join(
        one.code for one in audit(subject, more).findings if one.severity is not Severity.NOTE
    )


def walk(scene: Scene, labels: list[str], place: Path) -> None:
    clean = Tampering("nothing", lambda _: True)
    assert named(scene, clean) == ""
    missed, done = [], 0
    for number, label in enumerate(labels):
        (place / str(number)).mkdir()
        with put_back(scene, place / str(number)):
            if not ALL[label].apply(scene):
                continue
            done += 1
            if not named(scene, ALL[label]):
                missed.append(label)
    assert not missed, ", ".join(missed)
    assert named(scene, clean) == ""
    assert done >= min(LEAST, len(labels) // 2)


def test_a_sample_of_tamperings_is_named(scene: Scene, tmp_path: Path) -> None:
    """Every kind of place is in it; which ones follows from their names."""
    ordered = sorted(ALL, key=lambda label: sha256(label.encode()).hexdigest())
    places = sorted({label.split()[0] for label in ALL})
    sample = [
        label for place in places for label in [one for one in ordered if one.startswith(place)][:3]
    ][:SAMPLE]
    walk(scene, list(dict.fromkeys((*sample, *ALWAYS))), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["files", "fields"])
def test_every_tampering_is_named(scene: Scene, tmp_path: Path, part: str) -> None:
    """About 500 of them, some 5 minutes."""
    labels = [label for label in ALL if (" field " in label) == (part == "fields")]
    assert len(labels) >= LEAST
    walk(scene, labels, tmp_path)


def test_the_table_lists_every_file(scene: Scene) -> None:
    """Figures and the report are the operator's; no step reads them."""
    root, model = scene.files_of(scene.run), scene.model_of(scene.run)
    of_run = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert {path for path in of_run if not path.startswith(("figures/", "report/"))} == {
        one.where for one in RUN_FILES
    }
    of_model = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    plain = {CODE_FOLDER if path.startswith(CODE_FOLDER) else path for path in of_model} - {
        WRITTEN_LATER
    }
    assert plain | {"artifacts/model/state.safetensors"} == {one.where for one in MODEL_FILES}
    in_bundle = {
        path.relative_to(scene.bundle).as_posix()
        for path in scene.bundle.rglob("*")
        if path.is_file()
    }
    assert in_bundle | {"model.sig", "model/model.onnx"} == {one.where for one in BUNDLE_FILES}
    assert set(json.loads((scene.bundle / "manifest.json").read_text())["files"]) < in_bundle


def test_each_thing_stands_in_the_table_once() -> None:
    pairs = [(one.kind, one.where) for one in TABLE]
    assert len(pairs) == len(set(pairs))
    covered = {label.split()[0] for label in ALL}
    assert covered == {one.kind for one in TABLE}
