"""The identity rule: which cells name the same user, session, block, label or level, and which
never do.
"""

from __future__ import annotations

import ast
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore import identity
from dpcore.errors import InputError
from dpcore.estimators import DPRanker
from dpcore.identity import (
    IDENTITY_RULE,
    canonical,
    check_distinct,
    identities,
    names_nobody,
    unit_codes,
)
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.users import UserObjective
from dpcore.preprocess import Column, Encoder
from dpcore.preprocess.column_encoders import named
from dpcore.ranking.metrics import mean_average_precision
from dpcore.ranking.sessions import Sessions, join

ROOT = Path(__file__).resolve().parents[2]

# Frozen: a change of any of these is another version of the rule, which ledgers would have to
# refuse.
VERSION_1: list[tuple[Any, str]] = [
    (7, "7"),
    (7.0, "7"),
    ("7", "7"),
    ("7.0", "7"),
    ("7.00", "7"),
    (" 7\t", "7"),
    ("\ufeff7\u00a0", "7"),
    (np.int8(7), "7"),
    (np.float32(7), "7"),
    (Decimal("7.00"), "7"),
    ("007", "007"),
    ("+7", "+7"),
    ("7e0", "7e0"),
    ("1_000", "1_000"),
    ("7.", "7."),
    (".5", ".5"),
    ("00.5", "00.5"),
    ("0.50", "0.5"),
    (0.5, "0.5"),
    (np.float32(0.1), "0.1"),
    (0.1, "0.1"),
    (1e-7, "0.0000001"),
    ("0.0000001", "0.0000001"),
    (10, "10"),
    ("10", "10"),
    ("100.0", "100"),
    (1e15, "1000000000000000"),
    (2**60 + 1, "1152921504606846977"),
    ("1152921504606846977", "1152921504606846977"),
    (0.0, "0"),
    (-0.0, "0"),
    ("0.0", "0"),
    ("-0", "0"),
    (-7, "-7"),
    (-7.0, "-7"),
    ("-7.0", "-7"),
    (True, "true"),
    (np.False_, "false"),
    ("True", "true"),
    ("TRUE", "true"),
    ("true", "true"),
    ("tRue", "tRue"),
    ("Zoe\u0308", "Zoë"),
    ("a  b", "a  b"),
    ("A", "A"),
    (None, ""),
    (float("nan"), ""),
    (pd.NA, ""),
    (pd.NaT, ""),
    ("  ", ""),
    (pd.Timestamp("2026-01-05"), "2026-01-05"),
    (np.datetime64("2026-01-05"), "2026-01-05"),
    (date(2026, 1, 5), "2026-01-05"),
    (datetime(2026, 1, 5, 10, tzinfo=timezone(timedelta(hours=1))), "2026-01-05 09:00:00+00:00"),
    (datetime(2026, 1, 5, 9, tzinfo=UTC), "2026-01-05 09:00:00+00:00"),
]


@pytest.mark.parametrize(("value", "text"), VERSION_1, ids=[repr(value) for value, _ in VERSION_1])
def test_version_1_of_the_rule_is_frozen(value: Any, text: str) -> None:
    assert IDENTITY_RULE == 1
    assert canonical(value) == text == canonical(text)


def test_blanks_and_decimals_count_as_the_schema_declares_them() -> None:
    assert canonical(" 7", strip=False) == " 7" and canonical("7.0", strip=False) == "7"
    assert canonical("7,0", decimal=",") == "7" and canonical("7.0", decimal=",") == "7.0"
    assert canonical("1.000", decimal=",") == "1.000" and canonical(7.5, decimal=",") == "7.5"
    assert canonical("7,5", decimal=",") == "7.5" and canonical("7,5") == "7,5"


def test_blanks_are_those_of_python_and_the_mark_of_byte_order() -> None:
    assert set(identity.BLANKS) == {chr(c) for c in range(0x110000) if chr(c).isspace()} | {
        "\ufeff"
    }


@given(st.text(max_size=12), st.booleans(), st.sampled_from([".", ","]))
def test_the_rule_gives_back_its_own_results(text: str, strip: bool, decimal: str) -> None:
    once = canonical(text, strip, decimal)
    assert canonical(once, strip, decimal) == once
    assert canonical(normalize("NFD", text), strip, decimal) == once


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_whole_numbers_are_one_id_in_every_type(value: int) -> None:
    texts = {
        canonical(v, unit=True)
        for v in (value, float(value), np.int64(value), str(value), f"{value}.0", Decimal(value))
    }
    assert texts == {str(value)}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_and_its_own_plain_decimal_are_one_id(value: float) -> None:
    assert canonical(np.format_float_positional(value, trim="0")) == canonical(value)


@pytest.mark.parametrize(
    "value", [2.0**53, -(2.0**60), np.float32(2.0**24), np.float16(2.0**11), float("inf")]
)
def test_numbers_that_stand_for_several_ids_are_refused_as_units(value: Any) -> None:
    with pytest.raises(InputError, match="stands for several whole numbers"):
        canonical(value, unit=True)
    with pytest.raises(InputError, match="stands for several whole numbers"):
        unit_codes(np.array([value]), "users")
    assert canonical(value)  # a level or a cell of a split may be anything


@pytest.mark.parametrize("value", [b"7", [7], {"a": 1}, 7j, object()])
def test_what_is_no_text_number_or_date_is_no_id(value: Any) -> None:
    with pytest.raises(InputError, match="as an id"):
        canonical(value)


def test_two_declared_texts_with_one_canonical_text_are_refused() -> None:
    with pytest.raises(InputError, match=r"got '7' and '7.0', which are one"):
        check_distinct(["7", "7.0"], "the levels")
    for levels in (("1", "1.0"), ("Zoë", "Zoe\u0308"), ("true", "True")):
        with pytest.raises(InputError, match="which are one"):
            Column(name="c", kind="categorical", levels=levels)
    blank = Column(name="c", kind="categorical", levels=("a", "a "))
    with pytest.raises(InputError, match="which are one"):
        Encoder((blank,)).fit()
    assert Encoder((blank,), strip=False).fit().design.dimension == 3


def test_what_names_nobody() -> None:
    for text in ("", "nan", "NaN", "NaT", "None", "<NA>", "?"):
        assert names_nobody(text, {"?"})
    assert not names_nobody("?") and not names_nobody("0", {"?"})


ONE_ID: list[list[Any]] = [
    ["7", "7.0", " 7"],
    [7, 7.0, "7.00"],
    ["Zoë", "Zoe\u0308", "Zoë "],
]


@pytest.mark.parametrize("ids", ONE_ID)
def test_whoever_groups_rows_goes_by_the_rule(ids: list[Any]) -> None:
    values = np.array([*ids, "other"], dtype=object)
    assert len(identities(values)[1]) == 2
    X, y = np.eye(4), np.array([1.0, 0.0, 2.0, 1.0])
    sessions = Sessions.from_rows(X, y, values)
    assert (sessions.n, list(sessions.documents.lengths)) == (2, [3, 1])
    users = UserObjective(
        LinearObjective(X, np.array([1.0, -1.0, 1.0, 1.0]), make_loss("logistic")), values, 3
    )
    assert users.n == 2
    assert mean_average_precision(y, y, values) == mean_average_precision(
        y, y, np.array([1, 1, 1, 2])
    )
    with pytest.raises(InputError, match="in two"):
        join([sessions, Sessions.from_rows(X[:1], y[:1], np.array([ids[1]], dtype=object))])
    frame = pd.Series(values)
    for cells in (frame, frame.astype("category"), pd.concat([frame] * 40, ignore_index=True)):
        codes, texts = named(cells, True)
        assert len({texts[code] for code in codes}) == 2


@pytest.mark.parametrize(
    "kind", ["int64", "float64", "float32", "Int64", "Float64", "string", "object", "category"]
)
@pytest.mark.parametrize("rows", [5, 500])
def test_a_column_of_any_type_and_length_gives_the_same_texts(kind: str, rows: int) -> None:
    numbers = np.arange(rows) % 3
    cells = pd.Series(numbers.astype(str) if kind in ("string", "object") else numbers).astype(kind)
    codes, texts = named(cells, True, unit=True)
    assert [texts[code] for code in codes] == [str(number) for number in numbers]


@pytest.mark.parametrize("rows", [4, 200])
def test_booleans_and_numbers_of_one_column_stay_apart(rows: int) -> None:
    cells = pd.Series([True, 1, 0, False] * (rows // 4), dtype=object)
    codes, texts = named(cells, True)
    assert [texts[code] for code in codes[:4]] == ["true", "1", "0", "false"]
    codes, texts = identities(cells.to_numpy())
    assert [texts[code] for code in codes[:4]] == ["true", "1", "0", "false"]


@pytest.mark.parametrize("nobody", [float("nan"), None, "", " ", "nan", pd.NA])
def test_sessions_without_a_name_are_refused_with_their_row(nobody: Any) -> None:
    groups = ["q1", "q2", nobody, "q1"]
    X, y = np.eye(4), np.array([1.0, 0.0, 2.0, 1.0])
    for given_ in (groups, np.array(groups, dtype=object), pd.Series(groups, dtype=object)):
        with pytest.raises(InputError, match=r"id in every row of groups, got none .* in row 2"):
            DPRanker().fit(X, y, groups=given_)
    with pytest.raises(InputError, match="in row 1"):
        DPRanker().fit(X, y, groups=np.array([1.0, np.nan, 2.0, 1.0]))


def test_the_estimator_has_one_session_for_two_spellings() -> None:
    X, y = np.random.default_rng(0).normal(size=(8, 3)), np.array([1.0, 0.0, 2.0, 1.0] * 2)
    groups = np.array(["q1", "q1 ", "q2", " q2", "3", "3.0", "q4", "q4"], dtype=object)
    ranker = DPRanker(adjacency="add_remove", n=100, features=("raw", "rank"))
    ranker.fit(X, y, groups)
    clean = np.array([text.strip().removesuffix(".0") for text in groups])
    np.testing.assert_array_equal(ranker.predict(X, groups), ranker.predict(X, clean))


def test_nothing_else_compares_ids() -> None:
    """Texts of cells are made by the rule alone: no module that knows units turns them into text by
    itself.
    """
    units = (
        "dpcore/objective/users.py",
        "dpcore/ranking",
        "dpcore/estimators/ranker.py",
        "tasks/data",
        "tasks/record/scoring.py",
    )
    found = []
    for path in (
        p
        for unit in units
        for p in ([ROOT / unit] if unit.endswith(".py") else (ROOT / unit).rglob("*.py"))
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            grouped = node.func.attr in ("unique", "factorize") and names & {
                "users",
                "groups",
                "queries",
            }
            # there: whole numbers
            as_text = node.func.attr == "astype" and "str" in names and path.name != "units.py"
            if grouped or as_text:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


@given(
    st.lists(
        st.sampled_from(
            ["a", "7", "7.0", "a b", " 7", "-0", "True", "nan", "", "x.1", "1.5", "é", "10", "b\0c"]
        )
    )
)
def test_many_texts_at_once_are_those_one_by_one(texts: list[str]) -> None:
    many = texts + ["z"] * identity.MANY
    assert identity.canonical_texts(many) == [canonical(text) for text in many]
    if identity.plain_texts(many, {"", "nan"}):
        assert many == [canonical(text) for text in many] and not {"", "nan"} & set(many)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00+05:00"])
def test_a_moment_beyond_the_calendar_is_refused_in_words(text: str) -> None:
    with pytest.raises(InputError, match="years 1 to 9999"):
        identity.utc_text(text)
