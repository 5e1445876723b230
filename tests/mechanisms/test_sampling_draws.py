"""The samplers' draws fit their names and cost the batch, not the table."""

from __future__ import annotations

import time
from math import sqrt

import numpy as np
import pytest

from dpcore.errors import InputError
from dpcore.noise import plain_generator
from dpcore.sampling import FullBatch, Poisson, WithoutReplacement


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
