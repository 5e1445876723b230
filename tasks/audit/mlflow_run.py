"""A run of MLflow as the audit sees it, through MLflow's client: any store, any version.

MLflow's own SQLite database, read directly: a second for an audit instead of the four of
MLflow's import.

Only where the tables are exactly those of a version that was compared with MLflow's client (tests);
any other store, or version, is read through the client. One tag is written: what the audit found.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dpcore.errors import InputError
from tasks.audit.subject import (
    LARGEST_MODEL,
    Subject,
    Version,
    attached,
    contents,
    local,
    model_contents,
    own_data,
)
from tasks.record import MODEL
from tasks.record.example import DataInput

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


Held = tuple[Mapping[str, bytes], tuple[str, ...]]  # files by path, and what is no plain file


def find_run(client: MlflowClient, run_id: str) -> Run:
    """The run of that id. Raises ``InputError`` where there is none, or it was deleted."""
    from mlflow.exceptions import MlflowException

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
        found = contents(root)
    else:
        with TemporaryDirectory() as place:
            found = contents(Path(client.download_artifacts(run_id, "", place)))
    folder, more, place, model_run = _model(client, run.data.tags.get(MODEL, ""))
    return Subject(
        run_id=run_id,
        status=str(run.info.status),
        ended=run.info.end_time is not None,
        params={key: (value,) for key, value in run.data.params.items()},
        metrics={
            key: _history(client, run_id, key, shown) for key, shown in run.data.metrics.items()
        },
        tags=dict(run.data.tags),
        model_run=model_run,
        place=place,
        versions=_versions(client, run_id),
        attached=_attached(client, run, folder),
        adjacency=run.data.params.get("privacy.adjacency", ""),
        **_held(found, (folder, more)),
    )


def _held(run: Held, model: Held) -> dict[str, Any]:
    """The fields of a record that follow from the files of a run and of its model."""
    (files, odd), (folder, more) = run, model
    return {
        "artifacts": tuple(files),
        "files": files,
        "model": model_contents(folder),
        "folder": folder,
        "odd": (*odd, *(f"model/{path}" for path in more)),
    }


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


def _input(given: Any) -> DataInput:
    """A data set of a run, as MLflow's client has it."""
    data, tags = given.dataset, sorted((tag.key, tag.value) for tag in given.tags)
    kind, source = data.source_type, data.source
    return DataInput(data.name, data.digest, kind, source, data.schema, data.profile, tuple(tags))


def _attached(client: MlflowClient, run: Run, folder: Mapping[str, bytes]) -> tuple[str, ...]:
    """What no training writes, of the run, its model and its versions."""
    versions = client.search_model_versions(f"run_id = '{run.info.run_id}'")
    return attached(
        map(_input, run.inputs.dataset_inputs if run.inputs else ()),
        own_data(run.data.tags.get("dpflows.data", ""), model_contents(folder).get("encoder.json")),
        _names_at_model(client, run.data.tags.get(MODEL, "")),
        ((one.name, str(one.version), tag) for one in versions for tag in one.tags),
        run.data.metrics,
    )


def _names_at_model(client: MlflowClient, uri: str) -> list[tuple[str, str]]:
    """What MLflow holds at a logged model: parameters, tags and metrics, each with its name."""
    from mlflow.exceptions import MlflowException

    if not uri.startswith("models:/m-"):
        return []
    try:
        entry: Any = client.get_logged_model(uri.removeprefix("models:/"))
    except MlflowException:
        return []
    metrics = (one.key for one in entry.metrics or ())
    named = (("param", entry.params), ("tag", entry.tags), ("metric", metrics))
    return [(what, name) for what, names in named for name in names]


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


# Alembic revisions of MLflow's tables: 3.17.
KNOWN = ("dc11669786a5",)
READY = 2  # of logged_models.status
PREFIX = "sqlite:///"
WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Database:
    """The SQLite file of a tracking store."""

    path: Path

    @classmethod
    def of(cls, uri: str) -> Database | None:
        """The database behind a tracking URI; None where it is another store or has other
        tables.
        """
        if not uri.startswith(PREFIX) or "?" in uri:
            return None
        found = cls(Path(uri.removeprefix(PREFIX)).absolute())
        try:
            with found._open() as connection:
                [(revision,)] = connection.execute(
                    "select version_num from alembic_version"
                ).fetchall()
        except (sqlite3.Error, OSError, ValueError):
            return None
        return found if revision in KNOWN else None

    @contextmanager
    def _open(self, mode: str = "ro") -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise FileNotFoundError(self.path)
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=WAIT_SECONDS
        )
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def read_run(self, run_id: str) -> Subject | None:
        """Everything that the store holds about a run; None where it has none that is active and
        lies on this disk.
        """
        with self._open() as connection:
            query = (
                "select status, end_time, artifact_uri, lifecycle_stage from runs where run_uuid = "
                "?"
            )
            row = connection.execute(query, (run_id,)).fetchone()
            if row is None or row[3] != "active":
                return None
            params = dict(_pairs(connection, "params", run_id))
            tags = dict(_pairs(connection, "tags", run_id))
            metrics = _metrics(connection, run_id)
            place, model_run = _model_in(connection, tags.get(MODEL, ""))
            versions = _versions_in(connection, run_id)
            root, stored = local(row[2]), local(place) if place else None
            if root is None or (place and stored is None):
                return None
            folder, more = ({}, ()) if stored is None else contents(stored, LARGEST_MODEL)
            encoder = model_contents(folder).get("encoder.json")
            own = own_data(tags.get("dpflows.data", ""), encoder)
            beside = _attached_in(connection, run_id, tags.get(MODEL, ""), own, metrics)
        return Subject(
            run_id=run_id,
            status=str(row[0]),
            ended=row[1] is not None,
            params={key: (value,) for key, value in params.items()},
            metrics=metrics,
            tags=tags,
            model_run=model_run,
            place=place,
            versions=versions,
            attached=beside,
            adjacency=params.get("privacy.adjacency", ""),
            **_held(contents(root), (folder, more)),
        )

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        """Write a tag of a run, as MLflow's client does."""
        with self._open("rw") as connection:
            connection.execute(
                'insert into tags ("key", value, run_uuid) values (?, ?, ?) '
                'on conflict ("key", run_uuid) do update set value = excluded.value',
                (key, value, run_id),
            )


def _pairs(connection: sqlite3.Connection, table: str, run_id: str) -> list[tuple[str, str]]:
    query = {
        "params": 'select "key", value from params where run_uuid = ?',
        "tags": 'select "key", value from tags where run_uuid = ?',
    }
    return connection.execute(query[table], (run_id,)).fetchall()


def _metrics(connection: sqlite3.Connection, run_id: str) -> dict[str, tuple[float, ...]]:
    """All values of every metric, in the order in which they were logged."""
    history = (
        'select "key", value, is_nan from metrics where run_uuid = ? order by timestamp, step, '
        "value"
    )
    shown = 'select "key", value, is_nan from latest_metrics where run_uuid = ?'
    found: dict[str, list[float]] = {}
    for key, value, is_nan in connection.execute(history, (run_id,)):
        found.setdefault(key, []).append(float("nan") if is_nan else float(value))
    for key, value, is_nan in connection.execute(shown, (run_id,)):
        # What MLflow's pages show is kept in a table of its own.
        if not is_nan and float(value) not in found.get(key, ()):
            found.setdefault(key, []).append(float(value))
    return {key: tuple(values) for key, values in found.items()}


def _model_in(connection: sqlite3.Connection, uri: str) -> tuple[str, str]:
    """Where the stored model lies, empty where it is not ready, and the run that stored it."""
    query = (
        "select artifact_location, status, source_run_id, lifecycle_stage from logged_models where "
        "model_id = ?"
    )
    row: Any = connection.execute(query, (uri.removeprefix("models:/"),)).fetchone()
    if not uri.startswith("models:/m-") or row is None or row[3] != "active":
        return "", ""
    return (row[0] if row[1] == READY else ""), str(row[2])


def _attached_in(
    connection: sqlite3.Connection,
    run_id: str,
    uri: str,
    own: DataInput | None,
    metrics: Iterable[str],
) -> tuple[str, ...]:
    """What no training writes, of the run, its model and its versions."""
    datasets = (
        "select i.input_uuid, d.name, d.digest, d.dataset_source_type, d.dataset_source, "
        "d.dataset_schema, d.dataset_profile from inputs i join datasets d on d.dataset_uuid = "
        "i.source_id where i.source_type = 'DATASET' and i.destination_id = ?"
    )
    of_input = "select name, value from input_tags where input_uuid = ? order by name, value"
    of_model = {
        "param": "select param_key from logged_model_params where model_id = ?",
        "tag": "select tag_key from logged_model_tags where model_id = ?",
        "metric": "select metric_name from logged_model_metrics where model_id = ?",
    }
    tags = (
        'select v.name, v.version, t."key" from model_versions v join model_version_tags t on '
        "t.name = v.name and t.version = v.version where v.run_id = ?"
    )
    number = uri.removeprefix("models:/")
    return attached(
        (
            DataInput._make([*facts, tuple(connection.execute(of_input, (place,)))])
            for place, *facts in connection.execute(datasets, (run_id,))
        ),
        own,
        (
            (kind, name)
            for kind, query in of_model.items()
            for (name,) in connection.execute(query, (number,))
        ),
        ((name, str(version), tag) for name, version, tag in connection.execute(tags, (run_id,))),
        metrics,
    )


def _versions_in(connection: sqlite3.Connection, run_id: str) -> tuple[Version, ...]:
    """Registered versions of the run, with the places that MLflow serves."""
    query = (
        "select name, version, source, storage_location from model_versions where run_id = ? order "
        "by name, version"
    )
    rows = connection.execute(query, (run_id,))
    return tuple(
        Version(name, str(number), source, place or source) for name, number, source, place in rows
    )
