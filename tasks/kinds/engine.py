"""Where the rows of a training are kept, decided from public facts: in memory as a matrix or as
codes, or in shards; and what workers count of shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np

from dpcore.algorithms import registry
from dpcore.errors import InputError
from dpcore.losses import plain_name
from dpcore.objective import LinearObjective, compiled
from dpcore.objective.shards import OFFERED, SHARD_ROWS, ShardedObjective
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.design import Data
from dpcore.train import Planned
from dpcore.train.planning import resolve_name
from tasks.data import Loaded, Reading, Report
from tasks.data.cluster import Cluster, RemoteRows
from tasks.data.rows import mine_of, require_countable
from tasks.data.scheduler import connect
from tasks.data.store import PLAIN, Storage, written
from tasks.data.workers import Source
from tasks.home import Home
from tasks.kinds.base import Array, Job, Metrics
from tasks.readers import require_different
from tasks.readers.once import AsRead, require_same

# Bytes of the matrix in memory from which rows go to shards on disk: twice it is what loading
# takes.
LARGE = 2.0e9
# Bytes of one entry of a sparse matrix, and what numpy and scipy need besides for a pass.
ENTRY_BYTES = 12
# Nanoseconds a row and stored column of a pass: compiled, and in plain numpy.
COMPILED_NS, PLAIN_NS = 1.5, 6.0
# Nanoseconds to read and encode a cell, and to digest one for the split: compiled, and in Python.
CELL_NS, DIGEST_NS, PLAIN_DIGEST_NS = 40.0, 200.0, 1000.0
# Kinds of columns whose few values are digested once for many rows.
LEVELED = ("categorical", "ordinal", "flag")


@dataclass(frozen=True, slots=True)
class Choice:
    """``kind`` memory, shards or dask, why, and how rows are stored."""

    kind: str
    reason: str
    storage: Storage


def choose(job: Job) -> Choice:
    """Where the rows of ``job`` are kept; raises ``InputError`` where what was asked for does not
    go.

    The rule reads declared columns, the public n, the algorithm and what is installed; it opens no
    file of the data.
    """
    engine = job.config.engine
    asked = "auto" if engine is None else engine.kind
    coding = coding_of(job)
    lacking = why_not_sharded(job, coding)
    shards = Storage(coding, True, job.problem.n, job.problem.outputs > 1)
    if asked in ("shards", "dask"):
        if lacking:
            raise InputError(
                f"Expected no engine.kind={asked} {lacking}; leave engine out, or use "
                "engine.kind=memory."
            )
        if asked == "dask" and (lacking := why_not_dask(job)):
            raise InputError(f"Expected no engine.kind=dask {lacking}; use engine.kind=shards.")
        return Choice(asked, "as engine.kind says", shards)
    size = matrix_bytes(job, coding)
    if asked == "auto" and not lacking and size >= LARGE:
        kind, more = beyond_memory(job)
        reason = f"a matrix of {job.problem.n:,} rows would take {size / 1e9:.3g} GB{more}"
        return Choice(kind, reason, shards)
    if asked == "auto" and worth_codes(job, coding) and not lacking:
        return Choice("memory", "as codes, for compiled sums", replace(shards, shards=False))
    return Choice("memory", "as a matrix", PLAIN)


def beyond_memory(job: Job) -> tuple[str, str]:
    """Shards, or Dask where a scheduler is named and its workers can do it; and why."""
    engine = job.config.engine
    if engine is None or engine.address is None:
        return "shards", ""
    if lacking := why_not_dask(job):
        return "shards", f"; not on the workers at {engine.address} {lacking}"
    return "dask", f", and {engine.address} has workers"


def why_not_dask(job: Job) -> str:
    """Why workers cannot keep the rows of this job where shards on disk can; empty where they
    can.
    """
    split, label = job.schema.split.kind, job.schema.label.kind
    if label != "binary":
        return f"for label.kind={label}, whose quality is read from single scores"
    if job.config.evaluate.release is not None:
        return "beside evaluate.release, whose counts need every row here"
    if split not in ("none", "hash"):
        return f"for split.kind={split}, which goes by the place of a row in all files"
    if job.config.data.test_path is not None:
        return "beside data.test_path, whose rows no worker reads"
    return ""


def coding_of(job: Job) -> Coding | None:
    """How the rows of ``job`` are coded; None where they are no declared columns."""
    return Coding.of(job.encoder) if job.kind.coded else None


def matrix_bytes(job: Job, coding: Coding | None) -> float:
    """What the rows take as a sparse matrix; of rows that have no codes nothing is known."""
    return 0.0 if coding is None else float(job.problem.n) * slots(coding) * ENTRY_BYTES


def slots(coding: Coding) -> int:
    """Entries of a row."""
    return sum(part.slots for part in coding.encoder.parts) + int(coding.encoder.intercept)


def passes(job: Job) -> int:
    """How often a training reads its rows, as far as its parameters say."""
    name = resolve_name(job.algorithm.name, plain_name(job.problem.loss), unit=job.schema.unit)
    given = job.algorithm.parameters
    steps = given.get("steps", getattr(registry[name], "steps", 1))
    rate = given.get("sampling_rate", 1.0)
    return (
        max(1, round(float(steps) * float(rate)))
        if isinstance(steps, int) and isinstance(rate, int | float)
        else 1
    )


def worth_codes(job: Job, coding: Coding | None) -> bool:
    """Whether compiled sums pay for what it takes to load them."""
    if coding is None or not compiled.available():
        return False
    return float(job.problem.n) * slots(coding) * passes(job) >= compiled.WORTH


def why_not_sharded(job: Job, coding: Coding | None) -> str:
    """Why rows of this job cannot be coded and kept in shards; empty where they can."""
    if coding is None:
        return (
            f"for {job.schema.name!r}, whose rows are no declared columns of at most 65,535 levels"
        )
    if job.schema.unit != "record":
        return f"for unit {job.schema.unit}: all rows of one are needed side by side"
    beside = [name for name in ("audit", "tune", "select") if getattr(job.config, name) is not None]
    if job.config.evaluate.subgroup is not None:
        beside.append("evaluate.subgroup")
    if beside:
        return f"beside {' and '.join(beside)}, which looks at single rows"
    if job.schema.bounds != "declared":
        return f"with bounds: {job.schema.bounds}: rows would be encoded twice; declare them"
    return single_rows(
        resolve_name(job.algorithm.name, plain_name(job.problem.loss), unit=job.schema.unit)
    )


def single_rows(name: str) -> str:
    """Why an algorithm does without shards: it looks at single rows; empty where it does not."""
    algorithm = registry[name]
    asks: frozenset[str] = getattr(algorithm, "asks", frozenset())
    if algorithm.orders_rows:
        return f"for {name!r}, which walks through all rows in an order of its own"
    lacking = sorted(asks - OFFERED) if isinstance(asks, frozenset) else []
    if lacking or name in ("two_phase", "best_feature"):
        return (
            f"for {name!r}, which looks at single rows "
            f"({', '.join(lacking) or 'columns of a selection'})"
        )
    return ""


def passes_of(planned: Planned) -> int:
    """How often a plan reads the rows: once a release, of a share of them where it samples."""
    rate = planned.parameters.get("sampling_rate")
    share = float(rate) if isinstance(rate, int | float) else 1.0
    return max(1, round(len(planned.events) * share))


def outlook(job: Job, planned: Planned) -> dict[str, object]:
    """What a plan says of storage and time; minutes are a rule of thumb for one processor."""
    choice = choose(job)
    found: dict[str, object] = {"engine": choice.kind, "engine_reason": choice.reason}
    coding = choice.storage.coding
    if coding is None:
        return found
    columns, n = len(coding.layout.sizes), job.problem.n
    pace = COMPILED_NS if compiled.available() else PLAIN_NS
    count = passes_of(planned)
    reading = encoding_seconds(job)
    seconds = count * n * columns * pace * 1e-9 + reading
    found |= {
        "stored_columns": columns,
        "row_bytes": choice.storage.row_bytes,
        "passes": count,
        "encoding_minutes": round(reading / 60.0, 2),
    }
    if choice.storage.shards:
        found |= {
            "disk_gb": round(n * choice.storage.row_bytes / 1e9, 3),
            "shards": -(-n // SHARD_ROWS),
        }
    return found | {"minutes_about": round(seconds / 60.0, 2)}


def digested(job: Job) -> int:
    """Columns of many values that the split of ``job`` goes by."""
    split, columns = job.schema.split, job.schema.columns
    if split.kind != "hash":
        return 0
    return sum(
        name not in columns or columns[name].kind not in LEVELED for name in split.by or columns
    )


def encoding_seconds(job: Job) -> float:
    """What reading and encoding takes one processor, about: the split digests the text of every
    cell that it goes by.
    """
    pace = DIGEST_NS if compiled.available() else PLAIN_DIGEST_NS
    cells = CELL_NS * (len(job.schema.columns) + 1) + pace * digested(job)
    return job.problem.n * cells * 1e-9


@contextmanager
def storage_told(
    job: Job, say: Callable[[str], None], progress: Callable[[int, int], None]
) -> Iterator[None]:
    """Say where rows are kept that are not kept in memory, and how far their encoding is."""
    if not job.kind.coded or (choice := choose(job)).kind == "memory":
        yield
        return
    say(f"Rows are kept by engine {choice.kind}: {choice.reason}.")
    token = written.set(lambda rows: progress(min(rows, job.problem.n), job.problem.n))
    try:
        yield
    finally:
        written.reset(token)


def use_compiled(choice: Choice) -> bool:
    """Take the compiled sums where rows are kept as codes, and only there: what a seed gives must
    not hang on what this process did before. Their machine code is kept in the home folder.
    """
    return compiled.use(choice.storage.coding is not None, Home.find().root / "kernels")


# Cells of scores that quality is read from where single scores are not at hand.
CELLS = np.concatenate([[-1e30], np.linspace(-20.0, 20.0, 4001), [1e30]])


def on_workers(job: Job, rows: Reading, fast: bool) -> Loaded:
    """The rows of ``rows`` on the workers of a cluster, which are told declarations alone."""
    engine = job.config.engine
    assert engine is not None
    files = rows.files()
    if not files:
        raise InputError(
            f"Expected files for engine.kind=dask, got source.kind={job.schema.source.kind} in "
            f"{job.schema.name!r}; use engine.kind=shards."
        )
    require_countable(job.schema, job.problem.adjacency)
    tls = {"ca": engine.ca, "cert": engine.cert, "key": engine.key}
    folder = None if engine.address else str(Home.find().root / "workers")
    source = Source(
        uuid4().hex,
        job.schema,
        job.encoder,
        tuple(files),
        rows.blocks,
        job.problem.loss,
        fast,
        -(-job.problem.n // len(files)),
        folder,
    )
    require_different(job.schema, files, mine=mine_of(job.schema, rows.blocks))
    read = AsRead.of(files)
    cluster = Cluster(source, *connect(engine.address, engine.workers, tls))
    read.require()
    require_same(files, cluster.glances)
    sides: list[Any] = [RemoteRows(cluster, side) for side in ("train", "test")]
    if not sides[0].shape[0]:
        raise InputError(
            f"{job.schema.name}: no row belongs to the training part; check data.path, split and "
            "blocks."
        )
    made = [Data(X, np.broadcast_to(np.nan, X.shape[0]), job.encoder.design) for X in sides]
    report = Report(made[0].n, made[1].n, {}, {})
    told = ", ".join(map(str, files))
    return Loaded(made[0], made[1] if made[1].n else None, report, told, read=read)


def by_counts(sums: LinearObjective | ShardedObjective, weights: Array) -> Metrics:
    """Accuracy, balanced accuracy and ROC AUC from counts of scores by label; ties within a cell of
    width 0.01 count half.
    """
    right, wrong = sums.score_counts(weights, CELLS)
    above = CELLS[:-1] >= 0.0
    positive, negative = float(right.sum()), float(wrong.sum())
    hits, rejections = float(right[above].sum()), float(wrong[~above].sum())
    below = np.cumsum(wrong) - wrong
    pairs = float(right @ (below + wrong / 2.0))
    return {
        "accuracy": (hits + rejections) / (positive + negative),
        "balanced_accuracy": (hits / positive + rejections / negative) / 2.0
        if positive and negative
        else np.nan,
        "roc_auc": pairs / (positive * negative) if positive and negative else np.nan,
    }
