"""Rows are opened through one object that a charge is made of; see tests/neighbours/test_blocks.py
for what follows.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Gaussian
from tasks import training
from tasks.data import Reading
from tasks.kinds.base import reading_of
from tasks.kinds.charge import charge_of
from tasks.ledger import Blocks, Ledger, RowFacts
from tasks.schema import Schema, find_schema
from tests.flows.small import small_frame, write_small
from tests.tasks.retraining.weekly import write_weekly
from tests.tasks.training.test_training import config_of

ROOT = Path(__file__).resolve().parents[3]
# Who turns files into rows; all others ask a ``Reading``.
READERS = ("tasks/readers/", "tasks/data/")
OPENERS = {
    "load",
    "open_chunks",
    "frame_chunks",
    "read_text",
    "made_frame",
    "read_cells",
    "arff_cells",
}


def test_rows_are_opened_by_a_reading_alone() -> None:
    found = {}
    for package in ("tasks", "flows"):
        for path in (ROOT / package).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    ("tasks.data", "tasks.readers")
                ):
                    names = {alias.name for alias in node.names} & OPENERS
                    if names and not place.startswith(READERS):
                        found[place] = names
    assert not found


def test_what_a_job_reads_is_what_it_charges(tmp_path: Path) -> None:
    write_weekly(tmp_path)
    values = config_of(tmp_path / "clinic.yaml").model_dump(mode="json")
    values["data"] |= {"path": str(tmp_path / "clinic.csv"), "blocks": ["2026-W03", "2026-W04"]}
    job = training.prepare(type(config_of(tmp_path / "clinic.yaml")).model_validate(values))
    reading, charge = reading_of(job), charge_of(job)
    assert reading.blocks == charge.blocks == ("2026-W03", "2026-W04")
    one = reading_of(job, ("2026-W04",), ("train",))
    assert charge_of(job, one).blocks == one.blocks == ("2026-W04",)
    rows = reading.load(job.encoder)
    assert rows.train.n == 120 and set(rows.blocks) == {"2026-W03", "2026-W04"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("public", "blocks"),
    [
        ("rows_per_block: 300", ["all"]),
        ("rows_per_block: 300", ["a\0"]),
        ("n: 300", None),
        ("n: 300", [" all "]),
    ],
)
def test_a_name_that_stands_for_other_blocks_reads_nothing(
    tmp_path: Path, public: str, blocks: list[str] | None
) -> None:
    """``all`` read every row for a block of its own, and numpy's texts take "a" and "a" with a NUL
    for one.
    """
    write_small(tmp_path, np.random.default_rng(7))
    frame = small_frame(np.random.default_rng(7))
    frame["site"] = ["a", "b"] * 150
    frame.to_csv(tmp_path / "small.csv", index=False)
    path = tmp_path / "small.yaml"
    text = (
        path.read_text()
        .replace("{n: 300}", f"{{{public}}}")
        .replace("columns:", "columns:\n  site: {kind: block}")
    )
    path.write_text(f"{text}block: {{column: site, by: value}}\n")
    found = find_schema(path)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("small", 3.0, 1e-5, "add_remove", blocks=Blocks.of(found), facts=RowFacts.of(found))
    with pytest.raises(InputError, match=r"no row (of .*)?belongs|Expected data\.blocks"):
        training.load_records(training.prepare(config_of(path, data={"blocks": blocks})))
    events = Events.of([Gaussian(1.0, 20.0)], adjacency="add_remove")
    if blocks:
        with pytest.raises(InputError, match="which names none"):
            ledger.reserve("small", events, [name.strip() for name in blocks])
    assert not ledger.spent("small")
    job = training.prepare(config_of(path, data={"blocks": ["a"]}))
    assert training.load_records(job).open().train.n == 150


def test_a_side_that_is_not_wanted_is_not_decoded(tmp_path: Path) -> None:
    write_small(tmp_path, np.random.default_rng(7))
    text = (
        (tmp_path / "small.yaml")
        .read_text()
        .replace("split: {kind: none}", "split: {kind: hash, by: [age]}")
    )
    (tmp_path / "small.yaml").write_text(text)
    schema = find_schema(tmp_path / "small.yaml")
    frame = small_frame(np.random.default_rng(7))
    whole = Reading(schema, frame=frame)
    both = whole.load(schema.encoder())
    assert both.test is not None and both.test.n > 20
    aside = frame.index.difference(_training_rows(whole))
    frame.loc[aside[0], "paid"] = "perhaps"
    with pytest.raises(InputError, match="perhaps"):
        Reading(schema, frame=frame).load(schema.encoder())
    alone = Reading(schema, frame=frame, sides=("train",)).load(schema.encoder())
    assert alone.test is None
    np.testing.assert_array_equal(alone.train.X, both.train.X)


def _training_rows(reading: Reading) -> list[int]:
    return [row for chunk in reading.training_chunks() for row in chunk.table.index]


def test_a_file_of_numbers_has_no_blocks() -> None:
    values = {
        "schema_version": 1,
        "name": "t",
        "public": {"rows_per_block": 10},
        "source": {"format": "svmlight", "path": "t.txt"},
        "features": [{"name": "f", "count": 2}],
        "label": {"positive": "1", "negative": "-1"},
        "block": {"column": "day"},
    }
    with pytest.raises(ValueError, match="block needs declared columns"):
        Schema.model_validate(values)


@pytest.mark.parametrize("how", ["charged before", "declared"])
def test_a_test_table_of_another_private_data_set_is_refused(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number about its rows would be charged to the wrong people."""
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path, np.random.default_rng(7))
    small_frame(np.random.default_rng(8)).to_csv(tmp_path / "other.csv", index=False)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("small", 3.0, 1e-6, "add_remove")
    ledger.init("other", 3.0, 1e-6, "add_remove")
    events = Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove")
    if how == "charged before":
        ledger.reserve(
            "other", events, fingerprint=ledger.fingerprint([tmp_path / "other.csv"])
        ).commit()
    else:
        (tmp_path / "conf" / "data").mkdir(parents=True)
        text = (
            (tmp_path / "small.yaml")
            .read_text()
            .replace("name: small", "name: other")
            .replace("small.csv", "other.csv")
        )
        (tmp_path / "conf" / "data" / "other.yaml").write_text(text)
    values = config_of(tmp_path / "small.yaml").model_dump(mode="json")
    values["data"] |= {
        "path": str(tmp_path / "small.csv"),
        "test_path": str(tmp_path / "other.csv"),
    }
    job = training.prepare(type(config_of(tmp_path / "small.yaml")).model_validate(values))
    head = ledger.head()
    with pytest.raises(InputError, match="belongs to the private 'other'"):
        charge_of(job).reserve(ledger, events)
    assert ledger.head() == head


def test_both_sides_of_a_charge_are_known_by_their_bytes(tmp_path: Path) -> None:
    """A file that was read as a test part belongs to the data set that paid for it."""
    write_small(tmp_path, np.random.default_rng(7))
    small_frame(np.random.default_rng(8)).to_csv(tmp_path / "test.csv", index=False)
    values = config_of(tmp_path / "small.yaml").model_dump(mode="json")
    values["data"] |= {"path": str(tmp_path / "small.csv"), "test_path": str(tmp_path / "test.csv")}
    job = training.prepare(type(config_of(tmp_path / "small.yaml")).model_validate(values))
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("small", 3.0, 1e-6, "add_remove")
    events = Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove")
    charge_of(job).reserve(ledger, events).commit()
    for name in ("small.csv", "test.csv"):
        assert ledger.private_names(None, [tmp_path / name]) == ("small",)


CHANGES: dict[str, Callable[[Path], object]] = {
    "other rows": lambda file: file.write_text("".join(file.read_text().splitlines(True)[:-9])),
    "replaced by its copy": lambda file: (
        file.with_suffix(".new").write_bytes(file.read_bytes())
        and file.with_suffix(".new").replace(file)
    ),
    "gone": lambda file: file.unlink(),
}


@pytest.mark.parametrize("when", ["while it is read", "when it was read"])
@pytest.mark.parametrize("how", CHANGES)
def test_a_part_that_changes_before_it_is_charged_is_refused(
    tmp_path: Path, how: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger would know other bytes than those that were trained on."""
    write_small(tmp_path, np.random.default_rng(7))
    (tmp_path / "lake").mkdir()
    for k in range(2):
        frame = small_frame(np.random.default_rng(8 + k))
        frame.to_csv(tmp_path / "lake" / f"p-{k}.csv", index=False)
    values = config_of(tmp_path / "small.yaml").model_dump(mode="json")
    values["data"]["path"] = str(tmp_path / "lake" / "*")
    job = training.prepare(type(config_of(tmp_path / "small.yaml")).model_validate(values))
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("small", 3.0, 1e-6, "add_remove")
    head, last = ledger.head(), tmp_path / "lake" / "p-1.csv"
    planned = training.plan_training(job)
    if when == "while it is read":
        module = sys.modules["tasks.data.load"]
        reading = module._load
        monkeypatch.setattr(
            module, "_load", lambda *given: (reading(*given), CHANGES[how](last))[0]
        )
        with pytest.raises(InputError, match=r"p-1\.csv to stay as it is"):
            training.load_records(job)
    else:
        loaded = training.load_records(job)
        CHANGES[how](last)
        with pytest.raises(InputError, match=r"p-1\.csv to stay as it is"):
            training.reserve_budget(job, planned, ledger, loaded)
    assert ledger.head() == head


def test_a_reading_that_stayed_as_it_was_is_charged(tmp_path: Path) -> None:
    write_small(tmp_path, np.random.default_rng(7))
    job = training.prepare(config_of(tmp_path / "small.yaml"))
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("small", 3.0, 1e-6, "add_remove")
    loaded, planned = training.load_records(job), training.plan_training(job)
    training.reserve_budget(job, planned, ledger, loaded).cancel()
    assert loaded.open().read.files
