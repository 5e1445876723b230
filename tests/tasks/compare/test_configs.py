"""The comparisons that come with the project: each is read, and its grid is planned from
declarations alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dpcore.errors import InputError
from tasks.compare import load_compare
from tasks.compare.config import LINES, PROTOCOLS, ProtocolSection
from tasks.compare.grid import Plans, cells_of, check_names, expand
from tasks.compare.resume import check_metrics
from tasks.compare.tracking import child_name
from tasks.compare.variants import spread_out

CONF = Path(__file__).parents[3] / "conf"
CONFIGS = sorted(CONF.glob("compare_*.yaml"))
REPRODUCED = sorted((CONF / "reproduce").glob("*.yaml"))
# Figures and tables with measurements of the dissertation (figures 3.1 to 6.2), the slides on
# DP-AGD, Table 3 of Zhang et al. (2017) and the notes on AMP.
SOURCES = {
    *(f"figure_3_{k}" for k in range(1, 5)),
    *(f"figure_4_{k}" for k in range(1, 5)),
    *(f"figure_5_{k}" for k in range(1, 6)),
    *(f"figure_5_5_{k}" for k in ("mnist_cnn", "fmnist_mlp", "fmnist_cnn", "cifar10_cnn")),
    *(f"figure_6_{k}" for k in (1, 2)),
    *("agd_effects", "agd_figure_2", "agd_figure_3", "agd_kddcup99", "table_3", "amp"),
}


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


def test_every_figure_and_table_of_the_sources_has_a_file() -> None:
    assert {path.stem for path in REPRODUCED} == SOURCES


@pytest.mark.parametrize("path", REPRODUCED, ids=lambda path: path.stem)
def test_a_figure_of_a_source_is_read_whole_and_quick(path: Path) -> None:
    for overrides in ([], ["protocol=quick"]):
        config = load_compare(str(path), overrides)
        check_names(spread_out(config.algorithms)[0])
        for line in config.printed:
            assert line.data in {data.name for data in config.data} and "printed" in line.label
        assert config.tracking.experiment == "reproduce" and config.tracking.name
        assert config.title == config.tracking.name


@pytest.mark.parametrize(
    "path",
    [
        # six million weights are drawn for each algorithm
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * ("cifar10" in path.stem))
        for path in REPRODUCED
    ],
)
def test_a_figure_of_a_source_is_planned_before_any_row_is_read(path: Path) -> None:
    """The quick grid from declarations, nothing left out, with a price; few cells."""
    config = load_compare(str(path), ["protocol=quick"])
    settings, left_out = expand(config)
    check_metrics(config, settings)
    private = [setting for setting in settings if setting.private]
    assert private and not left_out
    planned = Plans().of(private[0], private[0].problem(config.protocol.folds, 0))
    assert 0 < planned.spent_epsilon < float("inf")
    assert sum(len(cells_of(setting, config, "facts")) for setting in settings) <= 250


def test_the_papers_privbr_keeps_one_relevant_document_of_a_session() -> None:
    """Section 6.5.5: it belongs to the algorithm, but is a parameter of the loss."""
    found = [
        entry.loss_parameters["target"]
        for path in (*CONFIGS, *REPRODUCED)
        for entry in load_compare(str(path)).algorithms
        if (entry.name, entry.preset) == ("privbr", "paper")
    ]
    assert len(found) >= 5 and set(found) == {"one_hot"}


def test_protocols_of_the_sources_are_those_that_they_print() -> None:
    """20 x 5 folds in chapter 3, 10 x 10 in chapter 4, 5 x 10 in chapter 5, ten runs on each of
    five folds in chapter 6, 100 rounds in Table 3.
    """
    asked = {
        "figure_3_1": (20, 5, 1),
        "figure_4_1": (10, 10, 1),
        "figure_5_3": (5, 10, 1),
        "figure_6_2": (1, 5, 10),
        "table_3": (1, 1, 100),
    }
    for name, wanted in asked.items():
        found = load_compare(str(CONF / "reproduce" / f"{name}.yaml")).protocol
        assert (found.partitions, found.folds, found.noise_draws) == wanted


def test_quick_goes_over_the_file_and_below_what_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    text = "data: [adult]\nalgorithms: [dp_sgd]\nprotocol: paper_ch3\nprivacy: {epsilon: [1, 2]}\n"
    file.write_text(text + "quick: {privacy.epsilon: [1], seed: 3}\n")
    assert load_compare(str(file)).epsilons == (1.0, 2.0)
    quick = load_compare(str(file), ["protocol=quick"])
    assert (quick.epsilons, quick.seed, quick.protocol.folds) == ((1.0,), 3, 3)
    assert load_compare(str(file), ["protocol=quick", "seed=4"]).seed == 4
    file.write_text(text + "quick: {protocol: {repeats: 2, folds: 2}}\n")
    own = load_compare(str(file), ["protocol=quick"]).protocol
    assert (own.repeats, own.folds) == (2, 2)
    file.write_text(text + "quick: {privacy.epsilom: [1]}\n")
    with pytest.raises(InputError, match="epsilom"):
        load_compare(str(file), ["protocol=quick"])


def test_networks_are_compared_beside_adam_and_without_libraries() -> None:
    path = str(CONF / "reproduce" / "figure_5_5.yaml")
    settings, _ = expand(load_compare(path, ["protocol=quick"]))
    beside = [setting for setting in settings if not setting.private]
    assert [setting.config.algorithm.name for setting in beside] == ["adam"]
    assert {setting.job.problem.kind for setting in settings} == {"network"}
    with pytest.raises(InputError, match="peers with section model"):
        load_compare(path, ["peers.libraries=[opacus]"])
