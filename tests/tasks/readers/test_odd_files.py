"""Files as they come from other hands: read rightly, or refused on one line that says what it is."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import InputError
from tasks.data import load
from tasks.schema import Schema

SHAPE = {
    "schema_version": 1,
    "name": "visits",
    "public": {"n": 40, "public": True},
    "columns": {
        "age": {"kind": "numeric", "low": 0, "high": 100},
        "ward": {"kind": "categorical", "levels": ["A", "Zo\u00eb"]},
    },
    "label": {"column": "y", "positive": "1", "negative": "0"},
    "undeclared": "ignore",
}
WARDS = ("Zo\u00eb", "A", "A")
BODY = [f"{20 + k},{WARDS[k % 3]},{k % 2}" for k in range(40)]


def table(head: str = "age,ward,y", *more: str) -> str:
    return "\n".join([head, *BODY, *more]) + "\n"


def zipped(**files: bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return whole.getvalue()


PLAIN = table().encode()
READ: dict[str, tuple[bytes, dict[str, Any]]] = {
    "carriage returns": (PLAIN.replace(b"\n", b"\r"), {}),
    "two ends of lines": (PLAIN.replace(b"\n", b"\r\n", 9), {}),
    "UTF-16 without a mark": (table().encode("utf-16-le"), {"encoding": "utf-16-le"}),
    "UTF-32": (table().encode("utf-32"), {"encoding": "utf-32"}),
    "two marks": (b"\xef\xbb\xbf" * 2 + PLAIN, {}),
    "blank names": (table(" age ,\tward , y ").encode(), {}),
    "a nameless column": (
        table("age,ward,y,").replace(",1\n", ",1,\n").replace(",0\n", ",0,\n").encode(),
        {},
    ),
    "Excel's first line": (b"sep=,\n" + PLAIN, {"skip_lines": 1}),
    "an archive of a Mac": (zipped(**{"t.csv": PLAIN, "__MACOSX/._t.csv": b"x"}), {}),
    "gz that is none": (PLAIN, {}),
}


def read(data: bytes, folder: Path, **text: Any) -> Any:
    path = folder / "t.csv"
    path.write_bytes(data)
    schema = Schema.model_validate({**SHAPE, "text": text})
    return load(schema, schema.encoder(), path).train


@pytest.mark.parametrize("make", READ)
def test_an_odd_file_is_the_same_table(make: str, tmp_path: Path) -> None:
    data, text = READ[make]
    found, plain = read(data, tmp_path, **text), read(PLAIN, tmp_path)
    np.testing.assert_array_equal(found.X, plain.X)
    np.testing.assert_array_equal(found.y, plain.y)


REFUSED: dict[str, tuple[bytes, str]] = {
    "JSON": (b'[{"age": 1}]', "got a JSON document; export it as CSV"),
    "lines of JSON": (b'{"age": 1, "ward": "A", "y": 1}\n' * 9, "got a JSON document"),
    "a page": (b"<html><table><tr><td>age</td></tr></table></html>", "document in XML or HTML"),
    "UTF-16 without a mark": (table().encode("utf-16-le"), r"got a binary file or one in UTF-16"),
    "UTF-16": (table().encode("utf-16"), "mark of byte order of UTF-16"),
    "UTF-32": (table().encode("utf-32"), "got a text in UTF-32"),
    "packed twice": (gzip.compress(gzip.compress(PLAIN)), "packed by gzip inside another packing"),
    "packed in an archive": (zipped(a=gzip.compress(PLAIN)), "by gzip inside another packing"),
    "two tables": (zipped(a=PLAIN, b=PLAIN), "Expected one table in a zip archive, got 2 files"),
    "Excel's first line": (b"sep=,\n" + PLAIN, r"declare text\.skip_lines where titles or marks"),
    "a title": (b"Visits of 2026\n" + PLAIN, r"declare text\.skip_lines where titles or marks"),
    "an open quote": (table("age,ward,y", '50,"A,1').encode(), "a quote in line 42 does not end"),
    "a header alone": (b"age,ward,y", "no data rows"),
    "blanks alone": (b"\n \n\n", "no data rows"),
    "two of a name": (table("age,age,y").encode(), "two columns are named 'age'"),
    "a header again": (
        table("age,ward,y", "age,ward,y").encode(),
        "data row 41, column 'age': 'age'",
    ),
    "a sum below": (table("age,ward,y", "Total,,").encode(), "data row 41, column 'age': 'Total'"),
    "no label": (table("age,ward,y", "50,A,").encode(), "data row 41, column 'y': '' is not a"),
    "a short row": (table("age,ward,y", "50,A").encode(), "3 fields in data row 41, got 2 fields"),
}


@pytest.mark.parametrize("make", REFUSED)
def test_what_is_no_table_is_named_on_one_line(make: str, tmp_path: Path) -> None:
    data, words = REFUSED[make]
    with pytest.raises(InputError, match=rf"t\.csv.*{words}") as caught:
        read(data, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_sheet_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    pd.DataFrame({"age": [1]}).to_excel(tmp_path / "t.xlsx", sheet_name="Visits")
    schema = Schema.model_validate({**SHAPE, "source": {"sheet": "Wards"}})
    with pytest.raises(InputError, match=r"named source\.sheet='Wards', got Visits; correct it"):
        load(schema, schema.encoder(), tmp_path / "t.xlsx")


@pytest.mark.parametrize("name", ["t.csv", "t.xlsx"])
def test_of_a_first_row_without_a_declared_name_no_cell_is_told(name: str, tmp_path: Path) -> None:
    row = pd.DataFrame([[41, "secret"], [42, "other"]])
    if name == "t.xlsx":
        pytest.importorskip("openpyxl")
        row.to_excel(tmp_path / name, index=False, header=False)
    else:
        row.to_csv(tmp_path / name, index=False, header=False)
    schema = Schema.model_validate(SHAPE)
    with pytest.raises(InputError, match="names none of the declared columns") as caught:
        load(schema, schema.encoder(), tmp_path / name)
    assert "secret" not in str(caught.value) and "41" not in str(caught.value).replace(name, "")
