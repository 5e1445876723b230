"""One figure: lines over a common axis, one panel for each guarantee. matplotlib is imported when
it draws.

How lines of a comparison look: colours that most eyes tell apart, markers, and labels that do not
overlap.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

# Okabe & Ito (2008) without their yellow, which is lost on white paper. Markers and dashes tell
# more than seven apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*X<>ph"
DASHES = ("-", "--", "-.", ":")
INK = "#1b1b1b"
REFERENCE = "#5f5f5f"
LABEL_WIDTH = 26  # letters
LINE_HEIGHT = 0.165  # inches, at the size of labels
LABEL_SIZE = 8


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker and dash of one algorithm: the same in every figure of a comparison."""

    colour: str
    marker: str
    dash: str


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for each label, in their order; the first 84 are distinct."""
    names = list(dict.fromkeys(labels))
    return {
        label: Look(
            COLOURS[index % len(COLOURS)],
            MARKERS[index % len(MARKERS)],
            DASHES[index // len(COLOURS) % len(DASHES)],
        )
        for index, label in enumerate(names)
    }


def wrapped(label: str) -> str:
    """A label on lines of at most ``LABEL_WIDTH`` letters; nothing is cut off."""
    return "\n".join(textwrap.wrap(label, LABEL_WIDTH, break_on_hyphens=False)) or "(no name)"


def spread(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float
) -> np.ndarray:
    """Centres near ``wanted`` for boxes of ``heights`` that do not overlap, in the same order,
    within [low, high].

    Least squares under the order constraint (pool adjacent violators, Ayer et al. 1955), then moved
    into the range. Too many boxes for the range are packed from ``low`` upwards and leave it at the
    top.
    """
    order = np.argsort(wanted, kind="stable")
    size = np.asarray(heights, dtype=float)[order]
    # centre of a box when all are packed from 0
    below = np.concatenate([[0.0], np.cumsum(size)[:-1]]) + size / 2
    pools: list[tuple[float, int]] = []
    for offset in np.asarray(wanted, dtype=float)[order] - below:
        mean, count = float(offset), 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (before * many + mean * count) / (many + count), count + many
        pools.append((mean, count))
    shift = np.repeat([mean for mean, _ in pools], [count for _, count in pools])
    shift = np.maximum(np.minimum(shift, high - size.sum()), low)
    centres = np.empty(len(size))
    centres[order] = shift + below
    return centres


def label_at_right(
    panel: Any, ends: Sequence[tuple[str, float, float, str]], height: float
) -> None:
    """Name lines at the right of ``panel``, with a thin leader from the end of each: (label, x, y,
    colour).

    ``height`` is that of the panel in inches; axis limits must be final.
    """
    texts = [wrapped(label) for label, *_ in ends]
    sizes = [(text.count("\n") + 1) * LINE_HEIGHT / height for text in texts]
    to_axes = panel.transData + panel.transAxes.inverted()
    places = [to_axes.transform((x, y)) for _, x, y, _ in ends]
    centres = spread([min(1.0, max(0.0, float(place[1]))) for place in places], sizes, 0.0, 1.0)
    for (_, x, y, colour), text, centre in zip(ends, texts, centres, strict=True):
        panel.annotate(
            text,
            xy=(x, y),
            xytext=(1.09, centre),
            textcoords="axes fraction",
            va="center",
            fontsize=LABEL_SIZE,
            color=INK,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.9,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def label_height(labels: Iterable[str]) -> float:
    """Inches that the labels of a panel need."""
    return sum((wrapped(label).count("\n") + 1) * LINE_HEIGHT for label in labels)


LEFT, WIDE, RIGHT = 0.85, 4.0, 2.45  # inches: axis names, panel, labels
TALL, ABOVE, BELOW, HEAD = 3.0, 0.42, 0.62, 0.42
DPI = 150
MANY_DECADES = 20.0  # a positive axis of a larger ratio is logarithmic


@dataclass(frozen=True, slots=True)
class Line:
    """Means of one algorithm at ``x``, with an interval where there is one. A reference has one
    mean and no x. ``words`` say what a line has of its own beside others of its panel.
    """

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    reference: bool = False
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.label} ({', '.join(self.words)})" if self.words else self.label


@dataclass(frozen=True, slots=True)
class Panel:
    """What may share axes: one adjacency and one delta, said in ``title``; ``note`` stands below
    it.
    """

    title: str
    lines: tuple[Line, ...]
    note: str = ""

    @property
    def private(self) -> list[Line]:
        return [line for line in self.lines if not line.reference]

    @property
    def references(self) -> list[Line]:
        return [line for line in self.lines if line.reference]


@dataclass(frozen=True, slots=True)
class Chart:
    """``stem`` names the files; ``description`` says in words what is seen. ``logarithmic`` is
    about the x axis.

    ``x_labels`` name places 0, 1, ... where x is no number; their points are not joined.
    ``setting`` says on what data and objective, for a sheet of several charts; ``loss`` is its part
    that names the loss.
    """

    stem: str
    title: str
    description: str
    x_name: str
    y_name: str
    panels: tuple[Panel, ...]
    logarithmic: bool = True
    ticks_at_points: bool = False
    low_at_left: bool = False
    x_labels: tuple[str, ...] = ()
    setting: str = ""
    loss: str = ""

    @property
    def points(self) -> list[float]:
        """All x at which something was measured."""
        return sorted({x for panel in self.panels for line in panel.private for x in line.x})

    @property
    def values(self) -> np.ndarray:
        """All means and interval ends."""
        ends = [
            value
            for panel in self.panels
            for line in panel.lines
            for series in (line.mean, line.low, line.high)
            for value in series
            if value is not None
        ]
        return np.array(ends, dtype=float)

    def numbers(self) -> pd.DataFrame:
        """One row for each point that is drawn."""
        rows = [
            {"panel": panel.title, "label": line.label, self.x_name: self._named(x), "mean": mean}
            | {"low": low, "high": high}
            for panel in self.panels
            for line in panel.lines
            for x, mean, low, high in zip(
                line.x or (None,), line.mean, line.low, line.high, strict=True
            )
        ]
        frame = pd.DataFrame(rows, columns=["panel", "label", self.x_name, "mean", "low", "high"])
        numeric = ["mean", "low", "high", *([] if self.x_labels else [self.x_name])]
        return frame.astype({"panel": str, "label": str}).astype(dict.fromkeys(numeric, float))

    def _named(self, x: float | None) -> float | str | None:
        return x if x is None or not self.x_labels else self.x_labels[int(x)]


def _stacked(
    figure: Any, widths: tuple[float, float, float], heights: Sequence[float]
) -> list[Any]:
    """Axes below each other, of the given heights in inches; the figure grows with them."""
    left, wide, right = widths
    whole = HEAD + sum(height + ABOVE + BELOW for height in heights)
    figure.set_size_inches(left + wide + right, whole)
    panels, top = [], whole - HEAD
    for height in heights:
        box = (
            left / (left + wide + right),
            (top - ABOVE - height) / whole,
            wide / (left + wide + right),
        )
        panels.append(figure.add_axes((*box, height / whole)))
        top -= height + ABOVE + BELOW
    return panels


def draw_lines(figure: Any, chart: Chart, looks: Mapping[str, Look]) -> None:
    heights = [
        max(TALL, 1.05 * label_height(line.label for line in panel.lines)) for panel in chart.panels
    ]
    axes = _stacked(figure, (LEFT, WIDE, RIGHT), heights)
    for panel, shown, height in zip(axes, chart.panels, heights, strict=True):
        ends = draw_panel(panel, chart, shown, looks)
        panel.set(ylabel=chart.y_name)
        _heading(panel, shown)
        right = panel.get_xlim()[1]
        for line in shown.references:
            panel.axhline(
                line.mean[0], color=REFERENCE, linestyle=(0, (5, 3)), linewidth=1.1, zorder=1
            )
            ends.append((line.label, right, line.mean[0], REFERENCE))
        label_at_right(panel, ends, height)


def draw_panel(
    panel: Any, chart: Chart, shown: Panel, looks: Mapping[str, Look]
) -> list[tuple[str, float, float, str]]:
    """Axes and private lines of one panel of ``chart``; returns what their labels need."""
    limits = _limits(chart)
    _x_axis(panel, chart)
    _plain_axis(panel.yaxis, limits, panel.set_yscale)
    panel.set_ylim(*limits[:2])
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    return [_curve(panel, line, looks[line.label], not chart.x_labels) for line in shown.private]


def _curve(panel: Any, line: Line, look: Look, joined: bool) -> tuple[str, float, float, str]:
    """Draw a line with its band, or points with bars; returns what its label needs."""
    x, mean = np.array(line.x), np.array(line.mean)
    low = np.array([np.nan if value is None else value for value in line.low])
    high = np.array([np.nan if value is None else value for value in line.high])
    if joined:
        panel.fill_between(x, low, high, color=look.colour, alpha=0.14, linewidth=0)
    else:
        panel.vlines(x, low, high, color=look.colour, alpha=0.5, linewidth=2.2)
    few = len(x) <= 25
    panel.plot(
        x, mean, color=look.colour, linestyle=look.dash if joined else "none", linewidth=1.5,
        marker=look.marker, markersize=4.5,
        markevery=1 if few else max(1, len(x) // 8), markeredgecolor="white", markeredgewidth=0.4,
    )  # fmt: skip
    return line.label, float(x[-1]), float(mean[-1]), look.colour


def _line_height(line: Line) -> float:
    return 0.12 + LINE_HEIGHT * (wrapped(line.label).count("\n") + 1)


def draw_dots(figure: Any, chart: Chart, looks: Mapping[str, Look]) -> None:
    """With a single x there is no line to draw: one row for each algorithm, the best on top."""
    rows = [
        sorted(panel.lines, key=lambda line: line.mean[0], reverse=chart.low_at_left)
        for panel in chart.panels
    ]
    heights = [max(0.8, 0.18 + sum(map(_line_height, lines))) for lines in rows]
    limits = _limits(chart)
    for panel, shown, lines in zip(
        _stacked(figure, (RIGHT, WIDE, 0.3), heights), chart.panels, rows, strict=True
    ):
        tops = np.concatenate([[0.0], np.cumsum(list(map(_line_height, lines)))])
        places = (tops[:-1] + tops[1:]) / 2
        for line, place in zip(lines, places, strict=True):
            _dot(panel, line, float(place), None if line.reference else looks[line.label])
        panel.set_yticks(places, [wrapped(line.label) for line in lines], fontsize=8)
        panel.set_ylim(-0.09, tops[-1] + 0.09)
        _plain_axis(panel.xaxis, limits, panel.set_xscale)
        panel.set_xlim(*limits[:2])
        where = f" at {chart.x_name} {chart.points[0]:g}" if chart.points else ""
        panel.set_xlabel(f"{chart.y_name}{where}")
        _heading(panel, shown)


def _dot(panel: Any, line: Line, place: float, look: Look | None) -> None:
    colour = look.colour if look else REFERENCE
    [mean], [low], [high] = line.mean, line.low, line.high
    if look is None:
        panel.axvline(mean, color=REFERENCE, linestyle=(0, (5, 3)), linewidth=0.9, zorder=1)
    if low is not None and high is not None:
        panel.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
    panel.plot(
        [mean], [place], marker=look.marker if look else "|", color=colour,
        markersize=6.5, linestyle="none",
    )  # fmt: skip


def _limits(chart: Chart) -> tuple[float, float, bool]:
    """Ends of the axis of values, the same in all panels, and whether it is logarithmic."""
    values = chart.values
    low, high = float(values.min()), float(values.max())
    if chart.low_at_left and low > 0 and high / low > MANY_DECADES:
        return low / 1.3, high * 1.3, True
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin, False


def _plain_axis(axis: Any, limits: tuple[float, float, bool], set_scale: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    if limits[2]:
        set_scale("log")
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.grid(True, alpha=0.25, linewidth=0.6)
    axis.set_tick_params(labelsize=8)


def _x_axis(panel: Any, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    points = np.array(chart.points)
    panel.set_xlabel(chart.x_name + (" (log axis)" if chart.logarithmic else ""))
    panel.xaxis.grid(True, alpha=0.25, linewidth=0.6)
    panel.tick_params(axis="x", labelsize=8)
    if not chart.logarithmic:
        margin = 0.05 * (points[-1] - points[0]) if chart.ticks_at_points else 0.0
        panel.set_xlim(points[0] - margin, points[-1] + margin)
        if chart.x_labels:
            panel.set_xticks(range(len(chart.x_labels)), chart.x_labels)
        elif chart.ticks_at_points:
            panel.set_xticks(_apart(points, points))
        return
    panel.set_xscale("log")
    margin = (points[-1] / points[0]) ** 0.03
    panel.set_xlim(points[0] / margin, points[-1] * margin)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if chart.ticks_at_points:
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.minorticks_off()
        panel.set_xticks(_apart(points, np.log(points)))


def _apart(points: np.ndarray, places: np.ndarray) -> list[float]:
    """Points that leave room for their numbers on an axis where they stand at ``places``: a tenth
    of its width each.
    """
    kept, last = [float(points[0])], places[0]
    for x, place in zip(points[1:], places[1:], strict=True):
        if place - last >= (places[-1] - places[0]) / 10.0:
            kept.append(float(x))
            last = place
    return kept


def _heading(panel: Any, shown: Panel) -> None:
    panel.set_title(
        "\n".join(filter(None, (shown.title, shown.note))), fontsize=9, loc="left", color=INK
    )
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
