"""A run as an audit sees it, whatever store it came from: plain values and the bytes of its files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpcore.errors import InputError
from tasks.statement import Statement


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What the ledger says about the entry of a run."""

    shown: str
    ok: bool
    problems: tuple[str, ...]
    states: tuple[str, ...]
    dataset: str = ""
    adjacency: str = ""
    events_sha256: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)
    head_found: bool = False
    blocks: tuple[str, ...] = ()
    seq: int = 0
    limited: bool = False
    unpaid: tuple[str, ...] = ()  # other names of the same files, whose budgets did not pay for the run
    public_names: tuple[str, ...] = ()
    private_as: tuple[str, ...] = ()  # data sets with a limit that were charged for the files of this entry


@dataclass(frozen=True, slots=True)
class Version:
    """A registered version: ``location`` is the folder that MLflow serves, ``source`` the model that it names."""

    name: str
    number: str
    source: str
    location: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A run record. ``params`` and ``metrics`` keep every value that was ever given under a name.

    ``files`` are contents by their path in the run, ``folder`` all of the stored model by their path there, ``model``
    those that it is scored with by their bare name; all are empty for a record that comes without them. ``odd`` are
    links and the like in either. ``versions`` are the registered versions of the run. ``ledger`` is None where there is
    no ledger to ask.
    """

    run_id: str
    status: str
    ended: bool
    params: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    model: Mapping[str, bytes] = field(default_factory=dict)
    model_run: str = ""
    folder: Mapping[str, bytes] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    place: str = ""
    versions: tuple[Version, ...] = ()
    ledger: LedgerFacts | None = None
    metric_ledger: LedgerFacts | None = None
    adjacency: str = ""
    own: bool = True

    @property
    def statement(self) -> Statement | None:
        """The privacy statement, None where there is none or it is not one."""
        text = self.files.get(STATEMENT)
        if text is None:
            return None
        try:
            return Statement.model_validate_json(text)
        except ValueError:
            return None

    def param(self, name: str) -> str | None:
        """The value of a parameter, None where there is none."""
        values = self.params.get(name, ())
        return values[-1] if values else None

    def setting(self, *names: str) -> str | None:
        """The first of ``names`` among tags and parameters, None where none is there."""
        for name in names:
            found = self.tags.get(name, self.param(name))
            if found is not None:
                return found
        return None


STATEMENT = "privacy/statement.json"
MECHANISMS = "privacy/mechanisms.json"
CONFIG = "config.json"
TRACE = "privacy/trace.json"
METRICS = "privacy/metrics.json"
CURVE = "privacy/curve.json"
READABLE = ("privacy/statement.md", "privacy/statement.html")
FIELDS = ("run_id", "status", "params")


def from_record(path: Path) -> Subject:
    """Read a run record in the neutral layout: run_id, status, end_time, params, metrics, artifacts, tags.

    ``param_events`` lists parameters that were given more than once, with their attempts. Raises ``InputError``.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in FIELDS if name not in stored]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"Expected a run record as JSON at {path}, got {error}; correct the file.") from None
    if missing:
        raise InputError(f"Expected a run record with {missing[0]!r} at {path}, which lacks it; correct the file.")
    params = {key: [str(value)] for key, value in stored["params"].items()}
    for event in stored.get("param_events", []):
        params.setdefault(event["key"], []).append(str(event["value"]))
    metrics = {key: _numbers(value) for key, value in stored.get("metrics", {}).items()}
    return Subject(
        run_id=str(stored["run_id"]),
        status=str(stored["status"]),
        ended=stored.get("end_time") is not None,
        params={key: tuple(dict.fromkeys(values)) for key, values in params.items()},
        metrics=metrics,
        tags={key: str(value) for key, value in stored.get("tags", {}).items()},
        artifacts=tuple(stored.get("artifacts", ())),
        adjacency=str(stored.get("neighbouring", stored.get("adjacency", ""))),
        own=False,
    )


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(float(item) for item in (value if isinstance(value, list) else [value]))


def repeated(values: tuple[Any, ...]) -> bool:
    """Whether a name that must have one value has several."""
    return len(Counter(map(str, values))) > 1
