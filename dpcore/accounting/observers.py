"""Who may look at a run: what a query asks of its batch, and what a release gives.

An observer is told, never asked, and changes nothing: weights, noise and price are those of a run
without it. Of what it sees, the point at which a release first asks for a gradient is known before
rows and noise are drawn (it follows from the public start and from earlier releases); sizes of
batches and drawn rows are private, and stay inside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpcore.mechanisms import Mechanism
from dpcore.mechanisms.base import Array
from dpcore.objective.base import unscaled

Query = Callable[[Any], Any]

GRADIENTS = ("gradient_sum", "capped_gradient_sum")


class View(NamedTuple):
    """One step from a batch to what is asked: the method that gave the view, and what it was
    given.
    """

    name: str
    arguments: tuple[Any, ...]


class Call(NamedTuple):
    """A method of a batch of ``n`` records (private), or of the view of it that ``views`` lead
    to.
    """

    name: str
    arguments: tuple[Any, ...]
    n: int
    views: tuple[View, ...] = ()


class Observer(Protocol):
    """Told after the charge: of each call before it is answered, and of each release once its value
    is there.
    """

    def asked(self, call: Call) -> None: ...

    def released(self, mechanism: Mechanism, rows: Array | None, query: Query, value: Any) -> None:
        """``rows`` are those that were drawn, None for all of them; ``value`` is what the algorithm
        gets.
        """


class Evaluations:
    """Counts how much is read: a sum over n records of gradients is n evaluations, one of k
    candidates' losses k n.

    Counts follow the sizes of batches: exact, internal numbers.
    """

    GRADIENT, LOSS = "gradient_evaluations", "loss_evaluations"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def asked(self, call: Call) -> None:
        if call.name == "gradient_sum":
            self.counts[self.GRADIENT] += call.n
        elif call.name == "value_sum":
            self.counts[self.LOSS] += len(np.atleast_2d(call.arguments[0])) * call.n

    def released(self, mechanism: Mechanism, rows: Array | None, query: Query, value: Any) -> None:
        """A release reads nothing that was not asked for."""

    @property
    def numbers(self) -> dict[str, float]:
        """Evaluations so far, by name; empty where the algorithm took other sums than these."""
        return (
            {name: float(self.counts[name]) for name in (self.GRADIENT, self.LOSS)}
            if self.counts
            else {}
        )


class Iterates:
    """Points of a training: that at which each release first asks for a gradient, at most ``most``,
    evenly spread.

    What follows from a point alone tells no more than the run did. A metric of it on held-out
    records is exact: internal where these are private. Points are numbered by the releases before
    them, or with ``of="gradients"`` by the earlier points; those at a multiple of ``every`` are
    kept. Weights for transformed columns are carried back to the columns as they are
    (``intercept``: the last column is constant); points on other views are not weights of the
    model, and are left out.
    """

    def __init__(
        self, most: int, every: int = 1, of: str = "releases", intercept: bool = False
    ) -> None:
        self.most, self.stride, self.of, self.intercept = most, every, of, intercept
        self.releases = self.points = 0
        self._fresh = True
        self._kept: list[tuple[int, Array]] = []
        self._last: tuple[int, Array] | None = None
        self._before: list[int] = []  # releases before each point

    def asked(self, call: Call) -> None:
        if not self._fresh or call.name not in GRADIENTS:
            return
        w = self._own(call)
        if w is not None:
            self._fresh = False
            self._add(self.points if self.of == "gradients" else self.releases, w)
            self.points += 1
            self._before.append(self.releases)

    def number_of(self, release: int) -> int:
        """The number that a point after ``release`` releases has: with ``of="gradients"`` the
        iteration that the release is a part of, for one may make several.
        """
        return bisect_left(self._before, release) if self.of == "gradients" else release

    def released(self, mechanism: Mechanism, rows: Array | None, query: Query, value: Any) -> None:
        self.releases += 1
        self._fresh = True

    def _own(self, call: Call) -> Array | None:
        """The weights of the model that a call asks about, None where they are those of something
        else.
        """
        w = np.array(call.arguments[0], dtype=float)
        for view in reversed(call.views):
            if view.name == "transform":
                shift, scale = view.arguments
                w = unscaled(w.reshape(-1, len(scale)), shift, scale, self.intercept).reshape(
                    w.shape
                )
            elif view.name not in ("take", "within"):
                return None
        return w

    def _add(self, number: int, w: Array) -> None:
        if number % self.stride == 0:
            self._kept.append((number, w))
            if len(self._kept) > self.most:
                self._kept, self.stride = self._kept[::2], 2 * self.stride
        self._last = number, w

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        """(number, w) of the points that are kept."""
        return iter(self._kept)

    def path(self, weights: Array) -> list[tuple[int, Array]]:
        """The points that are kept, the last of all and the released ``weights`` after it; empty
        without a point.
        """
        if not self._kept:
            return []
        last = [self._last] if self._last is not None and self._last[0] != self._kept[-1][0] else []
        return [
            *self._kept,
            *last,
            (self.points if self.of == "gradients" else self.releases, weights),
        ]
