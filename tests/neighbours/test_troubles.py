"""Inputs that people brought: one id in many spellings, in two types, missing, and documents
without a session.
"""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import numpy as np
import pandas as pd
import pytest
import yaml

from dpcore.errors import InputError
from tasks.data import Loaded, load
from tasks.schema import find_schema
from tests.neighbours.doors import CLIP, training_door
from tests.neighbours.replay import Door, Outcome
from tests.neighbours.schemas import write_schema
from tests.neighbours.tape import Tape


def read(folder: Path, *names: str) -> Loaded:
    schema = find_schema(folder / "schema.yaml")
    return load(schema, schema.encoder(), [folder / name for name in names])


@pytest.fixture
def troubles(shared: Path) -> Path:
    folder = shared / "troubles"
    if not folder.is_dir():
        pytest.skip(f"no inputs of that kind in {shared}")
    return folder


def through(door: Door, folder: Path, name: str, tape: Tape, there: Path) -> Outcome:
    """Send one table through a door, with a schema that says where it lies."""
    (there / name).mkdir()
    path = Path(copy(folder / name, there / name))
    declared = yaml.safe_load((folder / "schema.yaml").read_text()) | {"source": {"path": name}}
    schema = write_schema(declared, there / name)
    with tape.running():
        return Outcome(tape.log, door(schema, [path]), None)


def test_forty_visits_with_trailing_blanks_are_one_user(troubles: Path, tmp_path: Path) -> None:
    folder = troubles / "N01-user-blanks"
    assert len(set(read(folder, "with.csv").users)) == 201
    assert len(set(read(folder, "without.csv").users)) == 200
    first = through(training_door(), folder, "with.csv", Tape(), tmp_path)
    again = through(training_door(), folder, "without.csv", Tape(recorded=first.log), tmp_path)
    moved = [
        float(np.linalg.norm(a.value - b.value)) for a, b in zip(first.log, again.log, strict=True)
    ]
    assert len(moved) == 2 and 0.9 * CLIP < max(moved) <= CLIP * (1 + 1e-9)
    assert first.left == again.left


def test_ids_of_two_parquet_types_are_fifty_users(troubles: Path) -> None:
    assert len(set(read(troubles / "N02-user-int-float", "one.parquet", "two.parquet").users)) == 50


def test_lines_without_query_are_refused_with_their_line(troubles: Path) -> None:
    with pytest.raises(InputError, match=r"t\.txt, line 501: no query id \(qid:\.\.\.\)"):
        read(troubles / "N11-svmlight-no-query", "t.txt")


@pytest.mark.parametrize("name", ["with.csv", "without.csv"])
def test_a_declared_mark_of_no_value_names_no_user(troubles: Path, name: str) -> None:
    with pytest.raises(
        InputError,
        match=r"data row 201, column 'patient': '\?'; every row needs "
        r"its user",
    ):
        read(troubles / "N31-missing-mark-user", name)


@pytest.mark.parametrize("declared", ["N07-float-labels-1", "N07-float-labels-1.0"])
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_labels_zero_and_one_with_a_point_are_those_without(
    troubles: Path, declared: str, name: str
) -> None:
    assert sorted(set(read(troubles / declared, name).train.y)) == [-1.0, 1.0]


def test_a_boolean_label_is_true_or_false(troubles: Path, tmp_path: Path) -> None:
    folder = troubles / "N14-booleans"
    found = read(folder, "t.parquet").train.y
    assert sorted(set(found)) == [-1.0, 1.0]
    table = tmp_path / "t.csv"
    pd.read_parquet(folder / "t.parquet").to_csv(table, index=False)
    schema = find_schema(folder / "schema.yaml")
    np.testing.assert_array_equal(load(schema, schema.encoder(), table).train.y, found)
