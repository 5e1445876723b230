"""Prices by rules 1 and 2, for records that were charged by them; what stands here stays as it is
for ever.

Whoever verifies or audits a record prices it by the rules of its time (``Events.rules``), so a
price that became tighter since changes nothing about what was charged. Rules 1 differ from those of
rules 2 in three places:

- a replaced record on a Poisson batch whose contributions lie in a ball paid a sum over moments of
  |U - V|, which bounds
  the exact pair of ``dpcore.mechanisms.pairs`` from above;
- an added record whose contribution is more than ten standard deviations long paid the chord from
  order 1 to order 2;
- statements about discrete noise took the whole delta (``dpcore.accounting.limits``).

Rules 2 differ from those of today in one: the best of a Poisson number of trials took the delta of
a trial of discrete Gaussian noise for that of the Gaussian. It exceeds that by up to 1e-7 of it,
measured at one release of 1,024 grid steps a sigma.

The ball: K(a) <= ln[ 1 + sum_{j>=2} C(a,j) q^j ((1-q) Z_j + q B_j) ] with Z_j = sup E |U - V|^j
over |u-w|, |v-w| <= s, attained at u = -v of length s: 2 e^{j(j-1) t / 8} Q(j, -j t / 2), t = (2
s)^2 (``dpcore.mechanisms.subsampling``, whose B_j it shares).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.mechanisms import renyi, subsampling
from dpcore.mechanisms.base import Array, Mechanism
from dpcore.mechanisms.gaussian import Gaussian
from dpcore.mechanisms.pairs import added_by_quadrature
from dpcore.mechanisms.renyi import at_orders, expansion, log_expm1, log_moments
from dpcore.mechanisms.repeated import Composition, Repeated, RepeatPoisson
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson, Sampled


def first(mechanism: Mechanism) -> Mechanism:
    """The same release, which states the price of rules 1."""
    if isinstance(mechanism, Sampled):
        return FirstSampled(
            mechanism.mechanism, mechanism.sampler, mechanism.adjacency, mechanism.contributions
        )
    return mechanism.mapped(first) if isinstance(mechanism, Composition | Repeated) else mechanism


@dataclass(frozen=True, slots=True)
class FirstSampled(Sampled):
    """``Sampled`` with its price by rules 1; for prices alone."""

    def _lemma(self, alphas: Array) -> Array:
        base, way = self.mechanism, self.sampler
        if isinstance(base, Gaussian) and isinstance(way, Poisson):
            if self.adjacency is Adjacency.ADD_REMOVE:
                return first_added(alphas, base.ratio, way.rate)
            if self.contributions == "ball":
                return first_ball(alphas, base.ratio, way.rate)
        return Sampled._lemma(self, alphas)


def first_added(alphas: Array, ratio: float, rate: float) -> Array:
    """An added record: quadrature at fractional orders where ``ratio`` is at most 10, chords
    beyond."""
    table = expansion(alphas)
    j = np.arange(table.highest + 1, dtype=np.float64)
    terms = log_expm1(j * (j - 1.0) * (ratio * ratio / 2.0))
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), np.log1p(-rate), terms))
    fractional = (alphas != np.floor(alphas)) & (alphas < 11.0)
    if fractional.any() and 1e-9 < ratio <= 10.0:
        curve[fractional] = added_by_quadrature(alphas[fractional], ratio, rate)
    least: Array = np.minimum(curve, renyi.gaussian(alphas, ratio))
    return least


def first_ball(alphas: Array, ratio: float, rate: float) -> Array:
    """A replaced record whose contributions lie within ``ratio`` / 2 standard deviations of a
    common centre."""
    table = expansion(alphas)
    spread, binary = ball_moments(table.highest, ratio)
    terms = np.full(table.highest + 1, -np.inf)
    terms[2:] = np.logaddexp(np.log1p(-rate) + spread, np.log(rate) + binary)
    curve = at_orders(table, alphas, log_moments(table, np.log(rate), 0.0, terms))
    least: Array = np.minimum(curve, renyi.gaussian(alphas, ratio))
    return least


def ball_moments(highest: int, ratio: float) -> tuple[Array, Array]:
    """(ln Z_j, ln B_j) for j = 2..highest over contributions in a ball of radius ``ratio`` / 2."""
    t = ratio * ratio
    corner = subsampling.log_corner(highest, t, 0.25)
    spread = np.minimum(corner, subsampling.LOG_2 + 0.25 * subsampling.log_powers(highest, t))
    return spread, subsampling.log_binary(highest, t)


def second(mechanism: Mechanism) -> Mechanism:
    """The same release, which states the price of rules 2."""
    if isinstance(mechanism, RepeatPoisson):
        return SecondRepeatPoisson(mechanism.trials, mechanism.rate)
    return mechanism.mapped(second) if isinstance(mechanism, Composition | Repeated) else mechanism


@dataclass(frozen=True, slots=True)
class SecondRepeatPoisson(RepeatPoisson):
    """``RepeatPoisson`` with its price by rules 2; for prices alone."""

    def _delta_share(self) -> float:
        return 0.0
