"""An option is one file, one entry of ``OPTIONS`` and its rows in the table: a toy one trains,
charges and speaks.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dpcore.accounting import Events
from dpcore.errors import BudgetExceeded, InputError
from flows.cli import run
from tasks import options
from tasks import training as tasks_training
from tasks.audit.mlflow_run import read_run
from tasks.audit.rules_derived import NAME_RULES as NAMES
from tasks.home import Home
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.options import rules
from tasks.options.base import Option
from tasks.options.rules import Rule
from tasks.record import tracking
from tasks.release.gate import charged
from tests.tasks.options.headcount import EPSILON, FILE, Headcount
from tests.tasks.training.test_training import config_of

ROOT = Path(__file__).resolve().parents[3]
ASKED = {"tracking": {"experiment": "heads", "name": "heads"}}


class Told:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []

    def step(self, name: str) -> None:
        self.steps.append(name)

    def progress(self, done: int, total: int) -> None:
        """Nothing is remembered."""

    def say(self, text: str) -> None:
        self.lines.append(text)

    def result(self, summary: Any) -> None:
        """Nothing is remembered."""


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "OPTIONS", (*options.OPTIONS, Headcount))
    own = Rule(
        "headcount",
        "label",
        ("binary",),
        "heads are counted by two classes; leave tracking.name out",
    )
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, own))


@pytest.fixture
def ledger(small: Path) -> Ledger:
    found = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    found.init("small", 3.0, 1e-4, "add_remove")
    return found


def test_without_its_entry_nobody_counts(small: Path) -> None:
    assert tasks_training.prepare(config_of(small, **ASKED)).options == ()


def test_a_toy_option_trains_charges_and_speaks(
    server: str, home: Home, small: Path, ledger: Ledger, registered: None
) -> None:
    from flows.steps import reporter
    from flows.train import train

    told = Told()
    token = reporter.set(told)
    try:
        summary = train(config_of(small, **ASKED))
    finally:
        reporter.reset(token)

    assert summary["released"] == {"headcount": pytest.approx(300, abs=200)}
    training, count = charged(ledger, "small")
    [head] = count.events
    assert head.sensitivity / head.scale == pytest.approx(EPSILON, rel=1e-3)
    assert [entry["state"] for entry in entries(ledger, "small")] == ["committed", "committed"]
    assert training.events != count.events

    client = tracking.tracking_client(home)
    folder = Path(client.download_artifacts(summary["run_id"], ""))
    statement = json.loads((folder / "privacy/statement.json").read_text())
    assert statement["released"][-1] == "the number of heads with noise: epsilon 0.25 more"
    assert "Heads are counted, not hats." in statement["limits"]
    stored = json.loads((folder / FILE).read_text())
    assert stored["count"] == summary["released"]["headcount"] and stored["entry"] == count.entry
    assert Events.from_json(json.dumps(stored["mechanisms"])) == count.events
    tracked = client.get_run(summary["run_id"])
    assert tracked.data.tags["dpflows.headcount"] == "yes"
    assert tracked.data.metrics["released.headcount"] == stored["count"]
    subject = read_run(client, summary["run_id"])
    assert [finding for rule in NAMES for finding in rule(subject)] == []

    hooks = list(Headcount.titles.values())
    assert [step for step in told.steps if step in hooks] == hooks
    names = {
        "plan": "plan noise and price",
        "reserve": "reserve the price",
        "fit": "fit with noise",
        "convert": "state the guarantee",
        "commit": "charge and keep the model",
        "track": "record in MLflow",
    }
    places = {step: told.steps.index(names.get(step, step)) for step in (*hooks, *names)}
    assert places["look around"] < places["plan"] < places["find a clicker"] < places["reserve"]
    assert (
        places["reserve"]
        < places["clear the throat"]
        < places["fit"]
        < places["breathe out"]
        < places["convert"]
    )
    assert places["commit"] < places["count heads"] < places["track"]
    assert told.lines[0] == "Warning: a count of heads leaves as well"
    assert [line for line in told.lines if "eads" in line or "clicker" in line][1:] == [
        "The clicker is found.",
        f"Heads are counted for entry {training.entry} too.",
        "4 weights, no heads yet.",
        "Heads counted.",
    ]


def test_commands_speak_of_it_and_ask_for_room_for_both(
    home: Home, small: Path, ledger: Ledger, registered: None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small.with_name("heads.yaml")
    file.write_text(json.dumps(config_of(small, **ASKED).model_dump(mode="json")))
    assert run(["plan", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (
        report["headcount"] == EPSILON and "a count of heads leaves as well" in report["warnings"]
    )
    plain = small.with_name("plain.yaml")
    plain.write_text(json.dumps(config_of(small).model_dump(mode="json")))
    assert run(["plan", str(plain), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (
        report["ledger_cost"] > alone["ledger_cost"] > 0 and report["epsilon"] == alone["epsilon"]
    )

    job = tasks_training.prepare(config_of(small, **ASKED))
    ledger.init("other", 1.0, 1e-4, "add_remove")
    with Ledger(f"sqlite:///{small.with_name('second.db')}") as other:
        other.init("small", 1.0, 1e-4, "add_remove")
        tasks_training.plan_within(tasks_training.prepare(config_of(small)), other)
        with pytest.raises(
            BudgetExceeded,
            match=r"room for the training and headcount in 'small'.*leave "
            r"headcount out",
        ):
            tasks_training.plan_within(job, other)
        assert entries(other, "small") == []


def test_its_rows_in_the_table_refuse_and_stand_on_the_page(small: Path, registered: None) -> None:
    label = "label: {column: size, kind: regression, low: 0, high: 1}"
    text = small.read_text()
    small.write_text(text.replace('label: {column: paid, positive: "yes", negative: "no"}', label))
    wanted = config_of(small, objective={"loss": "squared"}, **ASKED)
    with pytest.raises(InputError) as raised:
        tasks_training.prepare(wanted)
    assert str(raised.value) == (
        "Expected no headcount for data set 'small', whose label is of kind regression, got one: "
        "heads are counted by two classes; leave tracking.name out."
    )
    assert "| `headcount` | `label` binary | heads are counted by two classes" in rules.page()


def test_a_hook_without_a_title_is_no_option() -> None:
    with pytest.raises(TypeError, match="a title for each hook of Silent, got none for before_fit"):

        class Silent(Option):
            def before_fit(self, run: Any, reservation: Any) -> Any:
                return run


# An option asks for itself: nobody else looks whether it is asked for.
NAMED = re.compile(
    r"\b(config|training)\.(tune|select|audit)\b|evaluate\.release\b"
    r"|tasks\.options\.(tune|bounds|canaries|select|noisy_metric)\b|tasks\.options import "
    r"(?!check_options|OPTIONS)\w+"
)
ELSEWHERE = {
    # What a retraining or a second plan has to know of a search: which columns it may change, what
    # it selected.
    "tasks/retraining/__init__.py",
    "tasks/audit/planned.py",
    # A model that was killed before its noisy metric was drawn says so.
    "flows/commands/recover.py",
    # A champion is measured by the noisy metric of the new training, whose weights are told.
    "tasks/retraining/champion.py",
    "tasks/record/run.py",
    # Counts of a metric need every row where the model is.
    "tasks/kinds/engine.py",
}


def test_no_flow_and_no_step_names_an_option() -> None:
    files = sorted((*(ROOT / "tasks").rglob("*.py"), *(ROOT / "flows").rglob("*.py")))
    found = {}
    for path in files:
        place = path.relative_to(ROOT).as_posix()
        code = re.sub(r'"""[\s\S]*?"""|#.*|f?"[^"\n]*"', "", path.read_text())
        if not place.startswith("tasks/options/") and (hit := NAMED.search(code)):
            found[place] = hit[0]
    assert set(found) <= ELSEWHERE, found
