"""Amplification by sampling: golden files g02, g03, g05, case 07, dp-accounting, quadrature, and
the ternary proof.
"""

from __future__ import annotations

import json
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.errors import InputError, PriceUnknown
from dpcore.mechanisms import (
    AboveThreshold,
    Exact,
    Exponential,
    Gaussian,
    Laplace,
    pairs,
    renyi,
    subsampling,
)
from dpcore.problem import Adjacency
from dpcore.sampling import FullBatch, Permuted, Poisson, Sampled, WithoutReplacement
from tests.dpcore.accounting import reference

INTEGERS = np.arange(2.0, 501.0)
REPLACE, LABELS = Adjacency.REPLACE_ONE, Adjacency.REPLACE_LABELS


def at(mechanism, order: float) -> float:
    return float(mechanism.rdp(np.array([float(order)]))[0])


def test_golden_2_every_curve(shared: Path) -> None:
    for row in json.loads((shared / "golden/g02_subsampling.json").read_text())["rows"]:
        order, ratio, rate = np.array([float(row["alpha"])]), 1 / row["sigma"], row["q"]

        def base(alphas: np.ndarray, ratio: float = ratio) -> np.ndarray:
            return renyi.gaussian(alphas, ratio)

        poisson = pairs.added_gaussian(order, ratio, rate)[0]
        assert poisson == pytest.approx(
            min(row["dp_accounting_poisson"], row["unamplified"]), rel=1e-8
        )
        fixed = subsampling.fixed_size_gaussian(order, ratio, rate)[0]
        assert fixed <= min(row["dp_accounting_wor"], row["unamplified"]) * (1 + 1e-10)
        general = subsampling.poisson_general(order, base, rate)[0]
        assert general == pytest.approx(row["lemma24_capped"], rel=1e-8)
        lemma23 = subsampling.fixed_size_general(order, base, rate)[0]
        assert lemma23 == pytest.approx(row["lemma23_capped"], rel=1e-8)


def test_golden_3_the_printed_epsilons_of_section_6_6(shared: Path) -> None:
    for row in json.loads((shared / "golden/g03_sec66.json").read_text())["rows"]:
        rate, ratio, delta = row["batch"] / row["n"], 1 / row["sigma"], row["delta"]
        curve = row["T"] * subsampling.fixed_size_general(
            INTEGERS, lambda a, r=ratio: renyi.gaussian(a, r), rate
        )
        assert epsilon_of(curve, delta, "prop21", INTEGERS) == pytest.approx(
            row["eps_prop21"], rel=1e-8
        )
        assert epsilon_of(curve, delta, "cks", INTEGERS) == pytest.approx(row["eps_cks"], rel=1e-8)
        gaussian = Gaussian(1.0, row["sigma"])
        poisson = row["T"] * Poisson(rate).amplify(gaussian).rdp(ORDERS)
        assert epsilon_of(poisson, delta) <= row["eps_poisson_addremove_cks"] * (1 + 1e-9)
        fixed = row["T"] * WithoutReplacement(row["batch"], row["n"]).amplify(gaussian).rdp(ORDERS)
        assert epsilon_of(fixed, delta) <= row["eps_cks"]


def test_golden_5_factor_one_for_laplace_and_gauss_and_one_batch_used_twice(shared: Path) -> None:
    golden = json.loads((shared / "golden/g05_factor3_and_batch.json").read_text())
    for row in golden["laplace_gauss"]:
        order = np.array([float(row["alpha"])])
        base = (
            Laplace(1.0, row["scale"]) if row["kind"] == "laplace" else Gaussian(1.0, row["scale"])
        )
        ours = at(Poisson(row["q"]).amplify(base), row["alpha"])
        assert ours <= row["factor1"] * (1 + 1e-8)
        # The quadrature of the golden file is good to 1.5e-4 for the mildest Laplace noise.
        assert ours * (1 + 2e-4) >= max(row["D_mix_vs_base"], row["D_base_vs_mix"])
        plain = base.rdp(order)[0]
        factor_three = subsampling.poisson_general(order, base.rdp, row["q"])[0]
        assert factor_three == pytest.approx(min(row["factor3"], plain), rel=1e-8)
    for row in golden["same_batch"]:
        poisson = Poisson(row["q"])
        apart = row["k"] * at(poisson.amplify(Gaussian(1.0, row["sigma"])), row["alpha"])
        together = at(
            poisson.amplify(Gaussian(1.0, row["sigma"] / np.sqrt(row["k"]))), row["alpha"]
        )
        assert apart == pytest.approx(row["sum_of_amplified"], rel=1e-8)
        assert together == pytest.approx(row["amplified_of_composition_exact"], rel=1e-8)
        assert together > apart, "adding amplified prices of one reused batch would under-count"


@pytest.mark.parametrize("sigma", [0.5, 0.8, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3])
def test_agrees_with_dp_accounting_at_every_order_of_the_grid(sigma: float, rate: float) -> None:
    orders = ORDERS[(ORDERS >= 1.1) & (ORDERS <= 512)]
    ours = Poisson(rate).amplify(Gaussian(1.0, sigma)).rdp(orders)
    theirs = np.minimum(reference.public_poisson(rate, sigma, orders), orders / (2 * sigma**2))
    whole = orders == np.floor(orders)
    # Their sum holds the leading 1, which drowns prices below 1e-12.
    np.testing.assert_allclose(ours[whole], theirs[whole], rtol=1e-8, atol=1e-12)
    # Between integers their series drops the signs of its binomials, which makes it an upper bound.
    assert np.all(ours <= theirs * (1 + 1e-8) + 1e-12)


@pytest.mark.parametrize(
    ("sigma", "rate", "order"), [(0.6, 0.02, 1.5), (1.0, 1e-4, 2.7), (3.0, 0.2, 8.3), (1.3, 0.5, 4)]
)
def test_poisson_gaussian_against_mpmath(sigma: float, rate: float, order: float) -> None:
    with mpmath.workdps(40):
        s = mpmath.mpf(sigma)

        def density(z):
            return mpmath.npdf(z, 0, s), mpmath.npdf(z, 1, s)

        cuts = [
            -40 * sigma,
            -10 * sigma,
            -3 * sigma,
            0,
            1,
            order,
            order + 3 * sigma,
            order + 40 * sigma,
        ]
        exact = reference.mixture_divergence(order, rate, density, cuts)
    assert at(Poisson(rate).amplify(Gaussian(1.0, sigma)), order) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("scale", "rate", "order"), [(0.5, 0.05, 3), (1.0, 0.2, 8), (4.0, 0.01, 2), (2.0, 0.5, 32)]
)
def test_poisson_laplace_against_mpmath_in_both_directions(
    scale: float, rate: float, order: int
) -> None:
    with mpmath.workdps(30):
        b, q, a = mpmath.mpf(scale), mpmath.mpf(rate), order

        def base(z):
            return mpmath.exp(-abs(z) / b) / (2 * b)

        def mixed(z):
            return (1 - q) * base(z) + q * base(z - 1)

        cuts = [-60 * scale, -5 * scale, 0, 1, 1 + 5 * scale, 1 + 60 * scale]
        forth = mpmath.log(mpmath.quad(lambda z: mixed(z) ** a * base(z) ** (1 - a), cuts)) / (
            a - 1
        )
        back = mpmath.log(mpmath.quad(lambda z: base(z) ** a * mixed(z) ** (1 - a), cuts)) / (a - 1)
    ours = at(Poisson(rate).amplify(Laplace(1.0, scale)), order)
    assert ours == pytest.approx(float(forth), rel=1e-6)
    assert ours >= float(back)


# ---- case 07 and refusals


def test_case_07_prices(shared: Path) -> None:
    steps, delta, gaussian = 200, 1e-5, Gaussian(1.0, 2.0)
    orders = np.arange(2.0, 513.0)
    poisson = Poisson(0.05).amplify(gaussian)
    assert epsilon_of(steps * poisson.rdp(orders), delta, "prop21", orders) == pytest.approx(
        2.0554, abs=1e-3
    )
    assert epsilon_of(steps * poisson.rdp(orders), delta, "cks", orders) == pytest.approx(
        1.7229, abs=1e-3
    )
    general = steps * subsampling.poisson_general(orders, gaussian.rdp, 0.05)
    assert epsilon_of(general, delta, "prop21", orders) == pytest.approx(3.0012, abs=1e-3)
    lemma23 = steps * subsampling.fixed_size_general(orders, gaussian.rdp, 0.05)
    assert epsilon_of(lemma23, delta, "prop21", orders) == pytest.approx(4.4092, abs=1e-3)
    fixed = steps * WithoutReplacement(100, 2000).amplify(gaussian).rdp(ORDERS)
    assert 1.55 < epsilon_of(fixed, delta) <= 3.6146, (
        "named: the ternary form, sharper than the published bound"
    )


def test_case_07_sampler_and_lemma_must_match() -> None:
    gaussian = Gaussian(1.0, 2.0)
    with pytest.raises(PriceUnknown, match="Poisson"):
        WithoutReplacement(100, 2000).amplify(gaussian, Adjacency.ADD_REMOVE)
    with pytest.raises(PriceUnknown, match="permutation"):
        Permuted((100,) * 20, 2000).amplify(gaussian)
    with pytest.raises(PriceUnknown, match="three-point"):
        Poisson(0.05).amplify(gaussian, REPLACE)


def test_case_07_rate_one_is_no_amplification_without_log_of_zero() -> None:
    gaussian = Gaussian(1.0, 2.0)
    assert Poisson(1.0).amplify(gaussian) is gaussian
    assert WithoutReplacement(2000, 2000).amplify(gaussian) is gaussian
    assert FullBatch().amplify(gaussian) is gaussian
    orders = np.arange(2.0, 513.0)
    assert epsilon_of(200 * gaussian.rdp(orders), 1e-5, "prop21", orders) == pytest.approx(
        61.5129, abs=1e-3
    )


def test_case_07_a_batch_larger_than_n_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"2500.*2000"):
        WithoutReplacement(2500, 2000)
    with pytest.raises(InputError, match=r"1\.25"):
        Poisson(2500 / 2000)


def test_labels_need_the_three_point_bound() -> None:
    gaussian = Gaussian(1.0, 2.0)
    for contributions in ("triangle", "ball"):
        assert np.all(
            np.isfinite(Poisson(0.1).amplify(gaussian, LABELS, contributions).rdp(ORDERS))
        )
    with pytest.raises(PriceUnknown):
        Poisson(0.1).amplify(gaussian, LABELS)
    with pytest.raises(PriceUnknown):
        WithoutReplacement(10, 100).amplify(gaussian, LABELS, "triangle")
    assert WithoutReplacement(10, 100).amplify(gaussian, LABELS, "ball").adjacency is LABELS


def test_a_batch_of_a_batch_is_refused() -> None:
    with pytest.raises(PriceUnknown, match="batch of a batch"):
        Poisson(0.1).amplify(Poisson(0.1).amplify(Gaussian(1.0, 1.0)))


def test_exact_stays_infinite_on_a_batch() -> None:
    for sampled in (Poisson(0.1).amplify(Exact()), WithoutReplacement(1, 10).amplify(Exact())):
        assert np.all(np.isinf(sampled.rdp(ORDERS)))


BASES = [
    Gaussian(1.0, 1.5),
    Laplace(1.0, 2.0),
    Exponential(1.0, 3.0),
    AboveThreshold(1.0, 5.0, 10.0, 20),
    AboveThreshold(1.0, 5.0, 10.0, 20, noise="gaussian"),
]


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.kind)
def test_amplified_is_never_above_plain_and_grows_with_the_rate(base) -> None:
    plain = base.rdp(ORDERS)
    previous = np.zeros(len(ORDERS))
    for rate in (1e-4, 0.01, 0.1, 0.5, 0.99):
        curve = Poisson(rate).amplify(base).rdp(ORDERS)
        assert np.all(curve <= plain * (1 + 1e-12))
        assert np.all(curve >= previous * (1 - 1e-9))
        previous = curve
    fixed = WithoutReplacement(10, 1000).amplify(base).rdp(ORDERS)
    assert np.all(fixed <= plain * (1 + 1e-12))


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.kind)
def test_curves_rise_with_the_order(base) -> None:
    """A Rényi divergence never falls with its order; a stated curve that did would be loose."""
    orders = np.arange(2.0, 60.0)
    for mechanism in (base, Poisson(0.02).amplify(base)):
        curve = mechanism.rdp(orders)
        assert np.all(np.diff(curve) >= -1e-12 * curve[:-1])


def test_no_overflow_at_the_highest_order_and_little_noise() -> None:
    for sampler in (
        Poisson(1e-5),
        Poisson(0.9),
        WithoutReplacement(1, 10**6),
        WithoutReplacement(9, 10),
    ):
        curve = sampler.amplify(Gaussian(1.0, 0.3)).rdp(ORDERS)
        assert np.all(np.isfinite(curve)) and np.all(curve > 0)
        assert np.all(curve <= ORDERS / (2 * 0.09) * (1 + 1e-12))


@given(rate=st.floats(1e-6, 0.999), sigma=st.floats(0.05, 1e4))
@settings(max_examples=60)
def test_curves_are_finite_positive_and_fall_with_noise(rate: float, sigma: float) -> None:
    one = Poisson(rate).amplify(Gaussian(1.0, sigma)).rdp(ORDERS)
    two = Poisson(rate).amplify(Gaussian(1.0, sigma * 1.1)).rdp(ORDERS)
    assert np.all(np.isfinite(one)) and np.all(one > 0)
    assert np.all(two <= one * (1 + 1e-8))


def test_pure_route_wins_where_factor_three_would_not_vanish() -> None:
    """q = 0.1, eps = 0.004, order 8: Lemma 2.4 0.0105, unamplified 6.4e-5, pure route 6.4e-7."""
    base = Exponential(0.004, 1.0, two_sided=False)
    pure = renyi.pure(np.array([8.0]), 0.004)[0]
    assert pure == pytest.approx(6.4e-5, rel=1e-2)
    lemma = subsampling.poisson_general(np.array([8.0]), lambda a: renyi.pure(a, 0.004), 0.1)[0]
    assert lemma == pytest.approx(pure)  # capped by no amplification
    assert at(Poisson(0.1).amplify(base), 8.0) == pytest.approx(6.4e-7, rel=2e-2)


def test_sampled_prices_are_for_a_named_adjacency() -> None:
    sampled = Poisson(0.1).amplify(Gaussian(1.0, 1.0))
    assert isinstance(sampled, Sampled)
    assert sampled.proved_for is Adjacency.ADD_REMOVE
