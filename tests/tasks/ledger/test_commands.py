"""``dpflows ledger ...``: exit codes, machine-readable answers, what an auditor and a person in the
data get.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from dpcore.errors import InputError
from flows.cli import run
from tasks.ledger import Ledger
from tasks.ledger.entries import entries, entry
from tests.ledger_fixtures import DeclaredLedger

HASHES = {"weights": "ab" * 32, "statement": "cd" * 32}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DPFLOWS_LEDGER", "DPFLOWS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def weekly(events) -> Ledger:
    """A ledger in the place where the commands look, with a weekly data set and three runs."""
    assert command("init east --epsilon 3 --delta 1e-6 --by week --column visit") == 0
    with DeclaredLedger(Path("runs") / "ledger.db") as ledger:
        ledger.reserve(
            "east", events(30.0, 2), ["2026-W01", "2026-W02"], {"config": "ef" * 32}
        ).commit(HASHES)
        reservation = ledger.reserve("east", events(30.0), ["2026-W02"])
        reservation.on_charge()
        reservation.forfeit("died")
        ledger.reserve("east", events(30.0), ["2026-W03"]).cancel()
        ledger.reserve("toy", events(1.0), public=True).commit()
        yield ledger


def command(words: str) -> int:
    return run(["ledger", *words.split()])


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run(["ledger", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_init_opens_a_budget_once(capsys) -> None:
    opened = answer(capsys, "init", "east", "--epsilon", "3", "--delta", "1e-6", "--order", "16")
    assert opened["order"] == 16 and 0 < opened["budget"] < 3 and len(opened["head"]) == 64
    assert (Path("runs") / "ledger.db").exists()
    assert command("init east --epsilon 30 --delta 1e-6") == 2
    assert "never changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ("init x --epsilon -1 --delta 1e-6", "epsilon"),
        ("init x --epsilon nan --delta 1e-6", "epsilon"),
        ("init x --epsilon 1 --delta 0", "delta"),
        ("init x --epsilon 1e-5 --delta 1e-6", "no order has room"),
        ("init x --epsilon 1 --delta 1e-6 --adjacency remove", "adjacency"),
        ("init x --epsilon 1 --delta 1e-6 --conversion rdp", "rdp"),
        ("init x --epsilon 1 --delta 1e-6 --unit person", "unit"),
        ("init x --epsilon 1 --delta 1e-6 --unit user", "user_column"),
        ("init x --epsilon 1 --delta 1e-6 --by hash --column id", "count"),
        ("init x --delta 1e-6", "--epsilon"),
        ("show", "no file"),
        ("verify --file none.jsonl", "none.jsonl"),
        ("verify --head abc", "12 hex digits"),
        ("verify --head not-a-hash-at-all", "12 hex digits"),
    ],
)
def test_bad_input_is_one_line_and_creates_nothing(capsys, words: str, say: str) -> None:
    assert command(words) == 2
    said = capsys.readouterr().err
    assert say in said and said.count("\n") == 1
    assert not Path("runs").exists()


def test_the_schema_gives_name_division_and_ledger(folder: Path, capsys) -> None:
    assert (
        answer(capsys, "init", "census", "--epsilon", "1", "--delta", "1e-6")["dataset"] == "census"
    )
    assert (
        run(
            [
                "ledger",
                "init",
                "census2",
                "--epsilon",
                "1",
                "--delta",
                "1e-6",
                "--by",
                "week",
                "--column",
                "c",
                "--ledger",
                "other.db",
            ]
        )
        == 0
    )
    assert command("init adult --epsilon 1 --delta 1e-6 --by week --column c") == 2
    assert "data schema" in capsys.readouterr().err
    assert (folder / "other.db").exists()


def test_a_budget_that_would_allow_a_record_to_be_published_is_refused(
    folder: Path, capsys
) -> None:
    assert run(["ledger", "init", "census", "--epsilon", "3", "--delta", "0.01"]) == 2
    assert "--delta below 1/n" in capsys.readouterr().err


def test_a_name_without_schema_is_said(folder: Path, capsys) -> None:
    assert run(["ledger", "init", "vists", "--epsilon", "3", "--delta", "1e-6"]) == 0
    assert "No schema is called 'vists'" in capsys.readouterr().err


def test_the_environment_names_the_ledger(folder: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DPFLOWS_LEDGER", str(folder / "shared" / "l.db"))
    answer(capsys, "init", "east", "--epsilon", "1", "--delta", "1e-6")
    assert (folder / "shared" / "l.db").exists() and not Path("runs").exists()
    os.chdir(folder / "shared")
    assert [row["dataset"] for row in answer(capsys, "show")["datasets"]] == ["east"]


def test_show_gives_the_target_as_guarantee_and_the_realised_as_diagnostic(
    weekly: Ledger, capsys
) -> None:
    rows = {row["dataset"]: row for row in answer(capsys, "show")["datasets"]}
    assert rows["east"]["entries"] == {
        "reserved": 0,
        "committed": 1,
        "forfeited": 1,
        "cancelled": 1,
    }
    assert (rows["east"]["epsilon"], rows["east"]["delta"], rows["east"]["adjacency"]) == (
        3.0,
        1e-6,
        "add_remove",
    )
    assert rows["toy"]["left"] is None
    shown = answer(capsys, "show", "east")
    blocks = {row["block"]: row for row in shown["blocks"]}
    assert 0 < blocks["2026-W01"]["realised_epsilon"] < blocks["2026-W02"]["realised_epsilon"] < 3
    assert blocks["2026-W03"]["spent"] == 0 and shown["entry_count"] == 3
    for words in (
        "show",
        "show east",
        "show toy",
        "remaining east",
        "remaining east --block 2030-W01",
    ):
        assert command(words) == 0
    text = capsys.readouterr().out
    assert (
        "(3, 1e-06) per record, add_remove, cks" in text
        and "diagnostic" in text
        and "no limit" in text
    )


def test_remaining_of_blocks(weekly: Ledger, capsys) -> None:
    least = answer(capsys, "remaining", "east")
    fresh = answer(capsys, "remaining", "east", "--block", "2030-W01")
    assert least["left"] < fresh["left"] == fresh["budget"]
    assert fresh["fits_epsilon"] == pytest.approx(3.0, rel=1e-3)
    assert command("remaining east --block never") == 2
    assert command("remaining est") == 2
    assert "did you mean 'east'" in capsys.readouterr().err


def test_verify_and_export(weekly: Ledger, folder: Path, capsys) -> None:
    head = weekly.head()
    assert answer(capsys, "verify", "--head", f" {head.upper()} ")["ok"] is True
    assert command("verify --head 0123456789ab --json") == 4
    said = capsys.readouterr()
    assert json.loads(said.out)["ok"] is False and "not in the chain" in said.err
    assert command("export -o audit.jsonl") == 0
    report = answer(capsys, "verify", "--file", "audit.jsonl", "--head", head[:12])
    assert report["ok"] and report["entries"] == 4 and report["head"] == head
    key = "ledger_secret"
    assert key not in (folder / "audit.jsonl").read_text()
    forged = (folder / "audit.jsonl").read_text().replace('\\"draws\\":1', '\\"draws\\":0')
    (folder / "audit.jsonl").write_text(forged)
    assert command("verify --file audit.jsonl") == 4
    (folder / "audit.jsonl").write_text("a,b\n")
    assert command("verify --file audit.jsonl") == 2
    assert command("export") == 0
    assert command("export -o none/audit.jsonl") == 2


def test_explain_names_the_models_and_the_bound(weekly: Ledger, capsys) -> None:
    told = answer(capsys, "explain", "east", "--block", "2026-W01")
    assert [model["hashes"] for model in told["models"]] == [HASHES | {"config": "ef" * 32}]
    assert told["without_result"] == 0 and told["most_certain"] == pytest.approx(0.952574, abs=1e-5)
    assert answer(capsys, "explain", "east")["without_result"] == 1
    assert answer(capsys, "explain", "east", "--block", "2026-W03")["models"] == []
    assert command("explain east") == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("20.1 times as likely", "95.3%", "Erasure", "k blocks", "ab" * 6):
        assert words in text
    assert "no promise" in answer(capsys, "explain", "toy")["answers"]["promise"]


def test_an_audit_finds_the_hashes_of_an_entry(weekly: Ledger, events) -> None:
    found = entry(weekly, entries(weekly, "east")[0]["entry"])
    assert found["state"] == "committed" and found["dataset"] == "east"
    assert found["events"] == events(30.0, 2).to_json()
    digest = sha256(found["events"].encode()).hexdigest()
    assert found["hashes"] == HASHES | {"config": "ef" * 32, "events": digest}
    assert weekly.verify(found["head"]).head_found_at == 4  # opened, fixed, reserved, committed
    with pytest.raises(InputError, match="ledger"):
        entry(weekly, "0" * 32)


def test_the_figure_is_written(weekly: Ledger, folder: Path, capsys) -> None:
    assert command("show east --figure budget.svg --json") == 0
    assert (folder / "budget.svg").read_text().lstrip().startswith("<?xml")
    assert command("show toy --figure budget.svg") == 2
    assert command("show east --figure none/budget.svg") == 2
    capsys.readouterr()
    assert command("show --figure budget.svg") == 2
    assert "Expected a data set with --figure budget.svg, got none" in capsys.readouterr().err


def test_migrate_says_that_nothing_was_to_do(weekly: Ledger, capsys) -> None:
    assert answer(capsys, "migrate")["steps"] == 0
