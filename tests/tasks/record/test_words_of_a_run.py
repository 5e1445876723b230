"""Words that a person meets: two epsilons in one sentence, shares of a budget, ranges of a
configuration, init.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpcore.errors import InputError
from flows.cli import run
from flows.terminal import Terminal, plan_table, summary_rows
from tasks import training
from tasks.compare import parse_compare
from tasks.config import parse_config
from tasks.config.train import AlgorithmSection
from tasks.ledger.records import UNIT
from tasks.record.statement import LedgerEntry, Statement
from tasks.record.wording import spent_words, to_html, to_markdown, two_epsilons
from tests.tasks.training.test_training import config_of

ROOT = Path(__file__).resolve().parents[3]
BUNDLE = ROOT / "tests" / "tasks" / "release" / "fixtures" / "bundle-1"
SENTENCE = (
    "The promise is epsilon = 0.999986 at delta = 1e-06 (accountant gdp); the ledger charges the "
    "Rényi curve of the same releases, which alone would state 1.07805: the looser bound, in which "
    "all kinds of runs add up."
)
NUMBERS = {
    "delta": 1e-6,
    "accountant": "gdp",
    "conversion": "cks",
    "renyi_epsilon": 1.07805,
    "best_order": 21.0,
}


def test_two_epsilons_are_told_apart_in_one_sentence() -> None:
    assert two_epsilons(0.999986, 1e-6, "gdp", 1.07805) == SENTENCE
    assert two_epsilons(1.0, 1e-6, "rdp", 1.0) == (
        "The promise, epsilon = 1 at delta = 1e-06, follows from what the ledger charges."
    )


def test_the_sentence_stands_in_terminal_plan_statement_and_card() -> None:
    summary = NUMBERS | {
        "data": "census", "public_n": 10, "n_kind": "exact", "dimension": 3, "algorithm": "a", "reason": "",
        "unit": "record", "adjacency": "add_remove", "epsilon_asked": 1.0, "epsilon_spent": 0.999986,
        "parameters": {}, "internal": {"accuracy": 0.8}, "released": {}, "releasable": True, "reasons": [], "run_id": "r",
        "experiment": "e", "seconds": {"fit": 1.0, "flow": 2.0},
    }  # fmt: skip
    assert ("promise, charge", SENTENCE) in summary_rows(summary)
    assert SENTENCE in list(plan_table(NUMBERS | {"epsilon": 0.999986}).columns[1].cells)
    stored = Statement.model_validate_json((BUNDLE / "privacy" / "statement.json").read_bytes())
    guarantee = stored.guarantee.model_copy(
        update={"epsilon": 0.999986, "delta": 1e-6, "accountant": "gdp"}
    )
    renyi = stored.renyi.model_copy(update={"epsilon": 1.07805})
    statement = stored.model_copy(update={"guarantee": guarantee, "renyi": renyi})
    assert SENTENCE in to_markdown(statement) and SENTENCE in to_html(statement)


def test_what_is_spent_is_said_in_words_and_percent() -> None:
    entry = LedgerEntry(
        dataset="d",
        entry="e",
        head="h",
        blocks=["all"],
        spent_units={"all": UNIT // 4},
        order=21.0,
        limit_units=UNIT,
    )
    assert spent_words(entry) == ["all: 25 % of its budget (0.25 of 1 at Rényi order 21)"]
    # as stored by earlier versions
    before = entry.model_copy(update={"order": None, "limit_units": None})
    assert spent_words(before) == ["all: a Rényi cost of 0.25"]
    nearly = entry.model_copy(update={"spent_units": {"all": UNIT - 1}})
    assert "nearly 100 %" in spent_words(nearly)[0]


@pytest.mark.parametrize("epsilon", [100.1, 1e10])
def test_an_epsilon_that_promises_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(
        InputError,
        match=r"for privacy\.epsilon, got .*usual values lie between "
        r"0\.1 and 8",
    ):
        parse_config({"privacy": {"epsilon": epsilon}})
    with pytest.raises(InputError, match=r"privacy\.epsilon"):
        parse_compare(
            {"data": "census", "algorithms": "auto", "privacy": {"epsilon": [1, epsilon]}}
        )
    assert parse_config({"privacy": {"epsilon": 100}}).privacy.epsilon == 100


def test_no_delta_is_refused_with_the_way_to_pure_privacy(small: Path) -> None:
    for parse in (
        parse_config,
        lambda v: parse_compare(v | {"data": "census", "algorithms": "auto"}),
    ):
        with pytest.raises(
            InputError,
            match=r"privacy\.delta.*algorithm\.noise=gamma \(objective_perturbation, "
            r"output_gd\)",
        ):
            parse({"privacy": {"delta": 0}})
    # The way that it names is one: the price of these is no worse at a delta that is next to
    # nothing.
    for name in ("objective_perturbation", "output_gd"):
        privacy = {"epsilon": 1.0, "delta": 1e-300, "adjacency": "replace_one"}
        config = config_of(small, privacy=privacy)
        config = config.model_copy(update={"algorithm": AlgorithmSection(name=name, noise="gamma")})
        planned = training.plan_training(training.prepare(config))
        assert planned.spent_epsilon == pytest.approx(1.0, rel=1e-3)


def test_an_undeclared_label_names_the_way_to_leave_it_out(small: Path) -> None:
    table = small.with_name("small.csv")
    table.write_text(table.read_text() + "50,north,maybe\n")
    with pytest.raises(
        InputError,
        match=r"'maybe' is not a declared label.*label\.undeclared: "
        r"drop",
    ):
        training.load_records(training.prepare(config_of(small)))


def test_init_says_what_it_did_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(tmp_path)]) == 0
    assert " files were written to " in (first := capsys.readouterr().out)
    assert run(["init", str(tmp_path)]) == 0
    assert "Nothing was written: " in (second := capsys.readouterr().out)
    assert all(
        "Next: `dpflows train` in " in said and "first time" in said for said in (first, second)
    )


WITH_THEIR_CONF_FIRST = """
from flows.cli import run
from tasks.config import load_config
from tasks.schema import find_schema
from tasks.record.statement import lock_hash
assert run(["init", "copied"]) == 0
assert load_config().data.name == "census" and find_schema("census").name == "census" and lock_hash()
"""


def test_a_folder_conf_of_the_users_is_not_taken_for_the_packages(tmp_path: Path) -> None:
    """``python -m flows.cli`` puts the working directory first on the path: a package ``conf``
    there is the user's.
    """
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "__init__.py").write_text("raise RuntimeError('not for dpflows')\n")
    command = [sys.executable, "-c", WITH_THEIR_CONF_FIRST]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "copied" / "conf" / "data" / "census.yaml").is_file()


def test_the_table_is_printed_when_the_numbers_are_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The terminal gives it to whoever prints, between two steps; without one, for --json, it is
    silent.
    """
    told: list[Mapping[str, Any]] = []
    with Terminal(Console(file=StringIO(), force_terminal=True), told.append) as terminal:
        terminal.step("evaluate")
        terminal.result({"run_id": "r"})
        terminal.step("track")
    assert told == [{"run_id": "r"}]
    with Terminal(Console(file=StringIO())) as terminal:
        terminal.result({"run_id": "r"})
    assert capsys.readouterr().out == ""
