"""evaluate.subgroup: groups of a declared column, counted and measured; refused before anything is
spent.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import InputError
from tasks import training
from tasks.data import load
from tasks.data.rows import NO_VALUE, check_group, group_names
from tasks.kinds.quality import SUBGROUPS, plain_names
from tasks.schema import Schema, find_schema
from tests.tasks.training.test_training import config_of


def schema_of(**columns: dict[str, object]) -> Schema:
    return Schema.model_validate(
        {
            "schema_version": 1,
            "name": "people",
            "public": {"n": 4},
            "missing": ["?"],
            "columns": columns,
            "label": {"column": "y", "positive": "1", "negative": "0"},
        }
    )


PEOPLE = schema_of(
    age={"kind": "numeric", "low": 0, "high": 100, "fill": 0},
    sex={"kind": "ignore"},
    smokes={"kind": "flag"},
    born={"kind": "date", "low": "1900-01-01", "high": "2000-01-01"},
    person={"kind": "id"},
)


@pytest.mark.parametrize(
    ("name", "cells", "expected"),
    [
        (
            "age",
            [0, 24.9, 25, 100, 120, -5, None, "?"],
            ["0 to 25"] * 2 + ["25 to 50"] + ["75 to 100"] * 2 + ["0 to 25"],
        ),
        ("sex", ["f", " f", "m", "?", None], ["f", "f", "m"]),
        ("smokes", [1, 0, 1.0], ["1", "0", "1"]),
    ],
)
def test_a_row_belongs_to_its_value_or_to_a_quarter_of_the_bounds(
    name: str, cells: list[object], expected: list[str]
) -> None:
    found = group_names(PEOPLE, name, pd.Series(cells, dtype=object)).tolist()
    assert found == expected + [NO_VALUE] * (len(cells) - len(expected))


@pytest.mark.parametrize(
    ("name", "words"),
    [("sexx", "did you mean 'sex'"), ("born", "of kind date"), ("person", "of kind id")],
)
def test_a_column_that_makes_no_groups_is_refused(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_group(PEOPLE, name)


def test_it_is_refused_before_a_file_is_opened(small: Path) -> None:
    small.with_name("small.csv").unlink()
    with pytest.raises(InputError, match=r"column of evaluate.subgroup 'town'"):
        training.prepare(config_of(small, evaluate={"subgroup": "town"}))


@pytest.mark.parametrize(("column", "least"), [("city", 50), ("age", 90)])
def test_metrics_are_those_of_the_rows_of_each_group(
    small: Path, tmp_path: Path, column: str, least: int
) -> None:
    config = config_of(
        small, evaluate={"subgroup": column, "subgroup_least": least, "baselines": False}
    )
    job = training.prepare(config)
    loaded = training.load_records(job)
    weights = np.array([1.0, -0.5, 0.5, -0.4])
    found = training.measure(job, weights, loaded, training.build_objective(job, loaded), tmp_path)
    frame = pd.read_csv(small.with_name("small.csv"))
    right = (job.encoder.transform(frame) @ weights >= 0) == (frame["paid"] == "yes")
    groups = (
        frame["city"]
        if column == "city"
        else pd.cut(frame["age"], [-1, 24, 49, 74, 100], labels=list("abcd"))
    )
    expected = {
        f"{len(part)}": part.mean()
        for _, part in right.groupby(groups, observed=True)
        if len(part) >= least
    }
    table = json.loads((tmp_path / SUBGROUPS).read_text())
    shown = {
        str(row["rows"]): row["value"] for row in table["groups"] if row["group"] != "all others"
    }
    assert shown == pytest.approx(expected) and len(expected) >= 1
    assert (table["column"], table["least"], table["metric"]) == (column, least, "accuracy")
    keys = [key for key in found if key.startswith("internal.subgroup.")]
    assert len(keys) == 2 * len(table["groups"]) and not any(
        key.startswith("released.") for key in found
    )


def test_groups_are_those_of_the_test_part_where_there_is_one() -> None:
    schema = find_schema("census")
    loaded = load(schema, schema.encoder(), group="sex")
    assert loaded.test is not None and loaded.groups is not None
    assert len(loaded.groups) == loaded.test.n and set(loaded.groups) == {"male", "female"}
    assert load(schema, schema.encoder()).groups is None


def test_names_of_metrics_are_plain_and_differ() -> None:
    assert plain_names({"a & b": 0, "a + b": 0, "<=50": 0, "": 0}) == [
        "a_b",
        "a_b_1",
        "50",
        "group",
    ]
