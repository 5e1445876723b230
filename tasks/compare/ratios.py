"""Our algorithms beside other libraries: utility and speed as ratios, over the folds that both have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tasks.compare.grouping import SECONDS, Place, Record, collect, done, measured, metrics_of
from tasks.compare.table import Cell, sortable
from tasks.peers.catalogue import PEERS

CAPTION = (
    "Same data, folds, adjacency, delta and epsilon. Ratio: mean of our algorithm over mean of the library. Times "
    "faster: seconds of the library's fastest training on these folds over ours, one thread each, without planning and "
    "calibration; above 1 ours is faster."
)


@dataclass(frozen=True)
class Ratio:
    """One algorithm against one library at one guarantee.

    ``ours`` and ``theirs`` are means of ``metric`` over the ``cells`` (repeat, fold) that both have, ``ratio`` is
    ours / theirs; ``seconds`` and ``peer_seconds`` are the least over those cells, ``speed`` is theirs / ours.
    """

    data: str
    objective: str
    adjacency: str
    delta: float
    epsilon: float | None
    label: str
    peer: str
    metric: str
    cells: int
    ours: float
    theirs: float
    ratio: float | None
    seconds: float
    peer_seconds: float
    speed: float | None


def ratios(records: Sequence[Record], facts: Mapping[str, Any]) -> list[Ratio]:
    """Every algorithm against every library where both have finished cells at one guarantee; empty without libraries.

    The metric is the first of the comparison.
    """
    metric = next((name for name in metrics_of(records, facts) if name != SECONDS), None)
    libraries = dict.fromkeys(Place.of(record) for record in records if record.get("algorithm") in PEERS)
    if metric is None or not libraries:
        return []
    places = collect(records, metric)
    times = fastest(records)
    return [
        found
        for place in places
        for other in libraries
        if place not in libraries and place.relation is not None and guarantee(place) == guarantee(other)
        if (found := _ratio(place, other, metric, places, times)) is not None
    ]


def guarantee(place: Place) -> tuple[Any, ...]:
    """What two lines share where they may be compared."""
    return place.setting, place.relation, place.epsilon, place.noise


def fastest(records: Iterable[Record]) -> dict[Place, dict[tuple[Any, Any], float]]:
    """Least seconds by place and (repeat, fold)."""
    found: dict[Place, dict[tuple[Any, Any], float]] = {}
    for record in records:
        seconds = measured(record, SECONDS)
        if done(record) and seconds is not None:
            own = found.setdefault(Place.of(record), {})
            key = (record.get("repeat"), record.get("fold"))
            own[key] = min(seconds, own.get(key, seconds))
    return found


def _ratio(place: Place, other: Place, metric: str, places: Mapping[Place, Any], times: Mapping[Place, Any]) -> Any:
    own, their = places[place].means, places[other].means
    shared = [key for key in own if key in their]
    if not shared:
        return None
    ours, theirs = (sum(values[key] for key in shared) / len(shared) for values in (own, their))
    seconds, peer_seconds = (min(times[at][key] for key in shared) for at in (place, other))
    assert place.relation is not None
    return Ratio(
        data=place.setting.data,
        objective=place.setting.title,
        adjacency=place.relation.adjacency,
        delta=place.relation.delta,
        epsilon=place.epsilon,
        label=place.label,
        peer=other.label,
        metric=metric,
        cells=len(shared),
        ours=ours,
        theirs=theirs,
        ratio=ours / theirs if theirs else None,
        seconds=seconds,
        peer_seconds=peer_seconds,
        speed=peer_seconds / seconds if seconds else None,
    )


def rows_of(found: Sequence[Ratio]) -> list[dict[str, Any]]:
    """The ratios as plain records."""
    return [asdict(one) for one in found]


def table(found: Sequence[Ratio]) -> str:
    """The ratios as a sortable table of a page."""
    metric = found[0].metric.replace("_", " ")
    names = ["algorithm", "library", "data", "adjacency", "epsilon", metric, "library's", "ratio"]
    names += ["seconds", "library's", "times faster", "cells"]
    return sortable(CAPTION, names, [line(one) for one in found])


def line(one: Ratio) -> list[Cell]:
    """What is shown of a ratio, and what it is sorted by."""
    numbers = [("", None) if value is None else (f"{value:.4g}", value) for value in (one.ours, one.theirs, one.ratio)]
    times = [("", None) if v is None else (f"{v:.3g}", v) for v in (one.seconds, one.peer_seconds, one.speed)]
    words: list[Cell] = [(text, text) for text in (one.label, one.peer, one.data, one.adjacency)]
    epsilon: Cell = ("", None) if one.epsilon is None else (f"{one.epsilon:g}", one.epsilon)
    return [*words, epsilon, *numbers, *times, (str(one.cells), one.cells)]
