"""Inputs that people brought, through reading, the stored model and `predict`: read, or refused on
one line that names file, row, column, rule and way out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import yaml

from dpcore.errors import InputError
from flows.cli import run
from flows.commands.predict import read_table, read_tables
from tasks.data import Loaded, load
from tasks.home import Home
from tasks.record.model import save_model
from tasks.record.scoring import LinearScorer
from tasks.schema import Schema, find_schema


class Case(NamedTuple):
    """A table of a folder: how often each label is read, or the words of the refusal."""

    folder: str
    table: str
    refused: str = ""
    rows: int = 100
    more: Mapping[str, Any] = MappingProxyType({})


LEVELS = {"columns": {"a": {"kind": "categorical", "levels": ["u", "v"], "fill": "u"}}}
CASES = (
    Case("N03-nullable-few-rows", "t.parquet", rows=40),
    Case("N03-nullable-few-rows", "text.parquet", rows=40, more=LEVELS),
    Case(
        "N03-nullable-few-rows",
        "text.parquet",
        r"data row 1, column 'a': 'u' is not a finite "
        r"number",
    ),
    Case("N05-header-two-lines", "t.csv"),
    Case("N06-leading-zeros", "t.csv"),
    Case("N07-float-labels-1", "t.csv"),
    Case("N07-float-labels-1", "t.parquet"),
    Case("N07-float-labels-1.0", "t.csv"),
    Case("N07-float-labels-1.0", "t.parquet"),
    Case(
        "N08-points-of-thousands",
        "t.csv",
        r"data row 1, column 'a': '1\.234' is not a number; .* declare text\.thousands: '\.'",
    ),
    Case(
        "N08-points-of-thousands",
        "t.csv",
        more={"text": {"separator": ";", "decimal": ",", "thousands": "."}},
    ),
    Case(
        "N08b-same-mark-twice",
        "t.csv",
        r"schema\.yaml: text: decimal and thousands are both "
        r"','",
    ),
    Case("N08c-narrow-blank", "t.csv"),
    Case(
        "N08c-narrow-blank",
        "t.csv",
        r"data row 1, column 'a': '1.*234,5' is not a number; .* declare text\.thousands: ' '",
        more={"text": {"separator": ";", "decimal": ","}},
    ),
    Case("N09-nested", "t.parquet", r"t\.parquet: Expected texts, .* in column 'a', got list<"),
    Case("N09b-nested-ignored-hash-split", "t.parquet"),
    Case("N10-timestamp-blocks", "t.parquet"),
    Case(
        "N10b-block-format",
        "t.csv",
        r"schema\.yaml: block: Expected a block\.format .* got "
        r"'%s'",
    ),
    Case("N11-svmlight-no-query", "t.txt", r"t\.txt, line 501: no query id"),
    Case("N14-booleans", "t.parquet"),
    Case("N15-bz2", "t.csv.bz2"),
    Case(
        "N31-missing-mark-user",
        "with.csv",
        r"data row 201, column 'patient': '\?'; every row "
        r"needs",
    ),
    Case(
        "N31-missing-mark-user",
        "without.csv",
        r"data row 201, column 'patient': '\?'; every "
        r"row",
    ),
)
READ = [case for case in CASES if not case.refused]


@pytest.fixture
def troubles(shared: Path) -> Path:
    folder = shared / "troubles"
    if not folder.is_dir():
        pytest.skip(f"no inputs of that kind in {shared}")
    return folder


def read(troubles: Path, case: Case) -> tuple[Schema, Loaded, Path]:
    path = troubles / case.folder / case.table
    schema = find_schema(troubles / case.folder / "schema.yaml")
    if case.more:
        schema = Schema.model_validate({**schema.model_dump(), **case.more})
    return schema, load(schema, schema.encoder(sparse=False), path), path


def named(case: Case) -> str:
    return f"{case.folder}-{case.table}{'-refused' if case.refused else ''}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_input_gives_what_it_must(troubles: Path, case: Case) -> None:
    if not case.refused:
        _, found, _ = read(troubles, case)
        both = [found.train.y, *([] if found.test is None else [found.test.y])]
        signs = np.concatenate([np.asarray(y) for y in both])
        assert len(signs) == case.rows and set(signs) == {-1.0, 1.0}
        assert not found.report.train["unknown"] and not found.report.train["dropped"]
        return
    with pytest.raises(InputError, match=case.refused) as caught:
        read(troubles, case)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("case", READ, ids=named)
def test_what_trained_a_model_is_scored_by_it(troubles: Path, case: Case, tmp_path: Path) -> None:
    """All rows at once, and the first three alone, without their labels too."""
    schema, found, path = read(troubles, case)
    encoder = schema.encoder(sparse=False)
    weights = np.linspace(-1.0, 2.0, encoder.design.dimension)
    save_model(tmp_path, weights, encoder, schema, "logistic")
    scorer = LinearScorer()
    scorer.load_context(SimpleNamespace(artifacts={"model": str(tmp_path)}))  # type: ignore[arg-type]
    rows = read_table(path, scorer.encoder, scorer.card)
    scores = scorer.predict(None, rows)["score"].to_numpy()  # type: ignore[arg-type]
    parts = [found.train] if found.test is None else [found.train, found.test]
    own = np.concatenate([np.asarray(part.X @ weights) for part in parts])  # type: ignore[union-attr]
    np.testing.assert_allclose(np.sort(scores), np.sort(own), rtol=1e-15)
    parts = read_tables([path], scorer.encoder, scorer.card)
    pd.testing.assert_frame_equal(parts, rows)
    few = scorer.predict(None, rows.iloc[:3])["score"].to_numpy()  # type: ignore[arg-type]
    np.testing.assert_array_equal(few, scores[:3])
    if path.suffix == ".parquet":
        frame = pd.read_parquet(path, dtype_backend="numpy_nullable").drop(
            columns=schema.label.column
        )
        kept = scorer.predict(None, frame.iloc[:3])["score"].to_numpy()  # type: ignore[arg-type]
        np.testing.assert_array_equal(kept, scores[:3])
        given = load(schema, encoder, frame=pd.read_parquet(path))
        np.testing.assert_array_equal(np.asarray(given.train.X), np.asarray(found.train.X))  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_command_trains_on_it(
    troubles: Path, case: Case, home: Home, server: str, tmp_path: Path
) -> None:
    """`dpflows train` on the very input; what is refused ends with 2, private rows without budget
    with 3."""
    schema = yaml.safe_load((troubles / case.folder / "schema.yaml").read_text(encoding="utf-8"))
    text = (troubles / case.folder / "schema.yaml").read_text(encoding="utf-8")
    for section, value in case.more.items():
        text = "\n".join(line for line in text.splitlines() if not line.startswith(f"{section}:"))
        text += f"\n{section}: {json.dumps(value)}\n"
    (tmp_path / "schema.yaml").write_text(text, encoding="utf-8")
    path = str(troubles / case.folder / case.table)
    asked = ["--set", f"data.name={tmp_path / 'schema.yaml'}", "--set", f"data.path={path}"]
    if "block" in schema:
        asked += ["--set", "data.blocks=[2024-12-29, 2024-12-30]"]
    private = not schema["public"].get("public", False)
    code = run(["train", *asked, "--set", "privacy.delta=1e-6"])
    assert code == (0 if not case.refused else 3 if private and code == 3 else 2)
