"""Tables of other libraries as frames, without a loss: Arrow, polars, and whatever speaks one of
their interfaces.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    import pyarrow as pa


def as_frame(table: Any) -> Any:
    """A table of named columns as a pandas frame; what is none (an array, a list, sparse rows) as
    it is.

    Known are pandas, Arrow's tables and batches, and tables that give their columns through Arrow's
    C interface (``__arrow_c_stream__``: polars, DuckDB, ...) or the dataframe interchange protocol
    (``__dataframe__``).
    """
    if isinstance(table, pd.DataFrame):
        return table
    batch = hasattr(table, "__arrow_c_array__") and hasattr(table, "schema")
    if batch or hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa  # which frames and arrays do not need

        return arrow_frame(pa.table(table))
    if hasattr(table, "collect_schema") and hasattr(table, "collect"):  # a lazy frame of polars
        return as_frame(table.collect())
    if hasattr(table, "__dataframe__"):
        return pd.api.interchange.from_dataframe(table)
    return table


def arrow_frame(table: pa.Table | pa.RecordBatch, numbers: Collection[str] = ()) -> pd.DataFrame:
    """Columns of Arrow as a frame in which every cell keeps its value: whole numbers beside gaps
    stay whole.

    Those of ``numbers`` may become floating-point numbers with NaN for gaps, as a numeric column is
    read.
    """
    columns: dict[int, Any] = {}
    for place, (field, cells) in enumerate(zip(table.schema, table.columns, strict=True)):
        columns[place] = _series(cells, field.name in numbers)
    frame = pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows), copy=False)
    frame.columns = pd.Index(table.schema.names, dtype=object)
    return frame


def _series(cells: Any, number: bool) -> Any:
    import pyarrow as pa

    kind = cells.type
    if pa.types.is_integer(kind) and cells.null_count:
        if number:
            return cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return cells.to_pandas(integer_object_nulls=True)
    if pa.types.is_string_view(kind):
        cells = cells.cast(pa.large_string())
    if pa.types.is_float16(kind):
        return np.asarray(cells.to_numpy(zero_copy_only=False), dtype=np.float32)
    found = cells.to_pandas()
    return found.reset_index(drop=True) if isinstance(found, pd.Series) else found
