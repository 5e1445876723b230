"""Schema files: unknown keys, ranges, inheritance, YAML surprises, the working directory first."""

from __future__ import annotations

import json

import pytest

from dpcore.errors import InputError
from tasks.config.read import load_yaml
from tasks.data import load
from tasks.schema import find_schema, known_schemas

GOOD = """\
schema_version: 1
name: mine
public: {n: 100}
columns:
  age: {kind: numeric, low: 0, high: 100}
  paid: {kind: categorical, levels: [no, yes]}
label: {column: y, positive: 1, negative: 0}
"""


def write(tmp_path, text, name="mine.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_reversed_bounds_are_one_sentence(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "schema_version: 1\nname: s\npublic: {n: 9}\ncolumns: {age: {kind: numeric, low: 9, high: "
        "1}}\nlabel: {column: y, positive: a, negative: b}\n"
    )
    with pytest.raises(InputError) as refused:
        find_schema(str(path))
    assert str(refused.value).endswith("got low=9.0 > high=1.0; swap them.")


def test_a_schema_file_by_path(tmp_path):
    schema = find_schema(write(tmp_path, GOOD))
    assert (
        schema.public.n == 100
        and not schema.public.public
        and schema.ledger is None
        and schema.unit == "record"
    )
    assert schema.columns["paid"].levels == ("no", "yes")
    assert schema.encoder().design.names == ("age", "paid=no", "paid=yes", "intercept")
    assert schema.releasable == (True, "bounds and levels: declared")


BAD = {
    "lowx: 1": (
        GOOD.replace("low: 0", "lowx: 0"),
        r"unknown key columns\.age\.lowx; did you mean "
        r"low",
    ),
    "top": (GOOD + "colums: {}\n", "unknown key colums; did you mean columns"),
    "version": (GOOD.replace("schema_version: 1", "schema_version: 2"), "schema_version.*got 2"),
    "no label": (GOOD.replace("label:", "# label:"), "the key label is missing"),
    "no n": (GOOD.replace("{n: 100}", "{public: true}"), "declare n or rows_per_block"),
    "n 0": (GOOD.replace("n: 100", "n: 0"), r"public\.n: .*greater than or equal to 1, got 0"),
    "columns beyond memory": (
        GOOD + "features: [{name: f, count: 2000000000, low: 0, high: 1}]\n",
        r"features\.0\.count: .*less than or equal to 50,?000,?000, got 2000000000",
    ),
    "blocks beyond a ledger": (
        GOOD + "block: {column: day, by: hash, count: 1000000000}\n",
        r"block\.count: .*less than or equal to 100,?000, got 1000000000",
    ),
    "reversed": (
        GOOD.replace("low: 0, high: 100", "low: 9, high: 1"),
        "Expected low <= high for column 'age'",
    ),
    "fill beyond": (
        GOOD.replace("high: 100", "high: 100, fill: -1"),
        "fill -1 lies beyond 0 to 100",
    ),
    "far label": (
        GOOD.replace("positive: 1, negative: 0", "kind: regression, low: -1e308, high: 1e308"),
        "too far apart",
    ),
    "no part": (
        GOOD.replace("kind: numeric", 'kind: date, format: "%Y", parts: []'),
        "a date needs parts",
    ),
    "no bounds": (
        GOOD.replace(", low: 0, high: 100", ""),
        "Expected declared bounds low and high for column 'age'",
    ),
    "no levels": (
        GOOD.replace(", levels: [no, yes]", ""),
        "Expected declared levels for column 'paid', got none",
    ),
    "same label": (
        GOOD.replace("negative: 0", "negative: 1"),
        "'1' is declared both positive and negative",
    ),
    "half label": (GOOD.replace(", negative: 0", ""), "needs both positive and negative"),
    "label twice": (
        GOOD.replace("column: y", "column: age"),
        "the label 'age' is also declared as a feature",
    ),
    "user": (GOOD + "unit: user\n", "unit: user needs a column of kind user"),
    "tail": (GOOD + "split: {kind: tail}\n", r"split\.kind tail needs public\.n"),
    "block": (GOOD + "block: {column: day}\n", "the block column 'day' is not among"),
    "yaml": (GOOD + "x: [1\n", r"mine\.yaml, line \d+: not readable as YAML"),
    "twice": (GOOD + "name: other\n", "the key 'name' stands there twice"),
    "list": ("- a\n", "expected keys with values, got list"),
    "bounds": (
        GOOD + "bounds: data\n",
        "bounds: .*'declared', 'private' or 'from_data'.*got 'data'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_schemas_are_refused_on_one_line(tmp_path, name):
    text, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        find_schema(write(tmp_path, text))
    assert "\n" not in str(caught.value) and "mine.yaml" in str(caught.value)


def test_missing_schema_file():
    with pytest.raises(
        InputError,
        match=r"Expected a schema file at data\.name='none\.yaml', "
        r"which does not exist",
    ):
        find_schema("none.yaml")


def test_the_working_directory_wins(tmp_path, monkeypatch):
    (tmp_path / "conf" / "data").mkdir(parents=True)
    write(tmp_path / "conf" / "data", GOOD, "adult.yaml")
    monkeypatch.chdir(tmp_path)
    assert find_schema("adult").name == "mine"
    assert find_schema("census").name == "census"
    assert {"adult", "census", "bank"} <= set(known_schemas())


def test_extends_merges_and_null_removes(tmp_path):
    write(tmp_path, GOOD, "base.yaml")
    text = (
        f"extends: {tmp_path}/base.yaml\nname: child\ncolumns:\n  age: {{high: 50}}\n  paid: null\n"
    )
    schema = find_schema(write(tmp_path, text, "child.yaml"))
    assert schema.name == "child" and list(schema.columns) == ["age"]
    assert (schema.columns["age"].low, schema.columns["age"].high) == (0, 50)
    loop = write(tmp_path, f"extends: {tmp_path}/loop.yaml\n", "loop.yaml")
    with pytest.raises(InputError, match="extends itself"):
        find_schema(loop)


def test_yaml_keeps_words_dates_and_times():
    text = "a: [no, NO, on, 2011-01-01, 1:30, 1_000, 1e5, .5, true, null, 0123, -2, 1.5]"
    found = load_yaml(text, "here")["a"]
    assert found == [
        "no",
        "NO",
        "on",
        "2011-01-01",
        "1:30",
        1000,
        1e5,
        0.5,
        True,
        None,
        123,
        -2,
        1.5,
    ]


@pytest.mark.parametrize(
    "name", ["../z", "a/b", "a\\b", ".z", "", " z", "z\n", "o'clock", "z" * 201]
)
def test_a_name_that_is_also_a_place_is_no_name(tmp_path, name):
    path = write(tmp_path, GOOD.replace("name: mine", f"name: {json.dumps(name)}"))
    with pytest.raises(InputError, match=r"name (is 1 to 200|has no slash)"):
        find_schema(path)


WRITTEN = [
    "01",
    "1.10",
    "1e3",
    "1_000",
    "+1",
    "yes",
    "true",
    "null",
    "~",
    "0x1F",
    ".5",
    "2011-01-01",
]


def test_levels_labels_and_marks_keep_the_text_that_stands_there(tmp_path):
    """Cells are texts: what YAML alone would make of them stands in no file."""
    listed = ", ".join(WRITTEN)
    text = GOOD.replace("levels: [no, yes]", f"levels: [{listed}], missing: [007, -], fill: 01")
    text = text.replace("positive: 1, negative: 0", "positive: [+1, 1.50], negative: -1")
    text = text.replace("age: {", "2011: {kind: ignore}\n  age: {") + "missing: 1_0\n"
    schema = find_schema(write(tmp_path, text))
    assert schema.columns["paid"].levels == tuple(WRITTEN)
    assert schema.columns["paid"].missing == ("007", "-")
    assert schema.columns["paid"].fill == "01"
    assert (schema.label.positive, schema.label.negative) == (("+1", "1.50"), ("-1",))
    assert schema.missing == ("1_0",) and "2011" in schema.columns
    assert schema.columns["age"].low == 0.0
    child = write(tmp_path, f"extends: {tmp_path}/mine.yaml\nmissing: null\n", "child.yaml")
    assert find_schema(child).missing == ()


def test_labels_without_capitals_are_one_where_they_are_declared_so(tmp_path):
    text = GOOD.replace(
        "positive: 1, negative: 0", "ignore_case: true, positive: Yes, negative: NO"
    )
    schema = find_schema(write(tmp_path, text))
    path = tmp_path / "t.csv"
    path.write_text("age,paid,y\n1,no,yes\n2,no,YES \n3,no,no\n4,yes,No\n")
    assert load(schema, schema.encoder(), path).train.y.tolist() == [1, 1, -1, -1]
    kept = schema.model_copy(
        update={"label": schema.label.model_copy(update={"ignore_case": False})}
    )
    with pytest.raises(InputError, match="'yes' is not a declared label"):
        load(kept, kept.encoder(), path)
    with pytest.raises(InputError, match="'Yes' is declared both positive and negative"):
        find_schema(write(tmp_path, text.replace("NO}", "yES}")))


@pytest.mark.parametrize(
    ("by", "form", "words"),
    [
        ("day", "%s", "the day of a date follows, got '%s'"),
        ("day", "%Y-%m", "the day of a date follows, got '%Y-%m'"),
        ("month", "%m", "the month of a date"),
        ("year", "%q", "the year of a date"),
        ("week", "%G-W%V", "the week of a date"),
        ("day", "mixed", "the day of a date"),
    ],
)
def test_a_block_format_that_does_not_say_the_block_is_refused(tmp_path, by, form, words):
    block = f"block: {{column: when, by: {by}, format: '{form}'}}\n"
    text = GOOD.replace("columns:\n", "columns:\n  when: {kind: block}\n") + block
    with pytest.raises(InputError, match=words):
        find_schema(write(tmp_path, text))


@pytest.mark.parametrize(
    ("by", "form"),
    [
        ("day", "%d.%m.%Y"),
        ("month", "%Y-%m"),
        ("week", "%G-W%V-%u"),
        ("year", "%Y"),
        ("day", "ISO8601"),
    ],
)
def test_a_block_format_that_says_it_is_taken(tmp_path, by, form):
    block = f"block: {{column: when, by: {by}, format: '{form}'}}\n"
    text = GOOD.replace("columns:\n", "columns:\n  when: {kind: block}\n") + block
    assert find_schema(write(tmp_path, text)).block.format == form


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("decimal: ',', thousands: ','", "decimal and thousands are both ','"),
        ("decimal: '\"'", "decimal and quote are both"),
        ("separator: '\"'", "separator and quote are both"),
        ("decimal: ';;'", "decimal is one character"),
        ("thousands: '0'", "thousands is one character, no letter, digit"),
        ("decimal: ' '", "decimal is one character, no letter, digit or blank"),
    ],
)
def test_a_mark_of_a_text_has_one_meaning(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        find_schema(write(tmp_path, GOOD + f"text: {{{text}}}\n"))
