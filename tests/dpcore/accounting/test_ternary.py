"""Moments of three Gaussians, one record of a batch being replaced: their proof, from outside."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.first_rules import ball_moments, first_ball
from dpcore.mechanisms import Gaussian, subsampling
from dpcore.mechanisms import subsampling as mechanisms_subsampling
from dpcore.mechanisms.subsampling import log_triangle_moments
from dpcore.sampling import WithoutReplacement
from tests.dpcore.accounting import reference


def log_even_moment(j: int, x: float, y: float, c: float) -> float:
    """ln E (U - V)^j in closed form for log-normal U, V with covariance [[x, c], [c, y]]."""
    with mpmath.workdps(200):
        total = mpmath.mpf(0)
        for k in range(j + 1):
            m = j - k
            exponent = (
                m * (m - 1) * mpmath.mpf(x) + k * (k - 1) * mpmath.mpf(y)
            ) / 2 + m * k * mpmath.mpf(c)
            total += (-1) ** k * mpmath.binomial(j, k) * mpmath.exp(exponent)
        return float(mpmath.log(total)) if total > 0 else -np.inf


@given(
    ratio=st.floats(0.05, 2.5),
    first=st.floats(0.0, 1.0),
    second=st.floats(0.0, 1.0),
    angle=st.floats(0.0, np.pi),
    j=st.sampled_from([2, 4, 6, 8]),
)
@settings(max_examples=80)
def test_no_triple_of_gaussians_beats_the_corner(ratio, first, second, angle, j) -> None:
    u = ratio * first * np.array([1.0, 0.0])
    v = ratio * second * np.array([np.cos(angle), np.sin(angle)])
    apart = np.linalg.norm(u - v)
    moment = log_even_moment(j, u @ u, v @ v, u @ v)
    ball, _ = ball_moments(8, 2 * ratio)  # radius: ratio
    assert moment <= ball[j - 2] + 1e-8
    shrink = min(1.0, ratio / apart) if apart > 0 else 1.0
    inside = log_even_moment(j, shrink**2 * (u @ u), shrink**2 * (v @ v), shrink**2 * (u @ v))
    triangle, _ = log_triangle_moments(8, ratio)
    assert inside <= triangle[j - 2] + 1e-8


def log_moment(j: float, x: float, y: float, c: float) -> float:
    """ln E |U - V|^j = j(j-1) x / 2 + ln E |1 - e^N|^j, N of mean j (c - x) - (y - x) / 2 and
    variance x + y - 2c.
    """
    mean, spread = j * (c - x) - (y - x) / 2, np.sqrt(max(x + y - 2 * c, 1e-300))
    z = np.arange(-14.0, 14.0 + j * spread, 1e-3)
    with np.errstate(divide="ignore"):
        logs = j * np.log(np.abs(np.expm1(mean + spread * z))) - z * z / 2
    return float(j * (j - 1) * x / 2 + logsumexp(logs) + np.log(1e-3 / np.sqrt(2 * np.pi)))


@given(
    ratio=st.floats(0.05, 1.5),
    first=st.floats(0.0, 1.0),
    second=st.floats(0.0, 1.0),
    angle=st.floats(0.0, np.pi),
    j=st.sampled_from([3, 5, 7]),
)
@settings(max_examples=60)
def test_no_triple_beats_the_corner_at_odd_powers(ratio, first, second, angle, j) -> None:
    u = ratio * first * np.array([1.0, 0.0])
    v = ratio * second * np.array([np.cos(angle), np.sin(angle)])
    ball, _ = ball_moments(8, 2 * ratio)
    assert log_moment(j, u @ u, v @ v, u @ v) <= ball[j - 2] + 1e-6
    apart = np.linalg.norm(u - v)
    shrink = min(1.0, ratio / apart) ** 2 if apart > 0 else 1.0
    triangle, _ = log_triangle_moments(8, ratio)
    assert (
        log_moment(j, shrink * (u @ u), shrink * (v @ v), shrink * (u @ v))
        <= triangle[j - 2] + 1e-6
    )


@pytest.mark.parametrize("ratio", [1e-3, 0.1, 1.0, 3.0])
def test_ternary_and_binary_moments_in_closed_form(ratio: float) -> None:
    t = ratio**2
    for geometry, corner in (("triangle", (t, t, t / 2)), ("ball", (t / 4, t / 4, -t / 4))):
        moments = ball_moments if geometry == "ball" else log_triangle_moments
        spread, binary = moments(300, ratio)
        for j in (2, 4, 10, 40):
            alone = log_even_moment(j, t, 0.0, 0.0)
            worst = log_even_moment(j, *corner)
            # one record against nothing is a triangle too, and can be the worst
            if geometry == "triangle":
                worst = max(worst, alone)
            assert spread[j - 2] == pytest.approx(worst, rel=1e-9, abs=1e-8)
            assert binary[j - 2] == pytest.approx(alone, rel=1e-9, abs=1e-8)


def test_moments_between_computed_ones_are_bounded_from_above() -> None:
    """Above j = 256 chords are used; they must not fall below the integral itself."""
    for ratio in (0.01, 0.2, 1.0):
        spread, binary = log_triangle_moments(2000, ratio)
        j = np.arange(257.0, 2001.0, 7.0)
        exact = mechanisms_subsampling.log_binary_moments(j, ratio**2)
        assert np.all(
            binary[j.astype(int) - 2]
            >= np.minimum(exact, np.log(2) + j * (j - 1) * ratio**2 / 2) - 1e-6
        )
        assert np.all(
            spread[:-1] <= np.log(2) + np.arange(2, 2000) * np.arange(1, 1999) * ratio**2 / 2 + 1e-9
        )


@pytest.mark.parametrize(
    ("ratio", "rate", "order"),
    [(0.5, 0.1, 2.0), (0.5, 0.1, 5.0), (1.0, 0.05, 3.0), (1.0, 0.3, 4.0)],
)
def test_fixed_size_bound_is_above_exact_mixtures_in_the_plane(
    ratio: float, rate: float, order: float
) -> None:
    corner = ratio * np.array([0.5, np.sqrt(3) / 2])
    pairs = [
        (np.array([ratio, 0.0]), corner),  # equilateral
        (np.array([ratio / 2, 0.0]), np.array([-ratio / 2, 0.0])),  # opposite
        (np.array([ratio, 0.0]), np.zeros(2)),  # the record against nothing
        (np.zeros(2), np.array([ratio, 0.0])),
    ]
    triangle = subsampling.fixed_size_gaussian(np.array([order]), ratio, rate)[0]
    ball = first_ball(np.array([order]), ratio, rate)[0]
    exact = [reference.planar_divergence(order, rate, u, v) for u, v in pairs]
    assert max(exact) <= triangle
    assert exact[1] <= ball <= triangle
    assert triangle <= 3.0 * max(exact), "the bound should not be far off"


@pytest.mark.parametrize(("rate", "sigma"), [(0.05, 2.0), (0.001, 0.8), (0.3, 5.0), (0.01, 50.0)])
def test_fixed_size_is_at_least_as_tight_as_dp_accounting(rate: float, sigma: float) -> None:
    orders = np.array([1.5, 2, 2.5, 3, 4, 5.5, 8, 16, 32, 64])
    ours = subsampling.fixed_size_gaussian(orders, 1 / sigma, rate)
    theirs = reference.public_fixed_size(rate, sigma, orders)
    assert np.all(ours <= np.minimum(theirs, orders / (2 * sigma**2)) * (1 + 1e-9))


def test_fixed_size_needs_much_less_noise_than_lemma_23() -> None:
    """DESIGN: q = 0.05, T = 200 at (1, 1e-5) took a noise multiplier of 57 by Lemma 2.3, 3 under
    add/remove.
    """

    def epsilon(sigma: float) -> float:
        return epsilon_of(
            200 * WithoutReplacement(50, 1000).amplify(Gaussian(1.0, sigma)).rdp(ORDERS), 1e-5
        )

    assert epsilon(4.5) < 1.0
