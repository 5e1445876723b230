"""The encoder's promises: widths and bounds by declaration, norms and blocks on every row, one
encoding for all.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, issparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from dpcore.errors import InputError, UnknownName
from dpcore.features import hats, unit_interval
from dpcore.preprocess import (
    Column,
    Encoder,
    EncodingReport,
    FeatureGroup,
    MatrixEncoder,
    encoder_from_json,
)

COLUMNS = (
    Column(name="age", low=18, high=90),
    Column(name="wealth", low=-1000, high=100_000, fill="zeros"),
    Column(name="flag", kind="flag"),
    Column(
        name="sector",
        kind="categorical",
        levels=("Gov", "NA", "Private"),
        unknown="other",
        fill="NA",
    ),
    Column(name="size", kind="ordinal", levels=("S", "M", "L"), fill="zeros"),
    Column(
        name="day",
        kind="date",
        low="2020-01-01",
        high="2021-12-31",
        parts=("elapsed", "month", "weekday", "hour"),
    ),
)
FRAME = pd.DataFrame(
    {
        "age": [18, 54, 200],
        "wealth": [0.0, np.nan, -5000.0],
        "flag": [0, 1, 1],
        "sector": ["Gov", None, "Mining "],
        "size": ["S", "L", None],
        "day": ["2020-01-01", "2020-02-03", "2030-01-01"],
    }
)


def rows_of(X) -> np.ndarray:
    return X.toarray() if issparse(X) else np.asarray(X)


numbers = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([0.0, 17.999, 90.0, 1e308, -1e308, 5e-324])
)
records = st.fixed_dictionaries(
    {
        "age": numbers,
        "wealth": st.one_of(numbers, st.just(float("nan"))),
        "flag": st.sampled_from([0, 1]),
        "sector": st.sampled_from(["Gov", "NA", " Private", "?", None]),
        "size": st.sampled_from(["S", "M", "L", ""]),
        "day": st.dates().map(lambda d: f"{d.year:04d}-{d.month:02d}-{d.day:02d}"),
    }
)


@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
@pytest.mark.parametrize("numeric", ["minmax", "log", "hats", "hats(3)", "centred"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(records, min_size=1, max_size=4))
def test_norm_bound_and_blocks_hold_on_every_row(normalise, numeric, intercept, dtype, rows):
    encoder = Encoder(
        COLUMNS, normalise=normalise, numeric=numeric, intercept=intercept, dtype=dtype
    )
    X = rows_of(encoder.transform(pd.DataFrame(rows))).astype(np.float64)
    design = encoder.design
    assert X.shape[1] == design.dimension
    assert np.isfinite(X).all()
    assert (np.linalg.norm(X, axis=1) <= design.norm_bound * (1 + 1e-12)).all()
    for block in design.blocks:
        part = X[:, list(block.columns)]
        assert (part >= 0).all()
        assert (part.sum(axis=1) <= 1 + 1e-12).all()


@settings(max_examples=50, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e9, 1e9),
    st.floats(0, 1e9),
    st.booleans(),
)
def test_unit_interval_never_leaves_0_1(value, low, width, log):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u = unit_interval(np.array([value]), low, low + width, log)
    assert 0.0 <= u[0] <= 1.0


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1), st.integers(2, 20))
def test_hats_are_the_declared_functions(u, count):
    j, left, right = hats(np.array([u]), count)
    full = np.zeros(count)
    full[j[0]], full[j[0] + 1] = left[0], right[0]
    expected = np.maximum(0.0, 1.0 - np.abs((count - 1) * u - np.arange(count)))
    np.testing.assert_allclose(full, expected, atol=1e-12)


def test_zero_of_a_wide_column_sits_on_the_first_hat():
    encoder = Encoder(
        [Column(name="gain", low=0, high=99_999)], normalise="none", numeric="hats", intercept=False
    )
    X = rows_of(encoder.transform(pd.DataFrame({"gain": [0, 99_999]})))
    assert X[0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert X[1].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


def test_names_and_counts():
    tally = EncodingReport()
    encoder = Encoder(COLUMNS, normalise="none", sparse=False)
    X = encoder.encode(FRAME, tally)
    names = list(encoder.get_feature_names_out())
    assert names[:8] == [
        "age", "wealth", "flag", "sector=Gov", "sector=NA", "sector=Private", "sector=(other)", "size",
    ]  # fmt: skip
    assert names[8] == "day.elapsed"
    assert names[9:11] == ["day.month=1", "day.month=2"]
    assert names[-1] == "intercept"
    assert tally.clipped == {"age": 1, "wealth": 1, "day.elapsed": 1}
    assert tally.filled == {"wealth": 1, "sector": 1, "size": 1}
    assert tally.unknown == {"sector": 1}
    assert X[1, names.index("sector=NA")] == 1 and X[2, names.index("sector=(other)")] == 1
    assert X[:, names.index("size")].tolist() == [0, 1, 0]
    assert X[1, names.index("day.month=2")] == 1 and X[1, names.index("day.weekday=Mon")] == 1
    np.testing.assert_allclose(X[1, names.index("day.elapsed")], 33 / 730)


def test_one_row_equals_the_same_row_in_a_large_table():
    encoder = Encoder(COLUMNS)
    many = pd.concat([FRAME] * 50, ignore_index=True)
    X = rows_of(encoder.transform(many))
    for row in range(3):
        np.testing.assert_array_equal(rows_of(encoder.transform(FRAME.iloc[[row]]))[0], X[row])


@pytest.mark.parametrize("sparse", [True, False])
def test_text_categories_and_plain_columns_encode_alike(sparse):
    encoder = Encoder(COLUMNS, sparse=sparse)
    as_category = FRAME.astype({"sector": "category", "size": "category", "day": "category"})
    as_object = FRAME.astype(object)
    expected = rows_of(encoder.transform(FRAME))
    np.testing.assert_array_equal(rows_of(encoder.transform(as_category)), expected)
    np.testing.assert_array_equal(rows_of(encoder.transform(as_object)), expected)


def test_dates_as_timestamps_and_as_text_encode_alike():
    encoder = Encoder([COLUMNS[-1]], sparse=False)
    text = pd.DataFrame({"day": ["2020-01-01", "2021-06-30"]})
    np.testing.assert_array_equal(
        encoder.transform(text.astype({"day": "datetime64[ns]"})), encoder.transform(text)
    )
    filled = Encoder(
        [Column(**{**COLUMNS[-1].to_dict(), "parts": ("elapsed", "month"), "fill": "zeros"})],
        intercept=False,
    )
    assert (
        rows_of(filled.transform(pd.DataFrame({"day": [None, "2020-01-01"]})))[0].tolist()
        == [0] * 13
    )


def test_json_round_trip_is_plain_and_exact():
    encoder = Encoder(COLUMNS, normalise="none", numeric="hats(5)", dtype="float32")
    text = encoder.to_json()
    again = encoder_from_json(text)
    assert again.design == encoder.design
    np.testing.assert_array_equal(
        rows_of(again.transform(FRAME)), rows_of(encoder.transform(FRAME))
    )
    assert again.to_json() == text
    with pytest.raises(UnknownName, match="field of a stored encoder"):
        encoder_from_json(json.dumps({**json.loads(text), "extra": 1}))
    with pytest.raises(InputError, match="schema_version"):
        encoder_from_json(json.dumps({**json.loads(text), "schema_version": 2}))


def test_scikit_learn_interface():
    encoder = Encoder(COLUMNS, sparse=False)
    assert clone(encoder).design == encoder.design
    frame = encoder.set_output(transform="pandas").transform(FRAME)
    assert list(frame.columns) == list(encoder.get_feature_names_out())
    model = make_pipeline(Encoder(COLUMNS), LogisticRegression()).fit(FRAME, [0, 1, 1])
    assert model.predict(FRAME).shape == (3,)


def test_settings_change_after_the_first_use():
    encoder = Encoder(COLUMNS)
    before = encoder.design.dimension
    encoder.set_params(numeric="hats")
    # age, wealth, size, and two parts of the date
    assert encoder.design.dimension == before + 7 * 5


def test_csr_is_chosen_from_the_declared_widths_alone():
    narrow = Encoder([Column(name="a", low=0, high=1)])
    wide = Encoder([Column(name="s", kind="categorical", levels=tuple("abcdefgh"))])
    assert isinstance(narrow.transform(pd.DataFrame({"a": [0.0]})), np.ndarray)
    X = wide.transform(pd.DataFrame({"s": ["a", "h"]}))
    assert isinstance(X, csr_array) and X.has_sorted_indices


def test_drop_first_and_lone_flag_are_blocks_of_one_column():
    encoder = Encoder(
        [Column(name="s", kind="categorical", levels=("n", "y"), drop_first=True)], intercept=False
    )
    assert encoder.design.names == ("s=y",)
    assert [b.kind for b in encoder.design.blocks] == ["one_hot"]
    assert rows_of(encoder.transform(pd.DataFrame({"s": ["n", "y"]}))).tolist() == [[0], [1]]


def test_hats_that_unit_rows_stretch_are_no_longer_one_block():
    """(1/2, 1/2) becomes (0.707, 0.707), whose sum is above 1: only single columns stay within [0,
    1].
    """
    settings = {"numeric": "hats(3)", "normalise": "unit"}
    encoder = Encoder([Column(name="a", low=0, high=4)], intercept=False, **settings)
    X = rows_of(encoder.transform(pd.DataFrame({"a": [1.0]})))
    assert X.sum() > 1.4
    assert [len(b.columns) for b in encoder.design.blocks] == [1, 1, 1]
    with_intercept = Encoder([Column(name="a", low=0, high=4)], **settings)
    assert [len(b.columns) for b in with_intercept.design.blocks] == [3]


def test_two_columns_at_the_same_time_are_refused():
    with pytest.raises(InputError, match="'a' twice"):
        _ = Encoder([Column(name="a", low=0, high=1), Column(name="a", low=0, high=1)]).design


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "numbr"}, "did you mean 'numeric'"),
        ({"low": 2, "high": 1}, r"Expected low <= high for column 'c', got low=2 > high=1; swap"),
        ({"low": 0, "high": float("inf")}, "finite bounds"),
        ({"kind": "categorical"}, "Expected declared levels for column 'c', got none"),
        ({"kind": "categorical", "levels": ("a", "a")}, "'a' twice"),
        ({"kind": "categorical", "levels": ("a",), "fill": "b"}, "fill='b'"),
        ({"low": 0, "high": 1, "fill": "mean"}, "fill='mean'"),
        ({"low": 0, "high": 1, "numeric": "spline"}, "numeric='spline'"),
        ({"kind": "date", "low": "soon", "high": "2020-01-01"}, "ISO date as low"),
        (
            {"kind": "date", "low": "2020-01-01", "high": "2021-01-01", "parts": ("yeer",)},
            "did you mean 'year'",
        ),
        (
            {"kind": "ordinal", "levels": ("a", "b"), "unknown": "other"},
            "no place for it in the order",
        ),
        ({"kind": "categorical", "levels": ("zeros",), "fill": "zeros"}, "ambiguous"),
        ({"low": 0, "high": 1, "unknown": "zero"}, "did you mean 'zeros'"),
    ],
)
def test_bad_declarations_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Column(name="c", **fields)


def test_refused_cells_are_listed_on_one_line():
    frame = FRAME.assign(age=["x", "", "40"], day=["2020-13-01", "2020-01-01", ""])
    with pytest.raises(InputError) as caught:
        Encoder(COLUMNS).transform(frame)
    message = str(caught.value)
    assert "\n" not in message
    for cell in (
        "row 1, column 'age': 'x'",
        "row 2, column 'age': no value",
        "row 1, column 'day': '2020-13-01'",
    ):
        assert cell in message


def test_text_is_not_covered_by_a_fill():
    column = Column(name="a", low=0, high=1, fill=0, missing=("?",))
    encoder = Encoder([column], normalise="none", intercept=False)
    assert rows_of(encoder.transform(pd.DataFrame({"a": ["?", "", "1"]}))).tolist() == [
        [0],
        [0],
        [1],
    ]
    with pytest.raises(InputError, match="'abc' is not a finite number"):
        encoder.transform(pd.DataFrame({"a": ["abc", "1"]}))


def test_an_array_without_names_is_refused_and_no_rows_are_fine():
    with pytest.raises(
        InputError, match="Expected a pandas DataFrame with named columns, got ndarray"
    ):
        Encoder(COLUMNS).transform(np.zeros((1, 6)))
    with pytest.raises(InputError, match="two columns named 'age'"):
        Encoder(COLUMNS).transform(pd.concat([FRAME, FRAME[["age"]]], axis=1))
    assert Encoder(COLUMNS).transform(FRAME.iloc[:0]).shape == (
        0,
        Encoder(COLUMNS).design.dimension,
    )


def test_missing_column_names_near_misses():
    with pytest.raises(InputError, match=r"Expected column 'age'.*did you mean 'Age'"):
        Encoder(COLUMNS).transform(FRAME.rename(columns={"age": "Age"}))


GROUPS = (
    FeatureGroup(name="u", low=0, high=10),
    FeatureGroup(name="job", count=3, kind="one_hot"),
    FeatureGroup(name="flag", kind="flag"),
    FeatureGroup(name="v", count=2, low=0, high=2),
)


@pytest.mark.parametrize("normalise", ["none", "cap", "unit"])
@pytest.mark.parametrize("intercept", [True, False])
@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(-5, 20), min_size=7, max_size=7), min_size=1, max_size=4))
def test_matrix_encoder_bounds_and_csr_equals_dense(normalise, intercept, rows):
    X = np.array(rows)
    dense = MatrixEncoder(GROUPS, normalise=normalise, intercept=intercept, sparse=False)
    sparse = MatrixEncoder(GROUPS, normalise=normalise, intercept=intercept, sparse=True)
    A, B = dense.transform(X), sparse.transform(csr_array(X))
    np.testing.assert_allclose(A, B.toarray(), atol=1e-14)
    assert (np.linalg.norm(A, axis=1) <= dense.design.norm_bound * (1 + 1e-12)).all()
    for block in dense.design.blocks:
        part = A[:, list(block.columns)]
        assert (part >= 0).all() and (part.sum(axis=1) <= 1 + 1e-12).all()


def test_matrix_encoder_counts_and_refuses():
    tally = EncodingReport()
    encoder = MatrixEncoder(GROUPS, normalise="none", intercept=False)
    X = encoder.encode(np.array([[20.0, 1, 1, 0, 1, 0, 0]]), tally)
    assert rows_of(X)[0].tolist() == [1, 0.5, 0.5, 0, 1, 0, 0]
    assert tally.clipped == {"u": 1} and tally.capped == {"job": 1}
    with pytest.raises(InputError, match=r"data row 1, column 'job2': nan"):
        encoder.transform(np.array([[0, 0, np.nan, 0, 0, 0, 0.0]]))
    with pytest.raises(InputError, match="Expected 7 columns"):
        encoder.transform(np.zeros((1, 6)))
    assert encoder_from_json(encoder.to_json()).design == encoder.design
