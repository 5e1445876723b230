"""Comparisons at given noise: epsilon follows from the price, and stands in tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpcore.accounting.exact import gdp_epsilon
from dpcore.errors import InputError
from dpcore.mechanisms import Gaussian
from tasks.compare import load_compare, resume
from tasks.compare.batch import batches_of, run_batch
from tasks.compare.cell import objective_value
from tasks.compare.export import summary_frame
from tasks.compare.figures import all_charts, write_figures
from tasks.compare.grid import expand
from tasks.compare.page import write_page
from tasks.compare.statistics import summarise
from tasks.compare.tracking import child_name, parent_params
from tasks.compare.variants import price_words, same_price, weak
from tasks.home import Home
from tests.tasks.compare.cells import cell
from tests.tasks.compare.test_engine import bench_of, comparison_of, public

CONF = Path(__file__).resolve().parents[3] / "conf"
GIVEN = {"noise_multiplier": [2.0, 4.0], "delta": 1e-4}


def noisy(label: str, noise: float, spent: float, fold: int = 0, **changes: Any) -> dict[str, Any]:
    """A cell whose noise was given: no epsilon was asked."""
    curve = [
        {"step": step, "accuracy": 0.5 + step / 100, "spent_epsilon": spent * step / 4}
        for step in (2, 4)
    ]
    found = cell(label, noise, fold=fold, curve=curve, **changes)
    return found | {"epsilon": None, "noise_multiplier": noise, "spent_epsilon": spent}


def test_epsilon_is_the_price_of_the_noise(small: Path, home: Home) -> None:
    """Three Gaussian releases of all rows at multiplier 4: the exact composition of Dong, Roth & Su
    (2022).
    """
    public(small)
    config = comparison_of(
        small, privacy=GIVEN, algorithms=[{"name": "dp_sgd", "parameters": {"steps": 3}}]
    )
    comparison = resume.make_comparison(config, home)
    assert [s.level for s in comparison.settings] == ["", "", "noise=2", "noise=4"]
    assert child_name(comparison.settings[-1], config) == "small dp_sgd steps=3 noise=4"
    assert parent_params(config, {})["noise_multiplier"] == "2, 4"
    cells = [each for each in comparison.to_run if each.setting.noise_multiplier == 4.0]
    records = [r for batch in batches_of(cells, 1) for r in run_batch(batch, bench_of(comparison))]
    wanted = gdp_epsilon(((Gaussian(1.0, 4.0), 3),), 1e-4)
    assert [(r["status"], r["epsilon"], r["noise_multiplier"]) for r in records] == [
        ("done", None, 4.0)
    ] * 3
    assert [r["spent_epsilon"] for r in records] == pytest.approx([wanted] * 3, rel=1e-9)
    [summary] = summarise(records, "accuracy", {})
    assert summary.epsilon == records[0]["spent_epsilon"]
    row = summary_frame(records, {}).iloc[0]
    assert (row["noise_multiplier"], row["epsilon"]) == (4.0, summary.epsilon)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"privacy": GIVEN | {"epsilon": [1.0]}},
            "privacy.epsilon or privacy.noise_multiplier, one of them",
        ),
        ({"privacy": GIVEN | {"noise_multiplier": [-1.0]}}, "privacy.noise_multiplier"),
        (
            {
                "privacy": GIVEN,
                "algorithms": [{"name": "dp_sgd", "parameters": {"noise_multiplier": 3.0}}],
            },
            "that of algorithm 'dp_sgd noise_multiplier=3.0', one of them",
        ),
    ],
)
def test_noise_is_given_once(small: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as raised:
        comparison_of(small, **values)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_only_equal_prices_are_compared() -> None:
    cells = [
        noisy(name, 2.0, spent, fold)
        for name, spent in (("a", 1.0), ("b", 1.001), ("c", 2.0))
        for fold in (0, 1)
    ]
    paired = {summary.place.label: summary.paired for summary in summarise(cells, "accuracy", {})}
    assert paired["c"] is None
    assert {paired[name].best for name in ("a", "b") if paired[name] is not None} <= {"a", "b"}
    assert sum(paired[name] is not None for name in ("a", "b")) == 1
    assert same_price([("a", 1.02), ("b", 1.0), ("c", None)]) == [["b"], ["a"], ["c"]]


def test_panels_by_noise_say_what_epsilon_came_to(tmp_path: Path) -> None:
    cells = [
        noisy("a", noise, 8.0 / noise, fold) for noise in (1.0, 2.0, 3.0, 4.0) for fold in (0, 1)
    ]
    records = [*cells, cell("non_private", None)]
    facts = {"metrics": ["accuracy"]}
    charts = {chart.stem.split("_", 1)[1]: chart for chart in all_charts(records, facts)}
    path = charts["accuracy_vs_iterations"]
    assert [panel.title.split(",")[0] for panel in path.panels] == [
        f"noise = {k}" for k in (1, 2, 3, 4)
    ]
    assert [panel.note for panel in path.panels][:2] == [
        "epsilon 4 at 2, 8 at 4",
        "epsilon 2 at 2, 4 at 4",
    ]
    assert all(
        [line.label for line in panel.references] == ["non_private"] for panel in path.panels
    )
    [line] = charts["accuracy_vs_epsilon"].panels[0].private
    assert line.x == pytest.approx((2.0, 8.0 / 3.0, 4.0, 8.0))
    assert len(write_figures(records, tmp_path, facts)) == 4 * len(charts)
    page = write_page(records, facts, [], tmp_path / "page.html").read_text()
    assert "noise multiplier" in page and ">2.667<" in page


def test_words_about_prices() -> None:
    curve = [{"step": 1, "spent_epsilon": 0.5}, {"step": 2, "spent_epsilon": 1.0}]
    more = [{"step": 2, "spent_epsilon": 3.0}]
    assert price_words({"a": curve, "b": more}) == "a: epsilon 0.5 at 1, 1 at 2; b: epsilon 3 at 2"
    assert price_words({"a": curve, "b": more, "c": [{"step": 2, "spent_epsilon": 4.0}]}) == (
        "epsilon 1 to 4 after the last iteration"
    )
    assert price_words({"a": [{"step": 1}]}) == ""
    assert weak(0.1, 50.0) and not weak(None, 50.0) and not weak(2.0, 1.0)


def test_rankers_of_several_losses_share_a_setting_and_have_a_line_each() -> None:
    """Figures 6.1 and 6.2 of Chen (2020): MAP is compared across losses, beside three models
    without privacy.
    """
    config = load_compare(str(CONF / "compare_mq2008.yaml"))
    settings, left_out = expand(config)
    assert not left_out
    lines = {setting.label for setting in settings if not setting.private}
    assert lines == {
        f"non_private {loss} raw mlp[256] relu" for loss in ("bayesrank", "listnet", "listmle")
    }
    assert {setting.job.model.scorer for setting in settings if setting.job.model is not None} == {
        "mlp"
    }
    records = [cell(s.label, None) | s.facts for s in settings]
    assert len({summary.place.setting for summary in summarise(records, "accuracy", {})}) == 1
    assert objective_value(settings[0], None, pd.NA) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "grid"), [("mq2007", (0.875, 1.0, 1.5, 2.0)), ("mq2008", (1.5, 2.0, 3.0, 4.0))]
)
def test_grids_of_the_dissertation(name: str, grid: tuple[float, ...]) -> None:
    config = load_compare(str(CONF / f"compare_{name}.yaml"))
    assert (config.privacy.noise_multiplier, config.delta) == (grid, 1e-4)
    again = load_compare(
        str(CONF / "compare_ranking.yaml"), ["privacy.epsilon=null", "privacy.noise_multiplier=[2]"]
    )
    assert {s.noise_multiplier for s in expand(again)[0] if s.private} == {2.0}
