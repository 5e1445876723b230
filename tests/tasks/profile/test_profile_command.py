"""``dpflows profile``: a draft to review, its price when it is private, and bad input on one
line.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from sys import float_info

import numpy as np
import pytest

from flows.cli import run
from tasks.ledger import Blocks, Ledger, RowFacts
from tasks.ledger.entries import entries, realised_epsilon
from tasks.profile.private import reading_of
from tasks.schema import find_schema


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.integers(18, 80)},{rng.choice(['a', 'b', 'c'])},{rng.choice(['yes', 'no'])}"
        for _ in range(3000)
    ]
    path = tmp_path / "visits.csv"
    path.write_text("age,ward,again\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_a_draft_is_a_schema_and_says_what_it_read(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = table.with_name("visits.yaml")
    assert run(["profile", str(table), "--label", "again", "-o", str(output)]) == 0
    assert "read private rows" in capsys.readouterr().err
    schema = find_schema(str(output))
    assert schema.columns["age"].kind == "numeric"
    assert set(schema.columns["ward"].levels) == {"a", "b", "c"}
    assert run(["profile", str(table), "-o", str(output)]) == 2
    assert "which exists" in capsys.readouterr().err


def test_a_draft_from_rows_is_its_owners_and_keeps_its_runs_from_being_released(
    table: Path,
) -> None:
    """It read rows before a budget existed: nobody else reads it, and a person has to review it
    first.
    """
    output = table.with_name("visits.yaml")
    before = os.umask(0o022)
    try:
        assert run(["profile", str(table), "--label", "again", "-o", str(output)]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    allowed, why = find_schema(str(output)).releasable
    assert not allowed and "drafted: from_rows" in why
    reviewed = "".join(
        line for line in output.read_text().splitlines(True) if not line.startswith("drafted")
    )
    output.write_text(reviewed)
    assert find_schema(str(output)).releasable[0]


def test_a_private_draft_has_paid_for_what_it_says(table: Path) -> None:
    output = table.with_name("visits.yaml")
    arguments = [
        "profile",
        str(table),
        "--private",
        "--epsilon",
        "30",
        "--label",
        "again",
        "-o",
        str(output),
    ]
    assert run(arguments) == 0
    assert find_schema(str(output)).releasable[0]


def test_a_private_draft_says_its_price(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", str(table), "--private", "--epsilon", "4", "--json"]
    assert run(arguments) == 2
    assert "--label" in capsys.readouterr().err
    assert run([*arguments, "--label", "again"]) == 0
    out, err = capsys.readouterr()
    price = {"epsilon": 4.0, "delta": 1e-7, "adjacency": "add_remove", "charged_to": None}
    assert json.loads(out)["spent"] == price
    assert "cost (4, 1e-07) per record" in err and "no ledger counts it" in err


SCHEMA = """\
schema_version: 1
name: visits
public: {n: 3000}
source: {path: visits.csv}
columns:
  age: {kind: numeric, low: 0, high: 100}
  ward: {kind: categorical, levels: [a, b, c]}
label: {column: again, positive: "yes", negative: "no"}
"""


@pytest.fixture
def known(table: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table as a data set of the working directory, with a replace-one budget in the default
    ledger.
    """
    folder = table.parent
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPFLOWS_LEDGER", f"sqlite:///{folder / 'ledger.db'}")
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "conf" / "data" / "visits.yaml").write_text(SCHEMA)
    assert (
        run(
            [
                "ledger",
                "init",
                "visits",
                "--epsilon",
                "6",
                "--delta",
                "1e-5",
                "--adjacency",
                "replace_one",
            ]
        )
        == 0
    )
    return table


def test_the_file_of_a_known_budget_is_charged_there(
    known: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = ["profile", str(known), "--private", "--epsilon", "4", "--label", "again"]
    capsys.readouterr()
    assert run(private) == 2
    assert "rows of 'visits'" in (err := capsys.readouterr().err) and "--charge visits" in err
    with Ledger(f"sqlite:///{known.parent / 'ledger.db'}") as ledger:
        full = ledger.room("visits")
        assert run([*private, "--charge", "visits", "--json"]) == 0
        out, err = capsys.readouterr()
        assert (
            json.loads(out)["spent"]["adjacency"] == "replace_one"
            and "charged to the budget of 'visits'" in err
        )
        left = ledger.room("visits")
        assert full is not None and left is not None
        charged = entries(ledger, "visits")
        assert [(entry["state"], entry["adjacency"]) for entry in charged] == [
            ("committed", "replace_one")
        ] * 2
        assert full.left - left.left == pytest.approx(sum(entry["cost"] for entry in charged))
        assert realised_epsilon(ledger, "visits", charged)["all"] < 4.2
        ledger.verify()
        # the same bytes under another name and outside the schema's place
        copy = known.with_name("copy.csv")
        copy.write_bytes(known.read_bytes())
        assert run(["profile", str(copy), "--private", "--label", "again"]) == 2
        assert "rows of 'visits'" in capsys.readouterr().err
        # nor may another budget pay for these rows
        ledger.init("elsewhere", 6.0, 1e-5, "replace_one")
        assert run([*private, "--charge", "elsewhere"]) == 2
        assert "not that of 'elsewhere'; add --charge visits" in capsys.readouterr().err
        assert not entries(ledger, "elsewhere")
        # no room for both lists: nothing is charged
        assert run([*private, "--epsilon", "12", "--charge", "visits"]) == 3
        assert len(entries(ledger, "visits")) == 2
    assert run(["profile", str(known), "--private", "--label", "again", "--charge", "visit"]) == 2
    assert "Expected a data set with a budget, got 'visit'" in capsys.readouterr().err
    assert run(["profile", str(known), "--charge", "visits"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"), [(["nowhere.csv"], "no file"), (["{}", "--label", "x"], "label='x'")]
)
def test_bad_input(
    table: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", *[item.format(table) for item in arguments]]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("cell", ["1e400", "inf", "-Infinity"])
@pytest.mark.parametrize("label", ["y", "a"])
def test_a_number_without_end_is_named(
    tmp_path: Path, cell: str, label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "huge.csv"
    path.write_text(f"a,y\n1e308,0\n{cell},1\n2,0\n")
    assert run(["profile", str(path), "--label", label]) == 2
    err = capsys.readouterr().err.strip()
    assert f"column 'a', got '{cell}' in data row 2" in err and len(err.splitlines()) == 1


def test_bounds_of_the_largest_numbers_are_finite_and_texts_may_look_endless(
    tmp_path: Path,
) -> None:
    path, output = tmp_path / "huge.csv", tmp_path / "draft.yaml"
    path.write_text("a,b,y\n1.79e308,inf,0\n-1.79e308,sup,1\n2,max,0\n2,inf,0\n")
    assert run(["profile", str(path), "--label", "y", "-o", str(output)]) == 0
    schema = find_schema(str(output))
    assert schema.columns["a"].high is not None and schema.columns["a"].high == float_info.max / 2
    assert schema.columns["a"].low == -schema.columns["a"].high
    assert set(schema.columns["b"].levels) == {"inf", "sup", "max"}


def test_no_parquet_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    assert run(["profile", str(path), "--label", "y"]) == 2
    err = capsys.readouterr().err.strip()
    assert "x.parquet: not readable as Parquet" in err and len(err.splitlines()) == 1


PEOPLE = """\
schema_version: 1
name: visits
unit: user
public: {n: 900, rows_per_user: 4}
source: {path: visits.csv}
missing: ["?"]
columns:
  age: {kind: numeric, low: 0, high: 100}
  who: {kind: user}
  ward: {kind: categorical, levels: [a, b, c]}
label: {column: again, positive: "yes", negative: "no"}
"""


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of people with several visits each, ids in two spellings, and a budget per person."""
    rng = np.random.default_rng(1)
    ids = [f"{who}.0" if rng.random() < 0.5 else f"{who}" for who in rng.integers(0, 900, 3000)] + [
        "?",
        "",
        " ",
    ]
    rows = [
        f"{rng.integers(18, 80)},{who},{rng.choice(list('abc'))},{rng.choice(['yes', 'no'])}"
        for who in ids
    ]
    path = tmp_path / "visits.csv"
    path.write_text("age,who,ward,again\n" + "\n".join(rows) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFLOWS_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "visits.yaml").write_text(PEOPLE)
    return path


def test_a_budget_of_people_pays_for_people(
    people: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ledger", "init", "visits", "--epsilon", "40", "--delta", "1e-5"]) == 0
    arguments = [
        "profile",
        str(people),
        "--private",
        "--epsilon",
        "30",
        "--label",
        "again",
        "--charge",
        "visits",
    ]
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "per user under add_remove" in err
    drafted = json.loads(out)["schema"]
    assert drafted["unit"] == "user" and drafted["columns"]["who"] == {"kind": "user"}
    assert abs(drafted["public"]["n"] - 0.8 * 900) < 150 and drafted["public"]["rows_per_user"] == 4
    with Ledger(f"sqlite:///{people.parent / 'ledger.db'}") as ledger:
        assert [entry["unit"] for entry in entries(ledger, "visits")] == ["user"] * 2
        ledger.verify()


def test_rows_of_nobody_and_more_than_are_kept_of_one_are_not_read(people: Path) -> None:
    schema = find_schema("visits")
    with Ledger(people.parent / "other.db") as ledger:
        opened = ledger.init("visits", 3.0, 1e-5, "add_remove", "user", blocks=Blocks.of(schema))
        frame, _ = reading_of(opened, people, RowFacts.of(schema)).cells([], by_row=True)
    assert frame["who"].value_counts().max() == 4 and not {"?", "", " "} & set(frame["who"])
    assert not frame["who"].str.contains(".", regex=False).any()


OTHER_UNITS = {
    "no facts yet": (
        ["--unit", "user", "--user-column", "who", "--rows-per-user", "4"],
        None,
        "by name alone",
    ),
    "sessions": (["--unit", "session"], None, "by name alone"),
    "blanks kept": ([], {"columns:": "text: {strip: false}\ncolumns:"}, "text.strip"),
    "no such column": ([], {"who:": "person:"}, "user column 'person'"),
}


@pytest.mark.parametrize("case", OTHER_UNITS)
def test_a_budget_whose_units_the_file_does_not_tell_apart_pays_for_no_profile(
    people: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options, changes, words = OTHER_UNITS[case]
    place, name = people.parent / "conf" / "data" / "visits.yaml", "visits"
    if changes is None:
        place.unlink()
        name = "bare"
    else:
        [(old, new)] = changes.items()
        place.write_text(PEOPLE.replace(old, new, 1))
    assert run(["ledger", "init", name, "--epsilon", "40", "--delta", "1e-5", *options]) == 0
    capsys.readouterr()
    assert run(["profile", str(people), "--private", "--label", "again", "--charge", name]) == 2
    err = capsys.readouterr().err
    assert words in err and len(err.strip().splitlines()) == 1
    with Ledger(f"sqlite:///{people.parent / 'ledger.db'}") as ledger:
        assert not entries(ledger, name)
