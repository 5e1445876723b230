"""From a schema and its files to ``Data``: one pass over chunks, bounded memory, nothing learned
from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from dpcore.errors import InputError
from dpcore.preprocess import Encoder, EncodingReport, MatrixEncoder
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.design import Data, FaultsHeld
from dpcore.problem import Adjacency
from dpcore.ranking.sessions import Sessions
from tasks.data.rows import (
    Wanted,
    Whole,
    check_group,
    decode_labels,
    group_names,
    mine_of,
    require_countable,
    rows_read,
)
from tasks.data.store import (
    PLAIN,
    CodedStore,
    GrowingArray,
    Matrix,
    Storage,
    full_disk_told,
    give_back_memory,
    keep_no_memory,
    private_folder,
    sweep,
)
from tasks.data.units import unit_names
from tasks.home import Home
from tasks.readers import Chunk, Paths, frame_chunks, open_chunks, source_paths, test_files
from tasks.readers.chunk import packing
from tasks.readers.once import AsRead
from tasks.readers.parts import Part
from tasks.schema import Schema

# text files from this size on are encoded into mapped files, not into memory
SPOOL_BYTES = 512 * 2**20
UNPACKED = 8  # a guess of how much gzip saved


@dataclass(frozen=True, slots=True)
class Report:
    """Exact counts about the rows that were read: internal to the operator, never part of a
    release.
    """

    rows_train: int
    rows_test: int
    train: dict[str, dict[str, int]]
    test: dict[str, dict[str, int]]

    def counts(self) -> dict[str, float]:
        """``rows_train``, ``rows_test``, and of cells what there was: ``unknown_test``,
        ``clipped_train``, ...
        """
        found = {"rows_train": float(self.rows_train), "rows_test": float(self.rows_test)}
        for side, tally in (("train", self.train), ("test", self.test)):
            found |= {
                f"{what}_{side}": float(sum(columns.values()))
                for what, columns in tally.items()
                if columns
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The training part, the test part if one is declared, what was counted, and where the rows
    came from.

    ``blocks`` and ``users`` (n,) give the ledger block and the person of each training row where
    they are declared, blocks of rows in one memory alone. ``groups`` gives the group of each row of
    the test part, without one of the training part, where it was asked for.
    """

    train: Data | Sessions
    test: Data | Sessions | None
    report: Report
    source: str
    blocks: np.ndarray | None = None
    users: np.ndarray | None = None
    groups: np.ndarray | None = None
    one_class: bool = False  # an exact fact on records: for the operator alone
    read: AsRead = field(default_factory=AsRead)  # its files as they were while it read them


@dataclass(slots=True)
class _Part:
    """Rows of one side while they are collected."""

    X: Matrix | CodedStore
    y: GrowingArray
    tally: EncodingReport
    encode: Callable[[Any, EncodingReport], Any]
    queries: list[np.ndarray] = field(default_factory=list)
    blocks: list[np.ndarray] = field(default_factory=list)
    users: list[np.ndarray] = field(default_factory=list)
    groups: list[np.ndarray] = field(default_factory=list)
    seen: set[float] = field(default_factory=set)

    @property
    def sharded(self) -> bool:
        return isinstance(self.X, CodedStore) and self.X.folder is not None


def load(
    schema: Schema,
    encoder: Encoder | MatrixEncoder,
    path: Paths = None,
    test_path: Paths = None,
    *,
    adjacency: Adjacency | str | None = None,
    frame: pd.DataFrame | None = None,
    test_frame: pd.DataFrame | None = None,
    blocks: Sequence[str] | None = None,
    spool: Path | None = None,
    group: str | None = None,
    sides: Sequence[str] = ("train", "test"),
    storage: Storage = PLAIN,
    whole: bool = True,
) -> Loaded:
    """Read, check and encode the declared data set.

    ``path``/``test_path`` override the declared files, ``frame``/``test_frame`` replace them; of
    ``blocks`` only the rows of those ledger blocks are decoded, in both parts; ``sides`` without
    "test" decodes no row of the test part; under ``adjacency`` replace_one the rows must be exactly
    the declared n. ``group`` names a declared column whose groups are kept beside the rows. Large
    files are encoded into private mapped files, under ``spool`` or the home folder; ``storage``
    says whether rows are kept as codes, and in shards. Of a part of the files (not ``whole``) no
    count is checked, and none of its rows need be for training. Raises ``InputError`` with file,
    data row, column, rule and way out, before anything could be reserved. Whether rows are as
    declared may hang on one record, so these refusals are for the operator alone: no store keeps
    their words, and nothing is charged or drawn after one. Private records of one class, which may
    well be as declared, are not refused where ``adjacency`` names a promise, but noted.
    """
    files = [] if frame is not None else source_paths(schema, path, schema.source.path)
    own = frame is None and test_frame is None and "test" in sides
    tests = test_files(schema, files, test_path) if own else []
    if group is not None:
        check_group(schema, group)
    if frame is None and not files and schema.source.kind == "file":
        raise InputError(
            f"Expected a file for data set {schema.name!r}, got none; give data.path. "
            f"{schema.source.how}"
        )
    large = spool is not None or storage.shards or (not storage.coding and _large([*files, *tests]))
    read = AsRead.of([*files, *tests])
    place = spool or Home.find().root / "rows"
    sweep(place)  # what a killed process left goes with the next one that reads, large or not
    if large:
        keep_no_memory()
    with full_disk_told(place), private_folder(place) if large else nullcontext(None) as folder:
        wanted = Wanted(blocks, group, "test" in sides, storage.coding, whole)
        storage.require_room(folder)
        found = _load(schema, encoder, files, tests, frame, test_frame, adjacency, wanted, folder)
    if large:
        give_back_memory()
    read.require()
    return replace(found, read=read)


def _load(
    schema: Schema,
    encoder: Encoder | MatrixEncoder,
    files: list[Part],
    tests: list[Part],
    frame: pd.DataFrame | None,
    test_frame: pd.DataFrame | None,
    adjacency: Adjacency | str | None,
    wanted: Wanted,
    folder: Path | None,
) -> Loaded:
    sides = [_side(encoder, folder, side, wanted.coding) for side in ("train", "test")]
    blocks, mine = wanted.blocks, mine_of(schema, wanted.blocks)
    chunks = (
        frame_chunks(schema, frame) if frame is not None else open_chunks(schema, files, mine=mine)
    )
    _read(
        schema,
        encoder,
        chunks,
        sides[0],
        sides[1],
        ", ".join(map(str, files)) or schema.name,
        wanted,
    )
    if test_frame is not None:
        _read(
            schema,
            encoder,
            frame_chunks(schema, test_frame, "the test frame"),
            sides[1],
            None,
            "test frame",
            wanted,
        )
    elif tests:
        chunks = open_chunks(schema, tests, schema.split.skip_lines, mine)
        _read(schema, encoder, chunks, sides[1], None, ", ".join(map(str, tests)), wanted)
    train, test = sides
    if wanted.whole:
        _check(schema, train, adjacency, blocks)
    report = Report(train.y.rows, test.y.rows, train.tally.to_dict(), test.tally.to_dict())
    return Loaded(
        train=_finish(schema, encoder, train),
        test=_finish(schema, encoder, test) if test.y.rows else None,
        report=report,
        source=", ".join(map(str, [*files, *tests])) or schema.source.kind
        if frame is None
        else "data frame",
        blocks=np.concatenate(train.blocks) if train.blocks else None,
        users=np.concatenate(train.users) if train.users else None,
        groups=np.concatenate(seen.groups)
        if (seen := test if test.y.rows else train).groups
        else None,
        one_class=_one_class(schema, train),
    )


def _side(
    encoder: Encoder | MatrixEncoder, folder: Path | None, name: str, coding: Coding | None
) -> _Part:
    rows = (
        Matrix(encoder.design.dimension, folder, name)
        if coding is None
        else CodedStore(coding, folder, name)
    )
    encode = encoder.encode if isinstance(rows, Matrix) else rows.encode
    return _Part(rows, GrowingArray(folder, f"{name}.y"), EncodingReport(), encode)


def _read(
    schema: Schema,
    encoder: Encoder | MatrixEncoder,
    chunks: Iterable[Chunk],
    part: _Part,
    test: _Part | None,
    source: str,
    wanted: Wanted,
) -> None:
    """Encode chunks into ``part``; rows of the test side of a split by hash or position go to
    ``test``.

    What is wrong with the cells of one file is told together, up to a number of them.
    """
    row, whole = 0, Whole(wanted.blocks)
    tallies = [part.tally] if test is None else [part.tally, test.tally]
    for chunk in chunks:
        place = chunk.source or source
        if part.tally.source != place:
            part.tally.tell(*tallies[1:])
            for side in (part, test):
                if side is not None and isinstance(side.X, CodedStore):
                    side.X.cut_here()
        for tally in tallies:
            tally.begin(place, chunk.start if chunk.source else row)
        start, row = row, row + chunk.rows
        for name, places, values, rule in chunk.faults:
            part.tally.fault(places, name, values, rule)
        rows = rows_read(schema, chunk, start, part.tally, whole, wanted, test is not None)
        chunk, aside = rows.chunk, rows.aside
        if not chunk.rows:
            continue
        labels, group = chunk.labels, wanted.group
        cells = chunk.table[schema.label.column] if labels is None else pd.Series(labels)
        y = decode_labels(schema.label, cells, part.tally, schema.text.strip)
        lost = np.isnan(y)
        if lost.any():
            aside = None if aside is None else aside & ~lost
        keep = (
            None if aside is None and not lost.any() else ~(lost if aside is None else lost | aside)
        )
        if labels is None:
            _keys(schema, chunk.table, rows.where, keep, part)
        names = None if group is None else group_names(schema, group, chunk.table[group])
        _append(part, encoder, chunk, y, rows.places, keep)
        _note(part, names, keep)
        if test is not None and aside is not None:
            _append(test, encoder, chunk, y, rows.places, aside)
            _note(test, names, aside)
    part.tally.tell(*tallies[1:])


def _append(
    part: _Part,
    encoder: Any,
    chunk: Chunk,
    y: np.ndarray,
    places: np.ndarray | None,
    keep: np.ndarray | None,
) -> None:
    """Encode the kept rows of a chunk (None: all), at ``places`` of it (None: in order); none while
    faults are held.
    """
    table, queries = chunk.table, chunk.queries
    part.tally.places = places
    if keep is not None:
        if not keep.any():
            return
        table, y, queries = table[keep], y[keep], None if queries is None else queries[keep]
        part.tally.places = np.flatnonzero(keep) if places is None else places[keep]
    try:
        rows: Any = part.encode(table, part.tally)
    except FaultsHeld:
        return
    part.X.append(rows)
    part.y.append(y)
    if len(part.seen) < 3:
        part.seen.update(np.unique(y)[:3].tolist())
    if queries is not None:
        part.queries.append(queries)


def _note(part: _Part, names: np.ndarray | None, keep: np.ndarray | None) -> None:
    """Keep the groups of the rows that ``_append`` kept."""
    if names is not None:
        part.groups.append(names if keep is None else names[keep])


def _keys(
    schema: Schema, table: Any, blocks: np.ndarray | None, keep: np.ndarray | None, part: _Part
) -> None:
    rows = slice(None) if keep is None else keep
    if blocks is not None and not part.sharded:  # a name a row would grow with the table
        part.blocks.append(blocks[rows])
    for name, spec in schema.columns.items():
        if spec.kind == "user":
            part.users.append(unit_names(schema, table[name], part.tally, "user")[rows])


def _check(
    schema: Schema, train: _Part, adjacency: Adjacency | str | None, blocks: Sequence[str] | None
) -> None:
    """Rows, both classes, and the exact count where the relation needs it."""
    if not train.y.rows:
        named = blocks if schema.block is not None else None
        of = "" if named is None else f" of the blocks {', '.join(named)}"
        raise InputError(
            f"{train.tally.source}: no row{of} belongs to the training part; check split and "
            "blocks."
        )
    promised = adjacency is not None and not schema.public.public
    if _one_class(schema, train) and not promised:
        raise InputError(
            f"{train.tally.source}: the training part has one class only (label "
            f"{schema.label.column!r}); check label.positive and label.negative, or the split. "
            "Nothing was spent."
        )
    # For unit user it is the number of users that is public; the training counts them.
    counted = not train.queries and schema.unit != "user"
    if adjacency is not None and Adjacency(adjacency) is Adjacency.REPLACE_ONE and counted:
        require_countable(schema, adjacency)
        declared = schema.n(len(blocks) if blocks else 1)
        if train.y.rows != declared:
            raise InputError(
                f"{train.tally.source}: {train.y.rows} training rows, public.n={declared}; under "
                "replace_one n is the exact public count: correct public.n, or use adjacency "
                "add_remove, where n is nominal."
            )


def _one_class(schema: Schema, train: _Part) -> bool:
    """Whether the records of a binary label are all of one class."""
    return schema.label.kind == "binary" and len(train.seen) < 2


def _finish(schema: Schema, encoder: Any, part: _Part) -> Data | Sessions:
    X: Any = part.X.finish()
    y = part.y.finish()
    if part.queries:
        return Sessions.from_rows(
            X.toarray() if issparse(X) else X, y, np.concatenate(part.queries), canonical=True
        )
    return Data(X, y, encoder.design)


def _large(files: Sequence[Part]) -> bool:
    sizes = (f.stat().st_size * (UNPACKED if packing(f) else 1) for f in files)
    return sum(sizes) >= SPOOL_BYTES
