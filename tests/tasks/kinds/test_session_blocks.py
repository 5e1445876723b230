"""Sessions in a table with dates: which rows are one session, which block pays for it, and a
retraining on the last.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import BudgetExceeded, InputError
from dpcore.ranking.sessions import Sessions
from dpcore.ranking.synthetic import search
from tasks import training
from tasks.config import TrainConfig, parse_config
from tasks.data import load
from tasks.ledger import Blocks, Ledger
from tasks.retraining import WindowSection
from tasks.retraining.schedule import choose
from tasks.schema import find_schema

SCHEMA = """\
schema_version: 1
name: log
ledger: {ledger}
unit: session
public: {{rows_per_block: 40}}
source: {{path: log.csv}}
columns:
  query: {{kind: id}}
  day: {{kind: block}}
  feature_1: {{kind: numeric, low: 0, high: 1}}
  feature_9: {{kind: numeric, low: 0, high: 1}}
  feature_15: {{kind: numeric, low: 0, high: 1}}
label: {{column: grade, kind: relevance, low: 0, high: 2}}
block: {{column: day, by: week}}
"""
WEEKS = ("2026-W02", "2026-W03", "2026-W04")
PRIVACY = {"epsilon": 0.5, "delta": 1e-4, "adjacency": "replace_labels"}
COLUMNS = ["query", "day", "feature_1", "feature_9", "feature_15", "grade"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Forty sessions in each of three weeks, their rows mixed, as a table with its schema and
    ledger.
    """
    table = pd.DataFrame(search(120, seed=5))
    table["day"] = np.array(["2026-01-05", "2026-01-14", "2026-01-20"])[table["query"] // 40]
    table["query"] = "s" + table["query"].astype(str)
    table[COLUMNS].sample(frac=1.0, random_state=1).to_csv(tmp_path / "log.csv", index=False)
    (tmp_path / "log.yaml").write_text(SCHEMA.format(ledger=f"sqlite:///{tmp_path / 'ledger.db'}"))
    return tmp_path / "log.yaml"


def config_of(log: Path, blocks: list[str] | None = None, **sections: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "data": {"name": str(log), "path": str(log.with_name("log.csv")), "blocks": blocks},
        "objective": {"loss": "listnet"},
        "privacy": PRIVACY,
    }
    return parse_config(values | sections)


def edited(log: Path, row: int, column: str, value: object) -> None:
    """Change one cell of the table."""
    table = pd.read_csv(log.with_name("log.csv"), dtype=str)
    table.loc[row, column] = value
    table.to_csv(log.with_name("log.csv"), index=False)


def test_rows_of_a_query_are_one_session_wherever_they_stand(log: Path) -> None:
    job = training.prepare(config_of(log, list(WEEKS[1:])))
    assert (job.problem.n, job.problem.unit, job.blocks) == (80, "session_labels", WEEKS[1:])
    assert job.problem.dimension == 6  # three features as given, and their ranks
    train = training.load_records(job).open().train
    assert isinstance(train, Sessions)
    made = search(120, seed=5)
    assert set(train.queries) == {f"s{number}" for number in range(40, 120)}
    [place] = np.flatnonzero(train.queries == "s57")
    own = made["query"] == 57
    assert train.documents.lengths[place] == own.sum()
    rows = train.take(np.array([place]))
    assert sorted(rows.y) == sorted(made["grade"][own])
    np.testing.assert_allclose(
        sorted(rows.documents.X[:, 1]), sorted(made["feature_9"][own]), atol=1e-12
    )


def test_a_week_pays_for_its_own_sessions_and_a_spent_one_is_left_out(log: Path) -> None:
    ledger = Ledger(f"sqlite:///{log.with_name('ledger.db')}")
    schema = find_schema(log)
    ledger.init("log", 1.0, 1e-3, "replace_labels", "session_labels", blocks=Blocks.of(schema))
    job = training.prepare(config_of(log, [WEEKS[0]], privacy=PRIVACY | {"epsilon": 0.2}))
    planned = training.plan_training(job)
    sums = training.build_objective(job, training.load_records(job))
    for _ in range(30):
        try:
            with training.reserve_budget(job, planned, ledger) as reservation:
                training.fit_model(job, planned, sums, reservation)
                reservation.commit({})
        except BudgetExceeded:
            break
    first, others = (ledger.room("log", blocks) for blocks in (WEEKS[:1], WEEKS[1:]))
    assert first is not None and others is not None
    assert first.ratio(planned.events) > 1.0 and others.left > 5 * first.left
    window = WindowSection(last="3 weeks", exhausted="leave_out")
    reading = choose(config_of(log), window, Blocks.of(schema), date(2026, 1, 25), WEEKS[2], ledger)
    assert (reading.kept, reading.left_out) == (WEEKS[1:], WEEKS[:1])
    assert training.prepare(reading.config).problem.n == 80


def test_a_session_in_two_blocks_is_named(log: Path) -> None:
    table = pd.read_csv(log.with_name("log.csv"))
    row = int(np.flatnonzero(table["day"] == "2026-01-20")[0])
    edited(log, row, "query", "s3")
    job = training.prepare(config_of(log, [WEEKS[2]]))
    with pytest.raises(
        InputError,
        match=r"column 'day': '2026-W0\d'; its session 's3' began in "
        r"block",
    ) as raised:
        training.load_records(job)
    assert "\n" not in str(raised.value)


def test_a_document_without_query_is_named(log: Path) -> None:
    edited(log, 4, "query", "")
    [week] = {"2026-01-05": WEEKS[:1], "2026-01-14": WEEKS[1:2], "2026-01-20": WEEKS[2:]}[
        str(pd.read_csv(log.with_name("log.csv"))["day"][4])
    ]
    with pytest.raises(InputError, match="data row 5, column 'query': no value"):
        training.load_records(training.prepare(config_of(log, [week])))
    for other in set(WEEKS) - {week}:  # what nobody pays for refuses nothing
        training.load_records(training.prepare(config_of(log, [other])))


def test_another_number_of_sessions_is_refused_where_it_is_public(log: Path) -> None:
    log.write_text(log.read_text().replace("rows_per_block: 40", "rows_per_block: 30"))
    job = training.prepare(config_of(log, [WEEKS[0]]))
    with pytest.raises(InputError, match="exactly n=30"):
        training.build_objective(job, training.load_records(job))
    nominal = config_of(
        log, [WEEKS[0]], privacy={"epsilon": 1.0, "delta": 1e-4, "adjacency": "add_remove"}
    )
    job = training.prepare(nominal)
    assert training.build_objective(job, training.load_records(job)).open().n == 40


@pytest.mark.parametrize(
    ("change", "sections", "words"),
    [
        (("query: {kind: id}", "session: {kind: id}"), {}, "a column 'query' of kind id"),
        (
            ("query: {kind: id}", "query: {kind: categorical, levels: [a, b]}"),
            {},
            "a column 'query' of kind id",
        ),
        (
            ("rows_per_block: 40", "rows_per_block: 40"),
            {"evaluate": {"release": {}}},
            "no evaluate.release for data set 'log'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_a_file_is_opened(
    log: Path, change: tuple[str, str], sections: dict[str, Any], words: str
) -> None:
    log.write_text(log.read_text().replace(*change))
    log.with_name("log.csv").unlink()
    with pytest.raises(InputError) as raised:
        training.prepare(config_of(log, [WEEKS[0]], **sections))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_blocks_must_be_listed(log: Path) -> None:
    with pytest.raises(InputError, match=r"Expected data.blocks for schema 'log'.*list the blocks"):
        training.prepare(config_of(log))


def test_a_hash_split_keeps_sessions_whole(log: Path) -> None:
    log.write_text(log.read_text() + "split: {kind: hash, test_share: 0.3}\n")
    schema = find_schema(log)
    loaded = load(
        schema,
        schema.encoder(normalise="none", intercept=False),
        log.with_name("log.csv"),
        blocks=WEEKS,
    )
    assert isinstance(loaded.train, Sessions) and isinstance(loaded.test, Sessions)
    assert not set(loaded.train.queries) & set(loaded.test.queries)
    assert loaded.train.n + loaded.test.n == 120 and 20 <= loaded.test.n <= 55
