"""Which declared columns are stored as codes, and what is refused where a table of them is made."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dpcore.errors import InputError
from dpcore.features import Column
from dpcore.objective.coded import CodedRows, Columns, Layout, Table
from dpcore.preprocess import Encoder
from dpcore.preprocess.coding import Coding
from dpcore.preprocess.design import EncodingReport
from tests.dpcore.objective.test_coded import COLUMNS, RNG, same


def test_a_number_with_a_declared_step_is_one_level_a_row_and_exact() -> None:
    grid = Column(name="x", low=0, high=90, step=1)
    plain = Column(name="x", low=0, high=90)
    numbers = np.array([0.0, 1.0, 44.0, 90.0, 44.4, 44.6, -7.0, 1e300, -1e300])
    nearest = np.array([0.0, 1.0, 44.0, 90.0, 44.0, 45.0, 0.0, 90.0, 0.0])
    for numeric in ("minmax", "hats(8)", "log", "bins(7)", "centred"):
        made = [
            Encoder([column], normalise="none", numeric=numeric, sparse=True)
            for column in (grid, plain)
        ]
        found = made[0].transform(pd.DataFrame({"x": numbers})).toarray()
        same(found, made[1].transform(pd.DataFrame({"x": nearest})).toarray())
        coding = Coding.of(made[0])
        assert coding.layout.fractions == 0 and coding.layout.row_bytes == 1
        rows = coding.rows(coding.table(pd.DataFrame({"x": numbers}), EncodingReport()))
        assert np.array_equal(rows.X.toarray(), found)
    assert Coding.of(Encoder([plain], normalise="none", numeric="hats(8)")).layout.fractions == 1


@pytest.mark.parametrize(
    ("high", "step"), [(10, 0.0), (10, -1), (10, 3), (10, float("nan")), (10, 1e-9), (1e300, 1)]
)
def test_a_step_that_is_no_grid_is_refused(high: float, step: float) -> None:
    with pytest.raises(InputError, match="whole number of times"):
        Column(name="x", low=0, high=high, step=step)
    with pytest.raises(InputError, match="numeric column alone"):
        Column(name="x", kind="flag", step=1)


def test_two_crossed_numbers_with_fractions_have_no_codes() -> None:
    for crosses, coded in (([["b", "e"]], False), ([["b", {"e": "bins(3)"}]], True)):
        encoder = Encoder(COLUMNS, normalise="none", numeric="hats(8)", crosses=crosses)
        assert (Coding.of(encoder) is not None) is coded


def test_a_column_without_encoded_columns_is_coded_too() -> None:
    columns = [
        Column(name="only", kind="categorical", levels=("x",), drop_first=True),
        Column(name="number", low=0, high=1),
    ]
    encoder = Encoder(columns)
    coding = Coding.of(encoder)
    frame = pd.DataFrame({"only": ["x", "x", "x"], "number": [0.0, 0.25, 1.0]})
    rows = coding.rows(coding.table(frame, EncodingReport(), np.float64))
    same(rows.X.toarray(), encoder.transform(frame))


def test_columns_are_joined_into_bytes_and_their_rows_add_up() -> None:
    def one_hot(levels: int, start: int) -> Columns:
        places = np.arange(levels)
        return Columns(
            "c", csr_array((np.ones(levels), (places, start + places)), shape=(levels, 20))
        )

    layout = Layout([one_hot(6, 0), one_hot(5, 6), one_hot(9, 11)], np.zeros(20))
    assert [sorted(group) for group in layout.groups] == [[0, 1], [2]]
    assert layout.row_bytes == 2
    codes = [RNG.integers(0, k, 50) for k in (6, 5, 9)]
    rows = CodedRows(Table.of(layout, codes, []), layout)
    wanted = np.zeros((50, 20))
    for start, code in zip((0, 6, 11), codes, strict=True):
        wanted[np.arange(50), start + code] = 1.0
    same(rows.X.toarray(), wanted)


def test_what_no_look_up_checks_is_refused_where_a_table_is_made() -> None:
    basis = csr_array(np.eye(3))
    slopes = csr_array(np.eye(3))
    layout = Layout([Columns("a", basis, slopes)], np.zeros(3))
    Table.of(layout, [np.array([0, 2])], [np.array([0.0, 1.0])])
    for codes, fractions in (
        ([0, 3], [0.0, 1.0]),
        ([0, 2], [0.0, 1.1]),
        ([0, 2], [-0.1, 1.0]),
        ([0, 2], [0, np.nan]),
    ):
        with pytest.raises(InputError, match="altered"):
            Table.of(layout, [np.array(codes)], [np.array(fractions)])
    with pytest.raises(InputError, match="share"):
        Layout([Columns("a", basis), Columns("b", basis)], np.zeros(3))
    with pytest.raises(InputError, match="levels"):
        Layout([Columns("a", csr_array((70_000, 3)))], np.zeros(3))
