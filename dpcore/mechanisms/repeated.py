"""The best of a random number of private trials, priced as one release: selection that is paid for.

A trial Q draws a public setting, trains and releases a score; K trials run, K random and
independent of the records, and the outcome of the highest score leaves. With f(x) = E[x^K] an
outcome y has the chance f(Q(<= y)) - f(Q(< y)), which is Q(y) times a mean of f' between both, so
for neighbours Q, Q' and every order a > 1

    e(a) <= e_Q(a) + ln max_{q, q'} [f'(q)^a f'(q')^(1-a)] / (a-1),

q and q' the chances of one event under Q and Q'. Papernot & Steinke (2022), Lemma 7. Outcomes need
a total order: equal scores go to the earlier trial, which is a random one of them, since trials are
identically distributed.

A trial's curve is the largest of its settings' curves: the setting is drawn without the records and
is part of the outcome, so E_Q'[(Q/Q')^a] is the mean of the settings' moments, and no mean is above
the largest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, expm1, inf, log, log1p, sqrt
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq

from dpcore.errors import InputError, require_count, require_positive
from dpcore.mechanisms.base import GRID_SHARE, Array, Mechanism, mechanism, settle
from dpcore.mechanisms.gaussian import Gaussian, log_gaussian_delta
from dpcore.problem import Adjacency

# A trial: secret generator -> (score, outcome). The score is a number and never NaN.
Trial = Callable[[np.random.Generator], tuple[float, Any]]
Change = Callable[[Mechanism], Mechanism]

# Above this mean the chance of one trial is below the smallest float, and nobody wants to wait for
# so many.
MOST_TRIALS = 500.0


@mechanism("composition")
@dataclass(frozen=True, slots=True)
class Composition(Mechanism):
    """Releases run one after the other and seen as one: ``counts[i]`` times ``mechanisms[i]``; for
    prices alone.

    ``cap`` = True: an adaptive run that may release other things, and only keeps below the sum of
    these curves at every order. Nothing else about the list then bounds it.
    """

    mechanisms: tuple[Mechanism, ...]
    counts: tuple[int, ...]
    cap: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.cap, bool):
            raise InputError(f"Expected cap to be true or false, got cap={self.cap!r}.")
        settle(self)
        if not self.mechanisms or len(self.mechanisms) != len(self.counts):
            raise InputError(
                "Expected one count for each of at least one mechanism, got "
                f"{len(self.mechanisms)} mechanisms and counts={self.counts!r}."
            )
        for item, count in zip(self.mechanisms, self.counts, strict=True):
            require_count(counts=count)
            if not isinstance(item, Mechanism):
                raise InputError(f"Expected mechanisms in a composition, got {item!r}.")

    @property
    def proved_for(self) -> Adjacency | None:
        """That of the first release that has only one."""
        return next(
            (item.proved_for for item in self.mechanisms if item.proved_for is not None), None
        )

    @property
    def pure_epsilon(self) -> float:
        """The sum: basic composition; infinity under a ``cap``, which bounds the curve and nothing
        else.
        """
        if self.cap:
            return inf
        return sum(
            n * item.pure_epsilon for item, n in zip(self.mechanisms, self.counts, strict=True)
        )

    def rdp(self, alphas: Array) -> Array:
        """The sum of the parts, shape (k,). Mironov (2017), Proposition 1."""
        parts = [
            item.charges(n) * item.rdp(alphas)
            for item, n in zip(self.mechanisms, self.counts, strict=True)
        ]
        return np.asarray(np.sum(parts, axis=0))

    def log_delta(self, alphas: Array, epsilon: float, share: float = GRID_SHARE) -> float:
        """ln of the least known delta at ``epsilon``: from the curve at ``alphas``, for Gaussians
        on all rows exact.

        Dong, Roth & Su (2022), Corollary 3.3: they compose to one of mu = sqrt(sum ratio^2). Of
        that delta a discrete form may lack ``share``.
        """
        found = log_delta(alphas, self.rdp(alphas), epsilon)
        gaussians = [item for item in self.mechanisms if isinstance(item, Gaussian)]
        if self.cap or len(gaussians) < len(self.mechanisms):
            return found
        pairs = zip(gaussians, self.counts, strict=True)
        exact = log_gaussian_delta(epsilon, sqrt(sum(n * item.ratio**2 for item, n in pairs)))
        if any(item.rounding > 0.0 for item in gaussians):
            exact -= log1p(-share)
        return min(found, exact)

    def release(self, value: Any, rng: np.random.Generator) -> Any:
        """None exists: the parts are released one by one."""
        raise InputError(
            "Expected a single mechanism to release, got a composition, which is a price; use its "
            "parts."
        )

    def distance(self, value: Any, other: Any) -> float:
        """None exists: the parts move one by one."""
        raise InputError(
            "Expected a single mechanism for a distance, got a composition; measure its parts."
        )

    def mapped(self, change: Change) -> Self:
        """The same with ``change`` applied to every release."""
        return replace(self, mechanisms=tuple(change(item) for item in self.mechanisms))

    def _discrete(self) -> Self:
        return self.mapped(lambda item: item.with_noise("discrete"))

    def replaced(self) -> Self:
        """Every release bounded for a replaced record."""
        return self.mapped(lambda item: item.replaced())


@dataclass(frozen=True, slots=True)
class Repeated(Mechanism):
    """The outcome with the highest score of K trials; ``trials`` are the distinct prices that a
    setting can have.
    """

    trials: tuple[Composition, ...]

    def check_trials(self) -> None:
        """Raise ``InputError`` unless there is a trial, and each is a composition."""
        if not self.trials or not all(isinstance(one, Composition) for one in self.trials):
            raise InputError(f"Expected at least one composition in trials, got {self.trials!r}.")

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[K]."""

    def draw(self, rng: np.random.Generator) -> int:
        """K >= 1 by inversion of its distribution function."""
        left, trials, chance = rng.random(), 1, self._first
        while left >= chance > 0.0:
            left -= chance
            chance *= self._ratio(trials)
            trials += 1
        return trials

    @property
    @abstractmethod
    def _first(self) -> float:
        """P(K = 1)."""

    @abstractmethod
    def _ratio(self, trials: int) -> float:
        """P(K = trials + 1) / P(K = trials)."""

    @abstractmethod
    def _selection(self, alphas: Array, curve: Array) -> Array:
        """What choosing among trials of ``curve`` adds at each order, shape (k,)."""

    def release(self, value: Trial, rng: np.random.Generator) -> Any:
        """Run ``value`` K times and return the outcome of the highest score; K and other outcomes
        end here.
        """
        best, outcome = value(rng)
        for _ in range(self.draw(rng) - 1):
            score, other = value(rng)
            if score > best:
                best, outcome = score, other
        return outcome

    def trial_rdp(self, alphas: Array) -> Array:
        """The curve of one trial: the largest of its settings', shape (k,)."""
        return np.asarray(np.max([one.rdp(alphas) for one in self.trials], axis=0))

    def rdp(self, alphas: Array) -> Array:
        """The curve of the whole, shape (k,). It takes its further orders from ``alphas``: more
        give a lower bound.

        A Rényi divergence grows with its order, so a lower order costs at most what any higher one
        does.
        """
        alphas = np.asarray(alphas, dtype=np.float64)
        curve = self.trial_rdp(alphas)
        whole: Array = curve + self._selection(alphas, curve) + log(self.mean) / (alphas - 1.0)
        upwards = np.argsort(alphas)
        whole[upwards] = np.minimum.accumulate(whole[upwards][::-1])[::-1]
        return whole

    def distance(self, value: Any, other: Any) -> float:
        """None exists: what moves between neighbours are the values inside a trial."""
        raise InputError(
            "Expected the releases inside a trial for a distance, got the whole selection; measure "
            "those."
        )

    @property
    def proved_for(self) -> Adjacency | None:
        """That of the first trial that has only one."""
        return next((one.proved_for for one in self.trials if one.proved_for is not None), None)

    def mapped(self, change: Change) -> Self:
        """The same with ``change`` applied to every release of every trial."""
        return replace(self, trials=tuple(one.mapped(change) for one in self.trials))

    def _discrete(self) -> Self:
        return self.mapped(lambda item: item.with_noise("discrete"))

    def replaced(self) -> Self:
        """Every release bounded for a replaced record."""
        return self.mapped(lambda item: item.replaced())


@mechanism("repeat_negative_binomial")
@dataclass(frozen=True, slots=True)
class RepeatNegativeBinomial(Repeated):
    """K from the truncated negative binomial law: P(K = k) ~ (1 - gamma)^k prod_{l < k} (l +
    eta)/(l + 1), k >= 1.

    eta > -1, 0 < gamma < 1; eta = 1 is the geometric, eta = 0 the logarithmic law. f'(x) is E[K]
    gamma^(eta+1) (1 - (1-gamma) x)^(-eta-1), which gives, for every further order b >= 1 at which
    one trial costs e(b),

        e(a) + (1 + eta) [(1 - 1/b) e(b) + ln(1/gamma) / b] + ln E[K] / (a - 1).

    Papernot & Steinke (2022), Theorem 2. b = 1 and, for pure trials, b = infinity are tried beside
    the grid.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        settle(self)
        self.check_trials()
        if not self.eta > -1.0 or not self.eta < inf:
            raise InputError(f"Expected a finite eta > -1, got eta={self.eta!r}.")
        if not 0.0 < self.gamma < 1.0:
            raise InputError(f"Expected gamma in (0, 1), got gamma={self.gamma!r}.")

    @classmethod
    def of_mean(
        cls, trials: tuple[Composition, ...], mean: float, eta: float
    ) -> RepeatNegativeBinomial:
        """The law with E[K] = ``mean`` > 1."""
        _check_mean(mean)
        low = -log(1e3 * mean * (1.0 + max(eta, 1.0))) / min(1.0 + eta, 1.0)
        root = brentq(lambda t: log(cls(trials, eta, exp(t)).mean / mean), low, -1e-12, xtol=1e-15)
        return cls(trials, eta, exp(float(root)))

    @property
    def mean(self) -> float:
        """eta (1/gamma - 1) / (1 - gamma^eta), for eta = 0 its limit (1/gamma - 1) /
        ln(1/gamma).
        """
        depth = -log(self.gamma)
        return (
            expm1(depth) / depth
            if self.eta == 0.0
            else expm1(depth) * self.eta / -expm1(-self.eta * depth)
        )

    @property
    def _first(self) -> float:
        depth = -log(self.gamma)
        return (1.0 - self.gamma) * (
            1.0 / depth if self.eta == 0.0 else self.eta / expm1(self.eta * depth)
        )

    def _ratio(self, trials: int) -> float:
        return (1.0 - self.gamma) * (trials + self.eta) / (trials + 1.0)

    def _selection(self, alphas: Array, curve: Array) -> Array:
        depth = -log(self.gamma)
        further = (1.0 - 1.0 / alphas) * curve + depth / alphas
        pure = max(one.pure_epsilon for one in self.trials)
        return np.full(len(alphas), (1.0 + self.eta) * min(float(further.min()), depth, pure))

    @property
    def pure_epsilon(self) -> float:
        """(2 + eta) times that of a trial: the theorem with both orders infinite."""
        return (2.0 + self.eta) * max(one.pure_epsilon for one in self.trials)


@mechanism("repeat_poisson")
@dataclass(frozen=True, slots=True)
class RepeatPoisson(Repeated):
    """K from the Poisson law of ``rate`` given K >= 1, so that there is always an outcome.

    f'(x) = E[K] e^{rate (x - 1)}, E[K] = rate / (1 - e^-rate), and a trial that is (e^, d^)-DP with
    e^(e^) <= 1 + 1/(a-1) has a q - (a-1) q' - 1 <= (a-1) d^ (apply it to the complements of q and
    q'), so

        e(a) + rate d^ + ln E[K] / (a - 1),

    d^ the least known delta of a trial at e^ = ln(1 + 1/(a-1)), of discrete Gaussians with a share
    of 1e-5 more than the Gaussian's (``GRID_SHARE``). Papernot & Steinke (2022), Theorem
    6, whose Poisson law may give no trial at all: its derivative is the same up to the factor 1 /
    (1 - e^-rate), which E[K] holds here.
    """

    rate: float

    def __post_init__(self) -> None:
        settle(self)
        self.check_trials()
        require_positive(rate=self.rate)
        if self.rate > MOST_TRIALS:
            raise InputError(f"Expected a rate of at most {MOST_TRIALS:g}, got rate={self.rate!r}.")

    @classmethod
    def of_mean(cls, trials: tuple[Composition, ...], mean: float) -> RepeatPoisson:
        """The law with E[K] = ``mean`` > 1."""
        _check_mean(mean)
        low, high = log(mean - 1.0) - 1e-9, log(mean) + 1e-9
        root = brentq(lambda t: log(cls(trials, exp(t)).mean / mean), low, high, xtol=1e-15)
        return cls(trials, exp(float(root)))

    @property
    def mean(self) -> float:
        """rate / (1 - e^-rate)."""
        return self.rate / -expm1(-self.rate)

    @property
    def _first(self) -> float:
        return self.rate / expm1(self.rate)

    def _ratio(self, trials: int) -> float:
        return self.rate / (trials + 1.0)

    def _delta_share(self) -> float:
        """What is added to the delta of discrete noise, as a share of it."""
        return GRID_SHARE

    def _selection(self, alphas: Array, curve: Array) -> Array:
        # A mixture over public settings has at most the largest delta, as it has the largest curve.
        share = self._delta_share()
        hats = [
            [one.log_delta(alphas, log1p(1.0 / (a - 1.0)), share) for a in alphas]
            for one in self.trials
        ]
        chances: Array = self.rate * np.exp(np.max(hats, axis=0))
        return chances


def log_delta(alphas: Array, curve: Array, epsilon: float) -> float:
    """ln of the least delta that ``curve`` at ``alphas`` gives at ``epsilon``; at most 0.

    Canonne, Kamath & Steinke (2020), Proposition 12, joined with sqrt(1 - e^-KL) of Bretagnolle &
    Huber (1979).
    """
    found = (alphas - 1.0) * (curve - epsilon + np.log1p(-1.0 / alphas)) - np.log(alphas)
    lowest = float(curve.min())
    total_variation = 0.5 * log(-expm1(-lowest)) if lowest > 0.0 else -inf
    return min(float(found.min()), total_variation, 0.0)


def _check_mean(mean: float) -> None:
    if not 1.0 < mean <= MOST_TRIALS:
        raise InputError(
            f"Expected a mean number of trials above 1 and at most {MOST_TRIALS:g}, got "
            f"mean={mean!r}."
        )
