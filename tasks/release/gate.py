"""The gate: what a release costs with the search behind it, and which candidate may replace the champion.

The policy of a release: what a run must meet, from a YAML file.

The charged runs that a release was chosen from, read from the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.events import Events
from dpcore.errors import InputError, VerificationFailed
from dpcore.problem import Adjacency
from tasks.config.read import describe, find_config, load_yaml
from tasks.ledger import Ledger, schema
from tasks.ledger.chain import events_text, history, newest
from tasks.ledger.records import Record
from tasks.record.statement import First
from tasks.release.manifest import Position

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


class Policy(BaseModel):
    """Limits on what a release may cost and must reach. ``tuning`` says which runs its price includes.

    ``dataset``: every charged run on the same records since the last release of that name, for the choice may depend on
    any of them. ``run``: this run alone; the approval then stands for settings that were fixed before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: First = 1
    max_epsilon: float = Field(default=10.0, gt=0, description="the most epsilon of a release")
    max_delta: float | None = Field(default=None, gt=0, lt=1, description="the most delta of a release")
    metric: str | None = Field(default=None, description="for example accuracy or balanced_accuracy")
    min_value: float | None = Field(default=None, description="the least value of the metric")
    max_value: float | None = Field(default=None, description="the largest value of the metric, where it is an error")
    min_gain: float = Field(default=0.0, ge=0, description="how much better than the champion the metric must be")
    tuning: Literal["dataset", "run"] = Field(default="dataset", description="dataset or run")
    conversion: Literal["cks", "prop21"] | None = Field(default=None, description="cks or prop21")
    trusted_keys: tuple[str, ...] = Field(
        default=(), description="fingerprints whose signatures are believed; keys that were replaced stay listed"
    )


def load_policy(name: str | None = None) -> Policy:
    """Read a policy file, conf/release.yaml or the built-in one; raises ``InputError`` on one line."""
    where, text = find_config(name, "release.yaml")
    try:
        return Policy.model_validate(load_yaml(text, where))
    except ValidationError as error:
        raise InputError(describe(error, Policy, where)) from None


SHORTEST_HEAD = 12


class Trial(NamedTuple):
    """A charged entry: when it was reserved, on which blocks, and what it may have released."""

    seq: int
    entry: str
    blocks: tuple[str, ...]
    events: Events


def charged(ledger: Ledger, dataset: str) -> list[Trial]:
    """All entries of ``dataset`` that were not cancelled, oldest first: failed and open ones touched the data too."""
    with ledger.store.reading() as connection:
        if connection is None:
            return []
        table = schema.records
        query = select(table).where(table.c.dataset == dataset, table.c.kind.in_(("reserved", "cancelled")))
        records = [Record(*row) for row in connection.execute(query.order_by(table.c.seq))]
        cancelled = {record.entry for record in records if record.kind == "cancelled"}
        found = []
        for record in records:
            if record.kind != "reserved" or record.entry in cancelled:
                continue
            body = json.loads(record.body)
            text = events_text(connection, body["events"])
            if text is None:
                raise VerificationFailed(f"The ledger lacks the mechanisms of entry {record.entry}; restore a copy.")
            found.append(Trial(record.seq, record.entry, tuple(body["blocks"]), Events.from_json(text)))
    return found


def search(trials: Sequence[Trial], own: Sequence[str], blocks: Sequence[str], since: int) -> list[Trial]:
    """The trials that the choice of the entries ``own`` may depend on.

    Those after record ``since`` (the last release) that share a block with it, and ``own`` themselves.
    """
    shared = set(blocks)
    return [one for one in trials if one.entry in own or (one.seq > since and shared & set(one.blocks))]


def position(ledger: Ledger) -> tuple[int, str]:
    """Number and hash of the newest record; (0, "") for an empty ledger."""
    with ledger.store.reading() as connection:
        return (connection is not None and newest(connection)) or (0, "")


def require_chain(ledger: Ledger, where: str, stated: Position | None) -> None:
    """Raise ``VerificationFailed`` unless the ledger still holds the head that a release states, at its place."""
    if stated is None or not stated.seq:
        return
    with ledger.store.reading() as connection:
        table = schema.records
        query = select(table.c.hash).where(table.c.seq == stated.seq)
        found = None if connection is None else connection.scalars(query).one_or_none()
    if found != stated.head:
        raise VerificationFailed(
            f"Expected record {stated.seq} of {ledger.store.shown} to be {stated.head[:16]}..., the head that {where} "
            f"states, got {'none' if found is None else f'{found[:16]}...'}: records were removed or rewritten, or it "
            "is another ledger; restore the newest copy."
        )


def require_head(ledger: Ledger, head: str | None) -> None:
    """Raise ``VerificationFailed`` unless the ledger holds ``head``, and ``InputError`` for what is no hash."""
    if head is None:
        return
    digits = head.strip().lower()
    if len(digits) < SHORTEST_HEAD or set(digits) - set("0123456789abcdef"):
        raise InputError(f"Expected at least {SHORTEST_HEAD} hex digits of a hash for --head, got {head!r}.")
    report = ledger.check(digits)
    if report.head_found_at is None:
        raise VerificationFailed(
            f"Expected the head {digits[:16]}... in {ledger.store.shown}, got a chain without it: records were removed "
            "or rewritten, or it is another ledger; restore the newest copy."
        )


def newest_of(ledger: Ledger, entries: Sequence[str]) -> int:
    """Number of the newest reserving record of ``entries``; 0 where the ledger knows none."""
    with ledger.store.reading() as connection:
        if connection is None:
            return 0
        return max((record.seq for entry in entries for record in history(connection, entry)[:1]), default=0)
