"""Canaries in one run: the bounds hold for mechanisms of known epsilon, grow with it, and find
planted faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import binom

from dpcore.accounting.budget import Budget
from dpcore.accounting.limits import Target
from dpcore.audit import (
    Canaries,
    Guessed,
    guess,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    plant,
    planted,
    promise_of,
)
from dpcore.audit.bounds import curve_p_value, gaussian_curve, one_run_p_value, promised_curve
from dpcore.audit.canaries import SHARES, best_guess, clear_weights
from dpcore.errors import AssumptionNotMet
from dpcore.losses import make_loss
from dpcore.mechanisms.gaussian import gaussian_epsilon
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import Planned, plan, run

COUNT, CLAIM, DELTA = 300, 4.0, 1e-6
RUNS = 40


def most(runs: int, error: float = 0.05) -> float:
    """How many of ``runs`` tests at level ``error`` may fail by chance, up to a chance of 1e-6."""
    return float(binom.ppf(1 - 1e-6, runs, error))


def test_published_number() -> None:
    """Steinke, Nasr & Jagielski (2023), appendix D: 75 of 100 guesses on 1,000 canaries at delta
    1e-4 give 0.673.
    """
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
    """The mechanism for which the theorem is tight: too high in no more than 5 % of 2,000 runs (up
    to chance).
    """
    rng = np.random.default_rng(11)
    right = rng.binomial(400, 1.0 / (1.0 + np.exp(-epsilon)), size=2000)
    bounds = {v: one_run_epsilon(400, 400, int(v), 0.0, 0.95) for v in np.unique(right)}
    found = np.array([bounds[v] for v in right])
    assert np.sum(found > epsilon) <= most(2000)
    assert np.mean(found) > 0.6 * epsilon


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_curve_is_no_less_than_what_randomised_response_does(epsilon: float) -> None:
    """Its right guesses are binomial, so the curve must allow at least that, and for small chances
    hardly more.
    """
    q, curve = 1.0 / (1.0 + np.exp(-epsilon)), promised_curve(np.array([epsilon]), np.array([0.0]))
    for right in range(50, 101, 5):
        exact, allowed = float(binom.sf(right - 1, 100, q)), curve_p_value(100, 100, right, curve)
        assert allowed >= min(exact, 1.0) * (1 - 1e-3)
        assert exact > 0.01 or allowed <= 1.2 * exact + 1e-8


def test_curve_with_delta_is_no_looser_than_the_theorem() -> None:
    """At the epsilon where Theorem 5.2 gives a chance of 5 %, the curve of the same (epsilon,
    delta) gives no more.
    """
    for guesses, right in ((100, 75), (200, 170), (400, 380)):
        bound = one_run_epsilon(1000, guesses, right, 1e-4, 0.95)
        curve = promised_curve(np.array([bound]), np.array([1e-4]))
        assert 0.02 < curve_p_value(1000, guesses, right, curve) < 0.06


def gaussian_scores(mu: float, seed: int) -> tuple[Canaries, np.ndarray]:
    """Canaries on the axes of a Gaussian sum with signal-to-noise ratio ``mu``, and their
    coordinates of it.
    """
    rng = np.random.default_rng(seed)
    canaries = plant(Problem(n=1000, dimension=COUNT, loss=make_loss("logistic")), COUNT, rng)
    return canaries, canaries.included * mu + rng.normal(size=COUNT)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_gaussian_sum_stays_below_its_epsilon(mu: float) -> None:
    """Both bounds, and the p-value of the curve that is true; the Gaussian bound comes near."""
    truth = gaussian_epsilon(DELTA, mu)
    found = [
        guess(*gaussian_scores(mu, seed), DELTA, promised=gaussian_curve(mu))
        for seed in range(RUNS)
    ]
    assert sum(one.epsilon > truth for one in found) <= most(RUNS)
    assert sum(one.gaussian_epsilon > truth for one in found) <= most(RUNS)
    assert sum(one.p_value <= 0.05 for one in found) <= most(RUNS)
    assert mu < 1 or np.median([one.gaussian_epsilon for one in found]) > 0.3 * truth
    assert mu < 1 or np.median([one.epsilon for one in found]) > 0.15 * truth


def test_curve_refuses_what_is_too_little() -> None:
    """A promise of mu = 1 where 2 or 3 is true: refuted in half and in all of the runs; 2 where 1
    is true: never.
    """

    def refuted(true: float, promised: float) -> float:
        found = [
            guess(*gaussian_scores(true, s), DELTA, promised=gaussian_curve(promised)).p_value
            for s in range(20)
        ]
        return float(np.mean(np.array(found) <= 0.05))

    assert refuted(2.0, 1.0) >= 0.5 and refuted(3.0, 1.0) == 1.0 and refuted(1.0, 2.0) == 0.0


def test_the_error_is_shared_by_the_tests() -> None:
    """All guesses right: each share of the canaries is tested at its part of 5 %."""
    canaries, _ = gaussian_scores(1.0, 0)
    found = guess(canaries, canaries.included.astype(float), DELTA, promised=gaussian_curve(1.0))
    sure, guesses = 1 - 0.05 / len(SHARES), [2 * int(COUNT * share / 2) for share in SHARES]
    assert len(SHARES) == 2
    assert found.epsilon == max(one_run_epsilon(COUNT, g, g, DELTA, sure) for g in guesses)
    assert found.gaussian_epsilon == max(
        one_run_gaussian_epsilon(COUNT, g, g, DELTA, sure) for g in guesses
    )
    assert (
        found.p_value
        == 2 * min(curve_p_value(COUNT, g, g, gaussian_curve(1.0)) for g in guesses)
        < 0.05
    )


def test_scores_without_signal_show_nothing() -> None:
    found = [
        guess(gaussian_scores(1.0, s)[0], np.random.default_rng(s).normal(size=COUNT), DELTA)
        for s in range(RUNS)
    ]
    assert sum(one.epsilon > 0.0 for one in found) <= most(RUNS)
    assert sum(one.gaussian_epsilon > 0.0 for one in found) <= most(RUNS)


class Faulty(Budget):
    """Noise of a ``share`` of what was planned."""

    share = 1.0

    def _noisy(self, mechanism: Any, query: Any, lease: Any) -> Any:
        noisy = super()._noisy(mechanism, query, lease)
        clear = query(lease)
        return clear + self.share * (noisy - clear)


class Halved(Faulty):
    share = 0.5


class Quartered(Faulty):
    share = 0.25


class Missing(Faulty):
    share = 0.0


class WholeData(Budget):
    """Every batch is the whole table."""

    def _rows(self, mechanism: Any) -> Any:
        super()._rows(mechanism)
        return np.arange(self._objective.n)


ADD, SWAP = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def table(problem: Problem, sparse: bool = False) -> LinearObjective:
    """Records with a label that follows one column, within the norm bound."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(problem.n, problem.dimension))
    X /= np.linalg.norm(X, axis=1, keepdims=True) * (1.0 + 1e-9)
    return LinearObjective(
        csr_array(X) if sparse else X, np.where(X[:, 0] > 0, 1.0, -1.0), problem.loss
    )


def attacked(
    door: type[Budget] = Budget,
    rate: float = 1.0,
    adjacency: Adjacency = ADD,
    sparse: bool = False,
    seed: int = 1,
) -> tuple[Guessed, Planned]:
    """Canaries in a short noisy descent, through ``door``."""
    problem = Problem(n=800, dimension=COUNT, loss=make_loss("logistic"), adjacency=adjacency)
    planned = plan("dp_sgd", {"steps": 6, "sampling_rate": rate}, problem, Target(CLAIM, DELTA))
    rng, known = np.random.default_rng(seed), table(problem, sparse)
    mixed, watch = planted(known, plant(problem, COUNT, rng), rng)
    charges: list[int] = []

    result = run(
        planned,
        mixed,
        door=door,
        observers=[watch],
        on_charge=lambda: charges.append(1),
        fixed_noise_seed=seed,
    )
    assert result.events == planned.events and len(charges) == watch.looked == 6
    assert mixed.n == (
        problem.n if adjacency is SWAP else problem.n + watch.canaries.included.sum()
    )
    scores = watch.scores(planned, result.weights, known)
    assert planned.target is not None
    return guess(
        watch.canaries, scores, DELTA, promised=promise_of(planned.target, planned.events)
    ), planned


@pytest.mark.parametrize(
    ("rate", "adjacency", "sparse"), [(1.0, ADD, True), (1.0, SWAP, False), (0.5, ADD, False)]
)
def test_a_sound_run_is_not_refuted(rate: float, adjacency: Adjacency, sparse: bool) -> None:
    """False alarm: one of these seeds could be among the 5 %, and is not."""
    found, planned = attacked(rate=rate, adjacency=adjacency, sparse=sparse)
    assert found.p_value > 0.05 and found.epsilon <= planned.spent_epsilon
    assert rate < 1 or 0.5 < found.gaussian_epsilon <= planned.spent_epsilon


@pytest.mark.parametrize(
    ("door", "rate", "adjacency"),
    [
        (Quartered, 1.0, ADD),
        (Quartered, 1.0, SWAP),
        (Missing, 1.0, ADD),
        (Missing, 0.5, ADD),
        (WholeData, 0.2, ADD),
    ],
)
def test_planted_faults_are_refuted(door: type[Budget], rate: float, adjacency: Adjacency) -> None:
    found, _ = attacked(door, rate, adjacency)
    assert found.p_value <= 0.05
    if rate == 1.0:
        assert found.gaussian_epsilon > CLAIM


def test_halved_noise_is_refuted_in_most_runs() -> None:
    """300 canaries at a claim of 4: the bound for Gaussian outputs passes the claim, the one for
    any does not.
    """
    found = [attacked(Halved, seed=seed)[0] for seed in range(5)]
    assert sum(one.gaussian_epsilon > CLAIM for one in found) >= 3
    assert max(one.epsilon for one in found) < CLAIM


@pytest.mark.parametrize("name", ["output_gd", "rsgd_ar", "objective_perturbation"])
def test_missing_output_noise_is_seen(name: str) -> None:
    """One release of weights: bounds are far from worst cases here, so a run without noise is what
    stands out.
    """
    adjacency = ADD if name == "objective_perturbation" else SWAP
    problem = Problem(
        n=800, dimension=COUNT, loss=make_loss("logistic"), adjacency=adjacency, l2=0.05
    )
    planned = plan(name, {}, problem, Target(CLAIM, DELTA))
    rng, known = np.random.default_rng(2), table(problem)
    mixed, watch = planted(known, plant(problem, COUNT, rng), rng)
    sound = run(planned, mixed, observers=[watch], fixed_noise_seed=3).weights
    seen = guess(watch.canaries, watch.scores(planned, sound, known), DELTA)
    assert seen.epsilon <= seen.gaussian_epsilon <= CLAIM
    clear = clear_weights(planned, mixed)
    looked = planted(known, watch.canaries, np.random.default_rng(2))[1]
    assert (
        guess(looked.canaries, looked.scores(planned, clear, known), DELTA).gaussian_epsilon > CLAIM
    )


def test_too_little_noise_is_taken_for_what_it_is() -> None:
    """Canaries that share much of their direction: at noise of a twentieth every coin is read
    off.
    """
    rng = np.random.default_rng(4)
    shared = rng.choice([-1.0, 1.0], size=60)[:, None] * np.full((60, 60), 60**-0.5)
    rows = np.sqrt(0.5) * shared + np.sqrt(0.5) * np.eye(60)
    coins = rng.random(60) < 0.5
    seen = rows @ (rows.T @ coins + 0.05 * rng.normal(size=60))
    assert np.array_equal(best_guess(rows @ rows.T, seen) > 0, coins)


def test_canaries_keep_the_public_facts() -> None:
    """Norms and labels; within blocks one value of 1; beyond the columns they share axes; pairs
    keep every record.
    """
    problem = Problem(n=100, dimension=5, loss=make_loss("logistic"), norm_bound=3**0.5)
    rng, coins = np.random.default_rng(0), np.random.default_rng(1)
    axes, rows = (
        plant(problem, 200, rng, coins),
        plant(problem, 200, rng, coins, within_blocks=True),
    )
    assert np.linalg.norm(axes.X, axis=1) == pytest.approx(problem.norm_bound, rel=1e-5)
    assert np.linalg.norm(axes.X, axis=1).max() <= problem.norm_bound
    assert set(np.unique(rows.X)) == {0.0, 1.0} and np.array_equal(
        rows.X.sum(axis=0), np.full(5, 40.0)
    )
    assert set(np.unique(axes.y)) == {-1.0, 1.0} and 60 < axes.included.sum() < 140
    pairs = plant(
        Problem(n=100, dimension=5, loss=make_loss("logistic"), adjacency=SWAP), 40, rng, coins
    )
    X, y = pairs.rows
    assert pairs.paired and len(X) == 40 and np.array_equal(y == pairs.y, pairs.included)


def test_pairs_take_places_of_records_that_the_coins_do_not_choose() -> None:
    problem = Problem(n=60, dimension=5, loss=make_loss("logistic"), adjacency=SWAP)
    known = table(problem)
    left: list[Callable[[], Any]] = []
    for coins in (1, 2):
        canaries = plant(problem, 20, np.random.default_rng(0), np.random.default_rng(coins))
        mixed, _ = planted(known, canaries, np.random.default_rng(7))
        left.append(mixed.X[:40])
    assert np.array_equal(left[0], left[1])
    assert {tuple(row) for row in left[0]} <= {tuple(row) for row in known.X}


def test_coins_come_from_their_own_generator() -> None:
    """Equal records and other coins: the public generator says nothing about who was in."""
    problem = Problem(n=100, dimension=50, loss=make_loss("logistic"))
    pairs: list[Any] = [
        plant(problem, 50, np.random.default_rng(0), np.random.default_rng(seed)) for seed in (1, 2)
    ]
    assert np.array_equal(pairs[0].X, pairs[1].X) and np.array_equal(pairs[0].y, pairs[1].y)
    assert not np.array_equal(pairs[0].included, pairs[1].included)


def test_sessions_have_no_canaries() -> None:
    problem = Problem(n=100, dimension=50, loss=make_loss("logistic"), adjacency="replace_labels")  # type: ignore[arg-type]
    with pytest.raises(AssumptionNotMet, match="table of records"):
        plant(problem, 10, np.random.default_rng(0))
