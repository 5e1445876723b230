"""A ledger fixes once what maps a row to a unit and a block; no later declaration charges the same
people as others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dpcore.accounting import Events
from dpcore.errors import BudgetExceeded, DPFlowsError, InputError
from dpcore.mechanisms import Gaussian
from flows.cli import run
from tasks.ledger import Blocks, Charge, Ledger, RowFacts, schema
from tasks.ledger.chain import FIXED
from tasks.ledger.records import Record
from tasks.ledger.summary import export_lines, verify_lines
from tasks.ledger.verify import replay
from tasks.schema import Schema, find_schema
from tests.ledger_fixtures import OlderLedger, facts_of

SCHEMA = """\
schema_version: 1
name: clinic
unit: user
ledger: {ledger}
public: {{rows_per_block: 300, rows_per_user: 3}}
source: {{path: clinic.csv}}
block: {{column: visit, by: month, format: "%d/%m/%Y"}}
missing: ["?"]
columns:
  age: {{kind: numeric, low: 0, high: 100}}
  patient: {{kind: user}}
  note: {{kind: ignore}}
  visit: {{kind: block}}
label: {{column: paid, positive: "yes", negative: "no"}}
split: {{kind: none}}
"""

# A change of the declaration, and what the refusal names.
CHANGES = {
    "another id column": (
        {
            "  patient: {kind: user}": "  patient: {kind: ignore}",
            "note: {kind: ignore}": "note: {kind: user}",
        },
        "'patient' became 'note'",
    ),
    "days and months swapped": ({"%d/%m/%Y": "%m/%d/%Y"}, "block.format"),
    "another bucket": ({"by: month": "by: week"}, "block"),
    "another block column": (
        {"column: visit": "column: note", "note: {kind: ignore}": "note: {kind: block}"},
        "note",
    ),
    "another missing mark": ({'["?"]': '["?", "none"]'}, "missing marks"),
    "blanks kept": ({"split:": "text: {strip: false}\nsplit:"}, "text.strip"),
    "another decimal mark": ({"split:": "text: {decimal: ','}\nsplit:"}, "text.decimal"),
    "another unit": ({"unit: user": "unit: record"}, "unit 'user' became 'record'"),
}


def declared(folder: Path, changes: dict[str, str] | None = None) -> Schema:
    text = SCHEMA.format(ledger=f"sqlite:///{folder / 'ledger.db'}")
    for old, new in (changes or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "clinic.yaml"
    path.write_text(text)
    return find_schema(path)


def charge_of(found: Schema, n: int = 300, block: str = "2026-01") -> Charge:
    return Charge(
        "clinic",
        "user",
        "add_remove",
        blocks=(block,),
        division=Blocks.of(found),
        facts=RowFacts.of(found),
        reading={"n": n},  # type: ignore[arg-type]
    )


EVENTS = Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove", unit="user")


def opened(folder: Path, how: str) -> tuple[Ledger, Schema]:
    """A ledger whose facts are fixed: at the opening, or, opened by name alone, by the first
    reservation.
    """
    found = declared(folder)
    ledger = Ledger(folder / "ledger.db")
    facts = RowFacts.of(found) if how == "schema" else None
    ledger.init("clinic", 3.0, 1e-6, "add_remove", "user", blocks=Blocks.of(found), facts=facts)
    charge_of(found).reserve(ledger, EVENTS).commit()
    return ledger, found


def records_of(ledger: Ledger) -> list[Record]:
    with ledger.store.reading() as connection:
        assert connection is not None
        return [
            Record(*row)
            for row in connection.execute(select(schema.records).order_by(schema.records.c.seq))
        ]


@pytest.mark.parametrize("how", ["schema", "name"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_declaration_that_maps_rows_otherwise_is_refused(
    tmp_path: Path, how: str, change: str
) -> None:
    ledger, _ = opened(tmp_path, how)
    changes, words = CHANGES[change]
    head = ledger.head()
    # Another division is refused by itself; here the facts alone are asked.
    other = replace(charge_of(declared(tmp_path, changes)), division=None)
    for ask in (
        lambda: other.reserve(ledger, EVENTS),
        lambda: ledger.require_facts("clinic", other.facts),
    ):
        with pytest.raises(InputError, match=words) as refused:
            ask()
        assert "Put the declaration back" in str(refused.value) and "another name" in str(
            refused.value
        )
    assert ledger.head() == head


@pytest.mark.parametrize("how", ["schema", "name"])
def test_what_maps_no_row_may_change(tmp_path: Path, how: str) -> None:
    """Split, n, rows kept of a user, bounds and labels are recorded with each run and not fixed."""
    ledger, _ = opened(tmp_path, how)
    harmless = {
        "split: {kind: none}": "split: {kind: hash, test_share: 0.3}",
        "high: 100": "high: 120",
        "rows_per_user: 3": "rows_per_user: 5",
        "rows_per_block: 300": "rows_per_block: 400",
    }
    found = declared(tmp_path, harmless)
    charge_of(found, 400).reserve(ledger, EVENTS).commit()
    assert ledger.verify().ok
    bodies = [json.loads(record.body) for record in records_of(ledger) if record.kind == "reserved"]
    assert [body["reading"] for body in bodies] == [{"n": 300}, {"n": 400}]


def test_facts_are_fixed_once_and_before_the_entry_that_states_them(tmp_path: Path) -> None:
    ledger, found = opened(tmp_path, "name")
    charge_of(found).reserve(ledger, EVENTS).cancel()
    kinds = [record.kind for record in records_of(ledger)]
    assert kinds == ["opened", FIXED, "reserved", "committed", "reserved", "cancelled"]
    assert ledger.facts("clinic") == RowFacts.of(found)
    ledger = Ledger(tmp_path / "ledger.db")  # another process reads the same
    assert ledger.facts("clinic") == RowFacts.of(found)
    assert verify_lines(export_lines(ledger)).ok


def test_another_process_that_fixed_them_first_is_heard(tmp_path: Path) -> None:
    """The cache of an opened data set must not hide facts that were fixed since."""
    found = declared(tmp_path)
    first, second = Ledger(tmp_path / "ledger.db"), Ledger(tmp_path / "ledger.db")
    first.init("clinic", 3.0, 1e-6, "add_remove", "user", blocks=Blocks.of(found))
    assert second.dataset("clinic").facts is None
    charge_of(found).reserve(first, EVENTS).commit()
    changed = declared(tmp_path, {"%d/%m/%Y": "%m/%d/%Y"})
    with pytest.raises(InputError, match=r"block\.format"):
        charge_of(changed).reserve(second, EVENTS)


def forged(ledger: Ledger, seq: int, change: Any) -> list[str]:
    """Problems that a replay finds where record ``seq`` was written otherwise, with all hashes made
    to fit.
    """
    chain, previous = [], None
    for record in records_of(ledger):
        body = json.loads(record.body)
        if record.seq == seq:
            change(body)
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        record = record._replace(body=text, previous=previous or record.previous)
        record = record._replace(hash=record.expected_hash())
        previous = record.hash
        chain.append(record)
    with ledger.store.reading() as connection:
        assert connection is not None
        texts = dict(connection.execute(select(schema.events.c.sha256, schema.events.c.text)).all())
    return replay(chain, texts.get, None).problems


@pytest.mark.parametrize(("how", "seq"), [("schema", 2), ("name", 3)])
def test_a_replay_sees_an_entry_that_maps_rows_otherwise(
    tmp_path: Path, how: str, seq: int
) -> None:
    ledger, _ = opened(tmp_path, how)
    assert not forged(ledger, seq, lambda body: None)
    [problem] = forged(ledger, seq, lambda body: body["facts"].update(id_column="note"))
    assert "maps rows otherwise" in problem
    [problem] = forged(
        ledger, 1, lambda body: body.update(facts={"unit": "user", "id_column": "x"})
    )[:1]
    assert "a second time" in problem or "maps rows otherwise" in problem


def test_older_ledgers_go_on_and_are_fixed_by_the_next_reservation(tmp_path: Path) -> None:
    """Entries of older versions state no facts; they verify, and the first one that does fixes
    them.
    """
    found = declared(tmp_path)
    ledger = OlderLedger(tmp_path / "ledger.db")
    ledger.init("clinic", 3.0, 1e-6, "add_remove", "user", blocks=Blocks.of(found))
    ledger.reserve("clinic", EVENTS, ["2026-01"]).commit()
    assert ledger.facts("clinic") is None and ledger.verify().ok
    charge_of(found).reserve(ledger, EVENTS).commit()
    assert ledger.facts("clinic") == RowFacts.of(found) and ledger.verify().ok


@pytest.mark.parametrize("division", ["value", "hash", "day"])
def test_what_older_versions_charged_to_raw_names_counts(tmp_path: Path, division: str) -> None:
    """A block by value was named "7.0" where it is "7" today; hashes and days of zoned moments
    moved likewise.
    """
    count = {"count": 4} if division == "hash" else {}
    blocks = Blocks(division, "site", **count)
    form = {"block_format": "%Y-%m-%d %H:%M%z", "block_zone": "UTC"} if division == "day" else {}
    facts = RowFacts("record", None, 1, True, None, "site", division, count.get("count"), **form)
    old, now, other = {
        "value": (["7.0", "7.00"], "7", "8"),
        "hash": (["h1"], "h3", "h0"),
        "day": (["2026-03-01"], "2026-02-28", "2026-03-05"),
    }[division]
    events = Events.of([Gaussian(1.0, 4.0)], adjacency="add_remove")
    ledger = OlderLedger(tmp_path / "ledger.db")
    ledger.init("clinic", 3.0, 1e-5, "add_remove", blocks=blocks)
    with pytest.raises(BudgetExceeded):
        for _ in range(100):
            ledger.reserve("clinic", events, old).commit()

    def charge(block: str) -> None:
        ledger.reserve("clinic", events, [block], facts=facts).commit()

    assert ledger.verify().ok
    with pytest.raises(BudgetExceeded):
        charge(now)
    if division == "hash":
        with pytest.raises(BudgetExceeded):
            charge(other)
        assert ledger.room("clinic", [other]).left < 0.2 * ledger.dataset("clinic").budget  # type: ignore[union-attr]
        return
    charge(other)
    with pytest.raises(BudgetExceeded):  # and after the facts were fixed as before
        charge(now)
    with pytest.raises(BudgetExceeded):
        ledger.window("clinic", [now], events)
    assert min(ledger.spent("clinic", [now]).values()) > 0
    assert ledger.verify().ok
    # A charge on the new name that is written by hand is seen by a replay.
    seq = records_of(ledger)[-2].seq
    found = forged(ledger, seq, lambda body: body.update(read=[now], blocks=[now]))
    assert any("above its budget" in problem for problem in found)


def test_ledgers_with_facts_from_the_start_carry_nothing(tmp_path: Path) -> None:
    """Names are canonical from the first record on, and 7e0 is a name of its own."""
    blocks = Blocks("value", "site")
    facts = RowFacts("record", None, 1, True, None, "site", "value")
    events = Events.of([Gaussian(1.0, 4.0)], adjacency="add_remove")
    for name, opening in (("by schema", facts), ("by name", None)):
        ledger = Ledger(tmp_path / f"{name}.db")
        ledger.init("clinic", 3.0, 1e-5, "add_remove", blocks=blocks, facts=opening)
        ledger.reserve("clinic", events, ["7e0"], facts=facts).commit()
        assert ledger.spent("clinic", ["7", "8"]) == {"7": 0, "8": 0}


def test_an_entry_is_closed_for_the_data_set_that_was_charged(tmp_path: Path) -> None:
    """Cancelled under another name it would give that one's budget back, which the replay names
    too.
    """
    ledger = Ledger(tmp_path / "ledger.db")
    for name in ("clinic", "other"):
        ledger.init(name, 3.0, 1e-5, "add_remove")
    events = Events.of([Gaussian(1.0, 4.0)], adjacency="add_remove")
    reservation = ledger.reserve("clinic", events)
    reservation.dataset = "other"
    for ask in (reservation.cancel, lambda: ledger.note_draw(reservation.entry_id, "other")):
        with pytest.raises(DPFlowsError, match="nothing was changed"):
            ask()
    with pytest.raises(InputError, match="kind='drawn'"):
        ledger.close_entry(reservation.entry_id, "clinic", "drawn", {})
    assert ledger.spent("other") == {}
    ledger.close_entry(reservation.entry_id, "clinic", "cancelled", {})
    chain = []
    for record in records_of(ledger):
        moved = record._replace(dataset="other") if record.kind == "cancelled" else record
        chain.append(moved._replace(hash=moved.expected_hash()))
    with ledger.store.reading() as connection:
        assert connection is not None
        texts = dict(connection.execute(select(schema.events.c.sha256, schema.events.c.text)).all())
    assert any(
        "cancelled for 'other'" in problem for problem in replay(chain, texts.get, None).problems
    )


def test_the_command_fixes_what_the_schema_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = declared(tmp_path)
    assert run(["ledger", "init", "clinic.yaml", "--epsilon", "3", "--delta", "1e-6"]) == 0
    assert Ledger(tmp_path / "ledger.db").dataset("clinic").facts == RowFacts.of(found)


def test_delta_is_asked_again_wherever_n_becomes_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, found = opened(tmp_path, "name")
    head = ledger.head()
    for ask in (
        lambda charge: charge.reserve(ledger, EVENTS),
        lambda charge: ledger.require_facts("clinic", charge.facts, charge.reading["n"]),
    ):
        with pytest.raises(InputError, match=r"delta=1e-06.*n=1000000"):
            ask(charge_of(found, 1_000_000))
    assert ledger.head() == head
    ledger.require_facts("clinic", RowFacts.of(found), 999_999)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["visits", "--delta", "1e-3"], 2),  # a bare name says no n
        (["visits", "--delta", "1e-3", "--confirm-delta"], 0),
        (["visits", "--delta", "1e-5"], 0),
        (["clinic.yaml", "--delta", "0.004"], 2),  # 300 units a block
        # what a schema declares is not confirmed away
        (["clinic.yaml", "--delta", "0.004", "--confirm-delta"], 2),
        (["clinic.yaml", "--delta", "0.003"], 0),
    ],
)
def test_a_delta_that_allows_a_unit_to_be_published_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    declared(tmp_path)
    assert (
        run(["ledger", "init", *arguments, "--epsilon", "3", "--ledger", str(tmp_path / "new.db")])
        == code
    )
    assert (tmp_path / "new.db").exists() == (code == 0)


DIVIDED = [
    ("user", Blocks(user_column="patient", rows_per_user=3)),
    ("session", Blocks()),
    ("record", Blocks("month", "visit")),
    ("user", Blocks("hash", "patient", 4, user_column="patient", rows_per_user=3)),
]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(("unit", "blocks"), DIVIDED)
def test_no_charge_leaves_open_what_its_rows_are(
    tmp_path: Path, unit: str, blocks: Blocks, fixed: bool
) -> None:
    """Whoever writes code of their own states the facts too, and only those of the opening."""
    facts, names = (
        facts_of(blocks, unit),
        {"one": ["all"], "month": ["2026-01"], "hash": ["h1"]}[blocks.by],
    )
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init(
        "clinic", 3.0, 1e-6, "add_remove", unit, blocks=blocks, facts=facts if fixed else None
    )
    events, head = (
        Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove", unit=unit),
        ledger.head(),
    )
    with pytest.raises(InputError, match=r"Expected facts with a charge.*RowFacts\.of\(schema\)"):
        ledger.reserve("clinic", events, names)
    for other in (
        replace(facts, unit="record"),
        replace(facts, block_column="other"),
        replace(facts, block_by="day"),
    ):
        if other != facts:
            with pytest.raises(InputError, match="Put the declaration back"):
                ledger.reserve("clinic", events, names, facts=other)
    assert ledger.head() == head
    ledger.reserve("clinic", events, names, facts=facts).commit()
    assert ledger.verify().ok and not ledger.verify().notes
    if fixed:
        with pytest.raises(InputError, match="was opened for, but"):
            ledger.init(
                "other",
                3.0,
                1e-6,
                "add_remove",
                unit,
                blocks=blocks,
                facts=replace(facts, block_by="day"),
            )


def test_undivided_records_need_no_facts_and_take_no_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("clinic", 3.0, 1e-6, "add_remove")
    events = Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove")
    ledger.reserve("clinic", events).commit()
    with pytest.raises(InputError, match="was opened for, but the column of kind user or id"):
        ledger.reserve("clinic", events, facts=RowFacts("record", "patient"))
    ledger.reserve("clinic", events, facts=RowFacts("record")).commit()
    assert ledger.verify().ok and not ledger.verify().notes


def test_entries_of_older_versions_that_state_nothing_are_noted(tmp_path: Path) -> None:
    ledger, _ = opened(tmp_path, "schema")
    with OlderLedger(tmp_path / "ledger.db") as older:
        older.reserve("clinic", EVENTS, ["2026-01"]).commit()
    found = ledger.verify()
    assert found.ok and "1 entries do not state what maps their rows" in found.notes[0]


def test_a_charge_by_hand_on_a_block_that_names_none_is_seen(tmp_path: Path) -> None:
    ledger, blocks = Ledger(tmp_path / "ledger.db"), Blocks("value", "site")
    ledger.init("clinic", 3.0, 1e-5, "add_remove", blocks=blocks, facts=facts_of(blocks))
    events = Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove")
    ledger.reserve("clinic", events, ["a"], facts=facts_of(blocks)).commit()
    for name in ("all", "a\0"):
        [problem] = forged(
            ledger, 2, lambda body, name=name: body.update(read=[name], blocks=[name])
        )
        assert "which is no block of 'clinic'" in problem


LOOK_ALIKE = [
    ("p", "P"),
    ("p", "\uff50"),
    ("caf\u00e9", "cafe\u0301"),
    ("my data", "my\u3000data"),
    ("st", "\ufb06"),
]


@pytest.mark.parametrize(("taken", "near"), LOOK_ALIKE)
def test_a_name_that_looks_like_another_opens_nothing(
    tmp_path: Path, taken: str, near: str
) -> None:
    """Case, width, blanks and form of the letters: what a person takes for one name is one
    budget.
    """
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init(taken, 3.0, 1e-5, "add_remove")
    head, events = ledger.head(), Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove")
    with pytest.raises(InputError, match=r"not taken for another|printable name"):
        ledger.init(near, 3.0, 1e-5, "add_remove")
    with pytest.raises(InputError, match=r"not taken for another|printable name"):
        ledger.reserve(near, events, public=True)
    assert ledger.head() == head
