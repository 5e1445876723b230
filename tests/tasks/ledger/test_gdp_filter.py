"""Data sets that count mu^2: what they admit, what they refuse by name, and that nothing changes."""

from __future__ import annotations

import json
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting import Events, Room, Target
from dpcore.accounting.budget import open_door
from dpcore.accounting.gaussian_filter import budget_of, cost_of, largest_squared_mu, mu_of_pure
from dpcore.errors import BudgetExceeded, InputError, PriceUnknown
from dpcore.losses import Logistic
from dpcore.mechanisms import (
    AMP,
    Exponential,
    Gaussian,
    Laplace,
    ObjectivePerturbation,
    RandomisedSensitivityGaussian,
    gaussian_delta,
)
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Permuted, Poisson, WithoutReplacement
from dpcore.train import plan
from tasks.ledger import Ledger
from tasks.ledger.summary import detail, remaining
from tests.stored.weights import records


def gaussians(sigma: float, steps: int = 1, adjacency: str = "add_remove") -> Events:
    return Events.of([Gaussian(1.0, sigma)] * steps, adjacency=adjacency)


def rows_of(shared: Path, name: str) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = json.loads((shared / f"golden/{name}.json").read_text())["rows"]
    return rows


def test_golden_budgets(shared: Path) -> None:
    for row in rows_of(shared, "p05_gdp_filter"):
        found = largest_squared_mu(row["epsilon"], row["delta"])
        assert found == pytest.approx(row["mu_squared"], rel=1e-9)
        assert sqrt(52 / found) == pytest.approx(row["sigma_for_52_equal_runs"], rel=1e-9)
        assert gaussian_delta(row["epsilon"], sqrt(found)) <= row["delta"]
        assert found * (1 - 2e-6) < budget_of(row["epsilon"], row["delta"]) < found


def test_golden_pure_releases(shared: Path) -> None:
    for row in rows_of(shared, "p06_pure_as_gdp"):
        assert mu_of_pure(row["epsilon"]) == pytest.approx(row["mu"], rel=1e-10)


def test_a_pure_release_is_no_worse_than_its_gaussian_and_no_smaller_mu_does() -> None:
    """delta(e) of randomised response against that of the Gaussian, at every e."""
    epsilon = 1.3
    mu, p = mu_of_pure(epsilon), np.exp(epsilon) / (1 + np.exp(epsilon))
    grid = np.linspace(0.0, 3.0, 61)
    response = np.maximum(p - np.exp(grid) * (1 - p), 0.0)
    assert (response <= [gaussian_delta(e, mu) + 1e-15 for e in grid]).all()
    assert response[0] == pytest.approx(gaussian_delta(0.0, mu))
    assert response[0] > gaussian_delta(0.0, mu * 0.999)


@pytest.mark.parametrize(
    "mechanism",
    [
        Poisson(0.01).amplify(Gaussian(2.0, 6.0)),
        Poisson(0.01).amplify(Gaussian(2.0, 6.0), "replace_one", "ball"),
        WithoutReplacement(1, 100).amplify(Gaussian(2.0, 6.0)),
    ],
)
def test_a_gaussian_on_a_batch_is_charged_as_if_on_all_rows(mechanism) -> None:
    """The mixture's tail is the Gaussian's own, so no smaller mu is valid."""
    events = Events.of([mechanism] * 3, adjacency=mechanism.adjacency)
    assert cost_of(events) == pytest.approx(3 / 9)
    doubled = 4 if mechanism.adjacency == "add_remove" else 1
    assert cost_of(events, "replace_one") == pytest.approx(doubled * 3 / 9)


PERTURBED = ObjectivePerturbation(1.0, 0.25, 5.0, 20.0, 3, Adjacency.ADD_REMOVE)
REFUSED = [
    PERTURBED,
    AMP(PERTURBED, 1e-6, 1.0),
    Permuted((5, 5), 10).amplify(RandomisedSensitivityGaussian((0.1, 0.2), (5, 5), 10, 1.0)),
]


@pytest.mark.parametrize("mechanism", REFUSED, ids=lambda one: one.kind)
def test_what_only_a_curve_knows_is_refused_by_name(mechanism, sqlite_ledger: Ledger) -> None:
    events = Events.of([mechanism], adjacency=mechanism.proved_for or "add_remove")
    name = mechanism.kind if mechanism.kind != "sampled" else mechanism.mechanism.kind
    sqlite_ledger.init("mu", 1.0, 1e-6, str(events.adjacency), filter="gdp")
    with pytest.raises(PriceUnknown, match=f"{name}.*filter=rdp") as refused:
        sqlite_ledger.reserve("mu", events)
    assert "\n" not in str(refused.value)
    assert sqlite_ledger.spent("mu") == {}


def test_it_admits_to_the_last_unit_what_one_order_does_not(sqlite_ledger: Ledger) -> None:
    """52 equal runs at the golden noise fill it; at one order as many need 1.084 times the noise."""
    sqlite_ledger.init("mu", 1.0, 1e-5, "add_remove", filter="gdp")
    sqlite_ledger.init("order", 1.0, 1e-5, "add_remove")
    run = gaussians(26.901967298393853 * (1 + 1e-6))
    for _ in range(52):
        sqlite_ledger.reserve("mu", run).commit()
    with pytest.raises(BudgetExceeded, match=r"in mu\^2"):
        sqlite_ledger.reserve("mu", run)
    admitted = 0
    with pytest.raises(BudgetExceeded):
        while True:
            sqlite_ledger.reserve("order", run).commit()
            admitted += 1
    assert admitted == 44
    report = detail(sqlite_ledger, "mu")
    assert report["filter"] == "gdp" and report["order"] is None
    assert report["blocks"][0]["realised_epsilon"] == pytest.approx(1.0, rel=1e-5)
    assert report["left"] < 1e-6
    assert "gdp filter" in sqlite_ledger.dataset("mu").guarantee()
    assert sqlite_ledger.verify().ok


def test_all_kinds_that_fit_are_charged_and_verify(sqlite_ledger: Ledger) -> None:
    sqlite_ledger.init("mu", 4.0, 1e-6, "replace_one", filter="gdp")
    events = Events.of(
        [Gaussian(1.0, 20.0, 1e-3), Laplace(1.0, 40.0), Exponential(1.0, 30.0, False)]
        + [Poisson(0.1).amplify(Gaussian(1.0, 50.0))] * 4,
        adjacency="add_remove",
    )
    entry = sqlite_ledger.reserve("mu", events)
    entry.commit()
    cost = cost_of(events, Adjacency.REPLACE_ONE)
    assert remaining(sqlite_ledger, "mu")["blocks"][0]["spent"] == pytest.approx(cost)
    assert cost > cost_of(events)
    assert sqlite_ledger.verify().ok


def test_the_filter_is_fixed_when_the_data_are_opened(sqlite_ledger: Ledger) -> None:
    """A second opening is refused, an order beside it too, and the record says it for ever."""
    sqlite_ledger.init("mu", 1.0, 1e-5, "add_remove", filter="gdp")
    for other in ({"filter": "rdp"}, {"filter": "gdp"}, {"order": 64.0}):
        with pytest.raises(InputError, match="never changed"):
            sqlite_ledger.init("mu", 1.0, 1e-5, "add_remove", **other)
    with pytest.raises(InputError, match="no order"):
        sqlite_ledger.init("other", 1.0, 1e-5, "add_remove", order=8.0, filter="gdp")
    with pytest.raises(InputError, match="filter"):
        sqlite_ledger.init("other", 1.0, 1e-5, "add_remove", filter="both")
    assert sqlite_ledger.dataset("mu").filter == "gdp"
    sqlite_ledger.init("plain", 1.0, 1e-5, "add_remove")
    assert "filter" not in sqlite_ledger.dataset("plain").to_body()


def test_a_reader_whose_order_is_another_than_the_opened_one_is_refused(
    sqlite_ledger: Ledger,
) -> None:
    """What a process remembers of a data set is compared with the record at each reservation."""
    sqlite_ledger.init("plain", 1.0, 1e-5, "add_remove")
    opened = sqlite_ledger.dataset("plain")
    for changed in ({"order": 4.0}, {"order": None, "filter": "gdp"}):
        other = Ledger(sqlite_ledger.store.url.render_as_string(hide_password=False))
        other._known["plain"] = replace(opened, **changed)
        with pytest.raises(InputError, match="as it was"):
            other.reserve("plain", gaussians(100.0))
        other.close()


def test_calibration_meets_mu_squared() -> None:
    problem = Problem(n=1000, dimension=5, adjacency="add_remove", loss=Logistic())
    room = Room(None, 0.01, problem.adjacency)
    planned = plan("dp_sgd", {"steps": 10}, problem, Target(1.0, 1e-5), room)
    assert room.cost(planned.events) == pytest.approx(0.01, rel=3e-4)
    assert room.cost(planned.events) <= 0.01 * (1 + 1e-9)


def test_an_adaptive_run_keeps_its_own_sum_of_mu_squared() -> None:
    """A pure release costs more mu^2 than its curve says: the cap on curves alone would admit it."""
    X, y = records()
    objective = LinearObjective(X, y, Logistic())
    planned = Events.of([Gaussian(1.0, 5.0)], adjacency="replace_one")
    asked = Laplace(1.0, 5.0)
    loose, strict = (
        open_door(planned, objective, adaptive=True, in_mu=in_mu, fixed_noise_seed=1)
        for in_mu in (False, True)
    )
    assert loose.affords(asked)
    assert not strict.affords(asked)
    assert strict.affords(Gaussian(1.0, 5.0))
    with pytest.raises(BudgetExceeded):
        strict.release(asked, lambda batch: batch.value_sum(np.zeros((1, 5)), 1.0))
    assert strict.releases == 0
