"""Figures of a metric against one parameter of an algorithm, a line for each epsilon, as Fig. 5.1
of Chen (2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.compare.grouping import Comparable, Relation, lower_is_better
from tasks.compare.statistics import LEVEL, Summary
from tasks.drawing.chart import MANY_DECADES, Chart, Line, Panel


def line_label(epsilon: float) -> str:
    """The name of the line of one epsilon."""
    return f"epsilon = {epsilon:g}"


def line_labels(facts: Mapping[str, Any], epsilons: Iterable[float]) -> list[str]:
    """Names of all lines of these figures."""
    return (
        [line_label(epsilon) for epsilon in sorted(set(epsilons))] if facts.get("effects") else []
    )


def varied(facts: Mapping[str, Any]) -> set[str]:
    """Labels of runs that stand in these figures alone: an entry with another value of a
    parameter.
    """
    return {
        label
        for effect in facts.get("effects") or ()
        for label in effect["labels"]
        if label != effect["of"]
    }


def against_parameters(
    setting: Comparable, metric: str, here: Sequence[Summary], stem: str, facts: Mapping[str, Any]
) -> Iterable[Chart]:
    """A chart for each varied parameter: ``metric`` in one ``setting`` against its values.

    ``facts["effects"]`` lists what is varied (``variation.Effect``); values that are no numbers are
    named on the axis.
    """
    for effect in facts.get("effects") or ():
        places, names = _axis(effect["values"])
        panels = _panels(here, dict(zip(effect["labels"], places, strict=True)))
        if not panels:
            continue
        axis, height = effect["parameter"].replace("_", " "), metric.replace("_", " ")
        yield Chart(
            stem=f"{stem}_{_slug(metric)}_vs_{_slug(effect['of'])}-{_slug(effect['parameter'])}",
            title=f"{height} against {axis} of {effect['of']}: {setting.title}",
            description=" ".join(
                [
                    f"Mean {height} against {axis} of {effect['of']}, all else unchanged, for "
                    f"{setting.title}; bands: {LEVEL:.0%} interval.",
                    *_told(
                        panels,
                        dict(zip(places, names or map("{:g}".format, places), strict=True)),
                        metric,
                    ),
                ]
            ),
            x_name=axis,
            y_name=height,
            panels=tuple(panels),
            logarithmic=not names and min(places) > 0 and max(places) / min(places) >= MANY_DECADES,
            ticks_at_points=True,
            low_at_left=lower_is_better(metric),
            x_labels=names,
            setting=setting.title,
        )


def _axis(values: Sequence[Any]) -> tuple[list[float], tuple[str, ...]]:
    """Where values stand on the axis, and their names where they are no numbers."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], ()
    names = tuple("by rule" if value is None else str(value) for value in values)
    return [float(index) for index in range(len(values))], names


def _panels(here: Sequence[Summary], places: Mapping[str, float]) -> list[Panel]:
    lines: dict[Relation, dict[float, list[tuple[float, Summary]]]] = {}
    for summary in here:
        relation, epsilon = summary.place.relation, summary.place.epsilon
        if summary.place.label in places and relation is not None and epsilon is not None:
            x = places[summary.place.label]
            lines.setdefault(relation, {}).setdefault(float(epsilon), []).append((x, summary))
    return [
        Panel(relation.title, tuple(_line(epsilon, found) for epsilon, found in sorted(of.items())))
        for relation, of in sorted(lines.items())
    ]


def _line(epsilon: float, found: Sequence[tuple[float, Summary]]) -> Line:
    points = sorted(found, key=lambda point: point[0])
    return Line(
        line_label(epsilon),
        tuple(x for x, _ in points),
        tuple(summary.mean for _, summary in points if summary.mean is not None),
        tuple(summary.low for _, summary in points),
        tuple(summary.high for _, summary in points),
    )


def _told(panels: Sequence[Panel], names: Mapping[float, str], metric: str) -> Iterable[str]:
    """The best value of the parameter on every line, in words."""
    choose = min if lower_is_better(metric) else max
    for panel in panels:
        for line in panel.lines:
            value, x = choose(zip(line.mean, line.x, strict=True))
            yield f"{panel.title}, {line.label}: the best is at {names[x]} with {value:.4g}."


def _slug(text: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter == "." else "-" for letter in text.lower())
    return "-".join(part for part in kept.split("-") if part) or "unnamed"
