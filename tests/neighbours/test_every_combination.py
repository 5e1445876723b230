"""Every door through every reader, for every unit and relation: replayed on neighbouring files, or
refused in plan.

============  ==========================
====================================================================== door          whose promise
    otherwise
============  ==========================
====================================================================== training      records, users,
    sessions
metric        records                     refused: the noise of a count is for one row
drift         records of tables           refused: the noise of a count is for one row of declared
    columns
bounds        records of tables           refused: an estimate is one for single rows; numbers of a
    file are declared
profile       records, users of tables    refused: numbered features and sessions are declared by
    hand, and a database is no file
search        records                     refused: the noise of a score is for one row
canaries      records                     refused: a canary is one row
comparison    records, sessions           refused: folds would cut the rows of a user
============  ==========================
======================================================================

Tables are CSV, Parquet, ARFF and one of a database; files of numbers in SVMlight or ``.dat`` hold records; LETOR,
SVMlight and tables with a column ``query`` hold sessions. All lie in two files. Images (idx,
CIFAR-10) have no ids and no blocks.
"""

from __future__ import annotations

import ast
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from tasks.retraining.drift import require_drift
from tasks.schema import find_schema
from tasks.schema.sections import SourceSpec
from tests.neighbours import schemas
from tests.neighbours.doors import (
    SETTINGS,
    bounds_door,
    canary_door,
    comparison_door,
    drift_door,
    metric_door,
    profile_door,
    training_door,
    tuning_door,
)
from tests.neighbours.replay import Door, chosen, compare, run
from tests.neighbours.tape import Tape
from tests.neighbours.test_doors import documents, neighbour_of, records, renamed, visits
from tests.neighbours.world import (
    FRAMED,
    URL,
    Row,
    World,
    Writer,
    framed,
    parts_of,
    write_arff,
    write_csv,
    write_letor,
    write_parquet,
    write_sql,
)

ROOT = Path(__file__).resolve().parents[2]
REACHED = 0.05  # a bound that nothing comes near to would hide a missing row
IMAGES = ("idx", "cifar10")
STEPS = {"algorithm.learning_rate": [0.5, 4.0]}


def write_pairs(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Every part as SVMlight lines of records."""
    return _lines(rows, folder, lambda row: f"{row.y} 1:{row.x[0]} 2:{row.x[1]}", "txt")


def write_dat(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Every part as numbers between blanks, the label last."""
    return _lines(rows, folder, lambda row: f"{row.x[0]} {row.x[1]} {row.y}", "dat")


def _lines(rows: Sequence[Row], folder: Path, line: Any, ending: str) -> list[Path]:
    paths = []
    for number, part in enumerate(parts_of(rows)):
        paths.append(folder / f"part{number}.{ending}")
        paths[-1].write_text("".join(f"{line(row)}\n" for row in part))
    return paths


TEXTS: dict[str, Writer] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "arff": write_arff,
    "sql": write_sql,
}
OTHERS: dict[str, Writer] = {  # read alike by every door, so replayed by trainings alone
    name: framed(*made) for name, made in FRAMED.items()
}
TABLES = TEXTS | OTHERS


def write_shown(rows: Sequence[Row], folder: Path) -> list[Path]:
    """``write_sql`` with the id column called ``query``."""
    [path] = write_sql(rows, folder)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE visits RENAME COLUMN who TO query")
        connection.commit()
    return [path]


NUMBERS: dict[str, Writer] = {"svmlight": write_pairs, "dat": write_dat}
UNITS: dict[str, dict[str, Writer]] = {
    "record": TABLES | NUMBERS,
    "user": TABLES,
    "session": {name: renamed(write) for name, write in TEXTS.items() if name != "sql"}
    | {"sql": write_shown}
    | dict.fromkeys(("letor", "svmlight"), write_letor),
}
RELATIONS = {
    "record": ("add_remove", "replace_one"),
    "user": ("add_remove", "replace_one"),
    "session": ("add_remove", "replace_one", "replace_labels"),
}
DOORS = ("training", "metric", "drift", "bounds", "profile", "search", "canaries", "comparison")
CASES = [
    (door, reader, unit, relation)
    for unit, readers in UNITS.items()
    for door, reader, relation in product(DOORS, readers, RELATIONS[unit])
    if reader not in OTHERS or (door, relation) == ("training", "add_remove")
]


def replayed(door: str, reader: str, unit: str, relation: str) -> bool:
    """Whether the product lets such a number out; what it does not is refused before anything is
    drawn.
    """
    if (door, reader) == ("profile", "sql"):
        return False
    tables = (
        "training",
        "metric",
        "drift",
        "bounds",
        "profile",
        "search",
        "canaries",
        "comparison",
    )
    numbers = ("training", "metric", "search", "canaries", "comparison")
    allowed = {
        "record": tables if reader in TABLES else numbers,
        "user": USERS,
        "session": SESSIONS,
    }
    return door in allowed[unit]


USERS = ("training", "profile")
SESSIONS = ("training", "comparison")


def schema_of(door: str, reader: str, unit: str, world: World) -> dict[str, Any]:
    units = len({row.who for row in world.rows}) if unit != "record" else len(world.rows)
    form = {"source": {"format": reader}} if reader not in ("csv", "parquet") else {}
    if reader == "sql":
        form = {"source": {"kind": "sql", "table": "visits"}}
    if unit == "session" and reader in TABLES:
        numbers = {name: {"kind": "numeric", "low": 0, "high": 1} for name in schemas.FEATURES}
        columns = {"query": {"kind": "id"}, "day": {"kind": "ignore"}, **numbers}
        shape = {
            k: v for k, v in schemas.sessions("letor").items() if k not in ("features", "source")
        }
        label = {"column": "y", "kind": "relevance", "low": 0, "high": 2}
        schema = shape | {
            "columns": columns,
            "label": label,
            "source": {"path": "part0.csv"} | form.get("source", {}),
        }
    elif unit == "session":
        schema = schemas.sessions(reader)
    elif reader in TABLES:
        schema = schemas.table(unit, **form)
    else:
        schema = {k: v for k, v in schemas.sessions(reader).items() if k not in ("unit", "missing")}
        schema |= {"name": "visits", "label": {"positive": 1, "negative": 0}}
    schema["public"] = {**schema["public"], "n": units}
    if door == "bounds":
        schema |= {"bounds": "private", "bounds_share": 0.5}
        if "columns" in schema:
            schema["columns"] = schema["columns"] | {"a": {"kind": "numeric", "fill": 0}}
    return schema


def door_of(door: str, reader: str, unit: str, relation: str) -> Door:
    run: dict[str, Any] = {"privacy": {"adjacency": relation}}
    if unit == "session":
        run["objective"] = {"loss": "listnet"}
        if relation == "replace_labels":
            run["algorithm"] = {"name": "listnet_one_shot"}
    protected = "session_labels" if relation == "replace_labels" else unit

    def asked_drift(schema: Path, paths: list[Path]) -> Any:
        require_drift(0.5, find_schema(schema))
        return drift_door("all", **run)(schema, paths)

    made = {"training": training_door, "metric": metric_door, "canaries": canary_door}
    if door == "search":  # numbers of a file stay one column each
        return tuning_door(
            settings=SETTINGS if unit != "record" or reader in TABLES else STEPS, **run
        )
    if door in made:
        return made[door](**run)
    if door == "bounds":
        return bounds_door(**run | {"privacy": {"adjacency": relation, "epsilon": 8.0}})
    if door == "comparison":
        named = {"algorithm": {"name": "listnet_one_shot"}} if relation == "replace_labels" else {}
        return comparison_door(**named, objective=run.get("objective"), adjacency=relation)
    return {"drift": asked_drift, "profile": profile_door(relation, protected)}[door]


def world_of(door: str, unit: str) -> tuple[World, int]:
    """People and who of them differs: in a comparison the last, as secret folds belong to
    places.
    """
    if unit == "session":
        world = documents(3)
        last = tuple(sorted(world.rows, key=lambda row: row.who))
        return (replace(world, rows=last), 5) if door == "comparison" else (world, 2)
    if unit == "user":
        return visits(1), 4
    rows = records(8, 48).rows
    return World(tuple(replace(row, part=int(k >= 20)) for k, row in enumerate(rows)), "record"), 47


def often(door: str, reader: str, unit: str, relation: str) -> bool:
    """A database through trainings always, which every other door reads as they do."""
    return reader != "sql" or door == "training"


@pytest.mark.parametrize(("door", "reader", "unit", "relation"), chosen(CASES, often))
def test_a_unit_moves_what_leaves_by_what_was_charged(
    door: str,
    reader: str,
    unit: str,
    relation: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL, "")  # a database is named there, and nowhere afterwards
    world, who = world_of(door, unit)
    if door == "profile":  # it reads one file
        world = World(tuple(replace(row, part=0) for row in world.rows), world.unit)
    schema, write = schema_of(door, reader, unit, world), UNITS[unit][reader]
    made = door_of(door, reader, unit, relation)
    if not replayed(door, reader, unit, relation):
        found = run(made, world, write, schema, tmp_path / "alone", Tape())
        assert found.refused is not None and not found.log
        assert found.refused.startswith("Expected"), found.refused
        return
    neighbour = neighbour_of(world, who, relation)
    if (door, unit, relation) == ("comparison", "session", "replace_one"):
        # features and grades turned round together leave the first gradient as it is
        neighbour = world.relabelled(who)
    moved = compare(made, world, neighbour, write, schema, tmp_path)
    moved.check()
    assert moved.first.refused is None, moved.first.refused
    assert max(moved.ratios) > REACHED
    if door == "comparison":  # all that was drawn was charged
        assert moved.first.left[-1] == Counter(release.mechanism for release in moved.first.log)


def write_joined(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Visits and the persons of their numbers in two tables, and the view that joins them."""
    [path] = write_sql(rows, folder)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE visits RENAME TO told")
        connection.execute("CREATE TABLE persons AS SELECT DISTINCT who FROM told")
        connection.execute(
            "CREATE VIEW visits AS SELECT p.who, t.day, t.a, avg(t.b) AS b, max(t.y) AS y FROM "
            "told t JOIN persons p ON t.who = p.who GROUP BY p.who, t.day, t.a"
        )
        connection.commit()
    return [path]


@pytest.mark.parametrize("relation", ["add_remove"])
def test_a_person_moves_a_joined_view_by_what_one_person_pays(
    relation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared to be of one person each, its rows move by one person's share."""
    monkeypatch.setenv(URL, "")
    world, who = world_of("training", "user")
    schema = schema_of("training", "sql", "user", world)
    source = {"kind": "sql", "table": "visits", "rows_by_user": True}
    made = door_of("training", "sql", "user", relation)
    neighbour = neighbour_of(world, who, relation)
    moved = compare(made, world, neighbour, write_joined, schema | {"source": source}, tmp_path)
    moved.check()
    assert moved.first.refused is None, moved.first.refused
    assert max(moved.ratios) > REACHED


def test_every_reader_has_its_place() -> None:
    """A format that the schema takes and that is not listed would be read by nobody here."""
    formats = set(get_args(SourceSpec.model_fields["format"].annotation))
    made = {"file", "generator", "openml", "kddcup99"}  # the others stand in a frame, or in files
    others = set(get_args(SourceSpec.model_fields["kind"].annotation)) - made
    assert (formats - set(IMAGES)) | others == {n for readers in UNITS.values() for n in readers}


# Files that hand a mechanism to a door, and the doors above that they are; kinds fit baselines,
# which stay inside.
CALLERS = {
    "tasks/ledger/charge.py": ("metric", "drift"),
    "tasks/profile/private.py": ("profile",),
    "tasks/options/bounds.py": ("bounds",),
    "tasks/training/__init__.py": ("training", "search", "canaries"),
    "tasks/compare/cell.py": ("comparison",),
    "tasks/peers/bench.py": (),  # rows that are made up for a measurement of time
    **{f"tasks/kinds/{kind}.py": () for kind in ("table", "network", "sessions")},
}
CALLS = {"release_once", "open_door", "estimate_columns", "run"}


def test_every_door_has_its_place() -> None:
    """A file that draws noise and is not listed would be replayed by nobody."""
    found = set()
    for path in (*(ROOT / "tasks").rglob("*.py"), *(ROOT / "flows").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            inner = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpcore.")
            if inner and CALLS & {alias.name for alias in node.names}:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == set(CALLERS)
    assert {door for doors in CALLERS.values() for door in doors} == set(DOORS)
