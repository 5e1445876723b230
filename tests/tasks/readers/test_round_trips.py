"""A table that a program wrote is read as it was, to the bit and the letter, or refused by its
name.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from dpcore.errors import InputError
from dpcore.identity import canonical
from tasks.readers import open_chunks
from tasks.schema import Schema

COLUMNS = {
    "x": {"kind": "numeric", "low": 0, "high": 1, "fill": 0},
    "t": {"kind": "id"},
    "b": {"kind": "id"},
    "d": {"kind": "date", "low": "2000-01-01", "high": "2030-01-01"},
    "note": {"kind": "ignore"},
}


def schema_of(**text: Any) -> Schema:
    label = {"column": "y", "positive": "true", "negative": "false"}
    shape = {"schema_version": 1, "name": "t", "public": {"n": 9}, "columns": COLUMNS}
    return Schema.model_validate({**shape, "label": label, "text": text})


LETTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
WORDS = st.one_of(
    st.text(LETTERS, max_size=6),
    st.sampled_from(
        ["a,b", 'a"b', "'", "\\", "?", "a\nb", "a\r\nb", "nan", "None", "007", "1.0", "true", "TRUE", "+1",
         "\ufeffa", "e\u0301", "\u00e9", "a;b\tc", "%", "{0 1}", "#", " x ", "1e3", "2026-01-01"]
    ),
)  # fmt: skip
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True),
    st.integers(-(2**62), 2**62).map(float),
    st.sampled_from([0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22]),
)
ROWS = st.lists(
    st.tuples(st.none() | NUMBERS, st.none() | WORDS, st.booleans(), st.dates(date(1900, 1, 1))),
    min_size=1,
    max_size=6,
)


def frame_of(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["x", "t", "b", "d"])
    frame["x"] = frame["x"].astype(float)
    frame["t"] = frame["t"].astype(object)
    frame["d"] = pd.to_datetime(frame["d"]).astype("datetime64[us]")
    frame["note"] = "any"
    frame["y"] = True
    return frame


def text(separator: str, decimal: str, encoding: str, quoting: int, fast: bool) -> Any:
    def write(frame: pd.DataFrame, folder: Path) -> tuple[Path, Schema]:
        frame.to_csv(
            folder / "t.csv",
            index=False,
            sep=separator,
            decimal=decimal,
            encoding=encoding,
            quoting=quoting,  # type: ignore[arg-type]
            date_format="%Y-%m-%d",
        )
        known = {"utf-8-sig": "utf-8"}.get(encoding, encoding)
        return folder / "t.csv", schema_of(separator=separator, decimal=decimal, encoding=known)

    return write


def stored(name: str, write: Callable[[pd.DataFrame, Path], Any]) -> Any:
    def written(frame: pd.DataFrame, folder: Path) -> tuple[Path, Schema]:
        write(frame, folder / name)
        return folder / name, schema_of()

    return written


def kinds(backend: Any) -> Callable[[pd.DataFrame, Path], Any]:
    return lambda frame, path: frame.convert_dtypes(dtype_backend=backend).to_parquet(path)


def categories(frame: pd.DataFrame, path: Path) -> None:
    frame.astype({"t": "category", "b": "category"}).to_parquet(path)


def excel(frame: pd.DataFrame, path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    assume(not frame["t"].astype(str).str.contains(r"^=|\r|_x[0-9A-Fa-f]{4}_", regex=True).any())
    try:
        frame.to_excel(path, index=False)
    except (openpyxl.utils.exceptions.IllegalCharacterError, ValueError):
        assume(False)


def stata(frame: pd.DataFrame, path: Path) -> None:
    try:
        frame.assign(t=frame["t"].fillna("")).to_stata(path, write_index=False, version=118)
    except ValueError:
        assume(False)


def spss(frame: pd.DataFrame, path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    assume(frame["t"].notna().any() and frame["x"].notna().any())
    assume(not (frame["x"].abs() > 1.7e308).any())  # the largest stand for no value in that format
    pyreadstat.write_sav(frame.assign(b=frame["b"].astype(float)), str(path))


def arff(frame: pd.DataFrame, path: Path) -> None:
    assume(
        not frame["t"].astype(str).str.contains(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]").any()
    )

    def quoted(cell: str | None) -> str:
        return (
            "?"
            if cell is None or cell != cell
            else "'" + cell.replace("\\", "\\\\").replace("'", "\\'") + "'"
        )

    head = [
        "@relation t",
        "@attribute x numeric",
        "@attribute t string",
        "@attribute b {True,False}",
    ]
    head += [
        '@attribute d date "yyyy-MM-dd"',
        "@attribute note string",
        "@attribute y {True}",
        "@data",
    ]
    rows = [
        f"{'?' if row.x != row.x else repr(row.x)},{quoted(row.t)},{row.b},{row.d:%Y-%m-%d},any,True"
        for row in frame.itertuples()
    ]
    path.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8", newline="")


WRITERS: dict[str, Any] = {
    "comma": text(",", ".", "utf-8", csv.QUOTE_MINIMAL, True),
    "semicolon, decimal comma": text(";", ",", "utf-8-sig", csv.QUOTE_MINIMAL, True),
    "tab, UTF-16, all quoted": text("\t", ".", "utf-16", csv.QUOTE_ALL, False),
    "Parquet": stored("t.parquet", lambda frame, path: frame.to_parquet(path)),
    "Parquet, nullable": stored("t.parquet", kinds("numpy_nullable")),
    "Parquet, Arrow": stored("t.csv", kinds("pyarrow")),
    "Parquet, categories": stored("t.parquet", categories),
    "Feather": stored("t.feather", lambda frame, path: frame.to_feather(path)),
    "workbook": stored("t.xlsx", excel),
    "Stata": stored("t.dta", stata),
    "SPSS": stored("t.sav", spss),
    "ARFF": stored("t.arff", arff),
}


def cells(frame: pd.DataFrame, name: str) -> list[str]:
    return [canonical(cell) for cell in frame[name].astype(object)]


@pytest.mark.parametrize("make", WRITERS)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=ROWS)
@example(rows=[(0.1, "a\nb", True, date(2026, 1, 31)), (None, None, False, date(1999, 12, 31))])
@example(rows=[(1 / 3, '"a"', True, date(2026, 1, 31)), (5e-324, " 007", False, date(2000, 2, 29))])
def test_a_table_is_read_as_it_was_written(make: str, rows: list[tuple[Any, ...]]) -> None:
    written = frame_of(rows)
    with TemporaryDirectory() as folder:
        path, schema = WRITERS[make](written, Path(folder))
        try:
            chunks = list(open_chunks(schema, [path]))
        except InputError as error:
            assert path.name in str(error) and "\n" not in str(error)
            return
        assert not any(chunk.faults for chunk in chunks)
        read = pd.concat([chunk.table for chunk in chunks], ignore_index=True)
    np.testing.assert_array_equal(read["x"].to_numpy(float), written["x"].to_numpy())
    assert cells(read, "t") == cells(written, "t")
    as_words = {"1": "true", "0": "false"} if make in ("SPSS", "Stata") else {}
    assert [as_words.get(cell, cell) for cell in cells(read, "b")] == cells(written, "b")
    days = [canonical(cell)[:10] for cell in read["d"].astype(object)]
    assert days == [f"{moment:%Y-%m-%d}" for moment in written["d"]]
