"""The comparisons that come with the project: each is read, and its grid is planned from
declarations alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.compare.config import LINES, PROTOCOLS, ProtocolSection, load_compare
from tasks.compare.grid import cells_of, expand
from tasks.compare.tracking import child_name

CONFIGS = sorted(path for path in (Path(__file__).parents[3] / "conf").glob("compare_*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_comparison_has_a_grid(path: Path) -> None:
    config = load_compare(str(path))
    settings, left_out = expand(config)
    wanted = {entry.shown for entry in config.algorithms if entry.name not in LINES}
    assert wanted <= {setting.label for setting in settings} | {item.label for item in left_out}
    assert {setting.config.data.name for setting in settings} == {data.name for data in config.data}
    assert all(item.reason for item in left_out)
    names = [child_name(setting, config) for setting in settings]
    assert len(set(names)) == len(names)


def test_repeats_of_partition_files_are_draws_on_the_same_folds() -> None:
    config = load_compare(str(CONFIGS[0].with_name("compare_ranking.yaml")), ["protocol.repeats=3"])
    cells = cells_of(expand(config)[0][-1], config, "facts")
    assert {cell.repeat for cell in cells} == {0}
    assert {(cell.fold, cell.draw) for cell in cells} == {
        (fold, draw) for fold in range(5) for draw in range(3)
    }
    chapter = ProtocolSection(name="paper_ch6", **PROTOCOLS["paper_ch6"])
    assert (chapter.partitions, chapter.noise_draws) == (1, 10)
