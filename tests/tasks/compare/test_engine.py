"""The grid, its folds, the journal and the charge of a comparison, without any server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import BudgetExceeded, InputError
from dpcore.problem import Adjacency
from flows.compare import load_rows
from tasks.compare import charge as compare_charge
from tasks.compare import parse_compare, resume
from tasks.compare.batch import Bench, batches_of, run_batch
from tasks.compare.cell import missing_metrics
from tasks.compare.config import PROTOCOLS, CompareConfig, ProtocolSection
from tasks.compare.figures import all_charts
from tasks.compare.folds import Rows, fold_numbers, secret_fold_numbers
from tasks.compare.grid import expand, training_rows
from tasks.compare.resume import Journal
from tasks.compare.variants import of_training
from tasks.home import Home
from tasks.ledger import Ledger
from tests.tasks.training.test_training import config_of

Make = Callable[..., CompareConfig]


def comparison_of(schema: Path, **values: Any) -> CompareConfig:
    """A comparison on the small table: two quick algorithms at two epsilons."""
    base: dict[str, Any] = {
        "data": {"name": str(schema), "path": str(schema.with_name("small.csv"))},
        "privacy": {"epsilon": [0.5, 1.0], "delta": 1e-4},
        "algorithms": [
            {"name": "dp_sgd", "parameters": {"steps": 3}},
            {"name": "dp_adam", "parameters": {"steps": 3}},
        ],
    }
    return parse_compare(base | values)


def public(schema: Path) -> None:
    """Declare the small table public."""
    schema.write_text(
        schema.read_text().replace("public: {n: 300}", "public: {n: 300, public: true}")
    )


def test_every_combination_once_and_lines_beside(small: Path) -> None:
    config = comparison_of(small, objective={"loss": ["logistic", "huber_hinge"], "l1": [0, 0.001]})
    settings, left_out = expand(config)
    private = [s for s in settings if s.private]
    assert len(private) == 2 * 2 * 2 * 2 - len(left_out) * 2
    assert [s.label for s in settings if not s.private] == [
        "majority",
        "non_private minmax cap",
    ] * 4
    assert len({(s.label, s.config.sha256) for s in settings}) == len(settings)
    assert {s.config.privacy.epsilon for s in private} == {0.5, 1.0}


def test_what_no_proof_covers_is_left_out_with_the_reason(small: Path) -> None:
    config = comparison_of(small, algorithms=[{"name": "dp_sgd"}, {"name": "output_gd"}])
    settings, left_out = expand(config)
    assert "output_gd" not in {s.label for s in settings}
    [item] = left_out
    assert "Expected adjacency replace_one for 'output_gd'" in item.reason
    with pytest.raises(InputError, match="at least one algorithm that fits"):
        expand(comparison_of(small, algorithms=[{"name": "output_gd"}]))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algorithmz": []}, "did you mean 'algorithms'"),
        (
            {"algorithms": [{"nmae": "dp_sgd"}]},
            "Unknown key 'algorithms.0.nmae'; did you mean 'algorithms.0.name'",
        ),
        ({"algorithms": [{"name": "dp_sgd"}, {"name": "dp_sgd"}]}, "two are called 'dp_sgd'"),
        ({"protocol": "quik"}, "paper_ch3"),
        ({"privacy": {"epsilon": [-1]}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": [1, 1]}}, "each value once"),
        ({"objective": {"l1": [True]}}, "a number"),
        ({"data": []}, "data"),
        ({"runner": "ray"}, "'threads', 'processes' or 'dask'"),
    ],
)
def test_faults_of_a_configuration_are_named(
    small: Path, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as raised:
        comparison_of(small, **values)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "dp_sdg"}, "did you mean 'dp_sgd'"),
        ({"name": "dp_sgd", "parameters": {"stepz": 3}}, "did you mean 'steps'"),
        ({"name": "dp_sgd", "preset": "papr"}, "did you mean 'paper'"),
    ],
)
def test_unknown_algorithms_are_refused_before_anything_runs(
    small: Path, entry: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as raised:
        expand(comparison_of(small, algorithms=[entry]))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "repeats", "folds", "draws"),
    [
        ("paper_ch3", 20, 5, 1),
        ("paper_ch4", 10, 10, 1),
        ("paper_ch5", 5, 10, 1),
        ("paper_ch6", 10, 5, 1),
    ],
)
def test_protocols_of_the_dissertation(
    small: Path, name: str, repeats: int, folds: int, draws: int
) -> None:
    """Chen (2020), chapters 3 to 6."""
    protocol = comparison_of(small, protocol=name).protocol
    assert (protocol.repeats, protocol.folds, protocol.draws) == (repeats, folds, draws)


def test_protocol_of_the_third_source_brings_epsilons_and_delta(small: Path) -> None:
    """Zhang et al. (2017), section 6: 100 rounds at four epsilons, delta = 0.001."""
    config = comparison_of(small, protocol="paper_003", privacy={})
    assert (config.epsilons, config.delta, config.protocol.draws) == (
        (0.1, 0.5, 1.0, 2.0),
        1e-3,
        100,
    )
    assert set(PROTOCOLS) >= {"quick", "paper_003"}


@pytest.mark.parametrize("folds", [2, 3, 7])
def test_public_count_of_a_fold_is_that_of_the_partition(folds: int) -> None:
    numbers = fold_numbers(100, folds, seed=3, repeat=1)
    for fold in range(folds):
        exact = training_rows(100, Adjacency.REPLACE_ONE, folds, fold)
        assert exact == int(np.sum(numbers != fold))
        assert (
            training_rows(100, Adjacency.ADD_REMOVE, folds, fold)
            == 100 * (folds - 1) // folds
            <= exact
        )


def test_secret_folds_do_not_move_other_rows() -> None:
    """Folds are independent of each other: the first 99 rows keep theirs when the last is
    removed.
    """
    many, fewer = (secret_fold_numbers(rows, 5, b"k" * 32, 0) for rows in (100, 99))
    np.testing.assert_array_equal(many[:99], fewer)
    counts = np.bincount(secret_fold_numbers(100_000, 5, b"k" * 32, 0))
    assert np.all(np.abs(counts - 20_000) < 800)  # six standard deviations
    assert not np.array_equal(many, secret_fold_numbers(100, 5, b"l" * 32, 0))


def test_all_algorithms_meet_the_same_folds_and_public_seeds(small: Path, home: Home) -> None:
    public(small)
    comparison = resume.make_comparison(
        comparison_of(small, protocol={"repeats": 2, "folds": 3}), home
    )
    seeds: dict[tuple[int, int], set[int]] = {}
    tests: dict[tuple[int, int], set[bytes]] = {}
    for cell in comparison.cells:
        seeds.setdefault((cell.repeat, cell.fold), set()).add(cell.seed)
        test = comparison.rows.part(cell).test
        tests.setdefault((cell.repeat, cell.fold), set()).add(
            np.asarray(test.X.toarray() if test.sparse else test.X).tobytes()
        )
    assert len(seeds) == 6 and all(len(found) == 1 for found in seeds.values())
    # the encoding of auto may differ, the rows do not
    assert all(len(found) <= 2 for found in tests.values())
    assert len({next(iter(found)) for found in seeds.values()}) == 6


def test_a_torn_line_is_no_line_and_spoils_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "cells.jsonl")
    journal.append({"cell": "a", "status": "done"})
    journal.begin("b")
    journal.append({"cell": "c", "status": "failed"})
    with journal.path.open("ab") as file:
        file.write(b'{"cell": "d", "sta')
    journal.append({"cell": "e", "status": "done"})
    done, begun = journal.read()
    assert (set(done), begun) == ({"a", "e"}, {"b"})
    assert journal.path.stat().st_mode & 0o077 == 0


def bench_of(comparison: resume.Comparison, charge: Callable[[], None] | None = None) -> Bench:
    private = [id(setting) for setting in comparison.settings if setting.private]
    charges = dict.fromkeys(private, charge) if charge is not None else {}
    return Bench(
        "test", comparison.config, comparison.rows, comparison.plans, comparison.journals, charges
    )


def test_the_curve_of_a_network_ends_at_its_metrics(small: Path, home: Home) -> None:
    """On folds, with the step sizes that a line search notes on the way."""
    public(small)
    config = comparison_of(
        small,
        model={"kind": "mlp", "hidden": [4]},
        algorithms=[
            {
                "name": "dp_blsgd",
                "parameters": {
                    "iterations": 4,
                    "sampling_rate": 0.5,
                    "on_failure": "smallest_step",
                },
            },
            {"name": "dp_sgd", "parameters": {"steps": 3}},
        ],
        objective={"loss": "cross_entropy"},
        privacy={"epsilon": [1.0], "delta": 1e-4},
        metrics=["accuracy", "objective", "step_size"],
        curve_every=1,
    )
    comparison = resume.make_comparison(config, home)
    records = [
        record
        for batch in batches_of(comparison.to_run, 1)
        for record in run_batch(batch, bench_of(comparison))
    ]
    assert {record["error"] for record in records} == {None}
    private = [record for record in records if record["private"]]
    assert private and not missing_metrics(records, config.metrics or ())
    for record in private:
        assert [point["step"] for point in record["curve"]] == list(range(len(record["curve"])))
        assert record["curve"][-1]["accuracy"] == record["metrics"]["accuracy"]
        assert all(point["objective"] > 0 for point in record["curve"])
    searched = [record for record in private if record["algorithm"] == "dp_blsgd"]
    for record in searched:  # a search is a release of its own, in the iteration of its gradient
        assert [("step_size" in point) for point in record["curve"]] == [False, *[True] * 4]
    drawn = list(all_charts(records, {"metrics": config.metrics}))
    steps = next(chart for chart in drawn if chart.y_name == "step size")
    assert {line.label.split()[0] for line in steps.panels[0].lines} == {"dp_blsgd", "dp_sgd"}


def test_finished_cells_are_kept_and_others_depend_on_what_they_are(
    small: Path, home: Home
) -> None:
    public(small)
    config = comparison_of(small)
    comparison = resume.make_comparison(config, home)
    bench = bench_of(comparison)
    [first, *_] = batches_of(comparison.to_run, 1)
    records = run_batch(first, bench)
    assert [record["status"] for record in records] == ["done"] * len(records)
    again = resume.make_comparison(config, home)
    assert len(again.to_run) == len(again.cells) - len(records)
    assert not resume.make_comparison(config, home, fresh=True).finished
    assert not resume.make_comparison(comparison_of(small, seed=1), home).finished
    table = small.with_name("small.csv")
    table.write_text(table.read_text() + "50,north,yes\n")
    assert not resume.make_comparison(config, home).finished


def test_a_failed_cell_stands_alone_and_is_tried_again(
    small: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    public(small)
    comparison = resume.make_comparison(comparison_of(small), home)
    bad = next(cell for cell in comparison.cells if cell.setting.label.startswith("dp_adam"))
    whole = Rows.part

    def part(self: Rows, cell: Any) -> Any:
        if cell.key == bad.key:
            raise ValueError("a fault of this cell")
        return whole(self, cell)

    monkeypatch.setattr(Rows, "part", part)
    records = [
        r
        for batch in batches_of(comparison.to_run, 1)
        for r in run_batch(batch, bench_of(comparison))
    ]
    failed = [record for record in records if record["status"] == "failed"]
    assert [(r["cell"], r["error"]) for r in failed] == [
        (bad.key, "ValueError: a fault of this cell")
    ]
    assert len(records) == len(comparison.cells)
    assert [cell.key for cell in resume.make_comparison(comparison.config, home).to_run] == [
        bad.key
    ]


def test_private_rows_are_charged_for_all_cells_together(small: Path, home: Home) -> None:
    config = comparison_of(small)
    url = f"sqlite:///{small.with_name('ledger.db')}"
    with Ledger(url) as ledger:
        ledger.init("small", 60.0, 1e-3, "add_remove")
    comparison = resume.make_comparison(config, home)
    [charge] = compare_charge.charges(comparison, home).values()
    private = [cell for cell in comparison.cells if cell.setting.private]
    assert charge.cells == len(private) == 2 * 2 * 3
    each = [
        comparison.plans.of(cell.setting, cell.setting.problem(3, cell.fold)).events.price()
        for cell in private
    ]
    np.testing.assert_allclose(charge.events.price(), np.sum(each, axis=0), rtol=1e-12)
    assert len(charge.events) == sum(
        len(comparison.plans.of(cell.setting, cell.setting.problem(3, cell.fold)).events)
        for cell in private
    )


def test_a_short_budget_is_refused_before_a_record_is_read(small: Path, home: Home) -> None:
    with Ledger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        ledger.init("small", 1.0, 1e-3, "add_remove")
    # nothing to read: a reader would complain of an empty file
    small.with_name("small.csv").write_bytes(b"")
    comparison = resume.make_comparison(comparison_of(small), home)
    with pytest.raises(BudgetExceeded, match="18 cells"):
        compare_charge.charges(comparison, home)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"runner": "processes"}, "Expected runner: threads for private data"),
        ({"reproducible": True}, "Expected no fixed noise on private data"),
        ({"privacy": {"epsilon": [1], "delta": 0.01}}, "Expected privacy.delta below 1/n"),
    ],
)
def test_what_private_rows_do_not_allow(
    small: Path, home: Home, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        resume.make_comparison(comparison_of(small, **values), home)


def test_two_adjacencies_on_private_rows_are_two_comparisons(small: Path, home: Home) -> None:
    with Ledger(f"sqlite:///{small.with_name('ledger.db')}") as ledger:
        ledger.init("small", 60.0, 1e-3, "replace_one")
    config = comparison_of(
        small, privacy={"epsilon": [1], "delta": 1e-4, "adjacency": ["add_remove", "replace_one"]}
    )
    with pytest.raises(InputError, match="one adjacency"):
        compare_charge.charges(resume.make_comparison(config, home), home)


def test_a_training_configuration_is_a_comparison_of_one(small: Path) -> None:
    config = of_training(config_of(small), ProtocolSection(name="crossval", folds=4))
    settings, _ = expand(config)
    [setting] = [setting for setting in settings if setting.private]
    assert setting.config.algorithm.parameters == {"steps": 8}
    assert (config.epsilons, config.delta) == ((1.0,), 1e-4)
    with pytest.raises(InputError, match="no data"):
        of_training(config_of(small, data={"period": "a"}), ProtocolSection())
    assert of_training(config_of(small, data={"blocks": ["a"]}), ProtocolSection()).data[
        0
    ].blocks == ("a",)
    tune: dict[str, object] = {"grid": {"algorithm.learning_rate": [1, 4]}}
    with pytest.raises(InputError, match="no section tune"):
        of_training(config_of(small, tune=tune), ProtocolSection())


def test_one_data_set_is_read_in_one_way(small: Path, home: Home) -> None:
    """Its cells are charged together, on one list of blocks."""
    public(small)
    one = {"name": str(small), "path": str(small.with_name("small.csv"))}
    config = comparison_of(small)
    twice = [
        config.data[0].model_validate(one),
        config.data[0].model_validate(one | {"blocks": ["a"]}),
    ]
    with pytest.raises(InputError, match=r"Expected one data\.\w+ of 'small'|blocks"):
        resume.make_comparison(config.model_copy(update={"data": tuple(twice)}), home)


def test_a_metric_that_is_not_one_function_is_said(small: Path, home: Home) -> None:
    public(small)
    algorithms = [{"name": "dp_sgd"}, {"name": "auto"}]
    differ = resume.make_comparison(comparison_of(small, algorithms=algorithms), home)
    assert any("metric objective is not one function" in text for text in differ.warnings)
    shared = {"preprocess": {"normalise": "cap", "numeric": "minmax"}, "objective": {"l2": 1e-3}}
    assert not resume.make_comparison(
        comparison_of(small, algorithms=algorithms, **shared), home
    ).warnings


def test_a_fold_with_one_class_is_refused_before_anything_is_spent(small: Path, home: Home) -> None:
    table = small.with_name("small.csv")
    frame = pd.read_csv(table)
    rare = frame["paid"].iloc[0]
    other = next(value for value in frame["paid"] if value != rare)
    frame["paid"] = [rare] + [other] * (len(frame) - 1)
    frame.to_csv(table, index=False)
    public(small)
    comparison = resume.make_comparison(comparison_of(small), home)
    with pytest.raises(InputError, match="both classes in the training part of every fold"):
        load_rows(comparison)
