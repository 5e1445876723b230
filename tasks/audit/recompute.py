"""Epsilon from the stored mechanisms alone: by this library, and by other code where that knows the
mechanism.

The empirical audit of a stored run: its algorithm and settings, attacked on synthetic
neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import exp, expm1, isfinite, log, log1p, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.events import Events
from dpcore.accounting.limits import Target
from dpcore.audit import audit
from dpcore.errors import DPFlowsError
from dpcore.losses import make_loss
from dpcore.mechanisms import Gaussian, Laplace, Mechanism, RepeatNegativeBinomial, RepeatPoisson
from dpcore.mechanisms.repeated import Repeated
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Poisson, Sampled, WithoutReplacement
from tasks.audit.findings import RETRAIN, Finding, block
from tasks.audit.subject import CONFIG, MECHANISMS, Subject, digest
from tasks.record.statement import Guarantee, Statement

# Rounding between versions of the numerical libraries.
TOLERANCE = 1e-6
# A selection is converted at the orders that dp-accounting has a curve for, which costs a little.
LOOSE = 0.02
UPPER_BOUND = "dp-accounting, Rényi upper bound"


def own_epsilon(events: Events, promise: Guarantee) -> float:
    """Epsilon of ``events`` by the stated accountant and conversion."""
    target = Target(promise.target_epsilon, promise.delta, promise.conversion, promise.accountant)
    return target.spent(events)


def close(first: float, second: float, tolerance: float = TOLERANCE) -> bool:
    """Whether two numbers agree up to a relative ``tolerance``."""
    return abs(first - second) <= tolerance * max(abs(first), abs(second), 1e-12)


def curve_problem(events: Events, statement: Statement) -> str:
    """What differs between the stored curve and the one of the mechanisms; empty where nothing
    does.
    """
    stored = statement.renyi
    if len(stored.orders) != len(stored.curve):
        return "the stored curve has another length than its orders"
    grid = {float(order): float(value) for order, value in zip(ORDERS, events.price(), strict=True)}
    for order, value in zip(stored.orders, stored.curve, strict=True):
        computed = grid.get(order)
        if computed is None:
            continue  # a later version has another grid; the conversion is checked besides
        if (value is None) != (not isfinite(computed)) or (
            value is not None and not close(value, computed)
        ):
            return (
                f"at order {order:g} the stored curve has {value}, the mechanisms give "
                f"{computed:.6g}"
            )
    return ""


def price_of(found: Statement) -> Iterator[Finding]:
    """What is wrong with the price of a statement, from its own text alone."""
    promise = found.guarantee
    try:
        events = Events.from_json(json.dumps(found.mechanisms))
        spent = own_epsilon(events, promise)
        problem = curve_problem(events, found)
    except (DPFlowsError, ValueError, TypeError, KeyError, IndexError) as error:
        yield block(
            "mechanisms_unreadable",
            MECHANISMS,
            f"the mechanisms cannot be priced ({error})",
            "No price",
            RETRAIN,
        )
        return
    if digest(events.to_json().encode()) != found.mechanisms_sha256:
        yield block(
            "mechanisms_changed",
            MECHANISMS,
            "the mechanisms do not give their hash",
            "They were changed",
            RETRAIN,
        )
    if events.adjacency != promise.adjacency or events.unit != promise.unit:
        yield block(
            "relation_changed",
            "adjacency",
            f"mechanisms are priced for {events.unit}, {events.adjacency}; the statement promises "
            f"{promise.unit}, {promise.adjacency}",
            "A price under one relation says nothing about another",
            RETRAIN,
        )
    if not close(spent, promise.epsilon):
        yield block(
            "epsilon_recomputed",
            "epsilon",
            f"the mechanisms cost epsilon {spent:.6g}, the statement says {promise.epsilon:.6g}",
            "The stated guarantee is not the one of what ran",
            RETRAIN,
        )
    if problem:
        yield block(
            "curve_changed",
            "renyi",
            problem,
            "The stored curve is not the one of the mechanisms",
            RETRAIN,
        )


def independent_epsilon(events: Events, statement: Statement) -> tuple[str, float, float] | None:
    """(method, ours, recomputed) by code outside this library; None where it knows no such
    mechanism.

    Gaussian releases on all rows: the profile delta(epsilon) of Balle & Wang (2018), Theorem 8,
    evaluated at the stated epsilon. Everything else: dp-accounting's Rényi accountant at the stated
    delta. Its curve of sampled releases is exact at whole orders alone, so there both are converted
    from these. For batches without replacement it has only the bound for any mechanism of Wang,
    Balle & Kasiviswanathan (2019), up to 4 times the one for Gaussian noise.
    """
    promise = statement.guarantee
    if promise.accountant == "gdp":
        delta = _gaussian_delta(events, promise.epsilon)
        return "Gaussian profile: delta at the stated epsilon", promise.delta, delta
    if promise.conversion != "cks":
        return None
    import dp_accounting as public

    single = events.counts[0][0] if len(events.counts) == 1 else None
    if isinstance(single, RepeatPoisson):
        once = events.counts[0][1] == 1
        found = _poisson_selection(public, single, promise.delta) if once else None
        ours = statement.renyi.epsilon
        return None if found is None else ("dp-accounting, selection", ours, found)
    return _by_renyi(public, events, promise.delta)


def _gaussian_delta(events: Events, epsilon: float) -> float:
    """delta(epsilon) of Gaussian releases on all rows, by the profile."""
    mu = sqrt(sum(count * (1.0 / _multiplier(item)) ** 2 for item, count in events.counts))
    return float(ndtr(mu / 2 - epsilon / mu) - exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def _by_renyi(public: Any, events: Events, delta: float) -> tuple[str, float, float] | None:
    """Both epsilons from the Rényi curves; None where dp-accounting knows no such mechanism."""
    inside = [item for item in _inside(events) if isinstance(item, Sampled)]
    fixed = any(isinstance(item.sampler, WithoutReplacement) for item in inside)
    relations = public.NeighboringRelation
    relation = relations.REPLACE_ONE if fixed else relations.ADD_OR_REMOVE_ONE
    whole = np.floor(ORDERS) == ORDERS if inside else np.ones(len(ORDERS), bool)
    total = public.rdp.RdpAccountant(ORDERS[whole].tolist(), relation)
    for item, count in events.counts:
        event = _public_event(public, item)
        if event is None or not total.supports(event):
            return None
        total.compose(event, count)
    ours = epsilon_of(events.price()[whole], delta, orders=ORDERS[whole])
    method = UPPER_BOUND if fixed else "dp-accounting, Rényi"
    return method, ours, float(total.get_epsilon(delta))


def _multiplier(item: Mechanism) -> float:
    assert isinstance(item, Gaussian)
    return item.sigma / (item.sensitivity * (1.0 + item.rounding))


def _public_event(public: Any, item: Mechanism) -> Any:
    if isinstance(item, Sampled):
        inner = (
            _public_event(public, item.mechanism) if isinstance(item.mechanism, Gaussian) else None
        )
        if inner is None:
            return None
        if isinstance(item.sampler, Poisson) and item.adjacency is Adjacency.ADD_REMOVE:
            return public.PoissonSampledDpEvent(item.sampler.rate, inner)
        if isinstance(item.sampler, WithoutReplacement):
            return public.SampledWithoutReplacementDpEvent(
                item.sampler.n, item.sampler.batch_size, inner
            )
        return None
    if isinstance(item, Repeated):
        return _public_selection(public, item)
    if isinstance(item, Gaussian):
        return public.GaussianDpEvent(_multiplier(item))
    if isinstance(item, Laplace):
        return public.LaplaceDpEvent(item.scale / (item.sensitivity * (1.0 + item.rounding)))
    return None


def _public_selection(public: Any, item: Repeated) -> Any:
    """The best of a negative binomial number of trials, where all settings have one price; else
    None.
    """
    if len(item.trials) > 1 or not isinstance(item, RepeatNegativeBinomial) or item.eta < 0.0:
        return None
    [trial] = item.trials
    parts = [_public_event(public, inner) for inner in trial.mechanisms]
    if any(part is None for part in parts):
        return None
    run = [
        public.SelfComposedDpEvent(part, count)
        for part, count in zip(parts, trial.counts, strict=True)
    ]
    return public.dp_event.RepeatAndSelectDpEvent(public.ComposedDpEvent(run), item.mean, item.eta)


def _poisson_selection(public: Any, item: RepeatPoisson, delta: float) -> float | None:
    """Epsilon of the best of a Poisson number (at least one) of Gaussian trials on all rows; None
    for other trials.

    dp-accounting's own selection converts a curve where the delta of such a trial is known exactly.
    So its curves and its exact Gaussian delta are put into Papernot & Steinke (2022), Theorem 6,
    here.
    """
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    if any(
        trial.cap or not all(isinstance(inner, Gaussian) for inner in trial.mechanisms)
        for trial in item.trials
    ):
        return None
    mean = item.rate / -expm1(-item.rate)
    whole = np.full(len(ORDERS), -np.inf)
    hats = np.zeros(len(ORDERS))
    for trial in item.trials:
        account = public.rdp.RdpAccountant([float(order) for order in ORDERS])
        for inner, count in zip(trial.mechanisms, trial.counts, strict=True):
            account.compose(public.GaussianDpEvent(_multiplier(inner)), count)
        mu = sqrt(
            sum(
                n / _multiplier(inner) ** 2
                for inner, n in zip(trial.mechanisms, trial.counts, strict=True)
            )
        )
        loss = GaussianPrivacyLoss(1.0 / mu)
        whole = np.maximum(whole, account.rdp)
        hats = np.maximum(
            hats, [loss.get_delta_for_epsilon(log1p(1.0 / (order - 1.0))) for order in ORDERS]
        )
    whole += item.rate * hats + log(mean) / (ORDERS - 1.0)
    return float(
        public.rdp.compute_epsilon(ORDERS, np.minimum.accumulate(whole[::-1])[::-1], delta)[0]
    )


def _inside(events: Events) -> Iterator[Mechanism]:
    """All releases, those inside the trials of a selection too."""
    for item, _ in events.counts:
        if isinstance(item, Repeated):
            for trial in item.trials:
                yield from trial.mechanisms
        else:
            yield item


def agrees(method: str, ours: float, found: float, events: Events) -> bool:
    """Whether an independent number supports ours: equal, or not below it where it is an upper
    bound.
    """
    if method.startswith("Gaussian"):
        return close(ours, found, 1e-4)
    if close(ours, found, 1e-5):
        return True
    if method == UPPER_BOUND:
        return found >= ours
    coarse = any(isinstance(item, Repeated) for item, _ in events.counts)
    return (
        coarse
        and bool(np.isfinite(found))
        and found <= ours * (1 + LOOSE)
        and found >= ours * (1 - 3 * LOOSE)
    )


FITS = 500
# These follow from the number of records, which is another one here.
SIZES = ("noise_multiplier", "batch_size", "learning_rate", "sampling_rate")
# More steps take longer and show no more: the noise is calibrated to the claim of whatever is run.
STEPS = 32
FIGURE = "figures/empirical.png"
PREFIX = "internal.empirical."


def attack_run(subject: Subject, fits: int = FITS, workers: int = 2) -> dict[str, Any]:
    """Lower bounds on epsilon for the algorithm of a run at a claim of 4, beside what the run
    itself claims.

    The noise is calibrated to that claim, at which an attack has power; no record of the data is
    read.
    """
    statement = subject.statement
    if statement is None:
        return {"skipped": "a record without a statement names no algorithm that could be attacked"}
    training, promise = statement.training, statement.guarantee
    if training.loss == "cross_entropy":
        return {
            "skipped": "the attacks are on linear models; a network's clipped sums are "
            "replayed in the tests"
        }
    problem = Problem(
        n=statement.data.public_n,
        dimension=statement.data.dimension,
        loss=make_loss("logistic"),
        adjacency=Adjacency(promise.adjacency),
        l2=training.l2,
        norm_bound=statement.data.norm_bound,
    )
    given = json.loads(subject.files[CONFIG])["algorithm"]
    settings = {key: value for key, value in given.items() if key not in ("name", "preset", *SIZES)}
    steps = training.parameters.get("steps")
    if isinstance(steps, int):
        settings["steps"] = min(steps, STEPS)
    try:
        found = audit(training.algorithm, settings, problem=problem, fits=fits, workers=workers)
    except DPFlowsError as error:
        return {"skipped": str(error)}
    return {
        "claimed_by_the_run": promise.epsilon,
        "claimed_here": found.claimed,
        "lower_bound_any_mechanism": found.clopper_pearson,
        "lower_bound_gaussian_outputs": found.gaussian_tradeoff,
        "above_the_claim": found.exceeds,
        "statistic": found.statistic,
        "fits": found.fits,
        "confidence": found.confidence,
        "seconds": found.seconds,
    }


def metrics_of(measured: dict[str, Any]) -> dict[str, float]:
    """The numbers of a measurement by the names under which a run keeps them; none where it was
    skipped.
    """
    names = ("claimed_here", "lower_bound_any_mechanism", "lower_bound_gaussian_outputs", "fits")
    return {PREFIX + name: float(measured[name]) for name in names if name in measured}


def write_figure(measured: dict[str, Any], path: Path) -> None:
    """Draw both lower bounds beside the claim at which they were measured; write a PNG to
    ``path``.
    """
    from tasks.drawing.curves import BLUE, DPI, GREY, INK, canvas

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, [axes] = canvas(1.9)
    names = {
        "claimed": "claimed_here",
        "any mechanism": "lower_bound_any_mechanism",
        "Gaussian": "lower_bound_gaussian_outputs",
    }
    heights = [measured[key] for key in names.values()]
    bars = axes.barh(list(names), heights, color=[GREY, BLUE, BLUE], height=0.62)
    axes.bar_label(bars, fmt=" %.3g", fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.14)
    axes.set_xlabel("epsilon, bounds from below at 95 %")
    axes.set_title(f"2 x {measured['fits']} fits on synthetic neighbours", loc="left", fontsize=10)
    figure.savefig(path, dpi=DPI)
