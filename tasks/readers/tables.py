"""Tables whose cells have types, by chunks: workbooks, Stata, SAS and SPSS files (Parquet and
Feather: ``arrow``).

Tables that scikit-learn can download, cached on disk; reached only by a schema that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.feather as feather
import pyarrow.parquet as pq

from dpcore.errors import InputError
from dpcore.preprocess.frames import arrow_frame
from tasks.home import Home
from tasks.readers.arff import read_arff
from tasks.readers.arrow import opened, read_feather, read_parquet, readable_table, with_numbers
from tasks.readers.chunk import Chunk, Mine, chunk_rows, no_rows, require_rows
from tasks.readers.declared import (
    as_declared,
    check_names,
    header_names,
    require_header,
    text_marks,
)
from tasks.readers.parts import Part, Remote
from tasks.schema import Schema


def read_excel(schema: Schema, part: Part, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield the rows of one sheet of a workbook: ``source.sheet``, or the first.

    ``text.skip_lines`` rows are passed over before the header. Texts that are numbers in the
    declared layout are numbers; an empty cell is no value, and a row of such cells is none.
    """
    rows = _sheet_rows(schema, part)[schema.text.skip_lines :]
    names = list(schema.text.names)
    if schema.text.header and rows:
        head = ["" if _blank(cell) else str(cell) for cell in rows.pop(0)]
        names = names or header_names(schema, head)
        require_header(schema, part, names)
    names = names or list(schema.columns)
    frame = pd.DataFrame([list(row) for row in rows], dtype=object)
    if len(frame):
        if frame.shape[1] != len(names):
            raise InputError(
                f"{part}: the sheet has {frame.shape[1]} columns, got {len(names)} names; correct "
                "text.names."
            )
        frame = frame.set_axis(names, axis=1)
    yield from _whole(schema, part, frame, names, mine)


def _sheet_rows(schema: Schema, part: Part) -> list[tuple[Any, ...]]:
    """The rows of the sheet that are not blank."""
    require_rows(part)
    sheet: Any = 0 if schema.source.sheet is None else schema.source.sheet
    with (
        readable_table(part, "a workbook"),
        _extra("openpyxl (xlrd for .xls)"),
        part.open("rb") as file,
    ):
        book = pd.ExcelFile(file)
        if isinstance(sheet, str) and sheet not in book.sheet_names:
            raise InputError(
                f"{part}: Expected a sheet named source.sheet={sheet!r}, got "
                f"{', '.join(map(str, book.sheet_names))}; correct it."
            )
        cells = pd.read_excel(book, sheet_name=sheet, header=None, dtype=object, na_filter=False)
    return [row for row in cells.itertuples(index=False) if not all(_blank(cell) for cell in row)]


def _blank(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip()) or cell != cell


def read_stata(schema: Schema, part: Part, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield frames of a Stata file, labelled codes as their labels (``source.value_labels: false``:
    as the codes).
    """
    require_rows(part)
    with readable_table(part, "a Stata file"), part.open("rb") as file:
        options: dict[str, Any] = {
            "convert_categoricals": schema.source.value_labels,
            "preserve_dtypes": True,
        }
        with pd.read_stata(file, chunksize=chunk_rows(len(schema.columns)), **options) as reader:
            yield from _typed(schema, part, reader, mine)


def read_sas(schema: Schema, part: Part, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield frames of a SAS file (.sas7bdat or a transport file).

    By pyreadstat: pandas reads the zeros of a transport file as 5e-79.
    """
    require_rows(part)
    yield from _by_pyreadstat(schema, part, _sas_reader(part), "a SAS file", {}, mine)


def _sas_reader(part: Part) -> str:
    with part.open("rb") as file:
        return "read_xport" if file.read(6) == b"HEADER" else "read_sas7bdat"


def read_spss(schema: Schema, part: Part, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield frames of an SPSS file, labelled codes as their labels (``source.value_labels: false``:
    as the codes).
    """
    require_rows(part)
    labels = {"apply_value_formats": schema.source.value_labels}
    yield from _by_pyreadstat(schema, part, "read_sav", "an SPSS file", labels, mine)


def _by_pyreadstat(
    schema: Schema,
    part: Part,
    reader: str,
    what: str,
    options: dict[str, Any],
    mine: Mine | None,
) -> Iterator[Chunk]:
    if isinstance(part, Remote):
        raise InputError(f"{part}: {what} is read from a local folder; copy it here first.")
    with readable_table(part, what), _extra("pyreadstat"):
        import pyreadstat

        try:
            parts = pyreadstat.read_file_in_chunks(
                getattr(pyreadstat, reader),
                str(part),
                chunksize=chunk_rows(len(schema.columns)),
                **options,
            )
            yield from _typed(schema, part, (frame for frame, _ in parts), mine)
        except pyreadstat.ReadstatError as error:
            raise ValueError(str(error)) from None


@contextmanager
def _extra(package: str) -> Iterator[None]:
    """Name what has to be installed for a format."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"Expected {package} for this format, got none ({error.name or error}); install it by "
            "`pip install 'dpflows[tables]'`."
        ) from None


def _typed(schema: Schema, part: Part, frames: Any, mine: Mine | None) -> Iterator[Chunk]:
    """Frames of a reader as chunks, their names as the schema spells them."""
    done = 0
    for frame in frames:
        names = as_declared(schema, [str(name) for name in frame.columns])
        yield from _whole(schema, part, frame.set_axis(names, axis=1), names, mine)
        done += len(frame)
    if not done:
        raise no_rows(part)


def _whole(
    schema: Schema, part: Part, frame: pd.DataFrame, names: Sequence[str], mine: Mine | None
) -> Iterator[Chunk]:
    """A frame in pieces, checked; texts in columns of numbers are read in the declared layout."""
    check_names(schema, part, list(names))
    if not len(frame):
        raise no_rows(part)
    step = chunk_rows(len(names))
    for start in range(0, len(frame), step):
        piece = frame.iloc[start : start + step].reset_index(drop=True)
        yield with_numbers(schema, Chunk(piece), text_marks(schema, piece), mine)


READERS: dict[str, Callable[[Schema, Part, Mine | None], Iterator[Chunk]]] = {
    "parquet": read_parquet,
    "feather": read_feather,
    "arff": read_arff,
    "excel": read_excel,
    "stata": read_stata,
    "sas": read_sas,
    "spss": read_spss,
}


def whole_parquet(part: Part) -> pd.DataFrame:
    """All of a Parquet file; raises ``InputError`` for what is none, and for two columns of one
    name.
    """
    with readable_table(part, "Parquet"), opened(part) as source, pq.ParquetFile(source) as file:
        names = file.schema_arrow.names
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise InputError(
                f"{part}: two columns are named {double!r}; give every column its own name."
            )
        return arrow_frame(file.read())


def _whole_excel(part: Part) -> pd.DataFrame:
    with (
        readable_table(part, "a workbook"),
        _extra("openpyxl (xlrd for .xls)"),
        part.open("rb") as file,
    ):
        return pd.read_excel(file, dtype=object, na_filter=False)


def _whole_stata(part: Part) -> pd.DataFrame:
    with readable_table(part, "a Stata file"), part.open("rb") as file:
        return pd.read_stata(file)


def _whole_feather(part: Part) -> pd.DataFrame:
    with readable_table(part, "Feather"), opened(part) as source:
        return arrow_frame(feather.read_table(source))


def _whole_by_pyreadstat(reader: str, what: str) -> Callable[[Part], pd.DataFrame]:
    def read(part: Part) -> pd.DataFrame:
        if isinstance(part, Remote):
            raise InputError(f"{part}: {what} is read from a local folder; copy it here first.")
        with readable_table(part, what), _extra("pyreadstat"):
            import pyreadstat

            named = _sas_reader(part) if reader == "sas" else reader
            options = {} if reader == "sas" else {"apply_value_formats": True}
            try:
                return getattr(pyreadstat, named)(str(part), **options)[0]
            except pyreadstat.ReadstatError as error:
                raise ValueError(str(error)) from None

    return read


# All rows of a table whose cells have types, before a schema describes it.
TYPED: dict[str, Callable[[Part], pd.DataFrame]] = {
    "parquet": whole_parquet,
    "feather": _whole_feather,
    "excel": _whole_excel,
    "stata": _whole_stata,
    "spss": _whole_by_pyreadstat("read_sav", "an SPSS file"),
    "sas": _whole_by_pyreadstat("sas", "a SAS file"),
}


def cache_folder() -> Path:
    """Where downloads are kept: ``data`` in the home folder."""
    return Home.find().root / "data"


def fetched_frame(schema: Schema) -> pd.DataFrame:
    """The table of an ``openml`` or ``kddcup99`` source, with the declared column names.

    The first call downloads, later ones read the cache. Raises ``InputError`` when neither works.
    """
    import sklearn.datasets as datasets

    source, folder = schema.source, str(cache_folder())
    try:
        if source.kind == "openml":
            found: Any = datasets.fetch_openml(
                data_id=source.data_id, as_frame=True, data_home=folder, parser="auto"
            )
        else:
            part = bool(source.arguments.get("percent10", 1))
            found = datasets.fetch_kddcup99(percent10=part, data_home=folder, as_frame=True)
    except (OSError, ValueError) as error:
        name = f"OpenML {source.data_id}" if source.kind == "openml" else source.kind
        raise InputError(
            f"Data set {schema.name!r} could not be downloaded ({name}): "
            f"{' '.join(str(error).split())}; try again with"
            f" a connection, or give data.path. {source.how}".rstrip()
        ) from None
    frame = found.frame.rename(columns=source.rename)
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = [v.decode() if isinstance(v, bytes) else v for v in frame[name]]
    return frame
