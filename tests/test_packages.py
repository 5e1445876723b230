"""What is built from the sources: a wheel that holds what a training needs, and its metadata."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_wheel_installs_and_trains_in_a_clean_environment(tmp_path: Path) -> None:
    pytest.importorskip("build")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("conf", "dpcore", "tasks", "flows", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "-o", str(tmp_path), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "No matching distribution" in built.stdout + built.stderr:
        pytest.skip("no index of packages is reached")
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        facts = Parser().parsestr(archive.read(metadata).decode())
    assert {"dpcore/py.typed", "conf/train.yaml", "conf/data/census.yaml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]
    assert facts["License-Expression"] == "Apache-2.0" and facts["Requires-Python"]

    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    constraints = ["-c", str(ROOT / "conf" / "constraints.txt")]
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *constraints, str(wheel)],
        capture_output=True,
        text=True,
    )
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no index of packages is reached")
    assert done.returncode == 0, done.stderr
    (tmp_path / "work").mkdir()
    program = str(tmp_path / "venv" / "bin" / "dpflows")
    trained = subprocess.run(
        [program, "train"], cwd=tmp_path / "work", capture_output=True, text=True
    )
    assert trained.returncode == 0, trained.stderr
    assert "epsilon spent" in trained.stdout
