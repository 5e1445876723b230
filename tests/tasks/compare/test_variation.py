"""One parameter at a time: which runs a comparison adds, what is counted in them, and the figures
of their effects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.accounting.budget import Lease, Life
from dpcore.accounting.observers import Evaluations
from dpcore.errors import InputError
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from tasks.compare.baselines import wanted
from tasks.compare.config import AlgorithmEntry
from tasks.compare.figures import all_charts, write_figures
from tasks.compare.grid import cells_of, expand
from tasks.compare.variants import Effect, spread_out
from tasks.drawing.sheet import description_of
from tests.tasks.compare.cells import cell, grid
from tests.tasks.compare.test_engine import comparison_of


def test_every_other_value_once() -> None:
    entry = AlgorithmEntry(
        name="dp_blsgd", preset="paper", vary={"armijo": (0.7, 0.5, 0.1), "noise": ("gaussian",)}
    )
    entries, effects = spread_out([entry, AlgorithmEntry(name="dp_sgd")])
    assert [found.shown for found in entries] == [
        "dp_blsgd paper",
        "dp_blsgd paper armijo=0.7",
        "dp_blsgd paper armijo=0.1",
        "dp_blsgd paper noise=gaussian",
        "dp_sgd",
    ]
    assert [found.vary for found in entries[1:]] == [{}] * 4
    assert effects == [
        Effect("dp_blsgd paper", "armijo", (0.1, 0.5, 0.7),
               ("dp_blsgd paper armijo=0.1", "dp_blsgd paper", "dp_blsgd paper armijo=0.7")),
        Effect("dp_blsgd paper", "noise", ("laplace", "gaussian"), ("dp_blsgd paper", "dp_blsgd paper noise=gaussian")),
    ]  # fmt: skip


def test_a_value_left_to_the_rule_comes_first() -> None:
    _, [effect] = spread_out(
        [AlgorithmEntry(name="dp_blsgd", label="ours", vary={"first_step": (1.0, 2.0)})]
    )
    assert effect == Effect(
        "ours",
        "first_step",
        (None, 1.0, 2.0),
        ("ours", "ours first_step=1.0", "ours first_step=2.0"),
    )


@pytest.mark.filterwarnings("ignore:pace of 'output_gd' is called:DeprecationWarning")
@pytest.mark.parametrize(
    ("given", "varied"), [("pace", "pace"), ("pace", "step_rule"), ("step_rule", "pace")]
)
def test_a_parameter_by_its_old_name_is_the_same_one(given: str, varied: str) -> None:
    entry = AlgorithmEntry(
        name="output_gd", label="ours", parameters={given: "paper"}, vary={varied: ("horizon",)}
    )
    [own, other], [effect] = spread_out([entry])
    assert effect == Effect(
        "ours", "step_rule", ("paper", "horizon"), ("ours", "ours step_rule=horizon")
    )
    assert other.parameters == {"step_rule": "horizon"} and own.parameters == {given: "paper"}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"name": "dp_blsgd", "vary": {"armijoo": [0.1]}}], "armijoo"),
        ([{"name": "dp_blsgd", "vary": {"armijo": [1.5]}}], "armijo"),
        (
            [{"name": "majority", "vary": {"armijo": [0.1]}}],
            "Expected an algorithm with parameters to vary",
        ),
        (
            [{"name": "auto", "vary": {"armijo": [0.1]}}],
            "Expected an algorithm with parameters to vary",
        ),
        (
            [
                {"name": "dp_sgd", "vary": {"steps": [3]}},
                {"name": "dp_sgd", "parameters": {"steps": 3}},
            ],
            "two are called 'dp_sgd steps=3'",
        ),
    ],
)
def test_what_cannot_be_varied_is_refused(
    entries: list[dict[str, Any]], words: str, small: Path
) -> None:
    with pytest.raises(InputError, match=words):
        expand(comparison_of(small, algorithms=entries))


def test_the_grid_holds_the_varied_runs(small: Path) -> None:
    varied = [{"name": "dp_sgd", "parameters": {"steps": 3}, "vary": {"steps": [2, 3]}}]
    config = comparison_of(small, algorithms=varied)
    settings = [setting for setting in expand(config)[0] if setting.private]
    assert [(s.label, s.config.algorithm.parameters["steps"]) for s in settings[::2]] == [
        ("dp_sgd steps=3", 3),
        ("dp_sgd steps=2", 2),
    ]
    counted = comparison_of(small, algorithms=varied, metrics=["gradient_evaluations"])
    assert (
        cells_of(settings[0], config, "facts")[0].key
        != cells_of(settings[0], counted, "facts")[0].key
    )


def test_evaluations_are_records_times_candidates() -> None:
    rng = np.random.default_rng(0)
    data = LinearObjective(
        rng.normal(size=(7, 2)), np.sign(rng.normal(size=7)), make_loss("logistic")
    )
    counted = Evaluations()
    lease = Lease(data, Life([counted]))
    assert counted.numbers == {}
    batch = lease.take(np.array([0, 3, 5]))
    batch.gradient_sum(np.zeros(2), 1.0)
    batch.value_sum(np.zeros((4, 2)))
    lease.transform(np.zeros(2), np.ones(2)).gradient_sum(np.zeros(2))
    lease.column_sum()
    assert counted.numbers == {"gradient_evaluations": 3 + 7, "loss_evaluations": 12}
    assert wanted(["accuracy", "loss_evaluations"]) > wanted(["accuracy"]) == wanted(None)


def effects_of(labels: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    return {"metrics": ["accuracy"], "effects": [Effect("a", "growth", values, labels).to_dict()]}


def test_a_line_for_each_epsilon_over_the_values() -> None:
    labels = ("a growth=0.1", "a", "a growth=9.0")
    records = [*grid(["b", *labels], [0.1, 1.0]), *grid(["a"], [0.1, 1.0], adjacency="replace_one")]
    charts = {
        chart.stem: chart for chart in all_charts(records, effects_of(labels, (0.1, 0.5, 9.0)))
    }
    chart = charts["adult-logistic-l2-0.0001_accuracy_vs_a-growth"]
    assert [panel.title.split(",")[0] for panel in chart.panels] == ["add_remove", "replace_one"]
    assert [line.label for line in chart.panels[0].lines] == ["epsilon = 0.1", "epsilon = 1"]
    assert [line.x for line in chart.panels[0].lines] == [(0.1, 0.5, 9.0)] * 2
    assert chart.logarithmic
    means = {r["label"]: [] for r in records}
    for record in records:
        if record["epsilon"] == 1.0 and record["adjacency"] == "add_remove":
            means[record["label"]].append(record["metrics"]["accuracy"])
    assert chart.panels[0].lines[1].mean == pytest.approx(
        [np.mean(means[label]) for label in labels]
    )
    against = charts["adult-logistic-l2-0.0001_accuracy_vs_epsilon"]
    assert {line.label for line in against.panels[0].private} == {"a", "b"}


def test_values_that_are_words_are_named(tmp_path: Path) -> None:
    facts = effects_of(("a", "a growth=must", "a growth=no"), ("adaptive", "must", "no"))
    write_figures(
        [cell(label, e) for label in facts["effects"][0]["labels"] for e in (0.1, 1.0)],
        tmp_path,
        facts,
    )
    stem = "adult-logistic-l2-0.0001_accuracy_vs_a-growth"
    numbers = pd.read_parquet(tmp_path / f"{stem}.parquet")
    assert sorted(set(numbers["growth"])) == ["adaptive", "must", "no"]
    best = numbers[numbers.label == "epsilon = 1"].sort_values("mean").iloc[-1]
    assert f"epsilon = 1: the best is at {best['growth']} with" in description_of(
        tmp_path / f"{stem}.png"
    )


def test_the_largest_count_is_not_called_the_best() -> None:
    records = [
        cell(label, 1.0, metrics={"loss_evaluations": n})
        for label, n in (("a", 4.0), ("a growth=2", 9.0))
    ]
    facts = effects_of(("a", "a growth=2"), (1, 2)) | {"metrics": ["loss_evaluations"]}
    [chart] = [chart for chart in all_charts(records, facts) if chart.stem.endswith("vs_a-growth")]
    assert "the best is at 1 with 4" in chart.description
