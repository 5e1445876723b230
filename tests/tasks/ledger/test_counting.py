"""The order, or mu^2, follows the work: which counting admits most runs like one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting import Events
from dpcore.accounting.curves import ORDERS, order_budgets
from dpcore.mechanisms import Gaussian
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson
from flows.cli import run
from tasks.ledger import Blocks, Ledger
from tasks.ledger.entries import best_counting, counting_of, entries
from tasks.ledger.records import Dataset
from tasks.ledger.summary import detail, last_run
from tasks.report.budget import budget_page
from tests.flows.small import write_small

QUIET = Events.of([Poisson(0.01).amplify(Gaussian(1.0, 0.92))] * 1000, adjacency="add_remove")


def asked(epsilon: float = 3.0, delta: float = 1e-6) -> Dataset:
    return Dataset(
        "new", epsilon, delta, Adjacency.ADD_REMOVE, "record", "cks", None, None, Blocks()
    )


def test_a_sampled_run_with_little_noise_gets_the_order_that_admits_it(
    sqlite_ledger: Ledger,
) -> None:
    """At the usual order it would cost eighty budgets; at its own one or less."""
    usual = sqlite_ledger.init("usual", 3.0, 1e-6, "add_remove")
    assert 70 < 1 / counting_of(usual, QUIET).runs < 100
    best = best_counting(asked(), QUIET)
    curve, budgets = QUIET.price(), order_budgets(3.0, 1e-6)
    assert best.runs == pytest.approx(np.max((budgets / curve)[budgets > 0]))
    assert best.admitted == 1
    chosen = sqlite_ledger.init("chosen", 3.0, 1e-6, "add_remove", order=best.order)
    assert counting_of(chosen, QUIET).runs == best.runs
    sqlite_ledger.reserve("chosen", QUIET).commit()
    like_last = detail(sqlite_ledger, "chosen")["like_last"]
    assert like_last == {"left": 0, "admitted": 1, "best_admitted": 1, "better": None}


def test_full_batch_gaussians_are_best_counted_in_mu_squared(sqlite_ledger: Ledger) -> None:
    events = Events.of([Gaussian(1.0, 30.0)], adjacency="add_remove")
    best = best_counting(asked(1.0, 1e-5), events)
    assert (best.order, best.option) == (None, "--filter gdp")
    usual = sqlite_ledger.init("usual", 1.0, 1e-5, "add_remove")
    sqlite_ledger.reserve("usual", events).commit()
    found = detail(sqlite_ledger, "usual")["like_last"]
    assert found["better"] == "--filter gdp"
    assert found["best_admitted"] == best.admitted == 64
    assert found["admitted"] == counting_of(usual, events).admitted == 54
    assert found["left"] == 53


def test_a_run_and_the_number_released_about_its_model_are_one(sqlite_ledger: Ledger) -> None:
    """The newest entry alone, which is the metric's, would promise three times as many."""
    training = Events.of([Gaussian(1.0, 10.0)], adjacency="add_remove")
    metric = Events.of([Gaussian(1.0, 20.0)], adjacency="add_remove")
    dataset = sqlite_ledger.init("visits", 2.0, 1e-5, "add_remove")
    other = sqlite_ledger.reserve("visits", training)
    other.commit(hashes={"weights": "0" * 64})
    sqlite_ledger.reserve("visits", training).commit(hashes={"weights": "a" * 64})
    sqlite_ledger.reserve("visits", metric, hashes={"of": "a" * 64}).commit()
    found = detail(sqlite_ledger, "visits")
    costs = [counting_of(dataset, events).cost for events in (training, metric)]
    left = min(row["left"] for row in found["blocks"])
    assert found["like_last"]["left"] == int(left / sum(costs)) < int(left / costs[1]) // 3
    assert found["like_last"]["admitted"] == int(dataset.budget / sum(costs))
    names = [one["entry"] for one in last_run(entries(sqlite_ledger, "visits"))]
    assert names == [one["entry"] for one in found["entries"][1:]]
    page = budget_page(sqlite_ledger)
    assert f"<strong>{found['like_last']['left']}</strong> more runs like the newest" in page


def test_only_orders_that_can_state_the_promise_are_chosen() -> None:
    many = Events.of([Poisson(0.01).amplify(Gaussian(1.0, 9.0))] * 10**5, adjacency="add_remove")
    best = best_counting(asked(0.4, 1e-8), many)
    assert order_budgets(0.4, 1e-8)[list(ORDERS).index(best.order)] == best.budget > 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path / "home"))
    write_small(tmp_path, np.random.default_rng(7))
    (tmp_path / "run.yaml").write_text(
        f"data: {{name: {tmp_path / 'small.yaml'}}}\nprivacy: {{epsilon: 3, delta: "
        "1.0e-5}\nalgorithm: {name: dp_sgd, sampling_rate: 0.02, steps: 200}\n"
    )
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run([*words, "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_a_budget_is_opened_for_a_configuration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, config = str(folder / "small.yaml"), str(folder / "run.yaml")
    promise = ["--epsilon", "3", "--delta", "1e-5"]
    opened = answer(capsys, "ledger", "init", small, *promise, "--for", config)
    assert opened["order"] == answer(capsys, "plan", config)["best_order"]
    assert answer(capsys, "plan", config)["ledger_left_after"] > 0
    assert answer(capsys, "plan", config)["ledger_better"] is None


def test_a_plan_names_the_better_counting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, config = str(folder / "small.yaml"), str(folder / "run.yaml")
    answer(capsys, "ledger", "init", small, "--epsilon", "3", "--delta", "1e-5")
    words = answer(capsys, "plan", config)["ledger_better"]
    assert "of a whole budget at its order" in words and "--order" in words


def test_a_budget_is_opened_for_many_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """52 equal full-batch runs are told the noise with which all of them fit, counted in mu^2."""
    small, config = str(folder / "small.yaml"), str(folder / "run.yaml")
    text = (folder / "run.yaml").read_text().replace("sampling_rate: 0.02", "sampling_rate: 1.0")
    (folder / "run.yaml").write_text(text)
    promise = ["--epsilon", "3", "--delta", "1e-6"]
    assert run(["ledger", "init", small, *promise, "--runs", "52"]) == 2
    capsys.readouterr()
    many = ["--for", config, "--runs", "52", "--json"]
    assert run(["ledger", "init", small, *promise, *many]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["filter"] == "gdp"
    noise = float(said.err.split("noise_multiplier ")[1].split()[0])
    assert noise == pytest.approx(11.13 * 200**0.5, rel=1e-3)
