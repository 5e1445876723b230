"""Sharper statements: exact Gaussian composition and privacy-loss distributions."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import Events, Room, Target
from dpcore.accounting.calibrate import calibrate
from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.exact import exactly_gaussian, gdp_epsilon, gdp_mu, pld_epsilon
from dpcore.algorithms import make
from dpcore.errors import PriceUnknown
from dpcore.losses import make_loss
from dpcore.mechanisms import Exact, Exponential, Gaussian, Laplace, gaussian_epsilon
from dpcore.problem import Problem
from dpcore.sampling import Poisson, Sampled, WithoutReplacement
from dpcore.train import plan

DELTA = 1e-5


def rdp_epsilon(counts) -> float:
    return epsilon_of(sum(count * mechanism.rdp(ORDERS) for mechanism, count in counts), DELTA)


def test_gaussians_compose_exactly() -> None:
    counts = [(Gaussian(1.0, 4.0), 10), (Gaussian(2.0, 5.0), 3)]
    assert exactly_gaussian(counts)
    assert gdp_mu(counts) == pytest.approx(sqrt(10 / 16 + 3 * 4 / 25))
    assert gdp_epsilon(counts, DELTA) == gaussian_epsilon(DELTA, gdp_mu(counts))
    assert gdp_epsilon(counts, DELTA) < rdp_epsilon(counts)
    assert gdp_epsilon([], DELTA) == 0.0


def test_recipe_c1_spends_its_budget_exactly() -> None:
    """1 + 128 releases at mu.m^2 = 0.1 mu^2 and mu.g^2 = 0.9 mu^2 are eps = 0.1 at delta = 1e-8."""
    mu = 0.021769
    counts = [
        (Gaussian(1.0, 1 / (sqrt(0.1) * mu)), 1),
        (Gaussian(1.0, sqrt(128) / (sqrt(0.9) * mu)), 128),
    ]
    assert gdp_epsilon(counts, 1e-8) == pytest.approx(0.1, rel=1e-4)


def test_anything_else_has_no_exact_gaussian_form() -> None:
    counts = [(Poisson(0.1).amplify(Gaussian(1.0, 1.0)), 1)]
    assert not exactly_gaussian(counts)
    with pytest.raises(PriceUnknown, match="pld"):
        gdp_epsilon(counts, DELTA)


@pytest.mark.parametrize(
    "counts",
    [
        [(Gaussian(1.0, 5.0), 20)],
        [(Poisson(0.02).amplify(Gaussian(1.0, 1.0)), 100)],
        [(Poisson(0.05).amplify(Gaussian(1.0, 2.0)), 200)],
        [(Laplace(1.0, 10.0), 15)],
        [(Poisson(0.1).amplify(Laplace(1.0, 2.0)), 30), (Gaussian(1.0, 8.0), 4)],
    ],
    ids=["gaussian", "poisson", "case-07a", "laplace", "mixed"],
)
def test_pld_lies_between_the_optimistic_value_and_rdp(counts) -> None:
    upper, lower = pld_epsilon(counts, DELTA), pld_epsilon(counts, DELTA, pessimistic=False)
    assert lower <= upper <= rdp_epsilon(counts)
    # The optimistic value rounds every release down by a cell, which adds up; the upper one does
    # not.
    assert upper - lower < 0.05 * upper


def test_pld_of_gaussians_is_the_exact_value() -> None:
    counts = [(Gaussian(1.0, 5.0), 20)]
    exact = gdp_epsilon(counts, DELTA)
    assert exact <= pld_epsilon(counts, DELTA) <= exact * 1.001
    assert pld_epsilon(counts, DELTA, pessimistic=False) <= exact


def test_case_07a_with_a_numerical_accountant() -> None:
    assert pld_epsilon([(Poisson(0.05).amplify(Gaussian(1.0, 2.0)), 200)], DELTA) == pytest.approx(
        1.5606, abs=2e-3
    )


def test_mechanisms_without_a_distribution_are_refused() -> None:
    for mechanism in (Exponential(1.0, 1.0), WithoutReplacement(1, 10).amplify(Gaussian(1.0, 1.0))):
        with pytest.raises(PriceUnknown, match="rdp"):
            pld_epsilon([(mechanism, 1)], DELTA)


def test_nothing_costs_nothing_and_baselines_everything() -> None:
    assert pld_epsilon([], DELTA) == 0.0
    assert pld_epsilon([(Exact(), 1)], DELTA) == inf


def test_counts_multiply() -> None:
    """A development snapshot of dp-accounting priced 100 compositions of one mechanism as one."""
    one, many = ([(Laplace(1.0, 10.0), count)] for count in (1, 100))
    assert pld_epsilon(many, DELTA) > 5 * pld_epsilon(one, DELTA)
    assert np.isclose(gdp_mu([(Gaussian(1.0, 2.0), 100)]), 10 * gdp_mu([(Gaussian(1.0, 2.0), 1)]))


@pytest.mark.parametrize(("releases", "sigma"), [(100, 10.0), (10_000, 100.0)])
@pytest.mark.parametrize("delta", [1e-8, 1e-10, 1e-12])
def test_rounding_of_many_releases_never_states_less_than_the_truth(
    releases: int, sigma: float, delta: float
) -> None:
    """Composition by Fourier transforms loses 1e-13 of delta over 10,000 releases: added back, or
    refused.
    """
    counts = ((Gaussian(1.0, sigma), releases),)
    try:
        stated = pld_epsilon(counts, delta)
    except PriceUnknown as error:
        assert "use accountant='rdp'" in str(error)
        assert delta < 1e-15 * 2 * releases
    else:
        assert gdp_epsilon(counts, delta) <= stated <= gdp_epsilon(counts, delta) * 1.005


def sampled_sum(adjacency: str, rate: float, sigma_over_c: float) -> Sampled:
    """A sum clipped to norm 1 on a Poisson batch."""
    if adjacency == "add_remove":
        return Poisson(rate).amplify(Gaussian(1.0, sigma_over_c))
    return Poisson(rate).amplify(Gaussian(2.0, sigma_over_c), adjacency, "ball")


def rows_of(shared: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((shared / "golden" / f"{name}.json").read_text())[
        "rows"
    ]
    return rows


def holds(row: dict[str, Any]) -> None:
    mechanism = sampled_sum(row["adjacency"], row["rate"], row["sigma_over_c"])
    found = pld_epsilon([(mechanism, row["steps"])], row["delta"])
    assert row["epsilon"] * (1 - 3e-4) <= found <= row["epsilon_pessimistic_coarse"] * (1 + 3e-3)


def test_golden_statements_of_sampled_sums(shared: Path) -> None:
    for row in rows_of(shared, "p04_pld_epsilon"):
        if row["epsilon_pessimistic_coarse"] > 2.0 and row["steps"] < 1000:
            holds(row)


@pytest.mark.slow
def test_all_golden_statements_of_sampled_sums(shared: Path) -> None:
    for row in rows_of(shared, "p04_pld_epsilon"):
        holds(row)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [1e-3, 2e-4])
def test_the_pair_is_what_dp_accounting_composes_for_replaced_records(cell: float) -> None:
    """From its additive-noise losses of two mixtures, at two grids, made here from their masses."""
    from dp_accounting.pld import pld_pmf

    q, s = 0.05, 0.5
    z = np.arange(-10.0, 10.0, 1e-4)
    log_p, log_q = (
        np.logaddexp(np.log(q) + sign * s * z - s * s / 2, np.log1p(-q)) for sign in (1.0, -1.0)
    )
    mass = np.exp(log_p - z * z / 2) * 1e-4 / np.sqrt(2 * np.pi)
    keys = np.ceil((log_p - log_q) / cell).astype(int)  # rounded up
    losses = np.bincount(keys - keys.min(), weights=mass)
    single = pld_pmf.DensePLDPmf(cell, int(keys.min()), losses, 1e-12, True)
    upper = single.self_compose(100).get_epsilon_for_delta(DELTA)
    found = pld_epsilon([(sampled_sum("replace_one", q, 1 / s), 100)], DELTA)
    assert found <= upper <= found * (1 + 120 * cell)


def least_noise(row: dict[str, Any], **options: Any) -> float:
    """The noise over C that the calibration chooses."""
    problem = Problem(n=10**6, dimension=3, adjacency=row["adjacency"], loss=make_loss("logistic"))
    settings = {"steps": row["steps"], "sampling_rate": row["rate"], "clip_norm": 1.0}
    target = Target(row["epsilon"], row["delta"], **options)
    found = calibrate(make("dp_sgd", settings), problem, target).noise_multiplier
    return found * (1.0 if row["adjacency"] == "add_remove" else 2.0)


def test_golden_noise_of_calibrated_runs(shared: Path) -> None:
    """The curve alone, and with it what distributions save; the slow test below does the rest."""
    for row in rows_of(shared, "p09_calibrated_sigma"):
        by_curve = least_noise(row, accountant="rdp")
        assert by_curve == pytest.approx(row["sigma_rdp"], rel=1e-4)
        if row["steps"] < 1000:
            saved = least_noise(row)
            assert row["sigma_pld"] * (1 - 1e-4) <= saved <= row["sigma_pld"] * 1.003


@pytest.mark.slow
def test_all_golden_noise_of_calibrated_runs(shared: Path) -> None:
    for row in rows_of(shared, "p09_calibrated_sigma"):
        assert row["sigma_pld"] * (1 - 1e-4) <= least_noise(row) <= row["sigma_pld"] * 1.003


def test_auto_says_the_least_and_who_said_it() -> None:
    target = Target(1.0, DELTA)
    few = Events.of([sampled_sum("replace_one", 0.05, 3.0)] * 50, adjacency="replace_one")
    by_curve, by_pld = (replace(target, accountant=name).spent(few) for name in ("rdp", "pld"))
    assert target.accountant_of(few) == "pld"
    assert target.spent(few) == by_pld < 0.97 * by_curve
    assert target.plain().spent(few) == by_curve


def test_auto_falls_back_to_the_curve_and_an_explicit_pld_says_why_at_once() -> None:
    """No distribution, too many cells, or a delta that rounding could hide."""
    cases = [
        Events.of(
            [WithoutReplacement(5, 100).amplify(Gaussian(1.0, 5.0))] * 3, adjacency="replace_one"
        ),
        Events.of([sampled_sum("replace_one", 0.05, 0.01)] * 500, adjacency="replace_one"),
        Events.of([sampled_sum("add_remove", 1e-4, 4.0)] * 10**7, adjacency="add_remove"),
    ]
    for events in cases:
        target = Target(1.0, 1e-8)
        assert target.accountant_of(events) == "rdp"
        assert target.spent(events) == epsilon_of(events.price(), 1e-8)
        with pytest.raises(PriceUnknown, match="rdp") as refused:
            replace(target, accountant="pld").spent(events)
        assert "\n" not in str(refused.value)


def test_a_run_that_a_ledger_limits_has_the_noise_of_its_curve() -> None:
    """Less noise is a dearer curve, which is what a ledger is charged."""
    problem = Problem(n=10**5, dimension=3, adjacency="replace_one", loss=make_loss("logistic"))
    settings = {"steps": 50, "sampling_rate": 0.05}
    room = Room(8.0, 1e6, problem.adjacency)
    target = Target(1.0, DELTA)
    ledgered, free = (
        plan("dp_sgd", settings, problem, target, room),
        plan("dp_sgd", settings, problem, target),
    )
    by_curve = plan("dp_sgd", settings, problem, replace(target, accountant="rdp"))
    assert ledgered.algorithm == by_curve.algorithm
    assert free.algorithm.noise_multiplier < 0.99 * ledgered.algorithm.noise_multiplier
    assert ledgered.spent_epsilon < 0.97
    assert 0.998 < free.spent_epsilon <= 1.0
    assert target.accountant_of(ledgered.events) == "pld"


def test_discrete_noise_is_stated_at_a_smaller_delta() -> None:
    for make_events in (
        lambda rounding: Events.of([Gaussian(1.0, 5.0, rounding)] * 3, adjacency="add_remove"),
        lambda rounding: Events.of(
            [Poisson(0.05).amplify(Gaussian(1.0, 1.0, rounding))] * 20, adjacency="add_remove"
        ),
    ):
        rounded, discrete = make_events(0.0), make_events(1e-12)
        stated = [Target(1.0, DELTA).spent(events) for events in (rounded, discrete)]
        smaller = Target(1.0, DELTA * (1 - 1e-5)).spent(rounded)
        assert stated[0] < stated[1] == pytest.approx(smaller, rel=1e-9)


def test_rules_1_stated_discrete_noise_at_the_whole_delta() -> None:
    events = Events.of([Gaussian(1.0, 5.0, 1e-12)] * 3, adjacency="add_remove")
    target = Target(1.0, DELTA)
    assert target.spent(replace(events, rules=1)) == gdp_epsilon(events.counts, DELTA)
    assert target.spent(replace(events, rules=1)) < target.spent(events)


@pytest.mark.parametrize("count", [10_000, 10_007, 10**7])
def test_millions_of_releases_are_composed_a_few_at_a_time(count: int) -> None:
    """The whole is a Gaussian whose price is known; one at a time its powers would take minutes."""
    mechanism = Gaussian(1.0, sqrt(count))
    found = pld_epsilon(((mechanism, count),), 1e-6)
    true = gdp_epsilon(((mechanism, count),), 1e-6)
    assert true <= found <= (1.001 if count < 10**6 else 1.15) * true  # cells of 0.001


@pytest.mark.slow
def test_the_table_of_prices_is_what_the_code_says() -> None:
    script = Path(__file__).parents[3] / "docs" / "prices.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0
