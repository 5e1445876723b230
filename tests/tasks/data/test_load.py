"""Splits, blocks, persons, targets, exact counts, configurations and sources of a data set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import InputError
from tasks.data import load, peek
from tasks.data.split import hash_share
from tasks.schema import Schema

ROWS = 400
FRAME = pd.DataFrame(
    {
        "id": [f"p{k % 100}" for k in range(ROWS)],
        "day": pd.date_range("2024-01-01", periods=ROWS, freq="D").strftime("%Y-%m-%d"),
        "x": np.arange(ROWS) % 10,
        "y": np.where(np.arange(ROWS) % 3, "yes", "no"),
    }
)


def schema_of(**keys) -> Schema:
    base = {
        "schema_version": 1,
        "name": "t",
        "public": {"n": ROWS},
        "columns": {
            "id": {"kind": "user"},
            "day": {"kind": "ignore"},
            "x": {"kind": "numeric", "low": 0, "high": 9},
        },
        "label": {"column": "y", "positive": "yes", "negative": "no"},
    }
    return Schema.model_validate({**base, **keys})


def loaded(schema: Schema, frame: pd.DataFrame = FRAME, **settings):
    encoder = schema.encoder(normalise="none", intercept=False, sparse=False)
    return load(schema, encoder, frame=frame, **settings)


def test_hash_split_keeps_every_id_on_one_side_whatever_the_other_rows():
    schema = schema_of(split={"kind": "hash", "by": "id", "test_share": 0.3})
    whole = loaded(schema)
    assert 0 < whole.report.rows_test < ROWS
    train = set(whole.users)
    assert not train & (set(FRAME["id"]) - train)
    half = loaded(schema, FRAME.iloc[::2])
    assert set(half.users) == train & set(FRAME["id"].iloc[::2])
    shuffled = loaded(schema, FRAME.sample(frac=1, random_state=1))
    assert set(shuffled.users) == train


FROZEN = [0.4416607528437847, 0.5066444396348856, 0.9182090366839403]


def test_hash_is_fixed_for_ever():
    """The side of a row must not change with a version: these numbers are frozen."""
    columns = [(np.array([0, 1, -1]), ["a", 1.0])]
    np.testing.assert_array_equal(
        hash_share(columns, ""), hash_share([(np.array([0, 1, 2]), ["a", "1", ""])], "")
    )
    np.testing.assert_allclose(hash_share(columns, ""), FROZEN, rtol=0, atol=1e-15)
    spread = hash_share([(np.arange(10_000), list(range(10_000)))], "salt")
    assert abs(spread.mean() - 0.5) < 0.02 and abs((spread < 0.2).mean() - 0.2) < 0.02


def test_test_part_from_a_second_frame_and_one_class():
    schema = schema_of()
    both = loaded(schema, test_frame=FRAME.iloc[:50])
    assert both.report.rows_train == ROWS and both.report.rows_test == 50
    with pytest.raises(InputError, match="one class only"):
        loaded(schema, FRAME[FRAME["y"] == "yes"])
    with pytest.raises(InputError, match="no row of the blocks 1999 belongs to the training part"):
        loaded(schema_of(block={"column": "day", "by": "year"}), blocks=["1999"])


def test_exact_count_under_replace_one_only():
    assert loaded(schema_of(), adjacency="replace_one").train.n == ROWS
    assert loaded(schema_of(), FRAME.iloc[1:], adjacency="add_remove").train.n == ROWS - 1
    with pytest.raises(
        InputError,
        match=r"399 training rows, public\.n=400; under replace_one n "
        r"is the exact",
    ):
        loaded(schema_of(), FRAME.iloc[1:], adjacency="replace_one")


DAYS = ["2024-03-05", "2024-03-06", "2024-03-07"]


@pytest.mark.parametrize(
    ("by", "names"), [("month", ["2024-03"]), ("year", ["2024"]), ("day", DAYS), ("value", DAYS)]
)
def test_date_blocks(by, names):
    schema = schema_of(block={"column": "day", "by": by}, public={"rows_per_block": 31})
    everything = loaded(schema)
    chosen = loaded(schema, blocks=names)
    assert set(chosen.blocks) == set(names)
    assert chosen.train.n == int(np.isin(everything.blocks, names).sum())
    assert schema.n(3) == 93


def test_hash_blocks_hold_all_rows_of_a_person():
    data = loaded(schema_of(block={"column": "id", "by": "hash", "count": 7}))
    where = pd.DataFrame({"id": data.users, "block": data.blocks})
    assert (where.groupby("id")["block"].nunique() == 1).all()
    assert 2 <= where["block"].nunique() <= 7
    with pytest.raises(InputError, match=r"data row 3, column 'day'.*every row needs a block"):
        loaded(
            schema_of(block={"column": "day", "by": "month"}),
            FRAME.assign(day=["2024-01-01"] * 2 + ["soon"] * 398),
        )


def test_undeclared_labels_are_dropped_by_declaration_only():
    frame = FRAME.assign(y=["=N(TRUE)", "", *FRAME["y"].iloc[2:]])
    with pytest.raises(InputError, match=r"data row 1.*'=N\(TRUE\)'.*data row 2"):
        loaded(schema_of(), frame)
    label = {"column": "y", "positive": "yes", "negative": "no", "undeclared": "drop"}
    kept = loaded(schema_of(label=label), frame)
    assert kept.train.n == ROWS - 2 and kept.report.train["dropped"] == {"y": 2}
    for salt in "abcdef":  # also where such a row would be a test row
        split = {"kind": "hash", "by": "id", "test_share": 0.5, "salt": salt}
        parts = loaded(schema_of(label=label, split=split), frame)
        assert parts.train.n + parts.test.n == ROWS - 2
        assert set(parts.train.y) | set(parts.test.y) == {-1.0, 1.0}
    with pytest.raises(InputError, match="under replace_one declare refuse"):
        loaded(schema_of(label=label), frame, adjacency="replace_one")


def test_regression_targets_are_scaled_to_the_declared_range():
    label = {"column": "z", "kind": "regression", "low": 0, "high": 10, "scaled_to": [-1, 1]}
    frame = FRAME.assign(z=np.arange(ROWS) % 13).drop(columns="y")
    data = loaded(schema_of(label=label), frame)
    expected = np.clip(frame["z"], 0, 10) / 5 - 1
    np.testing.assert_allclose(data.train.y, expected)
    assert data.report.train["clipped"]["z"] == int((frame["z"] > 10).sum())
    with pytest.raises(InputError, match=r"column 'z'.*a number is needed"):
        loaded(schema_of(label=label), frame.assign(z=["x"] * ROWS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,city\n30,north\n", "the label column 'paid' is missing"),
        (
            "age,city,paid\n30,north,maybe\n",
            r"data row 1, column 'paid': 'maybe' is not a declared "
            r"label",
        ),
        ("age,city,paid\nold,north,yes\n", r"data row 1, column 'age': 'old' is not a number"),
        ("age,city,paid\n30,west,yes\n", r"data row 1, column 'city': 'west'"),
        ("", "the file is empty"),
    ],
)
def test_a_peek_refuses_what_loading_would(tmp_path, text, message):
    schema = Schema.model_validate({
        "schema_version": 1, "name": "s", "public": {"n": 10}, "split": {"kind": "file", "path": "test.csv"},
        "columns": {"age": {"kind": "numeric", "low": 0, "high": 100},
                    "city": {"kind": "categorical", "levels": ["north", "south"]}},
        "label": {"column": "paid", "positive": "yes", "negative": "no"},
    })  # fmt: skip
    good = "age,city,paid\n30,north,yes\n40,south,no\n"
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    for bad, other in ((train, test), (test, train)):
        bad.write_text(text)
        other.write_text(good)
        with pytest.raises(InputError, match=message) as refused:
            peek(schema, schema.encoder(), train)
        assert bad.name in str(refused.value)
    train.write_text(good)
    test.write_text(good)
    peek(schema, schema.encoder(), train)


def test_a_peek_leaves_out_the_rows_that_loading_does(tmp_path):
    schema = Schema.model_validate({
        "schema_version": 1, "name": "s", "public": {"rows_per_block": 10},
        "columns": {"age": {"kind": "numeric", "low": 0, "high": 100}, "year": {"kind": "block"}},
        "label": {"column": "paid", "positive": "yes", "negative": "no", "undeclared": "drop"},
        "block": {"column": "year"},
    })  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("age,year,paid\n,2025,yes\n,2026,never\n30,2026,yes\n31,2026,no\n")
    peek(schema, schema.encoder(), path, blocks=("2026",))
    assert load(schema, schema.encoder(), path, blocks=("2026",)).train.n == 2
    with pytest.raises(InputError, match=r"data row 1, column 'age'"):
        peek(schema, schema.encoder(), path, blocks=("2025",))
