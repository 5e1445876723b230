"""Terms of an additive model as SVG: a curve over a column's own units, bars by level, a map of a
cross.

Written by hand rather than plotted: a panel takes no measurable time, and it is as sharp on a phone
as on paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

import numpy as np

from dpcore.features import unit_interval
from dpcore.preprocess.terms import Axis, Term
from tasks.drawing import html

BLUE, ORANGE, GREEN, PINK, GREY, INK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#5f5f5f",
    "#1b1b1b",
)
COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY, INK)
WIDTH, HEIGHT = 440, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 40
LABELS = 150  # left margin of bars and maps, where names of levels stand
MOST_BARS = 16
LONGEST = 20  # letters of a level that are shown
LETTERS = 12  # high: at 320 CSS pixels, where a panel is shown smaller, still more than 8
FONT = "font-family='system-ui, sans-serif' font-size='13' fill='#1b1b1b'"


def term_svg(term: Term, outputs: Sequence[str] = ("",)) -> str:
    """One panel as a whole SVG document; ``outputs`` name the classes of a model of several."""
    return _document(WIDTH, HEIGHT, panel(term, outputs))


def sheet_svg(
    terms: Sequence[Term], title: str, outputs: Sequence[str] = ("",), across: int = 2
) -> str:
    """All panels in one document, the most important first, ``across`` in a row."""
    lines = ceil(len(terms) / across)
    heading = f"<text x='{LEFT}' y='20' {FONT} font-weight='600'>{escape(title)}</text>"
    inner = [heading]
    for k, term in enumerate(terms):
        place = f"translate({k % across * WIDTH}, {30 + k // across * HEIGHT})"
        inner.append(f"<g transform='{place}'>{panel(term, outputs)}</g>")
    return _document(across * WIDTH, 30 + max(lines, 1) * HEIGHT, "".join(inner))


def panel(term: Term, outputs: Sequence[str]) -> str:
    """The inside of one panel."""
    shown, note = term.values, ""
    if term.kind == "map" and len(term.values) > 1:
        chosen = int(np.argmax(np.ptp(term.values.reshape(len(term.values), -1), axis=1)))
        shown, note = term.values[chosen : chosen + 1], f" ({outputs[chosen]})"
    title = (
        f"<text x='8' y='18' {FONT} font-weight='600'>{escape(_short(term.name + note, 60))}</text>"
    )
    if term.kind == "curve":
        return title + _curve(term, outputs)
    if term.kind == "bars" and len(term.values) == 1:
        return title + _bars(term)
    if term.kind == "bars":
        return title + _map(term.values.T, term.axes[0], Axis("", labels=tuple(outputs)))
    return title + _map(shown[0], term.axes[0], term.axes[1])


def describe(term: Term, unit: str) -> str:
    """In words: where the term is lowest and highest."""
    values = term.values.reshape(len(term.values), -1)
    output = int(np.argmax(np.ptp(values, axis=1)))
    low, high = int(np.argmin(values[output])), int(np.argmax(values[output]))
    return (
        f"{term.name}: from {values[output][low]:+.2f} at {point_name(term, low)} to "
        f"{values[output][high]:+.2f} at {point_name(term, high)} ({unit})"
    )


def point_name(term: Term, place: int) -> str:
    """The point number ``place`` of a term in words: a level, a number, a pair."""
    shape = tuple(len(axis) for axis in term.axes)
    spots = np.unravel_index(place, shape)
    names = [
        axis.labels[i] if axis.labels else f"{(axis.numbers or ())[i]:.5g}"
        for axis, i in zip(term.axes, spots, strict=True)
    ]
    return " x ".join(names)


def _curve(term: Term, outputs: Sequence[str]) -> str:
    axis, places = term.axes[0], term.axes[0].places
    wide = np.zeros(len(axis)) if term.band is None else term.band
    low, high = float((term.values - wide).min()), float((term.values + wide).max())
    low, high = _roomy(low, high)

    def x(u: float) -> float:
        return LEFT + u * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(low, high, y)]

    def through(values: np.ndarray) -> list[tuple[float, float]]:
        return [(x(u), y(v)) for u, v in zip(places, values, strict=True)]

    if term.band is not None:
        around = through(term.values[0] + term.band) + through(term.values[0] - term.band)[::-1]
        parts.append(f"<polygon points='{_path(around)}' fill='{BLUE}' fill-opacity='0.18'/>")
    for colour, values in zip(COLOURS, term.values, strict=False):
        parts.append(
            f"<polyline points='{_path(through(values))}' fill='none' stroke='{colour}' "
            "stroke-width='1.6'/>"
        )
    if len(term.values) > 1:
        for k, name in enumerate(outputs[: len(COLOURS)]):
            parts.append(_text(WIDTH - RIGHT, TOP + 14 * k + 8, _short(name), "end", COLOURS[k]))
    for number in ticks(axis):
        u = float(unit_interval(np.array([number]), *_ends(axis), axis.log)[0])
        parts.append(_tick(x(u), number))
    return "".join(parts)


def _tick(place: float, number: float) -> str:
    """A mark on the axis below, with its number."""
    anchor = "end" if place > WIDTH - RIGHT - 20 else "middle"
    return (
        f"<line x1='{place:.1f}' x2='{place:.1f}' y1='{HEIGHT - BOTTOM}' "
        f"y2='{HEIGHT - BOTTOM + 4}' stroke='{GREY}'/>"
    ) + _text(place, HEIGHT - BOTTOM + 17, f"{number:.6g}", anchor)


def _bars(term: Term) -> str:
    labels, values = term.axes[0].labels or (), term.values[0]
    order = [int(k) for k in np.argsort(-np.abs(values))[:MOST_BARS]]
    order = sorted(order, key=lambda k: -values[k])
    band = np.zeros(len(values)) if term.band is None else term.band
    low, high = _around_zero((values - band)[order], (values + band)[order])
    step = (HEIGHT - TOP - 14) / max(len(order), 1)

    def x(value: float) -> float:
        return LABELS + (value - low) / (high - low) * (WIDTH - LABELS - 46)

    parts = [
        f"<line x1='{x(0):.1f}' x2='{x(0):.1f}' y1='{TOP}' y2='{HEIGHT - 14}' stroke='{GREY}'/>"
    ]
    for row, k in enumerate(order):
        top, value = TOP + row * step, float(values[k])
        left, right = sorted((x(0.0), x(value)))
        colour = BLUE if value >= 0 else ORANGE
        parts.append(
            f"<rect x='{left:.1f}' y='{top + 1:.1f}' width='{right - left:.1f}' "
            f"height='{step - 2:.1f}' fill='{colour}'/>"
        )
        if band[k] > 0:
            parts.append(_whisker(x(value - band[k]), x(value + band[k]), top + step / 2))
        parts.append(_text(LABELS - 6, top + step / 2 + 4, _short(labels[k]), "end"))
        parts.append(_text(x(max(value + band[k], 0.0)) + 4, top + step / 2 + 4, f"{value:+.2f}"))
    if len(labels) > len(order):
        parts.append(
            _text(
                8,
                HEIGHT - 3,
                f"{len(labels) - len(order)} levels closer to 0 are not shown",
                "start",
                GREY,
            )
        )
    return "".join(parts)


def _around_zero(lowest: np.ndarray, highest: np.ndarray) -> tuple[float, float]:
    """An interval that holds 0 and all values, of some length."""
    low, high = float(lowest.min(initial=0.0)), float(highest.max(initial=0.0))
    return (low, high) if low < high else (-1.0, 1.0)


def _whisker(left: float, right: float, y: float) -> str:
    ends = f"x1='{left:.1f}' x2='{right:.1f}'"
    return f"<line {ends} y1='{y:.1f}' y2='{y:.1f}' stroke='{INK}' stroke-width='1.2'/>"


def _map(values: np.ndarray, rows: Axis, columns: Axis) -> str:
    """Cells (rows, columns) from orange (lowest) over white (0) to blue."""
    most = max(float(np.abs(values).max()), 1e-12)
    across = (WIDTH - LABELS - RIGHT) / values.shape[1]
    down = (HEIGHT - TOP - BOTTOM) / values.shape[0]
    parts = []
    for (i, j), value in np.ndenumerate(values):
        corner = f"x='{LABELS + j * across:.2f}' y='{TOP + i * down:.2f}'"
        place = f"{corner} width='{across + 0.3:.2f}' height='{down + 0.3:.2f}'"
        parts.append(f"<rect {place} fill='{_shade(float(value) / most)}'/>")
    for i in _some(len(rows), 13):
        parts.append(_text(LABELS - 6, TOP + (i + 0.5) * down + 4, _name(rows, i), "end"))
    for j in _some(len(columns), 5):
        parts.append(
            _text(
                LABELS + (j + 0.5) * across,
                HEIGHT - BOTTOM + 15,
                _short(_name(columns, j), 7),
                "middle",
            )
        )
    parts.append(
        _text(
            8,
            HEIGHT - 6,
            f"{rows.name} down, {columns.name or 'class'} across; from {values.min():+.2f} to "
            f"{values.max():+.2f}",
            "start",
            GREY,
        )
    )
    return "".join(parts)


def _name(axis: Axis, place: int) -> str:
    return _short(axis.labels[place]) if axis.labels else f"{(axis.numbers or ())[place]:.4g}"


def _some(count: int, most: int) -> Sequence[int]:
    """At most ``most`` places, evenly spread."""
    return range(0, count, max(ceil(count / most), 1))


def _shade(share: float) -> str:
    """A colour between white (0) and blue (1) or orange (-1)."""
    full = (0, 114, 178) if share >= 0 else (213, 94, 0)
    return "#" + "".join(f"{round(255 + (one - 255) * abs(share)):02x}" for one in full)


def _ends(axis: Axis) -> tuple[float, float]:
    numbers = axis.numbers or (0.0, 1.0)
    return numbers[0], numbers[-1]


def ticks(axis: Axis) -> list[float]:
    """Ends of the declared range and a few round numbers between them, in the column's own unit."""
    low, high = _ends(axis)
    if high <= low:
        return [low]
    inner = [0.0] if low < 0 < high else []
    places = {low: 0.0, high: 1.0}
    for number in [*inner, *_round_numbers(low, high, axis.log)]:
        u = float(unit_interval(np.array([number]), low, high, axis.log)[0])
        if low < number < high and all(abs(u - other) > 0.13 for other in places.values()):
            places[number] = u
    return sorted(places)


def _round_numbers(low: float, high: float, log: bool) -> list[float]:
    """Powers of ten on either side, or six numbers of equal distance from ``low`` on."""
    if log:
        base = low if low > 0 else 0.0
        top = int(log10(max(abs(low), abs(high), 10.0)))
        return [base + sign * 10.0**k for sign in (1, -1) for k in range(1, top + 1)]
    step = _nice((high - low) / 4)
    return [ceil(low / step) * step + step * k for k in range(6)]


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** floor(log10(step))
    return next((k * power for k in (1, 2, 5) if k * power >= step), 10 * power)


def _roomy(low: float, high: float) -> tuple[float, float]:
    """The range of an axis with 0 in it and some air."""
    low, high = min(low, 0.0), max(high, 0.0)
    air = 0.06 * (high - low) or 1.0
    return low - air, high + air


def _grid(low: float, high: float, y: object) -> str:
    step, place = _nice((high - low) / 4), y
    assert callable(place)
    parts = []
    for k in range(ceil(low / step), floor(high / step) + 1):
        at = place(k * step)
        colour = GREY if k == 0 else "#d8dde3"
        parts.append(
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{at:.1f}' y2='{at:.1f}' "
            f"stroke='{colour}'/>"
        )
        parts.append(_text(LEFT - 6, at + 4, f"{k * step:.3g}", "end"))
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = INK) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-family='system-ui, sans-serif' font-size='{LETTERS}' "
        f"fill='{colour}' text-anchor='{anchor}'>{escape(text)}</text>"
    )


def _short(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _document(width: int, height: int, inner: str) -> str:
    box = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    paper = "<rect width='100%' height='100%' fill='white'/>"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {box}>{paper}{inner}</svg>"


def term_section(stored: Mapping[str, Any] | None, most: int) -> Iterator[str]:
    """Parts of a page from ``report/terms.json``, ``most`` terms drawn; none without."""
    if not stored:
        return
    terms = [Term.from_dict(one) for one in stored["terms"][:most]]
    unit, outputs = str(stored["unit"]), stored["outputs"]
    yield html.heading("What the model says")
    yield html.paragraph(
        f"A score is a constant and one term a column, in {unit}, the most important first. This "
        "follows from what was released, and may leave with the model."
    )
    yield html.beside(
        html.figure(
            term_svg(term, outputs).encode(),
            describe(term, unit),
            f"{term.name}: importance {term.importance:.3f}",
            WIDTH,
            "svg+xml",
        )
        for term in terms
    )
    left = len(stored["terms"]) - len(terms)
    if left:
        yield html.paragraph(f"{left} more terms are in report/terms.json.")
    for note in stored["notes"]:
        yield html.paragraph(str(note))
