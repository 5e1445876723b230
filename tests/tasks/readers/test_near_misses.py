"""What a person writes who means the right thing: names that differ in capitals or need quotes,
bounds with zones, sparse rows of one cell.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

from dpcore.errors import InputError
from tasks import training
from tasks.config import parse_config

NUMBER = "{kind: numeric, low: 0, high: 10}"
YES = "{column: y, positive: yes, negative: no}"
ROWS = "a,y\n{},yes\n{},no\n{},yes\n"


def read(
    folder: Path, columns: str, source: str, name: str = "t.csv", text: str = ""
) -> np.ndarray:
    """The encoded rows of a small table."""
    if text:
        (folder / name).write_text(text)
    (folder / "t.yaml").write_text(
        "schema_version: 1\nname: t\npublic: {n: 3, public: true}\nundeclared: ignore\n"
        f"source: {source}\ncolumns:\n{indent(columns, '  ')}\nlabel: {YES}\nsplit: {{kind: none}}\n"
    )
    config = {
        "data": {"name": str(folder / "t.yaml")},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "preprocess": {"numeric": "minmax"},
    }
    job = training.prepare(parse_config(config))
    return np.asarray(training.load_records(job).open().train.X)


def table(folder: Path, columns: str, text: str, name: str = "t.csv") -> np.ndarray:
    return read(folder, columns, f"{{path: {folder / name}}}", name, text)


def test_a_bound_with_a_zone_is_the_moment_that_cells_with_zones_are(tmp_path: Path) -> None:
    rows = ROWS.format(*(f"2024-0{month}-01T01:00:00+0200" for month in (1, 3, 5)))
    form = "format: '%Y-%m-%dT%H:%M:%S%z'"
    found = [
        table(tmp_path, f"a: {{kind: date, low: {low}, high: {high}, {form}}}", rows)
        for low, high in (
            ("2024-01-01T00:00:00+02:00", "2024-12-31T00:00:00+02:00"),
            ("'2023-12-31T22:00:00Z'", "'2024-12-30T22:00:00Z'"),
            ("2023-12-31T22:00:00", "2024-12-30T22:00:00"),
        )
    ]
    assert found[0][0, 0] == pytest.approx(1.0 / 24 / 365, rel=1e-9), "an hour after the bound"
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


@pytest.mark.parametrize(
    ("columns", "text", "said"),
    [
        (f"A: {NUMBER}", ROWS.format(1, 2, 3), "did you mean 'a'"),
        (
            "a: {kind: categorical, levels: [red, blue]}",
            ROWS.format("Red", "red", "blue"),
            "'Red' is not a declared level, 'red' is \\(capitals count\\)",
        ),
        (
            "a: {kind: numeric, low: 2024-01-01, high: 2024-12-31}",
            ROWS.format(1, 2, 3),
            "Expected numbers as low and high of column 'a'.*kind: date",
        ),
        (
            "a: {kind: date, low: 2024-01-01, high: 2024-12-31, fill: 2024-06-01}",
            ROWS.format(1, 2, 3),
            "filled by the word zeros alone",
        ),
        (
            "a: {kind: date, low: 2024-01-01, high: 2024-12-31, fill: 2024}",
            ROWS.format(1, 2, 3),
            "filled by the word zeros alone",
        ),
        (
            "a: {kind: date, low: 2024-01-01, high: 2024-12-31}",
            ROWS.format("2024-01-05T10:00:00Z", "2024-01-05", ""),
            "%z where it has a zone.*or declare the fill zeros",
        ),
    ],
)
def test_the_way_out_is_named(tmp_path: Path, columns: str, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        table(tmp_path, columns, text)


def test_a_label_of_one_letter_in_other_capitals_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'Y'"):
        table(tmp_path, f"a: {NUMBER}", ROWS.format(1, 2, 3).replace("a,y", "a,Y"))


def test_a_sparse_row_of_one_cell_is_read(tmp_path: Path) -> None:
    head = "@relation r\n@attribute a numeric\n@attribute y {yes,no}\n@data\n"
    text = head + "{0 1,1 yes}\n{1 no}\n{0 3}\n"
    found = table(tmp_path, f"a: {NUMBER}", text, "t.arff")
    np.testing.assert_allclose(found[:, 0], [0.1, 0.0, 0.3])


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with sqlite3.connect(tmp_path / "d.db") as made:
        made.execute(
            'create table "My Table" ("Age of" real, "in" real, "a""b" real, "MiXed" real, y text)'
        )
        rows = [(1, 2, 3, 4, "yes"), (2, 3, 4, 5, "no"), (3, 4, 5, 6, "yes")]
        made.executemany('insert into "My Table" values (?, ?, ?, ?, ?)', rows)
    made.close()
    monkeypatch.setenv("NEAR_MISSES", f"sqlite:///{tmp_path / 'd.db'}")
    return tmp_path


def selected(folder: Path, where: str, name: str = "My Table") -> np.ndarray:
    columns = "\n".join(f"{column!r}: {NUMBER}" for column in ("Age of", "in", 'a"b', "MiXed"))
    source = f"{{kind: sql, url_from: NEAR_MISSES, table: '{name}', where: '{where}'}}"
    return read(folder, columns, source)


@pytest.mark.parametrize("where", ['"Age of" > 1', '"a""b" > 3', '"in" > 2', "MiXed > 4"])
def test_columns_that_need_quotes_are_compared(database: Path, where: str) -> None:
    np.testing.assert_allclose(selected(database, where)[:, 0], [0.2, 0.3])


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mixed > 4", "got 'mixed > 4' with 'mixed'; .*did you mean 'MiXed'"),
        ("Age of > 1", "double quotes; did you mean 'Age of'"),
        ('"age of" > 1', "did you mean 'Age of'"),
    ],
)
def test_a_column_of_a_condition_that_is_not_there_is_named(
    database: Path, where: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        selected(database, where)


@pytest.mark.parametrize("name", ["my table", '"My Table"', "MyTable"])
def test_a_table_that_is_not_there_is_named(database: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"did you mean 'My Table'.*without quotes"):
        selected(database, "", name)
