"""Which figures a comparison has: metrics against epsilon and iterations, time against the number
of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tasks.compare.effects import (
    against_parameters,
    chart_of,
    line_labels,
    panel_title,
    relations,
    slug,
    time_against_rows,
    varied,
)
from tasks.compare.grouping import (
    SECONDS,
    Comparable,
    Place,
    Record,
    done,
    lower_is_better,
    metrics_of,
    number,
)
from tasks.compare.statistics import LEAST, LEVEL, Summary, interval, summarise
from tasks.compare.variants import price_words
from tasks.drawing import metric_title
from tasks.drawing.chart import Chart, Line, Panel, looks
from tasks.drawing.sheet import save, save_sheet, sheets

CURVE_EPSILONS = 3  # curves are drawn at the least, the middle and the largest epsilon
LONG_RUNS = 20.0  # iterations of a larger ratio are shown on a logarithmic axis


def write_figures(records: Sequence[Record], folder: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Draw all figures that the cells admit; returns the files (PNG, SVG, CSV, Parquet of each),
    none without numbers. Sheets of several figures come first, as PNG and SVG.

    Metrics are those of ``facts["metrics"]``, or all. Every adjacency and delta has a panel of its
    own; algorithms without privacy are lines across.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = [Place.of(record) for record in records]
    lines = line_labels(facts, (place.epsilon for place in places if place.epsilon is not None))
    styles = looks(place.label for place in places) | looks(lines)
    charts = list(all_charts(records, facts))
    for index, chart in enumerate(charts):
        if chart.stem in {other.stem for other in charts[:index]}:
            raise ValueError(f"two figures are named {chart.stem!r}")
    written = [save_sheet(sheet, styles, folder) for sheet in sheets(charts)]
    written += [save(chart, styles, folder) for chart in charts]
    return list(chain.from_iterable(written))


def all_charts(records: Sequence[Record], facts: Mapping[str, Any]) -> Iterable[Chart]:
    """The charts, in the order of the page: by setting, against epsilon, iterations and varied
    parameters; then time.

    Runs with another value of a varied parameter stand in the charts of that parameter alone.
    """
    own = varied(facts)
    settings = list(dict.fromkeys(Comparable.of(record) for record in records))
    stems = _stems(settings)
    main = [record for record in records if Place.of(record).label not in own]
    for metric in _drawn(records, facts):
        summaries = summarise(records, metric, facts)
        for setting in settings:
            every = _known_of(setting, summaries)
            printed = printed_lines(facts, setting.data, metric)
            here = [summary for summary in every if summary.place.label not in own]
            yield from _against_epsilon(setting, metric, here, stems[setting], printed)
            mine = [record for record in main if Comparable.of(record) == setting]
            yield from _against_steps(setting, metric, mine, here, stems[setting], printed)
            yield from against_parameters(setting, metric, every, stems[setting], facts)
    yield from time_against_rows(main)


def _drawn(records: Sequence[Record], facts: Mapping[str, Any]) -> list[str]:
    """The metrics that get charts: those that the comparison names, else all; time has a chart of
    its own. What is only noted along the iterations, as a step size, has one where it is named.
    """
    found = [name for name in metrics_of(records, facts) if name != SECONDS]
    wanted = set(facts.get("metrics") or ()) - {SECONDS}
    if not wanted:
        return found
    return [name for name in (*found, *_noted(records, wanted.difference(found))) if name in wanted]


def _noted(records: Iterable[Record], wanted: Container[str]) -> list[str]:
    """Names of ``wanted`` that points of curves have, in the order of appearance."""
    points = (point for record in records for point in record.get("curve") or ())
    return list(dict.fromkeys(name for point in points for name in point if name in wanted))


def printed_lines(facts: Mapping[str, Any], data: str, metric: str) -> tuple[Line, ...]:
    """What a source prints of ``metric`` on ``data``, as lines across without an interval."""
    return tuple(
        Line(line["label"], (), (float(line["value"]),), (None,), (None,), reference=True)
        for line in facts.get("printed") or ()
        if line["metric"] == metric and line["data"] in (None, data)
    )


def _against_epsilon(
    setting: Comparable,
    metric: str,
    here: Sequence[Summary],
    stem: str,
    printed: tuple[Line, ...],
) -> Iterable[Chart]:
    panels = list(_epsilon_panels(setting, here, printed))
    if not panels and (across := (*_references(here), *printed)):
        panels = [Panel("without privacy", across)]
    if not panels:
        return
    few = f"fewer than {LEAST} cells a point: no interval"
    spread = f"bands: {LEVEL:.0%} interval" if _has_interval(here) else few
    yield chart_of(
        f"{stem}_{slug(metric)}_vs_epsilon",
        f"{metric_title(metric)} against epsilon: {setting.title}",
        f"Mean {metric_title(metric)} over {_cells(here)} against epsilon for {setting.title}; "
        f"{spread}.",
        ("epsilon", metric_title(metric)),
        panels,
        lower_is_better(metric),
        ticks_at_points=True,
        setting=setting,
    )


def _epsilon_panels(
    setting: Comparable, here: Sequence[Summary], printed: tuple[Line, ...]
) -> Iterable[Panel]:
    """A panel for each relation, with a line for each algorithm."""
    for relation in relations(summary.place for summary in here):
        points: dict[str, list[Summary]] = {}
        for summary in here:
            if summary.place.relation == relation and summary.epsilon is not None:
                points.setdefault(summary.place.label, []).append(summary)
        lines = [_line(label, sorted(found, key=_epsilon)) for label, found in points.items()]
        yield Panel(panel_title(relation, setting), (*lines, *_references(here), *printed))


def _against_steps(
    setting: Comparable,
    metric: str,
    mine: Sequence[Record],
    here: Sequence[Summary],
    stem: str,
    printed: tuple[Line, ...],
) -> Iterable[Chart]:
    """The metric against the iteration, at no more than ``CURVE_EPSILONS`` values of epsilon."""
    across = (*_references(here), *printed)
    panels = list(_step_panels(setting, _curves(mine, metric), mine, across))
    if not panels:
        return
    steps = [x for panel in panels for line in panel.private for x in line.x]
    yield chart_of(
        f"{stem}_{slug(metric)}_vs_iterations",
        f"{metric_title(metric)} against iterations: {setting.title}",
        f"Mean {metric_title(metric)} over cells against the iteration for {setting.title}; after "
        f"its last iteration a cell counts with its last value; bands: {LEVEL:.0%} interval.",
        ("iteration", metric_title(metric)),
        panels,
        lower_is_better(metric),
        logarithmic=min(steps) > 0 and max(steps) / min(steps) > LONG_RUNS,
        setting=setting,
    )


def _curves(mine: Sequence[Record], metric: str) -> dict[Place, list[dict[int, float]]]:
    """The finite points (step, metric) of each finished private cell, by the line that it belongs
    to.
    """
    curves: dict[Place, list[dict[int, float]]] = {}
    for record in filter(done, mine):
        points = {
            int(point["step"]): number(point.get(metric)) for point in record.get("curve") or ()
        }
        finite = {step: value for step, value in points.items() if value is not None}
        if finite and Place.of(record).relation is not None:
            curves.setdefault(Place.of(record), []).append(finite)
    return curves


def _step_panels(
    setting: Comparable,
    curves: Mapping[Place, list[dict[int, float]]],
    mine: Sequence[Record],
    across: tuple[Line, ...],
) -> Iterable[Panel]:
    """A panel for each relation and level; a single release has no way to be shown."""
    for relation in relations(curves):
        for name, chosen in _levels(curves):
            shown = {
                p: found for p, found in curves.items() if p.relation == relation and chosen(p)
            }
            lines = [mean_curve(place.label, found) for place, found in shown.items()]
            lines = [line for line in lines if len(line.x) > 1]
            if lines:
                title = f"{name}, {panel_title(relation, setting)}"
                yield Panel(title, (*lines, *across), price_of(mine, shown))


def _levels(curves: Iterable[Place]) -> list[tuple[str, Callable[[Place], bool]]]:
    """What has a panel of its own: some values of epsilon, and every noise that was given."""
    places = list(curves)
    epsilons = _few(sorted({place.epsilon for place in places if place.epsilon is not None}))
    noises = sorted({place.noise for place in places if place.noise is not None})
    found = [
        (f"epsilon = {value:g}", lambda place, value=value: place.epsilon == value)
        for value in epsilons
    ]
    return [
        *found,
        *(
            (f"noise = {value:g}", lambda place, value=value: place.noise == value)
            for value in noises
        ),
    ]


def price_of(records: Sequence[Record], places: Container[Place]) -> str:
    """What epsilon comes to at given noise, in words; empty where epsilon is what was asked."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        place = Place.of(record)
        if place.noise is not None and place in places:
            curves.setdefault(place.label, []).extend(record.get("curve") or ())
    return price_words(curves)


def mean_curve(label: str, cells: Sequence[Mapping[int, float]]) -> Line:
    """Mean over cells at every iteration from the first that all have; a cell that ended keeps its
    last value.
    """
    start = max(min(cell) for cell in cells)
    steps = sorted({step for cell in cells for step in cell if step >= start} | {start})
    table = np.array([_carried(cell, steps) for cell in cells])
    bounds = [interval(column) for column in table.T]
    low, high = zip(*bounds, strict=True)
    return Line(label, tuple(map(float, steps)), tuple(map(float, table.mean(axis=0))), low, high)


def _carried(cell: Mapping[int, float], steps: Sequence[int]) -> np.ndarray:
    own = np.array(sorted(cell))
    values = np.array([cell[step] for step in own])
    return values[np.searchsorted(own, steps, side="right") - 1]


def _known_of(setting: Comparable, summaries: Iterable[Summary]) -> list[Summary]:
    return [one for one in summaries if one.place.setting == setting and one.mean is not None]


def _references(here: Iterable[Summary]) -> tuple[Line, ...]:
    """Algorithms without privacy, the majority class among them, as lines across."""
    return tuple(
        Line(
            summary.place.label,
            (),
            (summary.mean,),
            (summary.low,),
            (summary.high,),
            reference=True,
        )
        for summary in here
        if summary.place.relation is None and summary.mean is not None
    )


def _line(label: str, found: Sequence[Summary]) -> Line:
    return Line(
        label,
        tuple(map(_epsilon, found)),
        tuple(summary.mean for summary in found if summary.mean is not None),
        tuple(summary.low for summary in found),
        tuple(summary.high for summary in found),
    )


def _epsilon(summary: Summary) -> float:
    assert summary.epsilon is not None
    return float(summary.epsilon)


def _has_interval(here: Iterable[Summary]) -> bool:
    return any(summary.low is not None for summary in here)


def _cells(here: Sequence[Summary]) -> str:
    counts = sorted({summary.cells for summary in here})
    return f"{counts[0]} cells" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} cells"


def _few(values: Sequence[float]) -> list[float]:
    if len(values) <= CURVE_EPSILONS:
        return list(values)
    return [values[0], values[len(values) // 2], values[-1]]


def _stems(settings: Sequence[Comparable]) -> dict[Comparable, str]:
    """A file stem for each setting, numbered where two would be equal."""
    stems: dict[Comparable, str] = {}
    for setting in settings:
        parts = [
            setting.data,
            setting.loss,
            *([setting.loss_parameters] if setting.loss_parameters != "{}" else []),
        ]
        parts += [
            f"{name}-{value:g}" for name, value in (("l1", setting.l1), ("l2", setting.l2)) if value
        ]
        wanted = slug("-".join(parts))
        taken = set(stems.values())
        stems[setting] = next(
            name
            for name in (wanted, *(f"{wanted}-{k}" for k in range(2, len(settings) + 2)))
            if name not in taken
        )
    return stems
