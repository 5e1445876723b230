"""The quick protocol of some figures of the sources: every cell is trained and measured, and the
figures have the numbers that the text prints.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from flows.compare import make_facts
from tasks.compare.batch import batches_of, run_batch
from tasks.compare.config import load_compare
from tasks.compare.figures import write_figures
from tasks.compare.resume import make_comparison
from tasks.home import Home
from tests.tasks.compare.test_engine import bench_of

pytestmark = pytest.mark.slow
REPRODUCE = Path(__file__).parents[2] / "conf" / "reproduce"


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("figure_4_3", {"accuracy", "objective"}),
        ("figure_5_2", {"gradient_evaluations", "loss_evaluations"}),
        ("figure_5_5", {"accuracy", "objective"}),
        ("figure_6_2", {"map", "ndcg_at_8"}),
    ],
)
def test_the_quick_protocol_of_a_figure(
    shared: Path,
    tmp_path: Path,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    metrics: set[str],
) -> None:
    monkeypatch.setenv("DPFLOWS_DATA", str(shared / "data"))
    config = load_compare(str(REPRODUCE / f"{name}.yaml"), ["protocol=quick"])
    comparison = make_comparison(config, home)
    bench = bench_of(comparison)
    records = [
        record for batch in batches_of(comparison.cells, 1) for record in run_batch(batch, bench)
    ]
    assert {record["status"] for record in records} == {"done"}
    assert all(metrics <= record["metrics"].keys() for record in records if record["private"])
    facts = make_facts(comparison, {}, 1.0)
    drawn = [path for path in write_figures(records, tmp_path, facts) if path.suffix == ".csv"]
    for line in config.printed:
        values = [
            float(row["mean"])
            for path in drawn
            for row in csv.DictReader(path.open(encoding="utf-8"))
            if row["label"] == line.label
        ]
        assert values and set(values) == {line.value}
