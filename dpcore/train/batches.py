"""Steps on batches in place of full ones, where public facts say that they cost next to nothing."""

from __future__ import annotations

from dataclasses import replace
from math import log1p, sqrt

from dpcore.accounting.calibrate import calibrate, planned_events
from dpcore.accounting.events import Events
from dpcore.accounting.limits import Limit, LimitAfter, PriceCap, Room
from dpcore.algorithms.base import Trainer
from dpcore.algorithms.scaled_gd import ScaledGD
from dpcore.problem import Problem

# A sixteenth of the records a step: a training takes a third of the time of one on full steps.
RATE = 1.0 / 16.0
# What full steps must have to learn from (n * mu), and how many records a batch then holds.
SIGNAL, ROWS = 7000.0, 2000.0
# How much more noise a mean over a batch may have, and how much more a ledger may be charged.
DEARER = 1.05


def on_batches(full: Trainer, problem: Problem, limits: tuple[Limit, ...], noise: str) -> Trainer:
    """``full``, calibrated to ``limits``, or the same on batches of ``RATE`` where that is as good:
    from public facts alone.

    n * mu >= ``SIGNAL`` and q n >= ``ROWS``; no limit that counts mu^2, in which a batch costs more
    than it saves; and, with its own noise, no more than ``DEARER`` times the noise of a full mean,
    nor that much more at the order of a ledger.
    """
    if not isinstance(full, ScaledGD) or full.sampling_rate < 1.0:
        return full
    if full.signal(problem) < SIGNAL or RATE * problem.n < ROWS or _roughly(full) > DEARER:
        return full
    rooms = [limit.limit if isinstance(limit, LimitAfter) else limit for limit in limits]
    if any(isinstance(room, PriceCap) or _counts_mu(room) for room in rooms):
        return full
    sampled = calibrate(replace(full, sampling_rate=RATE), problem, *limits, noise=noise)
    if sampled.noise_multiplier > DEARER * RATE * full.noise_multiplier:
        return full
    whole, parts = (planned_events(one, problem, noise) for one in (full, sampled))
    return full if any(_dearer(room, whole, parts) for room in rooms) else sampled


def _counts_mu(limit: Limit) -> bool:
    return isinstance(limit, Room) and limit.order is None


def _dearer(limit: Limit, whole: Events, parts: Events) -> bool:
    """Whether a ledger is charged more for ``parts`` by a share that counts."""
    return isinstance(limit, Room) and limit.cost(parts) > DEARER * limit.cost(whole)


def _roughly(full: ScaledGD) -> float:
    """The ratio of noises for many small steps, mu^2 = q^2 T (e^(1/s^2) - 1) (Bu, Dong, Long & Su
    2020, Theorem 5), which spares most searches for noise. It prices nothing.
    """
    share = 1.0 / (RATE * full.noise_multiplier) ** 2
    return sqrt(share / log1p(share))
