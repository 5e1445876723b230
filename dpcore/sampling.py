"""How the rows of one release are drawn, and what that does to its price.

| sampler             | add/remove       | replace-one                     | replace-labels      |
|---------------------|------------------|---------------------------------|---------------------|
| FullBatch           | the mechanism    | the mechanism                   | the mechanism       |
| Poisson             | Lemma 2.4        | exact pair, if contributions    | as for replace-one  |
|                     |                  | are ball; else Lemma 2.3's form |                     |
| WithoutReplacement  | no proof         | Lemma 2.3's form                | same, if ball       |
| Permuted            | no proof         | mixture of RSGD-AR              | no proof            |
| Allocation          | pair of an epoch | no proof                        | no proof            |

A pair without proof raises ``PriceUnknown``. A price is the least of the lemma, no amplification at
all (joint quasi-convexity) and the pure-DP route. A drawn batch serves one release: its price holds
for fresh rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from dpcore.errors import InputError, PriceUnknown, require_choice, require_count, require_fraction
from dpcore.mechanisms import pairs, renyi, subsampling
from dpcore.mechanisms.base import Array, Mechanism, mechanism, sampler, settle
from dpcore.mechanisms.gaussian import Gaussian
from dpcore.noise import distinct, poisson_batches, poisson_rows
from dpcore.problem import Adjacency

# What one record's contributions are known to keep: only the distance between neighbouring data
# sets; also the distance to the batch without the record (|u|, |v|, |u - v| <= sensitivity); or all
# within a ball of radius sensitivity / 2.
CONTRIBUTIONS = ("pair", "triangle", "ball")


class Sampler(Protocol):
    """Draws the rows of one release and amplifies its price."""

    def draw(self, n: int, rng: np.random.Generator) -> Any: ...

    def amplify(self, mechanism: Mechanism, adjacency: Adjacency | str = ...) -> Mechanism: ...


@sampler("full_batch")
@dataclass(frozen=True, slots=True)
class FullBatch:
    """All rows, in their order."""

    def draw(self, n: int, rng: np.random.Generator) -> slice:
        """A slice of everything; nothing is copied."""
        return slice(None)

    def amplify(
        self, mechanism: Mechanism, adjacency: Adjacency | str = Adjacency.ADD_REMOVE
    ) -> Mechanism:
        """The mechanism itself: its price is not changed."""
        return mechanism


@sampler("poisson")
@dataclass(frozen=True, slots=True)
class Poisson:
    """Every row independently with chance ``rate``; batches vary in size and may be empty."""

    rate: float

    def __post_init__(self) -> None:
        require_fraction(rate=self.rate)
        settle(self)

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Sorted row indices; the work grows with the batch, not with n (``poisson_rows``)."""
        return poisson_rows(n, self.rate, rng)

    def batches(self, n: int, count: int, rng: np.random.Generator) -> list[Array]:
        """``count`` draws, for releases in a row."""
        return poisson_batches(n, self.rate, count, rng)

    def amplify(
        self,
        mechanism: Mechanism,
        adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
        contributions: str = "pair",
    ) -> Mechanism:
        """``mechanism`` on such a batch. Rate 1 is the full batch and returns the mechanism itself.

        Replaced records need a statement about single ``contributions``: "triangle" or "ball".
        """
        if self.rate == 1.0:
            return mechanism
        return Sampled(mechanism, self, Adjacency(adjacency), contributions)


@sampler("without_replacement")
@dataclass(frozen=True, slots=True)
class WithoutReplacement:
    """``batch_size`` distinct rows of exactly ``n``, every set equally likely."""

    batch_size: int
    n: int

    def __post_init__(self) -> None:
        require_count(batch_size=self.batch_size, n=self.n)
        settle(self)
        if self.batch_size > self.n:
            raise InputError(
                "Expected batch_size <= n for sampling without replacement, got "
                f"batch_size={self.batch_size} and n={self.n}; lower batch_size, or use the full "
                "batch."
            )

    @property
    def rate(self) -> float:
        """Share of the rows in a batch."""
        return self.batch_size / self.n

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """Sorted row indices; raises ``InputError`` unless the data hold ``n`` rows as declared."""
        _check_rows(self, n, self.n)
        return distinct(n, self.batch_size, rng)

    def amplify(
        self,
        mechanism: Mechanism,
        adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
        contributions: str = "pair",
    ) -> Mechanism:
        """``mechanism`` (of replace-one sensitivity) on such a batch; batch_size = n is itself.

        Under replace-labels contributions must be close as well: ``contributions`` = "ball".
        """
        if self.batch_size == self.n:
            return mechanism
        return Sampled(mechanism, self, Adjacency(adjacency), contributions)


@sampler("permuted")
@dataclass(frozen=True, slots=True)
class Permuted:
    """One secret uniform permutation of exactly ``n`` rows, cut into batches of ``sizes``; the rest
    is left out.

    Lives inside one release of ``RandomisedSensitivityGaussian`` under replace-one: batches, order
    and iterates stay inside, or the price is void.
    """

    sizes: tuple[int, ...]
    n: int

    def __post_init__(self) -> None:
        settle(self)
        require_count(n=self.n)
        for size in self.sizes:
            require_count(size=size)
        if not 0 < sum(self.sizes) <= self.n:
            raise InputError(
                f"Expected batches of at most n={self.n} rows together, got {sum(self.sizes)} in "
                f"sizes={self.sizes}."
            )

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """The rows of all batches in one array, batch after batch; ``cut`` gives the slices."""
        _check_rows(self, n, self.n)
        return rng.permutation(n)[: sum(self.sizes)]

    def cut(self) -> list[slice]:
        """Where each batch stands in the drawn rows."""
        ends = np.cumsum((0, *self.sizes))
        return [slice(int(start), int(end)) for start, end in pairwise(ends)]

    def amplify(
        self, mechanism: Mechanism, adjacency: Adjacency | str = Adjacency.REPLACE_ONE
    ) -> Mechanism:
        """The mixture price of ``mechanism``, whose batch sizes must be these."""
        return Sampled(mechanism, self, Adjacency(adjacency))


@sampler("allocation")
@dataclass(frozen=True, slots=True)
class Allocation:
    """Epochs of ``bins`` = t batches: each row is in one of them, chosen uniformly and
    independently of all other rows.

    ``bins`` releases in a row of one mechanism share an epoch and its price, whole or not; then
    rows are allocated anew. One pass over the rows an epoch, every row used once. A shuffled order
    that is cut into batches of fixed size is another thing: there the places of the others tell
    this row's, and no amplification is proved.
    """

    bins: int

    def __post_init__(self) -> None:
        settle(self)
        require_count(bins=self.bins)

    @property
    def rate(self) -> float:
        """Chance that a row is in a given batch."""
        return 1.0 / self.bins

    def epoch(self, n: int, rng: np.random.Generator) -> list[Array]:
        """The sorted rows of every batch of an epoch; together each row once."""
        places = rng.integers(self.bins, size=n)
        rows = np.argsort(places, kind="stable")
        ends = np.cumsum(np.bincount(places, minlength=self.bins))
        return np.split(rows, ends[:-1])

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """The rows of one batch alone, for tests: a door draws whole epochs."""
        return self.epoch(n, rng)[0]

    def amplify(
        self, mechanism: Mechanism, adjacency: Adjacency | str = Adjacency.ADD_REMOVE
    ) -> Mechanism:
        """``mechanism`` on a batch of such an epoch. One bin is the full batch."""
        return mechanism if self.bins == 1 else Sampled(mechanism, self, Adjacency(adjacency))


def _check_rows(sampler: object, found: int, declared: int) -> None:
    if found != declared:
        kind = type(sampler).__name__
        raise InputError(f"Expected n={declared} rows for {kind}, got {found}; declare exact n.")


@mechanism("sampled")
@dataclass(frozen=True, slots=True)
class Sampled(Mechanism):
    """``mechanism`` on the rows that ``sampler`` draws, priced for ``adjacency``; made by
    ``sampler.amplify``.

    Raises ``PriceUnknown`` for a pair that no theorem covers.
    """

    mechanism: Mechanism
    sampler: Poisson | WithoutReplacement | Permuted | Allocation
    adjacency: Adjacency
    contributions: str = "pair"

    def __post_init__(self) -> None:
        settle(self)
        require_choice(CONTRIBUTIONS, contributions=self.contributions)
        refuse_unproved(self)

    @property
    def sensitivity(self) -> float:
        """That of the inner mechanism: how far the value on one batch moves."""
        inner: Any = self.mechanism
        return float(inner.sensitivity)

    def charges(self, count: int) -> int:
        """``count``, or the epochs of an allocation that hold so many: each is priced whole."""
        return -(-count // self.sampler.bins) if isinstance(self.sampler, Allocation) else count

    @property
    def proved_for(self) -> Adjacency:
        """Its own ``adjacency``."""
        return self.adjacency

    @property
    def pure_epsilon(self) -> float:
        """ln(1 + q (e^eps - 1)) of the inner one."""
        if isinstance(self.sampler, Permuted):
            return self.mechanism.pure_epsilon
        return subsampling.pure_amplified(self.mechanism.pure_epsilon, self.sampler.rate)

    def release(self, value: Any, rng: np.random.Generator) -> Any:
        """The inner mechanism's noise on a value computed from the drawn rows.

        On a grid of half the share where the price is that of a ball: there each of two records
        moves the sum without them by half the sensitivity, and so much less may rounding add to it.
        """
        inner = self.mechanism
        if isinstance(inner, Gaussian) and self.contributions == "ball":
            inner = replace(inner, rounding=inner.rounding / 2.0)
        return inner.release(value, rng)

    def distance(self, value: Any, other: Any) -> float:
        """The inner mechanism's distance."""
        return self.mechanism.distance(value, other)

    def rdp(self, alphas: Array) -> Array:
        """The amplified curve, shape (k,), the least that is proved; an allocation: of an epoch."""
        alphas = np.asarray(alphas, dtype=np.float64)
        inner: Any = self.mechanism
        if isinstance(self.sampler, Permuted):
            return np.asarray(inner.permuted_rdp(alphas))
        if isinstance(self.sampler, Allocation):
            return pairs.allocated_gaussian(alphas, inner.ratio, self.sampler.bins)
        curve = self._lemma(alphas)
        if np.isfinite(self.pure_epsilon):
            curve = np.minimum(curve, renyi.pure(alphas, self.pure_epsilon))
        return curve

    def _lemma(self, alphas: Array) -> Array:
        assert not isinstance(self.sampler, Permuted | Allocation)
        base, rate = self.mechanism, self.sampler.rate
        added = self.adjacency is Adjacency.ADD_REMOVE
        if isinstance(base, Gaussian):
            if added:
                return pairs.added_gaussian(alphas, base.ratio, rate)
            if isinstance(self.sampler, Poisson) and self.contributions == "ball":
                # The sensitivity is the diameter of the ball.
                return pairs.replaced_gaussian(alphas, base.ratio / 2.0, rate)
            return subsampling.fixed_size_gaussian(alphas, base.ratio, rate)
        if added:
            factor = 1.0 if base.kind == "laplace" else 3.0  # of Lemma 2.4
            return subsampling.poisson_general(alphas, base.rdp, rate, factor)
        return subsampling.fixed_size_general(alphas, base.rdp, rate, base.pure_epsilon)


Rule = Callable[["Sampled"], str | None]


def _poisson_rule(sampled: Sampled) -> str | None:
    if sampled.adjacency is Adjacency.ADD_REMOVE or sampled.contributions != "pair":
        return None
    return (
        "Lemma 2.4 compares batches with and without a record; a replaced record needs the "
        "three-point bound: use contributions='triangle' or 'ball' where it holds (norm-clipped "
        "sums: 'ball' with sensitivity 2C), WithoutReplacement, or adjacency='add_remove'"
    )


def _fixed_size_rule(sampled: Sampled) -> str | None:
    if sampled.adjacency is Adjacency.ADD_REMOVE:
        return (
            "Lemma 2.3 is proved for replaced records only: use Poisson, or "
            "adjacency='replace_one' with sensitivity 2C"
        )
    if sampled.adjacency is Adjacency.REPLACE_LABELS and sampled.contributions != "ball":
        return (
            "another session takes this one's place in a batch: use contributions='ball' where it "
            "holds, or Poisson"
        )
    return None


def _permuted_rule(sampled: Sampled) -> str | None:
    inner: Any = sampled.mechanism
    if not hasattr(inner, "permuted_rdp"):
        return (
            "a permutation amplifies only the one release of RandomisedSensitivityGaussian: use "
            "that, or FullBatch"
        )
    if sampled.adjacency is not Adjacency.REPLACE_ONE:
        return (
            "the mixture over batches is proved for replaced records only: use "
            "adjacency='replace_one'"
        )
    drawn: Any = sampled.sampler
    if (inner.sizes, inner.n) != (drawn.sizes, drawn.n):
        return "its batch sizes are not those of the sampler: use the mechanism's own sizes and n"
    return None


def _allocation_rule(sampled: Sampled) -> str | None:
    if sampled.adjacency is not Adjacency.ADD_REMOVE:
        return (
            "an epoch of batches that every record is in once has a price for one record more or "
            "less alone: use Poisson batches, or adjacency='add_remove'"
        )
    if not isinstance(sampled.mechanism, Gaussian):
        return "its proof is for Gaussian noise: use Poisson batches"
    return None


RULES: dict[str, Rule] = {
    "allocation": _allocation_rule,
    "poisson": _poisson_rule,
    "without_replacement": _fixed_size_rule,
    "permuted": _permuted_rule,
}


def refuse_unproved(sampled: Sampled) -> None:
    """Raise ``PriceUnknown`` where no theorem prices this (sampler, adjacency, mechanism)."""
    inner, way = sampled.mechanism, sampled.sampler
    kind = getattr(way, "kind", None)
    if kind not in RULES or not isinstance(inner, Mechanism):
        raise InputError(
            f"Expected a mechanism and a sampler that draws batches, got {inner!r} and {way!r}."
        )
    reason = RULES[kind](sampled)
    if inner.kind == "sampled":
        reason = "a batch of a batch has no price here: amplify the inner mechanism once"
    elif reason is None and inner.proved_for not in (None, sampled.adjacency):
        reason = (
            f"the inner mechanism is priced for adjacency {inner.proved_for!s}: build it for "
            f"{sampled.adjacency!s}"
        )
    elif reason is None and kind != "permuted" and hasattr(inner, "permuted_rdp"):
        reason = "it lives on a permutation of all rows: use Permuted"
    if reason is not None:
        raise PriceUnknown(
            f"No proved price for {inner.kind!r} with {kind!r} under {sampled.adjacency!s}: "
            f"{reason}."
        )
