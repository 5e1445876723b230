"""Rates 2^-k are drawn by coins, one set a row: exact, and by every rule that a Poisson batch
has.
"""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.algorithms.scaled_gd import ScaledGD
from dpcore.losses import make_loss
from dpcore.noise import MANY, by_coins, halvings_of
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Poisson
from tests.tape import replay


def test_only_halvings_are_drawn_by_coins() -> None:
    assert [halvings_of(2.0**-k) for k in range(10)] == [0, 1, 2, 3, 4, 0, 0, 0, 0, 0]
    assert not any(halvings_of(rate) for rate in (0.3, 0.75, 0.1, 1e-9, np.nextafter(0.25, 1)))


@pytest.mark.parametrize("halvings", [1, 2, 4, 8])
def test_rows_are_met_with_their_rate_alone_and_in_pairs(halvings: int) -> None:
    """400 draws of 64 * 50 rows: means of a row's place in its word, and products of neighbours and
    of the same place in the next word, within five standard errors; another rate by a tenth is told
    apart."""
    rng, draws, n, q = np.random.default_rng(0), 400, 64 * 50, 2.0**-halvings
    hits = np.zeros((draws, n))
    for draw in hits:
        rows = by_coins(n, halvings, rng)
        assert np.all(np.diff(rows) > 0) and (len(rows) == 0 or 0 <= rows[0] <= rows[-1] < n)
        draw[rows] = 1.0
    size = draws * n
    assert abs(hits.mean() - q) < 5 * np.sqrt(q / size) < 0.1 * q
    places = hits.reshape(draws, -1, 64).mean(axis=(0, 1))
    assert np.abs(places - q).max() < 5 * np.sqrt(q / (size / 64))
    for step in (1, 64):
        assert (
            abs((hits[:, step:] * hits[:, :-step]).mean() - q * q)
            < 5 * np.sqrt(q * q / size) + 1e-12
        )


def test_many_rows_take_coins_and_the_end_of_a_word_is_cut() -> None:
    rng = np.random.default_rng(1)
    rows = Poisson(0.25).draw(MANY + 17, rng)
    assert abs(len(rows) - MANY / 4) < 5 * np.sqrt(MANY / 4) and rows[-1] < MANY + 17
    last = [MANY + 16 in Poisson(0.5).draw(MANY + 17, rng) for _ in range(64)]
    assert 10 < sum(last) < 54


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_steps_of_scaled_descent_keep_their_bound(adjacency: Adjacency, seed: int) -> None:
    problem = Problem(
        n=6, dimension=3, loss=make_loss("logistic"), norm_bound=1.0, adjacency=adjacency
    )
    for rate in (0.5, 0.9):
        found = replay(ScaledGD(steps=3, clip_norm=0.05, sampling_rate=rate), problem, seed)
        assert found.sound, found


def test_full_steps_are_what_they_were() -> None:
    problem = Problem(n=100, dimension=3, loss=make_loss("logistic"), norm_bound=1.0)
    assert ScaledGD().plan(problem) == ScaledGD(sampling_rate=1.0).plan(problem)
    assert ScaledGD().per_mu == ScaledGD().noise_multiplier
    sampled = ScaledGD(sampling_rate=0.25, noise_multiplier=0.7)
    assert (
        sampled.per_mu >= 0.7
        and sampled.signal(problem) == ScaledGD(noise_multiplier=0.7).signal(problem) / 4
    )
