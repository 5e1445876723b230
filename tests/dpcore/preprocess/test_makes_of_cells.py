"""One value in every make that tables have: types of pandas, Arrow and Python, zones, letters, and
texts of numbers.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from math import inf, isnan
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpcore.errors import InputError
from dpcore.features import number_of
from dpcore.preprocess import Encoder

COLUMNS = [
    {"name": "a", "kind": "numeric", "low": 0, "high": 10, "fill": "zeros"},
    {"name": "l", "kind": "categorical", "levels": ["u", "v"], "fill": "v"},
    {
        "name": "d",
        "kind": "date",
        "low": "2020-01-01",
        "high": "2025-01-01",
        "parts": ["elapsed", "hour"],
        "fill": "zeros",
    },
]
MOMENT = pd.Timestamp("2021-05-01 12:00")
ZONED = MOMENT.tz_localize("UTC")


def arrow(cells: list, kind: pa.DataType | None = None) -> pd.Series:
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(cells, kind)))


NUMBERS = {
    "objects": pd.Series([1, None, pd.NA, np.nan], dtype=object),
    "objects and NaT": pd.Series([1.0, pd.NaT, None, None], dtype=object),
    "nullable": pd.Series([1, None, None, None], dtype="Int64"),
    "nullable single": pd.Series([1, None, None, None], dtype="Float32"),
    "Arrow whole": arrow([1, None, None, None], pa.int8()),
    "Arrow decimal": arrow([Decimal("1.00"), None, None, None], pa.decimal128(5, 2)),
    "decimals": pd.Series([Decimal(1), None, Decimal("NaN"), None], dtype=object),
    "Booleans": pd.Series([True, None, None, None], dtype="boolean"),
    "Arrow Booleans": arrow([True, None, None, None]),
    "texts": pd.Series(["1", None, "", " "]),
    "texts with pd.NA": pd.Series([" 1.0", None, "", None], dtype="string"),
    "Arrow texts": arrow(["1", None, "", None]),
    "Arrow codes": pd.Series(
        pd.arrays.ArrowExtensionArray(pa.array(["1", None, "", None]).dictionary_encode())
    ),
    "categories": pd.Series([1, None, None, None], dtype="category"),
}
TEXTS = {
    "objects": pd.Series(["u", None, pd.NA, np.nan], dtype=object),
    "texts": pd.Series(["u", None, "", None]),
    "texts with pd.NA": pd.Series(["u", None, None, None], dtype=pd.StringDtype("python", pd.NA)),
    "Arrow texts": arrow(["u", None, "", None]),
    "categories": pd.Series(["u", None, None, None], dtype="category"),
}
DATES = {
    "moments": pd.Series([MOMENT, None, None, None]),
    "in another zone": pd.Series([ZONED.tz_convert("Asia/Tokyo"), None, None, None]),
    "in two zones": pd.Series([ZONED.tz_convert("Asia/Tokyo"), None, pd.NaT, pd.NA], dtype=object),
    "of Python": pd.Series([ZONED.to_pydatetime(), None, None, None], dtype=object),
    "Arrow": arrow([datetime(2021, 5, 1, 12), None, None, None], pa.timestamp("ms")),
    "Arrow, zoned": arrow([ZONED, None, None, None], pa.timestamp("us", "America/Lima")),
}


def encoded(name: str, cells: pd.Series, times: int) -> list[list[float]]:
    frame = pd.DataFrame({"a": [0.0] * 4, "l": ["u"] * 4, "d": [MOMENT] * 4})
    frame[name] = cells
    frame = pd.concat([frame] * times, ignore_index=True)
    encoder = Encoder(COLUMNS, normalise="none", intercept=False, sparse=False)
    rows = np.asarray(encoder.transform(frame))
    np.testing.assert_array_equal(rows, np.tile(rows[:4], (times, 1)))
    places = {"a": [0], "l": [1, 2], "d": [3, 4]}[name]
    return rows[:4, places].tolist()


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("make", NUMBERS)
def test_numbers_and_gaps_of_every_make(make: str, times: int) -> None:
    assert encoded("a", NUMBERS[make], times) == [[0.1], [0.0], [0.0], [0.0]]


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("make", TEXTS)
def test_levels_and_gaps_of_every_make(make: str, times: int) -> None:
    assert encoded("l", TEXTS[make], times) == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("make", DATES)
def test_one_instant_is_one_moment_in_every_zone(make: str, times: int) -> None:
    expected = encoded("d", pd.Series([MOMENT, None, None, None]), 1)
    assert expected[0][1] == 12 / 23
    assert encoded("d", DATES[make], times) == expected


def test_dates_without_hours_need_no_format() -> None:
    column = {
        "name": "d",
        "kind": "date",
        "low": "2021-01-01",
        "high": "2021-12-31",
        "format": "%d.%m.%Y",
    }
    encoder = Encoder([column], normalise="none", intercept=False, sparse=False)
    cells = [date(2021, 5, 1), "01.05.2021"]
    first, second = np.asarray(
        encoder.transform(pd.DataFrame({"d": pd.Series(cells, dtype=object)}))
    )
    assert first == second


def test_composed_letters_blanks_and_marks_of_byte_order_in_names() -> None:
    name = normalize("NFC", "gr\u00f6\u00dfe")
    encoder = Encoder(
        [{"name": name, "kind": "flag"}], normalise="none", intercept=False, sparse=False
    )
    for given in (name, normalize("NFD", name), f"\ufeff{name}", f" {normalize('NFD', name)} "):
        assert np.asarray(encoder.transform(pd.DataFrame({given: [1.0]}))).tolist() == [[1.0]]
    with pytest.raises(
        InputError,
        match=r"Expected one column 'größe', got .* which compare as "
        r"it",
    ):
        encoder.transform(pd.DataFrame({f"{name} ": [1.0], f"\ufeff{name}": [0.0]}))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        (" -1.50 ", -1.5),
        (".5", 0.5),
        ("2.", 2.0),
        ("+1e3", 1000.0),
        ("-Inf", -inf),
        ("0.1", 0.1),
    ],
)
def test_texts_that_are_numbers(text: str, value: float) -> None:
    assert number_of(text) == value


@pytest.mark.parametrize(
    "text", ["1_000", "\u0661\u0662", "1,5", "0x10", "1e", "", "--1", "1 2", "infinit"]
)
def test_what_only_python_reads_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        number_of(text)
    encoder = Encoder([{"name": "a", "kind": "numeric", "low": 0, "high": 10}])
    with pytest.raises(InputError, match="data row 1, column 'a'"):
        encoder.transform(pd.DataFrame({"a": [text]}))


def test_nan_as_a_text_is_a_number_that_is_none() -> None:
    assert isnan(number_of("NaN"))
