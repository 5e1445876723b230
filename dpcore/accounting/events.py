"""What a run releases, as data: a table of distinct mechanisms and the order in which they ran."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property, lru_cache, reduce
from itertools import chain, repeat
from math import inf
from typing import Any

import numpy as np

from dpcore.accounting.curves import ORDERS, curve_of
from dpcore.accounting.first_rules import first, second
from dpcore.errors import InputError, PriceUnknown, unknown_name
from dpcore.mechanisms import to_dict
from dpcore.mechanisms.base import MECHANISMS, SAMPLERS, Array, InTurn, Mechanism, Rounds, on_grid
from dpcore.mechanisms.repeated import Composition, Repeated
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson, Sampled


def from_dict(stored: dict[str, Any]) -> Any:
    """Exact inverse of ``to_dict``. Raises ``UnknownName`` for a kind or a field that does not
    exist.

    A field with a default may be absent, so that what an older version stored keeps its price when
    one is added.
    """
    cls = _class_of(stored)
    given = dict(stored)
    del given["kind"]
    names = {field.name for field in fields(cls)}
    if strange := [name for name in given if name not in names]:
        raise unknown_name(f"field of {stored['kind']!r}", strange[0], names)
    values = {name: _read(value) for name, value in given.items()}
    missing = {field.name for field in fields(cls) if field.default is MISSING} - set(values)
    if missing:
        raise InputError(
            f"Expected a stored {stored['kind']!r} to name {', '.join(sorted(missing))}, got "
            f"{stored!r}."
        )
    return cls(**values)


def _class_of(stored: Any) -> Any:
    """The mechanism or sampler that ``stored`` names."""
    if not isinstance(stored, dict) or "kind" not in stored:
        raise InputError(f"Expected a stored mechanism with a kind, got {stored!r}.")
    known = {**MECHANISMS, **SAMPLERS}
    if stored["kind"] not in known:
        raise unknown_name("kind of mechanism", stored["kind"], known)
    return known[stored["kind"]]


def _read(value: Any) -> Any:
    """A stored field: parts that have a kind as what they are, lists as tuples."""
    if isinstance(value, dict):
        return from_dict(value)
    if isinstance(value, list):
        return tuple(from_dict(part) if isinstance(part, dict) else part for part in value)
    return value


def restate(mechanism: Mechanism, own: Adjacency | str, wanted: Adjacency | str) -> Mechanism:
    """The mechanism whose price, under ``wanted``, bounds ``mechanism`` that was built under
    ``own``.

    For pricing, not for release: the noise stays that of the original. Raises ``PriceUnknown``
    where no theorem gives the price, with the way out.
    """
    own, wanted = Adjacency(own), Adjacency(wanted)
    if own is wanted:
        return mechanism
    if own is Adjacency.REPLACE_LABELS:
        raise PriceUnknown(
            "A run proved for replace_labels protects labels only and has no price under "
            f"{wanted!s}: use an algorithm that clips whole records, or a data set with a "
            "replace_labels budget."
        )
    if wanted is Adjacency.ADD_REMOVE:
        raise PriceUnknown(
            "A run proved for replace_one treats the number of records as public and has no price "
            "under add_remove: set adjacency=add_remove in the run, or create the budget with "
            "adjacency=replace_one."
        )
    return mechanism if own is Adjacency.REPLACE_ONE else _replaced(mechanism)


def _replaced(mechanism: Mechanism) -> Mechanism:
    """Add/remove to replace-one.

    With D the add/remove bound of any function f, f(S + u) and f(S + v) lie within D of f(S), so
    within 2D of each
    other: on a Poisson batch the contributions lie in a ball of radius D = half the new
    sensitivity.
    """
    if isinstance(mechanism, Sampled):
        if not isinstance(mechanism.sampler, Poisson):
            raise PriceUnknown(
                f"No price under replace_one for {mechanism!r}, which was built for add_remove; "
                "use Poisson batches, or a budget with adjacency=add_remove."
            )
        inner = mechanism.mechanism.replaced()
        return Sampled(inner, mechanism.sampler, Adjacency.REPLACE_ONE, "ball")
    if isinstance(mechanism, Composition | Repeated):
        return mechanism.mapped(_replaced)
    return mechanism.replaced()


VERSION = 1
# Rules by which a price is formed now. What older ones charged is priced by them for ever.
RULES = 3


# A list of more runs than this is kept as one round of it and how often that runs.
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Events:
    """An ordered list of releases under one unit of privacy and one adjacency, stored run-length
    encoded.

    ``table`` holds distinct mechanisms, ``order`` pairs (index into the table, how many times in a
    row), ``rules`` the number of the price rules that charge it: a text without one is of the
    first. The whole order runs ``rounds`` times, once where a text names no number. This is the
    only place where a price is multiplied by a count. ``to_json`` and ``from_json`` are inverse bit
    for bit, so the price can be computed again from the text alone.
    """

    table: tuple[Mechanism, ...]
    order: tuple[tuple[int, int], ...]
    adjacency: Adjacency
    unit: str = "record"
    rules: int = RULES
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.rules not in range(1, RULES + 1):
            raise InputError(
                f"Expected price rules 1 to {RULES}, got rules={self.rules!r}; a newer dpflows "
                "charged this: use it."
            )
        for mechanism in self.table:
            if mechanism.proved_for not in (None, self.adjacency):
                raise PriceUnknown(
                    f"Expected mechanisms priced for adjacency {self.adjacency!s}, got "
                    f"{mechanism.kind!r} for {mechanism.proved_for!s}; build it for "
                    f"{self.adjacency!s}."
                )

    @classmethod
    def of(
        cls, mechanisms: Iterable[Mechanism], *, adjacency: Adjacency | str, unit: str = "record"
    ) -> Events:
        """Encode mechanisms in the order in which they run; many ``Rounds`` at the cost of one."""
        if isinstance(mechanisms, Rounds):
            once = cls.of(mechanisms.block, adjacency=adjacency, unit=unit)
            if (whole := once._repeated(mechanisms.times)) is not None:
                return whole
        if isinstance(mechanisms, InTurn):
            parts = [cls.of(part, adjacency=adjacency, unit=unit) for part in mechanisms.parts]
            return reduce(cls.then, parts)
        table: dict[Mechanism, int] = {}
        order: list[tuple[int, int]] = []
        for mechanism, count in _runs(mechanisms):
            index = table.setdefault(mechanism, len(table))
            if order and order[-1][0] == index:
                count += order.pop()[1]
            order.append((index, count))
        return cls(tuple(table), tuple(order), Adjacency(adjacency), unit)

    def _repeated(self, times: int) -> Events | None:
        """These releases ``times`` times, None where that is to be read off the list itself."""
        if len(self.order) == 1 and self.rounds == 1:
            return replace(self, order=((0, len(self) * times),))
        if len(self.order) * self.rounds * times > MOST_RUNS:
            return replace(self, rounds=self.rounds * times)
        if self.rounds == 1 and self.order and self.order[0][0] != self.order[-1][0]:
            return replace(self, order=self.order * times)
        return None

    @cached_property
    def counts(self) -> tuple[tuple[Mechanism, int], ...]:
        """Each distinct mechanism with the number of times it runs."""
        totals = [0] * len(self.table)
        for index, count in self.order:
            totals[index] += count * self.rounds
        return tuple(zip(self.table, totals, strict=True))

    @cached_property
    def charged(self) -> tuple[tuple[Mechanism, int], ...]:
        """Each distinct mechanism with the number of its prices: releases of an epoch share one."""
        totals = [0] * len(self.table)
        for index, count in self.order:
            totals[index] += self.table[index].charges(count) * self.rounds
        return tuple(zip(self.table, totals, strict=True))

    @property
    def on_grid(self) -> bool:
        """Whether some noise is discrete, which takes a share of delta (not by rules 1)."""
        return self.rules > 1 and any(on_grid(mechanism) for mechanism in self.table)

    def __len__(self) -> int:
        return sum(count for _, count in self.order) * self.rounds

    @property
    def runs(self) -> Iterable[tuple[int, int]]:
        """``order`` as often as it runs, one pair after the other."""
        return chain.from_iterable(repeat(self.order, self.rounds))

    def __iter__(self) -> Iterator[Mechanism]:
        for index, count in self.runs:
            yield from repeat(self.table[index], count)

    def price(self, adjacency: Adjacency | str | None = None) -> Array:
        """Rényi curve of the whole list on ``ORDERS``: the sum of the parts. Mironov (2017),
        Proposition 1.

        With another ``adjacency`` than the list's own every mechanism is re-priced for it;
        ``PriceUnknown`` where no theorem gives that price.
        """
        total = np.zeros(len(ORDERS))
        for mechanism, count in self.charged:
            if adjacency is not None and Adjacency(adjacency) is not self.adjacency:
                mechanism = restate(mechanism, self.adjacency, Adjacency(adjacency))
            total += count * curve_by(mechanism, self.rules)
        return total

    def prices(self) -> Array:
        """The prices under every relation that a ledger may charge, one below the other; infinite
        where unknown.

        Rows: the list's own adjacency, and replace-one for a list under add/remove. Replace-labels
        costs what replace-one does (``relations``). The ratio of both rows is not the same for all
        mechanisms, so what stays below a plan in one row may pass it in the other.
        """
        total = np.zeros((2 if self.adjacency is Adjacency.ADD_REMOVE else 1, len(ORDERS)))
        for mechanism, count in self.charged:
            total += count * curves_of(mechanism, self.adjacency, self.rules)
        return total

    def prefix(self, releases: int) -> Events:
        """The first ``releases`` releases."""
        kept, left = [], releases
        for index, count in self.runs:
            if left <= 0:
                break
            kept.append((index, min(count, left)))
            left -= count
        return replace(self, order=tuple(kept), rounds=1)

    def then(self, other: Events) -> Events:
        """These releases and after them those of ``other``, which have the same unit and
        adjacency.
        """
        theirs, ours = ((one.unit, one.adjacency, one.rules) for one in (other, self))
        if theirs != ours:
            raise PriceUnknown(
                f"Expected releases for {self.unit}, {self.adjacency!s} to follow, got "
                f"{other.unit}, {other.adjacency!s} (price rules {self.rules} and {other.rules}); "
                "price both under one relation."
            )
        places = {mechanism: index for index, mechanism in enumerate(self.table)}
        moved = [places.setdefault(mechanism, len(places)) for mechanism in other.table]
        table, order = tuple(places), [*self.runs]
        for index, count in other.runs:
            apart = table[moved[index]].charges(2) < 2  # an epoch ends with the run that began it
            if order and order[-1][0] == moved[index] and not apart:
                count += order.pop()[1]
            order.append((moved[index], count))
        return replace(self, table=table, order=tuple(order), rounds=1)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, shortest floats that read back equal."""
        return json.dumps(
            {
                "version": VERSION,
                "unit": self.unit,
                "adjacency": str(self.adjacency),
                "mechanisms": [to_dict(mechanism) for mechanism in self.table],
                "order": [list(run) for run in self.order],
                **({} if self.rules == 1 else {"rules": self.rules}),
                **({} if self.rounds == 1 else {"rounds": self.rounds}),
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Events:
        """Read what ``to_json`` wrote; raise ``InputError`` for another version or anything
        malformed.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            if stored["version"] != VERSION:
                raise InputError(
                    f"Expected events of version {VERSION}, got version={stored['version']!r}."
                )
            table = tuple(from_dict(item) for item in stored["mechanisms"])
            order = tuple((_whole(index), _whole(count)) for index, count in stored["order"])
            adjacency, unit = Adjacency(stored["adjacency"]), str(stored["unit"])
            rules = _whole(stored.get("rules", 1))
            rounds = _whole(stored.get("rounds", 1))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise InputError(
                f"Expected stored events as JSON, got {text[:60]!r} ({error!r})."
            ) from error
        if rounds < 1 or any(count < 1 or not 0 <= index < len(table) for index, count in order):
            raise InputError(
                "Expected every run of stored events to name a mechanism of the table at least "
                "once."
            )
        return cls(table, order, adjacency, unit, rules, rounds)


def _whole(value: Any) -> int:
    """A stored count as it is: 1.9 and true are none, and cutting them to 1 would price another
    list.
    """
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def curve_by(mechanism: Mechanism, rules: int) -> Array:
    """Price of one release of ``mechanism`` on ``ORDERS`` by the price rules of that number."""
    if rules == 1:
        mechanism = first(mechanism)
    return curve_of(second(mechanism) if rules <= 2 else mechanism)


@lru_cache(maxsize=4096)
def curves_of(mechanism: Mechanism, adjacency: Adjacency, rules: int = RULES) -> Array:
    """Rows of ``Events.prices`` for one release of ``mechanism``, shape (1 or 2, orders)."""
    curves = [curve_by(mechanism, rules)]
    if adjacency is Adjacency.ADD_REMOVE:
        try:
            curves.append(curve_by(restate(mechanism, adjacency, Adjacency.REPLACE_ONE), rules))
        except PriceUnknown:
            curves.append(np.full(len(ORDERS), inf))
    return np.array(curves)


def _runs(mechanisms: Iterable[Mechanism]) -> Iterator[tuple[Mechanism, int]]:
    """Neighbouring items that are one object, with their number."""
    items = mechanisms if isinstance(mechanisms, list | tuple) else list(mechanisms)
    start = 0
    while start < len(items):
        first = items[start]
        if start == 0 and items[-1] is first and items.count(first) == len(items):
            # counted in C: plans of a million equal steps are priced some twenty times
            yield first, len(items)
            return
        stop = start + 1
        while stop < len(items) and items[stop] is first:
            stop += 1
        yield first, stop - start
        start = stop
