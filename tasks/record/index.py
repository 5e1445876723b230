"""The list of runs of a home, in a file of our own: read in a moment, where MLflow's import alone
takes seconds.

One JSON object a line, only ever added to: a finished training, or a release of one. The file is a
convenience of the operator. It holds internal numbers, so it is for the owner of the home alone,
and nothing believes it: audit and release read MLflow, the ledger and signed bundles.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from dpcore.errors import InputError, unknown_name
from tasks.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient, entities

    from tasks.options.base import Run
    from tasks.record.statement import Statement

FILE = "runs.jsonl"
STORE = "mlflow.db"  # of the home, where MLflow's store is there
SCHEMA_VERSION = 1
# Values that are longer as text are no parameter to read: the weights of a warm start, above all.
LONGEST = 300
SHORT = 8  # letters of a run's id in tables


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def add(home: Home, what: str, facts: Mapping[str, Any]) -> None:
    """Append one line, for the owner alone: what was there stays, whoever writes at the same
    time.
    """
    line = json.dumps({"schema_version": SCHEMA_VERSION, "what": what, **facts}, default=str) + "\n"
    handle = os.open(home.root / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def summary(
    run: Run,
    statement: Statement,
    run_id: str,
    flow_run: str,
    uri: str | None,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The summary of a trained run as one JSON-able object; numbers under ``internal`` are exact
    ones on records.

    ``uri`` is that of the model, None while it is not stored yet.
    """
    job, planned, promise = run.job, run.planned, statement.guarantee
    return {
        "schema_version": 1,
        "data": job.schema.name,
        "public_n": job.problem.n,
        "n_kind": statement.data.n_kind,
        "dimension": job.problem.dimension,
        "algorithm": planned.name,
        "parameters": planned.parameters,
        "reason": planned.reason,
        "unit": promise.unit,
        "adjacency": str(promise.adjacency),
        "epsilon_asked": promise.target_epsilon,
        "epsilon_spent": promise.epsilon,
        "delta": promise.delta,
        "accountant": promise.accountant,
        "conversion": promise.conversion,
        "best_order": statement.renyi.best_order,
        "renyi_epsilon": statement.renyi.epsilon,
        "internal": under("internal.", run.metrics),
        "released": under("released.", run.metrics),
        "releasable": statement.releasable,
        "reasons": statement.reasons,
        "ledger_entry": statement.ledger.entry,
        "experiment": job.config.tracking.experiment,
        "run_id": run_id,
        "flow_run_id": flow_run,
        "model": uri,
        "seconds": seconds,
        **({"conventions": meant} if (meant := job.kind.conventions(job)) else {}),
    }


def under(prefix: str, metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics of one prefix without it; None for a number that does not exist, which JSON
    cannot hold.
    """
    found = {
        key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)
    }
    return {key: value if isfinite(value) else None for key, value in found.items()}


def note_run(
    home: Home, summary: Mapping[str, Any], period: str | None = None, blocks: Sequence[str] = ()
) -> None:
    """Add a finished training, from its summary. A training that was paid for does not fail for its
    line.
    """
    short = {
        key: value for key, value in summary["parameters"].items() if len(str(value)) <= LONGEST
    }
    facts = {**summary, "parameters": short, "at": now(), "period": period, "blocks": list(blocks)}
    try:
        add(home, "run", {key: value for key, value in facts.items() if key != "schema_version"})
    except OSError:
        return


def note_release(home: Home, answer: Mapping[str, Any], approved_by: str) -> None:
    """Add a release, from the answer of the gate: what was signed does not fail for its line."""
    kept = ("run_id", "name", "version", "epsilon", "delta", "bundle")
    line = {key: answer[key] for key in kept} | {"approved_by": approved_by, "at": now()}
    try:
        add(home, "release", line)
    except OSError:
        return


def is_lost(home: Home) -> bool:
    """Whether the file holds no training though MLflow has a database here: it was removed, or a
    release made it anew.
    """
    known = any(line["what"] == "run" for line in lines(home))
    return not known and (home.root / STORE).is_file()


def lines(home: Home) -> Iterator[dict[str, Any]]:
    """The lines of the file, oldest first; a line that a killed process left half written is passed
    over.
    """
    try:
        text = (home.root / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if (
            isinstance(found, dict)
            and found.get("schema_version") == SCHEMA_VERSION
            and "run_id" in found
        ):
            yield found


def runs(home: Home, data: str | None = None) -> list[dict[str, Any]]:
    """Trainings of this home, newest first, each with its ``releases``, oldest first; ``data``: of
    one data set.
    """
    found: dict[str, dict[str, Any]] = {}
    releases: dict[str, list[dict[str, Any]]] = {}
    for line in lines(home):
        if line["what"] == "run":
            found[line["run_id"]] = line
        elif line["what"] == "release":
            releases.setdefault(line["run_id"], []).append(line)
    rows = [run | {"releases": releases.get(name, [])} for name, run in found.items()]
    kept = [row for row in rows if data in (None, row["data"])]
    return sorted(kept, key=lambda row: str(row["at"]), reverse=True)


def run_named(home: Home, name: str) -> dict[str, Any]:
    """The run whose id is or begins with ``name``. Raises ``InputError`` where there is none, or
    several.
    """
    known = runs(home)
    found = [row for row in known if row["run_id"].startswith(name)] if name else []
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(row["run_id"][: SHORT + 4] for row in found[:3])
        raise InputError(
            f"Expected one run, got {name!r}, with which {len(found)} begin: {shown}; write more "
            "of it."
        )
    if not known:
        raise InputError(
            f"Expected a run of {home.root}, got {name!r}, but it holds none; `dpflows train` "
            "makes one, `dpflows runs --rebuild` lists those that MLflow knows."
        )
    raise unknown_name("run", name, [row["run_id"][:SHORT] for row in known])


def released_as(run: Mapping[str, Any]) -> str:
    """Names of a run's releases, for people: ``visits@3``."""
    return ", ".join(dict.fromkeys(f"{one['name']}@{one['version']}" for one in run["releases"]))


def main_metric(run: Mapping[str, Any]) -> tuple[str, float, str] | None:
    """Name, value and kind of the number that a run is judged by first: a released one wins over an
    internal one.
    """
    for kind in ("released", "internal"):
        numbers = {
            k: v for k, v in run.get(kind, {}).items() if isinstance(v, int | float) and isfinite(v)
        }
        for name in MAIN:
            if name in numbers:
                return name, float(numbers[name]), kind
    return None


# What a run is judged by, the first one that it has.
MAIN = (
    "accuracy",
    "balanced_accuracy",
    "roc_auc",
    "map",
    "root_mean_squared_error",
    "mean_squared_error",
)


def rebuild(client: MlflowClient, home: Home) -> int:
    """Add the finished trainings and releases that MLflow knows and the file lacks; return how many
    runs were added.
    """
    from tasks.record import ENTRY, OURS

    known = {row["run_id"]: row for row in runs(home)}
    ids = [
        one.experiment_id for one in client.search_experiments(filter_string=f"tags.{OURS} = '1'")
    ]
    wanted = f"attributes.status = 'FINISHED' and tags.`{ENTRY}` != ''"
    added = 0
    token = None
    while ids:
        page = client.search_runs(
            ids, filter_string=wanted, order_by=["attributes.start_time"], page_token=token
        )
        for run in page:
            if run.info.run_id not in known:
                add(home, "run", facts_of(run))
                added += 1
        token = page.token
        if not token:
            break
    for version in _versions(client):
        if version["run_id"] not in known or version["name"] not in released_as(
            known[version["run_id"]]
        ):
            add(home, "release", version)
    return added


def _versions(client: MlflowClient) -> Iterator[dict[str, Any]]:
    """Released versions of registered models, as lines of the file."""
    token = None
    while True:
        page = client.search_model_versions(page_token=token)
        for one in page:
            if "dpflows.bundle" in one.tags and "dpflows.run_id" in one.tags:
                tags = one.tags
                yield {
                    "run_id": tags["dpflows.run_id"],
                    "name": one.name,
                    "version": str(one.version),
                    "epsilon": tags.get("epsilon"),
                    "delta": tags.get("delta"),
                    "bundle": tags["dpflows.bundle"],
                    "approved_by": tags.get("approved_by", ""),
                    "at": tags.get("approved_at", ""),
                }
        token = page.token
        if not token:
            return


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _under(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite metrics whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix) and isfinite(value)
    }


def facts_of(run: entities.Run) -> dict[str, Any]:
    """A training as a line of the file, from what MLflow holds of it."""
    params, tags, metrics = run.data.params, run.data.tags, run.data.metrics
    own = {k.removeprefix("algorithm."): v for k, v in params.items() if k.startswith("algorithm.")}
    reasons = tags.get("dpflows.reasons", "none")
    started = datetime.fromtimestamp((run.info.end_time or run.info.start_time) / 1000, UTC)
    return {
        "run_id": run.info.run_id,
        "at": started.isoformat(timespec="seconds"),
        "data": tags.get("dpflows.data", params.get("data.name")),
        "period": tags.get("dpflows.period"),
        "blocks": [],
        "algorithm": tags.get("dpflows.algorithm", own.pop("name", "")),
        "parameters": {
            k: v for k, v in own.items() if k not in ("name", "preset") and len(v) <= LONGEST
        },
        "unit": params.get("privacy.unit"),
        "adjacency": params.get("privacy.adjacency"),
        "epsilon_asked": _number(params.get("privacy.epsilon")),
        "epsilon_spent": metrics.get("spent.epsilon", _number(params.get("privacy.epsilon"))),
        "delta": _number(params.get("privacy.delta")),
        "accountant": params.get("privacy.accountant"),
        "public_n": _number(params.get("data.n")),
        "dimension": _number(params.get("data.dimension")),
        "internal": _under("internal.", metrics),
        "released": _under("released.", metrics),
        "releasable": tags.get("dpflows.releasable") == "yes",
        "reasons": [] if reasons == "none" else reasons.split("; "),
        "ledger_entry": tags.get("dpflows.ledger_entry", ""),
        "flow_run_id": tags.get("dpflows.flow_run", ""),
        "model": tags.get("dpflows.model"),
    }
