"""Several classes for algorithms whose proof needs one margin: each class against the rest, all in
one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpcore.accounting.curves import ORDERS, curve_of
from dpcore.accounting.limits import SLACK
from dpcore.algorithms import Algorithm
from dpcore.losses import Array
from dpcore.mechanisms import Mechanism, Rounds
from dpcore.problem import Adjacency, Problem, Requires


@dataclass(frozen=True, slots=True, kw_only=True)
class OneVsRest:
    """Run ``inner`` once for each of ``problem.outputs`` classes, label +1 for the class and -1 for
    the rest.

    One record takes part in every run, so the price is the composition of all of them: the plan is
    the inner plan as many times as there are classes, and calibration splits the budget evenly by
    giving all one noise multiplier.
    """

    inner: Algorithm
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "inner", replace(self.inner, noise_multiplier=self.noise_multiplier)
        )

    @classmethod
    def of(cls, inner: Algorithm) -> OneVsRest:
        return cls(inner=inner, noise_multiplier=inner.noise_multiplier)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def requires(self) -> Requires:
        return self.inner.requires

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        return self.inner.adjacencies

    @property
    def argument(self) -> str:
        """Why a record moves a release by no more than its sensitivity: the inner algorithm's
        sentence.
        """
        return self.inner.argument

    @property
    def asks(self) -> frozenset[str]:
        """What the inner algorithm asks of the records of one class."""
        return self.inner.asks

    @property
    def releases(self) -> str:
        return f"{self.inner.releases}, for each class"

    @property
    def adaptive(self) -> bool:
        return self.inner.adaptive

    @property
    def private(self) -> bool:
        return self.inner.private

    @property
    def accountant(self) -> str | None:
        """The accountant that the inner algorithm stands for, which the runs of all classes are
        stated by.
        """
        return self.inner.accountant

    @property
    def calibrates(self) -> bool:
        """Whether the inner algorithm fits the probabilities of each class."""
        return self.inner.calibrates

    @property
    def hidden_noise(self) -> str:
        """Why the inner algorithm gives no noise of a weight."""
        return self.inner.hidden_noise

    def marginals(self, problem: Problem, first: Any) -> dict[str, Array]:
        """Those that the first class's run released: columns are the same for all classes."""
        return self.inner.marginals(one_class(problem), first)

    def weight_noise(self, problem: Problem) -> float | None:
        """The inner algorithm's, which the runs of all classes share."""
        return self.inner.weight_noise(one_class(problem))

    def advice(self, problem: Problem) -> str:
        """The inner algorithm's warning."""
        return self.inner.advice(one_class(problem))

    def check(self, problem: Problem) -> None:
        """What the inner algorithm asks of one class."""
        self.inner.check(one_class(problem))

    def outline(self, problem: Problem) -> list[dict[str, Any]]:
        """The inner algorithm's phases, which each class goes through."""
        return self.inner.outline(one_class(problem))

    def parameters(self, problem: Problem) -> dict[str, Any]:
        """The inner algorithm's, which the runs of all classes share."""
        return self.inner.parameters(problem)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        return Rounds(self.inner.plan(one_class(problem)), problem.outputs)

    def fit(self, problem: Problem, budget: Any, rng: np.random.Generator) -> Array:
        """Return the weights of all classes, one after the other, shape (outputs * d,)."""
        single = one_class(problem)
        share = sum((curve_of(item) for item in self.inner.plan(single)), np.zeros(len(ORDERS)))
        doors: Iterator[Any] = (
            ClassDoor(budget, label, single, share) for label in range(problem.outputs)
        )
        return np.concatenate([self.inner.fit(single, door, rng) for door in doors])


def one_class(problem: Problem) -> Problem:
    """The problem of one class against the rest."""
    return replace(problem, outputs=1)


class ClassDoor:
    """The budget of one class: its queries see the labels of this class against the rest.

    An adaptive run may spend no more than the price of its own plan, so that no class takes
    another's share.
    """

    def __init__(self, budget: Any, label: int, problem: Problem, share: Array) -> None:
        self._budget, self._label, self._loss = budget, label, problem.loss
        self._share, self._spent = share * (1.0 + SLACK), np.zeros(len(ORDERS))

    def release(self, mechanism: Mechanism, query: Callable[[Any], Any]) -> Any:
        value = self._budget.release(
            mechanism, lambda batch: query(batch.against_rest(self._label, self._loss))
        )
        self._spent = self._spent + curve_of(mechanism)
        return value

    def affords(self, *mechanisms: Mechanism) -> bool:
        cost = sum((curve_of(item) for item in mechanisms), self._spent)
        return bool(np.all(cost <= self._share)) and self._budget.affords(*mechanisms)

    def note(self, **numbers: float) -> None:
        self._budget.note(**numbers, label=self._label)
