"""Trainings whose bounds and levels are not declared: estimated first within the run's own budget, or read."""

from __future__ import annotations

from dpcore.errors import InputError
from dpcore.train import Planned, replan
from tasks.kinds.base import Job
from tasks.ledger import Reservation
from tasks.options.bounds import private_schema, schema_from_data
from tasks.training.steps import describe, reading_of


def release_bounds(job: Job, planned: Planned, reservation: Reservation) -> tuple[Job, Planned, tuple[str, ...]]:
    """Estimate the undeclared bounds and levels with noise, then plan the training on the columns that these give.

    The reservation holds both. What the estimate released is public from here on; the training may cost, at every
    Rényi order, what was reserved for it. Returns the job with its final encoder, the plan, and what a person should
    know about the estimate.
    """
    if job.estimate is None:
        raise InputError(f"Expected undeclared bounds or levels in {job.schema.name!r}; set bounds: declared.")
    config = job.config
    found = private_schema(
        job.schema,
        job.estimate,
        reading_of(job),
        on_charge=reservation.on_charge,
        fixed_noise_seed=config.unsafe_fixed_noise_seed,
        form=config.privacy.noise,
    )
    complete = describe(config, found.schema)
    keep_noise = "noise_multiplier" in config.algorithm.parameters
    return complete, replan(planned, complete.problem, keep_noise), found.notes


def read_bounds(job: Job) -> Job:
    """The job with bounds and levels read from the rows (``bounds: from_data``): for experiments, never releasable."""
    if job.schema.bounds != "from_data" or not job.schema.undeclared_columns:
        return job
    return describe(job.config, schema_from_data(job.schema, reading_of(job)).schema)
