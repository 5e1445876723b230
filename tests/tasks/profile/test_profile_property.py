"""Whatever stands in a table of text: its draft is a schema that reads every row, or it is refused on one line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcore.errors import InputError
from tasks.data import load
from tasks.profile import draft_schema
from tasks.schema import Schema, find_schema

PLAIN = ["1", "2", "3.5", "7", "12", "0", "-4"]
ODD = [
    "1.0", "01", "1e3", "+1", "1_000", "-0", "yes", "no", "true", "TRUE", "False", "null", "~", "NaN", "None", "inf",
    "", "NA", "?", "-", ".", "2026-01-02", "02.01.2026", "x", "é", "e\u0301", "two words", " x", "a;b", "a,b", "it's",
    'a "q" b', "two\nlines", "two\r\nlines", "line\u2028mark", "next\x85line", "=N(TRUE)", "#x", "a: b", "{a", "1,5",
    "\u00a0x", "-1", "999", "%", "@data", "1 234",
]  # fmt: skip
CELLS = st.one_of(st.sampled_from(PLAIN), st.sampled_from(ODD))
COLUMN = st.lists(CELLS, min_size=1, max_size=6)
NAMES = st.lists(
    st.sampled_from(["age", "month", "type", "id", "a b", "é", "two\nlines", "yes", "1", "a.b", "x:y"]),
    min_size=1, max_size=3, unique=True,
)  # fmt: skip


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    names=NAMES,
    columns=st.lists(COLUMN, min_size=3, max_size=3),
    labels=st.lists(CELLS, min_size=2, max_size=3, unique=True),
    separator=st.sampled_from([",", ";", "\t", "|"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_a_draft_reads_every_row_or_says_why_not(
    tmp_path: Path,
    names: list[str],
    columns: list[list[str]],
    labels: list[str],
    separator: str,
    end: str,
) -> None:
    rows = [
        [*(c[k % len(c)] for c in columns[: len(names)]), labels[k % len(labels)]]
        for k in range(24)
    ]
    path = tmp_path / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, lineterminator=end).writerows([[*names, "y"], *rows])
    try:
        draft = draft_schema(path, "y")
    except InputError as error:
        assert "\n" not in str(error)
        return
    (tmp_path / "draft.yaml").write_text(draft.text, encoding="utf-8")
    if draft.notes[0].startswith("NO SCHEMA YET"):
        raise AssertionError(draft.notes[0])
    schema = find_schema(tmp_path / "draft.yaml")
    assert schema == Schema.model_validate(draft.values)
    whole = schema.model_copy(update={"split": schema.split.model_copy(update={"kind": "none"})})
    found: Any = load(whole, whole.encoder(), path)
    assert found.train.n == 24 or schema.label.undeclared == "drop"
    assert not found.report.train["unknown"] and not found.report.train["clipped"]
