"""The one door of one run: it charges, draws the rows, asks the query and adds the noise.

``open_door`` makes every budget, ``release_once`` every single noisy number outside a training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from dpcore.accounting import gaussian_filter
from dpcore.accounting.curves import ORDERS
from dpcore.accounting.events import Events, curves_of
from dpcore.accounting.limits import SLACK
from dpcore.accounting.observers import Call, Observer, Query, View
from dpcore.errors import (
    BudgetExceeded,
    DPFlowsError,
    InputError,
    PriceUnknown,
    here,
    require_maker,
)
from dpcore.mechanisms import Mechanism
from dpcore.mechanisms.base import Array
from dpcore.noise import plain_generator, secure_generator
from dpcore.objective import Objective
from dpcore.problem import Adjacency
from dpcore.sampling import Allocation, Poisson, Sampled

# What has one of these is a view of records, not a number made of them.
READS = ("gradient_sum", "value_sum", "take", "forward")
# Batches that are drawn at once, and the rows that are expected in them.
MOST_AHEAD, ROWS_AHEAD = 16, 2**14


class Lease:
    """A batch that is usable during one release and dead afterwards, so that it cannot serve a
    second one.

    What is reached through it lives as long: views of the records (``transform``, ``within``,
    ``columns``, ``take``, one class against the rest, parts) are leases of the same life, and
    methods ask for it at every call. A query that keeps one cannot ask it for exact sums after its
    release. Plain numbers and arrays are handed out as they are. Observers of the life are told of
    every call, with the ``views`` that lead from the batch to what is asked.
    """

    __slots__ = ("_batch", "_life", "_views")

    def __init__(self, batch: Any, life: Life | None = None, views: tuple[View, ...] = ()) -> None:
        self._batch: Any = batch
        self._life = Life() if life is None else life
        self._views = views

    def __getattr__(self, name: str) -> Any:
        self._life.require(name)
        return self._leased(View(name, ()), getattr(self._batch, name))

    def __matmul__(self, W: Array) -> Any:
        """The scores of rows that stand in place of a matrix; an operator is looked up here, not on
        the batch.
        """
        self._life.require("scores")
        self._life.tell(Call("scores", (W,), getattr(self._batch, "n", 0), self._views))
        return self._batch @ W

    def _leased(self, step: View, value: Any) -> Any:
        """``value`` with this life where records can be asked through it, one ``step`` from
        here.
        """
        if isinstance(value, np.ndarray | float | int):
            return value
        if isinstance(value, list | tuple):
            return (
                type(value)([self._leased(step, item) for item in value])
                if any(map(_reads, value))
                else value
            )
        method = isinstance(value, MethodType)  # has no records but those of its object
        if not method and _reads(value):
            return Lease(value, self._life, (*self._views, step))
        asks = method or (callable(value) and not isinstance(value, type))
        return self._living(step, value) if asks else value

    def _living(self, step: View, asked: Callable[..., Any]) -> Callable[..., Any]:
        """``asked``, which needs this life at every call."""

        def living(*arguments: Any, **named: Any) -> Any:
            self._life.require(step.name)
            given = (*arguments, *named.values())
            self._life.tell(Call(step.name, given, getattr(self._batch, "n", 0), self._views))
            return self._leased(View(step.name, given), asked(*arguments, **named))

        return living

    def close(self) -> None:
        """End the life of this lease and of all that came from it."""
        self._life.over = True
        self._batch = None


class Life:
    """How long a batch and its views may be asked, and who is told."""

    __slots__ = ("observers", "over")

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.over = False
        self.observers = observers

    def tell(self, call: Call) -> None:
        """Tell the observers what is asked."""
        for observer in self.observers:
            observer.asked(call)

    def require(self, name: str) -> None:
        """Raise ``DPFlowsError`` after the end."""
        if self.over:
            raise DPFlowsError(
                f"The batch was used by the release that it was drawn for; .{name} needs a new "
                "release."
            )


def _reads(value: Any) -> bool:
    """Whether records can be asked through ``value``."""
    return any(hasattr(value, name) for name in READS)


class Draws:
    """The rows of one release after the other. Where a mechanism follows itself, Poisson batches
    are drawn some at a time, which takes half as long, ever more of them; what another release
    leaves of them, or of an epoch, is not used any more.
    """

    def __init__(self) -> None:
        self._last: Mechanism | None = None
        self._left: list[Any] = []
        self._ahead = 1

    def rows(self, mechanism: Mechanism, records: Any, rng: np.random.Generator) -> Any:
        """Those of ``records`` for ``mechanism``'s next release, None for all of them."""
        again = mechanism is self._last or mechanism == self._last
        self._last = mechanism
        if not isinstance(mechanism, Sampled):
            return None
        if not again or not self._left:
            self._ahead = min(2 * self._ahead, MOST_AHEAD) if again else 1
            self._left = self._drawn(mechanism.sampler, records.n, rng)
        return self._left.pop(0)

    def _drawn(self, sampler: Any, n: int, rng: np.random.Generator) -> list[Any]:
        if isinstance(sampler, Allocation):  # an epoch ends with its last batch
            return sampler.epoch(n, rng)
        if isinstance(sampler, Poisson):
            few = int(ROWS_AHEAD / max(n * sampler.rate, 1.0))
            return sampler.batches(n, max(min(self._ahead, few), 1), rng)
        return [sampler.draw(n, rng)]


class Budget:
    """Holds the data and the secret generator of one run; nothing else does.

    A planned run must release exactly what ``planned`` lists, in order (a prefix is allowed). An
    ``adaptive`` run may release anything as long as its sum stays below the price of ``planned`` at
    every order, under its own adjacency and under any other that a ledger may charge it for
    (``Events.prices``); the one-order filter theorem (Feldman & Zrnic 2021; Lécuyer 2021) at each
    order then gives the run that whole curve. ``noise`` is the form of the noise
    (``dpcore.noise.FORMS``), in which ``planned`` was priced too. A budget refuses in another
    process than the one that made it, and cannot be pickled. ``observers`` are told of what is
    asked and what is released. ``in_mu``: a ledger counts mu^2, so an adaptive run keeps below that
    of ``planned`` as well, under each relation. ``open_door`` makes one.
    """

    def __init__(
        self,
        planned: Events,
        objective: Objective,
        secret: np.random.Generator,
        *,
        adaptive: bool = False,
        noise: str = "rounded",
        on_charge: Callable[[], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        observers: Sequence[Observer] = (),
        in_mu: bool = False,
    ) -> None:
        self._maker = here()
        self.planned = planned
        self.adaptive = adaptive
        self.releases = 0
        self.notes: list[dict[str, float]] = []
        self._objective = objective
        self._secret = secret
        self._noise = noise
        self._on_charge, self._on_progress, self._observers = (
            on_charge,
            on_progress,
            tuple(observers),
        )
        self._expected = iter(planned)
        self._total = len(planned)
        # A planned run releases what was priced; only an adaptive one needs a cap.
        self._in_mu = in_mu and adaptive
        self._cap = (
            self._prices(planned) * (1.0 + SLACK) if adaptive else np.zeros((1, ORDERS.size))
        )
        self._spent = np.zeros_like(self._cap)
        self._ran: list[Mechanism] = []
        self._draws = Draws()

    def release(self, mechanism: Mechanism, query: Callable[[Any], Any]) -> Any:
        """Charge ``mechanism``, draw its rows, run ``query`` on them and return the noisy value.

        Raises ``BudgetExceeded`` (and changes nothing) where the run has no room for it.
        """
        require_maker(self._maker, "a budget")
        formed = mechanism.with_noise(self._noise)
        self._charge(formed)
        if self._on_charge is not None:
            self._on_charge()
        rows = self._rows(formed)
        lease = Lease(self._batch(rows), Life(self._observers))
        try:
            value = self._noisy(formed, query, lease)
        finally:
            lease.close()
            if self._on_progress is not None:
                self._on_progress(self.releases, self._total)
        for observer in self._observers:
            observer.released(mechanism, rows, query, value)
        return value

    def affords(self, *mechanisms: Mechanism) -> bool:
        """Whether all of ``mechanisms`` could be released now, one after the other."""
        if not self.adaptive:
            raise InputError(
                "Expected an adaptive run for affords(); a planned run releases what its plan "
                "lists."
            )
        cost = sum(
            count * self._curves(item.with_noise(self._noise))
            for item, count in Counter(mechanisms).items()
        )
        return bool(np.all(self._spent + cost <= self._cap))

    def note(self, **numbers: float) -> None:
        """Record public numbers (step size, noise scale) of the current release for the trace."""
        self.notes.append({"release": self.releases, **numbers})

    @property
    def spent(self) -> Array:
        """Rényi curve of what has been released so far: a diagnostic, not the guarantee."""
        curve: Array = self._spent[0, : len(ORDERS)] if self.adaptive else self.events.price()
        return curve

    @property
    def events(self) -> Events:
        """What has been released so far."""
        return Events.of(self._ran, adjacency=self.planned.adjacency, unit=self.planned.unit)

    def _curves(self, mechanism: Mechanism) -> Array:
        """What one release of an adaptive run costs, in the rows of the cap."""
        curves = curves_of(mechanism, self.planned.adjacency, self.planned.rules)
        if not self._in_mu:
            return curves
        return with_mu(curves, Events.of([mechanism], adjacency=self.planned.adjacency))

    def _prices(self, events: Events) -> Array:
        return with_mu(events.prices(), events) if self._in_mu else events.prices()

    def _charge(self, mechanism: Mechanism) -> None:
        if self.adaptive:
            spent = self._spent + self._curves(mechanism)
            if not (spent <= self._cap).all():
                raise BudgetExceeded(
                    f"Expected a release within what the run reserved, got {mechanism!r} after "
                    f"{self.releases} releases; ask affords() before."
                )
            self._spent = spent
        else:
            expected = next(self._expected, None)
            if mechanism is not expected and mechanism != expected:
                # nothing more may be released by a run that left its plan
                self._expected = iter(())
                raise BudgetExceeded(
                    f"Expected release {self.releases + 1} of the plan, {expected!r}, got "
                    f"{mechanism!r}."
                )
        self.releases += 1
        self._ran.append(mechanism)

    def _rows(self, mechanism: Mechanism) -> Any:
        return self._draws.rows(mechanism, self._objective, self._secret)

    def _batch(self, rows: Any) -> Objective:
        return self._objective if rows is None else self._objective.take(rows)

    def _noisy(self, mechanism: Mechanism, query: Query, lease: Lease) -> Any:
        # The noise is added while the batch is alive: objective perturbation minimises for the
        # drawn noise.
        return mechanism.release(query(lease), self._secret)

    def __reduce__(self) -> Any:
        raise TypeError(
            "A budget holds records and secret noise: it stays in the process that made it."
        )


def open_door(
    planned: Events,
    records: Any,
    *,
    adaptive: bool = False,
    noise: str = "rounded",
    on_charge: Callable[[], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    fixed_noise_seed: int | None = None,
    secret: np.random.Generator | None = None,
    door: Callable[..., Budget] | None = None,
    observers: Sequence[Observer] = (),
    in_mu: bool = False,
) -> Budget:
    """The only maker of a budget over ``records``, which are what a query of it is asked on.

    The noise comes from a fresh secret generator, unless ``secret`` is one that an outer release
    has drawn already (a trial of a search), or ``fixed_noise_seed`` makes a run for tests that may
    never leave. ``observers`` look at what is asked and released; ``door`` is another class of
    budgets, a planted fault.
    """
    if secret is None:
        secret = (
            secure_generator() if fixed_noise_seed is None else plain_generator(fixed_noise_seed)
        )
    made = Budget if door is None else door
    return made(
        planned,
        records,
        secret,
        adaptive=adaptive,
        noise=noise,
        on_charge=on_charge,
        on_progress=on_progress,
        observers=observers,
        **({"in_mu": True} if in_mu else {}),
    )


def with_mu(curves: Array, events: Events) -> Array:
    """``curves`` with a column more: mu^2 of ``events`` under the relation of each row, infinite
    where none is known.
    """
    relations = (events.adjacency, Adjacency.REPLACE_ONE)[: len(curves)]
    squared = np.full((len(curves), 1), np.inf)
    for row, relation in enumerate(relations):
        with suppress(PriceUnknown):
            squared[row] = gaussian_filter.cost_of(events, relation)
    return np.hstack([curves, squared])


class Released(NamedTuple):
    """One released value, and the events that were charged for it."""

    value: Any
    events: Events


def events_once(
    mechanism: Mechanism, *, adjacency: Adjacency | str, unit: str, noise: str
) -> Events:
    """What ``release_once`` charges: ``mechanism`` with its noise in the form ``noise``, once."""
    return Events.of([mechanism.with_noise(noise)], adjacency=adjacency, unit=unit)


def release_once(
    mechanism: Mechanism,
    records: Any,
    query: Query,
    *,
    adjacency: Adjacency | str,
    unit: str,
    noise: str,
    on_charge: Callable[[], None] | None = None,
    fixed_noise_seed: int | None = None,
) -> Released:
    """One release outside a training, with the noise in the form ``noise`` that the run asked for:
    value and events.

    ``on_charge`` is called before anything is drawn: a ledger has the entry on disk by then.
    """
    events = events_once(mechanism, adjacency=adjacency, unit=unit, noise=noise)
    budget = open_door(
        events, records, noise=noise, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed
    )
    return Released(budget.release(mechanism, query), events)
