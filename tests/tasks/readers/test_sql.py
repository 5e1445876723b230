"""A table of a database: its rows are those of a file, its password is nowhere, and a row is one
record's.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import column, select

from dpcore.errors import InputError
from tasks.config.read import parse_config
from tasks.data import Reading, load, peek
from tasks.ledger import Ledger
from tasks.options import options_of
from tasks.readers import source_paths
from tasks.readers.parts import SqlTable
from tasks.readers.sql import condition
from tasks.schema import Schema

ROWS = pd.DataFrame(
    {
        "ward": ["A", "B", None, "A"] * 30,
        "age": [30, 40, None, 61] * 30,
        "seen": ["2026-01-10"] * 120,
        "note": ["x"] * 120,
        "died": [1, 0, 0, 1] * 30,
    }
).astype({"age": "Int64"})


def schema_of(**source: Any) -> Schema:
    return Schema.model_validate(
        {
            "schema_version": 1,
            "name": "visits",
            "public": {"n": 120, "public": True},
            "source": {"kind": "sql", "table": "visits", **source},
            "columns": {
                "ward": {"kind": "categorical", "levels": ["A", "B"], "fill": "zeros"},
                "age": {"kind": "numeric", "low": 0, "high": 100, "fill": 50},
                "seen": {"kind": "date", "low": "2026-01-01", "high": "2026-02-01"},
            },
            "label": {"column": "died", "positive": 1, "negative": 0},
            "undeclared": "ignore",
        }
    )


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hospital.db"
    with sqlite3.connect(path) as connection:
        ROWS.to_sql("visits", connection, index=False)
        connection.execute("CREATE VIEW adults AS SELECT * FROM visits WHERE age >= 18")
        connection.execute("CREATE VIEW grown AS SELECT * FROM adults")
        for name, query in (MIXED | PLAIN).items():
            connection.execute(f"CREATE VIEW {name} AS {query}")
    connection.close()
    monkeypatch.setenv("DPFLOWS_SOURCE_URL", f"sqlite:///{path}")
    return path


MIXED = {
    "joined": "SELECT a.* FROM visits a JOIN visits b ON a.age = b.age",
    "crossed": "SELECT a.* FROM visits a, visits b",
    "counted": "SELECT ward, max(age) AS age, seen, died FROM visits GROUP BY ward",
    "one": "SELECT DISTINCT * FROM visits",
    "few": "SELECT * FROM visits LIMIT 10",
    "ranked": "SELECT ward, age, seen, rank() OVER (ORDER BY age) AS died FROM visits",
    "nested": "SELECT * FROM visits WHERE age > (SELECT avg(age) FROM visits)",
    "summed": "SELECT ward, total(age) AS age, seen, died FROM visits",
    "on_joined": "SELECT * FROM joined",
    "behind_a_comment": "SELECT a.* FROM visits a -- where\n, visits b",
    "behind_another": "SELECT a.* FROM visits a /* WHERE 'x */, visits b WHERE a.age = b.age",
    "made_first": "WITH one AS (SELECT DISTINCT * FROM visits) SELECT * FROM one",
    "drawn": "SELECT ward, age, seen, random() > 0 AS died FROM visits",
    "both": "SELECT * FROM visits UNION ALL SELECT * FROM visits",
}
PLAIN = {
    "dated": "SELECT ward, age, cast(substr(seen, 1, 10) AS varchar(10)) AS seen, died FROM "
    '"visits" AS v WHERE v.age >= 18 -- grown',
    "called": "SELECT * FROM VISITS WHERE age >= 18 AND ward <> 'a join, or (SELECT 1)'",
}


def test_rows_are_those_of_a_file(database: Path, tmp_path: Path) -> None:
    ROWS.to_csv(tmp_path / "t.csv", index=False)
    schema = schema_of()
    found = load(schema, schema.encoder())
    one = load(schema, schema.encoder(), tmp_path / "t.csv")
    np.testing.assert_array_equal(found.train.X, one.train.X)  # type: ignore[union-attr]
    np.testing.assert_array_equal(found.train.y, one.train.y)  # type: ignore[union-attr]
    assert sum(chunk.rows for chunk in Reading(schema).training_chunks()) == 120
    peek(schema, schema.encoder())
    assert sqlite3.connect(database).execute("SELECT count(*) FROM visits").fetchone() == (120,)


def test_pieces_of_a_stream_are_one_table(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of()
    whole = load(schema, schema.encoder()).train
    monkeypatch.setattr("tasks.readers.sql.chunk_rows", lambda columns: 7)
    np.testing.assert_array_equal(load(schema, schema.encoder()).train.X, whole.X)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("age >= 40", 60),
        ("age between 35 and 45 or ward = 'A'", 90),
        ("NOT (ward = 'A') and age is not null", 30),
        ("ward IN ('A', 'O''Neil')", 60),
        ("ward is null", 30),
        ("ward not in ('A')", 30),
        ("\"seen\" like '2026-01%'", 120),
        ("age<>30 AND age!=40", 30),
    ],
)
def test_a_condition_on_the_row_itself(database: Path, where: str, rows: int) -> None:
    schema = schema_of(where=where)
    chunks = list(Reading(schema).training_chunks())
    assert sum(chunk.rows for chunk in chunks) == rows


@pytest.mark.parametrize(
    "where",
    ["age > (SELECT 1)", "age = max(age)", "1 = 1", "age > ward", "ward = 'A'; DROP TABLE "
                                                                  "visits", "age",
     "exists (select 1)", "other = 3", "age > 3 limit "
                                       "5", "age = 3 --", "ward like age", "age in ()"],
)  # fmt: skip
def test_any_other_condition_is_refused(database: Path, where: str) -> None:
    schema = schema_of(where=where)
    with pytest.raises(InputError, match="Expected a condition on the row itself"):
        load(schema, schema.encoder())


def test_values_of_a_condition_are_bound() -> None:
    found = condition("ward = 'x'' OR 1=1'", ["ward"])
    compiled = select(column("ward")).where(found).compile()
    assert "1=1" not in str(compiled) and list(compiled.params.values()) == ["x' OR 1=1"]


@pytest.mark.parametrize("view", ["adults", "grown", *PLAIN])
def test_a_view_of_rows_is_read(database: Path, view: str) -> None:
    schema = schema_of(table=view)
    assert load(schema, schema.encoder()).report.rows_train == 90


def by_user(view: str, unit: str = "user") -> Schema:
    told = schema_of(table=view).model_dump()
    source = {**told["source"], "rows_by_user": unit == "user"}
    columns = {**told["columns"], "who": {"kind": "user"}}
    shape = {"unit": unit, "public": {"n": 40, "rows_per_user": 3}}
    return Schema.model_validate({**told, **shape, "source": source, "columns": columns})


VIEWS = {
    "own": "SELECT v.*, p.who FROM visits v JOIN people p ON v.rowid = p.visit",
    "own_sums": "SELECT p.who, max(ward) AS ward, avg(age) AS age, min(seen) AS seen, max(died) AS "
    "died FROM visits v JOIN people p ON v.rowid = p.visit GROUP BY p.who",
    "first": "SELECT v.*, p.who FROM visits v JOIN people p ON v.rowid = p.visit LIMIT 5",
    "last": "SELECT who, ward, seen, died, rank() OVER (ORDER BY who) AS age FROM own",
    "on_first": "SELECT * FROM first",
}


@pytest.fixture
def people(database: Path) -> Path:
    with closing(sqlite3.connect(database)) as connection:
        who = pd.DataFrame({"visit": range(1, 121), "who": [f"p{k % 40}" for k in range(120)]})
        who.to_sql("people", connection, index=False)
        for name, query in VIEWS.items():
            connection.execute(f"CREATE VIEW {name} AS {query}")
        connection.commit()
    return database


def test_a_view_of_ones_own_rows_needs_a_declaration_that_a_statement_tells(people: Path) -> None:
    for view, rows in (("own", 120), ("own_sums", 40)):
        found = load(by_user(view), by_user(view).encoder())
        assert found.train.n == rows and len(set(found.users)) == 40  # type: ignore[arg-type]
        plain = by_user(view, "record")
        with pytest.raises(InputError, match=r"unit: user with source\.rows_by_user: true"):
            load(plain, plain.encoder())
    with pytest.raises(ValueError, match=r"rows_by_user is for unit: user, got unit: record"):
        schema_of(rows_by_user=True)
    with pytest.raises(ValueError, match=r"rows_by_user is of kind: sql, got kind: file"):
        schema_of(kind="file", table=None, rows_by_user=True)
    [option] = options_of(parse_config({"data": {"name": "visits"}}), by_user("own"))
    words = option.words(SimpleNamespace(schema=by_user("own")), None)  # type: ignore[arg-type]
    assert "database view own" in words.limits[0] and words.warnings == words.limits


@pytest.mark.parametrize(
    ("view", "word"), [("first", "LIMIT"), ("last", "OVER"), ("on_first", "LIMIT")]
)
def test_what_hangs_on_other_persons_is_refused_whatever_was_declared(
    people: Path, view: str, word: str
) -> None:
    with pytest.raises(InputError, match=rf"got one with {word}, for which the rows of others"):
        load(by_user(view), by_user(view).encoder())


@pytest.mark.parametrize("view", MIXED)
def test_a_view_of_more_than_one_row_is_refused(database: Path, view: str) -> None:
    schema = schema_of(table=view)
    with pytest.raises(InputError, match="or a view whose rows are rows of one table"):
        load(schema, schema.encoder())


def test_the_password_is_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In no name, no fingerprint and no message of the driver."""
    schema = schema_of()
    url = "postgresql+psycopg2://nurse:hush-hush@127.0.0.1:1/ward?sslpassword=quiet"
    monkeypatch.setenv("DPFLOWS_SOURCE_URL", url)
    [part] = source_paths(schema, None, ())
    assert isinstance(part, SqlTable)
    assert str(part) == "postgresql+psycopg2://nurse@127.0.0.1:1/ward table visits"
    told = part.open().read().decode()
    assert "hush" not in told and "quiet" not in told and "visits" in told
    pytest.importorskip("psycopg2")
    with pytest.raises(InputError, match="Expected to read 'visits' at") as refused:
        load(schema, schema.encoder())
    assert "hush" not in str(refused.value) and "quiet" not in str(refused.value)
    monkeypatch.setenv("DPFLOWS_SOURCE_URL", "nurse:hush-hush")
    with pytest.raises(InputError, match="got a text that is none") as refused:
        load(schema, schema.encoder())
    assert "hush" not in str(refused.value)
    monkeypatch.delenv("DPFLOWS_SOURCE_URL")
    with pytest.raises(
        InputError, match="in the environment variable DPFLOWS_SOURCE_URL, got none"
    ):
        load(schema, schema.encoder())


def test_address_table_and_condition_stand_for_the_bytes(database: Path, tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    marks = {
        ledger.fingerprint(source_paths(schema_of(**more), None, ())).whole
        for more in ({}, {"where": "age > 3"}, {"where": "age  >  3"}, {"table": "adults"})
    }
    assert len(marks) == 3


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"table": None}, "kind: sql needs table"),
        ({"kind": "file"}, "table and where are of kind: sql"),
        ({"url_from": "sqlite:///x.db"}, "url_from names a variable of the environment"),
    ],
)
def test_what_a_schema_must_not_say(source: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        schema_of(**source)


@pytest.mark.parametrize("table", ["none", "main.none"])
def test_a_table_that_is_not_there_is_named(database: Path, table: str) -> None:
    schema = schema_of(table=table)
    with pytest.raises(InputError, match=f"Expected a table or view at sqlite:.* table {table}"):
        load(schema, schema.encoder())
