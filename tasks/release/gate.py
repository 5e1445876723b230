"""The gate: the policy from a YAML file, the price of a release with its search, and who may
replace the champion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpcore.accounting.events import Events
from dpcore.metrics import less_is_better
from tasks.audit.rules_content import is_quality, noisy_metrics
from tasks.config.read import load
from tasks.ledger import Ledger
from tasks.record.example import fault
from tasks.record.statement import First, Statement
from tasks.release.manifest import METRICS, TUNING, Price, ReleasedMetric, read_model
from tasks.release.trials import Trial, charged, newest_of, search, search_epsilon

if TYPE_CHECKING:
    from tasks.audit import Subject
    from tasks.release.front import Released


# A difference of scores below this is rounding of their decimals.
ROUNDING = 1e-9
# What a model without information reaches, by what it must beat; see ``Candidate.baselines``.
TRIVIAL = {
    "map": ("random_map", "it ranks no better than random order"),
    "mean_squared_error": (
        "mean_label_mean_squared_error",
        "it predicts no better than the mean of the label",
    ),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A training that may be released. ``events`` are what it ran on the data, finished or not.

    ``delta`` is its own, ``n`` the public number of its units. ``baselines`` are public numbers on
    the same rows, by the name of the baseline before that of the metric. ``fault`` is what its
    scores of made-up rows show.
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
    """``promote`` is the candidate that passed, None where none did; ``reasons`` say why the others
    did not.
    """

    promote: str | None
    epsilon: float
    delta: float
    reasons: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)


def decide(
    candidates: Sequence[Candidate],
    champion: Champion | None,
    policy: Policy,
    epsilon: float,
    delta: float,
) -> Decision:
    """The best candidate by the policy's metric that meets every demand; ``epsilon`` is the price
    of the search.
    """
    over = _too_dear(policy, epsilon, delta)
    rejected = {one.name: reason for one in candidates if (reason := _unfit(one, policy))}
    fit = [one for one in candidates if one.name not in rejected]
    if over or not fit:
        reasons = over or list(map(": ".join, rejected.items())) or ["there is no candidate"]
        return Decision(None, epsilon, delta, tuple(reasons), rejected)
    best = _best(fit, policy.metric)
    short = _gain(best, champion, policy)
    return Decision(None if short else best.name, epsilon, delta, tuple(short), rejected)


def _best(fit: Sequence[Candidate], metric: str | None) -> Candidate:
    sign = direction(metric)
    return max(fit, key=lambda one: sign * one.metrics.get(metric or "", 0.0))


def _too_dear(policy: Policy, epsilon: float, delta: float) -> list[str]:
    reasons = []
    if not epsilon <= policy.max_epsilon:
        reasons.append(
            f"epsilon of the release with its search is {epsilon:.4f} > {policy.max_epsilon} that "
            "the policy allows"
        )
    if policy.max_delta is not None and not delta <= policy.max_delta:
        reasons.append(f"delta {delta:g} > {policy.max_delta:g} that the policy allows")
    return reasons


def direction(metric: str | None) -> int:
    """1 where more of a metric is better, -1 where less is."""
    return -1 if metric is not None and less_is_better(metric) else 1


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
    return (
        f"its delta {one.delta:g} is not below 1/n = {1 / one.n:g}: that much lets a record out as "
        "it is"
    )


def _trivial(one: Candidate) -> str:
    """What shows that a model knows no more than a constant does. An undefined number shows
    nothing, so it does too.
    """
    guards = ("predicted_positive_rate", "balanced_accuracy", *TRIVIAL)
    if lost := [name for name in guards if name in one.metrics and not isfinite(one.metrics[name])]:
        return f"its {lost[0]} is not a number"
    if one.metrics.get("predicted_positive_rate") in (0.0, 1.0):
        return "it predicts one class only: its accuracy is the share of the majority class"
    if one.metrics.get("balanced_accuracy", inf) <= 1 / one.classes + ROUNDING:
        return (
            "it predicts one class only, or as well as that: its accuracy is the share of the "
            "majority class"
        )
    return next(_below_baselines(one), "")


def _below_baselines(one: Candidate) -> Iterator[str]:
    """Metrics that are no better than those of a constant, in words."""
    for metric, (baseline, words) in TRIVIAL.items():
        if metric in one.metrics and baseline in one.baselines:
            own, plain = one.metrics[metric], one.baselines[baseline]
            if not direction(metric) * (own - plain) > ROUNDING:
                yield f"{words}: {metric} {own:.4g} against {plain:.4g}"


def _misses(one: Candidate, policy: Policy) -> str:
    """What the policy's metric lacks."""
    if policy.metric is None:
        return ""
    value = one.metrics.get(policy.metric)
    if value is None or not isfinite(value):
        return (
            f"it has no released metric {policy.metric!r}: noisy and charged (evaluate.release), "
            "or on public data"
        )
    if policy.min_value is not None and value < policy.min_value - ROUNDING:
        return f"{policy.metric} {value:.4f} < {policy.min_value:g} that the policy asks for"
    if policy.max_value is not None and value > policy.max_value + ROUNDING:
        return f"{policy.metric} {value:.4f} > {policy.max_value:g} that the policy allows"
    return ""


def _gain(best: Candidate, champion: Champion | None, policy: Policy) -> list[str]:
    """Why the best candidate does not replace the champion; no margin over one without the metric
    can be shown.
    """
    if champion is None or policy.metric is None:
        return []
    before = champion.metrics.get(policy.metric)
    if before is None or not isfinite(before):
        if policy.min_gain <= 0:
            return []
        return [
            f"version {champion.version} has no {policy.metric}, so no gain of {policy.min_gain:g} "
            "over it can be shown; release with min_gain: 0"
        ]
    gain = direction(policy.metric) * (best.metrics[policy.metric] - before)
    if gain >= policy.min_gain - ROUNDING:
        return []
    return [
        f"{best.name} gains {gain:.4f} in {policy.metric} over version {champion.version}, less "
        f"than {policy.min_gain:g} that the policy asks for"
    ]


class Policy(BaseModel):
    """Limits on what a release may cost and must reach. ``tuning`` says which runs its price
    includes.

    ``dataset``: every charged run on the same records since the last release of that name, for the
    choice may depend on any of them. ``run``: this run alone; the approval then stands for settings
    that were fixed before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: First = 1
    max_epsilon: float = Field(default=10.0, gt=0, description="the most epsilon of a release")
    max_delta: float | None = Field(
        default=None, gt=0, lt=1, description="the most delta of a release"
    )
    metric: str | None = Field(
        default=None, description="for example accuracy or balanced_accuracy"
    )
    min_value: float | None = Field(default=None, description="the least value of the metric")
    max_value: float | None = Field(
        default=None, description="the largest value of the metric, where it is an error"
    )
    min_gain: float = Field(
        default=0.0, ge=0, description="how much better than the champion the metric must be"
    )
    tuning: Literal["dataset", "run"] = Field(default="dataset", description="dataset or run")
    conversion: Literal["cks", "prop21"] | None = Field(default=None, description="cks or prop21")
    trusted_keys: tuple[str, ...] = Field(
        default=(),
        description="fingerprints whose signatures are believed; keys that were "
        "replaced stay listed",
    )


def load_policy(name: str | None = None) -> Policy:
    """Read a policy file, conf/release.yaml or the built-in one; raises ``InputError`` on one
    line.
    """
    return load(Policy, name, "release.yaml")[0]


def trials_behind(
    subject: Subject,
    statement: Statement,
    champion: Released | None,
    policy: Policy,
    ledger: Ledger,
) -> list[Trial]:
    """The charged runs behind the release: those since the signed release before it, on the same
    records.
    """
    own = [statement.ledger.entry]
    if METRICS in subject.files:
        own.append(str(json.loads(subject.files[METRICS])["ledger_entry"]))
    found = charged(ledger, statement.ledger.dataset)
    since = 0
    if champion is not None and champion.dataset == statement.ledger.dataset:
        stated = champion.manifest.ledger
        since = stated.seq if stated is not None else newest_of(ledger, champion.entries)
    if policy.tuning == "run" or statement.data.public:
        since = max((one.seq for one in found), default=0)
    blocks = subject.ledger.blocks if subject.ledger is not None else ()
    return search(found, own, blocks, since)


def price_of(statement: Statement, trials: Sequence[Trial], policy: Policy) -> Price:
    """The guarantee of a release that was chosen from ``trials``; its own promise where it is the
    only one.
    """
    promise = statement.guarantee
    conversion = policy.conversion or promise.conversion
    if len(trials) == 1:
        epsilon = promise.epsilon
    else:
        epsilon = search_epsilon(
            (one.events for one in trials), promise.adjacency, promise.delta, conversion
        )
    scope = "public" if statement.data.public else policy.tuning
    return Price(
        unit=promise.unit,
        adjacency=promise.adjacency,
        epsilon=epsilon,
        delta=promise.delta,
        conversion=conversion,
        trials=len(trials),
        scope=scope,
    )


def epsilon_with_later(done: Released, subject: Subject, ledger: Ledger, since: int) -> float:
    """Epsilon of a release together with all runs on its records since, at its delta."""
    price = done.manifest.price
    stored: Any = json.loads(done.bundle[TUNING])
    own = [Events.from_json(json.dumps(item)) for item in stored["trials"]]
    blocks = subject.ledger.blocks if subject.ledger is not None else ()
    later = search(charged(ledger, done.dataset), (), blocks, since)
    if not later:
        return price.epsilon
    return search_epsilon(
        [*own, *(one.events for one in later)], price.adjacency, price.delta, price.conversion
    )


def released_metrics(subject: Subject, statement: Statement) -> list[ReleasedMetric]:
    """Numbers about quality that may leave: from a charged mechanism, or any on public data."""
    noisy = noisy_metrics(subject)
    errors = json.loads(subject.files[METRICS]).get("standard_errors", {}) if noisy else {}
    found = [
        ReleasedMetric(
            name=key, value=value, source="charged mechanism", standard_error=errors.get(key)
        )
        for key, value in noisy.items()
    ]
    if statement.data.public:
        public = {
            key.removeprefix("released."): values[-1] for key, values in subject.metrics.items()
        }
        found += [
            ReleasedMetric(name=key, value=value, source="public data")
            for key, value in sorted(public.items())
            if is_quality(key) and f"released.{key}" in subject.metrics and key not in noisy
        ]
    return found


def judged(
    subject: Subject,
    statement: Statement,
    price: Price,
    metrics: Sequence[ReleasedMetric],
    champion: Released | None,
    policy: Policy,
) -> Decision:
    """What the policy says of a training that comes alone, at the price of its search."""
    # Of public data the exact numbers of baselines are public too.
    exact = subject.metrics if statement.data.public else {}
    label = read_model(subject.model["model.json"])["label"]
    candidate = Candidate(
        subject.run_id,
        finished=True,
        stated=True,
        metrics={one.name: one.value for one in metrics},
        delta=statement.guarantee.delta,
        n=statement.data.public_n,
        classes=len(label.get("levels", ())) or 2,
        baselines={
            key.removeprefix("internal."): values[-1] for key, values in exact.items() if values
        },
        fault=fault(subject.model),
    )
    before = None if champion is None else Champion(champion.version, champion.metrics())
    return decide([candidate], before, policy, price.epsilon, price.delta)
