"""Drafts of schemas: the right label and kind, files of other layouts, what a ledger has fixed, and
what cannot be.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from dpcore.errors import InputError
from flows.cli import run
from tasks.data import load
from tasks.ledger import Blocks, Ledger, RowFacts
from tasks.profile import draft_schema
from tasks.schema import Schema, find_schema


def write(folder: Path, name: str, header: str, rows: list[str]) -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def table(folder: Path, **columns: list[Any]) -> Path:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    return write(folder, "given.csv", ",".join(columns), rows)


AMOUNTS = [round(float(x), 2) for x in np.linspace(10, 99, 40)]
TWO = ["a", "b", "a", "a"] * 10
FIVE = ["v", "w", "x", "y", "z"] * 8
CODES = [1, 2, 3, 4, 5] * 8


@pytest.mark.parametrize(
    ("columns", "label", "kind"),
    [
        ({"class": CODES, "age": AMOUNTS, "survived": TWO}, "survived", "binary"),
        ({"age": AMOUNTS, "survived": TWO, "ward": FIVE}, "survived", "binary"),
        ({"age": AMOUNTS, "sex": TWO, "class": FIVE}, "class", "classes"),
        (
            {"age": AMOUNTS, "default.payment.next.month": TWO, "ward": FIVE},
            "default.payment.next.month",
            "binary",
        ),
        ({"ward": FIVE, "age": AMOUNTS, "won": TWO}, "won", "binary"),
        ({"ward": FIVE, "targetPrice": AMOUNTS}, "targetPrice", "regression"),
        ({"age": AMOUNTS, "class": CODES}, "class", "classes"),
    ],
)
def test_the_label_and_its_kind(
    tmp_path: Path, columns: dict[str, list[Any]], label: str, kind: str
) -> None:
    draft = draft_schema(table(tmp_path, **columns))
    schema = Schema.model_validate(draft.values)
    assert (schema.label.column, schema.label.kind) == (label, kind)
    assert any(
        note.startswith(f"label {label}: by its name, values and place") for note in draft.notes
    )
    if kind == "classes":
        assert schema.label.levels == tuple(sorted(set(map(str, columns[label]))))


@pytest.mark.parametrize(
    ("columns", "could_be"),
    [
        (
            {"income": AMOUNTS, "sex": TWO, "approved": TWO[::-1]},
            "income (40 numbers), sex (2 values), approved (2 values)",
        ),
        ({"age": AMOUNTS, "won": TWO, "ward": FIVE}, "won (2 values), ward (5 values)"),
        (
            {"event": TWO, "age": AMOUNTS, "two_year": TWO[::-1]},
            "event (2 values), two_year (2 values)",
        ),
        (
            {"workingday": TWO, "hour": CODES, "cnt": AMOUNTS},
            "workingday (2 values), cnt (40 numbers)",
        ),
        ({"size": AMOUNTS, "quality": CODES}, "quality (5 numbers)"),
        (
            {"class": FIVE, "income": AMOUNTS, "ward": [*FIVE[1:], "v"]},
            "class (5 values), income (40 numbers), ward",
        ),
    ],
)
def test_a_label_that_nothing_tells_is_asked_for(
    tmp_path: Path, columns: dict[str, list[Any]], could_be: str
) -> None:
    """Several columns could be it, or one by a single sign: the columns are drafted, and the label
    is left to say.
    """
    path = table(tmp_path, **columns)
    draft = draft_schema(path)
    assert "label" not in draft.values and set(draft.values["columns"]) == set(columns)
    assert draft.notes[0] == "NO SCHEMA YET: label: name it with --label"
    assert any(
        f"label: not told by the table; it could be {could_be}" in note for note in draft.notes
    )
    for name in columns:
        assert "NO SCHEMA YET" not in draft_schema(path, name).text


def test_rows_without_a_label_are_no_class(tmp_path: Path) -> None:
    draft = draft_schema(table(tmp_path, age=AMOUNTS, y=["?", *TWO[1:]]))
    assert (draft.values["label"]["positive"], draft.values["label"]["negative"]) == ("b", "a")
    assert "label y: 1 rows without a label; leave them out of the file" in draft.notes


ARFF = """\
% a comment
@RELATION visits
@ATTRIBUTE age NUMERIC
@ATTRIBUTE ward {north, south}
@ATTRIBUTE class {yes, no}
@DATA
"""


def test_arff_is_drafted_and_read_back(tmp_path: Path) -> None:
    rows = [
        f"{age},{'north' if age % 2 else 'south'},{'yes' if age % 3 else 'no'}"
        for age in range(20, 80)
    ]
    path = tmp_path / "visits.arff"
    path.write_text(ARFF + "\n".join([*rows, "?,north,no"]) + "\n")
    draft = draft_schema(path)
    assert draft.values["source"] == {"format": "arff", "path": str(path)}
    schema = Schema.model_validate(draft.values)
    assert (schema.label.column, schema.columns["ward"].levels) == ("class", ("north", "south"))
    found = load(schema, schema.encoder(), str(path))
    assert found.train.n + found.test.n == 61  # type: ignore[union-attr]


@pytest.mark.parametrize("packed", [False, True])
def test_letor_is_drafted_and_read_back(tmp_path: Path, packed: bool) -> None:
    rng = np.random.default_rng(3)
    lines = [
        f"{rng.integers(0, 3)} "
        f"qid:{query} " + " ".join(f"{i}:{rng.uniform(0, 7):.3f}" for i in range(1, 5)) + " #doc"
        for query in range(1, 13)
        for _ in range(5)
    ]
    path = tmp_path / ("lists.txt.gz" if packed else "lists.txt")
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    draft = draft_schema(path)
    schema = Schema.model_validate(draft.values)
    assert (schema.source.format, schema.unit, schema.public.n) == ("letor", "session", 12)
    assert (schema.label.kind, schema.label.high) == ("relevance", 2)
    [group] = schema.features
    assert (group.count, group.low, group.high) == (4, 0.0, 7.0)
    assert load(schema, schema.encoder(), str(path)).train.n == 12


def test_svmlight_is_drafted_with_its_classes(tmp_path: Path) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("".join(f"{'+1' if i % 3 else '-1'} {i % 4 + 1}:1 6:-0.5\n" for i in range(30)))
    schema = Schema.model_validate(draft_schema(path).values)
    assert (schema.source.format, schema.unit, schema.features[0].count) == (
        "svmlight",
        "record",
        6,
    )
    assert (schema.label.positive, schema.label.negative) == (("-1",), ("+1",))
    with pytest.raises(InputError, match="no --label"):
        draft_schema(path, "x")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\x03\x04 a spreadsheet", "zip archive or a spreadsheet"),
        (b'{"rows": [1, 2]}', "JSON"),
        (b"<html><table></table></html>", "HTML"),
        (b"\x00\x00\x08\x03\x00\x00\x00\x01", "format: idx"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"one\ntwo\nthree\n", "two columns or more"),
        (
            b"a, b\nThis is a text, with some, commas, in it\nand\nmore, of, them\n",
            "this is no table",
        ),
        (b"a,y\n" + b"1,same\n" * 30, "two values or more"),
        (
            b"a,y\n" + b"".join(b"%d,text %d\n" % (i % 7, i) for i in range(90)),
            "at most 60 classes",
        ),
        (b"@relation x\n@attribute a string\n@data\n'b'\n", "two columns or more"),
        (b"@relation x\n@attribute a blob\n@data\n'b'\n", "line 2: not readable as ARFF"),
    ],
)
def test_what_cannot_be_drafted_is_said(
    tmp_path: Path, data: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.bin"
    path.write_bytes(data)
    named = ["--label", "y"] if data.startswith(b"a,y") else []
    assert run(["profile", str(path), *named]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1


WEEKLY = """\
schema_version: 1
name: weekly
unit: user
public: {{rows_per_block: 50, rows_per_user: 2}}
source: {{path: {path}}}
block: {{column: visit, by: week, format: "%d.%m.%Y"}}
columns:
  person: {{kind: user}}
  age: {{kind: numeric, low: 0, high: 100}}
  visit: {{kind: block}}
label: {{column: again, positive: "yes", negative: "no"}}
split: {{kind: none}}
"""


def test_a_draft_states_what_the_budget_of_its_rows_has_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFLOWS_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    rows = [
        f"p{i % 25},{20 + i % 50},{1 + i % 28:02d}.01.2026,{'yes' if i % 3 else 'no'}"
        for i in range(100)
    ]
    path = write(tmp_path, "visits.csv", "person,age,visit,again", rows)
    (tmp_path / "conf" / "data").mkdir(parents=True)
    declared = tmp_path / "conf" / "data" / "weekly.yaml"
    declared.write_text(WEEKLY.format(path=path))
    schema = find_schema("weekly")
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.init(
            "weekly",
            3.0,
            1e-5,
            "add_remove",
            unit="user",
            blocks=Blocks.of(schema),
            facts=RowFacts.of(schema),
        )
        assert run(["profile", str(path), "--label", "again", "--json"]) == 0
        values = json.loads(capsys.readouterr().out)["schema"]
        drafted = Schema.model_validate(values)
        assert (drafted.name, drafted.unit) == ("weekly", "user")
        assert Blocks.of(drafted) == Blocks.of(schema)
        assert RowFacts.of(drafted) == RowFacts.of(schema)
        ledger.require_facts("weekly", RowFacts.of(drafted))


@pytest.mark.parametrize("titles", ["|1x3 Cross validator\n", "Visits, 2026\n\nmade by the ward\n"])
@pytest.mark.parametrize("header", [True, False])
def test_lines_before_a_table_are_read_over(tmp_path: Path, titles: str, header: bool) -> None:
    rows = [f"{20 + k % 50},{'n' if k % 3 else 's'},{k % 2}" for k in range(60)]
    path = write(tmp_path, "t.csv", titles + ("age,ward,y" if header else rows.pop()), rows)
    schema = Schema.model_validate(draft_schema(path, "y" if header else "c3").values)
    assert schema.text.skip_lines == titles.count("\n") and schema.text.header is header
    found = load(schema, schema.encoder(), str(path))
    assert found.train.n + found.test.n == 60  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cells", "marks", "low", "high"),
    [
        (["1,5", "12,25", "7"], {"decimal": ","}, 1.0, 13.0),
        (["1.234,5", "12,5", "7"], {"decimal": ",", "thousands": "."}, 0.0, 1300.0),
        (["1,234.5", "12.5", "7"], {"thousands": ","}, 0.0, 1300.0),
        (["1,234", "2,500", "7"], {"thousands": ","}, 0.0, 2500.0),
        (["1\u202f234,5", "12,5", "7"], {"decimal": ",", "thousands": " "}, 0.0, 1300.0),
        (["1'234.5", "12.5", "7"], {"thousands": "'"}, 0.0, 1300.0),
        (["1.234", "2.500", "7"], {}, 1.2, 7.0),
    ],
)
def test_marks_of_numbers_are_told_by_what_reads_most_columns(
    tmp_path: Path, cells: list[str], marks: dict[str, str], low: float, high: float
) -> None:
    """A label that is no number keeps its own spelling under every mark."""
    rows = [
        f"{cells[k % 3]};{('1,5', 'x')[k // 2 % 2]};{'5,5' if k % 2 else '6.5'}" for k in range(60)
    ]
    path = write(tmp_path, "t.csv", "a;town;y", rows)
    draft = draft_schema(path, "y")
    schema = Schema.model_validate(draft.values)
    assert {k: v for k, v in draft.values["text"].items() if k != "separator"} == marks
    assert (schema.columns["a"].low, schema.columns["a"].high) == (low, high)
    assert schema.columns["town"].levels == ("1,5", "x")
    found = load(schema, schema.encoder(), path)
    assert found.train.n + found.test.n == 60  # type: ignore[union-attr]
    assert not found.report.train["unknown"] and not found.report.train["clipped"]
    doubted = any("each point stands before three digits" in note for note in draft.notes)
    assert doubted is not bool(marks)


def test_blanks_in_runs_separate_once_and_none_at_the_end_of_a_line(tmp_path: Path) -> None:
    rows = [f"{k % 7}   {k % 5}.5 {k % 2} " for k in range(60)]
    path = write(tmp_path, "t.dat", rows.pop(), rows)
    schema = Schema.model_validate(draft_schema(path, "c3").values)
    assert (schema.text.separator, schema.text.names) == (" ", ("c1", "c2", "c3"))
    assert load(schema, schema.encoder(), path).report.rows_train > 30


@pytest.mark.parametrize(
    ("stray", "kind"), [(["=N(TRUE)"], "binary"), (["x"] * 12, "classes"), (["9"], "binary")]
)
def test_damaged_labels_are_no_class(tmp_path: Path, stray: list[str], kind: str) -> None:
    rows = [f"{k % 9},{('no', 'yes')[k % 3 == 0]}" for k in range(600)]
    path = write(tmp_path, "t.csv", "a,y", [*rows, *(f"1,{cell}" for cell in stray)])
    draft = draft_schema(path, "y")
    schema = Schema.model_validate(draft.values)
    assert schema.label.kind == kind
    told = any("damaged cells?" in note and repr(stray[0]) in note for note in draft.notes)
    assert told is (kind == "binary") is (schema.label.undeclared == "drop")
    if kind == "binary":
        found = load(schema, schema.encoder(), path)
        assert found.train.n + found.test.n == 600  # type: ignore[union-attr]


def test_rare_amounts_are_no_damaged_labels(tmp_path: Path) -> None:
    rows = [f"{k % 9},{min(k // 290, 1) + 2 * (k > 598)}" for k in range(600)]
    draft = draft_schema(write(tmp_path, "t.csv", "a,y", rows), "y")
    assert draft.values["label"] == {"column": "y", "kind": "classes", "levels": ["0", "1", "3"]}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("month", "categorical"),
        ("weekDay", "numeric"),
        ("visit_type", "categorical"),
        ("grade", "numeric"),
    ],
)
def test_whole_numbers_are_levels_where_their_name_says_so(
    tmp_path: Path, name: str, kind: str
) -> None:
    path = table(tmp_path, **{name: [1 + k % 12 for k in range(48)], "y": TWO[:8] * 6})
    draft = draft_schema(path, "y")
    spec = draft.values["columns"][name]
    assert spec["kind"] == kind
    if kind == "categorical":
        assert spec["levels"] == [str(k) for k in range(1, 13)]
        assert "  # whole numbers called " in draft.text


FORMS = [
    "%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%b-%Y", "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%S%z",
]  # fmt: skip


@pytest.mark.parametrize("form", [*FORMS, "stamps", "fractions", "zoned"])
def test_dates_of_every_form_are_drafted_and_read(tmp_path: Path, form: str) -> None:
    """As a part of the design, and as the block column that the draft offers."""
    days = pd.date_range("2024-01-31 21:05:01", periods=80, freq="101h", tz="Europe/Berlin")
    if form in FORMS:
        path = table(tmp_path, day=list(days.strftime(form)), y=TWO + TWO)
    else:
        naive = days.tz_localize(None) + pd.to_timedelta((form == "fractions") / 4, unit="s")
        frame = pd.DataFrame({"day": days if form == "zoned" else naive, "y": TWO + TWO})
        frame.to_parquet(path := tmp_path / "t.parquet")
    draft = draft_schema(path, "y")
    schema = Schema.model_validate(draft.values)
    assert schema.columns["day"].kind == "date" and schema.columns["day"].high == "2024-12-31"
    found = load(schema, schema.encoder(), path)
    assert found.train.n + found.test.n == 80  # type: ignore[union-attr]
    assert not found.report.train["clipped"] and not found.report.train["filled"]
    [reason] = draft.reasons["day"]
    offer = yaml.safe_load(f"block: {reason.partition('and block: ')[2]}")
    day = {"columns": {"day": {"kind": "block"}}, "public": {"rows_per_block": 9}}
    blocks = Schema.model_validate({**draft.values, **day, **offer, "split": {"kind": "none"}})
    months = {moment.strftime("%Y-%m") for moment in days.tz_convert("UTC")}
    assert len(months) == int(reason.split()[0]) and blocks.block is not None
    assert load(blocks, blocks.encoder(), path, blocks=sorted(months)).report.rows_train == 80
