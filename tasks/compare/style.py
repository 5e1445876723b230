"""How lines of a comparison look: colours that most eyes tell apart, markers, and labels that do not overlap."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Okabe & Ito (2008) without their yellow, which is lost on white paper. Markers and dashes tell more than seven apart.
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


def spread(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> np.ndarray:
    """Centres near ``wanted`` for boxes of ``heights`` that do not overlap, in the same order, within [low, high].

    Least squares under the order constraint (pool adjacent violators, Ayer et al. 1955), then moved into the range. Too
    many boxes for the range are packed from ``low`` upwards and leave it at the top.
    """
    order = np.argsort(wanted, kind="stable")
    size = np.asarray(heights, dtype=float)[order]
    below = np.concatenate([[0.0], np.cumsum(size)[:-1]]) + size / 2  # centre of a box when all are packed from 0
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


def label_at_right(panel: Any, ends: Sequence[tuple[str, float, float, str]], height: float) -> None:
    """Name lines at the right of ``panel``, with a thin leader from the end of each: (label, x, y, colour).

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
