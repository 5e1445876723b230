"""The points of a training along its releases, for curves of a metric against the iteration of a linear model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpcore.algorithms.scaled_gd import Scaling
from dpcore.objective import LinearObjective
from dpcore.problem import Problem

Array = np.ndarray

MOST = 60  # points of a curve: each costs one pass over the training and one over the test rows


class Iterates:
    """The point at which every release first asks for a gradient, with the number of releases before it.

    That point is known before the release draws its rows and noise: it follows from the public start and from what was
    released before, so it is post-processing of the run's own price, and knows nothing else of the records. A metric
    of it on held-out records is exact: internal where these are private. At most ``most`` points are kept, those after
    a multiple of ``every`` releases, evenly spread.
    """

    def __init__(self, every: int, most: int = MOST) -> None:
        self.stride, self.most, self.releases = every, most, 0
        self._fresh = False
        self._kept: list[tuple[int, Array]] = []

    def charged(self) -> None:
        """A release begins."""
        self.releases += 1
        self._fresh = True

    def told(self, on_charge: Callable[[], None] | None) -> Callable[[], None]:
        """What to call when a release is charged: ``on_charge``, then ``charged``."""

        def both() -> None:
            if on_charge is not None:
                on_charge()
            self.charged()

        return both

    def note(self, w: Array) -> None:
        """A gradient is asked for at ``w``."""
        before = self.releases - 1
        if self._fresh and before % self.stride == 0:
            self._kept.append((before, np.array(w, dtype=float)))
            if len(self._kept) > self.most:
                self._kept, self.stride = self._kept[::2], 2 * self.stride
        self._fresh = False

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        return iter(self._kept)


class WatchedRows:
    """A linear objective that notes where its gradients are asked for; batches and views of it do too.

    Weights for transformed columns are carried back to the columns as they are (``scaled_gd.Scaling``).
    """

    def __init__(self, inner: Any, iterates: Iterates, problem: Problem, view: Scaling | None = None) -> None:
        self.inner, self.iterates, self.problem, self.view = inner, iterates, problem, view

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def take(self, rows: Array | slice) -> WatchedRows:
        return WatchedRows(self.inner.take(rows), self.iterates, self.problem, self.view)

    def within(self, *arguments: Any) -> WatchedRows:
        return WatchedRows(self.inner.within(*arguments), self.iterates, self.problem, self.view)

    def transform(self, shift: Array, scale: Array) -> WatchedRows:
        view = Scaling(shift, scale, self.problem.intercept)
        return WatchedRows(self.inner.transform(shift, scale), self.iterates, self.problem, view)

    def gradient_sum(self, w: Array, *clip: float) -> Array:
        if self.view is None:
            self.iterates.note(w)
        else:
            self.iterates.note(self.view.weights(w.reshape(self.problem.outputs, -1)).ravel())
        return self.inner.gradient_sum(w, *clip)


def watched(objective: Any, iterates: Iterates, problem: Problem) -> Any:
    """``objective`` watched where it is that of a linear model, else as it is."""
    inner = getattr(objective, "inner", objective)  # one that counts may stand between
    return WatchedRows(objective, iterates, problem) if isinstance(inner, LinearObjective) else objective
