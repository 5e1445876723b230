"""Figures: which there are, what they hold, and labels that keep apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from tasks.compare.figures import all_charts, mean_curve, write_figures
from tasks.drawing.chart import draw_panel, looks, spread, wrapped
from tasks.drawing.sheet import Sheet, _draw, _title_lines, description_of, sheets
from tests.tasks.compare.cells import cell, failed, grid


def test_labels_keep_apart_and_in_order() -> None:
    wanted, heights = [0.5, 0.5, 0.51, 0.9, 0.99], [0.1, 0.2, 0.1, 0.1, 0.1]
    centres = spread(wanted, heights, 0.0, 1.0)
    gaps = np.diff(centres) - (np.array(heights[:-1]) + heights[1:]) / 2
    assert (gaps > -1e-12).all()
    assert centres[0] - 0.05 >= 0.0
    assert centres[-1] + 0.05 <= 1.0 + 1e-12
    assert spread([0.2, 0.8], [0.1, 0.1], 0.0, 1.0) == pytest.approx([0.2, 0.8])


def test_forty_algorithms_look_different() -> None:
    assert len(set(looks(f"a{i}" for i in range(40)).values())) == 40


def test_nothing_of_a_long_label_is_lost() -> None:
    assert wrapped("x " * 50).replace("\n", " ") == ("x " * 50).strip()


def test_each_guarantee_has_a_panel_of_its_own() -> None:
    records = [*grid(["a"], [0.1, 1.0]), *grid(["a"], [0.1, 1.0], adjacency="replace_one")]
    records += grid(["b"], [0.1, 1.0], delta=0.0)
    chart = next(
        chart for chart in all_charts(records, {}) if chart.stem.endswith("accuracy_vs_epsilon")
    )
    assert [panel.title.split(" (")[0] for panel in chart.panels] == [
        "add_remove, delta = 0",
        "add_remove, delta = 1e-08",
        "replace_one, delta = 1e-08",
    ]
    assert all(len(panel.private) == 1 for panel in chart.panels)
    assert {line.label for line in chart.panels[0].references} == {"majority", "non_private"}


def test_what_a_source_prints_is_a_line_across_its_metric_and_data() -> None:
    printed = [
        {"label": "majority, printed", "metric": "accuracy", "data": "adult", "value": 0.761},
        {"label": "elsewhere, printed", "metric": "accuracy", "data": "bank", "value": 0.883},
        {"label": "all, printed", "metric": "objective", "data": None, "value": 0.5},
    ]
    curve = [{"step": k, "accuracy": 0.7, "objective": 0.4} for k in (1, 2, 3)]
    charts = list(all_charts(grid(["a"], [0.1, 1.0], curve=curve), {"printed": printed}))
    for chart in charts:
        for panel in chart.panels:
            said = {line.label: line.mean for line in panel.references if "printed" in line.label}
            assert said == (
                {"majority, printed": (0.761,)}
                if "_accuracy_" in chart.stem
                else {"all, printed": (0.5,)}
                if "_objective_" in chart.stem
                else {}
            )
    assert sum("_accuracy_" in chart.stem for chart in charts) == 2
    plain = list(all_charts(grid(["a"], [0.1, 1.0], curve=curve), {}))
    assert not any("printed" in line.label for c in plain for p in c.panels for line in p.lines)


def test_files_hold_what_is_drawn(tmp_path: Path) -> None:
    curve = [{"step": k, "accuracy": 0.7 + 0.01 * k} for k in (1, 2, 3)]
    files = write_figures(
        grid(["a", "b"], [0.1, 1.0], curve=curve), tmp_path, {"metrics": ["accuracy"]}
    )
    stems = {file.stem for file in files}
    assert stems == {
        "adult-logistic-l2-0.0001_accuracy_vs_epsilon",
        "adult-logistic-l2-0.0001_accuracy_vs_iterations",
    }
    assert {file.suffix for file in files} == {".png", ".svg", ".csv", ".parquet"}
    numbers = pd.read_parquet(tmp_path / "adult-logistic-l2-0.0001_accuracy_vs_iterations.parquet")
    assert numbers[numbers.label == "a"]["mean"].tolist() == pytest.approx([0.71, 0.72, 0.73] * 2)
    assert "at epsilon 0.1 the best is" in description_of(
        tmp_path / "adult-logistic-l2-0.0001_accuracy_vs_epsilon.png"
    )


@pytest.mark.parametrize(
    "records",
    [
        [],
        [failed(cell("a", 1.0))],
        [cell("a", 1.0, metrics={"roc_auc": float("nan")}, seconds=None)],
    ],
    ids=["none", "failed", "nan"],
)
def test_no_numbers_no_figure(records: list[dict], tmp_path: Path) -> None:
    assert write_figures(records, tmp_path, {}) == []


@pytest.mark.parametrize(
    "records", [[cell("a", 1.0)], [cell("majority", None)]], ids=["single", "not private"]
)
def test_single_cells_are_drawn(records: list[dict], tmp_path: Path) -> None:
    assert {
        file.suffix for file in write_figures(records, tmp_path, {"metrics": ["accuracy"]})
    } >= {".png", ".svg"}


def test_curves_of_unequal_length_keep_their_last_value() -> None:
    line = mean_curve("a", [{1: 0.0, 2: 1.0}, {1: 0.0, 2: 0.0, 4: 2.0}])
    assert line.x == (1.0, 2.0, 4.0)
    assert line.mean == (0.0, 0.5, 1.5)


def test_time_is_drawn_against_rows_where_sizes_differ_and_for_what_trains() -> None:
    """Folds differ by a row: a line through them would be the noise of the clock. Majority trains
    nothing. What has no privacy stands beside the only relation, and rows have their own ticks.
    """
    folds = [record | {"n": 1000 + record["fold"]} for record in grid(["a"], [1.0])]
    assert not [chart for chart in all_charts(folds, {}) if chart.stem == "seconds_vs_rows"]
    both = [*folds, *({**record, "data": "bank", "n": 4000, "seconds": 1.0} for record in folds)]
    [chart] = [chart for chart in all_charts(both, {}) if chart.stem == "seconds_vs_rows"]
    assert chart.ticks_at_points  # whole numbers of rows, no powers between them
    assert {line.label for panel in chart.panels for line in panel.lines} == {"a", "non_private"}
    assert chart.points == [1001.0, 4000.0]
    assert "majority" not in chart.description
    assert not chart.logarithmic and len(chart.panels) == 1
    others = [*both, *({**cell("b", 1.0, adjacency="replace_one"), "n": n} for n in (1000, 4000))]
    [chart] = [chart for chart in all_charts(others, {}) if chart.stem == "seconds_vs_rows"]
    assert [panel.title for panel in chart.panels][-1] == "without privacy"
    assert len(chart.panels) == 3
    sizes = [cell("a", 1.0, n=k * 50_000, data=f"k{k}") | {"cell": f"k{k}"} for k in range(1, 6)]
    [chart] = [chart for chart in all_charts(sizes, {}) if chart.stem == "seconds_vs_rows"]
    axes = Figure().add_axes((0, 0, 1, 1))
    draw_panel(axes, chart, chart.panels[0], looks(["a"]))
    assert axes.get_xscale() == "linear"
    assert axes.get_xticks().tolist() == [k * 50_000 for k in range(1, 6)]
    far = [
        record | {"n": 30 * record["n"]} if record["data"] == "bank" else record for record in both
    ]
    [chart] = [chart for chart in all_charts(far, {}) if chart.stem == "seconds_vs_rows"]
    assert chart.logarithmic


def test_bands_of_few_cells_are_as_wide_as_they_must_be() -> None:
    few = [cell("a", epsilon, fold=fold) for epsilon in (0.1, 1.0) for fold in range(2)]
    chart = next(
        chart for chart in all_charts(few, {}) if chart.stem.endswith("accuracy_vs_epsilon")
    )
    assert "fewer than 3 cells a point: no interval" in chart.description
    assert {(line.low, line.high) for line in chart.panels[0].private} == {
        ((None, None), (None, None))
    }


def test_a_sheet_has_a_row_for_each_metric_and_a_column_for_each_setting() -> None:
    records = [
        record | {"data": data, "cell": data + record["cell"]}
        for data in ("adult", "bank")
        for record in grid(["a", "b"], [0.1, 1.0])
    ]
    [sheet] = sheets(all_charts(records, {"metrics": ["accuracy", "objective"]}))
    assert (sheet.rows, sheet.columns) == (("accuracy", "objective"), ("adult", "bank"))
    assert set(sheet.panels) == {(row, column) for row in sheet.rows for column in sheet.columns}
    for (metric, data), chart in sheet.panels.items():
        assert chart.y_name == metric and chart.setting.startswith(data)
    assert "adult" not in sheet.title and "add_remove" in sheet.title


@pytest.mark.parametrize("length", range(40))
def test_a_title_of_several_lines_breaks_before_a_name_not_within_its_value(length: int) -> None:
    panels = {("accuracy", name): None for name in ("a", "b")}
    title = f"accuracy against epsilon: {'x' * length}, l2 = 0.001, replace_one, delta = 1e-08"
    sheet = Sheet("stem", title, ("accuracy",), ("a", "b"), panels)  # type: ignore[arg-type]
    lines = _title_lines(sheet)
    assert " ".join(lines) == title
    assert all(line.count(" = ") == line.count("=") for line in lines)
    assert not any(line.startswith("=") or line.endswith("=") for line in lines)


def test_a_sheet_draws_lines_of_two_adjacencies_together_where_none_stands_in_both(
    tmp_path: Path,
) -> None:
    """As the sources draw them; a line of the smaller panel says its adjacency."""
    records = grid(["a", "b"], [0.1, 1.0]) + grid(["c"], [0.1, 1.0], adjacency="replace_one")
    facts = {"metrics": ["accuracy", "objective"]}
    [sheet] = sheets(all_charts(records, facts))
    assert len(sheet.columns) == 1 and "add_remove" in sheet.title
    for chart in sheet.panels.values():
        [panel] = chart.panels
        assert [line.name for line in panel.private] == ["a", "b", "c (replace_one)"]
    assert (tmp_path / "sheet_vs_epsilon.svg") in write_figures(records, tmp_path, facts)
    assert ">c (replace_one)<" in (tmp_path / "sheet_vs_epsilon.svg").read_text()
    both = records + grid(["a"], [0.1, 1.0], adjacency="replace_one")
    [sheet] = sheets(all_charts(both, facts))
    assert sheet.columns == ("add_remove", "replace_one")


def test_a_sheet_draws_what_differs_in_the_loss_alone_together(tmp_path: Path) -> None:
    """Figure 5.4 of Chen (2020): a column for each data set, methods that need a smooth loss in
    it with the huberised hinge. The least objective is that of each loss, the majority's accuracy
    one.
    """

    def on(data: str, loss: str, labels: list[str], **changes: object) -> list[dict]:
        rows = grid(labels, [0.1, 1.0], **changes)
        given = {"h": 0.5} if loss == "huber_hinge" else {}
        objective = {"hinge": 0.3, "huber_hinge": 0.2}[loss]
        for row in rows:
            row |= {"data": data, "loss": loss, "loss_parameters": given}
            row["cell"] = f"{data}-{loss}-{row['cell']}"
            if row["label"] == "majority":
                row["metrics"] = {"accuracy": 0.75}
            elif row["label"] == "non_private":
                row["metrics"] = {"accuracy": 0.85, "objective": objective}
        return rows

    facts = {"metrics": ["accuracy", "objective"]}
    records = [
        row
        for data in ("adult", "bank")
        for row in (
            *on(data, "hinge", ["a", "b"]),
            *on(data, "huber_hinge", ["c"], adjacency="replace_one"),
        )
    ]
    [sheet] = sheets(all_charts(records, facts))
    assert (sheet.rows, sheet.columns) == (("accuracy", "objective"), ("adult", "bank"))
    assert "hinge" in sheet.title and "huber" not in sheet.title and "add_remove" in sheet.title
    for (metric, _), chart in sheet.panels.items():
        [panel] = chart.panels
        own = "c (huber_hinge, replace_one)"
        assert [line.name for line in panel.private] == ["a", "b", own]
        across = {
            "accuracy": ["majority", "non_private"],
            "objective": ["non_private", "non_private (huber_hinge)"],
        }
        assert sorted(line.name for line in panel.references) == across[metric]
    written = write_figures(records, tmp_path, facts)
    assert f">{own}<" in (tmp_path / "sheet_vs_epsilon.svg").read_text(encoding="utf-8")
    assert len([path for path in written if path.suffix == ".csv"]) == 8  # a chart of each setting
    both = records + on("adult", "huber_hinge", ["a"])
    [sheet] = sheets(all_charts(both, facts))
    assert len(sheet.columns) == 3


def test_losses_of_one_name_on_one_sheet_say_their_parameters() -> None:
    """Else two lines across, each the objective of its own loss, had one name and one dash."""
    records = []
    for h, labels in (("", ["a", "b"]), ("0.1", ["c"]), ("0.5", ["d"])):
        rows = grid(labels, [0.1, 1.0])
        for row in rows:
            row |= {"loss": "huber_hinge" if h else "hinge"}
            row |= {"loss_parameters": {"h": float(h)} if h else {}}
            row["cell"] = f"{h}-{row['cell']}"
            if row["label"] == "non_private":
                row["metrics"] = {"accuracy": 0.85, "objective": float(h or 0.3)}
        records += rows
    [sheet] = sheets(all_charts(records, {"metrics": ["accuracy", "objective"]}))
    for (metric, _), chart in sheet.panels.items():
        names = [line.name for line in chart.panels[0].lines]
        assert len(set(names)) == len(names), (metric, names)
        for h, label in (("0.1", "c"), ("0.5", "d")):
            assert f'{label} (huber_hinge {{"h": {h}}})' in names


def test_a_reference_has_one_dash_on_the_whole_sheet() -> None:
    """That of its name in the legend, though the majority class has no objective."""
    records = [
        record | {"data": data, "cell": data + record["cell"]}
        for data in ("adult", "bank", "credit")
        for record in grid(["a"], [0.1, 1.0])
    ]
    for record in records:
        if record["label"] == "majority":
            record["metrics"] = {"accuracy": record["metrics"]["accuracy"]}
    [sheet] = sheets(all_charts(records, {"metrics": ["objective", "accuracy"]}))
    figure = Figure()
    named = _draw(figure, sheet, looks(["a"]))
    dashes = {name: line._unscaled_dash_pattern for name, line in named.items()}
    assert dashes["majority"] != dashes["non_private"]
    for axes, chart in zip(figure.axes, sheet.panels.values(), strict=True):
        for reference in chart.panels[0].references:
            [drawn] = [line for line in axes.lines if set(line.get_ydata()) == set(reference.mean)]
            assert drawn._unscaled_dash_pattern == dashes[reference.label]


def test_cutoffs_of_one_metric_are_columns_and_settings_rows() -> None:
    """Figure 4.4 of Chen (2020): both l1 from top to bottom, the counts from left to right."""
    coverage = {f"coverage_at_{k}": 0.5 for k in (20, 40)}
    records = [
        record
        | {"l1": l1, "cell": f"{l1}{record['cell']}", "metrics": record["metrics"] | coverage}
        for l1 in (1e-4, 1e-3)
        for record in grid(["a"], [0.1, 1.0])
    ]
    [sheet] = sheets(all_charts(records, {"metrics": list(coverage)}))
    assert (sheet.rows, sheet.columns) == (
        ("l1 = 0.0001", "l1 = 0.001"),
        ("coverage at 20", "coverage at 40"),
    )
    both = {"metrics": ["accuracy", *coverage]}
    [other] = sheets(all_charts(records, both))
    assert other.columns == ("l1 = 0.0001", "l1 = 0.001") and len(other.rows) == 3


def test_a_single_panel_or_a_single_epsilon_needs_no_sheet() -> None:
    one = {"metrics": ["accuracy"]}
    assert not list(sheets(all_charts(grid(["a"], [0.1, 1.0]), one)))
    assert not list(sheets(all_charts(grid(["a"], [0.1]), {"metrics": ["accuracy", "objective"]})))


def test_many_columns_go_on_further_sheets(tmp_path: Path) -> None:
    records = [
        record | {"data": f"set-{k}", "cell": f"{k}{record['cell']}"}
        for k in range(8)
        for record in grid(["a"], [0.1, 1.0])
    ]
    facts = {"metrics": ["accuracy"]}
    found = list(sheets(all_charts(records, facts)))
    assert [len(sheet.columns) for sheet in found] == [6, 2]
    assert [column for sheet in found for column in sheet.columns] == [f"set-{k}" for k in range(8)]
    written = write_figures(records, tmp_path, facts)
    assert [path.name for path in written[:4]] == [
        "sheet_vs_epsilon.png",
        "sheet_vs_epsilon.svg",
        "sheet_vs_epsilon-2.png",
        "sheet_vs_epsilon-2.svg",
    ]
    assert description_of(written[0]) == found[0].description
