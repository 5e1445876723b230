"""What Prefect shows of a run: names, states, lines, a page, events; and never what is not public."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from dpcore.errors import BudgetExceeded, InputError
from flows import story
from tasks.home import Home
from tasks.ledger import Ledger
from tests.flows.test_flow import config_of, ledger, task_runs

__all__ = ["ledger"]

CANARY = "zebrafinch"


def ask(server: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{server}/{path}", data=data, headers={"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as answer:
        return json.load(answer)


def send_logs() -> None:
    """Hand over what the log handlers still hold."""
    import logging

    for name in ("prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            handler.flush()


def lines_of(server: str, flow_run: str, count: int) -> list[str]:
    """Our lines in the log of a flow run, once ``count`` of them have arrived."""
    send_logs()
    wanted = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"}
    for _ in range(300):
        found = [
            one for one in ask(server, "logs/filter", wanted) if one["name"].endswith(".dpflows")
        ]
        if len(found) >= count:
            break
        time.sleep(0.1)
    return [one["message"] for one in found]


class Heard:
    """Events as they are emitted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, dict[str, str], dict[str, Any]]] = []

        def send(event: str, about: dict[str, str], payload: dict[str, Any]) -> None:
            self.events.append((event, about, payload))

        monkeypatch.setattr(story, "send", send)

    @property
    def names(self) -> list[str]:
        return [event for event, _, _ in self.events]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    return Heard(monkeypatch)


def test_a_training_is_told_with_public_numbers_alone(
    server: str, home: Home, small: Path, ledger: Ledger, heard: Heard
) -> None:
    from flows.server import LocalServer
    from flows.train import train

    summary = train(config_of(small, tracking={"experiment": "told"}))
    with LocalServer(home) as seen:
        seen.drain(summary["flow_run_id"])
    run = ask(server, f"flow_runs/{summary['flow_run_id']}")
    assert run["name"].startswith("small ") and run["name"].endswith(" eps 1")
    assert "small" in run["tags"]
    assert run["state"]["name"] == "Completed"
    assert run["state"]["message"] == (
        f"{summary['algorithm']}, epsilon {summary['epsilon_spent']:.6g} at delta 0.0001, MLflow "
        f"run {summary['run_id']}"
    )
    tasks = [one["name"] for one in task_runs(server, summary["flow_run_id"])]
    lines = lines_of(server, summary["flow_run_id"], len(tasks))
    assert [line.split(": ")[0] for line in lines] == tasks
    assert f"epsilon {summary['epsilon_spent']:.6g} at delta 0.0001 for one record" in "\n".join(
        lines
    )

    [page] = ask(
        server,
        "artifacts/filter",
        {
            "artifacts": {
                "flow_run_id": {"any_": [summary["flow_run_id"]]},
                "type": {"any_": ["markdown"]},
            }
        },
    )
    assert page["key"] == "dpflows-small"
    assert f"ε = {summary['epsilon_spent']:.6g} at δ = 0.0001" in page["data"]
    assert "█" in page["data"] and summary["run_id"] in page["data"]

    assert heard.names == ["dpflows.trained"]
    [(_, resource, payload)] = heard.events
    assert resource["dpflows.data"] == "small" and payload["run_id"] == summary["run_id"]

    # Everything that Prefect holds of the run, beside what only the operator may see.
    told = json.dumps([run, lines, page, heard.events, task_runs(server, summary["flow_run_id"])])
    # The table has its declared number of rows, so that their count stands there as public n.
    assert len(summary["internal"]) > 5
    for name, value in summary["internal"].items():
        if len(repr(value)) > 8:  # 0.5 stands elsewhere too
            assert f"{value:.4g}" not in told and repr(value) not in told, name


def test_a_cell_reaches_no_state_no_line_and_no_event(
    server: str, home: Home, small: Path, ledger: Ledger, heard: Heard
) -> None:
    from flows.train import train

    table = small.with_name("small.csv")
    table.write_text(table.read_text() + f"{CANARY},north,yes\n")
    with pytest.raises(InputError, match=CANARY):
        train(config_of(small, tracking={"experiment": "canary"}))
    [run] = ask(server, "flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    assert run["state"]["name"] == "Failed"
    assert (
        "bad input or configuration (exit code 2) at step 'read the records'"
        in run["state"]["message"]
    )
    [(name, _, payload)] = heard.events
    assert (name, payload["exit_code"], payload["step"]) == (
        "dpflows.failed",
        2,
        "read the records",
    )
    lines = lines_of(server, run["id"], 3)
    told = json.dumps([run, heard.events, lines, task_runs(server, run["id"])])
    assert CANARY not in told


def test_a_refusal_and_a_low_budget_are_events(
    server: str, home: Home, small: Path, ledger: Ledger, heard: Heard
) -> None:
    from flows.train import train

    config = config_of(
        small, tracking={"experiment": "low"}, privacy={"epsilon": 2.9, "delta": 1e-4}
    )
    train(config)
    assert heard.names == ["dpflows.trained", "dpflows.budget-low"]
    assert heard.events[-1][2]["share_left"] < story.LOW
    with pytest.raises(BudgetExceeded):
        train(config)
    assert heard.names[2:] == ["dpflows.refused"]
    assert heard.events[-1][2]["exit_code"] == 3


def test_outside_a_flow_nothing_is_told_and_nothing_fails() -> None:
    story.line("nobody hears")
    story.emit("trained", "visits", epsilon=1.0)
    story.write_page("visits", "# text", "training")
    with story.slot("visits"):
        pass


def test_a_fault_of_the_server_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(story, "send", broken)
    monkeypatch.setattr(story.FlowRunContext, "get", staticmethod(lambda: object()))
    story.emit("trained", "visits")
    story.tag("visits")
    story.line("text")


@pytest.mark.parametrize("share", [0.0, 0.004, 0.5, 1.0])
def test_a_bar_is_as_long_as_the_share(share: float) -> None:
    assert len(story.bar(share)) == story.BAR
    assert story.bar(share).count("█") == round(share * story.BAR)


def test_names_of_data_sets_become_keys() -> None:
    assert story.slug("Visits 2026/Ä") == "visits-2026"
    assert story.slug("éé") == "data"
    assert np.all([story.data_name(name) == "small" for name in ("small", "a/small.yaml")])


def test_a_release_is_an_event_of_a_server_that_runs(
    server: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.server import tell_released

    sent: list[tuple[str, Any]] = []
    monkeypatch.setattr("flows.server.get_json", lambda url, body: sent.append((url, body)))
    monkeypatch.setenv("PREFECT_API_URL", server)
    tell_released(home, "visits", {"name": "visits", "version": "3"})
    [(url, [event])] = sent
    assert url == f"{server}/events"
    assert (event["event"], event["payload"]["version"]) == ("dpflows.released", "3")
    monkeypatch.delenv("PREFECT_API_URL")
    tell_released(Home(home.root / "nobody"), "visits", {})
    assert len(sent) == 1
