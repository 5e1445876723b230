"""Tables that scikit-learn can download, cached on disk; reached only by a schema that asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from dpcore.errors import InputError
from tasks.home import Home
from tasks.schema import Schema


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
