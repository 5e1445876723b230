"""The side of a row is what it always was, however its digests are made."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.identity import canonical
from dpcore.objective import compiled
from dpcore.preprocess.column_encoders import factors
from tasks.data import split
from tasks.data.split import Digests, hash_share, shares
from tasks.schema.sections import TextSpec

RNG = np.random.default_rng(0)
N = 300


def single(values: Any) -> np.ndarray:
    """In single precision; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float32)


def first(column: tuple[np.ndarray, list[Any]], salt: str, text: TextSpec) -> np.ndarray:
    """The digests as they were first made: of every distinct value its text, one by one."""
    codes, uniques = column
    key = salt.encode()[:64]
    texts = [*(canonical(value, text.strip, text.decimal) for value in uniques), ""]
    digests = [
        int.from_bytes(blake2b(t.encode(), digest_size=8, key=key).digest(), "big") for t in texts
    ]
    return np.array(digests, dtype=np.uint64)[codes]


SPELLED = [
    *("7", "7.0", "7.00", "007", "+7", "7e0", "1_000", " 7 ", "\t7", "7,5", "7.5", "0,50", "0.50"),
    *("-0", "-0.0", "true", "TRUE", "False", "", "nan", "None", "NaT", "é", "e\u0301", "\ufeffx"),
    *("a b", "Ünïcode", "\u3000x", "x\0y", "1e-5", "0.00001", "12345678901234567890.5"),
    *("x" * k for k in (23, 127, 128, 129, 255, 256, 257, 1000)),
    "ß" * 64,
]
EDGES = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, 0.3, 1e-4, 9.999e-5, 1e-5, 5e-324, 1e15, 1e16]
EDGES += [2.0**53, 2.0**53 - 1, 2.0**52 + 0.5, 1e300, 123456.789, 1 / 3, 1e22, 4.35, 0.5, 9.5]
POWERS = 2.0 ** np.arange(-20, 56)
FLOATS = np.concatenate(
    [
        EDGES,
        *(np.nextafter(POWERS, end) for end in (-np.inf, np.inf)),
        POWERS,
        RNG.random(N),
        10 ** RNG.uniform(-6, 18, N),
        RNG.integers(-(10**6), 10**6, N) / 1000,
        RNG.integers(0, 2**20, N) / 2.0 ** RNG.integers(0, 40, N),
    ]
)
FLOATS = np.concatenate([FLOATS, -FLOATS])
WHOLE = [0, 1, -1, 9, 10, 99, 100, 2**53, 2**63 - 1, -(2**63), *RNG.integers(-(10**9), 10**9, N)]
MOMENTS = pd.to_datetime(
    ["2024-01-01", "2024-01-01 10:00:01.5", None, "1999-12-31 23:59:59"], format="ISO8601"
)


def columns() -> dict[str, pd.Series]:
    """Cells of every kind that a reader gives."""
    found: dict[str, Any] = {
        "float64": FLOATS,
        "float32": single(FLOATS),
        "float16": np.array([*EDGES[:10], 1.5], np.float16),
        "other bytes first": np.array(EDGES, np.dtype(np.float64).newbyteorder()),
        "few floats": RNG.integers(0, 9, 2 * N) / 4,
        "integers as floats": np.array(WHOLE, dtype=float),
        "int64": np.array(WHOLE),
        "uint64": np.array([0, 5, 2**63, 2**64 - 1], np.uint64),
        "bool": np.array([True, False]),
        "Int64": pd.array([1, None, -7, 2**60], dtype="Int64"),
        "Float64": pd.array([1.5, None, 7.0], dtype="Float64"),
        "boolean": pd.array([True, None], dtype="boolean"),
        "string": pd.array([*SPELLED, None], dtype="string"),
        "object": np.array([*SPELLED, None, np.nan], dtype=object),
        "category": pd.Categorical([*SPELLED[:9], None]),
        "category of floats": pd.Categorical([1.0, 2.5, np.nan, 1e-7]),
        "category of integers": pd.Categorical([1, 2, 7]),
        "big": np.array([2**70, 7, -(2**65)], dtype=object),
        "mixed": np.array([7, 7.0, "7", True, 1, "true", None, 0.5, date(2024, 1, 2)], object),
        "decimals": np.array([Decimal("7.50"), Decimal("1E-9"), Decimal("NaN")], object),
        "dates": np.array([date(2024, 1, 1), None], dtype=object),
        "moments": MOMENTS,
        "zoned": MOMENTS.tz_localize("Europe/Berlin"),
        "python moments": np.array([datetime(2024, 1, 1), datetime(2024, 1, 1, 5, 6)], object),
        "matrix": np.asfortranarray(FLOATS[:60].reshape(2, 30))[0],
    }
    found |= {
        kind: np.array([0, 1, 77], kind) for kind in ("int8", "int16", "int32", "uint8", "uint32")
    }
    return {name: pd.Series(cells) for name, cells in found.items()}


@pytest.fixture(params=["plain", "compiled"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "compiled":
        pytest.importorskip("numba")
        monkeypatch.setattr(split, "MANY", 1)
        monkeypatch.setattr(split, "SAMPLE", 64)
        monkeypatch.setattr(split, "DISTINCT", 60)
    compiled.use(request.param == "compiled")
    yield request.param
    compiled.use(False)


@pytest.mark.parametrize(
    ("salt", "text"),
    [("", TextSpec()), ("salt", TextSpec(strip=False)), ("é" * 40, TextSpec(decimal=","))],
    ids=["plain texts", "blanks count", "a long salt and a decimal comma"],
)
def test_a_row_keeps_its_side_whatever_its_cells_are(how: str, salt: str, text: TextSpec) -> None:
    digests = Digests(salt, text)
    for name, cells in columns().items():
        expected = first(factors(cells), salt, text)
        assert np.array_equal(digests.of_cells(cells), expected), name


def test_a_share_is_made_of_all_cells_in_their_order(how: str) -> None:
    """The polynomial of its digests, mixed; after the rule as it stands, in whole numbers."""
    table = pd.DataFrame({"a": FLOATS[:50], "b": np.arange(50), "c": ["x", "y"] * 25})
    found = shares([Digests("s").of_cells(table[name]) for name in table])
    for row, share in zip(zip(*(table[name] for name in table), strict=True), found, strict=True):
        z = 0
        for cell in row:
            one = blake2b(canonical(cell).encode(), digest_size=8, key=b"s").digest()
            z = (z * 0x9E3779B97F4A7C15 + int.from_bytes(one, "big")) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        assert share == ((z ^ z >> 31) >> 11) / 2**53
    pairs = [factors(table[name]) for name in table]
    assert np.array_equal(hash_share(pairs, "s"), found)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=40), st.lists(st.text(), min_size=1))
def test_any_numbers_and_texts_have_the_first_digests(
    numbers: list[float], texts: list[str]
) -> None:
    pytest.importorskip("numba")
    many, split.MANY = split.MANY, 1
    compiled.use(True)
    try:
        for cells in (pd.Series(numbers), pd.Series(single(numbers)), pd.Series(texts)):
            expected = first(factors(cells), "", split.PLAIN)
            assert np.array_equal(Digests("").of_cells(cells), expected)
    finally:
        split.MANY = many
        compiled.use(False)


@pytest.mark.slow
def test_shortest_decimals_are_those_of_every_kind_of_number() -> None:
    pytest.importorskip("numba")
    compiled.use(True)
    rng = np.random.default_rng(1)
    for _ in range(10):
        bits = rng.integers(0x3F1A36E2EB1C432D, 0x4340000000000000, 100_000)
        small = rng.integers(0x38D1B717, 0x5A000000, 100_000).astype(np.uint32).view(np.float32)
        scaled = rng.integers(0, 10**9, 100_000) / 10.0 ** rng.integers(0, 9, 100_000)
        for values in (bits.view(np.float64), small, scaled):
            cells = pd.Series(values)
            expected = first(factors(cells), "", split.PLAIN)
            assert np.array_equal(Digests("").of_cells(cells), expected)
    compiled.use(False)
