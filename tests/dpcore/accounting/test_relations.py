"""Prices under another relation than the one a mechanism was built for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.events import restate
from dpcore.errors import PriceUnknown
from dpcore.mechanisms import (
    AMP,
    AboveThreshold,
    Exact,
    Exponential,
    GammaNorm,
    Gaussian,
    Laplace,
    NoisyMax,
    ObjectivePerturbation,
    RandomisedSensitivityGaussian,
    renyi,
    subsampling,
)
from dpcore.problem import Adjacency
from dpcore.sampling import Permuted, Poisson, WithoutReplacement
from tests.dpcore.accounting import reference

ADD, REPLACE, LABELS = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE, Adjacency.REPLACE_LABELS


def same(one, two) -> bool:
    return bool(np.array_equal(one.rdp(ORDERS), two.rdp(ORDERS)))


@pytest.mark.parametrize("relation", list(Adjacency))
def test_the_own_relation_changes_nothing(relation: Adjacency) -> None:
    mechanism = Gaussian(1.0, 2.0)
    assert restate(mechanism, relation, relation) is mechanism


def test_additive_noise_has_twice_the_sensitivity() -> None:
    assert restate(Gaussian(1.0, 2.0), ADD, REPLACE) == Gaussian(2.0, 2.0)
    assert restate(Laplace(1.0, 2.0), ADD, REPLACE) == Laplace(2.0, 2.0)
    assert restate(GammaNorm(1.0, 2.0), ADD, REPLACE) == GammaNorm(2.0, 2.0)
    threshold = AboveThreshold(1.0, 5.0, 9.0, 4)
    assert restate(threshold, ADD, REPLACE) == replace(threshold, sensitivity=2.0)


@pytest.mark.parametrize("kind", [Exponential, NoisyMax])
def test_a_one_sided_selection_becomes_two_sided(kind) -> None:
    assert restate(kind(1.0, 3.0, False), ADD, REPLACE) == kind(1.0, 3.0, True)
    assert restate(kind(1.0, 3.0, True), ADD, REPLACE) == kind(2.0, 3.0, True)


def test_objective_perturbation_takes_its_own_other_form() -> None:
    built = ObjectivePerturbation(1.0, 0.25, 5.0, 7.0, 3, ADD)
    assert restate(built, ADD, REPLACE) == replace(built, adjacency=REPLACE)
    assert restate(AMP(built, 1e-6, 0.1), ADD, REPLACE) == AMP(
        replace(built, adjacency=REPLACE), 1e-6, 0.1
    )


def test_baselines_stay_infinite() -> None:
    assert np.all(np.isinf(restate(Exact(), ADD, REPLACE).rdp(ORDERS)))


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.1, 2.0), (0.5, 5.0)])
def test_a_poisson_batch_never_takes_the_add_remove_lemma_with_twice_the_bound(
    rate: float, sigma: float
) -> None:
    restated = restate(Poisson(rate).amplify(Gaussian(1.0, sigma)), ADD, REPLACE)
    assert restated.adjacency is REPLACE
    curve = restated.rdp(ORDERS)
    lemma23 = subsampling.fixed_size_general(ORDERS, lambda a: renyi.gaussian(a, 2 / sigma), rate)
    assert np.all(curve <= lemma23 * (1 + 1e-9)), "the specification's bound"
    opposite = np.array([1 / sigma, 0.0])
    for order in (2.0, 4.0):
        exact = reference.planar_divergence(order, rate, opposite, -opposite)
        assert exact <= restated.rdp(np.array([order]))[0]


@pytest.mark.parametrize("order", [2.0, 4.0, 8.0])
def test_add_remove_accounting_would_be_too_cheap_for_replaced_records(order: float) -> None:
    """sigma = 1.5, Mironov's curve at C is no bound for |u|, |v|, |u - v| <= C (equilateral)."""
    sigma, rate = 1.5, 10 / 1356
    equilateral = np.array([1.0, 0.0]) / sigma, np.array([0.5, np.sqrt(3) / 2]) / sigma
    exact = reference.planar_divergence(order, rate, *equilateral)
    triangle = (
        Poisson(rate).amplify(Gaussian(1.0, sigma), REPLACE, "triangle").rdp(np.array([order]))[0]
    )
    assert exact <= triangle
    if order == 2.0:
        assert exact > Poisson(rate).amplify(Gaussian(1.0, sigma)).rdp(np.array([order]))[0] * (
            1 - 1e-3
        )


def test_golden_11_label_level_prices_by_geometry(shared: Path) -> None:
    for row in json.loads((shared / "golden/g11_privbr.json").read_text())["rows"]:
        order, poisson = np.array([float(row["alpha"])]), Poisson(row["q"])
        gaussian = Gaussian(1.0, row["sigma"])
        triangle = poisson.amplify(gaussian, LABELS, "triangle").rdp(order)[0]
        ball = poisson.amplify(gaussian, LABELS, "ball").rdp(order)[0]
        assert (
            max(row["equilateral"], row["addremove"]) * (1 - 1e-6)
            <= triangle
            <= row["lemma23"] * (1 + 1e-9)
        )
        assert row["centred"] * (1 - 1e-6) <= ball <= triangle


def test_laplace_and_selection_on_a_poisson_batch_take_lemma_23() -> None:
    for base in (Laplace(1.0, 3.0), Exponential(1.0, 3.0, False), AboveThreshold(1.0, 5.0, 9.0, 4)):
        restated = restate(Poisson(0.05).amplify(base), ADD, REPLACE)
        doubled = base.replaced()
        curve = restated.rdp(ORDERS)
        assert np.all(curve <= doubled.rdp(ORDERS) * (1 + 1e-12))
        assert np.all(curve >= Poisson(0.05).amplify(base).rdp(ORDERS) * (1 - 1e-9))


def test_replaced_records_cover_replaced_labels() -> None:
    fixed = WithoutReplacement(5, 100).amplify(Gaussian(2.0, 3.0))
    assert restate(fixed, REPLACE, LABELS) is fixed
    assert same(restate(Gaussian(1.0, 3.0), ADD, LABELS), Gaussian(2.0, 3.0))


@pytest.mark.parametrize(("own", "wanted"), [(REPLACE, ADD), (LABELS, ADD), (LABELS, REPLACE)])
def test_what_has_no_proof_is_refused_with_the_way_out(own: Adjacency, wanted: Adjacency) -> None:
    with pytest.raises(PriceUnknown, match=r"adjacency|algorithm"):
        restate(Gaussian(1.0, 1.0), own, wanted)


def test_replace_one_only_mechanisms_have_no_add_remove_form() -> None:
    alone = RandomisedSensitivityGaussian((0.1,), (5,), 10, 1.0)
    with pytest.raises(PriceUnknown):
        restate(alone, ADD, REPLACE)
    with pytest.raises(PriceUnknown):
        restate(Permuted((5,), 10).amplify(alone), ADD, REPLACE)


def test_restating_costs_at_most_four_times_at_full_batch() -> None:
    one = epsilon_of(Gaussian(1.0, 30.0).rdp(ORDERS), 1e-6)
    two = epsilon_of(restate(Gaussian(1.0, 30.0), ADD, REPLACE).rdp(ORDERS), 1e-6)
    assert 1.9 * one < two < 2.2 * one
