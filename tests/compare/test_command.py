"""The commands of comparisons without a server: exit codes, tables, names, and what is refused before anything."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from dpcore.errors import InputError
from flows import cli, compare_command
from flows.compare_command import ratio_table, summary_table
from tasks import machine
from tasks.compare import session
from tasks.compare.config import load_compare, of_training
from tasks.compare.protocol import ProtocolSection
from tasks.compare.ratios import ratios, rows_of
from tasks.home import Home
from tests.compare.cells import cell
from tests.compare.test_engine import comparison_of, public
from tests.flows.test_training import config_of


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
    monkeypatch.setattr(compare_command, "on_server", lambda *arguments: answer)
    data = [{"name": str(small), "path": str(small.with_name("small.csv"))}]
    text = {"data": data[0]} if command == "crossval" else {"data": data, "algorithms": [{"name": "dp_sgd"}]}
    privacy = {"epsilon": 1.0, "delta": 1e-4}
    Path("own.yaml").write_text(json.dumps({"schema_version": 1, "privacy": privacy, **text}))
    assert cli.run([command, "own.yaml", "--json"]) == failed
    assert json.loads(capsys.readouterr().out) == answer


def test_a_bench_needs_peers(small: Path, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yaml").write_text(json.dumps({"data": [str(small)], "algorithms": [{"name": "dp_sgd"}]}))
    assert cli.run(["bench", "own.yaml"]) == 2
    assert "Expected a section peers to bench, got none" in capsys.readouterr().err


def test_dask_that_is_not_installed_is_refused_first(small: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    public(small)
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'dpflows\[dask\]', or use runner: processes"):
        session.make_comparison(comparison_of(small, runner="dask"), home)
    assert session.make_comparison(comparison_of(small, runner="processes"), home).cells


def test_runs_are_named_by_their_command(small: Path) -> None:
    assert comparison_of(small).title == "compare small"
    assert of_training(config_of(small), ProtocolSection(name="crossval")).title.startswith("crossval ")
    assert load_compare(str(Path(__file__).parents[2] / "conf" / "compare_adult.yaml")).title == "compare adult"
    assert comparison_of(small, tracking={"name": "mine"}).title == "mine"


def shown(table: Any, width: int) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize("width", [80, 160])
def test_tables_name_every_line_whole(width: int) -> None:
    long = "adult objective_perturbation eps=0.4"
    means = [
        {
            **{"name": long, "cells": 3, "seconds": 0.5, "noise_multiplier": None, "spent_epsilon": 0.4},
            "metrics": {"brier_score": 0.1, "accuracy": 0.8123, "roc_auc": 0.9},
        }
    ]
    summary = {
        **{"means": means, "metrics": ["accuracy"], "protocol": "1 x 3 folds", "run_id": "r", "failures": []},
        "cells": {"done": 3, "failed": 0, "kept": 0},
        "seconds": {"flow": 1.0},
    }
    text = shown(summary_table(summary, width), width)
    assert long in text and "0.8123" in text and text.index("accuracy") > 0
    assert ("roc auc" in text) == (width == 160)
    found = rows_of(ratios([cell("dp_sgd", 1.0), cell("opacus", 1.0)], {}))
    text = shown(ratio_table(found), width)
    assert "dp_sgd / opacus" in text
    assert "adult, add_remove, epsilon 1, delta 1e-08" in " ".join(text.replace("│", " ").split())


def test_facts_of_the_machine() -> None:
    facts = machine.machine()
    assert facts["memory_gib"] == round(psutil.virtual_memory().total / 2**30, 1)
    assert facts["cores"].startswith(tuple("123456789")) and facts["processor"] not in ("", "unknown")
    assert "thread" in facts["linear_algebra"] and facts["python"].startswith("CPython 3.")
    assert {"numpy", "scipy", "scikit-learn"} <= set(facts["packages"])
