"""Trainings whose bounds are estimated first, on one reservation and under one statement, or read
from the rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.accounting import Events, Target
from dpcore.accounting.curves import ORDERS
from dpcore.errors import BudgetExceeded, InputError
from dpcore.mechanisms import Exponential
from dpcore.train import plan, replan, run
from tasks import training
from tasks.audit.recompute import own_epsilon
from tasks.home import Home
from tasks.ledger import Blocks, Ledger
from tasks.options import bounds
from tasks.options.base import Run
from tasks.record import run as record_run
from tasks.record.statement import Statement
from tasks.schema import find_schema
from tests.flows.test_flow import states
from tests.tasks.training.test_training import config_of

ROWS = 4000
SCHEMA = """\
schema_version: 1
name: open
ledger: {ledger}
public: {{n: 4000}}
source: {{path: small.csv}}
bounds: {bounds}
bounds_share: 0.3
columns:
  age: {{kind: numeric{fill}}}
  city: {{kind: categorical}}
  size: {{kind: numeric, low: 0, high: 10}}
label: {{column: paid, positive: "yes", negative: "no"}}
"""


def frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    age, city = rng.integers(18, 90, rows), rng.choice(["north", "south", "east"], rows)
    paid = np.where(age / 90 + (city == "north") * 0.4 > 0.8, "yes", "no")
    return pd.DataFrame({"age": age, "city": city, "size": rng.random(rows) * 10, "paid": paid})


def write(folder: Path, bounds: str, table: pd.DataFrame | None = None, fill: str = "") -> Path:
    (frame() if table is None else table).to_csv(folder / "small.csv", index=False)
    path = folder / "small.yaml"  # the name that config_of goes by
    path.write_text(
        SCHEMA.format(ledger=f"sqlite:///{folder / 'ledger.db'}", bounds=bounds, fill=fill)
    )
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    found.init("open", 20.0, 1e-4, "add_remove")
    return found


def config(path: Path, **sections: dict[str, object]) -> Any:
    return config_of(
        path, privacy={"epsilon": 8.0, "delta": 1e-5, **sections.pop("privacy", {})}, **sections
    )


def train_by_hand(job: Any, ledger: Ledger, folder: Path) -> tuple[Any, Any, Statement]:
    """Job, plan and statement of a training without an orchestrator."""
    planned = training.fit_to_ledger(job, training.plan_training(job), ledger)
    training.build_objective(job, training.load_records(job))
    with training.reserve_budget(job, planned, ledger) as reservation:
        job, planned, _ = bounds.release_bounds(job, planned, reservation)
        loaded = training.load_records(job)
        objective = training.build_objective(job, loaded)
        result = training.fit_model(job, planned, objective, reservation)
        trained = Run(job, planned, loaded, objective, objective, result=result, folder=folder)
        statement = record_run.commit(trained, record_run.convert(planned), ledger, reservation)
    return job, planned, statement


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_estimate_and_training_meet_the_epsilon_together(
    home: Home, tmp_path: Path, adjacency: str
) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.init("open", 40.0, 1e-4, adjacency)
    job = training.prepare(config(write(tmp_path, "private"), privacy={"adjacency": adjacency}))
    assert "is the most columns" in job.warnings[0]
    done, planned, statement = train_by_hand(job, ledger, tmp_path / "run")
    assert done.warnings == ()

    assert done.schema.columns["city"].levels == ("east", "north", "south")
    assert done.problem.dimension < job.problem.dimension
    events = Events.from_json(json.dumps(statement.mechanisms))
    kinds = [item.kind for item in events]
    assert kinds[:2] == ["exponential"] * 2 and set(kinds[2:]) == {"gaussian"}
    assert list(events)[: len(planned.before)] == list(planned.before)
    # the composition, not the training alone, meets what was asked, and all of it is used
    assert 0.999 * 8.0 < statement.guarantee.epsilon <= 8.0
    assert own_epsilon(events, statement.guarantee) == pytest.approx(
        statement.guarantee.epsilon, rel=1e-9
    )
    assert (
        statement.guarantee.accountant == "rdp" and str(statement.guarantee.adjacency) == adjacency
    )
    before = planned.before
    assert before is not None and before.adjacency == events.adjacency
    assert Target(0.3 * 8.0, 0.3 * 1e-5).ratio(before) <= 1.0
    assert np.all(planned.own.price() <= (events.price() - before.price()) * (1 + 1e-6))
    assert statement.releasable and "private" in statement.data.bounds
    # one reservation for both, charged with the joint curve
    assert states(ledger) == ["reserved", "committed"]
    budget = ledger.dataset("open")
    room = ledger.room("open", ("all",))
    assert room is not None and budget.budget is not None
    cost = float(events.price()[list(ORDERS).index(room.order)])
    assert budget.budget - room.left == pytest.approx(cost, rel=1e-6)
    ledger.verify()


def test_one_training_by_the_flow_audits_clean(
    server: str, home: Home, tmp_path: Path, ledger: Ledger
) -> None:
    from flows.commands.audit import read
    from flows.train import train
    from tasks.audit import audit
    from tasks.record import tracking

    path = write(tmp_path, "private")
    summary = train(config(path, tracking={"experiment": "estimated"}))
    assert states(ledger) == ["reserved", "committed"]
    assert summary["epsilon_spent"] <= 8.0 and summary["releasable"]
    assert summary["dimension"] < 20
    client = tracking.tracking_client(home)
    curve = client.get_metric_history(summary["run_id"], "spent.epsilon")
    assert curve[-1].value == pytest.approx(summary["epsilon_spent"])
    assert curve[0].value > 1.0, "the estimate is in the curve from the first step on"
    report = audit(read(client, summary["run_id"], f"sqlite:///{tmp_path / 'ledger.db'}"))
    assert not report.blocked, report.findings


def test_bad_rows_are_refused_before_anything_is_charged(
    home: Home, tmp_path: Path, ledger: Ledger
) -> None:
    table = frame().astype({"age": float})
    table.loc[7, "age"] = np.nan
    job = training.prepare(config(write(tmp_path, "private", table)))
    with pytest.raises(InputError, match=r"column 'age'.*no value"):
        training.load_records(job)
    assert states(ledger) == []


def test_a_failure_after_the_estimate_stays_charged(
    home: Home, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = training.prepare(config(write(tmp_path, "private")))

    def lost(*_: object, **__: object) -> None:
        raise InputError("gone")

    monkeypatch.setattr(bounds, "described", lost)
    with pytest.raises(InputError, match="gone"):
        train_by_hand(job, ledger, tmp_path / "run")
    assert states(ledger) == ["reserved", "forfeited"]


def test_nothing_is_read_by_the_estimate_before_its_charge(
    home: Home, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reservation is on disk when the first column is read for the estimate."""
    from tasks.options import bounds as options_bounds

    seen: list[list[str]] = []
    read = options_bounds._columns
    monkeypatch.setattr(
        options_bounds, "_columns", lambda *a: (seen.append(states(ledger)), read(*a))[1]
    )
    train_by_hand(training.prepare(config(write(tmp_path, "private"))), ledger, tmp_path / "run")
    assert seen == [["reserved"]]


def test_a_budget_without_room_for_both_is_refused(home: Home, tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.init("open", 5.0, 1e-4, "add_remove")
    job = training.prepare(config(write(tmp_path, "private")))
    with pytest.raises(BudgetExceeded):
        training.fit_to_ledger(job, training.plan_training(job), ledger)


def test_the_training_does_not_start_without_the_estimate(
    home: Home, tmp_path: Path, ledger: Ledger
) -> None:
    job = training.prepare(config(write(tmp_path, "private")))
    planned = training.plan_training(job)
    objective = training.build_objective(job, training.load_records(job))
    with (
        training.reserve_budget(job, planned, ledger) as reservation,
        pytest.raises(InputError, match="known bounds"),
    ):
        training.fit_model(job, planned, objective, reservation)
    with pytest.raises(InputError, match="releases before the training"):
        run(planned, objective.open())
    assert states(ledger) == ["reserved", "cancelled"]


def test_rows_that_were_replaced_before_the_second_reading_are_not_trained_on(
    home: Home, tmp_path: Path, ledger: Ledger
) -> None:
    """The reservation names the bytes of the first one."""
    path = write(tmp_path, "private")
    job = training.prepare(config(path))
    planned = training.plan_training(job)
    found = training.read_run(job, planned)
    reservation = training.reserve_budget(job, planned, ledger, found.data)
    write(tmp_path, "private", frame().iloc[:-9])
    with reservation, pytest.raises(InputError, match=r"small\.csv to stay as it is"):
        bounds.Bounds().before_fit(found, reservation)


def test_from_data_trains_and_never_leaves(home: Home, tmp_path: Path, ledger: Ledger) -> None:
    job = training.prepare(config(write(tmp_path, "from_data")))
    assert bounds.estimate_of(job) is None and "never released" in job.warnings[0]
    job = bounds.read_bounds(job)
    assert (job.schema.columns["age"].low, job.schema.columns["age"].high) == (18, 89)
    planned = training.fit_to_ledger(job, training.plan_training(job), ledger)
    found = training.read_run(job, planned)
    with training.reserve_budget(job, planned, ledger) as reservation:
        result = training.fit_model(job, planned, found.sums, reservation)
        trained = replace(found, result=result, folder=tmp_path / "run")
        statement = record_run.commit(trained, record_run.convert(planned), ledger, reservation)
    assert not statement.releasable and "from_data" in statement.reasons[0]


@pytest.mark.parametrize("parameters", [{"noise": "gamma"}, {"noise": "gaussian"}])
def test_an_algorithm_priced_by_its_columns_stays_within_what_was_reserved(
    parameters: dict[str, str],
) -> None:
    from dpcore.losses import make_loss
    from dpcore.problem import Problem

    before = Events.of([Exponential(1.0, 40.0, two_sided=True)] * 4, adjacency="add_remove")
    facts: dict[str, Any] = {"n": 1000, "loss": make_loss("logistic"), "l2": 1e-3}
    target = Target(2.0, 1e-6)
    planned = plan(
        "objective_perturbation", parameters, Problem(dimension=200, **facts), target, before=before
    )
    assert 0.999 < target.ratio(planned.events) <= 1.0
    known = replan(planned, Problem(dimension=12, **facts))
    reserved = planned.events.price() - before.price()
    finite = np.isfinite(reserved)
    ratio = known.own.price()[finite] / reserved[finite]
    assert ratio.max() == pytest.approx(1.0, abs=1e-3) and ratio.max() <= 1.0 + 1e-6
    assert known.events == planned.events and known.problem.dimension == 12


def test_what_compares_retrainings_needs_declared_bounds(tmp_path: Path) -> None:
    from tasks.retraining import ChampionSection
    from tasks.retraining.champion import require_public
    from tasks.retraining.drift import require_drift

    schema = find_schema(str(write(tmp_path, "private")))
    with pytest.raises(InputError, match=r"drift\.epsilon, got bounds: private"):
        require_drift(0.1, schema)
    with pytest.raises(InputError, match=r"champion, got bounds: private"):
        require_public(ChampionSection(data="census"), schema)


@pytest.mark.parametrize("bounds", ["private", "from_data"])
def test_a_source_of_bounds_that_nothing_needs_is_refused(tmp_path: Path, bounds: str) -> None:
    path = write(tmp_path, bounds)
    whole = path.read_text().replace("{kind: numeric}", "{kind: numeric, low: 0, high: 100}")
    path.write_text(
        whole.replace("{kind: categorical}", "{kind: categorical, levels: [north, south, east]}")
    )
    with pytest.raises(
        InputError, match=f"for bounds: {bounds}, but every column of 'open' is declared"
    ):
        training.prepare(config(path))


def test_a_training_on_blocks_estimates_and_charges_those_alone(home: Home, tmp_path: Path) -> None:
    table = frame(2 * ROWS).assign(year=np.where(np.arange(2 * ROWS) % 2, "2025", "2026"))
    table.loc[table.year == "2026", "city"] = "later"
    path = write(tmp_path, "private", table)
    text = path.read_text().replace("public: {n: 4000}", "public: {rows_per_block: 4000}")
    path.write_text(
        text.replace("  size:", "  year: {kind: block}\n  size:") + "block: {column: year}\n"
    )
    schema = find_schema(str(path))
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.init("open", 20.0, 1e-4, "add_remove", blocks=Blocks.of(schema))
    job = training.prepare(config(path, data={"blocks": ["2025"]}))
    estimate = bounds.estimate_of(job)
    assert estimate is not None and estimate.n == job.problem.n == 4000
    done, _, statement = train_by_hand(job, ledger, tmp_path / "run")
    assert done.schema.columns["city"].levels == ("east", "north", "south")
    assert statement.ledger.blocks == ["2025"]
    assert set(ledger.spent("open")) == {"2025"}


def test_a_share_that_cannot_pay_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "private")
    path.write_text(path.read_text().replace("bounds_share: 0.3", "bounds_share: 1e-9"))
    with pytest.raises(
        BudgetExceeded, match=r"of 2 columns of 'open', got bounds_share=1e-09, .*for example 0\.1"
    ) as e:
        training.prepare(config_of(path))
    assert len(str(e.value).splitlines()) == 1


@pytest.mark.parametrize("share", ["0", "1", "-1", "abc", "nan", "true", "[0.1]"])
def test_a_share_out_of_range_says_the_range_and_an_example(tmp_path: Path, share: str) -> None:
    path = write(tmp_path, "private")
    path.write_text(path.read_text().replace("bounds_share: 0.3", f"bounds_share: {share}"))
    with pytest.raises(
        InputError,
        match=r"bounds_share: Expected a share .*strictly between 0 and "
        r"1, got .*; for exa",
    ):
        find_schema(str(path))
