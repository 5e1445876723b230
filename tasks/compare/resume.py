"""Finished cells on disk, one JSON line each, so that a comparison that was killed goes on where it
was.

What public facts refuse before a comparison starts: metrics that no setting can have, more folds
than rows.

A comparison before it runs: its cells, which of them are finished, and what private rows would
cost.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from dpcore.errors import DPFlowsError, InputError, unknown_name
from dpcore.problem import Adjacency
from tasks.compare.baselines import COUNTS, MINIMISATION_ERROR, asked
from tasks.compare.cell import SUPPORT, CellRecord
from tasks.compare.config import CompareConfig
from tasks.compare.folds import Rows, content_digest, fingerprint, kept_in, stat_digest
from tasks.compare.grid import Cell, LeftOut, Plans, Setting, cells_of, expand, warnings_of
from tasks.compare.grouping import SECONDS
from tasks.compare.ratios import check_interpreter, peer_settings
from tasks.home import Home, make_private
from tasks.kinds import quality
from tasks.kinds.base import Job
from tasks.kinds.charge import require_files, require_public
from tasks.ledger import Ledger, ledger_url
from tasks.options.engine import require_meant
from tasks.record.sources import code_version
from tasks.record.tracking import safe_name


class Journal:
    """An append-only file of records. A line is on disk (fsync) when ``append`` returns; a torn
    last line is no line.

    ``done`` holds finished cells by their hash, ``begun`` those whose noise may have been drawn.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """Return (finished records by cell, hashes of cells that had begun)."""
        done: dict[str, dict[str, Any]] = {}
        begun: set[str] = set()
        for line in self._lines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "begun" in entry:
                begun.add(entry["begun"])
            elif entry.get("status") == "done":
                done[entry["cell"]] = entry
        return done, begun

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DPFlowsError(
                f"Expected a readable file of finished cells at {self.path}, got {error}."
            ) from error

    def begin(self, cell: str) -> None:
        """Note that the noise of a charged cell is about to be drawn."""
        self.append({"begun": cell})

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line; it starts on a line of its own even after one that was torn."""
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                os.write(handle, b"\n" + text if torn else text)
                os.fsync(handle)
            finally:
                os.close(handle)


NOTED = ("step_size",)  # what an algorithm says along its iterations and has a figure
OF_TRAINING = ("objective", MINIMISATION_ERROR, *COUNTS)


def metric_names(setting: Setting, config: CompareConfig) -> set[str]:
    """The metrics that a cell of ``setting`` may have; ``ndcg`` and ``coverage`` stand for all that
    begin so.
    """
    job = setting.job
    found = {*job.kind.metric_names(job), SECONDS, *(NOTED if config.curve_every else ())}
    if not job.kind.by_objective:
        return found
    found |= set(OF_TRAINING)
    counts: Sequence[int] = quality.COUNTS if job.schema.relevant else ()
    if config.coverage is not None and job.schema.name in config.coverage.data:
        counts = (*counts, *config.coverage.counts)
    return found | (
        {"coverage", *(f"coverage_at_{k}" for k in counts), *SUPPORT} if counts else set()
    )


def check_metrics(config: CompareConfig, settings: Sequence[Setting]) -> None:
    """Raise ``InputError`` for a name in ``metrics`` or ``printed`` that none of ``settings`` can
    have, with the near misses.

    A printed line of data that this comparison leaves out is not asked about.
    """
    asked: list[tuple[str, str | None]] = [(name, None) for name in config.metrics or ()]
    asked += [(line.metric, line.data) for line in config.printed]
    for name, data in asked:
        check_metric(name, config, [one for one in settings if data in (None, one.data)])


def check_metric(name: str, config: CompareConfig, settings: Sequence[Setting]) -> None:
    """Raise ``InputError`` where there are ``settings`` and none of them can have a metric
    ``name``.
    """
    known = set().union(*(metric_names(setting, config) for setting in settings))
    if settings and name not in known:
        kinds = ", ".join(sorted({setting.job.schema.label.kind for setting in settings}))
        raise unknown_name(f"metric (for labels of kind {kinds})", name, known)


def check_folds(config: CompareConfig, settings: Iterable[Setting]) -> None:
    """Raise ``InputError`` for more folds than a data set has rows (sessions), by its public
    count.
    """
    folds = config.protocol.folds
    for setting in settings:
        n = setting.job.problem.n
        if folds > n:
            where = "--folds" if config.kind == "crossval" else "protocol.folds"
            raise InputError(
                f"Expected at most n={n} folds, one for each "
                f"{setting.job.schema.unit.split('_')[0]} of {setting.job.schema.name!r}, got "
                f"{where}={folds}; usual are 5 or 10."
            )


@dataclass(frozen=True)
class Comparison:
    """The whole grid with what is known before a record is read."""

    config: CompareConfig
    settings: list[Setting]
    left_out: list[LeftOut]
    warnings: list[str]
    cells: list[Cell]
    finished: dict[str, CellRecord]
    begun: int
    journals: dict[str, Journal]
    rows: Rows
    plans: Plans = field(default_factory=Plans)
    name: str = field(default_factory=lambda: uuid4().hex)

    @property
    def to_run(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.key not in self.finished]

    @property
    def private_jobs(self) -> dict[str, Job]:
        """One job for each data set whose rows are private."""
        return {setting.data: setting.job for setting in self.settings if not setting.job.public}

    def charged(self, data: str) -> list[Cell]:
        """The cells of a private data set that are still to be run."""
        return [cell for cell in self.to_run if cell.setting.data == data]


def all_settings(config: CompareConfig) -> tuple[list[Setting], list[LeftOut]]:
    """Our settings, checked, and those of other libraries; and what of both is left out."""
    settings, left_out = expand(config)
    check_metrics(config, settings)
    check_folds(config, settings)
    check_one_reading(settings)
    check_engine(config, settings)
    elsewhere, missing = peer_settings(config)
    return [*settings, *elsewhere], [*left_out, *missing]


def make_comparison(config: CompareConfig, home: Home, fresh: bool = False) -> Comparison:
    """Expand the grid and look up finished cells (none with ``fresh``); no record is read, nothing
    is charged.

    Raises ``InputError`` for everything that does not fit together.
    """
    check_runner(config)
    check_interpreter(config)
    settings, left_out = all_settings(config)
    require_known(distinct_jobs(settings), home)
    private = sorted({setting.data for setting in settings if not setting.job.public})
    check_private(config, private)
    folder = home.root / "cells"
    secret = private if config.protocol.folds > 1 else []
    seeds = {name: secret_seed(folder, name) for name in secret}
    facts = {s.data: data_facts(s.job, config, seeds.get(s.data)) for s in settings}
    cells = [cell for one in settings for cell in cells_of(one, config, facts[one.data])]
    journals = {name: Journal(folder / f"{file_name(name)}.jsonl") for name in facts}
    finished, interrupted = ({}, 0) if fresh else looked_up(cells, journals.values())
    return Comparison(
        config,
        settings,
        left_out,
        [*warnings_of(settings, config.protocol.folds), *objective_words(settings)],
        cells,
        finished,
        interrupted,
        journals,
        Rows(config.protocol, config.seed, seeds, tuple(private)),
    )


def looked_up(
    cells: Sequence[Cell], journals: Iterable[Journal]
) -> tuple[dict[str, dict[str, Any]], int]:
    """Records of the ``cells`` that are finished, by key; how many others were begun."""
    finished, begun = read_all(journals)
    own = {cell.key for cell in cells}
    mine = {key: record for key, record in finished.items() if key in own}
    return mine, len((begun & own) - finished.keys())


def check_one_reading(settings: Iterable[Setting]) -> None:
    """Raise ``InputError`` for two readings of one data set: its cells are charged, and known
    again, together.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        read = setting.config.data.model_dump(include={"path", "test_path", "blocks"})
        if found.setdefault(setting.data, read) != read:
            other = next(key for key, value in read.items() if found[setting.data][key] != value)
            raise InputError(
                f"Expected one data.{other} of {setting.data!r}, whose cells are charged and kept "
                f"together, got {found[setting.data][other]!r} and {read[other]!r}; compare them "
                "one after the other."
            )


def distinct_jobs(settings: Iterable[Setting]) -> Iterable[Job]:
    """Each job once, however many settings it serves."""
    return {id(setting.job): setting.job for setting in settings}.values()


def require_known(jobs: Iterable[Job], home: Home) -> None:
    """Raise ``InputError`` unless the files are there and what is called public is so by the ledger
    too.
    """
    for job in jobs:
        require_files(job)
        with Ledger(ledger_url(job.config, job.schema, home)) as ledger:
            require_public(job, ledger)


def read_all(journals: Iterable[Journal]) -> tuple[dict[str, CellRecord], set[str]]:
    """The records of finished cells by key, and the keys of those that were begun."""
    finished: dict[str, CellRecord] = {}
    begun: set[str] = set()
    for journal in journals:
        done, started = journal.read()
        finished |= done
        begun |= started
    return finished, begun


def objective_words(settings: Sequence[Setting]) -> list[str]:
    """A warning where the metric ``objective`` is not one function for all algorithms."""
    functions: dict[tuple[str, str, float, float | None], set[tuple[float, str]]] = {}
    for setting in settings:
        problem = setting.job.problem
        key = (setting.data, repr(problem.loss), problem.l1, setting.config.objective.l2)
        if setting.private and setting.job.kind.by_objective:
            functions.setdefault(key, set()).add((problem.l2, setting.job.encoder.to_json()))
    if all(len(found) == 1 for found in functions.values()):
        return []
    return [
        "algorithms differ in their own ridge or encoding, so the metric objective is not one "
        "function for all; set objective.l2 and preprocess to compare it."
    ]


def check_engine(config: CompareConfig, settings: Iterable[Setting]) -> None:
    """Raise ``InputError`` for what needs single rows where folds are sums over shards."""
    engine = config.engine
    if engine is None:
        return
    if config.runner != "threads":
        if engine.kind in ("shards", "dask"):
            raise InputError(
                f"Expected runner: threads for engine.kind={engine.kind}, got {config.runner!r}: "
                "cells that run elsewhere read their rows into their own memory; leave one out."
            )
        require_meant(engine, connects=config.runner == "dask")
        return
    jobs = {setting.data: setting.job for setting in settings if kept_in(setting.job)}
    for name, job in jobs.items():
        if job.schema.label.kind != "binary":
            lacking = f"for {name!r}, whose label is of kind {job.schema.label.kind}"
        elif config.peers is not None:
            lacking = "beside peers, which get single rows"
        elif asked(config.metrics):
            lacking = f"for the metric {MINIMISATION_ERROR}, which needs second derivatives"
        else:
            continue
        raise InputError(
            f"Expected rows in memory {lacking}, got engine.kind={engine.kind}; use "
            "engine.kind=memory."
        )


def check_runner(config: CompareConfig) -> None:
    """Raise ``InputError`` where the workers of the runner are not installed."""
    if config.runner == "dask" and find_spec("prefect_dask") is None:
        raise InputError(
            "Expected the package prefect-dask for runner: dask, which is not installed; pip "
            "install 'dpflows[dask]', or use runner: processes."
        )


def check_private(config: CompareConfig, private: Sequence[str]) -> None:
    """Raise ``InputError`` for what private rows do not allow."""
    if not private:
        return
    if config.runner != "threads":
        raise InputError(
            f"Expected runner: threads for private data {private[0]!r}, got {config.runner!r}: "
            "private rows and their reservation stay in the process that reads them; leave runner "
            "out."
        )
    if config.reproducible:
        raise InputError(
            f"Expected no fixed noise on private data {private[0]!r}, got reproducible=true (or a "
            "fixed noise seed); leave it out."
        )
    if config.protocol.parts:
        raise InputError(
            f"Expected folds by query for private data {private[0]!r}, got protocol.parts=true: "
            "how many sessions a partition file holds is not declared; set protocol.parts=false."
        )


def data_facts(job: Job, config: CompareConfig, secret: bytes | None) -> str:
    """A hash of what stands behind every record of a data set: its files, its secret folds and the
    code.
    """
    digest = content_digest if job.public else stat_digest
    folds = (
        sha256(secret).hexdigest()
        if secret is not None and job.problem.adjacency is Adjacency.ADD_REMOVE
        else ""
    )
    return sha256(
        "\n".join([fingerprint(job, config.protocol, digest), folds, code_version()]).encode()
    ).hexdigest()


def file_name(name: str) -> str:
    """A file name for a data set, different for different names."""
    return f"{safe_name(name)}-{sha256(name.encode()).hexdigest()[:8]}"


def secret_seed(folder: Path, name: str) -> bytes:
    """The secret seed of the folds of a private data set: made once, for its owner's eyes alone.

    It is kept so that cells of a later run stand on the same folds as finished ones.
    """
    make_private(folder)
    path = folder / f"{file_name(name)}.seed"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = path.read_bytes()
        if len(found) != 32:
            raise InputError(
                f"Expected 32 bytes in {path}, got {len(found)}; remove it: folds are then drawn "
                "anew."
            ) from None
        return found
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    return path.read_bytes()
