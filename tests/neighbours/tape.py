"""Record every noisy number of a run, and replay it into the run on a neighbour.

All noise is added by ``release`` of a mechanism, whichever door calls it, so that is where the tape
sits. On the neighbour each release gives back what it gave on the first data set: whatever is done
with released values is then the same, bit for bit, and only the exact values that went in may
differ, by no more than the sensitivity that was charged.

A selection among trials is charged as one release, and what moves are the values inside its trials.
So the tape looks into each trial; how many there are and what each draws comes from a fixed seed,
as the records have no part in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np

from dpcore.mechanisms import Mechanism
from dpcore.mechanisms.base import MECHANISMS
from dpcore.mechanisms.repeated import Repeated, Trial

SLACK = 1e-9
TRIALS = 5  # the seed of a selection's draws: three trials or more, of more than one setting


@dataclass
class Release:
    """One release: the mechanism with its noise, the exact value that went in, and what came
    out.
    """

    mechanism: Mechanism
    value: Any
    output: Any

    def ratio(self, other: Release) -> float:
        """How far the exact values of neighbours lie apart, over the sensitivity of the
        mechanism.
        """
        base: Any = getattr(self.mechanism, "mechanism", self.mechanism)
        return float(self.mechanism.distance(self.value, other.value)) / float(base.sensitivity)


@dataclass
class Tape:
    """Records what is released inside ``running``; with ``recorded`` it replays those outputs."""

    recorded: list[Release] | None = None
    log: list[Release] = field(default_factory=list)
    depth: int = 0

    @contextmanager
    def running(self) -> Iterator[Tape]:
        """Watch the outermost ``release`` of every kind of mechanism."""
        patches = [
            patch.object(cls, "release", self._watched(cls.release))
            for cls in set(MECHANISMS.values())
        ]
        for each in patches:
            each.start()
        try:
            yield self
        finally:
            for each in patches:
                each.stop()

    def _watched(self, release: Any) -> Any:
        def watched(mechanism: Mechanism, value: Any, rng: np.random.Generator) -> Any:
            if isinstance(mechanism, Repeated):
                return release(
                    mechanism, self._priced(mechanism, value), np.random.default_rng(TRIALS)
                )
            if self.depth:
                return release(mechanism, value, rng)
            self.depth += 1
            try:
                return self._release(release, mechanism, value, rng)
            finally:
                self.depth -= 1

        return watched

    def _priced(self, mechanism: Repeated, trial: Trial) -> Trial:
        """``trial`` from a seed of its own, and an ``AssertionError`` unless it releases what a
        trial is priced for.
        """
        number = count()

        def seen(_: np.random.Generator) -> tuple[float, Any]:
            place = len(self.log)
            found = trial(np.random.default_rng([TRIALS, next(number)]))
            made = Counter(item.mechanism for item in self.log[place:])
            priced = [
                Counter(dict(zip(one.mechanisms, one.counts, strict=True)))
                for one in mechanism.trials
            ]
            assert any(made <= one for one in priced), (
                f"a trial released {made}, which none of {priced} pays for"
            )
            return found

        return seen

    def _release(
        self, release: Any, mechanism: Mechanism, value: Any, rng: np.random.Generator
    ) -> Any:
        assert not callable(value), f"{mechanism.kind} minimises for its noise: see tests/tape.py"
        place, kept = len(self.log), np.copy(value)
        if self.recorded is None:
            output = release(mechanism, value, rng)
        else:
            assert place < len(self.recorded), "the neighbour releases more"
            output = self.recorded[place].output
        self.log.append(Release(mechanism, kept, output))
        return np.copy(output) if isinstance(output, np.ndarray) else output
