"""Figures of a metric against one parameter of an algorithm, a line for each epsilon, as Fig. 5.1
of Chen (2020), and of time against the number of rows; what the figures of a comparison share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.compare.grouping import (
    RANKING,
    SECONDS,
    Comparable,
    Place,
    Record,
    Relation,
    done,
    lower_is_better,
    measured,
    number,
)
from tasks.compare.statistics import LEVEL, Summary, interval
from tasks.drawing.chart import MANY_DECADES, Chart, Line, Panel

DIFFERENT_SIZES = 1.5  # of the largest data set to the smallest, for time to be drawn against rows
UNTRAINED = ("majority", "mean_label")
NEIGHBOURS = {
    "add_remove": "one record more or fewer",
    "replace_one": "one record replaced",
    "replace_labels": "labels of one session replaced",
}


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
            stem=f"{stem}_{slug(metric)}_vs_{slug(effect['of'])}-{slug(effect['parameter'])}",
            title=f"{height} against {axis} of {effect['of']}: {setting.title}",
            description=" ".join(
                [
                    f"Mean {height} against {axis} of {effect['of']}, all else unchanged, for "
                    f"{setting.title}; bands: {LEVEL:.0%} interval.",
                    *_best_places(
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
            loss=setting.whole_loss,
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


def _best_places(panels: Sequence[Panel], names: Mapping[float, str], metric: str) -> Iterable[str]:
    """The best value of the parameter on every line, in words."""
    choose = min if lower_is_better(metric) else max
    for panel in panels:
        for line in panel.lines:
            value, x = choose(zip(line.mean, line.x, strict=True))
            yield f"{panel.title}, {line.label}: the best is at {names[x]} with {value:.4g}."


def time_against_rows(records: Sequence[Record]) -> Iterable[Chart]:
    """Seconds of a cell against the number of training rows, over all data, objectives and
    epsilons.

    The folds of a data set are one size. There is no chart where sizes do not differ, for a line
    through them would be the noise of the clock; lines that train nothing have no time to speak of.
    """
    sizes = sizes_of(records)
    if not sizes or max(sizes.values()) < DIFFERENT_SIZES * min(sizes.values()):
        return
    panels = list(_time_panels(records, sizes))
    if not panels:
        return
    data = ", ".join(f"{name} {n:g}" for name, n in sizes.items())
    yield chart_of(
        "seconds_vs_rows",
        "seconds against training rows",
        f"Mean wall-clock seconds of a cell against the number of training rows ({data}), over all "
        "objectives and epsilons; both axes logarithmic where they are long; time on this "
        "machine, with whatever else it did.",
        ("training rows", "seconds"),
        panels,
        True,
        logarithmic=max(sizes.values()) >= MANY_DECADES * min(sizes.values()),
        ticks_at_points=True,
    )


def _time_panels(records: Sequence[Record], sizes: Mapping[str, float]) -> Iterable[Panel]:
    """A panel for each relation that has times, and what has no privacy in the panel of the only
    one, as in Fig. 3.4 of Chen (2020), else in one of its own.
    """
    lines = {
        relation: _times_of(records, relation, sizes)
        for relation in [*relations(map(Place.of, records)), None]
    }
    private = [relation for relation in lines if relation is not None and lines[relation]]
    if len(private) == 1:
        yield Panel(panel_title(private[0]), (*lines[private[0]], *lines[None]))
        return
    for relation, found in lines.items():
        if found:
            yield Panel("without privacy" if relation is None else panel_title(relation), found)


def _times_of(
    records: Iterable[Record], relation: Relation | None, sizes: Mapping[str, float]
) -> tuple[Line, ...]:
    own = (record for record in records if Place.of(record).relation == relation)
    return tuple(_times(label, found) for label, found in _seconds_of(own, sizes).items())


def _seconds_of(
    records: Iterable[Record], sizes: Mapping[str, float]
) -> dict[str, dict[float, list[float]]]:
    """Seconds of the finished cells that train something, by label and number of rows."""
    points: dict[str, dict[float, list[float]]] = {}
    for record in filter(done, records):
        n, seconds = sizes.get(str(record.get("data"))), measured(record, SECONDS)
        if n and seconds is not None and seconds > 0 and record.get("algorithm") not in UNTRAINED:
            points.setdefault(Place.of(record).label, {}).setdefault(n, []).append(seconds)
    return points


def sizes_of(records: Sequence[Record]) -> dict[str, float]:
    """Training rows of a cell by data set: the median over its finished cells."""
    found: dict[str, list[float]] = {}
    for record in records:
        if done(record) and (n := number(record.get("n"))):
            found.setdefault(str(record.get("data")), []).append(n)
    return {name: float(np.median(values)) for name, values in found.items()}


def _times(label: str, found: Mapping[float, Sequence[float]]) -> Line:
    bounds = [interval(np.array(found[n])) for n in sorted(found)]
    low, high = zip(*bounds, strict=True)
    return Line(
        label,
        tuple(sorted(found)),
        tuple(float(np.mean(found[n])) for n in sorted(found)),
        low,
        high,
    )


def chart_of(
    stem: str,
    title: str,
    description: str,
    names: tuple[str, str],
    panels: Sequence[Panel],
    smaller: bool,
    *,
    logarithmic: bool = True,
    ticks_at_points: bool = False,
    setting: Comparable | None = None,
) -> Chart:
    told = " ".join([description, *(_told(panel, names[0], smaller) for panel in panels)])
    return Chart(
        stem,
        title,
        told,
        *names,
        tuple(panels),
        logarithmic,
        ticks_at_points,
        smaller,
        setting=setting.title if setting else "",
        loss=setting.whole_loss if setting else "",
    )


def _told(panel: Panel, x_name: str, smaller: bool) -> str:
    """The best at both ends of the axis, in words: what a reader who sees no picture wants to
    know.
    """
    ends = sorted({x for line in panel.private for x in line.x})
    sentences = []
    for x in dict.fromkeys([ends[0], ends[-1]] if ends else []):
        at = [(line.mean[line.x.index(x)], line.label) for line in panel.private if x in line.x]
        value, label = min(at) if smaller else max(at)
        sentences.append(f"at {x_name} {x:g} the best is {label} with {value:.4g}")
    sentences += [f"{line.label} has {line.mean[0]:.4g}" for line in panel.references]
    return f"{panel.title}: {'; '.join(sentences)}."


def relations(places: Iterable[Place]) -> list[Relation]:
    return sorted({place.relation for place in places if place.relation is not None})


def panel_title(relation: Relation, setting: Comparable | None = None) -> str:
    meaning = NEIGHBOURS.get(relation.adjacency)
    if meaning and setting is not None and setting.loss == RANKING:
        meaning = meaning.replace("record", "session")
    return f"{relation.title}" + (f" ({meaning})" if meaning else "")


def slug(text: str) -> str:
    """``text`` as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.").lower() or "unnamed"
