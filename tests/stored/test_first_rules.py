"""A ledger that was charged by price rules 1 verifies for ever, and runs of today are charged
beside it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting import Events
from dpcore.accounting.events import RULES
from dpcore.accounting.limits import order_index
from dpcore.errors import InputError, VerificationFailed
from dpcore.mechanisms import Gaussian
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson
from tasks.ledger import Ledger
from tasks.ledger.entries import entries
from tasks.ledger.summary import detail, verify_lines

# Runs under every relation: replaced records without replacement and restated Poisson, labels,
# selection, adaptive.
KEPT = Path(__file__).parent / "ledger-1.zip"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(KEPT) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.fixture
def ledger(folder: Path) -> Iterator[Ledger]:
    with Ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        yield ledger


def texts(folder: Path) -> list[str]:
    lines = map(json.loads, (folder / "export.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line["type"] == "events"]


def test_it_verifies_without_a_price_that_differs(ledger: Ledger, folder: Path) -> None:
    for report in (
        ledger.verify(),
        verify_lines((folder / "export.jsonl").read_text().splitlines()),
    ):
        assert report.ok, report
        assert report.entries == 21
        assert not any("rounding" in note for note in report.notes), report.notes


def test_stored_lists_are_of_rules_1_and_keep_their_bytes(folder: Path) -> None:
    for text in texts(folder):
        events = Events.from_json(text)
        assert events.rules == 1
        assert events.to_json() == text


def test_each_entry_costs_what_was_charged(ledger: Ledger) -> None:
    """And nearly half of them would cost less by the rules of today: the fixture tells the two
    apart."""
    cheaper = 0
    for dataset in ledger.datasets():
        index = order_index(dataset.order)
        for entry in entries(ledger, dataset.name):
            events = Events.from_json(entry_text(ledger, entry["entry"]))
            assert events.price(entry["adjacency"])[index] == entry["cost"]
            now = replace(events, rules=RULES).price(entry["adjacency"])[index]
            assert now <= entry["cost"] * (1 + 2e-9)
            cheaper += now < 0.99 * entry["cost"]
    assert cheaper >= 7


def entry_text(ledger: Ledger, entry: str) -> str:
    from tasks.ledger.entries import entry as stored

    text: str = stored(ledger, entry)["events"]
    return text


def test_a_run_of_today_is_charged_beside_it_by_the_rules_of_today(ledger: Ledger) -> None:
    g = Poisson(0.02).amplify(Gaussian(2.0, 3.0), Adjacency.REPLACE_ONE, "ball")
    events = Events.of([g] * 20, adjacency=Adjacency.REPLACE_ONE)
    assert json.loads(events.to_json())["rules"] == RULES == 3
    ledger.reserve("records", events)
    then = replace(events, rules=1)
    ledger.reserve("records", then)
    old, new = (entry["cost"] for entry in entries(ledger, "records")[:-3:-1])
    assert new < 0.99 * old
    assert ledger.verify().ok
    assert detail(ledger, "records")["entry_count"] == 11


def test_a_list_that_claims_other_rules_than_charged_it_is_found(
    ledger: Ledger, folder: Path
) -> None:
    """The number stands in the hashed list: without it the price is another one."""
    lines = (folder / "export.jsonl").read_text().splitlines()
    forged = []
    for line in lines:
        item = json.loads(line)
        if item["type"] == "events" and '"ball"' in item["text"]:
            item["text"] = item["text"].replace('"unit"', '"rules":2,"unit"')
        forged.append(json.dumps(item))
    assert not verify_lines(forged).ok


def test_rules_that_are_not_known_are_refused() -> None:
    text = Events.of([Gaussian(1.0, 2.0)], adjacency="add_remove").to_json()
    with pytest.raises(InputError, match="price rules"):
        Events.from_json(text.replace('"rules":3', '"rules":4'))
    with pytest.raises(InputError):
        Events.from_json(text.replace('"rules":3', '"rules":true'))


def test_a_damaged_fixture_would_be_noticed(ledger: Ledger) -> None:
    with pytest.raises(VerificationFailed):
        ledger.verify(head="0" * 64)


def test_rules_travel_with_parts_of_a_list(folder: Path) -> None:
    first = Events.from_json(texts(folder)[0])
    assert first.prefix(1).rules == 1
    assert first.then(first).rules == 1
    assert np.all(first.then(first).price() == 2 * first.price())
