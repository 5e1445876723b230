"""Warm start: the weights of an earlier, released or previous model as the first iterate.
Post-processing, so free.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

from dpcore.algorithms import registry as algorithms
from dpcore.errors import InputError
from tasks.config import TrainConfig
from tasks.ledger import Ledger
from tasks.ledger.summary import entry
from tasks.record.stored import finished_runs, read_stored
from tasks.release.registry import RELEASED, RUN_TAG, aliases
from tasks.retraining.config import RetrainConfig
from tasks.training import steps

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Start(NamedTuple):
    """The training with its start, the run that gave it (None: zero), and a word about it."""

    config: TrainConfig
    run_id: str | None
    note: str


def warm(config: RetrainConfig, chosen: TrainConfig, client: MlflowClient, ledger: Ledger) -> Start:
    """Return the training that begins with an earlier model's weights, or unchanged with the reason
    why not.

    Only weights whose hash a committed ledger entry holds are taken: they were paid for, and the
    ledger admits runs that depend on earlier results. A model of other columns gives no start, and
    none of a later period: a backfill shows what a schedule would have given at its time.
    """
    if config.warm_start == "none":
        return Start(chosen, None, "")
    # `auto` decides from public facts, so the plan says which algorithm it is.
    job = steps.prepare(chosen)
    planned = steps.plan_training(job)
    if (
        "start" not in {field.name for field in fields(algorithms[planned.name])}
        or "start" in chosen.algorithm.parameters
    ):
        return Start(chosen, None, f"no warm start: {planned.name} takes no other start")
    run_id = _source(config, client, job.schema.name, ledger, chosen.data.period)
    if run_id is None:
        return Start(chosen, None, "no warm start: there is no earlier model")
    try:
        found = read_stored(client, run_id, ledger)
    except InputError as error:
        return Start(chosen, None, f"no warm start: {error}")
    if (
        found.encoder != job.encoder.to_json()
        or len(found.weights) != job.problem.dimension * job.problem.outputs
    ):
        return Start(chosen, None, f"no warm start: run {run_id} has other columns")
    algorithm = chosen.algorithm.model_copy(update={"start": found.weights.tolist()})
    return Start(
        chosen.model_copy(update={"algorithm": algorithm}), run_id, f"warm start from run {run_id}"
    )


def _source(
    config: RetrainConfig, client: MlflowClient, dataset: str, ledger: Ledger, period: str | None
) -> str | None:
    if config.warm_start == "previous":
        runs = finished_runs(client, dataset)
        return next(
            (run_id for run_id, charged in runs if not _later(ledger, charged, period)), None
        )
    name = str(config.champion.model)
    version = aliases(client, name).get(RELEASED)
    return None if version is None else client.get_model_version(name, version).tags.get(RUN_TAG)


def _later(ledger: Ledger, charged: str, period: str | None) -> bool:
    """Whether an entry is of a period after ``period``; names of periods of one schedule sort as
    time does.
    """
    try:
        other = entry(ledger, charged)["period"]
    except InputError:
        return False  # who reads its weights says what is wrong
    return period is not None and other is not None and str(other) > period
