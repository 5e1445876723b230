"""Curves of metrics over the iterations of a ranker or network, as Fig. 5.5, 6.1 and 6.2 of Chen
(2020) show them.

The figure of one run, from released numbers alone; which points of a trace become curves, and under
which names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# A figure shows no more points than this, and one batch carries them.
CURVE_POINTS = 1000
CURVE = "curve."
TITLES = {"map": "MAP", "accuracy": "accuracy", "objective": "objective", "step_size": "step size"}

# Okabe & Ito (2008): told apart by most eyes, dark enough on white.
BLUE, ORANGE, GREEN, GREY, PALE = "#0072B2", "#D55E00", "#009E73", "#5f5f5f", "#c9d6e2"
INK = "#1b1b1b"
INCHES = 4.4
DPI = 200
LOOK: Any = {
    "font.size": 10,
    "axes.titlesize": 10,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
}


def canvas(height: float, rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure of the report's width with ``rows`` panels below each other; no display is
    needed.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(INCHES, height), layout="constrained")
        FigureCanvasAgg(figure)
        panels = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(colors=INK, labelsize=9)
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.set_axisbelow(True)
    return figure, panels


def mean_curves(
    rows: Sequence[Mapping[str, Any]], metric: str
) -> dict[str, tuple[list[int], np.ndarray]]:
    """Iterations and the mean of ``metric`` over folds and draws for each label whose rows hold a
    ``curve``.

    A point without a finite number counts for nothing: there is no mean where none has one.
    """
    values: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        for point in row.get("curve", ()):
            value = point.get(metric)
            if value is not None and math.isfinite(value):
                values.setdefault(row["label"], {}).setdefault(point["iteration"], []).append(value)
    return {
        label: (sorted(points), np.array([np.mean(points[t]) for t in sorted(points)]))
        for label, points in values.items()
    }


def curve_figure(
    rows: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, float],
    metric: str,
    title: str,
    path: Path,
) -> None:
    """Draw the mean curve of every label and the models without privacy as dashed lines; write a
    PNG to ``path``.

    Each of ``rows`` has a ``label`` and a ``curve`` of points with ``iteration`` and ``metric``;
    ``baselines`` are means by label. Exact metrics: internal where the records are private.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for label, (iterations, means) in mean_curves(rows, metric).items():
        panel.plot(iterations, means, label=label, linewidth=1.4)
    for number, (label, value) in enumerate(baselines.items()):
        panel.axhline(
            value, label=label, linestyle="--", linewidth=1.0, color=str(0.1 + 0.2 * (number % 4))
        )
    panel.set_xlabel("iteration")
    panel.set_ylabel(TITLES.get(metric, metric.upper().replace("_AT_", "@")))
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def curve_rows(folder: Path, report: str) -> list[dict[str, float]]:
    """The curve stored in ``report`` as trace rows; ``release`` counts the releases that the
    iterate has seen.
    """
    if not (folder / report).is_file():
        return []
    stored = json.loads((folder / report).read_text(encoding="utf-8"))
    prefix = "internal." if stored["internal"] else "released."
    return [
        {
            "release": row["iteration"],
            **{f"{prefix}{CURVE}{k}": v for k, v in row.items() if k != "iteration"},
        }
        for row in stored["curve"]
    ]


def written(folder: Path, report: str, figures: str) -> Iterable[str]:
    """``report`` and the pictures under ``figures`` that are in ``folder``, as relative names."""
    found = [folder / report, *sorted((folder / figures).glob("*.png"))]
    return [path.relative_to(folder).as_posix() for path in found if path.is_file()]


# Axis titles of the numbers that algorithms note; others are shown under their own name.
BUDGET_TITLES = {
    "step_size": "step size",
    "noise_scale": "noise scale",
    "spent_epsilon": "epsilon spent",
}
MOST_PANELS = 3


def budget_figure(
    trace: Sequence[Mapping[str, float]], title: str, delta: float, path: Path
) -> None:
    """Draw epsilon spent so far against the release, and below it noted numbers that change; write
    a PNG to ``path``.

    ``trace`` has rows with ``release``, ``spent_epsilon`` and noted numbers, all of them public or
    released.
    """
    # The object interface draws without a display and without pyplot's state, in any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    keys = ["spent_epsilon", *changing(trace)][:MOST_PANELS]
    figure = Figure(figsize=(7.0, 2.2 * len(keys) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
    for panel, key in zip(panels, keys, strict=True):
        rows = [row for row in trace if key in row]
        marker = "o" if len(rows) < 3 else None
        panel.plot(
            [row["release"] for row in rows],
            [row[key] for row in rows],
            color="#1f4e79",
            marker=marker,
        )
        panel.set_ylabel(BUDGET_TITLES.get(key, key.replace("_", " ")))
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].set_title(f"{title}\nepsilon at delta = {delta:g}", fontsize=10)
    panels[-1].set_xlabel("release")
    figure.savefig(path, dpi=120)


def changing(trace: Sequence[Mapping[str, float]]) -> list[str]:
    """Names of noted numbers that take more than one value, in the order in which they appear."""
    values: dict[str, set[float]] = {}
    for row in trace:
        for key, value in row.items():
            if key not in ("release", "spent_epsilon"):
                values.setdefault(key, set()).add(value)
    return [key for key, seen in values.items() if len(seen) > 1]


def curve_name(key: str) -> str:
    """``spent.epsilon``, a name that has its prefix already, or ``released.NAME``."""
    if key.startswith(("internal.", "released.")):
        return key
    return "spent.epsilon" if key == "spent_epsilon" else f"released.{key}"


def thin(rows: Sequence[Mapping[str, float]], most: int) -> list[Mapping[str, float]]:
    """At most ``most`` of ``rows``, evenly spread, with the first and the last one."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]
