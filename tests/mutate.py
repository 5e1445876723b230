"""Plant small faults in a copy of the sources and see that the tests notice:
``python -m tests.mutate [PATTERN] [SECONDS]``.

Each mutant is one line of one file changed the way people get privacy wrong: a sign, a factor 2,
noise of 2/3 the scale, a dropped count. For each the tests that cover the file must turn red. Exit
code 1 names the mutants that live. Faults of the docstring's kind for algorithms are the Tape's;
these are for prices, noise, draws and storage.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("conf", "dpcore", "tasks", "flows", "tests", "pyproject.toml")


def run(mutant: Mutant, folder: Path, seconds: float) -> str:
    """``killed`` where the tests turn red, ``ALIVE`` where not, ``SLOW`` after ``seconds``."""
    path = folder / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        raise SystemExit(
            f"Expected {mutant.old!r} once in {mutant.file}, found it {source.count(mutant.old)} "
            "times."
        )
    path.write_text(source.replace(mutant.old, mutant.new))
    environment = {
        **os.environ,
        "DPFLOWS_SHARED": os.environ.get("DPFLOWS_SHARED", str(ROOT.parent / "shared")),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.tests]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "SLOW"
    finally:
        path.write_text(source)
    return "killed" if done.returncode == 1 else "ALIVE"


def main(pattern: str = "", seconds: str = "300") -> int:
    chosen = [mutant for mutant in MUTANTS if re.search(pattern, mutant.name)]
    alive = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(
                    source,
                    folder / part,
                    ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"),
                )
            else:
                shutil.copy(source, folder / part)
        for mutant in chosen:
            outcome = run(mutant, folder, float(seconds))
            sys.stdout.write(f"{outcome:<6}  {mutant.name}\n")
            sys.stdout.flush()
            if outcome != "killed":
                alive.append(mutant)
    sys.stdout.write(f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed\n")
    return 1 if alive or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:3]))
