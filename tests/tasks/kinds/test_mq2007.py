"""MQ2007's layout on generated files: partition files S1 to S5, the five folds of LETOR, the grid
of Figure 6.1.

The set itself is brought by the user; nothing here needs it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpcore.errors import InputError
from dpcore.ranking.synthetic import FEATURES, search
from tasks import training
from tasks.compare import load_compare, resume
from tasks.compare.batch import batches_of, run_batch
from tasks.config import load_config
from tasks.home import Home
from tasks.kinds.charge import require_files
from tasks.schema import find_schema
from tests.dpcore.ranking.cells import partition_folds
from tests.dpcore.ranking.parts import partition_parts
from tests.tasks.compare.test_engine import bench_of

CONF = Path(__file__).resolve().parents[3] / "conf"
SIZES = (24, 24, 24, 24, 23)  # unequal, as 1,692 queries in five parts are


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """S1.txt to S5.txt: 46 features in [0, 1], of which the first 24 are those of the generated
    sessions.
    """
    made, rng = search(sum(SIZES), seed=11), np.random.default_rng(0)
    part_of = np.repeat(np.arange(5), SIZES)
    rows = np.column_stack([made[f"feature_{i}"] for i in range(1, FEATURES + 1)])
    rows = np.column_stack([rows, rng.random((len(rows), 46 - FEATURES))])
    lines: list[list[str]] = [[] for _ in SIZES]
    for query, grade, row in zip(made["query"], made["grade"], rows, strict=True):
        features = " ".join(f"{i}:{value:.6f}" for i, value in enumerate(row, 1))
        lines[part_of[query]].append(
            f"{grade:.0f} qid:{query + 10} {features} #docid = GX{query} inc = 1 prob = 0.2"
        )
    for number, part in enumerate(lines, 1):
        (tmp_path / f"S{number}.txt").write_text("\r\n".join(part) + "\r\n")
    return tmp_path


def test_five_folds_are_those_of_letor(folder: Path) -> None:
    """Fold 1 trains on S1, S2, S3, validates on S4, tests on S5; each fold moves all of them one
    file on.
    """
    parts = partition_parts(find_schema("mq2007"), folder)
    assert tuple(part.n for part in parts) == SIZES
    names = [set(part.queries) for part in parts]
    for i, fold in enumerate(partition_folds(parts, validate=True)):
        assert fold.validation is not None
        assert set(fold.train.queries) == names[i] | names[(i + 1) % 5] | names[(i + 2) % 5]
        assert set(fold.validation.queries) == names[(i + 3) % 5]
        assert set(fold.test.queries) == names[(i + 4) % 5]
    assert {frozenset(fold.test.queries) for fold in partition_folds(parts)} == {
        frozenset(n) for n in names
    }
    assert all(fold.train.n == sum(SIZES) - fold.test.n for fold in partition_folds(parts))


def test_figure_61_runs_on_the_partition_files(folder: Path, home: Home) -> None:
    overrides = [
        f"data=[{{name: mq2007, path: {folder}}}]",
        "ranking.scorer=linear",
        "protocol.repeats=2",
    ]
    config = load_compare(str(CONF / "compare_mq2007.yaml"), overrides)
    comparison = resume.make_comparison(config, home)
    private = [cell for cell in comparison.cells if cell.setting.private]
    assert len(private) == 4 * 4 * 5 * 2  # algorithms, noise, folds, draws
    wanted = [setting for setting in comparison.settings if setting.noise_multiplier == 2.0][::2]
    chosen = [
        cell for cell in private if cell.setting in wanted and (cell.fold, cell.draw) == (4, 1)
    ]
    records = {
        r["label"]: r
        for batch in batches_of(chosen, 1)
        for r in run_batch(batch, bench_of(comparison))
    }
    assert {record["status"] for record in records.values()} == {"done"}
    assert {record["n"] for record in records.values()} == {sum(SIZES) - SIZES[4]}
    curve = records["privbr"]["curve"]
    assert (curve[0]["step"], curve[-1]["step"]) == (0, 400)
    assert curve[-1]["map"] == pytest.approx(records["privbr"]["metrics"]["map"])
    assert curve[-1]["spent_epsilon"] == pytest.approx(records["privbr"]["spent_epsilon"])


def test_without_files_the_set_is_planned_and_the_way_to_get_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFLOWS_DATA", raising=False)
    job = training.prepare(load_config(str(CONF / "mq2007.yaml")))
    assert (job.schema.name, job.problem.n, training.plan_training(job).name) == (
        "mq2007",
        1017,
        "listnet_one_shot",
    )
    with pytest.raises(
        InputError, match="Microsoft Research LETOR page and give the folder of its partition files"
    ):
        require_files(job)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 1:0.5", "no query id"),
        ("1 qid: 1:0.5", "no query id"),
        ("-1 qid:7 1:0.5", "'-1' is not a usable target"),
        ("3 qid:7 1:0.5", "'3' is not a usable target"),
        ("1 qid:7 1:nan", "'1:nan'"),
        ("1 qid:7 47:0.5", "'47:0.5'"),
    ],
)
def test_a_bad_line_is_named(folder: Path, line: str, words: str) -> None:
    file = folder / "S2.txt"
    file.write_text(line + "\n" + file.read_text())
    with pytest.raises(InputError) as raised:
        partition_parts(find_schema("mq2007"), folder)
    assert (
        words in str(raised.value)
        and "S2.txt" in str(raised.value)
        and "\n" not in str(raised.value)
    )
