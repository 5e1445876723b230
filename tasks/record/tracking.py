"""MLflow through an explicit client and run id: one owner opens and closes each run, everything is
written in bulk.

The module-level functions of MLflow are not used: their active run is per thread, and a task in
another thread would open runs of its own that nobody closes.
"""

from __future__ import annotations

import getpass
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from dpcore.errors import InputError
from tasks.drawing.curves import CURVE_POINTS, curve_name, thin
from tasks.home import Home
from tasks.ledger.reservation import is_gone, this_process
from tasks.record import MODEL as MODEL_TAG
from tasks.record import OURS as OURS_TAG
from tasks.record import OWNER as OWNER_TAG
from tasks.record import view
from tasks.record.example import DataInput
from tasks.record.statement import git_commit
from tasks.stores import ensure_stores
from tasks.stores.moved import require_in_place

# Stores that MLflow opens itself; for others a server decides where artifacts go.
DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")
PARAM_LENGTH = 500
T = TypeVar("T")


def tracking_client(home: Home) -> MlflowClient:
    """The client of the store that ``MLFLOW_TRACKING_URI`` names, else of the database in ``home``,
    made if missing.
    """
    require_in_place(home)
    ensure_stores(home, prefect=False)
    return MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or home.tracking_uri)


def ensure_experiment(client: MlflowClient, home: Home, name: str) -> str:
    """Return the id of the experiment ``name``; a new one keeps its artifacts in ``home``, unless a
    server keeps them.

    The location is absolute, since it cannot be changed later, and a relative one would follow the
    working directory.
    """
    found = client.get_experiment_by_name(name)
    if found is not None:
        if found.lifecycle_stage != "active":
            raise InputError(
                f"Expected an active experiment, got {name!r}, which was deleted; restore it or "
                "take another tracking.experiment."
            )
        return str(found.experiment_id)
    database = client.tracking_uri.startswith(DATABASES)
    location = (home.artifacts / "experiments" / safe_name(name)).as_uri() if database else None
    try:
        tags = {OURS_TAG: "1", **view.KIND}
        return str(client.create_experiment(name, artifact_location=location, tags=tags))
    except MlflowException as error:
        # Another process may have created it between the two calls.
        found = client.get_experiment_by_name(name)
        if found is None:
            raise InputError(
                f"Expected a name that MLflow takes for tracking.experiment, got {name!r}: {error}."
            ) from error
        return str(found.experiment_id)


def safe_name(name: str) -> str:
    return (
        "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "experiment"
    )


def open_run(
    client: MlflowClient, experiment: str, name: str | None, tags: Mapping[str, str]
) -> str:
    """Create a RUNNING run that records which process owns it; return its id."""
    owner = json.dumps(this_process(), sort_keys=True)
    run = client.create_run(
        experiment, run_name=name, tags={OURS_TAG: "1", OWNER_TAG: owner, **origin(), **tags}
    )
    return str(run.info.run_id)


def origin() -> dict[str, str]:
    """Who ran what, in the tags that MLflow shows as user and source."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = "unknown"
    commit = git_commit()
    return {
        "mlflow.user": user,
        "mlflow.source.name": "dpflows",
        "mlflow.source.type": "LOCAL",
        **({"mlflow.source.git.commit": commit} if commit else {}),
    }


def close_run(client: MlflowClient, run_id: str, status: str, reason: str = "") -> None:
    """End a run as FINISHED, FAILED or KILLED, with the reason as a tag."""
    if reason:
        client.set_tag(run_id, "dpflows.ended", reason[:1000])
    client.set_terminated(run_id, status)


def close_stale_runs(client: MlflowClient) -> list[str]:
    """Close our RUNNING runs whose process is certainly gone, as KILLED unless all was stored;
    return their ids.

    Age alone proves nothing.
    """
    experiments = client.search_experiments(filter_string=f"tags.{OURS_TAG} = '1'")
    if not experiments:
        return []
    ids = [experiment.experiment_id for experiment in experiments]
    closed = []
    for run in client.search_runs(ids, filter_string="attributes.status = 'RUNNING'"):
        owner = run.data.tags.get(OWNER_TAG)
        if owner is not None and is_gone(json.loads(owner)):
            # The model is the last thing that a training stores: nothing is missing where it is
            # there.
            if MODEL_TAG in run.data.tags:
                close_run(client, run.info.run_id, "FINISHED")
            else:
                close_run(client, run.info.run_id, "KILLED", "its process ended without closing it")
            closed.append(run.info.run_id)
    return closed


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, Any]) -> None:
    """Write parameters in one batch; long values are cut, the whole configuration is an
    artifact.
    """
    texts = {key: str(value) for key, value in params.items()}
    client.log_batch(
        run_id, params=[Param(key, text[:PARAM_LENGTH]) for key, text in texts.items()]
    )


def log_metrics(
    client: MlflowClient, run_id: str, metrics: Mapping[str, float], resumed: bool = False
) -> None:
    """Write finite metrics in one batch; others become tags, since MLflow would store a false
    number for them.

    What was measured before keeps its point, and the new one, a step later, is what MLflow shows.
    With ``resumed`` the numbers are those of a process that was killed while it wrote them: only
    what it did not write is written.
    """
    now = int(time.time() * 1000)
    finite = {key: float(value) for key, value in metrics.items() if math.isfinite(value)}
    rest = [
        RunTag(f"not_finite.{key}", _reason(value))
        for key, value in metrics.items()
        if key not in finite
    ]
    step = 0 if resumed else _next_step(client, run_id, finite)
    points = [Metric(key, value, now, step) for key, value in finite.items()]
    client.log_batch(
        run_id, metrics=missing(client, run_id, points) if resumed else points, tags=rest
    )


def _next_step(client: MlflowClient, run_id: str, keys: Iterable[str]) -> int:
    """One more than the last step at which any of ``keys`` was measured; 0 where none was."""
    known = client.get_run(run_id).data.metrics.keys() & set(keys)
    return max(
        (point.step + 1 for key in known for point in client.get_metric_history(run_id, key)),
        default=0,
    )


def missing(client: MlflowClient, run_id: str, points: Sequence[Metric]) -> list[Metric]:
    """The points that the run does not have: a process that was killed may have written some of
    them.
    """
    known = client.get_run(run_id).data.metrics.keys() & {point.key for point in points}
    there = {(key, point.step) for key in known for point in client.get_metric_history(run_id, key)}
    return [point for point in points if (point.key, point.step) not in there]


def _reason(value: float) -> str:
    """Why a metric is absent."""
    return (
        "undefined: it is a mean of nothing, or of a term that is no number"
        if math.isnan(value)
        else str(value)
    )


def curve_points(trace: Sequence[Mapping[str, float]]) -> list[Metric]:
    """Metrics of a trace: ``spent.epsilon`` and, as ``released.NAME``, the public numbers an
    algorithm noted.

    The step is the number of the release. At most ``CURVE_POINTS`` rows are kept, first and last
    among them.
    """
    now = int(time.time() * 1000)
    return [
        Metric(curve_name(key), float(value), now, int(row["release"]))
        for row in thin(trace, CURVE_POINTS)
        for key, value in row.items()
        if key != "release" and math.isfinite(value)
    ]


def log_curves(client: MlflowClient, run_id: str, trace: Sequence[Mapping[str, float]]) -> None:
    """Write the curves of a training in one call."""
    points = missing(client, run_id, curve_points(trace))
    if points:
        client.log_batch(run_id, metrics=points)


def log_data(client: MlflowClient, run_id: str, found: DataInput) -> None:
    """Name the data set of a training among the inputs of its run."""
    tags = [InputTag(key, value) for key, value in found.tags]
    data = Dataset(
        found.name, found.digest, found.source_type, found.source, found.schema, found.profile
    )
    client.log_inputs(run_id, [DatasetInput(data, tags)])


def log_files(client: MlflowClient, run_id: str, folder: Path, names: Iterable[str]) -> None:
    """Upload files of ``folder`` under their relative names."""
    for name in names:
        parent = Path(name).parent.as_posix()
        client.log_artifact(run_id, str(folder / name), None if parent == "." else parent)


def drawn(what: str, draw: Callable[[], T]) -> T | None:
    """What ``draw`` makes; None and a warning where it breaks on what it draws.

    The training is paid for and its model is written: a picture must not keep both from being
    recorded. A full disk or a server that is gone still ends here, and the run waits in the outbox.
    """
    try:
        return draw()
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        logging.getLogger(__name__).warning(
            "The %s of this run could not be drawn (%s): the run is recorded without; please "
            "report it as a fault of dpflows.",
            what,
            type(error).__name__,
        )
        return None
