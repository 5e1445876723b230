"""Our algorithms beside other libraries: utility and speed as ratios, over the folds that both
have.

The part of a comparison that other libraries run: their settings, and which of them cannot be
imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from shutil import which
from typing import Any

from dpcore.errors import InputError
from tasks.compare.baselines import encoded_as
from tasks.compare.config import CompareConfig, PeerEntry
from tasks.compare.grid import LeftOut, Setting
from tasks.compare.grouping import SECONDS, Place, Record, collect, done, measured, metrics_of
from tasks.compare.variants import Jobs, objectives_of, training_config
from tasks.config.train import AlgorithmSection
from tasks.drawing import metric_title, number
from tasks.drawing.html import Cell, grid
from tasks.peers import PEERS, Peer, PeerRun, check_attributes, check_problem, find_peer
from tasks.peers.process import PeerError, peer_process

CAPTION = (
    "Same data, folds, adjacency, delta and epsilon. Ratio: mean of our algorithm over mean of the "
    "library. Times faster: seconds of the library's fastest training on these folds over ours, "
    "one thread each, without planning and calibration; above 1 ours is faster."
)


@dataclass(frozen=True)
class Ratio:
    """One algorithm against one library at one guarantee.

    ``ours`` and ``theirs`` are means of ``metric`` over the ``cells`` (repeat, fold) that both
    have, ``ratio`` is ours / theirs; ``seconds`` and ``peer_seconds`` are the least over those
    cells, ``speed`` is theirs / ours.
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
    """Every algorithm against every library where both have finished cells at one guarantee; empty
    without libraries.

    The metric is the first of the comparison.
    """
    metric = next((name for name in metrics_of(records, facts) if name != SECONDS), None)
    libraries = lines_of_libraries(records)
    if metric is None or not libraries:
        return []
    places = collect(records, metric)
    times = fastest(records)
    ours = [place for place in places if place not in libraries and place.relation is not None]
    pairs = filter(_comparable, product(ours, libraries))
    found = [_ratio(place, other, metric, places, times) for place, other in pairs]
    return list(filter(None, found))


def _comparable(pair: tuple[Place, Place]) -> bool:
    return guarantee(pair[0]) == guarantee(pair[1])


def lines_of_libraries(records: Sequence[Record]) -> dict[Place, None]:
    """The places of other libraries, in the order of their records."""
    return dict.fromkeys(Place.of(record) for record in records if record.get("algorithm") in PEERS)


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


def _mean_of(values: Mapping[Any, float], keys: Sequence[Any]) -> float:
    return sum(values[key] for key in keys) / len(keys)


def _ratio(
    place: Place, other: Place, metric: str, places: Mapping[Place, Any], times: Mapping[Place, Any]
) -> Any:
    own, their = places[place].means, places[other].means
    shared = [key for key in own if key in their]
    if not shared:
        return None
    ours, theirs = (_mean_of(values, shared) for values in (own, their))
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
    metric = metric_title(found[0].metric)
    names = ["algorithm", "library", "data", "adjacency", "epsilon", metric, "library's", "ratio"]
    names += ["seconds", "library's", "times faster", "cells"]
    return grid(CAPTION, names, [line(one) for one in found], sort=True)


def line(one: Ratio) -> list[Cell]:
    """What is shown of a ratio, and what it is sorted by."""
    numbers = [
        ("", None) if value is None else (number(value), value)
        for value in (one.ours, one.theirs, one.ratio)
    ]
    times = [
        ("", None) if v is None else (f"{v:.3g}", v)
        for v in (one.seconds, one.peer_seconds, one.speed)
    ]
    words: list[Cell] = [(text, text) for text in (one.label, one.peer, one.data, one.adjacency)]
    epsilon: Cell = ("", None) if one.epsilon is None else (f"{one.epsilon:g}", one.epsilon)
    return [*words, epsilon, *numbers, *times, (str(one.cells), one.cells)]


def peer_settings(config: CompareConfig) -> tuple[list[Setting], list[LeftOut]]:
    """A setting for each library, data set, objective and epsilon under the adjacency of its proof.

    A library that cannot be imported is left out, with the reason and the way out; what it does not
    train, too. Raises ``InputError`` for unknown names and parameters, private data, and runners
    whose workers could not reach a library.
    """
    if config.peers is None:
        return [], []
    if config.runner != "threads":
        raise InputError(
            f"Expected runner: threads with peers, got {config.runner!r}; leave runner out."
        )
    settings: list[Setting] = []
    left_out: list[LeftOut] = []
    jobs = Jobs()
    for entry in config.peers.libraries:
        peer = find_peer(entry.name)
        parameters = peer.parameters(entry.parameters)
        try:
            found = started(peer, parameters, config)
        except PeerError as error:
            left_out.append(LeftOut(entry.shown, "all data", missing_words(peer, str(error))))
            continue
        more, missing = _settings(config, entry, found, jobs)
        settings += more
        left_out += missing
    return settings, left_out


def check_interpreter(config: CompareConfig) -> None:
    """Raise ``InputError`` for an interpreter that is named and cannot be run: without it nothing
    would be compared.
    """
    python = config.peers.python if config.peers is not None else None
    if python is not None and which(python) is None:
        raise InputError(
            f"Expected an interpreter that can be run, got peers.python={python!r}; correct the "
            "path, for example peers/bin/python, or leave it out for this one."
        )


def started(peer: Peer, parameters: dict[str, object], config: CompareConfig) -> PeerRun:
    """The library with the versions that its interpreter has; raises ``PeerError`` where it cannot
    be imported.
    """
    assert config.peers is not None
    versions = peer_process(config.peers.python, peer.name).versions
    return PeerRun(peer, parameters, config.peers.python, config.peers.timeout, versions)


def missing_words(peer: Peer, reason: str) -> str:
    """The reason and the way out: the extra where it is not installed, and an interpreter of its
    own in any case.
    """
    extra = "pip install 'dpflows[peers]', or " if "No module named" in reason else ""
    return (
        f"{reason}; {extra}give an interpreter of its own that can: `{peer.install}`, then `--set "
        "peers.python=peers/bin/python`."
    )


def _settings(
    config: CompareConfig, entry: PeerEntry, run: PeerRun, jobs: Jobs
) -> tuple[list[Setting], list[LeftOut]]:
    found: list[Setting] = []
    missing: list[LeftOut] = []
    encoded = encoded_as(entry)
    adjacencies = [
        a for a in config.privacy.adjacency if a is run.peer.adjacency
    ] or config.privacy.adjacency[:1]
    wanted = [
        (data, objective) for data in config.data for objective in objectives_of(config, data)
    ]
    for (data, objective), adjacency in product(wanted, adjacencies):
        base = training_config(config, data, objective, encoded, adjacency)
        job = jobs.of(base)
        if not job.public:
            raise InputError(
                f"Expected public data with peers, got {job.schema.name!r}: what another library "
                "releases is not charged to a ledger; leave peers out, or declare public: true."
            )
        try:
            check_problem(run.peer, job.problem)
            check_attributes(run.peer, job.encoder)
        except InputError as error:
            missing.append(
                LeftOut(
                    entry.shown, f"{job.schema.name}, {objective.loss}, {adjacency}", str(error)
                )
            )
            continue
        for epsilon in config.epsilons:
            own = base.model_copy(
                update={
                    "privacy": base.privacy.model_copy(update={"epsilon": epsilon}),
                    "algorithm": AlgorithmSection(name=run.peer.name, **run.parameters),
                }
            )
            found.append(Setting(entry.shown, own, replace(job, config=own), True, peer=run))
    return found, missing
