"""Which cells of a comparison belong together: same data and objective, same guarantee, same
algorithm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dpcore.metrics import less_is_better

Record = Mapping[str, Any]

SECONDS = "seconds"
RANKING = "ranking"
LOWER_IS_BETTER = ("objective", "loss", "error", "evaluations", SECONDS)
"""A metric with one of these in its name is better when it is smaller, beside those of quality."""


class Comparable(NamedTuple):
    """What compared algorithms share: the data and the objective that is minimised.

    Rankers are compared by the order that they give, so their loss is a part of the algorithm, not
    of the setting.
    """

    data: str
    loss: str
    loss_parameters: str = "{}"
    l1: float | None = None
    l2: float | None = None

    @classmethod
    def of(cls, record: Record) -> Comparable:
        if str(record.get("kind", "")).startswith(RANKING):
            return cls(str(record.get("data")), RANKING)
        given = json.dumps(record.get("loss_parameters") or {}, sort_keys=True, default=str)
        return cls(
            str(record.get("data")),
            str(record.get("loss")),
            given,
            record.get("l1"),
            record.get("l2"),
        )

    @property
    def whole_loss(self) -> str:
        """The loss with the parameters that were given."""
        return self.loss + (f" {self.loss_parameters}" if self.loss_parameters != "{}" else "")

    @property
    def title(self) -> str:
        """The setting in words, parts that say nothing left out."""
        parts = [self.data, self.whole_loss]
        parts += [
            f"{name} = {value:g}" for name, value in (("l1", self.l1), ("l2", self.l2)) if value
        ]
        return ", ".join(parts)


class Relation(NamedTuple):
    """Under which neighbours, and with which delta, an epsilon is meant. Numbers of two relations
    do not compare.
    """

    adjacency: str
    delta: float

    @property
    def title(self) -> str:
        return f"{self.adjacency}, delta = {self.delta:g}"


class Place(NamedTuple):
    """What one mean stands for. Algorithms without privacy have neither relation nor epsilon.

    Where ``noise`` is given, epsilon is None here: it follows from the price of each cell
    (``Cells.spent``).
    """

    setting: Comparable
    relation: Relation | None
    epsilon: float | None
    label: str
    noise: float | None = None

    @classmethod
    def of(cls, record: Record) -> Place:
        setting, label = Comparable.of(record), str(record.get("label") or record.get("algorithm"))
        if not is_private(record):
            return cls(setting, None, None, label)
        relation = Relation(str(record.get("adjacency")), float(record.get("delta") or 0.0))
        return cls(setting, relation, record.get("epsilon"), label, record.get("noise_multiplier"))


@dataclass(slots=True)
class Cells:
    """Values of one metric at one place: by (repeat, fold) one value for each draw of the noise.

    ``failed`` counts cells that broke off, ``missing`` finished cells without a finite number;
    ``spent`` is the largest epsilon of a cell.
    """

    draws: dict[tuple[Any, Any], list[float]] = field(default_factory=dict)
    failed: int = 0
    missing: int = 0
    spent: float | None = None

    @property
    def means(self) -> dict[tuple[Any, Any], float]:
        """Draws on the same split averaged, for they are no independent cells."""
        return {key: sum(values) / len(values) for key, values in self.draws.items()}

    @property
    def count(self) -> int:
        """How many times the noise was drawn."""
        return sum(map(len, self.draws.values()))


def is_private(record: Record) -> bool:
    return bool(record.get("private", record.get("epsilon") is not None))


def done(record: Record) -> bool:
    return record.get("status") == "done"


def number(value: Any) -> float | None:
    """``value`` as a finite number, or None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def measured(record: Record, metric: str) -> float | None:
    """The finite number that a finished cell has for ``metric``; None where there is none."""
    if metric == SECONDS:
        return number(record.get(SECONDS))
    return number((record.get("metrics") or {}).get(metric))


def collect(records: Iterable[Record], metric: str) -> dict[Place, Cells]:
    """Values of ``metric`` by place, in the order of first appearance. A cell recorded twice counts
    once, the last.
    """
    latest = {_identity(record, index): record for index, record in enumerate(records)}
    places: dict[Place, Cells] = {}
    for record in latest.values():
        cells = places.setdefault(Place.of(record), Cells())
        if (spent := number(record.get("spent_epsilon"))) is not None:
            cells.spent = max(spent, cells.spent or 0.0)
        if not done(record):
            cells.failed += 1
        elif (value := measured(record, metric)) is None:
            cells.missing += 1
        else:
            cells.draws.setdefault((record.get("repeat"), record.get("fold")), []).append(value)
    return places


def _identity(record: Record, index: int) -> object:
    cell = record.get("cell")
    return ("cell", cell) if cell is not None else ("row", index)


def _timed(records: Iterable[Record]) -> bool:
    return any(measured(record, SECONDS) is not None for record in records if done(record))


def metrics_of(records: Sequence[Record], facts: Mapping[str, Any]) -> list[str]:
    """Metrics to show: those that ``facts`` name first, then the others in the order of appearance;
    time is the last.

    Only names with at least one finite number are returned.
    """
    seen = dict.fromkeys(name for record in records for name in _finite(record))
    wanted = [name for name in facts.get("metrics") or () if name in seen]
    names = [name for name in dict.fromkeys((*wanted, *seen)) if name != SECONDS or name in wanted]
    return [*names, SECONDS] if _timed(records) else names


def _finite(record: Record) -> list[str]:
    """Names of the metrics that a cell has a finite number for."""
    return [name for name in record.get("metrics") or {} if measured(record, name) is not None]


def lower_is_better(metric: str) -> bool:
    return less_is_better(metric) or any(part in metric.lower() for part in LOWER_IS_BETTER)
