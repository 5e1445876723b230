"""An auditor's machine: ``dpflows verify`` and the estimators work with a short list of packages,
where neither Prefect nor MLflow is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIST = ROOT / "conf" / "verify.txt"
BUNDLE = Path(__file__).parent / "fixtures" / "bundle-1"
SIGNER = "336c749a7b3e29821a2a57119220051e6e59373e6e024f1bf7cd07b8b8539a3b"
FIT = """
import numpy as np
from dpcore.estimators import DPClassifier
X = np.random.default_rng(0).random((400, 3))
y = (X[:, 0] > 0.5).astype(int)
model = DPClassifier(epsilon=1.0, delta=1e-6, classes=[0, 1], n=400).fit(X, y)
assert 0 < model.spent_.epsilon <= 1.0, model.spent_
"""
VERIFY = f"""
from flows.cli import run
assert run(["verify", {str(BUNDLE)!r}, "--key", {SIGNER!r}, "--expect", "payers@1"]) == 0
"""


def listed() -> list[str]:
    lines = (line.partition("#")[0].strip() for line in LIST.read_text().splitlines())
    return [line for line in lines if line]


def named(lines: list[str]) -> set[str]:
    return {re.split(r"[=;\s]", line)[0].lower().replace("_", "-") for line in lines}


def with_theirs(names: set[str]) -> set[str]:
    """``names`` and the packages that these need, and so on."""
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        one = waiting.pop()
        found.add(one)
        needs = (line for line in requires(one) or () if "extra ==" not in line)
        waiting |= named([re.split(r"[ (><=!~\[;]", line)[0] for line in needs]) - found
    return found


def test_the_list_has_the_versions_of_the_constraints() -> None:
    pinned = {line.strip() for line in (ROOT / "conf" / "constraints.txt").read_text().splitlines()}
    assert set(listed()) <= pinned


@pytest.mark.parametrize("code", [VERIFY, FIT], ids=["verify", "estimator"])
def test_nothing_else_is_imported(code: str) -> None:
    """Of the packages that dpflows depends on, only those of the list are asked for."""
    declared = re.search(
        r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.S | re.M
    )
    assert declared is not None
    wanted = {
        re.split(r"[><=]", line.strip(' ",'))[0].lower() for line in declared[1].split("\n")
    } - with_theirs(named(listed()))
    names = [
        name
        for name, owners in packages_distributions().items()
        if {owner.lower() for owner in owners} & (wanted - {""})
    ]
    assert {"mlflow", "prefect", "pandas"} <= set(names)
    script = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(names)!r}, None))\n" + code  # import raises
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_list_is_enough_in_a_clean_environment(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    # A build writes into its folder.
    for name in ("conf", "dpcore", "tasks", "flows", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "source" / name)
    for arguments in (["-r", str(LIST)], ["--no-deps", str(tmp_path / "source")]):
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", *arguments], capture_output=True, text=True
        )
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip("no index of packages is reached")
        assert done.returncode == 0, done.stderr
    for code in (VERIFY, FIT):
        done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
