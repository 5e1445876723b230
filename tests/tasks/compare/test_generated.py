"""Generated data in a comparison: every repeat has a data set of its own, and the truth they come
with is measured.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tasks.compare import load_compare
from tasks.compare.cell import SUPPORT, metrics_of
from tasks.compare.config import CompareConfig
from tasks.compare.folds import Rows, is_redrawn, redrawn
from tasks.compare.grid import Cell, Setting, expand

CONF = Path(__file__).parents[3] / "conf"


def comparison(*changes: str) -> tuple[Setting, CompareConfig]:
    """A setting of the shipped comparison, with 300 generated rows."""
    config = load_compare(str(CONF / "compare_l1.yaml"), list(changes))
    setting = next(found for found in expand(config)[0] if found.config.algorithm.name == "ssadmm")
    source = setting.job.schema.source.model_copy(update={"arguments": {"rows": 300, "seed": 5}})
    schema = setting.job.schema.model_copy(update={"source": source})
    return replace(setting, job=replace(setting.job, schema=schema)), config


@pytest.mark.parametrize("folds", [1, 3])
def test_every_repeat_draws_a_data_set_of_its_own(folds: int) -> None:
    setting, config = comparison(f"protocol={{repeats: 3, folds: {folds}}}")
    rows = Rows(config.protocol, config.seed, {}, ())
    parts = [rows.part(Cell(setting, repeat, 0, 0, "", 0)) for repeat in range(3)]
    tops = [part.objective.X[0, :5] for part in parts]
    assert all(not np.allclose(a, b) for a, b in pairwise(tops))
    assert [
        redrawn(setting.job, repeat).schema.source.arguments["seed"] for repeat in range(3)
    ] == [5, 6, 7]
    assert rows.part(Cell(setting, 0, 0, 0, "", 0)) is parts[0]
    again = Rows(config.protocol, config.seed, {}, ()).part(Cell(setting, 2, 0, 0, "", 0))
    assert np.array_equal(again.objective.X, parts[2].objective.X), (
        "public seeds: the same data for everybody"
    )


def test_data_without_a_declared_seed_stay_the_same() -> None:
    config = load_compare(str(CONF / "compare_l1.yaml"), ["data=[census]"])
    job = expand(config)[0][0].job
    assert not is_redrawn(job) and redrawn(job, 4) is job


def test_coverage_comes_with_precision_and_recall_of_the_support() -> None:
    setting, config = comparison("preprocess.intercept=true")
    part = Rows(config.protocol, config.seed, {}, ()).part(Cell(setting, 0, 0, 0, "", 0))
    weights = np.zeros(setting.job.problem.dimension)
    weights[10:30], weights[-1] = 1.0, 5.0
    found = metrics_of(setting, config, part, weights)
    assert [found[name] for name in SUPPORT] == [0.5, 0.5]
    assert found["coverage_at_20"] == 0.5 and found["coverage_at_40"] == pytest.approx(
        0.5 + 0.5 * 20 / 80
    )
