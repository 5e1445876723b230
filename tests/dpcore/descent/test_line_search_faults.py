"""Faults of the published algorithm, planted on purpose: one batch for everything, division by the
realised size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.algorithms.dp_blsgd import DPBLSGD
from dpcore.errors import DPFlowsError
from dpcore.losses import Logistic
from dpcore.mechanisms import AboveThreshold, Gaussian
from dpcore.noise import plain_generator
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.sampling import Poisson
from dpcore.train import plan, run
from tests.dpcore.algorithms.audits import least_epsilon
from tests.dpcore.descent.halting import halting_law
from tests.tape import RECORDS, ConstantSlope, replay

DELTA = 1e-3
DRAWS = 400


class RealisedDivisor(DPBLSGD):
    """Alg. 5.2, line 6: the sum over |B|."""

    def _noisy_gradient(self, budget, gradient, state):
        size: list[int] = []

        def query(batch):
            size.append(batch.n)
            return batch.gradient_sum(state.w, state.clip_norm)

        return budget.release(gradient.mechanism, query) / max(size[0], 1)


class ReusedBatch(DPBLSGD):
    """Alg. 5.2, line 10: what the search reads is the batch of the gradient, kept from one release
    to the next.
    """

    def _noisy_gradient(self, budget, gradient, state):
        kept: list[Any] = []

        def query(batch):
            kept.append(batch)
            return batch.gradient_sum(state.w, state.clip_norm)

        noisy = budget.release(gradient.mechanism, query) / gradient.rows
        budget.release(
            gradient.mechanism, lambda batch: kept[0].gradient_sum(state.w, state.clip_norm)
        )
        return noisy


SETTINGS = {
    "iterations": 4,
    "clip_norm": 0.05,
    "clip_loss": 0.5,
    "search_every": 2,
    "sampling_rate": 0.5,
}


def test_replay_sees_the_realised_size():
    problem = Problem(n=RECORDS, dimension=4, loss=ConstantSlope(), l2=0.1)
    assert replay(DPBLSGD(**SETTINGS), problem, 0).sound
    shown = replay(RealisedDivisor(**SETTINGS), problem, 0)
    assert not shown.same_result


def test_the_door_refuses_a_batch_that_was_used():
    X = np.eye(4)
    problem = Problem(n=4, dimension=4, loss=Logistic(), l2=0.1)
    planned = replace(plan("dp_blsgd", SETTINGS, problem), algorithm=ReusedBatch(**SETTINGS))
    with pytest.raises(DPFlowsError, match="batch was used by the release"):
        run(planned, LinearObjective(X, np.ones(4), Logistic()))


def shifted_means(
    reuse: bool, queries: int, rate: float, sigma: float, present: bool, seed: int
) -> np.ndarray:
    """Mean of ``queries`` noisy sums of one record's 1, each on a fresh Poisson batch or all on the
    same one.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.random((200_000, 1 if reuse else queries)) < rate
    counts = np.broadcast_to(drawn & present, (200_000, queries))
    return counts.mean(axis=1) + rng.normal(scale=sigma / np.sqrt(queries), size=200_000)


def test_audit_breaks_when_the_batch_is_reused():
    """k amplified prices hold for fresh batches; the same k queries on one batch leave them."""
    queries, rate, sigma = 16, 0.02, 2.0
    priced = Events.of(
        [Poisson(rate).amplify(Gaussian(1.0, sigma))] * queries, adjacency="add_remove"
    )
    claimed = Target(1.0, DELTA, accountant="pld").spent(priced)
    shown = {
        reuse: least_epsilon(
            shifted_means(reuse, queries, rate, sigma, True, 1),
            shifted_means(reuse, queries, rate, sigma, False, 2),
            DELTA,
        )
        for reuse in (False, True)
    }
    assert shown[False] <= claimed < shown[True]


def energies(cls: type[DPBLSGD], present: bool) -> np.ndarray:
    """Squared length of the first step in many dimensions: it shows the scale of the noise, and so
    its divisor.
    """
    rng = np.random.default_rng(3)
    X = np.zeros((8 if present else 7, AUDITED.dimension))
    X[:, 0] = 1.0
    planned = replace(plan("dp_blsgd", FIRST, AUDITED), algorithm=cls(**FIRST))
    objective = LinearObjective(X, np.ones(len(X)), ConstantSlope())
    seeds = rng.integers(2**31, size=DRAWS)
    return np.array(
        [
            float(np.sum(run(planned, objective, fixed_noise_seed=int(s) + present).weights ** 2))
            for s in seeds
        ]
    )


AUDITED = Problem(n=8, dimension=3000, loss=ConstantSlope(), l2=1e-4)
FIRST = {
    "iterations": 1,
    "sampling_rate": 0.999,
    "noise_multiplier": 8.0,
    "search_ratio": 0.5,
    "first_step": 1.0,
    "max_queries": 1,
    "clip_norm": 1.0,
    "momentum": 0.0,
    "decay": False,
    "on_failure": "smallest_step",
    "backtrack": 0.999,
}


@pytest.mark.parametrize(("cls", "sound"), [(DPBLSGD, True), (RealisedDivisor, False)])
def test_audit_breaks_when_the_realised_size_divides(cls, sound):
    """The length of the noise tells 7 rows from 8 when the sum is divided by their number."""
    claimed = Target(1.0, DELTA).spent(plan("dp_blsgd", FIRST, AUDITED).events)
    first, second = energies(cls, False), energies(cls, True)
    shown = max(least_epsilon(first, second, DELTA), least_epsilon(second, first, DELTA))
    assert (shown <= claimed) == sound, (shown, claimed)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_simulated_halting_follows_the_exact_law(noise):
    """Chance of a false alarm 1e-6: five standard deviations and a half a cell."""
    queries = np.array([-2.0, 0.5, -0.5, 1.5])
    mechanism = AboveThreshold(1.0, 1.5, 2.0, 4, noise=noise)
    rng = plain_generator(11)
    draws = 40_000
    seen = np.bincount([mechanism.release(queries, rng) for _ in range(draws)], minlength=5) / draws
    law = halting_law(queries, 1.5, 2.0, noise)
    assert law.sum() == pytest.approx(1.0, abs=1e-6)
    assert np.all(np.abs(seen - law) <= 5.5 * np.sqrt(law * (1 - law) / draws))
    wrong = halting_law(queries, 1.5, 3.0, noise)
    assert np.any(np.abs(seen - wrong) > 5.5 * np.sqrt(wrong * (1 - wrong) / draws))
