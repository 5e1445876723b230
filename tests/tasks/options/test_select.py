"""A training with ``select:`` through the flow: what it shows, stores and says about the columns
that it kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpcore.errors import InputError
from tasks.home import Home
from tasks.record import tracking
from tests.flows.test_flow import ledger, runs_of, states, task_runs
from tests.tasks.training.test_training import config_of

__all__ = ["ledger"]

SECTIONS = {
    "select": {"keep": 1, "share": 0.3},
    "objective": {"l1": 1e-4},
    "algorithm": {"name": "ssadmm", "steps": 5},
}


def test_a_selection_is_a_step_of_one_charged_training(
    server: str, home: Home, small: Path, ledger
) -> None:
    from flows.server import LocalServer
    from flows.train import train

    summary = train(config_of(small, tracking={"experiment": "selection"}, **SECTIONS))
    assert summary["algorithm"] == "two_phase" and states(ledger) == ["reserved", "committed"]

    [run_] = runs_of(home, "selection")
    client = tracking.tracking_client(home)
    folder = Path(client.download_artifacts(run_.info.run_id, ""))
    table = json.loads((folder / "tables/attributes.json").read_text())
    [kept] = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert json.loads(run_.data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "tables/attributes.json", "type": "table"}
    ]
    assert kept["column"] in ("age", "city=north", "city=south") and kept["attribute"] in (
        "age",
        "city",
    )
    assert (kept["weight"] > 0) == (kept["sign"] == "+")

    released = json.loads((folder / "privacy/statement.json").read_text())["released"]
    [words] = [
        line for line in released if line.startswith("the columns that the model uses, 1 of 3")
    ]
    assert words.endswith(kept["column"])
    assert json.loads((folder / "config.json").read_text())["select"]["keep"] == 1
    cards = [
        json.loads(path.read_text()) for path in model_folder(client, run_).rglob("model.json")
    ]
    assert [card["uses"] for card in cards] == [[kept["column"]]]

    with LocalServer(home) as seen:
        seen.drain(summary["flow_run_id"])
    names = [task["name"] for task in task_runs(server, summary["flow_run_id"])]
    assert "name the selected attributes" in names and names.count("fit with noise") == 1


def model_folder(client, run_) -> Path:
    """The folder of the stored model's files."""
    from mlflow.artifacts import download_artifacts

    return Path(
        download_artifacts(run_.data.tags["dpflows.model"], tracking_uri=client.tracking_uri)
    )


def test_a_plan_shows_both_phases(small: Path, home: Home) -> None:
    from flows.commands.train import plan_report
    from flows.terminal import cell_text, plan_table
    from tasks import training

    job = training.prepare(config_of(small, **SECTIONS))
    report = plan_report(job, training.plan_training(job))
    select, train = report["phases"]
    assert (select["phase"], select["keep"], train["algorithm"]) == ("select", 1, "ssadmm")
    assert select["share"] + train["share"] == 1.0
    assert "phase select" in cell_text(report["phases"]) and plan_table(report).row_count > 10
    json.dumps(report)


def test_more_columns_than_there_are_are_not_kept(small: Path) -> None:
    from tasks import training

    training.prepare(config_of(small, **SECTIONS | {"select": {"keep": 3}}))
    with pytest.raises(
        InputError,
        match=r"select\.keep of at most 3, .*got select\.keep=1000: all "
        r"would be kept",
    ):
        training.prepare(config_of(small, **SECTIONS | {"select": {"keep": 1000}}))
    alone = {"name": "two_phase", "keep": 4}
    with pytest.raises(InputError, match=r"got algorithm\.keep=4"):
        training.prepare(config_of(small, algorithm=alone))
