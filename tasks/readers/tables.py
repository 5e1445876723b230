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
from tasks.readers.text import check_names, open_text
from tasks.schema import Schema


def read_parquet(schema: Schema, path: Path) -> Iterator[Chunk]:
    """Yield frames of a Parquet file, record batch by record batch."""
    import pyarrow.parquet as pq

    require_rows(path)
    with readable_parquet(path), pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        check_names(schema, str(path), names)
        if not file.metadata.num_rows:
            raise InputError(f"{path}: the file has no data rows; give a file with rows.")
        for batch in file.iter_batches(chunk_rows(len(names))):
            yield Chunk(batch.to_pandas())


@contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Turn what can be wrong with the bytes of a Parquet file into a one-line ``InputError``."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not readable as Parquet: {' '.join(str(error).split())}; check the file.") from None


def whole_parquet(path: Path) -> pd.DataFrame:
    """All of a Parquet file; raises ``InputError`` for what is none, and for two columns of one name."""
    import pyarrow.parquet as pq

    with readable_parquet(path):
        names = pq.read_schema(path).names
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise InputError(f"{path}: two columns are named {double!r}; give every column its own name.")
        return pd.read_parquet(path)


def read_arff(schema: Schema, path: Path) -> Iterator[Chunk]:
    """Yield an ARFF file (dense form) as frames; ``?`` is a missing value, nominal values are texts."""
    require_rows(path)
    try:
        with open_text(path, schema.text.encoding) as file:
            records, _ = arff.loadarff(file)
    except (arff.ArffError, NotImplementedError, ValueError, StopIteration) as error:
        raise InputError(f"{path}: not readable as ARFF: {' '.join(str(error).split())}; check the file.") from None
    frame = pd.DataFrame(records)
    check_names(schema, str(path), list(frame.columns))
    if not len(frame):
        raise InputError(f"{path}: the file has no data rows; give a file with rows.")
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = frame[name].str.decode(schema.text.encoding).replace("?", None)
    step = chunk_rows(len(frame.columns))
    for start in range(0, len(frame), step):
        yield Chunk(frame.iloc[start : start + step])


READERS: dict[str, Callable[[Schema, Path], Iterator[Chunk]]] = {"parquet": read_parquet, "arff": read_arff}


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
            found: Any = datasets.fetch_openml(data_id=source.data_id, as_frame=True, data_home=folder, parser="auto")
        else:
            found = datasets.fetch_kddcup99(percent10=bool(source.arguments.get("percent10", 1)), data_home=folder,
                                            as_frame=True)  # fmt: skip
    except (OSError, ValueError) as error:
        name = f"OpenML {source.data_id}" if source.kind == "openml" else source.kind
        raise InputError(
            f"Data set {schema.name!r} could not be downloaded ({name}): {' '.join(str(error).split())}; try again with"
            f" a connection, or give data.path. {source.how}".rstrip()
        ) from None
    frame = found.frame.rename(columns=source.rename)
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = [v.decode() if isinstance(v, bytes) else v for v in frame[name]]
    return frame
