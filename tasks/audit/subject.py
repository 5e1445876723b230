"""A run as an audit sees it, whatever store it came from: plain values and the bytes of its files.

Files of a run and of its model, as bytes, by their exact paths; links and other things that are no
plain file.

What the ledger says about a run: replayed as a whole, then its entry is read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dpcore.errors import DPFlowsError, InputError
from tasks.ledger.chain import history
from tasks.ledger.charge import Others, others
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import GENESIS, Record
from tasks.ledger.schema import DRAWN
from tasks.ledger.verify import Verification
from tasks.record.example import DataInput, data_input
from tasks.record.sources import WEIGHTS_FOLDER
from tasks.record.statement import Statement


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What the ledger says about the entry of a run."""

    shown: str
    ok: bool
    problems: tuple[str, ...]
    states: tuple[str, ...]
    entry: str = ""
    dataset: str = ""
    adjacency: str = ""
    events_sha256: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)
    head_found: bool = False
    blocks: tuple[str, ...] = ()
    seq: int = 0
    limited: bool = False
    # other names of the same files, whose budgets did not pay for the run
    unpaid: tuple[str, ...] = ()
    public_names: tuple[str, ...] = ()
    undrawn: str = ""  # what became of a noisy metric that has no file and was never drawn
    unkept: str = ""  # what is said of the ledger's head file where it is gone
    # data sets with a limit that were charged for the files of this entry
    private_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A registered version: ``location`` is the folder that MLflow serves, ``source`` the model
    that it names.
    """

    name: str
    number: str
    source: str
    location: str


# Tags of a registered version that a release writes.
VERSION_TAGS = frozenset(
    {
        *("dpflows.run_id", "dpflows.serial", "dpflows.bundle", "dpflows.released_at"),
        *("epsilon", "delta", "adjacency", "approved_by", "approved_at"),
    }
)
VERSION_METRIC = "dpflows.metric."
# Tags of a logged model: ours, and those that MLflow keeps for itself.
MODEL_TAGS = frozenset({"data", "mlflow.modelVersions"})


def own_data(name: str, encoder: bytes | None) -> DataInput | None:
    """The data set that a training on ``name`` names among its inputs, from its stored encoder;
    None where that cannot be read.
    """
    try:
        return None if encoder is None else data_input(name, encoder)
    except (ValueError, KeyError, TypeError, AttributeError, DPFlowsError):
        return None


def attached(
    datasets: Iterable[DataInput],
    own_data: DataInput | None,
    model: Iterable[tuple[str, str]],
    versions: Iterable[tuple[str, str, str]],
    metrics: Iterable[str],
) -> tuple[str, ...]:
    """Words for what no training or release attaches.

    Data sets of a run other than ``own_data``, (kind, name) of a logged model's parameters, tags
    and metrics, (name, number, tag) of versions; ``metrics`` of the run.
    """
    own = frozenset(metrics)
    known = {"param": frozenset[str](), "tag": MODEL_TAGS, "metric": own}
    found = [f"dataset {one.name}" for one in datasets if one != own_data]
    found += [f"{kind} {name} of the model" for kind, name in model if name not in known[kind]]
    found += [
        f"tag {tag} of version {number} of {name}"
        for name, number, tag in versions
        if tag not in VERSION_TAGS and not tag.startswith(VERSION_METRIC)
    ]
    return tuple(sorted(set(found)))


@dataclass(frozen=True, slots=True)
class Subject:
    """A run record. ``params`` and ``metrics`` keep every value that was ever given under a name.

    ``files`` are contents by their path in the run, ``folder`` all of the stored model by their
    path there, ``model`` those that it is scored with by their bare name; all are empty for a
    record that comes without them. ``odd`` are links and the like in either. ``versions`` are the
    registered versions of the run, ``attached`` words for what else MLflow holds of it, its model
    and its versions, and no training writes. ``ledger`` is None where there is no ledger to ask.
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
    attached: tuple[str, ...] = ()
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
    """Read a run record in the neutral layout: run_id, status, end_time, params, metrics,
    artifacts, tags.

    ``param_events`` lists parameters that were given more than once, with their attempts. Raises
    ``InputError``.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in FIELDS if name not in stored]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"Expected a run record as JSON at {path}, got {error}; correct the file."
        ) from None
    if missing:
        raise InputError(
            f"Expected a run record with {missing[0]!r} at {path}, which lacks it; correct the "
            "file."
        )
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


# A larger file than any of ours is listed, not read; weights of a network may be large.
LARGEST_FILE = 64 << 20
LARGEST_MODEL = 1 << 30
EXAMPLE = "input_example.json"


def contents(root: Path, largest: int = LARGEST_FILE) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Files below ``root`` by their relative paths, larger ones as empty, and the paths of what is
    no plain file.

    Links are named, not followed: what is behind one can be exchanged without a trace here.
    """
    files: dict[str, bytes] = {}
    odd: list[str] = []
    for folder, inner, names in os.walk(root):
        for name in (*inner, *names):
            path = Path(folder) / name
            where = path.relative_to(root).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                odd.append(where)
            elif path.is_file():
                files[where] = path.read_bytes() if path.stat().st_size <= largest else b""
    return dict(sorted(files.items())), tuple(sorted(odd))


def model_contents(folder: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that a stored model is scored with, by their bare names: those of exactly one place
    each.
    """
    inner = f"{WEIGHTS_FOLDER}/"
    found = {
        path.removeprefix(inner): data for path, data in folder.items() if path.startswith(inner)
    }
    return found | ({EXAMPLE: folder[EXAMPLE]} if EXAMPLE in folder else {})


def local(uri: str) -> Path | None:
    """The folder that a URI of artifacts names, None where it is not on this disk."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    folder = Path(unquote(parts.path))
    return folder if folder.is_dir() else None


def ledger_facts(
    files: Mapping[str, bytes], url: str | None
) -> tuple[LedgerFacts | None, LedgerFacts | None]:
    """What the ledger says about the run's entry, and about the entry of its noisy metrics."""
    try:
        stated = json.loads(files[STATEMENT])["ledger"]
        entry, head = str(stated["entry"]), str(stated["head"])
    except (KeyError, ValueError, TypeError):
        return None, None
    if url is None:
        return None, None
    with LedgerReader(url) as ledger:
        report = ledger.verification()
        facts = entry_facts(ledger, report, entry, head)
        if METRICS not in files:
            undrawn = ledger.undrawn_metric(
                entry, facts.hashes.get("config", "-"), facts.hashes.get("weights", "-")
            )
            return replace(facts, undrawn=undrawn), None
        try:
            metric = json.loads(files[METRICS])["ledger_entry"]
        except (KeyError, ValueError, TypeError):
            return facts, None
        return facts, entry_facts(ledger, report, str(metric), "")


def entry_facts(ledger: LedgerReader, report: Verification, entry: str, head: str) -> LedgerFacts:
    """One entry of a ledger whose replay gave ``report``."""
    records: Sequence[Record] = ()
    also = Others()
    with ledger.store.reading() as connection:
        if connection is not None:
            records = history(connection, entry)
            also = others(connection, records)
    hashes, body = _told(records)
    dataset, seq = (records[0].dataset, records[0].seq) if records else ("", 0)
    opened = ledger.dataset(dataset) if records else None
    heads = {record.hash for record in records if record.kind == "reserved"}
    return LedgerFacts(
        shown=ledger.store.shown,
        ok=report.ok,
        problems=tuple(report.problems),
        unkept=report.unkept,
        states=tuple(record.kind for record in records if record.kind != DRAWN),
        entry=entry,
        dataset=dataset,
        adjacency=str(body.get("adjacency", "")),
        events_sha256=str(body.get("events", "")),
        hashes=hashes,
        head_found=head in heads and head != GENESIS,
        blocks=tuple(body.get("blocks", ())),
        seq=seq,
        unpaid=also.unpaid,
        public_names=also.public,
        limited=opened is not None and opened.limited,
        private_as=ledger.private_as(entry),
    )


def _told(records: Iterable[Record]) -> tuple[dict[str, str], dict[str, Any]]:
    """All hashes that the records of an entry hold, and what its reserving record says."""
    hashes: dict[str, str] = {}
    body: dict[str, Any] = {}
    for record in records:
        stored = json.loads(record.body)
        if record.kind == "reserved":
            body = stored
        hashes |= stored.get("hashes", {})
    return hashes, body


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()
