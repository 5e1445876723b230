"""The home folder: where things go, who may read them, and what the environment says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dpcore.errors import InputError
from tasks.home import Home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def untouched_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the environment back after the test."""
    home = Home(Path("/nowhere"))
    for name in (*home.environment(), *home.defaults()):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_folders_are_for_their_owner_alone(tmp_path: Path, untouched_environment: None) -> None:
    root = tmp_path / "runs"
    root.mkdir(mode=0o755)
    home = Home(root).prepare()
    for folder in (root, home.prefect, home.artifacts, home.outbox):
        assert mode(folder) == 0o700


def test_default_is_runs_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Home.find({}).root == tmp_path / "runs"
    assert Home.find({"DPFLOWS_HOME": "elsewhere"}).root == tmp_path / "elsewhere"
    assert not (tmp_path / "runs").exists()


def test_a_home_that_is_a_file_is_refused_by_whoever_asks_for_it(tmp_path: Path) -> None:
    """By commands that read alone, too."""
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(InputError, match=f"got the file {tmp_path}/file;"):
            Home.find({"DPFLOWS_HOME": str(tmp_path / place)})


def test_a_file_in_the_way_is_named(tmp_path: Path, untouched_environment: None) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="got the file"):
        Home(tmp_path / "runs").prepare()


def test_environment_forbids_telemetry_and_pickle(tmp_path: Path) -> None:
    environment = Home(tmp_path).environment()
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert environment["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
