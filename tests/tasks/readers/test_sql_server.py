"""The same of a PostgreSQL server, where DPFLOWS_TEST_POSTGRES names one: read-only, streamed, and
without a password in anything that is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url

from dpcore.errors import InputError
from flows.cli import run
from tasks.data import load
from tasks.home import Home
from tasks.readers import open_chunks, source_paths
from tasks.readers.parts import SqlTable
from tasks.readers.sql import _connected
from tasks.schema import Schema

SCHEMA = """\
schema_version: 1
name: ward-visits
public: {n: 200, public: true}
source: {kind: sql, table: ward.visits, where: "age >= 20", url_from: WARD_URL}
columns:
  ward: {kind: categorical, levels: [A, B], fill: zeros}
  age: {kind: numeric, low: 0, high: 100}
  cost: {kind: numeric, low: 0, high: 1000, fill: 0}
  seen: {kind: date, low: 2026-01-01, high: 2026-12-31}
  insured: {kind: flag}
label: {column: died, positive: true, negative: false}
undeclared: ignore
"""
TABLE = """\
CREATE SCHEMA ward; CREATE SCHEMA other;
CREATE TABLE ward.visits (id bigserial, ward text, age int, cost numeric(10,2), seen date,
  at timestamptz, insured boolean, tags text[], died boolean);
INSERT INTO ward.visits (ward, age, cost, seen, at, insured, tags, died)
  SELECT CASE k % 3 WHEN 0 THEN 'A' WHEN 1 THEN 'B' END, 20 + k % 60,
    CASE WHEN k % 5 > 0 THEN k * 1.25 END, date '2026-01-01' + k, now(), k % 2 = 0, '{a,b}', k % 7 < 3
  FROM generate_series(0, 199) AS k;
CREATE VIEW ward.grown AS SELECT ward, age, cost, seen::date AS seen, insured, died
  FROM ward.visits WHERE age BETWEEN 30 AND 99 AND ward IN ('A', 'B')
    AND extract(year FROM seen) = 2026;
CREATE VIEW other.twice AS SELECT a.* FROM ward.visits a JOIN ward.visits b ON a.age = b.age;
CREATE VIEW ward.behind AS SELECT * FROM other.twice;
CREATE MATERIALIZED VIEW ward.kept AS SELECT * FROM ward.visits LIMIT 5;
CREATE VIEW ward.on_kept AS SELECT * FROM ward.kept;
"""


@pytest.fixture
def server() -> Iterator[URL]:
    """A database of its own, and the address of somebody who may read in it, with a password."""
    given = os.environ.get("DPFLOWS_TEST_POSTGRES")
    if not given:
        pytest.skip("no PostgreSQL: set DPFLOWS_TEST_POSTGRES to a postgresql+psycopg2:// URL")
    name, secret = f"visits_{uuid4().hex[:12]}", f"hush-{uuid4().hex}"
    root = create_engine(given, isolation_level="AUTOCOMMIT")
    with root.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        connection.execute(text(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{secret}'"))
    url = make_url(given).set(database=name, username=name, password=secret)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(TABLE))
    engine.dispose()
    yield url
    with root.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        connection.execute(text(f"DROP ROLE {name}"))
    root.dispose()


@pytest.fixture
def schema(server: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schema:
    monkeypatch.setenv("WARD_URL", server.render_as_string(hide_password=False))
    return declared(tmp_path)


def declared(folder: Path, table: str = "ward.visits", where: str = "age >= 20") -> Schema:
    from tasks.schema import find_schema

    path = folder / "ward.yaml"
    told = SCHEMA.replace("ward.visits", table).replace("age >= 20", where)
    path.write_text(told, encoding="utf-8")
    return find_schema(path)


def test_rows_of_a_server_are_those_of_its_export(
    server: URL, schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(server)
    pd.read_sql("SELECT * FROM ward.visits", engine).to_csv(tmp_path / "t.csv", index=False)
    engine.dispose()
    found = load(schema, schema.encoder())
    one = load(schema, schema.encoder(), tmp_path / "t.csv")
    np.testing.assert_array_equal(np.asarray(found.train.X), np.asarray(one.train.X))  # type: ignore[union-attr]
    np.testing.assert_array_equal(found.train.y, one.train.y)  # type: ignore[union-attr]
    monkeypatch.setattr("tasks.readers.sql.chunk_rows", lambda columns: 7)
    chunks = list(open_chunks(schema, source_paths(schema, None, ())))
    assert [chunk.rows for chunk in chunks] == [7] * 28 + [4]
    assert set(chunks[0].table) == {"ward", "age", "cost", "seen", "insured", "died"}


def test_a_stream_is_a_cursor_of_the_server_and_nothing_is_written(schema: Schema) -> None:
    [part] = source_paths(schema, None, ())
    assert isinstance(part, SqlTable)
    with _connected(schema) as connection:
        stream = connection.execution_options(stream_results=True, yield_per=10)
        with closing(stream.exec_driver_sql("SELECT * FROM ward.visits")) as rows:
            assert rows.cursor is not None and rows.cursor.name
    with pytest.raises(InputError, match="read-only transaction"), _connected(schema) as connection:
        connection.exec_driver_sql("DELETE FROM ward.visits")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("other.twice", "got a view with JOIN"),
        ("ward.behind", "got a view with JOIN"),
        ("ward.on_kept", "'kept', which is no table"),
        ("ward.kept", "got none of that name"),
        ("none.visits", "got none of that name"),
    ],
)
def test_views_of_other_schemas_are_looked_into(
    schema: Schema, tmp_path: Path, table: str, words: str
) -> None:
    found = declared(tmp_path, table)
    with pytest.raises(InputError, match=words):
        load(found, found.encoder())
    grown = declared(tmp_path, "ward.grown")
    assert 0 < load(grown, grown.encoder()).train.n < 200


def test_a_column_of_lists_is_refused_where_it_is_used(schema: Schema, tmp_path: Path) -> None:
    told = schema.model_dump()
    told["columns"]["tags"] = {"kind": "categorical", "levels": ["a", "b"]}
    listed = Schema.model_validate(told)
    with pytest.raises(InputError, match="column 'tags', got lists or the like"):
        load(listed, listed.encoder())


@pytest.mark.slow
def test_no_store_and_no_message_holds_the_password(
    server: URL,
    schema: Schema,
    home: Home,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A training, a refusal, and a server that knows nobody: home, tracking, ledger, output."""
    asked = ["train", "--set", f"data.name={tmp_path / 'ward.yaml'}", "--set", "privacy.delta=1e-6"]
    assert run(asked) == 0
    declared(tmp_path, where="age >= (SELECT 1)")
    assert run(asked) == 2
    declared(tmp_path)
    secret = f"gone-{uuid4().hex}"
    wrong = server.set(password=secret, query={"options": f"-c {secret}"})
    monkeypatch.setenv("WARD_URL", wrong.render_as_string(hide_password=False))
    assert run(asked) == 2
    shown = capfd.readouterr()
    said = shown.out + shown.err
    assert "ward.visits" in said
    kept = [f for place in (home.root, tmp_path) for f in place.rglob("*") if f.is_file()]
    assert len(kept) > 10
    for password in (str(server.password), secret):
        assert password not in said
        found = [str(file) for file in kept if password.encode() in file.read_bytes()]
        assert not found
