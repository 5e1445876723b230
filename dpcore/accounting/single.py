"""Statements sharper than a Rényi curve: the (epsilon, delta) profile of one release, pure DP, advanced composition.

Like the other sharper statements they describe one planned run; a ledger is charged the curve.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import expm1, inf, log, log1p, sqrt

from scipy.optimize import brentq

from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.mechanisms.profile import gaussian_epsilon
from dpcore.sampling import Permuted, Sampled

Counts = Iterable[tuple[Mechanism, int]]

# Relative width to which an epsilon is closed in, on the safe side.
WIDTH = 1e-9


def pure_total(counts: Counts) -> float:
    """Sum of the pure epsilons: basic composition; infinity where one release has none."""
    return float(sum(count * mechanism.pure_epsilon for mechanism, count in counts))


def has_profile(counts: Counts) -> bool:
    """Whether the run is one release that states its own delta(epsilon)."""
    items = tuple(counts)
    return len(items) == 1 and items[0][1] == 1 and _profile(items[0][0]) is not None


def _profile(mechanism: Mechanism):  # type: ignore[no-untyped-def]
    if isinstance(mechanism, Sampled):
        return mechanism.mechanism.permuted_delta if isinstance(mechanism.sampler, Permuted) else None  # type: ignore[attr-defined]
    return getattr(mechanism, "delta", None)


@lru_cache(maxsize=4096)
def profile_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Least epsilon with delta(epsilon) <= ``delta`` for one release; the profile falls with epsilon."""
    profile = _profile(mechanism)
    low, high = 1e-12, 1.0
    while profile(high) > delta:
        low, high = high, 2.0 * high
        if high > 1e6:
            return inf

    def excess(epsilon: float) -> float:
        value = profile(epsilon)
        return (log(value) if value > 0.0 else -1e4) - log(delta)

    if excess(low) <= 0.0:
        return low
    epsilon = float(brentq(excess, low, high, xtol=WIDTH * low, rtol=WIDTH))
    while profile(epsilon) > delta:
        epsilon *= 1.0 + WIDTH
    return epsilon


def advanced_epsilon(counts: Counts, delta: float) -> float:
    """Epsilon by sampling amplification and advanced composition, for Gaussian releases on batches or all rows.

    Half of delta pays for the composition, the rest equally for the k steps. A step is (e0, d0)-DP on its batch by the
    exact Gaussian profile, (e, q d0)-DP with e = ln(1 + q (e^e0 - 1)) on the data (Balle, Barthe & Gaboardi 2018,
    Theorems 8 and 9), and k steps are sqrt(2 ln(2/delta) sum e^2) + sum e (exp(e) - 1). Dwork, Rothblum & Vadhan
    (2010), Theorem III.3. Infinity for anything else: it is a baseline.
    """
    items = tuple(counts)
    total = sum(count for _, count in items)
    squares = linear = 0.0
    for mechanism, count in items:
        sampled = isinstance(mechanism, Sampled) and not isinstance(mechanism.sampler, Permuted)
        base = mechanism.mechanism if sampled else mechanism  # type: ignore[attr-defined]
        rate = mechanism.sampler.rate if sampled else 1.0  # type: ignore[attr-defined]
        if not isinstance(base, Gaussian):
            return inf
        inner = gaussian_epsilon(min(delta / (2.0 * total * rate), 0.5), base.ratio)
        if inner > 700.0:
            return inf
        step = log1p(rate * expm1(inner))
        squares += count * step * step
        linear += count * step * expm1(min(step, 700.0))
    return sqrt(2.0 * log(2.0 / delta) * squares) + linear
