"""Readers: raw files to chunks, one module for each family of layouts.

Here: the reader that a schema asks for, and where its files are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError, unknown_name
from dpcore.preprocess import EncodingReport
from dpcore.preprocess.frames import as_frame
from dpcore.synthetic import GENERATORS
from tasks.readers import numbers, tables
from tasks.readers.arff import is_arff
from tasks.readers.chunk import Chunk, EmptyTable, Mine, chunk_rows, table_kind
from tasks.readers.declared import (
    as_declared,
    check_names,
    column_numbers,
    dtype_of,
    made_cells,
    mine_in,
    number_marks,
    plain_columns,
    said_cells,
)
from tasks.readers.once import copies, same_content
from tasks.readers.parts import (
    SCHEME,
    Part,
    SqlTable,
    is_wild,
    packed_or_not,
    parts_at,
    require_once,
)
from tasks.readers.sql import read_sql, sql_table
from tasks.readers.text import read_text
from tasks.schema import QUERY, Schema

Paths = str | Part | Sequence[str | Part] | None

# Where packages of Debian and its kin put data sets, under the package's name.
SYSTEM_DATA = Path("/usr/share/datasets")


def open_chunks(
    schema: Schema, files: Sequence[Part], skip_lines: int | None = None, mine: Mine | None = None
) -> Iterator[Chunk]:
    """Yield the rows of the parts ``files`` in their order (of the generator or the fetched table
    if there are none).

    A chunk says which part it is of and how many rows of this part precede it. Rows do not depend
    on how a table was cut into parts: one after the other they are those of one file. Parts without
    rows are none, unless all are.

    ``mine`` says which rows of a frame are read (``tasks.data.rows``): nothing that is wrong with
    the others refuses anything, unless it hides where a row belongs (``tasks.readers.chunk``).
    """
    if not files:
        yield from frame_chunks(schema, made_frame(schema))
        return
    if schema.source.format == "idx":
        yield from numbers.read_idx(schema, files)
        return
    require_different(schema, files, skip_lines, mine)
    empty: EmptyTable | None = None
    read = False
    for number, part in enumerate(files):
        made = made_cells(schema, part, number, len(files))
        own = mine_in(schema, made, mine)
        try:
            for chunk in read_part(schema, part, skip_lines, own):
                read = True
                yield _with_cells(schema, chunk, made, own)
        except EmptyTable as error:
            empty = empty or error
    if empty is not None and not read:
        raise empty


def require_different(
    schema: Schema, files: Sequence[Part], skip_lines: int | None = None, mine: Mine | None = None
) -> None:
    """Raise ``InputError`` where two parts hold the same rows, for each of them would count twice.

    Parts of which no row is read are no such; nor are parts that differ in the cells which their
    folders or their places in the list say.
    """
    numbers_of = {str(part): number for number, part in enumerate(files)}
    for group in copies(files):
        seen: dict[tuple[tuple[str, str], ...], Part] = {}
        for part in group:
            made = made_cells(schema, part, numbers_of[str(part)], len(files))
            chunk = _first_read(schema, part, skip_lines, mine_in(schema, made, mine))
            if chunk is None:
                continue
            said = tuple(said_cells(schema, chunk, made).items())
            if said in seen:
                raise same_content(seen[said], part)
            seen[said] = part


def _first_read(
    schema: Schema, part: Part, skip_lines: int | None, mine: Mine | None
) -> Chunk | None:
    """The first chunk of a part with a row that is read; None where there is none."""
    chunks = read_part(schema, part, skip_lines, mine)
    try:
        return next((c for c in chunks if mine is None or bool(np.any(mine(c.table)))), None)
    except EmptyTable:
        return None


def read_part(
    schema: Schema, part: Part, skip_lines: int | None = None, mine: Mine | None = None
) -> Iterator[Chunk]:
    """Yield the rows of one part, as ``open_chunks`` does of all; columns that stand in no file are
    not in them.
    """
    start = 0
    for chunk in _reader(schema, part, skip_lines, mine):
        yield replace(chunk, source=str(part), start=start)
        start += chunk.rows


def whole_table(schema: Schema, parts: Sequence[Part]) -> pd.DataFrame:
    """All rows of ``parts`` as one frame, texts as objects; raises ``InputError`` for cells that
    are no numbers.
    """
    frames = []
    for chunk in open_chunks(schema, parts):
        tally = EncodingReport(source=chunk.source, rows=chunk.start)
        for name, rows, values, rule in chunk.faults:
            tally.fault(rows, name, values, rule)
        tally.raise_faults()
        table = chunk.table
        texts = [n for n in table if isinstance(table[n].dtype, pd.CategoricalDtype)]
        frames.append(table.astype(dict.fromkeys(texts, object)))
    return pd.concat(frames, ignore_index=True)


def _reader(
    schema: Schema, part: Part, skip_lines: int | None, mine: Mine | None
) -> Iterator[Chunk]:
    if isinstance(part, SqlTable):
        return read_sql(schema, part, mine)
    form = format_of(schema.source.format, part)
    if form == "csv":
        return read_text(schema, part, skip_lines, mine)
    if form in tables.READERS:
        return tables.READERS[form](schema, part, mine)
    return numbers.READERS[form](schema, part)


def format_of(declared: str, part: Part) -> str:
    """The declared format of a part, unless its first bytes, or where it is a table its name, say
    another.
    """
    if declared != "csv" and declared not in tables.READERS:
        return declared
    found = table_kind(part)
    if found is not None:
        return found
    if declared == "csv" and part.suffix == ".parquet":
        return "parquet"
    if declared == "csv" and is_arff(part):
        return "arff"
    return declared


def _with_cells(
    schema: Schema, chunk: Chunk, made: dict[str, str], mine: Mine | None = None
) -> Chunk:
    """``chunk`` with the same cell in every row of the columns ``made``, where the file has no such
    column.
    """
    columns: dict[str, Any] = {}
    faults = list(chunk.faults)
    for name, cell in said_cells(schema, chunk, made).items():
        columns[name] = pd.Categorical([cell] * chunk.rows)
        if dtype_of(schema, name) == "float64":
            marks = number_marks(schema, [name])[name]
            columns[name], found = column_numbers(
                name, pd.Series(columns[name]), marks, schema.text
            )
            rows = np.arange(chunk.rows) if mine is None else np.flatnonzero(mine(chunk.table))
            faults += [(n, rows, shown, rule) for n, _, shown, rule in found if len(rows)]
    return (
        replace(chunk, table=chunk.table.assign(**columns), faults=tuple(faults))
        if columns
        else chunk
    )


def frame_chunks(
    schema: Schema, frame: pd.DataFrame, where: str = "the data frame"
) -> Iterator[Chunk]:
    """Yield a frame in pieces, its columns checked against the schema; tables of other libraries
    are frames too (``dpcore.preprocess.frames``).
    """
    frame = as_frame(frame)
    if schema.columns:
        names = as_declared(schema, [str(c) for c in frame.columns])
        check_names(schema, where, names)
        if not len(frame):
            raise InputError(f"{where}: it has no rows; give a table with rows.")
        frame = plain_columns(schema, where, frame.set_axis(names, axis=1))
        step = chunk_rows(len(frame.columns))
        for start in range(0, len(frame), step):
            yield Chunk(frame.iloc[start : start + step])
        return
    label = schema.label.column
    if label not in frame:
        raise InputError(f"{where}: the label column {label!r} is missing; correct label.column.")
    ranked = schema.label.kind == "relevance" and QUERY in frame
    step = chunk_rows(len(frame.columns))
    for start in range(0, len(frame), step):
        piece = frame.iloc[start : start + step]
        queries = piece.pop(QUERY).to_numpy() if ranked else None
        yield Chunk(
            piece.drop(columns=label).to_numpy(dtype=float), piece[label].to_numpy(), queries
        )


def made_frame(schema: Schema) -> pd.DataFrame:
    """The whole table of a source that is no file: generated, or fetched once and cached."""
    source = schema.source
    if source.kind == "generator":
        if source.generator not in GENERATORS:
            raise unknown_name("generator", source.generator, GENERATORS)
        return pd.DataFrame(GENERATORS[source.generator](**source.arguments))
    return tables.fetched_frame(schema)


def data_roots() -> list[Path]:
    """Folders that declared files are looked for in: the working directory, ``DPFLOWS_DATA``,
    ``SYSTEM_DATA``.
    """
    return [
        Path(),
        *([Path(os.environ["DPFLOWS_DATA"])] if "DPFLOWS_DATA" in os.environ else []),
        SYSTEM_DATA,
    ]


def source_paths(
    schema: Schema, path: Paths, declared: Sequence[str], what: str = "data.path"
) -> list[Part]:
    """The parts to read, in the order in which their rows are read and their fingerprints taken.

    ``path`` is a file, a glob, a folder, or a list of them, here or as a URL
    (``tasks.readers.parts``); None stands for the declared places in the first of ``data_roots``
    that has them. The parts of a list come in its order, those of a folder or glob in that of their
    paths, code point by code point. A folder stands for the declared file names inside it where the
    schema declares such, else for all parts below it. Readers want of a part what a ``Path`` gives:
    ``open("rb")``, ``stat()``, ``name``, ``suffix`` and its text.

    Raises ``InputError`` for a missing file, with the way to get it, and for one that is named
    twice.
    """
    if path is None and schema.source.kind == "sql" and what == "data.path":
        return [sql_table(schema)]
    if path is None:
        places: list[Any] = [_declared_place(name) for name in declared]
    else:
        given = [path] if isinstance(path, str | Part) else list(path)
        places = _declared_inside(schema, given, declared, what) or given
    found: list[Part] = []
    for place in places:
        parts = parts_at(place, what)
        if not parts:
            raise _nothing_there(schema, place, what, path is None)
        found += parts
    require_once(found, what)
    return found


def _declared_inside(
    schema: Schema, given: list[Any], declared: Sequence[str], what: str
) -> list[Part]:
    """The declared files inside folders that were given; none where other places were given, or no
    file names are declared.
    """
    folders = all(not is_wild(one) and Path(one).is_dir() for one in given)
    names = [Path(d).name for d in declared if _names_file(d, given if folders else [])]
    if not (folders and names) or len(names) < len(declared):
        return []
    inside = [Path(one) for one in given]
    _require_inside(schema, inside, names, what)
    return [packed_or_not(folder / name) for folder in inside for name in names]


def _names_file(place: str, folders: Sequence[Any]) -> bool:
    """Whether a declared place is a file's: by its ending, or as a file of that name in each
    folder.
    """
    if is_wild(place):
        return False
    name = Path(place).name
    inside = (packed_or_not(Path(folder) / name).is_file() for folder in folders)
    return bool(Path(place).suffix) or (bool(folders) and all(inside))


def _declared_place(name: str) -> str | Path:
    """Where a declared file, folder or glob is: in the first of ``data_roots`` that has it."""
    if SCHEME.match(name):
        return name
    return next((root / name for root in data_roots() if parts_at(root / name)), Path(name))


def _nothing_there(schema: Schema, place: str | Path, what: str, by_schema: bool) -> InputError:
    how = f" {schema.source.how}" if schema.source.how else ""
    if SCHEME.match(str(place)):
        return InputError(
            f"Expected a file at {what}={str(place)!r}, got none; correct the URL.{how}"
        )
    if Path(place).is_dir():
        return InputError(
            f"Expected files in the folder {what}={str(place)!r}, got none (names that begin with "
            f"a dot or an underscore, and schemas, are no parts); correct the path.{how}"
        )
    if is_wild(place):
        return InputError(
            f"Expected files that {what}={str(place)!r} matches, got none; correct it.{how}"
        )
    absolute = not by_schema or Path(place).is_absolute()
    root = "" if absolute else ", or name the folder that holds it in DPFLOWS_DATA"
    return InputError(
        f"Expected a file at {what}={str(place)!r}, which does not exist; correct the "
        f"path{root}.{how}"
    )


def _require_inside(
    schema: Schema, folders: Sequence[Path], declared: Sequence[str], what: str
) -> None:
    """Raise ``InputError`` where a folder does not hold the declared files."""
    for folder in folders:
        for name in declared:
            if not packed_or_not(folder / name).is_file():
                how = f" {schema.source.how}" if schema.source.how else ""
                raise InputError(
                    f"Expected the declared file {name!r} in the folder {what}={str(folder)!r}, "
                    "which has none of that name; give the file itself, the right folder, or "
                    f"{str(folder / '*')!r} for all files in it as parts.{how}"
                )


def test_files(schema: Schema, files: list[Part], test_path: Paths) -> list[Part]:
    """The files of the test part, none where rows are split or there is no test part."""
    if test_path is not None:
        return source_paths(schema, test_path, schema.split.path, "data.test_path")
    return sibling_paths(schema, files, None) if schema.split.kind == "file" else []


def sibling_paths(schema: Schema, files: Sequence[Part], path: Paths) -> list[Part]:
    """The declared second files: ``path``, or beside the training file, packed or not."""
    declared = schema.split.path
    if path is not None or not files:
        return source_paths(schema, path, declared, "data.test_path")
    found: list[Part] = []
    if not isinstance(files[0], Path):
        raise InputError(
            f"Expected data.test_path beside {files[0]}: next to a remote file nothing is looked "
            "for; name the test part."
        )
    for name in declared:
        plain = Path(name).name.removesuffix(".gz")
        beside = [
            files[0].parent / Path(name).name,
            files[0].parent / plain,
            files[0].parent / f"{plain}.gz",
        ]
        if not any(b.is_file() for b in beside):
            raise InputError(
                f"Expected the test part beside the training file as {str(beside[0])!r}, which "
                "does not exist; give data.test_path, or declare another split."
            )
        found.append(next(b for b in beside if b.is_file()))
    return found


__all__ = ["Chunk", "open_chunks", "source_paths"]
