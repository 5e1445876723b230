"""A private profile reads each row by itself: one record changes no other row's cells, and no
layout for free.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.profile import draft_schema
from tasks.readers.cells import read_cells

ROWS = [b"1,5;Z\xc3\xbcrich;0", b"2,5;Bern;1", b"0,25;Z\xc3\xbcrich;1"]


def text(folder: Path, *more: bytes) -> Path:
    path = folder / f"{len(more)}-{len(list(folder.iterdir()))}.csv"
    path.write_bytes(b"\n".join([b"a;b;y", *ROWS, *more]) + b"\n")
    return path


def parquet(folder: Path, *more: int | None) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(
        pa.table({"a": pa.array([1, 2, 1, *more]), "y": pa.array([0, 1, 1, *([0] * len(more))])}),
        path,
    )
    return path


def compared(one: Path, other: Path, by_row: bool) -> bool:
    """Whether the rows that both files have read the same, and the layout too."""
    (a, layout), (b, told) = (read_cells(path, [], by_row=by_row) for path in (one, other))
    return layout == told and a.iloc[:3].equals(b.iloc[:3])


@pytest.mark.parametrize(
    "row", [b"north;Bern;0", b"3,5;M\xfcnchen;0", b"1.5;Bern;0", b"\xff;\xfe;0"]
)
def test_one_row_of_a_text_changes_no_other(tmp_path: Path, row: bytes) -> None:
    assert compared(text(tmp_path), text(tmp_path, row), by_row=True)
    # what a person may let a draft see
    one, other = (draft_schema(path, "y").values for path in (text(tmp_path), text(tmp_path, row)))
    assert one["text"] != other["text"]


def test_a_gap_in_a_parquet_column_changes_no_other_cell(tmp_path: Path) -> None:
    assert compared(parquet(tmp_path), parquet(tmp_path, None), by_row=True)
    assert compared(parquet(tmp_path), parquet(tmp_path, None), by_row=False)


def test_decimal_commas_are_numbers_in_each_cell(tmp_path: Path) -> None:
    frame, layout = read_cells(text(tmp_path), [], by_row=True)
    assert pd.to_numeric(frame["a"]).tolist() == [1.5, 2.5, 0.25]
    assert layout == {"text": {"separator": ";"}}
