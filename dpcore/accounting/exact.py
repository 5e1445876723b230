"""Sharper statements for one planned run: exact composition of Gaussians, and privacy-loss
distributions.

Both take ``counts``, pairs (mechanism, how many times it runs). Neither is a Rényi curve, so a
ledger never uses them; they may sharpen what is said about a single planned run.

Statements sharper than a Rényi curve: the (epsilon, delta) profile of one release, pure DP,
advanced composition.

Like the other sharper statements they describe one planned run; a ledger is charged the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import expm1, inf, log, log1p, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from dpcore.accounting.curves import curve_of, epsilon_of
from dpcore.errors import PriceUnknown, require_open_unit
from dpcore.mechanisms.base import Array, Exact, Mechanism
from dpcore.mechanisms.gaussian import Gaussian, gaussian_epsilon
from dpcore.mechanisms.laplace import Laplace
from dpcore.problem import Adjacency
from dpcore.sampling import Allocation, Permuted, Poisson, Sampled

Counts = Iterable[tuple[Mechanism, int]]

# Width of the cells that privacy losses are sorted into, as a share of the run's epsilon by RDP at
# delta 1e-9: the pessimistic epsilon is then within a few 1e-4 of its limit, at 10^4 to 10^5 cells.
SHARE = 5e-5
FINEST, COARSEST = 1e-7, 1e-3
# A composition of more cells than this is not begun: half a million take some seconds.
MOST_CELLS = 2**20
NODES, SPAN = 801, 9.74
# Mass that composing may cut from either side of a release's losses, and exponents of the moments
# that bound them.
CUT, MOMENTS = 1e-15, 20
# From so many equal releases on they are composed so many at a time first.
MANY, AT_A_TIME = 10_000, 16
# What composing by Fourier transforms may take off delta, for each release: 8 units in the last
# place of 1. The largest error found against exact Gaussians (10^2 to 10^5 releases, delta down to
# 1e-14) is some fiftieth of it.
ROUNDING = 8 * 2.0**-53


class GridTooLarge(PriceUnknown):
    """Losses of these releases take more cells than a machine should be asked for."""


def exactly_gaussian(counts: Counts) -> bool:
    """Whether all mechanisms are Gaussian on the full data, so that ``gdp_epsilon`` is exact."""
    return all(isinstance(mechanism, Gaussian) for mechanism, _ in counts)


def gdp_mu(counts: Counts) -> float:
    """mu = sqrt(sum count (D / sigma)^2): the run as one Gaussian release. Dong, Roth & Su (2022),
    Corollary 3.3.

    Raises ``PriceUnknown`` for anything but Gaussians on the full data.
    """
    total = 0.0
    for mechanism, count in counts:
        if not isinstance(mechanism, Gaussian):
            raise PriceUnknown(
                "Exact Gaussian composition knows Gaussian releases on the full data only, got "
                f"{mechanism.kind!r}: use accountant='rdp' or 'pld'."
            )
        total += count * mechanism.ratio**2
    return sqrt(total)


def gdp_epsilon(counts: Counts, delta: float) -> float:
    """Exact epsilon at ``delta`` of full-batch Gaussians run one after the other, chosen adaptively
    or not.
    """
    return gaussian_epsilon(delta, gdp_mu(counts))


def pld_epsilon(
    counts: Counts, delta: float, *, pessimistic: bool = True, share: float = SHARE
) -> float:
    """Epsilon at ``delta`` by composing privacy-loss distributions (dp-accounting, "connect the
    dots").

    Doroshenko, Ghazi, Kamath, Kumar & Manurangsi (2022). ``pessimistic`` rounds losses up and is
    what may be stated; the optimistic value bounds the truth from below, for tests. ``share``:
    width of the cells, as a share of the epsilon. Raises ``PriceUnknown``, before anything is
    composed, for a mechanism without a distribution, for too many cells, and where delta is not
    above twice what rounding may hide.
    """
    require_open_unit(delta=delta)
    counts = tuple(counts)
    if any(isinstance(mechanism, Exact) for mechanism, _ in counts):
        return inf
    if all(count == 0 for _, count in counts):
        return 0.0
    return _pld_epsilon(counts, delta, pessimistic, share)


@lru_cache(maxsize=4096)
def _pld_epsilon(
    counts: tuple[tuple[Mechanism, int], ...], delta: float, pessimistic: bool, share: float
) -> float:
    left = delta - (_rounding(counts) if pessimistic else 0.0)
    if left < delta / 2:
        raise PriceUnknown(
            f"Expected delta of {2 * _rounding(counts):.1e} or more for accountant 'pld' over "
            f"{sum(count for _, count in counts)} releases, whose composition is not rounded "
            f"better, got delta={delta:g}; use accountant='rdp' (or 'gdp' for Gaussians on all "
            "rows)."
        )
    return float(_composed(counts, pessimistic, cell_of(counts, share)).get_epsilon_for_delta(left))


def _rounding(counts: Counts) -> float:
    """What the computed delta of ``counts`` may lack."""
    return ROUNDING * sum(count for _, count in counts)


@lru_cache(maxsize=8)
def _composed(counts: tuple[tuple[Mechanism, int], ...], pessimistic: bool, cell: float) -> Any:
    """The composed distribution of releases that have one."""
    total = None
    for mechanism, count in counts:
        if count == 0:
            continue
        part = _repeated(_distribution(mechanism, pessimistic, cell), count)
        total = part if total is None else total.compose(part)
    return total


def _repeated(distribution: Any, count: int) -> Any:
    """``distribution`` composed ``count`` times.

    dp-accounting raises the number of cells to the power ``count`` to choose between a table and an
    array, which for a few cells and millions of releases is a number of millions of digits. A few
    at a time, with nothing cut, are an array already.
    """
    if count < MANY:
        return distribution.self_compose(count)
    rounds, rest = divmod(count, AT_A_TIME)
    whole = distribution.self_compose(AT_A_TIME, tail_mass_truncation=0.0).self_compose(rounds)
    return whole.compose(distribution.self_compose(rest)) if rest else whole


def cell_of(counts: Counts, share: float = SHARE) -> float:
    """The width of the cells for ``counts``; raises ``PriceUnknown`` where a mechanism has no
    distribution, ``GridTooLarge`` where the cells would be too many.
    """
    for mechanism, _ in counts:
        noise_of(mechanism)
    span = epsilon_of(
        np.sum([count * curve_of(mechanism) for mechanism, count in counts], axis=0), 1e-9
    )
    cell = min(max(share * span, FINEST), COARSEST)
    cells = predicted_cells(counts, cell)
    if not cells <= MOST_CELLS:
        raise GridTooLarge(
            f"Expected losses that {MOST_CELLS:,} cells of {cell:.1g} hold for accountant 'pld', "
            f"got about {cells:.1g} by so little noise; use accountant='rdp', or more noise."
        )
    return cell


def predicted_cells(counts: Counts, cell: float) -> float:
    """About how many cells of width ``cell`` the composed losses take, or one release where that is
    more.

    A composition runs from low to up, with up = min over lambda of (sum T ln E exp(lambda (l - min
    l)) + ln(2 / CUT)) / lambda by Chernoff's bound, and likewise from the other side; the
    expectation is a sum over nodes of the larger direction's law. Within a factor 2 of what is
    allocated.
    """
    parts = [(count, *_losses(mechanism)) for mechanism, count in counts if count]
    spans = [float(losses.max() - losses.min()) for _, losses, _ in parts]
    if not np.isfinite(sum(count * span for (count, _, _), span in zip(parts, spans, strict=True))):
        return inf
    widest = max(spans, default=0.0)
    if widest <= 0.0:
        return 1.0
    total = sum(count * span for (count, _, _), span in zip(parts, spans, strict=True))
    up, down = (_chernoff_end(parts, side, widest, total) for side in (1.0, -1.0))
    return max(widest, up + down - total) / cell


def _chernoff_end(parts: list[Any], side: float, widest: float, total: float) -> float:
    """How far from its least loss the composition of ``parts`` (count, losses, log weights) runs,
    losses times ``side``; ``total`` at most.
    """
    best = total
    for k in range(1, MOMENTS + 1):
        rate = k / widest
        log_moment = sum(
            count * float(logsumexp(rate * (side * losses - (side * losses).min()) + weights))
            for count, losses, weights in parts
        )
        best = min(best, (log_moment + log(2.0 / CUT)) / rate)
    return best


class Noise(NamedTuple):
    """One release whose losses are known: its noise, the chance that a record is in its batch, and
    whether that record is replaced within a ball (the pair of ``mechanisms.pairs``).
    """

    mechanism: Gaussian | Laplace
    rate: float = 1.0
    replaced: bool = False


def noise_of(mechanism: Mechanism) -> Noise:
    """What a distribution of losses is made from; raises ``PriceUnknown`` where there is none."""
    inner, rate, replaced = mechanism, 1.0, False
    if isinstance(mechanism, Sampled):
        added = mechanism.adjacency is Adjacency.ADD_REMOVE
        replaced = mechanism.contributions == "ball" and isinstance(mechanism.mechanism, Gaussian)
        if not (isinstance(mechanism.sampler, Poisson) and (added or replaced)):
            raise PriceUnknown(
                _UNKNOWN.format(f"{mechanism.sampler!r} under {mechanism.adjacency}")
            )
        inner, rate, replaced = mechanism.mechanism, mechanism.sampler.rate, not added
    if not isinstance(inner, Gaussian | Laplace):
        raise PriceUnknown(_UNKNOWN.format(repr(inner.kind)))
    return Noise(inner, rate, replaced)


def _losses(mechanism: Mechanism) -> tuple[Array, Array]:
    """Privacy losses of one release at nodes of its noise, and the logs of their weights."""
    inner, rate, replaced = noise_of(mechanism)
    ratio = inner.ratio
    if isinstance(inner, Laplace):  # losses of bounded noise lie between these
        with np.errstate(over="ignore"):
            low = -ratio
            if rate < 1.0 or ratio < 700.0:
                low = np.log1p(rate * np.expm1(-ratio))
        return np.array([low, ratio]), np.full(2, log(0.5))
    shift = ratio / 2.0 if replaced else ratio
    z = np.linspace(-SPAN - shift, SPAN + shift, NODES)
    rest = log1p(-rate) if rate < 1.0 else -inf
    top = np.logaddexp(log(rate) + shift * z - shift**2 / 2.0, rest)
    other = np.logaddexp(log(rate) - shift * z - shift**2 / 2.0, rest) if replaced else 0.0 * z
    weights = -(z**2) / 2.0 + top
    return top - other, weights - logsumexp(weights)


def _distribution(mechanism: Mechanism, pessimistic: bool, cell: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as losses

    inner, rate, replaced = noise_of(mechanism)
    options: dict[str, Any] = {
        "pessimistic_estimate": pessimistic,
        "value_discretization_interval": cell,
        "sampling_prob": rate,
        "use_connect_dots": pessimistic,
    }
    if isinstance(inner, Laplace):
        return losses.from_laplace_mechanism(1.0 / inner.ratio, **options)
    if replaced:
        # Each data set holds its own record with this chance: the pair of radius C, half of 2C.
        options["neighboring_relation"] = NeighboringRelation.REPLACE_ONE
        return losses.from_gaussian_mechanism(2.0 / inner.ratio, **options)
    return losses.from_gaussian_mechanism(1.0 / inner.ratio, **options)


_UNKNOWN = (
    "Privacy-loss distributions cover Gaussian and Laplace noise on the full data or on Poisson "
    "batches of clipped sums (Laplace: under add_remove), got {}: use accountant='rdp'."
)

# Relative width to which an epsilon is closed in, on the safe side.
WIDTH = 1e-9


def pure_total(counts: Counts) -> float:
    """Sum of the pure epsilons: basic composition; infinity where one release has none."""
    return float(sum(count * mechanism.pure_epsilon for mechanism, count in counts))


def has_profile(counts: Counts) -> bool:
    """Whether the run is one release that states its own delta(epsilon)."""
    items = tuple(counts)
    return len(items) == 1 and items[0][1] == 1 and _profile(items[0][0]) is not None


def _profile(mechanism: Mechanism) -> Callable[[float], float] | None:
    if not isinstance(mechanism, Sampled):
        return getattr(mechanism, "delta", None)
    return (
        getattr(mechanism.mechanism, "permuted_delta", None)
        if isinstance(mechanism.sampler, Permuted)
        else None
    )


@lru_cache(maxsize=4096)
def profile_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Least epsilon with delta(epsilon) <= ``delta`` for one release; the profile falls with
    epsilon.
    """
    profile = _profile(mechanism)
    assert profile is not None
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
    """Epsilon by sampling amplification and advanced composition, for Gaussian releases on batches
    or all rows.

    Half of delta pays for the composition, the rest equally for the k steps. A step is (e0, d0)-DP
    on its batch by the exact Gaussian profile, (e, q d0)-DP with e = ln(1 + q (e^e0 - 1)) on the
    data (Balle, Barthe & Gaboardi 2018, Theorems 8 and 9), and k steps are sqrt(2 ln(2/delta) sum
    e^2) + sum e (exp(e) - 1). Dwork, Rothblum & Vadhan (2010), Theorem III.3. Infinity for anything
    else: it is a baseline.
    """
    items = tuple(counts)
    total = sum(count for _, count in items)
    squares = linear = 0.0
    for mechanism, count in items:
        base, rate = mechanism, 1.0
        if isinstance(mechanism, Sampled) and not isinstance(
            mechanism.sampler, Permuted | Allocation
        ):
            base, rate = mechanism.mechanism, mechanism.sampler.rate
        if not isinstance(base, Gaussian):
            return inf
        inner = gaussian_epsilon(min(delta / (2.0 * total * rate), 0.5), base.ratio)
        if inner > 700.0:
            return inf
        step = log1p(rate * expm1(inner))
        squares += count * step * step
        linear += count * step * expm1(min(step, 700.0))
    return sqrt(2.0 * log(2.0 / delta) * squares) + linear
