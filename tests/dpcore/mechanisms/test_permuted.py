"""RSGD-AR's mixture over a secret permutation: golden file g07 and exact mixtures in one
dimension.
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.errors import InputError, PriceUnknown
from dpcore.mechanisms import Gaussian, RandomisedSensitivityGaussian
from dpcore.noise import plain_generator
from dpcore.sampling import FullBatch, Permuted, Poisson


def test_golden_7_curves_and_epsilons(shared: Path) -> None:
    for row in json.loads((shared / "golden/g07_rsgd.json").read_text())["rows"]:
        alone = RandomisedSensitivityGaussian(
            tuple(row["Delta"]), tuple(row["sizes"]), row["n"], row["sigma"]
        )
        mixture = Permuted(alone.sizes, alone.n).amplify(alone)
        orders = np.array([float(order) for order in row["eps_alpha"]])
        np.testing.assert_allclose(mixture.rdp(orders), list(row["eps_alpha"].values()), rtol=1e-8)
        # The golden epsilons are over integer orders 2..500; our grid has fractions below 11 and
        # gaps above 64.
        ours = epsilon_of(mixture.rdp(ORDERS), 1e-8)
        assert 0.99 * row["eps_delta1e8_cks"] <= ours <= 1.001 * row["eps_delta1e8_cks"]
        assert np.all(mixture.rdp(ORDERS) <= alone.rdp(ORDERS) * (1 + 1e-12))


def test_equal_sensitivities_are_one_gaussian() -> None:
    alone = RandomisedSensitivityGaussian((0.3, 0.3), (5, 5), 10, 1.0)
    mixture = Permuted((5, 5), 10).amplify(alone)
    np.testing.assert_allclose(mixture.rdp(ORDERS), Gaussian(0.3, 1.0).rdp(ORDERS), rtol=1e-9)


def test_dropped_records_lower_the_price() -> None:
    full = RandomisedSensitivityGaussian((0.3,), (10,), 10, 1.0)
    part = RandomisedSensitivityGaussian((0.3,), (5,), 10, 1.0)
    assert np.all(
        Permuted((5,), 10).amplify(part).rdp(ORDERS) < Permuted((10,), 10).amplify(full).rdp(ORDERS)
    )


@pytest.mark.parametrize("order", [1.5, 2.0, 6.0])
def test_exact_mixtures_stay_below_the_price(order: float) -> None:
    """The two outputs are mixtures over positions; centres may lie anywhere, the pair at position j
    within D_j.
    """
    bounds, sizes, n, sigma = (1.0, 0.4), (3, 4), 8, 1.2
    shares = np.array([3 / 8, 4 / 8, 1 / 8])
    z = np.arange(-15, 15, 1e-3)
    price = (
        Permuted(sizes, n)
        .amplify(RandomisedSensitivityGaussian(bounds, sizes, n, sigma))
        .rdp(np.array([order]))[0]
    )
    for centres in ([0.0, 0.0, 0.0], [2.0, -1.0, 0.5]):
        first = sum(
            q * np.exp(-((z - c) ** 2) / (2 * sigma**2))
            for q, c in zip(shares, centres, strict=True)
        )
        moved = np.array(centres) + np.array([1.0, -0.4, 0.0])
        second = sum(
            q * np.exp(-((z - c) ** 2) / (2 * sigma**2)) for q, c in zip(shares, moved, strict=True)
        )
        total = np.sum(first**order * second ** (1 - order)) * 1e-3 / (sigma * sqrt(2 * np.pi))
        assert np.log(total) / (order - 1) <= price


def test_a_permutation_lives_in_one_release_of_this_mechanism_only() -> None:
    alone = RandomisedSensitivityGaussian((0.3, 0.2), (5, 5), 10, 1.0)
    sampler = Permuted((5, 5), 10)
    with pytest.raises(PriceUnknown, match="replaced records"):
        sampler.amplify(alone, "add_remove")
    with pytest.raises(PriceUnknown, match="sizes"):
        Permuted((4, 6), 10).amplify(alone)
    with pytest.raises(PriceUnknown, match="RandomisedSensitivityGaussian"):
        sampler.amplify(Gaussian(1.0, 1.0))
    with pytest.raises(PriceUnknown):
        Poisson(0.1).amplify(alone, "add_remove")
    assert FullBatch().amplify(alone, "replace_one") is alone


def test_draws_are_permutations_cut_into_batches() -> None:
    sampler = Permuted((3, 4), 8)
    rng = plain_generator(4)
    counts = np.zeros(8)
    for _ in range(400):
        rows = sampler.draw(8, rng)
        assert len(set(rows.tolist())) == 7
        counts[rows[sampler.cut()[0]]] += 1
    assert sampler.cut() == [slice(0, 3), slice(3, 7)]
    # Each row is in the first batch with chance 3/8: 5.2 standard deviations, false alarm below
    # 1e-5.
    assert np.max(np.abs(counts - 150)) < 5.2 * sqrt(400 * 3 / 8 * 5 / 8)
    with pytest.raises(InputError, match="n=8"):
        sampler.draw(9, rng)
