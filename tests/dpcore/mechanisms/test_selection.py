"""Exponential mechanism and noisy maximum: exact output laws against the prices, golden file
g10.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from dpcore.mechanisms import Exponential, NoisyMax, renyi
from dpcore.noise import plain_generator

ORDERS = np.array([1.5, 2.0, 8.0, 40.0])


def log_gumbel_law(scores: np.ndarray, scale: float) -> np.ndarray:
    return scores / scale - logsumexp(scores / scale)


def divergences(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    return np.array([logsumexp(a * log_p + (1 - a) * log_q) / (a - 1) for a in ORDERS])


scores = st.lists(st.floats(-5.0, 5.0), min_size=2, max_size=6)


@given(scores, st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6), st.floats(0.2, 5.0))
@settings(max_examples=100)
def test_exponential_one_sided(base: list[float], moves: list[float], scale: float) -> None:
    first = np.array(base)
    second = first + np.array(moves[: len(base)])
    p, q = log_gumbel_law(first, scale), log_gumbel_law(second, scale)
    bound = Exponential(1.0, scale, two_sided=False).rdp(ORDERS)
    assert np.all(divergences(p, q) <= bound * (1 + 1e-9) + 1e-12)
    assert np.all(divergences(q, p) <= bound * (1 + 1e-9) + 1e-12)


@given(scores, st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6), st.floats(0.2, 5.0))
@settings(max_examples=100)
def test_exponential_two_sided(base: list[float], moves: list[float], scale: float) -> None:
    first = np.array(base)
    second = first + np.array(moves[: len(base)])
    p, q = log_gumbel_law(first, scale), log_gumbel_law(second, scale)
    assert np.all(divergences(p, q) <= Exponential(1.0, scale).rdp(ORDERS) * (1 + 1e-9) + 1e-12)


def test_the_range_is_attained_and_half_of_it_would_be_wrong() -> None:
    first, second = np.array([0.0, 0.0]), np.array([1.0, -1.0])
    p, q = log_gumbel_law(first, 1.0), log_gumbel_law(second, 1.0)
    measured = divergences(p, q)
    bound = Exponential(1.0, 1.0, two_sided=True).rdp(ORDERS)
    assert np.all(measured <= bound * (1 + 1e-12))
    assert measured[1] == pytest.approx(bound[1], rel=1e-12), (
        "the closed form is attained at order 2"
    )
    assert np.any(measured > Exponential(1.0, 1.0, two_sided=False).rdp(ORDERS))


def noisy_max_law(scores: np.ndarray, scale: float) -> np.ndarray:
    """P[i wins] by quadrature over the winner's value."""
    z = np.linspace(scores.min() - 40 * scale, scores.max() + 40 * scale, 40001)
    below = [
        np.where(z < s, np.exp(-np.abs(z - s) / scale) / 2, 1 - np.exp(-np.abs(z - s) / scale) / 2)
        for s in scores
    ]
    law = []
    for i, s in enumerate(scores):
        density = np.exp(-np.abs(z - s) / scale) / (2 * scale)
        others = np.prod([b for j, b in enumerate(below) if j != i], axis=0)
        law.append(np.sum(density * others) * (z[1] - z[0]))
    return np.array(law)


def test_noisy_max_one_sided_is_attained_and_two_sided_doubles_it() -> None:
    # the ratio is reached in the limit; the polynomial factor leaves a tenth
    far = np.array([-8.0, 0.0])
    p, q = noisy_max_law(far, 1.0), noisy_max_law(far + np.array([1.0, 0.0]), 1.0)
    assert np.abs(np.log(p / q)).max() == pytest.approx(
        NoisyMax(1.0, 1.0, two_sided=False).pure_epsilon, rel=0.12
    )
    q = noisy_max_law(far + np.array([1.0, -1.0]), 1.0)
    assert np.abs(np.log(p / q)).max() == pytest.approx(NoisyMax(1.0, 1.0).pure_epsilon, rel=0.12)
    assert np.abs(np.log(p / q)).max() > NoisyMax(1.0, 1.0, two_sided=False).pure_epsilon


def test_golden_10_selection_prices(shared: Path) -> None:
    for row in json.loads((shared / "golden/g10_misc.json").read_text())["selection"]["rows"]:
        order, eta = np.array([float(row["alpha"])]), row["range"]
        # The golden maximum is over a grid, so it may lie a little below the closed form, never
        # above.
        assert renyi.bounded_range(order, eta)[0] == pytest.approx(row["rdp_tight"], rel=1e-7)
        assert renyi.bounded_range(order, eta)[0] >= row["rdp_tight"] * (1 - 1e-9)
        assert renyi.bounded_range(order, eta)[0] <= row["rdp_cdp"]
        assert renyi.pure(order, eta)[0] == pytest.approx(row["pure_tight"], rel=1e-9)


def test_gumbel_needs_2_2_times_less_noise_than_laplace_for_one_zcdp_budget() -> None:
    rho = 0.01
    gumbel = Exponential(1.0, 1 / np.sqrt(8 * rho), two_sided=False)
    laplace = NoisyMax(1.0, 1 / np.sqrt(2 * rho), two_sided=False)
    assert np.all(gumbel.rdp(ORDERS) <= rho * ORDERS)
    assert np.all(laplace.rdp(ORDERS) <= rho * ORDERS)
    std_ratio = (laplace.scale * np.sqrt(2)) / (gumbel.scale * np.pi / np.sqrt(6))
    assert std_ratio == pytest.approx(2.2, abs=0.02)


@pytest.mark.parametrize("kind", [Exponential, NoisyMax])
def test_choices_follow_the_law(kind) -> None:
    """20,000 draws against the exact law; the chance of a false alarm is below 1e-6 (5 sigma in
    each of 3 cells).
    """
    values, scale, draws = np.array([0.0, 0.7, -0.4]), 0.9, 20000
    law = (
        np.exp(log_gumbel_law(values, scale))
        if kind is Exponential
        else noisy_max_law(values, scale)
    )

    def deviation(chosen_scale: float) -> float:
        mechanism, rng = kind(1.0, chosen_scale), plain_generator(5)
        counts = np.bincount([mechanism.release(values, rng) for _ in range(draws)], minlength=3)
        return float(np.max(np.abs(counts - draws * law) / np.sqrt(draws * law * (1 - law))))

    assert deviation(scale) < 5.2
    assert deviation(scale * 2 / 3) > 5.2
    assert deviation(scale * 3 / 2) > 5.2
