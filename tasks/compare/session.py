"""A comparison before it runs: its cells, which of them are finished, and what private rows would cost."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from dpcore.errors import InputError
from dpcore.problem import Adjacency
from tasks.compare.cell import Record
from tasks.compare.charge import Charge, charge_for
from tasks.compare.closure import code_version
from tasks.compare.config import CompareConfig
from tasks.compare.feasible import check_folds, check_metrics
from tasks.compare.grid import Cell, LeftOut, Setting, cells_of, expand, warnings_of
from tasks.compare.journal import Journal
from tasks.compare.peers import check_interpreter, peer_settings
from tasks.compare.plans import Plans
from tasks.compare.rows import Rows, content_digest, fingerprint, stat_digest
from tasks.home import Home, make_private
from tasks.ledger import Ledger
from tasks.tracking import safe_name
from tasks.training import Job, ledger_url, require_files, require_public


@dataclass(frozen=True)
class Comparison:
    """The whole grid with what is known before a record is read."""

    config: CompareConfig
    settings: list[Setting]
    left_out: list[LeftOut]
    warnings: list[str]
    cells: list[Cell]
    finished: dict[str, Record]
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


def make_comparison(config: CompareConfig, home: Home, fresh: bool = False) -> Comparison:
    """Expand the grid and look up finished cells (none with ``fresh``); no record is read, nothing is charged.

    Raises ``InputError`` for everything that does not fit together.
    """
    check_runner(config)
    check_interpreter(config)
    settings, left_out = expand(config)
    check_metrics(config, settings)
    check_folds(config, settings)
    elsewhere, missing = peer_settings(config)
    settings, left_out = [*settings, *elsewhere], [*left_out, *missing]
    for job in {id(setting.job): setting.job for setting in settings}.values():
        require_files(job)
        with Ledger(ledger_url(job.config, job.schema, home)) as ledger:
            require_public(job, ledger)
    private = sorted({setting.data for setting in settings if not setting.job.public})
    check_private(config, private)
    folder = home.root / "cells"
    seeds = {name: secret_seed(folder, name) for name in private if config.protocol.folds > 1}
    facts = {s.data: data_facts(s.job, config, seeds.get(s.data)) for s in settings}
    cells = [cell for setting in settings for cell in cells_of(setting, config, facts[setting.data])]
    names = list(facts)
    journals = {name: Journal(folder / f"{file_name(name)}.jsonl") for name in names}
    finished: dict[str, Record] = {}
    begun: set[str] = set()
    for journal in journals.values():
        done, started = ({}, set()) if fresh else journal.read()
        finished |= done
        begun |= started
    own = {cell.key for cell in cells}
    return Comparison(
        config,
        settings,
        left_out,
        [*warnings_of(settings, config.protocol.folds), *objective_words(settings)],
        cells,
        {key: record for key, record in finished.items() if key in own},
        len((begun & own) - set(finished)),
        journals,
        Rows(config.protocol, config.seed, seeds, tuple(private)),
    )


def objective_words(settings: Sequence[Setting]) -> list[str]:
    """A warning where the metric ``objective`` is not one function for all algorithms."""
    functions: dict[tuple[str, str, float, float | None], set[tuple[float, str]]] = {}
    for setting in settings:
        problem = setting.job.problem
        key = (setting.data, repr(problem.loss), problem.l1, setting.config.objective.l2)
        if setting.private and setting.job.ranker is None:
            functions.setdefault(key, set()).add((problem.l2, setting.job.encoder.to_json()))
    if all(len(found) == 1 for found in functions.values()):
        return []
    return [
        "algorithms differ in their own ridge or encoding, so the metric objective is not one function for all; set "
        "objective.l2 and preprocess to compare it."
    ]


def check_runner(config: CompareConfig) -> None:
    """Raise ``InputError`` where the workers of the runner are not installed."""
    if config.runner == "dask" and find_spec("prefect_dask") is None:
        raise InputError(
            "Expected the package prefect-dask for runner: dask, which is not installed; pip install 'dpflows[dask]', "
            "or use runner: processes."
        )


def check_private(config: CompareConfig, private: Sequence[str]) -> None:
    """Raise ``InputError`` for what private rows do not allow."""
    if not private:
        return
    if config.runner != "threads":
        raise InputError(
            f"Expected runner: threads for private data {private[0]!r}, got {config.runner!r}: private rows and their "
            "reservation stay in the process that reads them; leave runner out."
        )
    if config.reproducible:
        raise InputError(
            f"Expected no fixed noise on private data {private[0]!r}, got reproducible=true (or a fixed noise seed); "
            "leave it out."
        )
    if config.protocol.parts:
        raise InputError(
            f"Expected folds by query for private data {private[0]!r}, got protocol.parts=true: how many sessions a "
            "partition file holds is not declared; set protocol.parts=false."
        )


def data_facts(job: Job, config: CompareConfig, secret: bytes | None) -> str:
    """A hash of what stands behind every record of a data set: its files, its secret folds and the code."""
    digest = content_digest if job.public else stat_digest
    folds = sha256(secret).hexdigest() if secret is not None and job.problem.adjacency is Adjacency.ADD_REMOVE else ""
    return sha256("\n".join([fingerprint(job, config.protocol, digest), folds, code_version()]).encode()).hexdigest()


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
                f"Expected 32 bytes in {path}, got {len(found)}; remove it: folds are then drawn anew."
            ) from None
        return found
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    return path.read_bytes()


def charges(comparison: Comparison, home: Home) -> dict[str, Charge]:
    """What the cells to run cost on each private data set, by its name; raises ``BudgetExceeded`` where it is short.

    The ledgers are only read.
    """
    found: dict[str, Charge] = {}
    for data, job in comparison.private_jobs.items():
        cells = comparison.charged(data)
        if not any(cell.setting.private for cell in cells):
            continue
        with Ledger(ledger_url(job.config, job.schema, home)) as ledger:
            found[data] = charge_for(cells, comparison.config, comparison.plans, ledger)
    return found
