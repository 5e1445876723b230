"""No file, field, tag or column that a step reads is missing from the table of what is believed."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from mlflow.store.tracking.dbmodels.models import Base
from pydantic import BaseModel

import tasks
from tasks.config import TrainConfig
from tasks.ledger import Ledger, chain, schema
from tasks.ledger.facts import Marks
from tasks.ledger.records import Record
from tasks.record.outbox import Pending
from tasks.record.statement import Statement
from tasks.release.front import Front
from tasks.release.manifest import Manifest
from tests.tasks.ledger.conftest import gaussian
from tests.tasks.release.believed import FIELDS, TABLES
from tests.tasks.release.runs import World
from tests.tasks.release.scene import Scene

ROOT = Path(tasks.__file__).parents[1]


def listed(holder: str) -> set[str]:
    return {name for one in FIELDS if one.holder == holder for name in one.each}


def leaves(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Dotted names of all plain fields, of the parts inside as well."""
    for name, field in model.model_fields.items():
        annotations = (field.annotation, *get_args(field.annotation))
        parts = [one for one in annotations if isinstance(one, type) and issubclass(one, BaseModel)]
        if parts:
            yield from leaves(parts[0], f"{before}{name}.")
        else:
            yield before + name


@pytest.mark.parametrize(
    ("holder", "model"),
    [("statement.json", Statement), ("manifest.json", Manifest), ("config.json", TrainConfig)],
)
def test_every_field_of_a_stored_model_is_listed(holder: str, model: type[BaseModel]) -> None:
    assert listed(holder) == set(leaves(model))


def test_every_field_is_listed_once() -> None:
    pairs = [(one.holder, name) for one in FIELDS for name in one.each]
    assert len(pairs) == len(set(pairs))


def test_every_field_of_a_released_run_is_listed(scene: Scene) -> None:
    root, model = scene.files_of(scene.run), scene.model_of(scene.run)

    def keys(path: Path) -> set[str]:
        return set(json.loads(path.read_text()))

    stored = json.loads((root / "privacy/metrics.json").read_text())
    assert {*stored, *(f"of.{key}" for key in stored["of"])} == listed("metrics.json")
    assert keys(root / "privacy/files.json") == listed("files.json")
    assert keys(root / "privacy/curve.json") == listed("curve.json")
    assert keys(scene.bundle / "privacy/tuning.json") == listed("tuning.json")
    assert keys(scene.bundle / "signature.json") == listed("signature.json")
    pointer = json.loads((scene.bundle.parent / "front.json").read_text())
    assert set(json.loads(pointer["front"])) == listed("front.json")
    assert set(pointer["signature"]) == listed("signature.json")
    assert {field.name for field in fields(Front)} | {"schema_version"} == listed("front.json")
    assert set(yaml.safe_load((model / "MLmodel").read_text())) == listed("MLmodel")
    assert {field.name for field in fields(Pending)} == listed("pending.json")


def test_every_field_of_a_ledger_is_listed(
    tmp_path: Path, shared_world: World, trained: str
) -> None:
    """Each kind of record, with all that a run may state."""
    bodies: dict[str, set[str]] = {}
    with Ledger(shared_world.ledger_url) as ledger:
        opened = ledger.facts("small")
        seen = [record for record in records_of(ledger) if record.kind == "reserved"]
        reading = json.loads(seen[0].body)["reading"]
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.init("small", 50.0, 1e-4, "add_remove")
        ledger.init("stated", 50.0, 1e-4, "add_remove", facts=opened)
        stated = {
            "fingerprint": Marks("0" * 64, ("1" * 64, "2" * 64)),
            "facts": opened,
            "reading": reading,
        }
        done = [ledger.reserve("small", gaussian(50.0), **stated) for _ in range(3)]
        done[0].on_charge()
        done[0].commit({})
        done[1].on_charge()
        done[1].forfeit("x")
        done[2].cancel("x")
        left = ledger.reserve("small", gaussian(50.0), **stated)
        ledger.close_entry(
            left.entry_id, "small", "committed", {"hashes": {}, "draws": 0, "by": "recover"}
        )
        for record in records_of(ledger):
            bodies.setdefault(record.kind, set()).update(json.loads(record.body))
    assert set(bodies) == {"opened", chain.FIXED, "reserved", schema.DRAWN, *schema.CLOSING}
    assert {kind: listed(kind) for kind in bodies} == bodies
    assert set(Record._fields) == listed("record")


def records_of(ledger: Ledger) -> list[Record]:
    with ledger.store.reading() as connection:
        assert connection is not None
        return [Record(*row) for row in connection.execute(schema.records.select())]


# Stores of MLflow that a step reads by a name which stands in a variable; the names are these.
BY_VARIABLE = {
    ("tasks/audit/subject.py", "self.params.get(name, ())"): "a parameter that a rule asks for",
    ("tasks/audit/subject.py", "self.tags.get(name, self.param(name))"): "a setting that a rule "
    "asks for",
    ("tasks/audit/subject.py", "self.param(name)"): "a setting that a rule asks for",
    ("tasks/audit/rules_run.py", "run.param(name)"): "the parameters of the rule that compares "
    "what is shown",
    ("tasks/audit/rules_record.py", "run.setting(name)"): "each parameter and tag, for the name of "
    "a seed",
    ("tasks/release/registry.py", "found.tags.get(key)"): "what tag_of is asked for",
    ("tasks/record/view.py", "tags.get(tag)"): "columns and charts of an experiment, for people",
    ("tasks/record/view.py", "found.tags.get(SHARED + TRAINING_KEY, '')"): "the same",
}
READERS = {"tag_of": "tag", "param": "param", "setting": "setting"}
HOLDERS = {"tags": "tag", "params": "param"}


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    paths = [
        path for package in ("tasks", "flows") for path in sorted((ROOT / package).rglob("*.py"))
    ]
    found = [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in paths
    ]
    # comparisons release nothing
    return tuple((place, tree) for place, tree in found if "/compare" not in place)


def asked(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """Which store of MLflow an expression reads, and by which names."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return (store, [node.slice]) if (store := stored_in(node.value)) else None
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return (store, [node.left]) if (store := stored_in(node.comparators[0])) else None
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if (
        name == "get"
        and isinstance(node.func, ast.Attribute)
        and (store := stored_in(node.func.value))
    ):
        return store, node.args[:1]
    if name in READERS:
        return READERS[name], node.args[-1:] if name == "tag_of" else list(node.args)
    return None


def stored_in(node: ast.expr) -> str | None:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return HOLDERS.get(name)


def value_of(node: ast.expr, module: str) -> str | None:
    """A name as it stands, or the constant of a module that it is read from; None for a
    variable.
    """
    if isinstance(node, ast.Constant):
        return str(node.value)
    found: Any = import_module(module)
    for part in ast.unparse(node).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, str) else None


def reads() -> Iterator[tuple[str, str, str, str | None]]:
    """Place, expression, store and name of everything that is read from tags and parameters."""
    for place, tree in sources():
        for node in ast.walk(tree):
            found = asked(node)
            for name in found[1] if found else ():
                yield (
                    place,
                    ast.unparse(node),
                    found[0],
                    value_of(name, place[:-3].replace("/", ".")),
                )


NOT_MLFLOW = {"tasks/readers/declared.py", "tasks/data/load.py"}  # tags of data files


def test_every_tag_and_parameter_that_a_step_reads_is_listed() -> None:
    found = [one for one in reads() if one[0] not in NOT_MLFLOW]
    variable = {(place, text) for place, text, _, name in found if name is None}
    assert variable == set(BY_VARIABLE)
    for place, text, store, name in found:
        assert name is None or name in listed(store), (
            f"{place}: {text} is read and is not in the table of {store}s"
        )
    assert {(store, name) for _, _, store, name in found if name} >= {
        ("tag", "dpflows.model"),
        ("tag", "epsilon"),
    }


def test_every_column_of_a_table_that_a_step_reads_is_listed() -> None:
    """By MLflow's own description of its tables; a table that is not listed is named by no query of
    ours.
    """
    known = {
        name: {column.name for column in table.columns}
        for name, table in Base.metadata.tables.items()
    }
    for name in {one.holder for one in TABLES}:
        assert {column for one in TABLES if one.holder == name for column in one.each} == known[
            name
        ], name
    texts = [
        node.value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
    ]
    queries = [
        text
        for text in texts
        if isinstance(text, str) and text.lower().startswith(("select ", "insert "))
    ]
    tables = {words[words.index(word) + 1] for words in map(str.split, queries) for word in ("from", "into")
              if word in words}  # fmt: skip
    assert {"runs", "model_versions"} <= tables
    assert tables & set(known) <= {one.holder for one in TABLES}
