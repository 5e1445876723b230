"""Pick the reader that a schema asks for, and find its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from dpcore.errors import InputError, unknown_name
from dpcore.synthetic import GENERATORS
from tasks.readers import numbers, tables
from tasks.readers import tables as readers_tables
from tasks.readers.chunk import Chunk, chunk_rows
from tasks.readers.spoiled import Mine
from tasks.readers.text import check_names, read_text
from tasks.schema import Schema

Paths = str | Path | Sequence[str | Path] | None

# Where packages of Debian and its kin put data sets, under the package's name.
SYSTEM_DATA = Path("/usr/share/datasets")
# the column of a generated ranking table that says which documents were shown together
QUERY = "query"


def open_chunks(
    schema: Schema, files: Sequence[Path], skip_lines: int | None = None, mine: Mine | None = None
) -> Iterator[Chunk]:
    """Yield the rows of ``files`` in order (of the generator or the fetched table if there are
    none).

    ``mine`` says which rows of a frame are read (``tasks.data.rows``): nothing that is wrong with
    the others refuses anything, unless it hides where a row belongs (``tasks.readers.spoiled``).
    """
    if not files:
        yield from frame_chunks(schema, made_frame(schema))
        return
    if schema.source.format == "idx":
        yield from numbers.read_idx(schema, files)
        return
    for number, file in enumerate(files):
        for chunk in _reader(schema, file, skip_lines, mine):
            if schema.source.tag and len(files) == len(schema.source.tags):
                tagged = chunk.table.assign(**{schema.source.tag: schema.source.tags[number]})
                chunk = Chunk(tagged, chunk.labels, chunk.queries)
            yield chunk


def _reader(
    schema: Schema, file: Path, skip_lines: int | None, mine: Mine | None
) -> Iterator[Chunk]:
    form = schema.source.format
    if form == "csv" and file.suffix == ".parquet":
        form = "parquet"
    if form == "csv":
        return read_text(schema, file, skip_lines, mine)
    if form in ("parquet", "arff"):
        return tables.READERS[form](schema, file, mine)
    return numbers.READERS[form](schema, file)


def frame_chunks(
    schema: Schema, frame: pd.DataFrame, where: str = "the data frame"
) -> Iterator[Chunk]:
    """Yield a frame in pieces, its columns checked against the schema."""
    if schema.columns:
        check_names(schema, where, [str(c) for c in frame.columns])
        if not len(frame):
            raise InputError(f"{where}: it has no rows; give a table with rows.")
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
    return readers_tables.fetched_frame(schema)


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
) -> list[Path]:
    """The files to read: those of ``path``, or the declared ones in the first of ``data_roots``
    that has them.

    A folder stands for the declared file names inside it. Raises ``InputError`` for a missing file,
    with the way to get it.
    """
    if path is None:
        if not declared:
            return []
        roots = data_roots()
        found = [
            next((r / name for r in roots if (r / name).is_file()), Path(name)) for name in declared
        ]
    else:
        given = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
        folders = all(g.is_dir() for g in given)
        if folders:
            _require_inside(schema, given, declared, what)
        found = (
            [packed_or_not(g / Path(d).name) for g in given for d in declared] if folders else given
        )
    for file in found:
        if file.is_dir():
            raise InputError(
                f"Expected a file at {what}={str(file)!r}, got a folder; give the file inside it."
            )
        if not file.is_file():
            how = f" {schema.source.how}" if schema.source.how else ""
            root = (
                ""
                if path is not None or file.is_absolute()
                else ", or name the folder that holds it in DPFLOWS_DATA"
            )
            raise InputError(
                f"Expected a file at {what}={str(file)!r}, which does not exist; correct the "
                f"path{root}.{how}"
            )
    return found


def _require_inside(
    schema: Schema, folders: Sequence[Path], declared: Sequence[str], what: str
) -> None:
    """Raise ``InputError`` where a folder is given and does not hold the declared files."""
    shown = ", ".join(map(str, folders))
    if not declared:
        raise InputError(
            f"Expected a file at {what}={shown!r}, got a folder, and schema {schema.name!r} "
            f"declares no file; give "
            "the file itself."
        )
    for folder in folders:
        for name in (Path(d).name for d in declared):
            if not packed_or_not(folder / name).is_file():
                how = f" {schema.source.how}" if schema.source.how else ""
                raise InputError(
                    f"Expected the declared file {name!r} in the folder {what}={str(folder)!r}, "
                    f"which has none of that "
                    f"name; give the file itself, or the right folder.{how}"
                )


def packed_or_not(file: Path) -> Path:
    """``file``, or the same without its .gz where only that is there."""
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    return plain if plain.is_file() and not file.is_file() else file


def sibling_paths(schema: Schema, files: Sequence[Path], path: Paths) -> list[Path]:
    """The declared second file(s): ``path`` if given, else beside the training file, packed or
    not.
    """
    declared = schema.split.path
    if path is not None or not files:
        return source_paths(schema, path, declared, "data.test_path")
    found = []
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
                f"does not exist; give"
                " data.test_path, or declare another split."
            )
        found.append(next(b for b in beside if b.is_file()))
    return found
