"""The commands of comparisons without a server: exit codes, tables, names, and what is refused
before anything.
"""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console

from dpcore.errors import InputError
from flows import cli
from flows.commands import compare
from flows.commands.compare import ratio_table, summary_table
from flows.terminal import print_whole
from tasks.compare import load_compare, resume
from tasks.compare.config import ProtocolSection
from tasks.compare.export import deviation
from tasks.compare.ratios import ratios, rows_of
from tasks.compare.variants import of_training
from tasks.home import Home
from tasks.report import facts as report_facts
from tests.tasks.compare.cells import cell
from tests.tasks.compare.test_engine import comparison_of, public
from tests.tasks.training.test_training import config_of


@pytest.mark.parametrize("command", ["compare", "crossval"])
@pytest.mark.parametrize("failed", [0, 1])
def test_a_failed_cell_is_exit_code_1(
    small: Path,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    failed: int,
) -> None:
    public(small)
    answer: dict[str, Any] = {"cells": {"failed": failed}, "ratios": []}
    monkeypatch.setattr(compare, "on_server", lambda *arguments: answer)
    data = [{"name": str(small), "path": str(small.with_name("small.csv"))}]
    text = (
        {"data": data[0]}
        if command == "crossval"
        else {"data": data, "algorithms": [{"name": "dp_sgd"}]}
    )
    privacy = {"epsilon": 1.0, "delta": 1e-4}
    Path("own.yaml").write_text(json.dumps({"schema_version": 1, "privacy": privacy, **text}))
    assert cli.run([command, "own.yaml", "--json"]) == failed
    assert json.loads(capsys.readouterr().out) == answer


def test_a_bench_needs_peers(small: Path, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yaml").write_text(
        json.dumps({"data": [str(small)], "algorithms": [{"name": "dp_sgd"}]})
    )
    assert cli.run(["bench", "own.yaml"]) == 2
    assert "Expected a section peers to bench, got none" in capsys.readouterr().err


def test_dask_that_is_not_installed_is_refused_first(
    small: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    public(small)
    monkeypatch.setattr(resume, "find_spec", lambda name: None)
    with pytest.raises(
        InputError,
        match=r"pip install 'dpflows\[dask\]', or use runner: "
        r"processes",
    ):
        resume.make_comparison(comparison_of(small, runner="dask"), home)
    assert resume.make_comparison(comparison_of(small, runner="processes"), home).cells


def test_runs_are_named_by_their_command(small: Path) -> None:
    assert comparison_of(small).title == "compare small"
    assert of_training(config_of(small), ProtocolSection(name="crossval")).title.startswith(
        "crossval "
    )
    assert (
        load_compare(str(Path(__file__).parents[3] / "conf" / "compare_adult.yaml")).title
        == "compare adult"
    )
    assert comparison_of(small, tracking={"name": "mine"}).title == "mine"


def shown(table: Any, width: int) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


LONG = "adult objective_perturbation eps=0.4"


def summary_of(*names: str, failures: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    metrics = {"brier_score": 0.1, "accuracy": 0.8123, "roc_auc": 0.9, "balanced_accuracy": 0.75}
    sd = dict.fromkeys(metrics, 0.00123)
    own = {
        "cells": 3,
        "seconds": 0.5,
        "noise_multiplier": None,
        "spent_epsilon": 0.4,
        "metrics": metrics,
        "sd": sd,
    }
    return {
        **{
            "means": [{"name": name, **own} for name in names],
            "metrics": ["accuracy"],
            "protocol": "1 x 3 folds",
        },
        **{"cells": {"done": 3, "failed": 0, "kept": 0}, "seconds": {"flow": 1.0}},
        **{"run_id": "r" * 32, "failures": failures or []},
    }


@pytest.mark.parametrize("width", [50, 80, 100, 124, 160])
def test_tables_cut_nothing_off(width: int) -> None:
    """As many metrics as fit, numbers whole with their spread, and names whole where they fit or
    folded.
    """
    text = shown(summary_table(summary_of(LONG), width), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text and "0.8123 ± 0.0012" in text and "seconds" in text and "r" * 32 in text
    assert LONG in text or width == 50
    assert LONG.replace(" ", "") in "".join(
        line.split("│")[1].strip() for line in text.splitlines() if "│" in line
    ).replace(" ", "")
    assert ("Brier" in text) == (width >= 100) and ("balanced" in text) == (width == 160)
    found = rows_of(ratios([cell("dp_sgd", 1.0), cell("opacus", 1.0)], {}))
    text = shown(ratio_table(found), width)
    assert width < 80 or "dp_sgd / opacus" in text
    assert (
        "adult, add_remove, epsilon 1, delta 1e-08" in " ".join(text.replace("│", " ").split())
        or width < 80
    )


def test_a_pipe_gets_the_whole_table() -> None:
    """What goes to a pipe has no width: no line is folded, nothing is cut, all metrics stand
    there.
    """
    failure = {"cells": 2, "data": "adult", "label": "x", "error": "PeerError: " + "word " * 60}
    out = StringIO()
    print_whole(Console(file=out), summary_table(summary_of(LONG, "b", failures=[failure])))
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    [line] = [line for line in lines if LONG in line]
    assert line.count("± 0.0012") == 4
    assert out.getvalue().count("word") == 60


def test_spread_is_over_cells_with_their_draws_averaged() -> None:
    records = [
        {"repeat": 0, "fold": fold, "metrics": {"accuracy": value}}
        for fold, value in ((0, 0.7), (0, 0.9), (1, 0.6), (1, 0.5))
    ]
    assert deviation(records, "accuracy") == pytest.approx(np.std([0.8, 0.55], ddof=1))
    assert deviation(records[:2], "accuracy") is None


def test_facts_of_the_machine() -> None:
    facts = report_facts.machine()
    assert facts["memory_gib"] == round(psutil.virtual_memory().total / 2**30, 1)
    assert facts["cores"].startswith(tuple("123456789")) and facts["processor"] not in (
        "",
        "unknown",
    )
    assert "thread" in facts["linear_algebra"] and facts["python"].startswith("CPython 3.")
    assert {"numpy", "scipy", "scikit-learn"} <= set(facts["packages"])
