"""A filter in mu^2, for data whose releases are Gaussian or pure: no order, exact at the end.

**Theorem (Smith & Thakurta 2022; Koskela, Tobaben & Honkela 2023).** Let each release be mu_t-GDP
given what was published, mu_t chosen from that history before the release. If sum mu_t^2 <= mu^2 on
every path, everything together is mu-GDP. Proof: by Blackwell a mu_t-GDP release is a randomised
map of N(0) against N(mu_t), which may depend on the history; raise mu_t to what was charged and add
a last fictitious release so that the sum is mu^2. Under the second data set the t-th normal, times
mu_t, is the increment of one Brownian motion over [S_{t-1}, S_{t-1} + mu_t^2], and these times are
predictable; so the loss is W(mu^2) - mu^2 / 2, that of one Gaussian of shift mu. Maps only lose.

A release is charged

- Gaussian on all rows: (D / sigma)^2, the rounding of its input counted in D;
- Gaussian on a random batch: the same, **unamplified** (quasi-convexity; no smaller mu is valid,
  for the tail of the mixture is the Gaussian's own); an epoch of random allocation once, for it is
  a mixture over the one batch that holds the record;
- pure epsilon: mu = 2 Phi^-1(e^eps / (1 + e^eps)), least possible: the trade-off of N(mu) is convex
  and meets that of an epsilon-DP release at 0, at its corner and at 1 (proved).

What is known by a Rényi curve or by (epsilon, delta) alone implies no mu and is refused by name.
"""

from __future__ import annotations

from math import exp, inf, log

from scipy.optimize import brentq
from scipy.special import log_expit, ndtri_exp

from dpcore.accounting.events import Events, restate
from dpcore.errors import InputError, PriceUnknown, require_open_unit, require_positive
from dpcore.mechanisms.base import Mechanism
from dpcore.mechanisms.gaussian import Gaussian, log_gaussian_delta
from dpcore.problem import Adjacency
from dpcore.sampling import Sampled

# Share of delta that a budget keeps for the profile of discrete noise (``GRID_SHARE``).
KEPT = 1e-5


def squared_mu(mechanism: Mechanism) -> float:
    """mu^2 of one release; raises ``PriceUnknown`` where no mu follows from what is known of it."""
    inner = mechanism.mechanism if isinstance(mechanism, Sampled) else mechanism
    if isinstance(inner, Gaussian):  # one that a permutation amplifies is another class
        return inner.ratio**2
    if mechanism.pure_epsilon < inf:
        return mu_of_pure(mechanism.pure_epsilon) ** 2
    raise PriceUnknown(
        f"A filter of Gaussian releases (filter=gdp) has no price for {inner.kind!r}: a Rényi "
        "curve or an (epsilon, delta) implies no mu; use an algorithm with Gaussian or pure "
        "releases (scaled_gd, dp_sgd with full steps), or a data set opened with filter=rdp."
    )


def mu_of_pure(epsilon: float) -> float:
    """Least mu for which every epsilon-DP release is mu-GDP: 2 Phi^-1(e^eps / (1 + e^eps))."""
    return -2.0 * float(ndtri_exp(log_expit(-epsilon)))


def cost_of(events: Events, adjacency: Adjacency | str | None = None) -> float:
    """Sum of mu^2 over ``events``, re-priced for ``adjacency``; raises ``PriceUnknown``."""
    wanted = events.adjacency if adjacency is None else Adjacency(adjacency)
    return sum(
        count * squared_mu(restate(mechanism, events.adjacency, wanted))
        for mechanism, count in events.charged
    )


def largest_squared_mu(epsilon: float, delta: float) -> float:
    """The largest mu^2 whose Gaussian is (epsilon, delta)-DP, rounded down.

    Raises ``InputError`` where none above 1e-24 is.
    """
    require_positive(epsilon=epsilon)
    require_open_unit(delta=delta)

    def excess(log_mu: float) -> float:
        return max(log_gaussian_delta(epsilon, exp(log_mu)), -1e6) - log(delta)

    low, high = log(1e-12), log(epsilon + (2.0 * epsilon) ** 0.5 + 60.0)
    if excess(low) > 0.0:
        raise InputError(
            f"Expected an epsilon that some Gaussian keeps, got epsilon={epsilon!r} at "
            f"delta={delta!r}; raise one of them."
        )
    mu = exp(float(brentq(excess, low, high, xtol=1e-15, rtol=1e-14)))
    step = 1e-15
    while excess(log(mu)) > 0.0:
        mu *= 1.0 - step
        step *= 2.0
    return mu * mu


def budget_of(epsilon: float, delta: float) -> float:
    """The mu^2 of a ledger: at delta less the share that discrete noise may need."""
    return largest_squared_mu(epsilon, delta * (1.0 - KEPT))
