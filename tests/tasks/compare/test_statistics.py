"""Means, intervals, the corrected test and Holm's correction; what may not be compared."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_rel

from tasks.compare.statistics import (
    corrected_t_test,
    explain,
    holm,
    interval,
    resampling,
    student_interval,
    summarise,
)
from tests.tasks.compare.cells import cell, failed, grid


def test_holm_by_hand() -> None:
    """0.01 x 3, 0.02 x 2 and 0.04 x 1, none below the one before: Holm (1979)."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_corrected_test_by_formula() -> None:
    """Nadeau & Bengio (2003): t = mean / sqrt((1/k + n_test/n_train) variance); without the ratio
    the paired t-test.
    """
    d = np.array([0.1, 0.3, 0.2, 0.4, 0.1])
    statistic = d.mean() / sqrt((1 / 5 + 1 / 4) * d.var(ddof=1))
    assert corrected_t_test(d, 0.25) == pytest.approx(2 * student.sf(statistic, 4))
    assert corrected_t_test(d, None) == pytest.approx(ttest_rel(d, np.zeros(5)).pvalue)
    assert corrected_t_test(d, 0.25) > corrected_t_test(d, None)


def test_no_test_without_spread_or_pairs() -> None:
    assert corrected_t_test(np.array([0.1]), None) is None
    assert corrected_t_test(np.array([0.1, 0.1, 0.1]), None) is None
    assert corrected_t_test(np.zeros(3), None) == 1.0


def test_single_cell_has_no_interval() -> None:
    assert interval(np.array([0.5])) == (None, None)
    [summary] = summarise([cell("auto", 1.0)], "accuracy", {})
    assert (summary.sd, summary.low, summary.high, summary.paired) == (None, None, None, None)
    assert "there is none" in explain([cell("auto", 1.0)], {})[0]


def test_interval_is_students() -> None:
    """Golden: three values 1, 2, 3 have mean 2, sd 1 and t = 4.302653 (975 per mille, 2 degrees of
    freedom).
    """
    assert interval(np.array([1.0, 2.0, 3.0])) == pytest.approx(
        (2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-6
    )
    assert interval(np.array([1.0, 2.0])) == (None, None)
    assert interval(np.full(4, 0.5)) == (0.5, 0.5)


@pytest.mark.parametrize("cells", [3, 5, 15])
def test_interval_holds_the_mean_as_often_as_it_says(cells: int) -> None:
    """4000 sets of normal cells: 95 % of intervals hold the mean; a deviation of 0.02 has a chance
    below 1e-7.
    """
    values = np.random.default_rng(4).normal(size=(4000, cells))
    held = np.mean([low < 0 < high for low, high in map(interval, values)])
    assert abs(held - 0.95) < 0.02


@pytest.mark.parametrize("ratio", [None, 0.5])
@pytest.mark.parametrize("shift", [0.0, 0.9, 1.1, 3.0])
def test_an_interval_of_differences_agrees_with_the_test(ratio: float | None, shift: float) -> None:
    """Shifted by a multiple of its own reach, it holds 0 exactly where p is at least 0.05."""
    noise = np.array([-0.01, 0.0, 0.01])
    low, high = student_interval(noise, ratio)
    assert low is not None and high is not None
    moved = noise + shift * high
    low, high = student_interval(moved, ratio)
    p = corrected_t_test(moved, ratio)
    assert low is not None and high is not None and p is not None
    assert (low <= 0.0 <= high) == (p >= 0.05) == (shift < 1.0)


def test_two_pairs_have_no_interval_of_differences() -> None:
    assert student_interval(np.array([0.01, 0.02]), None) == (None, None)
    assert student_interval(np.full(5, 0.01), None) == (None, None)


def test_draws_on_one_split_count_once() -> None:
    draws = [
        cell("auto", 1.0, 0, fold, cell=(fold, d), draw=d) for fold in range(2) for d in range(5)
    ]
    [summary] = summarise(draws, "accuracy", {})
    assert (summary.cells, summary.draws) == (2, 10)


def test_guarantees_never_meet() -> None:
    """Two adjacencies, two deltas, two epsilons and no privacy: nobody is compared."""
    records = [
        cell("a", 1.0),
        cell("b", 1.0, adjacency="replace_one"),
        cell("c", 1.0, delta=0.0),
        cell("d", 2.0),
    ]
    assert all(
        summary.paired is None
        for summary in summarise([*records, cell("majority", None)], "accuracy", {})
    )


@pytest.mark.parametrize(("metric", "best"), [("accuracy", "high"), ("objective", "low")])
def test_best_follows_the_metric(metric: str, best: str) -> None:
    def made(label: str, value: float) -> list[dict]:
        return [cell(label, 1.0, 0, f, metrics={metric: value + 0.01 * f * f}) for f in range(3)]

    found = {
        s.place.label: s.paired
        for s in summarise([*made("high", 0.9), *made("low", 0.1)], metric, {})
    }
    assert found[best] is None
    assert {pair.best for pair in found.values() if pair} == {best}


def test_pairs_are_shared_cells() -> None:
    records = grid(["aa", "b"], [1.0])
    records[0] = failed(records[0])
    for summary in summarise(records, "accuracy", {}):
        if summary.place.label == "aa":
            assert (summary.failed, summary.cells) == (1, 5)
        if summary.paired:
            assert summary.paired.pairs == 5


def test_missing_numbers_are_counted() -> None:
    records = [cell("auto", 1.0, 0, f, metrics={"roc_auc": float("nan")}) for f in range(2)]
    [summary] = summarise(records, "roc_auc", {})
    assert (summary.mean, summary.missing, summary.cells) == (None, 2, 0)


def test_what_the_cells_share_is_said() -> None:
    assert resampling(grid(["a"], [1.0], folds=5), {}).ratio == pytest.approx(0.25)
    assert resampling([], {"test_share": 0.2}).ratio == pytest.approx(0.25)
    single = grid(["a"], [1.0], repeats=4, folds=1)
    assert resampling(single, {}).ratio is None
    assert any("noise alone" in line for line in explain(single, {}))
