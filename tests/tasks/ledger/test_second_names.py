"""One table under two names, private data that are declared public, and a second ledger: all are
second budgets.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from dpcore.accounting import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Gaussian
from tasks import training
from tasks.home import Home
from tasks.ledger import Blocks, Ledger, chain, ledger_url, schema
from tasks.ledger.charge import FOR, charge_also, others
from tasks.ledger.records import Record
from tests.ledger_fixtures import facts_of
from tests.tasks.training.test_training import config_of


@pytest.fixture
def ledger(small: Path) -> Ledger:
    """A ledger that charged the small table as the private data set ``small``."""
    opened = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    opened.init("small", 3.0, 1e-4, "add_remove")
    job = training.prepare(config_of(small))
    training.reserve_budget(job, training.plan_training(job), opened).commit()
    return opened


def second(small: Path, name: str, public: bool) -> Path:
    """A schema of the same table under another name."""
    text = small.read_text().replace("name: small", f"name: {name}")
    path = small.with_name(f"{name}.yaml")
    path.write_text(text.replace("{n: 300}", "{n: 300, public: true}") if public else text)
    return path


def admitted(schema: Path, ledger: Ledger, table: Path) -> object:
    job = training.prepare(config_of(schema, data={"path": str(table)}))
    return training.fit_to_ledger(job, training.plan_training(job), ledger)


@pytest.mark.parametrize("name", ["small", "other"])
def test_private_data_that_are_declared_public_are_refused_by_name_and_by_bytes(
    small: Path, ledger: Ledger, name: str, tmp_path: Path
) -> None:
    schema, table = second(small, name, public=True), tmp_path / "elsewhere.csv"
    table.write_bytes(small.with_name("small.csv").read_bytes())
    if name == "small":
        small.with_name("small.csv").write_text("another table\n")
    with pytest.raises(InputError, match=r"Expected public data, got .*'small'.*\(3, 0.0001\)-DP"):
        admitted(schema, ledger, table)
    assert {dataset.name for dataset in ledger.datasets()} == {"small"}


def test_a_public_test_table_is_asked_for_too(small: Path, ledger: Ledger, tmp_path: Path) -> None:
    schema = second(small, "other", public=True)
    schema.write_text(
        schema.read_text().replace("split: {kind: none}", "split: {kind: file, path: test.csv}")
    )
    table = tmp_path / "fresh.csv"
    table.write_text(small.with_name("small.csv").read_text() + "30,north,yes\n")
    (tmp_path / "test.csv").write_bytes(small.with_name("small.csv").read_bytes())
    with pytest.raises(InputError, match="charged as the private 'small'"):
        admitted(schema, ledger, table)


def test_an_edited_copy_is_another_file(small: Path, ledger: Ledger, tmp_path: Path) -> None:
    """What fingerprints cannot see; the documentation says so."""
    table = tmp_path / "edited.csv"
    table.write_text(small.with_name("small.csv").read_text() + "30,north,yes\n")
    assert ledger.private_names("other", [table]) == ()
    admitted(second(small, "other", public=True), ledger, table)


def test_one_part_of_several_files_is_known(ledger: Ledger, events, tmp_path: Path) -> None:
    parts = [tmp_path / f"part{number}.csv" for number in range(3)]
    for number, part in enumerate(parts):
        part.write_text(f"rows of part {number}\n" * 9)
    ledger.reserve("small", events(50.0), fingerprint=ledger.fingerprint(parts)).commit()
    for number, part in enumerate(parts):
        assert ledger.private_names("other", [part]) == ("small",)
        renamed = [part.rename(tmp_path / f"z{number}.csv"), tmp_path / "fresh.csv"]
        renamed[1].write_text(f"fresh rows {number}\n")
        assert ledger.private_names("other", renamed) == ("small",)
    head = ledger.head()
    # asked by the ledger itself, too
    with pytest.raises(InputError, match="charged as the private 'small'"):
        ledger.reserve("new", events(50.0), public=True, fingerprint=ledger.fingerprint(renamed))
    assert ledger.head() == head


def test_public_runs_are_fingerprinted_so_that_a_later_private_name_is_warned(
    small: Path, tmp_path: Path
) -> None:
    with Ledger(tmp_path / "fresh.db") as ledger:
        job = training.prepare(config_of(second(small, "open", public=True)))
        training.reserve_budget(job, training.plan_training(job), ledger).commit()
        ledger.init("small", 3.0, 1e-4, "add_remove")
        job = training.prepare(config_of(small))
        [note] = training.reserve_budget(job, training.plan_training(job), ledger).notes
        assert "'open'" in note


def test_an_entry_is_known_as_private_by_its_name_and_by_its_bytes(
    small: Path, tmp_path: Path
) -> None:
    """What was public when it ran and stands in a budget by now is no public number any more: an
    audit asks this.
    """
    with Ledger(tmp_path / "fresh.db") as ledger:
        job = training.prepare(config_of(second(small, "open", public=True)))
        public = training.reserve_budget(job, training.plan_training(job), ledger)
        public.commit()
        assert ledger.private_as(public.entry_id) == ()
        ledger.init("small", 3.0, 1e-4, "add_remove")
        job = training.prepare(config_of(small))
        private = training.reserve_budget(job, training.plan_training(job), ledger)
        private.commit()
        assert (
            ledger.private_as(public.entry_id) == ledger.private_as(private.entry_id) == ("small",)
        )
        assert ledger.private_as("0" * 32) == ()


def test_a_configuration_names_no_other_ledger_than_the_schema(small: Path, tmp_path: Path) -> None:
    """A fresh file would be a fresh budget for the same records."""
    other = f"sqlite:///{tmp_path / 'other.db'}"
    job = training.prepare(config_of(small, ledger={"url": other}))
    with pytest.raises(InputError, match=r"got ledger.url=.*second budget"):
        ledger_url(job.config, job.schema, Home(tmp_path))
    same = training.prepare(
        config_of(small, ledger={"url": f"sqlite:///{small.with_name('ledger.db')}"})
    )
    assert ledger_url(same.config, same.schema, Home(tmp_path)) == same.schema.ledger
    small.write_text(small.read_text().replace(f"ledger: {job.schema.ledger}\n", ""))
    free = training.prepare(config_of(small, ledger={"url": other}))
    assert ledger_url(free.config, free.schema, Home(tmp_path)) == other


def test_another_name_pays_on_the_blocks_that_hold_the_file(
    small: Path, ledger: Ledger, events
) -> None:
    """A block that nobody reads is no payment: those that were charged for the same file are asked
    for.
    """
    [entry] = [record.entry for record in ledger_records(ledger)]
    ledger.init("parts", 3.0, 1e-4, "add_remove", blocks=Blocks("value", "site"))
    mark = ledger.fingerprint([small.with_name("small.csv")])
    facts = facts_of(Blocks("value", "site"))
    for site in ("a", "b"):
        ledger.reserve("parts", events(50.0), [site], fingerprint=mark, facts=facts).commit()
    for blocks in (["never"], ["a"], ["a", "never"]):
        with pytest.raises(InputError, match=r"charged for the same file.*--block"):
            charge_also(ledger, entry, "parts", blocks)
    assert unpaid(ledger, entry) == ("parts",)
    with ledger.store.reading() as connection:
        assert connection is not None
        text = chain.events_text(
            connection, json.loads(chain.history(connection, entry)[0].body)["events"]
        )
    paid = ledger.reserve(
        "parts", Events.from_json(text or ""), ["never"], reading={FOR: entry}, facts=facts
    )
    paid.commit()
    assert unpaid(ledger, entry) == ("parts",)
    charge_also(ledger, entry, "parts", ["a", "b"])
    assert unpaid(ledger, entry) == ()


def ledger_records(ledger: Ledger) -> list[Record]:
    with ledger.store.reading() as connection:
        assert connection is not None
        return [
            Record(*row)
            for row in connection.execute(select(schema.records).where(schema.IS_RESERVING))
        ]


def unpaid(ledger: Ledger, entry: str) -> tuple[str, ...]:
    with ledger.store.reading() as connection:
        assert connection is not None
        return others(connection, chain.history(connection, entry)).unpaid


def test_another_name_pays_for_the_units_that_the_run_saw(tmp_path: Path) -> None:
    """Rows of the same people, by the same column: else one person of the one is several of the
    other.
    """
    table = tmp_path / "t.csv"
    table.write_text("who,visit\n1,a\n")
    events = Events.of([Gaussian(1.0, 50.0)], adjacency="add_remove", unit="user")
    blocks = Blocks(user_column="who", rows_per_user=2)
    facts = facts_of(blocks, "user")
    with Ledger(tmp_path / "ledger.db") as ledger:
        mark = ledger.fingerprint([table])
        for name, column in (
            ("one", "who"),
            ("same", "who"),
            ("other", "visit"),
            ("unfixed", "who"),
        ):
            own = Blocks(user_column=column, rows_per_user=2)
            ledger.init(name, 3.0, 1e-5, "add_remove", "user", blocks=own)
            if name != "unfixed":
                ledger.reserve(name, events, fingerprint=mark, facts=facts_of(own, "user")).commit()
        paid = ledger.reserve("one", events, fingerprint=mark, facts=facts)
        paid.on_charge()
        paid.commit({"weights": "a" * 64})
        assert charge_also(ledger, paid.entry_id, "same")
        for name in ("other", "unfixed"):
            with pytest.raises(InputError, match=f"saw the users of '{name}' in the same rows"):
                charge_also(ledger, paid.entry_id, name)
        assert ledger.verify().ok and not ledger.verify().notes
