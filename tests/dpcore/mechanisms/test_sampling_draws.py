"""The samplers' draws fit their names and cost the batch, not the table."""

from __future__ import annotations

import time
from math import sqrt

import numpy as np
import pytest

from dpcore.accounting.budget import MOST_AHEAD, open_door
from dpcore.accounting.events import Events
from dpcore.errors import InputError
from dpcore.losses import Logistic
from dpcore.mechanisms import Gaussian
from dpcore.mechanisms.base import Mechanism
from dpcore.noise import distinct, plain_generator
from dpcore.objective import LinearObjective
from dpcore.sampling import Allocation, FullBatch, Poisson, WithoutReplacement


def test_full_batch_is_a_slice_of_everything() -> None:
    assert FullBatch().draw(10, plain_generator(0)) == slice(None)


def test_poisson_sizes_vary_like_a_binomial_and_may_be_empty() -> None:
    """2,000 draws; mean and variance within 5.2 standard errors (false alarm below 1e-6)."""
    n, rate, rng = 200, 0.05, plain_generator(1)
    batches = [Poisson(rate).draw(n, rng) for _ in range(2000)]
    sizes = np.array([len(batch) for batch in batches])
    mean, variance = n * rate, n * rate * (1 - rate)
    assert abs(sizes.mean() - mean) < 5.2 * sqrt(variance / 2000)
    assert abs(sizes.var() / variance - 1) < 5.2 * sqrt(2 / 2000)
    hits = np.bincount(np.concatenate(batches), minlength=n)
    assert np.max(np.abs(hits - 2000 * rate)) < 6.5 * sqrt(2000 * rate * (1 - rate))
    assert any(len(Poisson(0.01).draw(20, rng)) == 0 for _ in range(20))


def test_poisson_rows_are_chosen_independently() -> None:
    """Two fixed rows meet in a batch with chance q^2: 5,000 draws, 5.2 standard errors."""
    rng, rate = plain_generator(2), 0.3
    both = sum({0, 1} <= set(Poisson(rate).draw(6, rng).tolist()) for _ in range(5000))
    assert abs(both - 5000 * rate**2) < 5.2 * sqrt(5000 * rate**2 * (1 - rate**2))


def test_fixed_size_batches_are_distinct_rows_every_one_as_likely() -> None:
    n, size, rng = 50, 10, plain_generator(3)
    batches = [WithoutReplacement(size, n).draw(n, rng) for _ in range(2000)]
    assert all(len(batch) == size and len(set(batch.tolist())) == size for batch in batches)
    assert all(np.all(np.diff(batch) > 0) for batch in batches)
    hits = np.bincount(np.concatenate(batches), minlength=n)
    assert np.max(np.abs(hits - 400)) < 6.5 * sqrt(2000 * 0.2 * 0.8)


def test_fixed_size_needs_the_declared_number_of_rows() -> None:
    with pytest.raises(InputError, match="n=50"):
        WithoutReplacement(10, 50).draw(51, plain_generator(0))


@pytest.mark.parametrize("make", [lambda n: Poisson(100 / n), lambda n: WithoutReplacement(100, n)])
def test_draws_cost_the_batch_and_not_the_table(make) -> None:
    """A table a thousand times larger, the same batch: the time may not follow it."""

    def seconds(n: int) -> float:
        sampler, rng = make(n), plain_generator(4)
        best = np.inf
        for _ in range(5):
            start = time.process_time()
            for _ in range(20):
                sampler.draw(n, rng)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(20_000_000) < 20 * seconds(20_000)


@pytest.mark.parametrize("rate", [0.04, 0.96])
def test_small_batches_have_the_law_of_independent_rows_on_both_sides(rate: float) -> None:
    """Sizes of 4,000 draws against the binomial law, and pairs of rows; each within 5.2 standard
    errors.
    """
    n, rng = 60, plain_generator(5)
    batches = [Poisson(rate).draw(n, rng) for _ in range(4000)]
    assert all(
        np.all(np.diff(batch) > 0) and batch.min(initial=0) >= 0 and batch.max(initial=0) < n
        for batch in batches
    )
    sizes = np.array([len(batch) for batch in batches])
    assert abs(sizes.mean() - n * rate) < 5.2 * sqrt(n * rate * (1 - rate) / 4000)
    hits = np.bincount(np.concatenate(batches), minlength=n)
    assert np.max(np.abs(hits - 4000 * rate)) < 6.5 * sqrt(4000 * rate * (1 - rate))
    both = sum({0, 1} <= set(batch.tolist()) for batch in batches)
    assert abs(both - 4000 * rate**2) < 5.2 * sqrt(4000 * rate**2 * (1 - rate**2))
    assert list(Poisson(1.0).draw(4, rng)) == [0, 1, 2, 3]


class Quick:
    """Gaps of a source whose draws are far out in the tail; any other draw is refused."""

    def __init__(self, gap: float) -> None:
        self.gap = gap

    def standard_exponential(self, size: int) -> np.ndarray:
        return np.full(size, self.gap)


def test_no_size_of_a_small_batch_is_cut_off() -> None:
    """Of 30 expected rows: sizes beyond ten standard deviations occur, which an inversion never
    gives.
    """
    assert len(Poisson(3e-5).draw(1_000_000, Quick(0.3))) == 100 > 30 + 10 * sqrt(31)
    assert len(Poisson(3e-5).draw(1_000_000, Quick(31.0))) == 0


class Rows:
    """Keeps the rows of every release."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def asked(self, call) -> None: ...

    def released(self, mechanism, rows, query, value) -> None:
        self.seen.append(rows)


def drawn(planned: list[Mechanism], n: int = 400) -> list[np.ndarray]:
    """The rows that a door draws for each release."""
    watch, records = Rows(), LinearObjective(np.ones((n, 1)), np.ones(n), Logistic())
    events = Events.of(planned, adjacency="add_remove")
    door = open_door(events, records, fixed_noise_seed=1, observers=[watch])
    for mechanism in planned:
        door.release(mechanism, lambda batch: np.zeros(1))
    return watch.seen


def sampled(rate: float) -> Mechanism:
    return Poisson(rate).amplify(Gaussian(1.0, 5.0), "add_remove")


@pytest.mark.parametrize("rate", [0.05, 0.25, 0.8])
def test_every_batch_of_a_door_is_drawn_anew(rate: float) -> None:
    """Sizes of 64 batches and what any two have in common, within 5.2 standard errors."""
    n, steps = 400, 4 * MOST_AHEAD
    batches = drawn([sampled(rate)] * steps)
    hits = np.zeros((steps, n))
    for batch, row in zip(batches, hits, strict=True):
        assert np.all(np.diff(batch) > 0) and batch.min() >= 0 and batch.max() < n
        row[batch] = 1.0
    q, spread = hits.mean(), sqrt(rate * (1 - rate))
    assert abs(q - rate) < 5.2 * spread / sqrt(steps * n)
    assert abs(hits.sum(axis=1).std() / (spread * sqrt(n)) - 1) < 5.2 / sqrt(2 * steps)
    # off the diagonal products of centred hits have mean 0 and deviation q (1 - q) a row
    together = (hits - rate) @ (hits - rate).T / (spread**2 * sqrt(n))
    assert np.abs(together[~np.eye(steps, dtype=bool)]).max() < 6.0


def test_batches_drawn_ahead_serve_no_other_release() -> None:
    few, many = sampled(0.02), sampled(0.5)
    order = [few] * 5 + [many] * 5 + [Gaussian(1.0, 5.0)] + [few] * 2 + [many] * 8 + [few]
    for mechanism, rows in zip(order, drawn(order), strict=True):
        if isinstance(mechanism, Gaussian):
            assert rows is None
        else:
            assert (len(rows) > 100) == (mechanism is many)


def test_two_mechanisms_on_one_allocation_share_no_epoch() -> None:
    """An epoch is priced for one mechanism: what follows another one is allocated anew."""
    one, other = (Allocation(5).amplify(Gaussian(1.0, s), "add_remove") for s in (5.0, 6.0))
    batches = drawn([one] * 2 + [other] * 3)
    assert set(np.concatenate(batches[:2])) & set(np.concatenate(batches[2:]))
    assert len(set(np.concatenate(batches[2:]))) == sum(map(len, batches[2:]))


@pytest.mark.parametrize("count", [2, 16])
def test_the_first_and_the_last_row_are_met_in_every_batch(count: int) -> None:
    n, groups, rng = 20, 400, plain_generator(6)
    for place in (0, count - 1):
        hits = [0, 0]
        for _ in range(groups):
            batch = Poisson(0.3).batches(n, count, rng)[place]
            hits[0] += 0 in batch
            hits[1] += n - 1 in batch
        assert np.abs(np.array(hits) - 0.3 * groups).max() < 5.2 * sqrt(0.21 * groups)


@pytest.mark.parametrize(("n", "size"), [(2**16, 2**10), (50_000, 4096), (2**16 + 1, 2000), (9, 4)])
def test_rows_sorted_by_counting_are_those_that_were_drawn(n: int, size: int) -> None:
    rows = distinct(n, size, plain_generator(3))
    drawn = plain_generator(3).choice(n, size=size, replace=False, shuffle=False)
    assert np.array_equal(rows, np.sort(drawn)) and np.all(np.diff(rows) > 0)
