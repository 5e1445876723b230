"""The list of runs: it comes from the home alone, is made again where it was lost, and fits."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from io import StringIO
from pathlib import Path
from time import perf_counter

import pytest

from flows.cli import run
from flows.commands.runs import runs_table
from flows.terminal import natural_width
from tasks.home import Home
from tasks.record import index
from tests.flows.test_command_line import own_home, summary
from tests.tasks.release.runs import World

__all__ = ["own_home"]

ROOT = Path(__file__).resolve().parents[2]


def test_runs_come_from_the_home_alone(own_home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    index.note_run(own_home, summary("a" * 32), "2026-W10", ("2026-W09", "2026-W10"))
    index.note_run(
        own_home, summary("b" * 32, data="other", releasable=False, reasons=["a fixed seed"])
    )
    index.note_release(
        own_home,
        {
            "run_id": "a" * 32,
            "name": "visits",
            "version": "3",
            "epsilon": 0.5,
            "delta": 1e-6,
            "bundle": "x",
        },
        "A. Person",
    )
    assert stat.S_IMODE((own_home.root / index.FILE).stat().st_mode) == 0o600
    assert run(["runs", "--data", "visits", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["runs"]
    assert (found["run_id"], found["period"]) == ("a" * 32, "2026-W10")
    assert "start" not in found["parameters"]
    assert run(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "visits@3" in shown
    assert "0.8609*" in shown  # internal: it was computed on records
    assert run(["show", "aaaa"]) == 0
    shown = capsys.readouterr().out
    assert "approved by A. Person" in shown
    assert "accuracy (internal)" in shown
    assert run(["show", "cc"]) == 2
    assert "Unknown run 'cc'" in capsys.readouterr().err


def test_runs_need_no_heavy_library(own_home: Home) -> None:
    """What makes it quick: importing MLflow alone takes longer than the whole command may."""
    index.note_run(own_home, summary("a" * 32))
    code = (
        "import sys\nfrom flows.cli import run\nassert run(['runs']) == 0\nassert run(['show', "
        "'a']) == 0\nheavy = {'mlflow', 'prefect', 'sqlalchemy', 'numpy', 'scipy', 'pandas'} & "
        "set(sys.modules)\nprint(sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == "[]\n"


def test_a_line_that_was_half_written_hides_no_other(own_home: Home) -> None:
    index.note_run(own_home, summary("a" * 32))
    with (own_home.root / index.FILE).open("a") as file:
        file.write('{"schema_version": 1, "what": "ru\n[]\n')
    index.note_run(own_home, summary("b" * 32))
    assert {row["run_id"][0] for row in index.runs(own_home)} == {"a", "b"}


def test_a_list_that_was_lost_is_made_again(
    shared_world: World,
    trained: str,
    own_home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From MLflow's store; a release of a run that the list lacks is no list, and one that cannot be
    noted is a release nevertheless.
    """
    home = shared_world.home
    monkeypatch.setenv("DPFLOWS_HOME", str(home.root))
    file, released = home.root / index.FILE, {"run_id": trained, "name": "visits", "version": "3"}
    released |= {"bundle": "x", "epsilon": 0.5, "delta": 1e-6}
    before = file.read_text() if file.is_file() else None
    file.unlink(missing_ok=True)
    try:
        index.note_release(home, released, "A. Person")
        assert index.is_lost(home)
        assert run(["runs", "--json", "--last", "100"]) == 0
        shown = capsys.readouterr()
        found = {one["run_id"]: one for one in json.loads(shown.out)["runs"]}
        assert "were added to the list" in shown.err
        assert "visits@3" in index.released_as(found[trained]).split(", ")
        assert found[trained]["epsilon_asked"] and not index.is_lost(home)
        assert run(["show", trained[:12]]) == 0 and "added" not in capsys.readouterr().err
    finally:
        file.unlink()
        if before is not None:
            file.write_text(before)
    gone = Home(own_home.root / "gone")
    index.note_release(gone, released, "A. Person")
    assert not gone.root.exists()


@pytest.mark.slow
def test_runs_are_listed_in_less_than_six_imports_of_numpy(own_home: Home) -> None:
    """Three of them as measured, 0.2 s on a quiet machine, where six are half a second; MLflow's
    import alone takes eighteen. Taken in turn, so that a busy machine slows both.
    """
    index.note_run(own_home, summary("a" * 32))
    calls = {"numpy": ["-c", "import numpy"], "runs": ["-m", "flows.cli", "runs"]}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(5):
        for name, words in calls.items():
            started = perf_counter()
            subprocess.run(
                [sys.executable, *words],
                env={**os.environ, "DPFLOWS_HOME": str(own_home.root), "PYTHONPATH": str(ROOT)},
                capture_output=True,
                check=True,
            )
            times[name].append(perf_counter() - started)
    assert min(times["runs"]) < 6 * min(times["numpy"]), times


def test_tables_of_runs_fit_80_letters_at_a_terminal(own_home: Home) -> None:
    from rich.console import Console

    index.note_run(
        own_home,
        summary("a" * 32, data="a-data-set-with-a-long-name", algorithm="objective_perturbation"),
    )
    table = runs_table(index.runs(own_home), 1)
    console = Console(width=80, record=True, file=StringIO())
    console.print(table)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert (
        "a-data-set-with-a-long-name" in "".join(line[20:31].strip() for line in lines)[:200]
        or natural_width(table) > 80
    )
