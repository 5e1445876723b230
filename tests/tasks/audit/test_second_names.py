"""A run whose file has another name: a finding until the other budget paid for it too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpcore.accounting import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Gaussian
from flows.cli import run
from flows.commands.audit import read
from tasks.audit import Audit, audit
from tasks.ledger import Ledger
from tasks.ledger.charge import charge_also
from tests.tasks.release.runs import World


def audited(world: World, run_id: str) -> Audit:
    return audit(read(world.client, run_id, world.ledger_url))


def test_a_second_name_blocks_until_it_is_charged(world: World, tmp_path: Path, capsys) -> None:
    cheap = Events.of([Gaussian(1.0, 80.0)], adjacency="add_remove")
    table = world.folder / "small.csv"
    # read as public data before anybody said that they are not
    with Ledger(world.ledger_url) as ledger:
        ledger.reserve("open", cheap, public=True, fingerprint=ledger.fingerprint([table])).commit()
    run_id = world.train()
    assert not audited(world, run_id).blocked
    with Ledger(world.ledger_url) as ledger:
        ledger.init("twin", 12.0, 1e-4, "add_remove")
        ledger.reserve("twin", cheap, fingerprint=ledger.fingerprint([table])).commit()
    report = audited(world, run_id)
    assert report.codes == {"second_name"} and report.blocked
    assert {
        finding.subject for finding in report.findings if finding.code == "second_name_public"
    } == {"open"}
    [fix] = [finding.fix for finding in report.findings if finding.code == "second_name"]
    with Ledger(world.ledger_url) as ledger:
        # An entry that says that it paid, but for other mechanisms, pays nothing.
        entry = fix.split("--for ")[1].rstrip("`")
        ledger.reserve("twin", cheap, reading={"for_entry": entry}).commit()
        assert audited(world, run_id).codes == {"second_name"}
        before = ledger.spent("twin")["all"]
    assert run([*fix.split("`")[1].split()[1:], "--ledger", world.ledger_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["for"] == entry
    assert not audited(world, run_id).blocked
    with Ledger(world.ledger_url) as ledger:
        assert (
            ledger.spent("twin")["all"] - before == ledger.spent("small")["all"]
            and ledger.verify().ok
        )


def test_the_other_budget_pays_for_noisy_metrics_too(world: World) -> None:
    """They are an entry of their own, which was once not asked for."""
    run_id = world.train(world.config(evaluate={"release": {"metric": "accuracy", "epsilon": 0.5}}))
    with Ledger(world.ledger_url) as ledger:
        ledger.init("twin", 12.0, 1e-4, "add_remove")
        mark = ledger.fingerprint([world.folder / "small.csv"])
        cheap = Events.of([Gaussian(1.0, 80.0)], adjacency="add_remove")
        ledger.reserve("twin", cheap, fingerprint=mark).commit()
        for left in (2, 1, 0):
            fixes = [
                finding.fix
                for finding in audited(world, run_id).findings
                if finding.code == "second_name"
            ]
            assert len(fixes) == left
            if left:
                charge_also(ledger, fixes[0].split("--for ")[1].rstrip("`"), "twin")


def test_what_cannot_be_charged_also(world: World) -> None:
    cheap = Events.of([Gaussian(1.0, 80.0)], adjacency="add_remove")
    with Ledger(world.ledger_url) as ledger:
        entry = ledger.reserve("small", cheap).entry_id
        with pytest.raises(
            InputError,
            match=r"Expected a committed entry of another data set "
            r".*\(reserved\)",
        ):
            charge_also(ledger, entry, "twin")
        with pytest.raises(InputError, match="unknown"):
            charge_also(ledger, "none", "small")
