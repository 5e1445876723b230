"""The rows of a comparison: read once for each data set and encoding, then cut into folds where
cells ask for them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import file_digest, sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.errors import InputError
from dpcore.objective.shards import InShards
from dpcore.problem import Adjacency
from dpcore.ranking.sessions import Sessions, join
from tasks.compare.config import ProtocolSection
from tasks.compare.grid import Cell, Setting
from tasks.data import Reading
from tasks.kinds.base import Job, reading_of
from tasks.kinds.engine import choose
from tasks.readers import source_paths
from tasks.readers.once import AsRead
from tasks.readers.parts import Part

KEPT = 4  # folds that a thread keeps: the cells of a batch walk over few of them


@dataclass(frozen=True)
class Fold:
    """One fold: the training part as sums over its rows, and the rows that it is tested on.

    ``optima``: the least objective by L2 strength, where it was asked for.
    """

    objective: Any
    test: Any
    optima: dict[float, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Table:
    """Encoded rows: those to be split, the declared test part, or the partition files of a ranking,
    each whole; and of which data set they are, from which files.
    """

    train: Any
    test: Any = None
    parts: tuple[Sessions, ...] = ()
    data: str = ""
    read: AsRead = field(default_factory=AsRead)


class Rows:
    """All rows of a comparison. It never crosses to another process with private rows in it: it
    pickles empty.

    ``secrets``: the seed of secret folds by name of the data set (private rows under add/remove).
    """

    def __init__(
        self,
        protocol: ProtocolSection,
        seed: int,
        secrets: dict[str, bytes],
        names: tuple[str, ...],
    ) -> None:
        self.protocol, self.seed, self.secrets, self.private = protocol, seed, secrets, names
        self._tables: dict[str, Table] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def __reduce__(self) -> Any:
        if self.private:
            raise TypeError("Private rows stay in the process that read them.")
        return Rows, (self.protocol, self.seed, {}, ())

    def table(self, setting: Setting, repeat: int = 0) -> Table:
        """The rows of a setting, read at the first call; raises ``InputError`` for what is not as
        declared.
        """
        job = redrawn(setting.job, repeat)
        key = table_key(job)
        with self._lock:
            if key not in self._tables:
                self._tables[key] = read(job, self.protocol)
        found = self._tables[key]
        rows = found.train.n
        exact = setting.private and job.problem.adjacency is not Adjacency.ADD_REMOVE
        if exact and rows != job.problem.n and not found.parts:
            raise InputError(
                f"Expected exactly {job.problem.n} {job.schema.unit}s in {job.schema.name!r} under "
                f"{job.problem.adjacency}, where their number is public, got {rows}; correct "
                "public.n, or use adjacency add_remove."
            )
        return found

    def read_of(self, data: str) -> AsRead:
        """The files of a data set as they were at each reading of them."""
        found = [table.read.files for table in self._tables.values() if table.data == data]
        return AsRead(tuple(chain.from_iterable(found)))

    def part(self, cell: Cell) -> Fold:
        """The fold of a cell; the last few are kept, for each thread its own."""
        job = cell.setting.job
        secret = self.secret(cell.setting)
        drawn = table_key(redrawn(job, cell.repeat))
        key = (
            drawn,
            repr(job.problem.loss),
            repr(job.model),
            secret is not None,
            cell.repeat,
            cell.fold,
        )
        kept: OrderedDict[Any, Fold] = self._local.__dict__.setdefault("kept", OrderedDict())
        if key not in kept:
            table = self.table(cell.setting, cell.repeat)
            while len(kept) >= KEPT:
                kept.popitem(last=False)
            kept[key] = self._cut(job, table, secret, cell.repeat, cell.fold)
        return kept[key]

    def secret(self, setting: Setting) -> bytes | None:
        """The secret seed of the folds, where their number of rows is private."""
        declared = setting.job.problem.adjacency is Adjacency.ADD_REMOVE and not setting.job.public
        return self.secrets[setting.data] if declared else None

    def _cut(self, job: Job, table: Table, secret: bytes | None, repeat: int, fold: int) -> Fold:
        if table.parts:
            others = [part for index, part in enumerate(table.parts) if index != fold]
            train, test = join(others), table.parts[fold]
        elif self.protocol.folds == 1:
            train, test = table.train, table.train if table.test is None else table.test
        else:
            numbers = self._numbers(table.train.n, secret, repeat)
            places = [np.flatnonzero(side) for side in (numbers != fold, numbers == fold)]
            if isinstance(getattr(table.train, "X", None), InShards):
                whole = job.kind.sums(job, table.train)  # its folds are sums too, and not copied
                return Fold(*(whole.take(rows) for rows in places))
            train, test = (table.train.take(rows) for rows in places)
        return Fold(job.kind.sums(job, train), test)

    def _numbers(self, rows: int, secret: bytes | None, repeat: int) -> np.ndarray:
        folds = self.protocol.folds
        if secret is None:
            return fold_numbers(rows, folds, self.seed, repeat)
        return secret_fold_numbers(rows, folds, secret, repeat)

    def check_classes(self, setting: Setting) -> None:
        """Raise ``InputError`` where a fold of public rows leaves one class for training.

        Of private rows one record could decide over it, so such a comparison goes on and shows what
        it gives.
        """
        job, protocol = setting.job, self.protocol
        if job.schema.label.kind != "binary" or protocol.folds == 1 or not job.public:
            return
        if kept_in(job):
            return  # labels are not here
        for repeat in range(protocol.partitions):
            y = self.table(setting, repeat).train.y
            numbers = fold_numbers(len(y), protocol.folds, self.seed, repeat)
            for fold in range(protocol.folds):
                if len(np.unique(y[numbers != fold])) < 2:
                    raise InputError(
                        "Expected both classes in the training part of every fold of "
                        f"{setting.data!r}, got one in fold {fold} of repeat {repeat} (label "
                        f"{job.schema.label.column!r}); use fewer folds or another seed. Nothing "
                        "was spent."
                    )


def redrawn(job: Job, repeat: int) -> Job:
    """The job of one repeat: generated data that declare a ``seed`` are generated anew, with
    ``seed`` + ``repeat``.
    """
    source = job.schema.source
    if repeat == 0 or not is_redrawn(job):
        return job
    arguments = {**source.arguments, "seed": int(source.arguments["seed"]) + repeat}
    schema = job.schema.model_copy(
        update={"source": source.model_copy(update={"arguments": arguments})}
    )
    return replace(job, schema=schema)


def is_redrawn(job: Job) -> bool:
    """Whether every repeat has a data set of its own."""
    return job.schema.source.kind == "generator" and "seed" in job.schema.source.arguments


def table_key(job: Job) -> str:
    """What the encoded rows depend on: files, schema and encoder; and the loss, where workers that
    make sums know it.
    """
    data = job.config.data
    named = [str(data.path), str(data.test_path), str(job.blocks)]
    if kept_in(job) == "dask":
        named.append(repr(job.problem.loss))
    text = "\n".join([*named, job.schema.model_dump_json(), job.encoder.to_json()])
    return sha256(text.encode()).hexdigest()


def kept_in(job: Job) -> str:
    """Shards or dask, where section ``engine`` leads rows there; empty where they are in memory."""
    if job.config.engine is None:
        return ""
    kind = choose(job).kind
    return "" if kind == "memory" else kind


def read(job: Job, protocol: ProtocolSection) -> Table:
    """Read and encode the rows of a job: those of the blocks that its reservation names."""
    if job.kind.in_partitions and protocol.parts and job.schema.source.kind == "file":
        return _partition(job, protocol.folds)
    if kept_in(job):
        # exact counts are checked by ``Rows.table``
        counted = replace(job, problem=replace(job.problem, adjacency=Adjacency.ADD_REMOVE))
        found = job.kind.load(counted, reading_of(job))
        return Table(found.train, found.test, (), job.schema.name, found.read)
    # A promise about the rows, of whatever relation: nothing is refused for their labels;
    # ``Rows.table`` counts them.
    loaded = reading_of(job).load(job.encoder, None if job.public else Adjacency.ADD_REMOVE)
    return Table(loaded.train, loaded.test, (), job.schema.name, loaded.read)


def _partition(job: Job, folds: int) -> Table:
    """The partition files S1, S2, ... of a ranking, one a fold."""
    whole = job.schema.model_copy(
        update={"split": job.schema.split.model_copy(update={"kind": "none"})}
    )
    files = partition_files(job, folds)
    parts: tuple[Any, ...] = tuple(Reading(whole, file).load(job.encoder).train for file in files)
    return Table(join(parts), None, parts)


def partition_files(job: Job, folds: int) -> list[Part]:
    """S1 to S``folds`` in the folder of the data; raises ``InputError`` where they are not there.
    None is opened.
    """
    first = data_files(job)[0]
    if not isinstance(first, Path):
        raise InputError(
            f"Expected a local folder with partition files, got {first}; copy them here, or set "
            "protocol.parts=false to cut folds by query."
        )
    folder = first.parent
    found = [next(iter(sorted(folder.glob(f"S{k}.txt*"))), None) for k in range(1, folds + 1)]
    missing = [f"S{k}.txt" for k, file in enumerate(found, 1) if file is None]
    if missing:
        raise InputError(
            f"Expected partition files S1.txt to S{folds}.txt in {folder}, got no {missing[0]}; "
            "correct data.path, or set protocol.parts=false to cut folds by query."
        )
    return [file for file in found if file is not None]


def data_files(job: Job) -> list[Part]:
    """The files of the training part; none for generated data."""
    if not job.schema.source.stands and job.config.data.path is None:
        return []
    return source_paths(job.schema, job.config.data.path, job.schema.source.path)


def fingerprint(job: Job, protocol: ProtocolSection, digest: Callable[[Part], str]) -> str:
    """A hash of schema, blocks and files; ``digest`` says what stands for a file."""
    files = data_files(job)
    if job.kind.in_partitions and protocol.parts and files:
        files = partition_files(job, protocol.folds)
    if job.config.data.test_path is not None:
        files += source_paths(
            job.schema, job.config.data.test_path, job.schema.split.path, "data.test_path"
        )
    read = [] if job.config.data.blocks is None else [str(job.blocks)]
    texts = [job.schema.model_dump_json(), *read, *(digest(file) for file in files)]
    return sha256("\n".join(texts).encode()).hexdigest()


def content_digest(file: Part) -> str:
    """SHA-256 of a file of public rows."""
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def stat_digest(file: Part) -> str:
    """What stands for a file of private rows, which nobody has opened: name, length and time of
    change.
    """
    facts = file.stat()
    return f"{file.resolve()} {facts.st_size} {facts.st_mtime_ns}"


def fold_numbers(rows: int, folds: int, seed: int, repeat: int) -> np.ndarray:
    """The fold of each row (rows,), in parts of equal size by the public seed: the same for every
    algorithm.
    """
    return np.random.default_rng([seed, repeat]).permutation(np.arange(rows) % folds)


def secret_fold_numbers(rows: int, folds: int, secret: bytes, repeat: int) -> np.ndarray:
    """The fold of each row (rows,), independent and uniform by a secret seed.

    For private rows under add/remove, whose number is private: a balanced partition by place would
    move other rows to other folds when one is removed. With independent folds the runs on
    neighbours pair off, fold by fold, and a mixture over the secret seed is no easier to tell apart
    than its parts (joint quasi-convexity).
    """
    seed = int.from_bytes(secret, "big")
    return np.random.default_rng([seed, repeat]).integers(folds, size=rows)
