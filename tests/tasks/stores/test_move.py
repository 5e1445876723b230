"""A home folder that was moved, or restored from a backup to another path: named, put right, and
whole.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dpcore.errors import InputError
from flows.cli import run
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.release.keys import TRUSTED
from tasks.stores.moved import made_at, move, rebased, root_of
from tests.flows.small import SCHEMA, small_frame
from tests.release_fixtures import write_key
from tests.tasks.release.runs import World


def at(root: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home folder in use, as a new process would begin."""
    monkeypatch.setenv("DPFLOWS_HOME", str(root))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DPFLOWS_LEDGER", raising=False)
    return Home(root).prepare()


class Inside(World):
    """A world whose ledger lies in its home folder."""

    @property
    def ledger_url(self) -> str:
        return self.home.ledger_url


def begin(folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Inside, str]:
    """A table, a home with its ledger, and a run."""
    small_frame(np.random.default_rng(7)).to_csv(folder / "small.csv", index=False)
    text = SCHEMA.format(ledger="x").replace("ledger: x\n", "")
    (folder / "small.yaml").write_text(text)
    world = Inside(at(root, monkeypatch), folder)
    with Ledger(world.ledger_url) as ledger:
        ledger.init("small", 12.0, 1e-4, "add_remove")
    return world, world.train()


def answer(capsys: pytest.CaptureFixture[str], *call: str, code: int = 0) -> dict:
    capsys.readouterr()
    assert run([*call, "--json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_backup_restored_to_another_path_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy is audited, scores, verifies and goes on by itself; the folder that it was taken of
    stays as it is.
    """
    monkeypatch.chdir(tmp_path)
    old, new = tmp_path / "first home", tmp_path / "restored" / "home"
    world, run_id = begin(tmp_path, old, monkeypatch)
    key = write_key(tmp_path / "key.pem")
    call = ["release", run_id, "--to", "kept", "--approved-by", "A. Person", "--key", str(key)]
    signer = answer(capsys, *call)["signer"]
    monkeypatch.setenv(TRUSTED, signer)
    with Ledger(world.ledger_url) as ledger:
        head, before = ledger.head(), ledger.spent("small")
    small_frame(np.random.default_rng(1), 5).drop(columns="paid").to_csv(
        tmp_path / "rows.csv", index=False
    )
    scores = answer(capsys, "predict", "kept", "rows.csv")["rows"]
    shutil.copytree(old, new)

    home = at(new, monkeypatch)
    for command in (["audit", run_id], ["audit", "kept"], ["predict", "kept", "rows.csv"], call):
        assert run(command) == 2
        said = capsys.readouterr().err
        assert f"dpflows move {old} {new}" in said
        assert "Nothing is lost" in said
    moved = answer(capsys, "move", str(old), str(new))
    assert moved["missing"] == []
    assert moved["places"] >= 6
    assert answer(capsys, "move", str(old), str(new))["places"] == 0
    shutil.rmtree(old)

    assert answer(capsys, "audit", run_id)["findings"] == []
    assert answer(capsys, "audit", "kept")["findings"] == []
    assert answer(capsys, "predict", "kept", "rows.csv")["rows"] == scores
    assert run(["ledger", "verify", "--head", head]) == 0
    released = answer(capsys, *call)
    assert (released["changed"], released["bundle"]) == (
        False,
        str(new / "releases" / "kept" / "1"),
    )
    assert run(["verify", released["bundle"], "--key", signer, "--expect", "kept@1"]) == 0
    again = Inside(home, tmp_path).train()
    assert answer(capsys, "audit", again)["findings"] == []
    with Ledger(home.ledger_url) as ledger:
        assert ledger.spent("small")["all"] == 2 * before["all"]
    assert not old.exists(), "nothing is written to the old place"
    with closing(sqlite3.connect(new / "mlflow.db")) as database:
        assert str(old.as_uri()) not in "\n".join(database.iterdump())


def test_a_folder_is_moved_and_put_right_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "runs", tmp_path / "elsewhere" / "runs"
    made(old)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", Home(old).tracking_uri)
    found = move(old, new)
    assert (found.places, found.missing) == (2, (str(new / "releases/m/1"),))
    assert not old.exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert made_at(Home(new)) is None


def made(root: Path) -> None:
    """What a move reads of a home folder."""
    root.mkdir(parents=True)
    with closing(sqlite3.connect(root / "mlflow.db")) as database:
        database.executescript(
            "CREATE TABLE experiments (artifact_location TEXT); CREATE TABLE runs (artifact_uri "
            "TEXT);"
            'CREATE TABLE model_version_tags ("key" TEXT, value TEXT);'
        )
        place = (root / "artifacts/experiments/x").as_uri()
        database.execute("INSERT INTO experiments VALUES (?)", (place,))
        database.execute("INSERT INTO experiments VALUES ('s3://bucket/artifacts/experiments/x')")
        database.execute("INSERT INTO runs VALUES (?)", (f"{root.as_uri()}-other/artifacts",))
        rows = [("dpflows.bundle", str(root / "releases/m/1")), ("note", str(root / "of a person"))]
        database.executemany("INSERT INTO model_version_tags VALUES (?, ?)", rows)
        database.commit()


def test_only_places_of_this_home_are_changed(tmp_path: Path) -> None:
    old, new = tmp_path / "runs", tmp_path / "new"
    assert rebased(str(old), old, new) == str(new)
    assert rebased(f"{old.as_uri()}/a%20b", old, new) == f"{new.as_uri()}/a%20b"
    assert rebased(f"{old}-other/a", old, new) is None
    assert root_of("s3://bucket/artifacts/experiments/x") is None
    assert root_of((old / "artifacts/experiments/a b").as_uri()) == old
    assert root_of("/somewhere/mlruns/0") is None


def test_a_store_that_homes_share_is_no_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made(tmp_path / "runs")
    with closing(sqlite3.connect(tmp_path / "runs" / "mlflow.db")) as database:
        place = (tmp_path / "other/artifacts/experiments/y").as_uri()
        database.execute("INSERT INTO experiments VALUES (?)", (place,))
        database.commit()
    assert made_at(Home(tmp_path / "runs")) is None


def test_a_link_to_the_home_is_no_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made(tmp_path / "runs")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    assert made_at(Home(tmp_path / "link")) is None
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    assert made_at(Home(tmp_path / "copy")) == tmp_path / "runs", (
        "a copy would write into the first folder"
    )


def test_paths_without_a_home_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for old, new, words in (
        ("a", "b", "Expected a home folder at"),
        ("a", "a", "Expected two folders"),
        ("a", ".", "got no .*mlflow.db"),
    ):
        with pytest.raises(InputError, match=words):
            move(tmp_path / old, tmp_path / new)
