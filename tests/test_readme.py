"""What the README shows, runs as shown; what it lists, is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpcore.algorithms import registry

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, flags=re.S) for line in block.splitlines()]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.strip().splitlines()[-1][:40])
def test_python_snippets_run(snippet: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning"}
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_commands_run_as_shown(tmp_path: Path) -> None:
    """Those that neither install nor train; the flow's own tests run `dpflows train` in an empty folder."""
    commands = [line for line in COMMANDS if line.startswith("dpflows ") and not line.startswith("dpflows train")]
    assert commands
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DPFLOWS_HOME": str(tmp_path / "runs")}
    for line in commands:
        arguments = [sys.executable, "-m", "flows.cli", *line.split()[1:]]
        done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_every_algorithm_is_listed() -> None:
    table = TEXT.partition("## Algorithms")[2].partition("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    listed = {name for line in rows for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert listed == {*registry, "auto"}


def test_the_two_commands_stand_there() -> None:
    assert "pip install -c conf/constraints.txt -e . && dpflows train" in COMMANDS
    assert "pip install -c conf/constraints.txt -e '.[dev]' && pytest -n 2 --dist worksteal" in COMMANDS
