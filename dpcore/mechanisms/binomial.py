"""Sums over a binomial expansion in log space, for all orders of a grid at once.

Amplification by sampling always ends in a log-moment K(a) = (a-1) e(a) at an integer order a,

    K(a) = ln[ 1 + sum_{j=2..a} C(a, j) q^j s^(a-j) exp(t_j) ],

with s = 1 - q for Poisson batches and s = 1 for batches without replacement, and t_j free of a. The terms j = 0, 1 and
the leading 1 were taken out of the sums by hand, so that a price of 1e-12 keeps all its digits. Binomials are computed
once per grid. Between integers the log-moment is interpolated: it is convex in a (Lyapunov), so chords lie above it and
K(1) = 0 (proved).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

Array = np.ndarray

# Integer orders up to here are summed together.
ONE_SWEEP = 96


@dataclass(frozen=True)
class Expansion:
    """Binomials of all integer orders next to a grid of orders, laid out one order after the other."""

    floor: Array  # index into ``sizes`` of the integer below each order, 0 standing for order 1
    ceil: Array
    share: Array  # position of each order between its integers
    sizes: Array  # the integer orders >= 2, ascending
    terms: Array  # j of each term
    starts: Array  # where each integer order begins in ``terms``
    log_binomial: Array

    @property
    def highest(self) -> int:
        """The largest j that occurs."""
        return int(self.sizes[-1])


def expansion(alphas: Array) -> Expansion:
    """The table for ``alphas`` (orders > 1); cached, for there are few grids."""
    return _expansion(np.ascontiguousarray(alphas, dtype=np.float64).tobytes())


@lru_cache(maxsize=16)
def _expansion(raw: bytes) -> Expansion:
    alphas = np.frombuffer(raw, dtype=np.float64)
    low, high = np.floor(alphas).astype(np.int64), np.ceil(alphas).astype(np.int64)
    sizes = np.unique(np.concatenate([low, high]))
    sizes = sizes[sizes >= 2]
    counts = sizes - 1
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    terms = np.concatenate([np.arange(2, size + 1) for size in sizes])
    owner = np.repeat(sizes, counts).astype(np.float64)
    log_binomial = gammaln(owner + 1.0) - gammaln(terms + 1.0) - gammaln(owner - terms + 1.0)
    return Expansion(
        floor=np.searchsorted(sizes, low, side="right"),
        ceil=np.searchsorted(sizes, high, side="right"),
        share=alphas - low,
        sizes=sizes,
        terms=terms,
        starts=starts,
        log_binomial=log_binomial,
    )


def log_moments(table: Expansion, log_rate: float, log_rest: float, log_terms: Array) -> Array:
    """K at every integer order of ``table``; ``log_terms`` holds t_j at index j (entries 0 and 1 unused)."""
    j = np.arange(len(log_terms), dtype=np.float64)
    weights = j * (log_rate - log_rest) + log_terms
    moments = np.empty(len(table.sizes))
    # Small orders in one sweep; large ones one by one, in a buffer that stays in the processor's cache.
    few = int(np.searchsorted(table.sizes, ONE_SWEEP, side="right"))
    if few:
        end = table.starts[few] if few < len(table.sizes) else len(table.terms)
        exponents = weights[table.terms[:end]] + table.log_binomial[:end]
        tops = np.maximum.reduceat(exponents, table.starts[:few])
        tops = np.where(np.isfinite(tops), tops, 0.0)
        exponents -= np.repeat(tops, table.sizes[:few] - 1)
        moments[:few] = np.log(np.add.reduceat(np.exp(exponents), table.starts[:few])) + tops
    buffer = np.empty(len(log_terms))
    for i in range(few, len(table.sizes)):
        size, start = table.sizes[i], table.starts[i]
        exponents = np.add(weights[2 : size + 1], table.log_binomial[start : start + size - 1], out=buffer[: size - 1])
        top = exponents.max()
        if not np.isfinite(top):
            top = 0.0
        exponents -= top
        np.maximum(exponents, -700.0, out=exponents)  # adds less than 1e-300 each; exp is slow where it underflows
        moments[i] = np.log(np.exp(exponents, out=exponents).sum()) + top
    return np.logaddexp(0.0, moments + table.sizes * log_rest)


def at_orders(table: Expansion, alphas: Array, moments: Array) -> Array:
    """e(a) at the orders of the grid from K at its integers: exact there, the chord of K in between; shape (k,)."""
    known = np.concatenate([[0.0], moments])
    low, high = known[table.floor], known[table.ceil]
    with np.errstate(invalid="ignore"):
        chord = (1.0 - table.share) * low + table.share * high
    return np.where(np.isinf(high), np.inf, chord) / (alphas - 1.0)
