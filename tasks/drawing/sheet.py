"""Charts as files: one figure each, and all charts of a comparison that share an axis on one sheet,
as the sources print them: a row for each metric, a column for each setting, one legend.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from dpcore.problem import Adjacency
from tasks.drawing.chart import (
    DPI,
    INK,
    LABEL_SIZE,
    LINE_HEIGHT,
    REFERENCE,
    Chart,
    Look,
    Panel,
    draw_dots,
    draw_lines,
    draw_panel,
)

MOST_COLUMNS = 6
WIDE, TALL = 2.6, 2.1  # inches of a panel
LEFT, GAP, BELOW = 0.75, 0.6, 0.55
TITLE_LETTERS, HEADING_LETTERS = 12, 40  # of a line: for each inch of the sheet, above a panel
TOGETHER = "\u00a0=\u00a0"  # where no line is broken
REFERENCE_DASHES = ((5, 3), (1, 1.5), (6, 2, 1, 2), (3, 1, 1, 1, 1, 1), (9, 4), (2, 4))
CUTOFF = re.compile(r"(@| at )\d+$")


@dataclass(frozen=True, slots=True)
class Sheet:
    """Panels by (row, column); each is a chart of a single panel. Places may be empty."""

    stem: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    panels: Mapping[tuple[str, str], Chart]

    @property
    def description(self) -> str:
        """What stands where, in words; the numbers stand in the files of the single charts."""
        return (
            f"{self.title}: {', '.join(self.rows)} from top to bottom; "
            f"{'; '.join(self.columns)} from left to right."
        )


def sheets(charts: Iterable[Chart]) -> Iterator[Sheet]:
    """A sheet against epsilon, one against iterations and one against varied parameters, where
    there are at least two charts with lines; more columns than ``MOST_COLUMNS`` go on further
    sheets.

    Where all metrics are one at several cut-offs these are the columns, and settings the rows.
    """
    families: dict[str, list[Chart]] = {}
    for chart in charts:
        if chart.setting and len(chart.points) > 1:
            families.setdefault(_family(chart), []).append(chart)
    for family, drawn in families.items():
        if len(drawn) > 1:
            yield from _split(
                family, [(chart, one) for chart in _shared(drawn) for one in chart.panels]
            )


def _shared(charts: Iterable[Chart]) -> list[Chart]:
    """``charts`` with those that differ in their loss alone as one, and panels that differ in their
    adjacency alone, as the sources draw them, where no line stands in two of them. Lines that are
    not like most say what is theirs.
    """
    groups: dict[tuple[str, ...], list[Chart]] = {}
    for chart in charts:
        setting = chart.setting.replace(f", {chart.loss}", "", 1)
        groups.setdefault((chart.x_name, chart.y_name, setting), []).append(chart)
    return [one for found in groups.values() for one in _joined(found)]


def _joined(charts: Sequence[Chart]) -> list[Chart]:
    groups = _groups(charts)
    if len(charts) > 1 and any(map(_collide, groups)):
        return [one for chart in charts for one in _joined([chart])]
    main = max(charts, key=lambda chart: sum(len(panel.private) for panel in chart.panels))
    panels = chain.from_iterable(_together(found, main) for found in groups)
    return [replace(main, panels=tuple(panels))]


def _groups(charts: Iterable[Chart]) -> list[list[tuple[Chart, Panel]]]:
    """Panels that may share axes, with their charts: those that differ in their adjacency alone."""
    groups: dict[tuple[str, ...], list[tuple[Chart, Panel]]] = {}
    for chart in charts:
        for panel in chart.panels:
            key = tuple(part for part in _words(panel) if part not in set(Adjacency))
            groups.setdefault(key, []).append((chart, panel))
    return list(groups.values())


def _collide(found: Sequence[tuple[Chart, Panel]]) -> bool:
    labels = [line.label for _, panel in found for line in panel.private]
    return len(set(labels)) < len(labels)


def _together(found: Sequence[tuple[Chart, Panel]], chart: Chart) -> list[Panel]:
    """One panel with the lines of all, unless some have one name; references that stand in several
    of them once. ``chart`` says the loss.
    """
    if _collide(found):
        return [panel for _, panel in found]
    main = max(found, key=lambda one: (one[0] is chart, len(one[1].private)))[1]
    lines = [
        replace(line, words=(*_loss_of(other, chart, found), *_adjacency_of(panel, main)))
        for other, panel in found
        for line in panel.private
    ]
    across = list(main.references)
    for other, panel in found:
        for line in panel.references:
            if (line.label, line.mean) not in [(one.label, one.mean) for one in across]:
                across.append(replace(line, words=_loss_of(other, chart, found)))
    return [replace(main, lines=(*lines, *across))]


def _loss_of(chart: Chart, main: Chart, found: Sequence[tuple[Chart, Panel]]) -> tuple[str, ...]:
    """The loss of ``chart`` where it is another one than that of ``main``: its name, and parameters
    where the loss of another, of ``found`` or ``main``, has the name.
    """
    if chart.loss == main.loss:
        return ()
    name = chart.loss.partition(" ")[0]
    losses = {main.loss, *(other.loss for other, _ in found)}
    alike = [loss for loss in losses if loss.partition(" ")[0] == name]
    return (chart.loss if len(alike) > 1 else name,)


def _adjacency_of(panel: Panel, main: Panel) -> tuple[str, ...]:
    other = set(_words(main))
    return tuple(part for part in _words(panel) if part in set(Adjacency) - other)


def _split(family: str, found: Sequence[tuple[Chart, Panel]]) -> Iterator[Sheet]:
    """The sheets of one axis, of at most ``MOST_COLUMNS`` columns each."""
    across = _settings_across(found)
    placed = {_place(*one, found, across): _alone(*one) for one in found}
    columns = tuple(dict.fromkeys(column for _, column in placed))
    for first in range(0, len(columns), MOST_COLUMNS):
        part = columns[first : first + MOST_COLUMNS]
        inside = {key: chart for key, chart in placed.items() if key[1] in part}
        rows = tuple(dict.fromkeys(row for row, _ in inside))
        stem = f"sheet_vs_{family}" + (f"-{first // MOST_COLUMNS + 1}" if first else "")
        yield Sheet(stem, _title(found, across), rows, part, inside)


def _family(chart: Chart) -> str:
    return {"epsilon": "epsilon", "iteration": "iterations"}.get(chart.x_name, "parameters")


def _settings_across(found: Sequence[tuple[Chart, Panel]]) -> bool:
    """Whether settings are the columns: unless the metrics are one metric at several cut-offs."""
    names = {chart.y_name for chart, _ in found}
    stems = {CUTOFF.sub("", name) for name in names}
    return not (len(names) > 1 and len(stems) == 1)


def _common(found: Sequence[tuple[Chart, Panel]]) -> set[str]:
    """Parts of settings and panel titles that all panels have: said once, in the title."""
    return set.intersection(*(set(_parts(*one)) for one in found))


def _parts(chart: Chart, panel: Panel) -> tuple[str, ...]:
    return (*chart.setting.split(", "), *_words(panel))


def _words(panel: Panel) -> list[str]:
    return panel.title.split(" (")[0].split(", ")


def _title(found: Sequence[tuple[Chart, Panel]], across: bool) -> str:
    common = _common(found)
    words = [part for part in dict.fromkeys(_parts(*found[0])) if part in common]
    names = list(dict.fromkeys(chart.y_name for chart, _ in found))
    what = ", ".join(names) if across else CUTOFF.sub("", names[0])
    axes = {chart.x_name for chart, _ in found}
    axis = axes.pop() if len(axes) == 1 else "parameters"
    return f"{what} against {axis}" + (f": {', '.join(words)}" if words else "")


def _place(
    chart: Chart, panel: Panel, found: Sequence[tuple[Chart, Panel]], across: bool
) -> tuple[str, str]:
    common = _common(found)
    own = ", ".join(part for part in dict.fromkeys(_parts(chart, panel)) if part not in common)
    if _family(chart) == "parameters":
        own = ", ".join(filter(None, (chart.x_name, own)))
    return (chart.y_name, own) if across else (own or chart.setting, chart.y_name)


def _alone(chart: Chart, panel: Panel) -> Chart:
    return replace(chart, panels=(panel,))


def save_sheet(sheet: Sheet, looks: Mapping[str, Look], folder: Path) -> list[Path]:
    """Draw ``sheet`` as PNG and SVG; its numbers are those of the single charts."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=DPI)
    FigureCanvasAgg(figure)
    handles = _draw(figure, sheet, looks)
    title = "\n".join(_title_lines(sheet))
    figure.suptitle(
        title, x=0.012, ha="left", y=1 - 0.1 / figure.get_figheight(), va="top", fontsize=10
    )
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=_legend_columns(sheet, handles),
        fontsize=LABEL_SIZE,
        frameon=False,
        handlelength=3.2,
    )
    words = {"Title": sheet.title, "Description": sheet.description}
    png, svg = folder / f"{sheet.stem}.png", folder / f"{sheet.stem}.svg"
    figure.savefig(png, metadata=words)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpflows"}):
        figure.savefig(svg, metadata={**words, "Date": None})
    return [png, svg]


def _width(sheet: Sheet) -> float:
    return LEFT + len(sheet.columns) * (WIDE + GAP)


def _title_lines(sheet: Sheet) -> list[str]:
    """A value stands on the line of its name."""
    whole = sheet.title.replace(" = ", TOGETHER)
    lines = textwrap.wrap(whole, int(TITLE_LETTERS * _width(sheet)))
    return [line.replace(TOGETHER, " = ") for line in lines]


def _legend_columns(sheet: Sheet, names: Iterable[str]) -> int:
    return max(1, int(_width(sheet) / (0.75 + 0.07 * max(map(len, names)))))


def _heading(sheet: Sheet, row: str, column: str, chart: Chart) -> list[str]:
    """What stands above a panel: its column in the first row, its row where metrics are columns."""
    words = [column] if row == sheet.rows[0] else []
    words += [row] if column == sheet.columns[0] and row != chart.y_name else []
    return [line for text in words for line in textwrap.wrap(text, HEADING_LETTERS)]


def _draw(figure: Any, sheet: Sheet, looks: Mapping[str, Look]) -> dict[str, Any]:
    """The panels; returns the lines of the legend by name."""
    names = dict.fromkeys(
        line.name for chart in sheet.panels.values() for line in chart.panels[0].lines
    )
    legend = 0.15 + LINE_HEIGHT * -(-len(names) // _legend_columns(sheet, names)) * 1.25
    headings = {key: _heading(sheet, *key, chart) for key, chart in sheet.panels.items()}
    above = 0.2 + LINE_HEIGHT * (
        1.2 * len(_title_lines(sheet)) + max(len(words) for words in headings.values())
    )
    width, height = _width(sheet), above + len(sheet.rows) * (TALL + BELOW) + legend
    figure.set_size_inches(width, height)
    handles: dict[str, Any] = {}
    for (row, column), chart in sheet.panels.items():
        i, j = sheet.rows.index(row), sheet.columns.index(column)
        bottom = height - above - (i + 1) * TALL - i * BELOW
        axes = figure.add_axes(
            ((LEFT + j * (WIDE + GAP)) / width, bottom / height, WIDE / width, TALL / height)
        )
        for name, handle in _panel(axes, chart, looks, handles).items():
            handles.setdefault(name, handle)  # the order of references is that of their dashes
        axes.set_ylabel(chart.y_name if j == 0 or row != chart.y_name else "", fontsize=9)
        axes.set_title("\n".join(headings[row, column]), fontsize=8.5, loc="left", color=INK)
    return handles


def _panel(
    axes: Any, chart: Chart, looks: Mapping[str, Look], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Lines, bands and references of one panel without names; returns a line of each name."""
    from matplotlib.lines import Line2D

    draw_panel(axes, chart, chart.panels[0], looks)
    axes.xaxis.label.set_fontsize(9)
    handles: dict[str, Any] = {}
    for line in chart.panels[0].private:
        look = looks[line.label]
        dash: Any = "none" if chart.x_labels else look.dash
        handles[line.name] = Line2D(
            [], [], color=look.colour, marker=look.marker, markersize=4.5, linestyle=dash
        )
    across = [name for name, line in before.items() if line.get_color() == REFERENCE]
    for line in chart.panels[0].references:
        if line.name not in across:
            across.append(line.name)
        dash = REFERENCE_DASHES[across.index(line.name) % len(REFERENCE_DASHES)]
        handles[line.name] = axes.axhline(
            line.mean[0], color=REFERENCE, linestyle=(0, dash), linewidth=1.1, zorder=1
        )
    return handles


def save(chart: Chart, looks: Mapping[str, Look], folder: Path) -> list[Path]:
    """Draw ``chart`` and write STEM.png, .svg, .csv and .parquet; title and description travel
    inside the pictures.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=DPI)
    FigureCanvasAgg(figure)
    if len(chart.points) > 1:
        draw_lines(figure, chart, looks)
    else:
        draw_dots(figure, chart, looks)
    figure.suptitle(
        chart.title, x=0.012, ha="left", y=1 - 0.1 / figure.get_figheight(), va="top", fontsize=10
    )
    words = {"Title": chart.title, "Description": chart.description}
    png, svg = folder / f"{chart.stem}.png", folder / f"{chart.stem}.svg"
    figure.savefig(png, metadata=words)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpflows"}):
        figure.savefig(svg, metadata={**words, "Date": None})
    return [png, svg, *write_frame(chart.numbers(), folder / chart.stem)]


def description_of(png: Path) -> str:
    """What a picture written by ``save`` says of itself; the words of its name for any other
    picture.
    """
    from PIL import Image

    with Image.open(png) as image:
        text = image.info.get("Description")
    return str(text) if text else png.stem.replace("_", " ")


def write_frame(frame: pd.DataFrame, stem: Path) -> list[Path]:
    """Write ``stem``.csv and ``stem``.parquet."""
    csv, parquet = Path(f"{stem}.csv"), Path(f"{stem}.parquet")
    write_text(csv, frame.to_csv(index=False))
    beside = Path(f"{parquet}.part")
    frame.to_parquet(beside, index=False)
    return [csv, beside.replace(parquet)]


def write_text(path: Path, text: str) -> Path:
    """Write beside and rename: a reader never sees half a file."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    return beside.replace(path)
