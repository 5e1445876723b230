"""The gate: what a release costs with the search behind it, and which candidate may replace the champion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from dpcore.accounting.conversion import epsilon_of
from dpcore.accounting.events import Events
from dpcore.accounting.orders import ORDERS
from dpcore.problem import Adjacency

if TYPE_CHECKING:
    from tasks.release.policy import Policy

# A difference of scores below this is rounding of their decimals.
ROUNDING = 1e-9
# Metrics of which less is better.
ERRORS = ("error", "loss", "brier_score")
# What a model without information reaches, by what it must beat; see ``Candidate.baselines``.
TRIVIAL = {
    "map": ("random_map", "it ranks no better than random order"),
    "mean_squared_error": ("mean_label_mean_squared_error", "it predicts no better than the mean of the label"),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A training that may be released. ``events`` are what it ran on the data, finished or not.

    ``delta`` is its own, ``n`` the public number of its units. ``baselines`` are public numbers on the same rows, by
    the name of the baseline before that of the metric. ``fault`` is what its scores of made-up rows show.
    """

    name: str
    finished: bool
    stated: bool  # its own epsilon is recorded
    metrics: Mapping[str, float]
    events: Events | None = None
    delta: float | None = None
    n: int | None = None
    classes: int = 2
    baselines: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Champion:
    """What is released now."""

    version: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Decision:
    """``promote`` is the candidate that passed, None where none did; ``reasons`` say why the others did not."""

    promote: str | None
    epsilon: float
    delta: float
    reasons: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)


def search_epsilon(
    trials: Iterable[Events], adjacency: Adjacency | str, delta: float, conversion: str = "cks"
) -> float:
    """Epsilon at ``delta`` of all ``trials`` together: their curves add, and the sum is converted once.

    The released model is a function of all of them, so its guarantee is that of the whole list; a failed trial and one
    without a score were run on the records too. Number and settings of the trials count as fixed beforehand.
    """
    total = np.zeros(len(ORDERS))
    for events in trials:
        total = total + events.price(adjacency)
    return float(epsilon_of(total, delta, conversion))


def decide(
    candidates: Sequence[Candidate], champion: Champion | None, policy: Policy, epsilon: float, delta: float
) -> Decision:
    """The best candidate by the policy's metric that meets every demand; ``epsilon`` is the price of the search."""
    over = _too_dear(policy, epsilon, delta)
    rejected = {one.name: reason for one in candidates if (reason := _unfit(one, policy))}
    fit = [one for one in candidates if one.name not in rejected]
    if over or not fit:
        reasons = over or [f"{name}: {reason}" for name, reason in rejected.items()] or ["there is no candidate"]
        return Decision(None, epsilon, delta, tuple(reasons), rejected)
    best = max(fit, key=lambda one: direction(policy.metric) * one.metrics.get(policy.metric or "", 0.0))
    short = _gain(best, champion, policy)
    return Decision(None if short else best.name, epsilon, delta, tuple(short), rejected)


def _too_dear(policy: Policy, epsilon: float, delta: float) -> list[str]:
    reasons = []
    if not epsilon <= policy.max_epsilon:
        reasons.append(
            f"epsilon of the release with its search is {epsilon:.4f} > {policy.max_epsilon} that the policy allows"
        )
    if policy.max_delta is not None and not delta <= policy.max_delta:
        reasons.append(f"delta {delta:g} > {policy.max_delta:g} that the policy allows")
    return reasons


def direction(metric: str | None) -> int:
    """1 where more of a metric is better, -1 where less is."""
    return -1 if metric is not None and metric.endswith(ERRORS) else 1


def _unfit(one: Candidate, policy: Policy) -> str:
    """Why a candidate is not considered; empty where it is."""
    if not one.finished:
        return "the training did not finish"
    if not one.stated:
        return "it has no recorded epsilon"
    return _weak(one) or one.fault or _trivial(one) or _misses(one, policy)


def _weak(one: Candidate) -> str:
    """A delta of 1/n lets a mechanism publish one record whole."""
    if one.delta is None or one.n is None or one.delta * one.n < 1:
        return ""
    return f"its delta {one.delta:g} is not below 1/n = {1 / one.n:g}: that much lets a record out as it is"


def _trivial(one: Candidate) -> str:
    """What shows that a model knows no more than a constant does. An undefined number shows nothing, so it does too."""
    guards = ("predicted_positive_rate", "balanced_accuracy", *TRIVIAL)
    if lost := [name for name in guards if name in one.metrics and not isfinite(one.metrics[name])]:
        return f"its {lost[0]} is not a number"
    if one.metrics.get("predicted_positive_rate") in (0.0, 1.0):
        return "it predicts one class only: its accuracy is the share of the majority class"
    if one.metrics.get("balanced_accuracy", inf) <= 1 / one.classes + ROUNDING:
        return "it predicts one class only, or as well as that: its accuracy is the share of the majority class"
    for metric, (baseline, words) in TRIVIAL.items():
        if metric in one.metrics and baseline in one.baselines:
            gain = direction(metric) * (one.metrics[metric] - one.baselines[baseline])
            if not gain > ROUNDING:
                return f"{words}: {metric} {one.metrics[metric]:.4g} against {one.baselines[baseline]:.4g}"
    return ""


def _misses(one: Candidate, policy: Policy) -> str:
    """What the policy's metric lacks."""
    if policy.metric is None:
        return ""
    value = one.metrics.get(policy.metric)
    if value is None or not isfinite(value):
        return f"it has no released metric {policy.metric!r}: noisy and charged (evaluate.release), or on public data"
    if policy.min_value is not None and value < policy.min_value - ROUNDING:
        return f"{policy.metric} {value:.4f} < {policy.min_value:g} that the policy asks for"
    if policy.max_value is not None and value > policy.max_value + ROUNDING:
        return f"{policy.metric} {value:.4f} > {policy.max_value:g} that the policy allows"
    return ""


def _gain(best: Candidate, champion: Champion | None, policy: Policy) -> list[str]:
    """Why the best candidate does not replace the champion; no margin over one without the metric can be shown."""
    if champion is None or policy.metric is None:
        return []
    before = champion.metrics.get(policy.metric)
    if before is None or not isfinite(before):
        if policy.min_gain <= 0:
            return []
        return [
            f"version {champion.version} has no {policy.metric}, so no gain of {policy.min_gain:g} over it can be "
            "shown; release with min_gain: 0"
        ]
    gain = direction(policy.metric) * (best.metrics[policy.metric] - before)
    if gain >= policy.min_gain - ROUNDING:
        return []
    return [
        f"{best.name} gains {gain:.4f} in {policy.metric} over version {champion.version}, "
        f"less than {policy.min_gain:g} that the policy asks for"
    ]
