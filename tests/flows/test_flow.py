"""The training flow in Prefect's harness on a small private table: what it leaves behind, and how
it fails.
"""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from sqlalchemy import select

from dpcore.errors import BudgetExceeded, InputError
from dpcore.train import run
from tasks import training
from tasks.home import Home
from tasks.ledger import Ledger, schema
from tasks.ledger.chain import FIXED
from tasks.ledger.records import Record
from tasks.record import tracking, view
from tests.tasks.training.test_training import config_of

STEPS = [
    "plan noise and price",
    "ask the budget",
    "read the records",
    "encode the columns",
    "reserve the price",
    "fit with noise",
    "state the guarantee",
    "charge and keep the model",
    "measure quality",
    "record in MLflow",
]


@pytest.fixture
def ledger(small: Path) -> Ledger:
    """The ledger of the small table, with room for two runs at epsilon 1."""
    found = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    found.init("small", 3.0, 1e-4, "add_remove")
    return found


def runs_of(home: Home, experiment: str) -> list[Any]:
    client = tracking.tracking_client(home)
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id]) if found else []


def records(ledger: Ledger) -> list[Record]:
    """All records of entries, oldest first: without those that open a data set and fix what its
    rows mean.
    """
    with ledger.store.reading() as connection:
        assert connection is not None
        rows = connection.execute(select(schema.records).order_by(schema.records.c.seq))
        return [record for row in rows if (record := Record(*row)).entry]


def states(ledger: Ledger) -> list[str]:
    """What became of the entries: the kinds of all records after the opening one, facts and first
    draws left out.
    """
    return [record.kind for record in records(ledger) if record.kind not in (FIXED, schema.DRAWN)]


def task_runs(server: str, flow_run_id: str) -> list[dict[str, Any]]:
    body = json.dumps(
        {"flow_runs": {"id": {"any_": [flow_run_id]}}, "sort": "EXPECTED_START_TIME_ASC"}
    ).encode()
    request = Request(
        f"{server}/task_runs/filter", data=body, headers={"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=300) as answer:
        return list(json.load(answer))


def test_one_training_from_table_to_stored_model(
    server: str, home: Home, small: Path, ledger: Ledger
) -> None:
    from flows.server import LocalServer
    from flows.train import train

    summary = train(config_of(small, tracking={"experiment": "one training"}))

    assert summary["epsilon_spent"] <= summary["epsilon_asked"] == 1.0
    assert summary["released"] == {}
    assert states(ledger) == ["reserved", "committed"]
    ledger.verify()

    [run_] = runs_of(home, "one training")
    client = tracking.tracking_client(home)
    assert (run_.info.run_id, run_.info.status) == (summary["run_id"], "FINISHED")
    assert run_.data.params["privacy.adjacency"] == "add_remove"
    assert {key.split(".")[0] for key in run_.data.metrics} <= {"internal", "released", "spent"}
    assert run_.info.run_name == "small · dp_sgd · ε 1"
    assert run_.data.tags["mlflow.source.name"] == "dpflows" and run_.data.tags["mlflow.user"]
    assert run_.data.tags["dpflows.sums"] == "numpy and scipy"  # too few rows to compile for
    [model] = [client.get_logged_model(one.model_id) for one in run_.outputs.model_outputs]
    scores = {one.key: one.value for one in model.metrics}
    assert scores["internal.accuracy"] == summary["internal"]["accuracy"]
    # The same point at run and model, not a second one.
    assert len(client.get_metric_history(run_.info.run_id, "internal.accuracy")) == 1
    tags = client.get_experiment(run_.info.experiment_id).tags
    state = json.loads(tags[view.SHARED + tags[view.TRAININGS]])
    assert {f"params.`{key}`" for key in view.GUARANTEE} <= set(state["selectedColumns"])
    assert [chart["type"] for chart in state["compareRunCharts"]] == ["SCATTER", "LINE", "BAR"]
    assert len(tags[view.SHARED + tags[view.TRAININGS]]) <= view.TAG_LENGTH
    curve = client.get_metric_history(run_.info.run_id, "spent.epsilon")
    assert [point.step for point in curve] == list(range(1, 9))
    assert curve[-1].value == pytest.approx(summary["epsilon_spent"])

    folder = Path(client.download_artifacts(run_.info.run_id, ""))
    committed = json.loads(records(ledger)[-1].body)["hashes"]
    for name, key in {"config.json": "config", "privacy/statement.json": "statement"}.items():
        assert sha256((folder / name).read_bytes()).hexdigest() == committed[key]
    statement = json.loads((folder / "privacy/statement.json").read_text())
    assert statement["ledger"]["entry"] == summary["ledger_entry"]
    ledger.verify(statement["ledger"]["head"])
    assert statement["releasable"] is True
    assert (folder / "figures/budget.png").read_bytes().startswith(b"\x89PNG")
    assert not list(home.outbox.glob(f"{summary['run_id']}*"))

    with LocalServer(home) as seen:
        seen.drain(summary["flow_run_id"])
    tasks = task_runs(server, summary["flow_run_id"])
    assert sorted(task["name"] for task in tasks) == sorted(STEPS)
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    assert not any(task["empirical_policy"]["retries"] for task in tasks)


def test_bad_rows_are_refused_before_anything_is_reserved(
    server: str, home: Home, small: Path, ledger: Ledger
) -> None:
    from flows.train import train

    table = small.with_name("small.csv")
    table.write_text(table.read_text() + "secretword,north,yes\n")
    with pytest.raises(InputError, match=r"small\.csv.*'secretword' is not a number"):
        train(config_of(small, tracking={"experiment": "bad rows"}))
    assert states(ledger) == []
    assert runs_of(home, "bad rows") == []
    body = json.dumps({"sort": "START_TIME_DESC", "limit": 1}).encode()
    request = Request(
        f"{server}/flow_runs/filter", data=body, headers={"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=300) as answer:
        [flow_run] = json.load(answer)
    assert flow_run["state_type"] == "FAILED"
    assert "secretword" not in json.dumps(flow_run)
    # Prefect keeps the exceptions of failed runs, pickled and in base64.
    kept = [path.read_bytes() for path in (home.prefect / "storage").iterdir()]
    assert all(b"secretword" not in text + b64decode(text) for text in kept)


def test_a_file_that_was_replaced_after_it_was_read_is_not_trained_on(
    server: str, home: Home, small: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import train as flow

    def replaced(*given: object) -> None:
        file = small.with_name("small.csv")
        file.write_text("".join(file.read_text().splitlines(True)[:-5]))

    monkeypatch.setattr(flow, "count_warning", replaced)
    with pytest.raises(InputError, match=r"small\.csv to stay as it is"):
        flow.train(config_of(small))
    assert states(ledger) == []


def test_unaffordable_run_is_refused_before_a_file_is_opened(
    server: str, home: Home, small: Path, ledger: Ledger
) -> None:
    from flows.train import train

    small.with_name("small.csv").unlink()
    with pytest.raises(BudgetExceeded):
        train(
            config_of(
                small, privacy={"epsilon": 30.0, "delta": 1e-4}, tracking={"experiment": "too dear"}
            )
        )
    assert states(ledger) == []
    assert runs_of(home, "too dear") == []


@pytest.mark.parametrize(
    ("error", "after", "state", "status"),
    [
        (RuntimeError("a cell: secretword"), 0, "cancelled", "FAILED"),
        (RuntimeError("a cell: secretword"), 1, "forfeited", "FAILED"),
        (KeyboardInterrupt(), 1, "forfeited", "KILLED"),
    ],
)
def test_failure_closes_the_run_and_charges_what_was_drawn(
    server: str,
    home: Home,
    small: Path,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    after: int,
    state: str,
    status: str,
) -> None:
    from flows.train import train

    def failing(planned: Any, objective: Any, on_charge: Any, **others: Any) -> Any:
        charged = 0

        def charge() -> None:
            nonlocal charged
            if charged == after:
                raise error
            charged += 1
            on_charge()

        return run(planned, objective, on_charge=charge, **others)

    monkeypatch.setattr(training, "run", failing)
    experiment = f"failure {state} {status}"
    with pytest.raises(type(error)):
        train(config_of(small, tracking={"experiment": experiment}))
    assert states(ledger) == ["reserved", state]
    [run_] = runs_of(home, experiment)
    assert run_.info.status == status
    assert "secretword" not in json.dumps(run_.data.tags)


def test_fixed_noise_marks_the_run(server: str, home: Home, small: Path, ledger: Ledger) -> None:
    from flows.train import train

    values = config_of(small, tracking={"experiment": "fixed noise"}).model_copy(
        update={"unsafe_fixed_noise_seed": 3}
    )
    summary = train(values)
    assert summary["releasable"] is False
    assert "fixed seed" in summary["reasons"][0]
