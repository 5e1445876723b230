"""Tables to score: a header where the training files had none, folders, and what is said about
either.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpcore.errors import InputError
from flows.commands.predict import read_table, read_tables, table_parts
from tasks.readers import source_paths
from tasks.record.scoring import LinearScorer
from tasks.schema import Schema

SCHEMA = Schema.model_validate({
    "schema_version": 1, "name": "s", "public": {"n": 10}, "text": {"header": False}, "source": {"path": "rows.csv"},
    "columns": {"age": {"kind": "numeric", "low": 0, "high": 100},
                "city": {"kind": "categorical", "levels": ["north", "south"]}},
    "label": {"column": "paid", "positive": "yes", "negative": "no"},
})  # fmt: skip
CARD = {"label": {"column": "paid"}, "text": SCHEMA.text.model_dump(mode="json")}


@pytest.mark.parametrize(
    "text",
    [
        "30,north\n40,south\n",
        "30,north,yes\n40,south,no\n",
        "age,city\n30,north\n40,south\n",
        "city,paid, age\nnorth,yes,30\nsouth,no,40\n",
    ],
)
def test_a_table_is_read_with_and_without_header(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    frame = read_table(path, SCHEMA.encoder(), CARD)
    assert list(frame.columns) == ["age", "city"]
    assert frame["age"].astype(float).tolist() == [30, 40] and frame["city"].tolist() == [
        "north",
        "south",
    ]


@pytest.mark.parametrize("head", ["AGE,CITY", "age,town", "city,years"])
def test_a_header_that_does_not_fit_is_one_clear_line(tmp_path: Path, head: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{head}\n30,north\n")
    with pytest.raises(
        InputError,
        match=r"t\.csv: line 1 looks like a header, but lacks the column '(age|city)'; "
        r"name",
    ) as e:
        read_table(path, SCHEMA.encoder(), CARD)
    assert len(str(e.value).splitlines()) == 1


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("head", ["age,city,age", "age, city,city ", "note,age,city,note"])
def test_two_columns_of_one_name_are_refused_as_in_a_training(
    tmp_path: Path, header: bool, head: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{head}\n" + ",".join(["30"] * len(head.split(","))) + "\n")
    card = {**CARD, "text": {**CARD["text"], "header": header}}
    with pytest.raises(InputError, match=r"t\.csv: two columns are named '(age|city|note)'; give"):
        read_table(path, SCHEMA.encoder(), card)


def test_two_columns_of_one_name_in_a_parquet_file_are_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    cells = [pa.array([30.0]), pa.array([31.0]), pa.array(["north"])]
    pq.write_table(pa.Table.from_arrays(cells, names=["age", "age", "city"]), path)
    with pytest.raises(InputError, match=r"t\.parquet: two columns are named 'age'; give"):
        read_table(path, SCHEMA.encoder(), CARD)


def test_a_header_that_the_schema_names_anew_is_read_over(tmp_path: Path) -> None:
    """A training reads such a file by ``text.names``; so does scoring."""
    path = tmp_path / "t.csv"
    path.write_text("x,x,paid\n30,north,yes\n40,south,no\n")
    card = {**CARD, "text": {**CARD["text"], "header": True, "names": ["age", "city", "paid"]}}
    frame = read_table(path, SCHEMA.encoder(), card)
    assert frame["age"].astype(float).tolist() == [30, 40] and frame["city"].tolist() == [
        "north",
        "south",
    ]


def test_a_folder_without_the_declared_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"declared file 'rows\.csv' in the folder "
        r"data\.path='.*'",
    ):
        source_paths(SCHEMA, tmp_path, SCHEMA.source.path)
    with pytest.raises(InputError, match=r"Expected files in the folder .*, got none"):
        source_paths(SCHEMA, tmp_path, ())
    (tmp_path / "rows.csv").write_text("30,north,yes\n")
    assert source_paths(SCHEMA, tmp_path, SCHEMA.source.path) == [tmp_path / "rows.csv"]


def test_parts_of_a_folder_are_scored_one_after_the_other(tmp_path: Path) -> None:
    for name, text in (("a.csv", "30,north\n40,south\n"), ("b.csv", "city,age\nsouth,50\n")):
        (tmp_path / name).write_text(text)
    for place in (tmp_path, tmp_path / "*.csv"):
        frame = read_tables(table_parts(place), SCHEMA.encoder(), CARD)
        assert frame["age"].astype(float).tolist() == [30, 40, 50]
        assert frame["city"].tolist() == ["north", "south", "south"]
    assert table_parts(tmp_path / "none.csv") == [] and table_parts("x" * 5000) == []


def test_names_in_other_letters_reach_the_stored_scorer() -> None:
    scorer = LinearScorer()
    scorer.encoder = SCHEMA.encoder()
    found = scorer.complete(pd.DataFrame({"\ufeffage": [30], " city ": ["north"], "more": [1]}))
    assert {"age", "city"} <= set(found.columns)
    with pytest.raises(InputError, match="got none for age; add it"):
        scorer.complete(pd.DataFrame({"city": ["north"]}))
