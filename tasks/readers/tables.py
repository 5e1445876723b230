"""Parquet and ARFF tables by chunks.

Tables that scikit-learn can download, cached on disk; reached only by a schema that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.io import arff

from dpcore.errors import InputError
from tasks.home import Home
from tasks.readers.chunk import Chunk, chunk_rows, require_rows
from tasks.readers.spoiled import ESCAPE, Mine, arff_frame, parquet_frame
from tasks.readers.text import check_names, open_text
from tasks.schema import Schema

# What SciPy's reader raises for lines that are not as the header says.
ARFF_FAULTS = (arff.ArffError, ValueError, LookupError)


def read_parquet(schema: Schema, path: Path, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield frames of a Parquet file, record batch by record batch; of rows that are not ``mine``
    none is refused.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_rows(path)
    with readable_parquet(path), pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        check_names(schema, str(path), names)
        if not file.metadata.num_rows:
            raise InputError(f"{path}: the file has no data rows; give a file with rows.")
        start = 0
        for batch in file.iter_batches(chunk_rows(len(names))):
            try:
                batch.validate(full=True)  # that texts are texts
                frame = batch.to_pandas()
            except pa.ArrowException:
                frame = parquet_frame(schema, path, batch, start, mine)
            start += len(frame)
            yield Chunk(frame)


@contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Turn what can be wrong with the bytes of a Parquet file into a one-line ``InputError``."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: not readable as Parquet: {' '.join(str(error).split())}; check the file."
        ) from None


def whole_parquet(path: Path) -> pd.DataFrame:
    """All of a Parquet file; raises ``InputError`` for what is none, and for two columns of one
    name.
    """
    import pyarrow.parquet as pq

    with readable_parquet(path):
        names = pq.read_schema(path).names
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise InputError(
                f"{path}: two columns are named {double!r}; give every column its own name."
            )
        return pd.read_parquet(path)


def read_arff(schema: Schema, path: Path, mine: Mine | None = None) -> Iterator[Chunk]:
    """Yield an ARFF file (dense form) as frames; ``?`` is a missing value, nominal values are
    texts.

    Of rows that are not ``mine`` none is refused.
    """
    require_rows(path)
    try:
        frame = _arff_frame(schema, path, mine)
    except (*ARFF_FAULTS, NotImplementedError, StopIteration) as error:
        raise InputError(
            f"{path}: not readable as ARFF: {' '.join(str(error).split())}; check the file."
        ) from None
    check_names(schema, str(path), list(frame.columns))
    if not len(frame):
        raise InputError(f"{path}: the file has no data rows; give a file with rows.")
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = frame[name].map(_decoder(schema))
            frame[name] = frame[name].replace("?", None)
    step = chunk_rows(len(frame.columns))
    for start in range(0, len(frame), step):
        yield Chunk(frame.iloc[start : start + step])


def _decoder(schema: Schema) -> Callable[[Any], Any]:
    encoding = schema.text.encoding
    return lambda cell: cell.decode(encoding) if isinstance(cell, bytes) else cell


def _arff_frame(schema: Schema, path: Path, mine: Mine | None) -> pd.DataFrame:
    try:
        with open_text(path, schema.text.encoding) as file:
            return pd.DataFrame(arff.loadarff(file)[0])
    except ARFF_FAULTS:
        if mine is None:
            raise
    with open_text(path, schema.text.encoding, ESCAPE) as file:
        return arff_frame(schema, path, file, mine)


READERS: dict[str, Callable[[Schema, Path, Mine | None], Iterator[Chunk]]] = {
    "parquet": read_parquet,
    "arff": read_arff,
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
