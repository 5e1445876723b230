"""What the README shows, runs as shown."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.compare import load_compare
from tasks.compare.grid import expand

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
COMMANDS = [
    line[2:]
    for block in re.findall(r"```console\n(.*?)```", TEXT, flags=re.S)
    for line in block.splitlines()
]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.strip().splitlines()[-1][:40])
def test_python_snippets_run(snippet: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning"}
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_commands_run_as_shown(tmp_path: Path) -> None:
    """Those that install nothing, after the first `dpflows train`."""
    commands = ["dpflows train", *(line for line in COMMANDS if line.startswith("dpflows "))]
    assert len(commands) > 5
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DPFLOWS_HOME": str(tmp_path / "runs")}
    for line in commands:
        arguments = [sys.executable, "-m", "flows.cli", *line.split()[1:]]
        done = subprocess.run(
            arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_it_is_read_in_five_minutes() -> None:
    assert len(TEXT.splitlines()) <= 120


def test_the_two_commands_stand_there() -> None:
    assert "pip install -c conf/constraints.txt -e . && dpflows train" in COMMANDS
    assert (
        "pip install -c conf/constraints.txt -e '.[dev]' && pytest -n 2 --dist worksteal"
        in COMMANDS
    )


def test_commands_of_the_benchmarks_describe_runs() -> None:
    """Each loads, and stands for at least one private line; the numbers beside them stand in no
    docstring.
    """
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = [
        shlex.split(line) for line in text.splitlines() if line.startswith("    dpflows compare")
    ]
    assert len(commands) >= 5
    for words in commands:
        overrides = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        settings, _ = expand(load_compare(str(ROOT / words[2]), overrides))
        assert any(setting.private for setting in settings), words
    for path in sorted((ROOT / "dpcore").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                words_of = ast.get_docstring(node) or ""
                assert not re.search(r"(\d*\.\d+[ ,/%]+){3}", words_of), (
                    f"{path}: a row of measurements"
                )
