"""The figure of one run, from released numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

# Axis titles of the numbers that algorithms note; others are shown under their own name.
TITLES = {"step_size": "step size", "noise_scale": "noise scale", "spent_epsilon": "epsilon spent"}
MOST_PANELS = 3


def budget_figure(trace: Sequence[Mapping[str, float]], title: str, delta: float, path: Path) -> None:
    """Draw epsilon spent so far against the release, and below it noted numbers that change; write a PNG to ``path``.

    ``trace`` has rows with ``release``, ``spent_epsilon`` and noted numbers, all of them public or released.
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
        panel.plot([row["release"] for row in rows], [row[key] for row in rows], color="#1f4e79", marker=marker)
        panel.set_ylabel(TITLES.get(key, key.replace("_", " ")))
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
