"""Canaries in one run: the bound holds for mechanisms of known epsilon, grows with it, and finds planted faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import binom

from dpcore.accounting.limits import Target
from dpcore.audit import guess, one_run_epsilon, plant
from dpcore.audit.bounds import one_run_p_value
from dpcore.losses import make_loss
from dpcore.mechanisms.profile import gaussian_epsilon
from dpcore.objective import LinearObjective
from dpcore.problem import Block, Problem
from dpcore.train import plan, run

COUNT, WIDE, CLAIM, DELTA = 500, 600, 2.0, 1e-6


def test_published_number() -> None:
    """Steinke, Nasr & Jagielski (2023), appendix D: 75 of 100 guesses on 1,000 canaries at delta 1e-4 give 0.673."""
    assert one_run_epsilon(1000, 100, 75, 1e-4, 0.95) == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-4])
def test_smaller_epsilons_are_all_ruled_out(delta: float) -> None:
    """The bound is the first crossing: nothing below it is compatible with what was seen."""
    for guesses, right in ((100, 75), (250, 220), (500, 500)):
        bound = one_run_epsilon(1000, guesses, right, delta, 0.95)
        below = np.linspace(0.0, bound - 1e-4, 60)
        assert max(one_run_p_value(1000, guesses, right, float(e), delta) for e in below) < 0.05


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_randomised_response_stays_below_its_epsilon(epsilon: float) -> None:
    """The mechanism for which the theorem is tight: too high in no more than 5 % of 2,000 runs (up to chance)."""
    rng = np.random.default_rng(11)
    right = rng.binomial(400, 1.0 / (1.0 + np.exp(-epsilon)), size=2000)
    bounds = {v: one_run_epsilon(400, 400, int(v), 0.0, 0.95) for v in np.unique(right)}
    found = np.array([bounds[v] for v in right])
    assert np.sum(found > epsilon) <= binom.ppf(1 - 1e-6, 2000, 0.05)
    assert np.mean(found) > 0.6 * epsilon


def gaussian_bounds(mu: float, runs: int = 60) -> np.ndarray:
    """Bounds for a Gaussian sum of orthogonal canaries with signal-to-noise ratio ``mu``; 250 of 500 are guessed."""
    rng = np.random.default_rng(5)
    problem = Problem(n=1000, dimension=COUNT, loss=make_loss("logistic"))
    found = []
    for _ in range(runs):
        canaries = plant(problem, COUNT, rng)
        released = np.where(canaries.included, canaries.y, 0.0) * mu + rng.normal(size=COUNT)
        found.append(guess(canaries, released, np.zeros(COUNT), DELTA).epsilon)
    return np.array(found)


def test_gaussian_sum_stays_below_and_grows() -> None:
    means = []
    for mu in (0.5, 1.0, 2.0):
        found, truth = gaussian_bounds(mu), gaussian_epsilon(DELTA, mu)
        assert np.sum(found > truth) <= binom.ppf(1 - 1e-6, len(found), 0.05)
        means.append(found.mean())
    assert 0 < means[0] < means[1] < means[2]


@pytest.mark.parametrize("sparse", [False, True])
def test_planted_faults_are_above_the_claim(sparse: bool) -> None:
    """Noisy gradients in 600 dimensions at a claim of 2: sound below it, the clear sum above it."""
    problem = Problem(n=1000, dimension=WIDE, loss=make_loss("logistic"))
    canaries = plant(problem, COUNT, np.random.default_rng(1))
    X, y = canaries.rows
    objective = LinearObjective(csr_array(X) if sparse else X, y, problem.loss)
    planned = plan("dp_sgd", {"steps": 2, "sampling_rate": 1.0}, problem, Target(CLAIM, DELTA))
    sound = run(planned, objective, fixed_noise_seed=3).weights
    clear = -objective.gradient_sum(np.zeros(WIDE))
    assert guess(canaries, sound, np.zeros(WIDE), DELTA).epsilon <= CLAIM
    assert guess(canaries, clear, np.zeros(WIDE), DELTA).epsilon > CLAIM


def test_canaries_keep_the_public_facts() -> None:
    """Norms, labels and blocks; more canaries than axes have random signs, rows like an encoder's have one level."""
    blocks = (Block((0, 1, 2), "one_hot"), Block((3,), "numeric"))
    problem = Problem(n=100, dimension=5, loss=make_loss("logistic"), norm_bound=3**0.5, blocks=blocks, intercept=True)
    rng, coins = np.random.default_rng(0), np.random.default_rng(1)
    for count, like_rows in ((4, False), (200, False), (200, True)):
        canaries = plant(problem, count, rng, coins, like_rows)
        assert np.linalg.norm(canaries.X, axis=1).max() <= problem.norm_bound
        assert set(np.unique(canaries.y)) <= {-1.0, 1.0}
    assert set(np.unique(canaries.y)) == {-1.0, 1.0} and 60 < canaries.included.sum() < 140
    assert np.allclose(canaries.X[:, :3].sum(axis=1), canaries.X[:, 4]) and set(np.unique(canaries.X[:, 3] > 0)) == {
        0,
        1,
    }


def test_coins_come_from_their_own_generator() -> None:
    """Equal records and other coins: the public generator says nothing about who was in."""
    problem = Problem(n=100, dimension=50, loss=make_loss("logistic"))
    pairs: list[Any] = [plant(problem, 50, np.random.default_rng(0), np.random.default_rng(seed)) for seed in (1, 2)]
    assert np.array_equal(pairs[0].X, pairs[1].X) and np.array_equal(pairs[0].y, pairs[1].y)
    assert not np.array_equal(pairs[0].included, pairs[1].included)
