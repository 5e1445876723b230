"""How gradient methods draw the rows of a step, from the adjacency and a sampling rate."""

from __future__ import annotations

from dpcore.errors import AssumptionNotMet
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import FullBatch, Poisson, Sampler, WithoutReplacement


def batch_sampler(problem: Problem, sampling_rate: float) -> Sampler:
    """All rows for rate 1; else Poisson batches under add/remove, rate * n rows without replacement under replace-one.

    Raises ``AssumptionNotMet`` where the rate asks for less than one row.
    """
    if sampling_rate == 1.0:
        return FullBatch()
    if problem.adjacency is Adjacency.ADD_REMOVE:
        return Poisson(sampling_rate)
    batch_size = round(sampling_rate * problem.n)
    if batch_size < 1:
        raise AssumptionNotMet(
            f"Expected at least one row a batch, got sampling_rate={sampling_rate!r} of n={problem.n}; use "
            f"sampling_rate >= {1 / problem.n:.3g}."
        )
    return WithoutReplacement(batch_size, problem.n)
