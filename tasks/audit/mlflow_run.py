"""A run of MLflow as the audit sees it, with what the ledger knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dpcore.errors import InputError
from tasks.audit.subject import METRICS, LedgerFacts, Subject
from tasks.ledger import Ledger
from tasks.ledger.chain import history
from tasks.ledger.records import GENESIS
from tasks.model import MODEL_TAG

# More points than a curve of ours has are not needed to see that a value was added.
LARGEST_FILE = 64 << 20


def read_run(client: MlflowClient, run_id: str, ledger_url: str | None = None) -> Subject:
    """Everything that the store holds about a run. Raises ``InputError`` where there is no such run."""
    try:
        run = client.get_run(run_id)
    except MlflowException:
        raise InputError(f"Expected a run of {client.tracking_uri}, got {run_id!r}; `dpflows ui` lists them.") from None
    with TemporaryDirectory() as folder:
        files = _download(client, run_id, Path(folder))
    model, model_run = _model(client, run.data.tags.get(MODEL_TAG, ""))
    facts, metric_facts = ledger_facts(files, ledger_url)
    params = {key: (value,) for key, value in run.data.params.items()}
    return Subject(
        run_id=run_id,
        status=str(run.info.status),
        ended=run.info.end_time is not None,
        params=params,
        metrics={key: _history(client, run_id, key) for key in run.data.metrics},
        tags={key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")},
        artifacts=tuple(files),
        files=files,
        model=model,
        model_run=model_run,
        ledger=facts,
        metric_ledger=metric_facts,
        adjacency=run.data.params.get("privacy.adjacency", ""),
    )


def _history(client: MlflowClient, run_id: str, key: str) -> tuple[float, ...]:
    """All values of a metric, in the order in which they were logged."""
    points = client.get_metric_history(run_id, key)
    return tuple(point.value for point in sorted(points, key=lambda point: (point.timestamp, point.step)))


def _download(client: MlflowClient, run_id: str, folder: Path) -> dict[str, bytes]:
    root = Path(client.download_artifacts(run_id, "", str(folder)))
    return dict(contents(root))


def contents(root: Path) -> Iterator[tuple[str, bytes]]:
    """Files below ``root`` with their relative paths; larger ones than any of ours as empty."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield path.relative_to(root).as_posix(), path.read_bytes() if path.stat().st_size <= LARGEST_FILE else b""


def _model(client: MlflowClient, uri: str) -> tuple[dict[str, bytes], str]:
    """Files of the stored model by their bare name, and the run that stored it."""
    if not uri.startswith("models:/m-"):
        return {}, ""
    model_id = uri.removeprefix("models:/")
    try:
        entry: Any = client.get_logged_model(model_id)
        if str(getattr(entry.status, "value", entry.status)) != "READY":
            return {}, str(entry.source_run_id)
        with TemporaryDirectory() as folder:
            from mlflow.artifacts import download_artifacts

            root = Path(download_artifacts(uri, dst_path=folder, tracking_uri=client.tracking_uri))
            found = {
                path.name: path.read_bytes()
                for path in root.rglob("*")
                if path.is_file() and path.parent in (root, root / "artifacts" / "model", root / "artifacts")
            }
            found |= {p.name: p.read_bytes() for p in root.rglob("weights.npz")}
            for name in ("encoder.json", "model.json"):
                found |= {p.name: p.read_bytes() for p in root.rglob(name) if p.parent.name == "model"}
    except (MlflowException, OSError):
        return {}, ""
    return found, str(entry.source_run_id)


def ledger_facts(files: Mapping[str, bytes], url: str | None) -> tuple[LedgerFacts | None, LedgerFacts | None]:
    """What the ledger says about the run's entry, and about the entry of its noisy metrics."""
    try:
        stated = json.loads(files["privacy/statement.json"])["ledger"]
        entry, head = str(stated["entry"]), str(stated["head"])
    except (KeyError, ValueError, TypeError):
        return None, None
    if url is None:
        return None, None
    with Ledger(url) as ledger:
        facts = entry_facts(ledger, entry, head)
        try:
            metric = json.loads(files[METRICS])["ledger_entry"]
        except (KeyError, ValueError, TypeError):
            return facts, None
        return facts, entry_facts(ledger, str(metric), "")


def entry_facts(ledger: Ledger, entry: str, head: str) -> LedgerFacts:
    """Replay the ledger and read one entry."""
    report = ledger.check()
    with ledger.store.reading() as connection:
        records = [] if connection is None else history(connection, entry)
    hashes: dict[str, str] = {}
    body: dict[str, Any] = {}
    for record in records:
        stored = json.loads(record.body)
        if record.kind == "reserved":
            body = stored
        hashes |= stored.get("hashes", {})
    heads = {record.hash for record in records if record.kind == "reserved"}
    return LedgerFacts(
        shown=ledger.store.shown,
        ok=report.ok,
        problems=tuple(report.problems),
        states=tuple(record.kind for record in records),
        dataset=records[0].dataset if records else "",
        adjacency=str(body.get("adjacency", "")),
        events_sha256=str(body.get("events", "")),
        hashes=hashes,
        head_found=head in heads and head != GENESIS,
        blocks=tuple(body.get("blocks", ())),
    )
