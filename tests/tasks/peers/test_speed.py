"""What ``dpflows bench --speed`` measures is what it names: each line has a ratio to work that was
done beside it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from dpcore.objective import compiled, fused
from tasks.peers import bench, speed


def test_every_line_is_measured_beside_what_it_is_compared_with(monkeypatch) -> None:
    monkeypatch.setattr(compiled, "available", lambda: False)  # compiling is measured elsewhere
    found = bench.measured(2000, elsewhere=False)
    assert found["passes"] == "numpy" and not compiled.in_use()
    names = [line["what"] for line in found["lines"]]
    assert len(names) == len(set(names)) >= 11
    for line in found["lines"]:
        assert line["ns_a_row"] > 0 and (line["ratio"] is None or line["ratio"] > 0)


def test_work_is_taken_in_rotation_and_the_first_turn_does_not_count() -> None:
    seen: list[str] = []
    ticks = iter(np.arange(100.0) ** 2)
    speed.best(
        {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")},
        2,
        lambda: float(next(ticks)),
    )
    assert seen == ["a", "b"] * 3


def test_other_threads_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time adds up over threads, and those of linear algebra spin on after a product."""
    seen, passes = [], []
    monkeypatch.setattr(fused, "threads", lambda: 2)
    speed.best({"a": lambda: seen.append([pool["num_threads"] for pool in threadpool_info()])}, 1)
    assert len(seen) == 2 and {one for pools in seen for one in pools} == {1}
    with speed.one_thread():
        passes.append(fused.threads())
    assert [*passes, fused.threads()] == [1, 2]


def test_an_interrupted_run_goes_on_where_it_was_on_the_same_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, seen, broken = tmp_path / "home" / "speed.jsonl", [], [True]

    def work(name: str) -> list[speed.Line]:
        seen.append(name)
        if name == "second" and broken:
            raise KeyboardInterrupt
        return [speed.line(name, "", None, 2.0)]

    monkeypatch.setattr(
        bench, "sections", lambda n, elsewhere: {k: partial(work, k) for k in ("first", "second")}
    )
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            bench.measured(100, kept=kept)
    assert seen == ["first", "second", "second"]
    with pytest.raises(KeyboardInterrupt):
        bench.measured(200, kept=kept)  # of another size: from the beginning
    assert seen[3:] == ["first", "second"]
    broken.clear()
    found = bench.measured(200, kept=kept)
    assert seen[5:] == ["second"] and not kept.exists()
    assert [one["what"] for one in found["lines"]] == ["first", "second"]
    assert found["processors"] >= 1 and found["versions"]["numpy"] == np.__version__


def test_made_rows_are_of_the_shape_that_the_design_names() -> None:
    rng = np.random.default_rng(0)
    levels, exact = speed.made_rows(100, True, rng), speed.made_rows(100, False, rng)
    assert levels.layout.row_bytes == 10 and exact.layout.row_bytes == 34
    assert levels.width == exact.width == 145
    assert np.allclose(exact.X.sum(axis=1), 15.0)


@pytest.mark.slow
def test_what_runs_in_processes_of_its_own_is_measured_or_said_to_be_missing() -> None:
    lines = [*bench.libraries(4000), *speed.start()]
    assert [line["what"].split(" at ")[0] for line in lines] == [
        *["dp_sgd epoch"] * 4,
        "objective_perturbation",
        "start of a training",
    ]
    for line in lines:
        assert line["ns_a_row"] > 0
        assert (line["ratio"] is None) == line["to"].endswith("not installed")
