"""A run of MLflow as the audit sees it, through MLflow's client: any store, any version."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from dpcore.errors import InputError
from tasks.audit.subject import LARGEST_MODEL, Subject, Version, contents, local, model_contents
from tasks.record import MODEL

if TYPE_CHECKING:
    from mlflow import MlflowClient


def find_run(client: MlflowClient, run_id: str) -> Run:
    """The run of that id. Raises ``InputError`` where there is none, or it was deleted."""
    try:
        run = client.get_run(run_id)
    except MlflowException:
        raise InputError(
            f"Expected a run of {client.tracking_uri}, got {run_id!r}; `dpflows ui` lists them."
        ) from None
    if run.info.lifecycle_stage != "active":
        raise InputError(
            f"Expected a run that is there, got the deleted {run_id!r}; restore it in MLflow first."
        )
    return run


def read_run(client: MlflowClient, run_id: str) -> Subject:
    """Everything that the store holds about a run. Raises ``InputError`` where there is no such
    run.
    """

    run = find_run(client, run_id)
    if (root := local(run.info.artifact_uri)) is not None:
        files, odd = contents(root)
    else:
        with TemporaryDirectory() as place:
            files, odd = contents(Path(client.download_artifacts(run_id, "", place)))
    folder, more, place, model_run = _model(client, run.data.tags.get(MODEL, ""))
    return Subject(
        run_id=run_id,
        status=str(run.info.status),
        ended=run.info.end_time is not None,
        params={key: (value,) for key, value in run.data.params.items()},
        metrics={
            key: _history(client, run_id, key, shown) for key, shown in run.data.metrics.items()
        },
        tags={key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")},
        artifacts=tuple(files),
        files=files,
        model=model_contents(folder),
        model_run=model_run,
        folder=folder,
        odd=(*odd, *(f"model/{path}" for path in more)),
        place=place,
        versions=_versions(client, run_id),
        adjacency=run.data.params.get("privacy.adjacency", ""),
    )


def _history(client: MlflowClient, run_id: str, key: str, shown: float) -> tuple[float, ...]:
    """All values of a metric, in the order in which they were logged; what MLflow's pages show is
    kept apart.
    """
    points = client.get_metric_history(run_id, key)
    values = tuple(
        point.value for point in sorted(points, key=lambda point: (point.timestamp, point.step))
    )
    return values if shown in values or shown != shown else (*values, shown)


def _versions(client: MlflowClient, run_id: str) -> tuple[Version, ...]:
    """Registered versions of the run, with the places that MLflow serves."""
    found = client.search_model_versions(f"run_id = '{run_id}'")
    rows = sorted(found, key=lambda one: (one.name, int(one.version)))
    return tuple(
        Version(
            one.name,
            str(one.version),
            str(one.source),
            str(client.get_model_version_download_uri(one.name, str(one.version))),
        )
        for one in rows
    )


def _model(client: MlflowClient, uri: str) -> tuple[dict[str, bytes], tuple[str, ...], str, str]:
    """Files of the stored model and what is no plain file there, its place, and the run that stored
    it.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    if not uri.startswith("models:/m-"):
        return {}, (), "", ""
    try:
        entry: Any = client.get_logged_model(uri.removeprefix("models:/"))
        if str(getattr(entry.status, "value", entry.status)) != "READY":
            return {}, (), "", str(entry.source_run_id)
        place = str(entry.artifact_location)
        if (root := local(place)) is not None:
            return *contents(root, LARGEST_MODEL), place, str(entry.source_run_id)
        with TemporaryDirectory() as folder:
            copy = Path(download_artifacts(uri, dst_path=folder, tracking_uri=client.tracking_uri))
            files, odd = contents(copy, LARGEST_MODEL)
            files.pop("registered_model_meta", None)  # written by the download
            return files, odd, place, str(entry.source_run_id)
    except (MlflowException, OSError):
        return {}, (), "", ""
