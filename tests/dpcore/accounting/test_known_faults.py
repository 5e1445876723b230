"""Formulas of the sources and of other tools that are wrong: theirs must fail here, ours must
hold.
"""

from __future__ import annotations

import json
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.errors import InputError
from dpcore.mechanisms import Gaussian, gaussian_delta, gaussian_epsilon, gaussian_sigma
from dpcore.mechanisms.gaussian import log_gaussian_delta
from dpcore.sampling import Poisson, WithoutReplacement


def test_golden_10_the_classical_gaussian_scale(shared: Path) -> None:
    golden = json.loads((shared / "golden/g10_misc.json").read_text())
    for row in golden["gauss_sigma"]:
        epsilon, delta = row["eps"], row["delta"]
        paper = sqrt(2 * log(2 / delta)) / epsilon
        assert paper == pytest.approx(row["paper_sigma"], rel=1e-8)
        assert gaussian_delta(epsilon, 1 / paper) == pytest.approx(
            row["paper_true_delta"], rel=1e-7
        )
        assert gaussian_sigma(epsilon, delta) == pytest.approx(row["analytic_sigma"], rel=1e-8)
        assert gaussian_delta(epsilon, 1 / gaussian_sigma(epsilon, delta)) <= delta * (1 + 1e-12)
    for row in golden["gauss_validity"]:
        for name, constant in (("first_bad_eps_2", 2.0), ("first_bad_eps_125", 1.25)):
            bad, delta = row[name], row["delta"]
            for epsilon, holds in ((bad - 0.01, True), (bad, False)):
                sigma = sqrt(2 * log(constant / delta)) / epsilon
                assert (gaussian_delta(epsilon, 1 / sigma) <= delta) is holds


def test_case_10_least_noise() -> None:
    assert gaussian_sigma(0.8, 1e-5) == pytest.approx(4.572762, rel=1e-6)
    assert gaussian_sigma(12.0, 1e-5) == pytest.approx(0.431644, rel=2e-6)
    assert gaussian_epsilon(1e-5, 1 / 0.403734) == pytest.approx(13.0526, abs=1e-4), (
        "classical, claimed 12"
    )
    for sensitivity, exact in ((0.4, 1.492253), (0.565685, 2.110364), (0.42, 1.566865)):
        assert gaussian_sigma(1.0, 1e-5, sensitivity) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    "bad", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.0}]
)
def test_case_06_a_target_of_zero_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError):
        gaussian_sigma(**{"epsilon": 1.0, "delta": 1e-5, **bad})


def test_case_09_noise_on_the_sum_for_both_relations() -> None:
    """Clip 1, multiplier 1.5: std 1.5 on the sum under add/remove, 3.0 under replace-one for the
    same guarantee.
    """
    added, replaced = Gaussian(1.0, 1.5), Gaussian(2.0, 3.0)
    assert np.array_equal(added.rdp(ORDERS), replaced.rdp(ORDERS))
    assert epsilon_of(Gaussian(2.0, 1.5).rdp(ORDERS), 1e-5) > epsilon_of(added.rdp(ORDERS), 1e-5)


@pytest.mark.parametrize("epsilon", [0.005, 0.5, 8.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-15])
def test_sigma_epsilon_and_delta_are_inverse(epsilon: float, delta: float) -> None:
    sigma = gaussian_sigma(epsilon, delta)
    assert gaussian_epsilon(delta, 1 / sigma) == pytest.approx(epsilon, rel=1e-9)
    assert gaussian_epsilon(delta, 1 / sigma) <= epsilon * (1 + 1e-12)
    assert gaussian_delta(epsilon, 1 / (sigma * (1 - 1e-6))) > delta


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.1, 0.01), (30.0, 1.0), (5.0, 200.0), (1e-9, 1e-6), (700.0, 40.0)]
)
def test_the_gaussian_profile_keeps_its_digits(epsilon: float, mu: float) -> None:
    import mpmath

    with mpmath.workdps(400):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert log_gaussian_delta(epsilon, mu) == pytest.approx(
            float(mpmath.log(exact)), rel=1e-9, abs=1e-9
        )


def test_golden_10_mpadmm_constant(shared: Path) -> None:
    """(4.13) says 2C / (n (1 + eta rho)); the map moves by eta times that. Its price is wrong by 1
    / eta^2.
    """
    for row in json.loads((shared / "golden/g10_misc.json").read_text())["mpadmm"]:
        paper = 2 * row["C"] / (row["n"] * (1 + row["eta"] * row["rho"]))
        assert paper == pytest.approx(row["paper"], rel=1e-8)
        correct = paper * row["eta"]
        assert correct == pytest.approx(row["actual"], rel=1e-9)
        sigma = 1e-4
        ratio = Gaussian(correct, sigma).rdp(ORDERS) / Gaussian(paper, sigma).rdp(ORDERS)
        np.testing.assert_allclose(ratio, row["rdp_underestimate"], rtol=1e-8)


def test_golden_10_rrpsgd_in_tight_replace_one_accounting(shared: Path) -> None:
    for row in json.loads((shared / "golden/g10_misc.json").read_text())["rrpsgd"]:
        gaussian = Gaussian(2.0, row["sigma"])
        curve = row["T"] * WithoutReplacement(1, row["n"]).amplify(gaussian).rdp(ORDERS)
        assert epsilon_of(curve, row["delta"]) <= row["eps_rdp_wor"] * (1 + 1e-9)


def test_one_batch_used_twice_costs_more_than_two_batches() -> None:
    """k Gaussian queries on one batch are one at sigma / sqrt(k), which amplification does not
    forgive.
    """
    for rate, sigma, k, order in ((0.1, 1.0, 5, 8.0), (0.001, 1.0, 2, 2.0)):
        orders = np.array([order])
        apart = k * Poisson(rate).amplify(Gaussian(1.0, sigma)).rdp(orders)[0]
        together = Poisson(rate).amplify(Gaussian(1.0, sigma / sqrt(k))).rdp(orders)[0]
        assert together > apart
    small = (exp(5) - 1) / (5 * (exp(1) - 1))
    apart = 5 * Poisson(1e-5).amplify(Gaussian(1.0, 1.0)).rdp(np.array([2.0]))[0]
    together = Poisson(1e-5).amplify(Gaussian(1.0, 1 / sqrt(5))).rdp(np.array([2.0]))[0]
    assert together / apart == pytest.approx(small, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_small_targets_at_tiny_delta_are_within_reach(epsilon: float) -> None:
    """Opacus 1.6 cannot calibrate these with its RDP accountant."""
    delta, rate, steps = 1e-8, 0.01, 1000
    sigma = 60.0 * (0.05 / epsilon)
    assert (
        epsilon_of(steps * Poisson(rate).amplify(Gaussian(1.0, sigma)).rdp(ORDERS), delta) < epsilon
    )
