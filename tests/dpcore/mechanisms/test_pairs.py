"""The exact pair of a replaced record on a Poisson batch: golden values, and its proof checked from
outside.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.first_rules import first_added, first_ball
from dpcore.mechanisms import Gaussian
from dpcore.mechanisms.pairs import added_gaussian, replaced_gaussian
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson
from tests.dpcore.accounting import reference

# Rate, distance over sigma, order: corners of what runs ask for.
SETTINGS = [
    (rate, s, order)
    for rate in (1e-4, 0.01, 0.2, 0.6, 0.95)
    for s, order in ((0.03, 40.0), (0.4, 1.3), (0.7, 12.0), (1.3, 3.5), (2.5, 1.07), (4.0, 6.0))
]


def golden(shared: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((shared / f"golden/{name}.json").read_text())["rows"]
    return rows


def test_golden_divergences_are_never_below_and_at_most_2e_9_above(shared: Path) -> None:
    for row in golden(shared, "p01_ball_rdp"):
        found = replaced_gaussian(
            np.array([float(row["order"])]), row["shift_over_sigma"], row["rate"]
        )[0]
        assert row["rdp"] <= found <= row["rdp"] * (1 + 2e-9), row


def test_golden_bound_without_quadrature_is_above(shared: Path) -> None:
    balls = [row for row in golden(shared, "p02_min_rdp") if row["geometry"] == "ball"]
    assert balls
    for row in balls:
        found = replaced_gaussian(np.array([float(row["order"])]), row["ratio"] / 2, row["rate"])[0]
        assert found <= row["rdp"] * (1 + 2e-9), row


def test_golden_epsilons_of_runs(shared: Path) -> None:
    for row in golden(shared, "p03_ball_epsilon"):
        curve = replaced_gaussian(ORDERS, row["shift_over_sigma"], row["rate"])
        found = epsilon_of(row["steps"] * curve, row["delta"])
        assert row["epsilon_exact_pair"] <= found <= row["epsilon_exact_pair"] * 1.001, row


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.REPLACE_LABELS])
def test_a_poisson_batch_of_a_ball_pays_the_pair(adjacency: Adjacency) -> None:
    """The sensitivity is the diameter 2 C of the ball, its radius C is what the pair takes."""
    sampled = Poisson(0.01).amplify(Gaussian(2.0, 1.0), adjacency, "ball")
    np.testing.assert_array_equal(sampled.rdp(ORDERS), replaced_gaussian(ORDERS, 1.0, 0.01))
    triangle = Poisson(0.01).amplify(Gaussian(2.0, 1.0), adjacency, "triangle")
    assert (sampled.rdp(ORDERS) < triangle.rdp(ORDERS)).all()


def test_rounding_keeps_each_record_in_the_ball_that_is_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the noise, either of two records moves the rounded sum of the others by at most the
    radius of the price, whatever that sum is.
    """
    monkeypatch.setattr("dpcore.noise.integer_gaussian", lambda s, k, rng: np.zeros(k, np.int64))
    size, clip = 64, 0.5 * (1.0 + 1e-5)
    inner = Gaussian(2.0 * clip, 0.7, rounding=2.0**-10)
    sampled = Poisson(1 / 16).amplify(inner, Adjacency.REPLACE_ONE, "ball")
    record = np.full(size, clip / np.sqrt(size))
    moves = []
    for offset in np.linspace(0.0, 2e-3, 801):
        rest = np.full(size, offset)
        without, first, other = (
            sampled.release(value, np.random.default_rng(0))
            for value in (rest, rest + record, rest - record)
        )
        moves.append([np.linalg.norm(first - without), np.linalg.norm(other - without)])
    assert clip < np.max(moves) <= inner.ratio / 2.0 * inner.sigma


def exact(order: float, s: float, rate: float) -> float:
    """D_a(P* || Q*) to 30 digits, by pieces between the peaks."""
    with mpmath.workdps(30):
        a, q, s = mpmath.mpf(order), mpmath.mpf(rate), mpmath.mpf(s)

        def excess(z):
            p = (1 - q) + q * mpmath.exp(s * z - s * s / 2)
            b = (1 - q) + q * mpmath.exp(-s * z - s * s / 2)
            d = (p - b) / b
            return b * ((1 + d) ** a - 1 - a * d) * mpmath.npdf(z)

        ends = mpmath.linspace(-14 - s, (2 * a - 1) * s + 14, 13)
        return float(mpmath.log1p(mpmath.quad(excess, ends)) / (a - 1))


@pytest.mark.parametrize(("rate", "s", "order"), SETTINGS[::7])
def test_the_pair_to_thirty_digits(rate: float, s: float, order: float) -> None:
    found = replaced_gaussian(np.array([order]), s, rate)[0]
    truth = min(exact(order, s, rate), 2 * order * s**2)
    assert truth * (1 - 1e-13) <= found <= truth * (1 + 2e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "s", "order"), SETTINGS)
def test_the_pair_to_thirty_digits_everywhere(rate: float, s: float, order: float) -> None:
    test_the_pair_to_thirty_digits(rate, s, order)


def planar(rng: np.random.Generator, s: float) -> tuple[np.ndarray, np.ndarray]:
    """Two contributions of length at most ``s`` in the plane, half of them as long as can be."""
    angles = rng.uniform(0, 2 * np.pi, 2)
    lengths = s * np.where(rng.random(2) < 0.5, 1.0, rng.random(2))
    u, v = lengths[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    return u, v


def no_planar_pair_is_dearer(seeds: range) -> float:
    """Compare random planar pairs with the pair; the largest share of it that one reached."""
    largest = 0.0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        s, rate, order = (
            rng.uniform(0.1, 1.6),
            10 ** rng.uniform(-3, -0.05),
            rng.choice([1.5, 2.0, 4.0, 7.5]),
        )
        brute = reference.planar_divergence(order, rate, *planar(rng, s), reach=9.0 + order * s)
        share = brute / replaced_gaussian(np.array([order]), s, rate)[0]
        assert share <= 1 + 1e-8, (seed, s, rate, order)
        largest = max(largest, share)
    return largest


def test_no_planar_pair_is_dearer() -> None:
    assert no_planar_pair_is_dearer(range(6)) > 0.3


@pytest.mark.slow
def test_no_planar_pair_of_many_is_dearer() -> None:
    assert no_planar_pair_is_dearer(range(200)) > 0.99


def test_the_opposite_pair_in_the_plane_is_the_pair() -> None:
    """Neither one side of it alone, nor both contributions alike."""
    u = np.array([0.8, 0.0])
    brute = reference.planar_divergence(3.0, 0.1, u, -u, reach=13.0)
    assert replaced_gaussian(np.array([3.0]), 0.8, 0.1)[0] == pytest.approx(brute, rel=1e-6)
    assert reference.planar_divergence(3.0, 0.1, u, 0 * u) < 0.5 * brute


def test_no_hockey_stick_of_a_planar_pair_is_above_that_of_the_pair() -> None:
    """So the pair dominates, and its privacy-loss distribution may be composed."""
    rng = np.random.default_rng(5)
    step = 0.05
    x = np.stack(np.meshgrid(*[np.arange(-9.0, 9.0, step)] * 2, indexing="ij"))

    def mixed(mean: np.ndarray, rate: float) -> np.ndarray:
        parts = [np.exp(-((x - m[:, None, None]) ** 2).sum(axis=0) / 2) for m in (0 * mean, mean)]
        return ((1 - rate) * parts[0] + rate * parts[1]) * step**2 / (2 * np.pi)

    for _ in range(12):
        s, rate, epsilon = rng.uniform(0.2, 2.0), rng.uniform(0.02, 0.9), rng.uniform(0.0, 1.0)
        u, v = planar(rng, s)
        ends = np.array([s, 0.0])
        found, worst = (
            np.maximum(mixed(one, rate) - np.exp(epsilon) * mixed(other, rate), 0.0).sum()
            for one, other in ((u, v), (ends, -ends))
        )
        assert found <= worst + 1e-4


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.1, 0.9])
@pytest.mark.parametrize("s", [1e-12, 1e-6, 1e-3, 0.1, 1.0, 3.0, 9.9, 10.1, 1e3, 1e8])
def test_the_pair_is_never_dearer_than_the_bound_of_rules_1(rate: float, s: float) -> None:
    curve = replaced_gaussian(ORDERS, s, rate)
    assert np.isfinite(curve).all() and (curve > 0).all()
    assert (np.diff(curve) >= -1e-12 * curve[1:]).all()
    assert (curve <= first_ball(ORDERS, 2 * s, rate) * (1 + 2e-9)).all()


def mixture_divergence(order: float, r: float, rate: float) -> float:
    """D_a((1-q) N(0) + q N(r) || N(0)) to 30 digits, by pieces around the crossing."""
    with mpmath.workdps(30):
        q = mpmath.mpf(rate)
        crossing = (mpmath.log((1 - q) / q) + r * r / 2) / r
        near = [crossing + k / r * 2 for k in range(-4, 5)]
        ends = sorted({-14, 0, *near, order * r, order * r + 14})
        moment = mpmath.quad(
            lambda z: ((1 - q) + q * mpmath.exp(r * z - r * r / 2)) ** order * mpmath.npdf(z), ends
        )
        return float(mpmath.log(moment) / (order - 1))


@pytest.mark.parametrize("rate", [1e-6, 1e-2, 0.5])
@pytest.mark.parametrize("r", [12.0, 30.0])
def test_small_orders_of_long_contributions_are_not_dear(rate: float, r: float) -> None:
    """Between orders 1 and 2 a chord of the log-moment costs up to a million times the truth."""
    orders = np.array([1.01, 1.3, 1.9])
    found, chords = added_gaussian(orders, r, rate), first_added(orders, r, rate)
    truth = np.array([mixture_divergence(order, r, rate) for order in orders])
    assert (truth * (1 - 1e-9) <= found).all()
    assert (found <= truth * (1 + 1e-6)).all()
    assert (found <= chords).all()


def test_far_orders_take_no_nodes_and_stay_close() -> None:
    """Where the bound by Q >= (1-q) N(0) takes over it is dearer by -ln(1-q) at most."""
    orders = np.array([500.0, 501.0])
    near, far = replaced_gaussian(orders, 1.0, 0.01)
    assert near <= far <= near * 501 / 500 - np.log1p(-0.01)
