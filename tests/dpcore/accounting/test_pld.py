"""Sharper statements: exact Gaussian composition and privacy-loss distributions."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.exact import exactly_gaussian, gdp_epsilon, gdp_mu, pld_epsilon
from dpcore.errors import PriceUnknown
from dpcore.mechanisms import Exact, Exponential, Gaussian, Laplace, gaussian_epsilon
from dpcore.sampling import Poisson, WithoutReplacement

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
