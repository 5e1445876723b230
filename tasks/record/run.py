"""What a training leaves behind: files in the outbox first, then an MLflow run, then only the
MLflow run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcore.noise import noise_source
from dpcore.objective import compiled
from dpcore.preprocess import encoder_from_json
from dpcore.train import Planned
from tasks.drawing.curves import budget_figure, curve_rows, written
from tasks.home import Home
from tasks.kinds import quality
from tasks.kinds.base import Job, Words
from tasks.ledger import Ledger, Reservation, ledger_url
from tasks.ledger.reservation import this_process
from tasks.options.base import Run, words_of
from tasks.record import MODEL, outbox, sources, tracking, view
from tasks.record import statement as words
from tasks.record.example import data_input
from tasks.record.explain import of_training, write_terms
from tasks.record.index import MAIN
from tasks.record.model import (
    file_hash,
    log_model,
    probability_card,
    requirements_of,
    save_model,
    save_scores,
)
from tasks.record.outbox import Pending, keep_metrics
from tasks.record.stored import START, without_price
from tasks.record.wording import RENDERED as READABLE

if TYPE_CHECKING:
    from mlflow import MlflowClient


# Writes the page of a run to its folder from client, run, folder, metrics and ledger; names what is
# to be uploaded.
Page = Callable[["MlflowClient", str, Path, Mapping[str, float], str], list[str]]

CONFIG = "config.json"
STATEMENT = "privacy/statement.json"
MECHANISMS = "privacy/mechanisms.json"
CURVE = "privacy/curve.json"
TRACE = "privacy/trace.json"
FIGURE = "figures/budget.png"
NOTE = "mlflow.note.content"
FILES = (CONFIG, STATEMENT, *READABLE, MECHANISMS, CURVE, TRACE, sources.INVENTORY, FIGURE)


@dataclass(frozen=True, slots=True)
class Price:
    """The guarantee of a planned run and the Rényi curve behind it."""

    guarantee: words.Guarantee
    renyi: words.Renyi


def convert(planned: Planned) -> Price:
    """The Rényi curve of the whole plan and its (epsilon, delta)."""
    return Price(words.guarantee(planned), words.renyi(planned))


def commit(run: Run, price: Price, ledger: Ledger, reservation: Reservation) -> words.Statement:
    """Write model and statement to the run's folder, then close the ledger's entry with their
    hashes.

    The files are on disk first: a training that was paid for is not lost when tracking fails
    afterwards.
    """
    folder, job, planned, result = run.place, run.job, run.planned, run.fitted
    outbox.Begun(
        reservation.entry_id,
        reservation.dataset,
        this_process(),
        json.loads(job.config.canonical()),
    ).write(folder)
    place = folder / "model"
    place.mkdir(parents=True, exist_ok=True)
    card = {
        **job.kind.save(place, job, planned, result.weights),
        **save_scores(place, job.kind),
        **of_training(planned, result),
        **probability_card(planned),
    }
    save_model(place, result.weights, job.encoder, job.schema, job.problem.loss.name, card)
    weights = file_hash(folder / "model" / "weights.npz")
    statement = make_statement(run, price, ledger, reservation, weights)
    texts = {
        CONFIG: job.config.canonical(),
        STATEMENT: statement.to_json(),
        MECHANISMS: planned.events.to_json(),
        CURVE: price.renyi.model_dump_json(indent=1),
        TRACE: json.dumps([dict(row) for row in result.trace]),
        **{name: render(statement) for name, render in READABLE.items()},
        sources.INVENTORY: sources.inventory(folder / "model", requirements_of(folder / "model")),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    hashes = {key: sha256(texts[name].encode()).hexdigest() for key, name in HASHED.items()}
    model = {key: file_hash(folder / "model" / name) for key, name in MODEL_HASHED.items()}
    found = {**hashes, "weights": weights, **model}
    if statement.releasable:
        found[START] = weights
    pending = pending_of(run, statement, found, reservation.draws)
    # From the moment on that this file is there the model is paid for and whole: an interruption
    # before the commit must not lose it.
    reservation.keeps(lambda: outbox.hashes_of(folder, pending.entry))
    pending.write(folder)
    reservation.commit(found)
    return statement


def pending_of(
    run: Run, statement: words.Statement, hashes: Mapping[str, str] | None = None, draws: int = 0
) -> Pending:
    """What tracking needs beside the files."""
    job, planned, result = run.job, run.planned, run.fitted
    own = job.kind.words(job, planned, result.weights) + words_of(job, planned)
    return Pending(
        entry=statement.ledger.entry,
        dataset=statement.ledger.dataset,
        title=f"{planned.name} on {job.schema.name}, {statement.guarantee.adjacency}",
        delta=statement.guarantee.delta,
        seconds=result.seconds,
        draws=draws,
        params=run_params(job, planned, statement, own),
        tags=run_tags(job, statement, own),
        hashes=dict(hashes or {}),
        owner=this_process(),
    )


# Files of the run whose hashes close the ledger's entry, by their name there. Records before the
# list of files was kept hold the first three alone.
HASHED = {
    "config": CONFIG,
    "statement": STATEMENT,
    "mechanisms": MECHANISMS,
    sources.INVENTORY_KEY: sources.INVENTORY,
    **{name: name for name in (*READABLE, CURVE, TRACE)},
}
# Files of the model whose hashes close the ledger's entry too, beside the weights.
MODEL_HASHED = {"encoder": "encoder.json", "model": "model.json"}


def make_statement(
    run: Run, price: Price, ledger: Ledger, reservation: Reservation, weights: str
) -> words.Statement:
    """Everything that the guarantee depends on. The head is the reservation's: the commit holds
    this text's hash.
    """
    job, planned, result = run.job, run.planned, run.fitted
    mechanisms = json.loads(planned.events.to_json())
    reasons = words.unreleasable(
        planned, bounds=job.schema.releasable, fixed_noise=result.fixed_noise
    )
    release = job.config.evaluate.release
    for name, earlier in (
        ("start", planned.parameters.get("start")),
        ("evaluate.release.against", None if release is None else release.against),
    ):
        reasons += without_price(name, earlier, job.schema.name, ledger)
    own, added = job.kind.words(job, planned, result.weights), words_of(job, planned)
    reasons += [*added.reasons, *own.reasons]
    exact = planned.problem.adjacency != "add_remove"
    return words.Statement(
        created=words.now(),
        guarantee=price.guarantee,
        renyi=price.renyi,
        mechanisms=mechanisms,
        mechanisms_sha256=sha256(planned.events.to_json().encode()).hexdigest(),
        samplers=words.sampler_names(mechanisms),
        sensitivity=words.sensitivity_argument(planned, added.arguments),
        training=words.Training.of(planned, job.problem),
        data=words.DataFacts(
            name=job.schema.name,
            public=job.public,
            public_n=job.problem.n,
            n_kind="exact" if exact else "declared nominal count",
            dimension=job.problem.dimension,
            norm_bound=job.problem.norm_bound,
            bounds=job.schema.releasable[1],
        ),
        released=[
            *added.first,
            "the weights",
            *own.released,
            f"what the algorithm shows on the way: {planned.algorithm.releases}",
            *added.released,
        ],
        not_released=[
            "metrics marked internal: they are exact numbers on records",
            "any record, count or seed of noise",
        ],
        noise="none: fixed seed" if result.fixed_noise else words.noise_form(mechanisms),
        noise_source="fixed seed (test)" if result.fixed_noise else noise_source(),
        ledger=words.LedgerEntry(
            dataset=reservation.dataset,
            entry=reservation.entry_id,
            head=reservation.head,
            blocks=list(job.blocks),
            spent_units=ledger.spent(reservation.dataset),
            **limit_of(ledger, reservation.dataset),
        ),
        config_sha256=job.config.sha256,
        weights_sha256=weights,
        releasable=not reasons,
        reasons=reasons,
        limits=[
            *(text for name, text in words.KNOWN_LIMITS.items() if name not in added.covers),
            *added.limits,
            *([words.WARM_START] if planned.parameters.get("start") else []),
            *own.limits,
        ],
        versions=words.software(),
        lock_sha256=words.lock_hash(),
        git_commit=words.git_commit(),
    )


def limit_of(ledger: Ledger, dataset: str) -> dict[str, Any]:
    """The order of a budget and its size in units, beside which the spent ones say something; {}
    without a limit.
    """
    found = ledger.dataset(dataset)
    return {"order": found.order, "limit_units": found.limit} if found.limited else {}


def track(
    client: MlflowClient, run_id: str, run: Run, statement: words.Statement, attach: Page
) -> str:
    """Write parameters, curves, metrics, files, figure and model to the MLflow run; return the
    model's URI.

    ``attach`` writes the page of the run.
    """
    folder, job, result = run.place, run.job, run.fitted
    keep_metrics(folder, run.metrics)
    job.kind.write_notes(folder, job, result.notes)
    pending = pending_of(run, statement)
    return send(client, run_id, folder, job, pending, result.trace, run.metrics, attach)


def send(
    client: MlflowClient,
    run_id: str,
    folder: Path,
    job: Job,
    pending: Pending,
    trace: Sequence[Mapping[str, float]],
    metrics: Mapping[str, float],
    attach: Page,
) -> str:
    """What ``track`` does, from the files of the outbox; points that the run has already are not
    written again.
    """
    (folder / FIGURE).parent.mkdir(parents=True, exist_ok=True)
    points = list(trace)
    tracking.drawn(
        "budget", lambda: budget_figure(points, pending.title, pending.delta, folder / FIGURE)
    )
    tracking.log_params(client, run_id, pending.params)
    tracking.log_curves(client, run_id, trace)
    tracking.log_curves(client, run_id, curve_rows(folder, job.kind.numbers))
    spent = {"spent.delta": pending.delta, "internal.fit_seconds": pending.seconds}
    tracking.log_metrics(client, run_id, {**metrics, **spent}, resumed=True)
    for key, value in pending.tags.items():
        client.set_tag(run_id, key, value)
    added = [name for option in job.options for name in option.files]
    tracking.log_files(
        client, run_id, folder, [name for name in (*FILES, *added) if (folder / name).is_file()]
    )
    curves = tracking.drawn("curves", lambda: written(folder, job.kind.numbers, job.kind.figures))
    tracking.log_files(client, run_id, folder, curves or [])
    if (folder / quality.TABLE).is_file():
        tracking.log_files(client, run_id, folder, [quality.TABLE])
        client.set_tag(run_id, quality.TABLE_TAG, quality.TABLE_NOTE)
    tracking.log_files(
        client, run_id, folder, tracking.drawn("terms", lambda: write_terms(folder)) or []
    )
    at = ledger_url(job.config, job.schema, Home.find())
    page = (
        tracking.drawn("page", lambda: attach(client, run_id, folder, {**metrics, **spent}, at))
        or []
    )
    tracking.log_files(client, run_id, folder, page)
    declared = (folder / "model" / "encoder.json").read_bytes()
    tracking.log_data(client, run_id, data_input(pending.dataset, declared))
    encoder = encoder_from_json(declared.decode())
    uri = log_model(client, run_id, folder / "model", encoder, job.schema)
    score_model(client, run_id, uri, {**metrics, **spent})
    experiment = client.get_run(run_id).info.experiment_id
    if page:
        statement = words.Statement.model_validate_json((folder / STATEMENT).read_text())
        place = view.run_place(experiment, run_id)
        client.set_tag(run_id, NOTE, words.note_with_report(statement, place))
    view.show_trainings(client, experiment, main_metrics(metrics))
    client.set_tag(run_id, MODEL, uri)
    outbox.remove(folder)
    return uri


def score_model(client: MlflowClient, run_id: str, uri: str, metrics: Mapping[str, float]) -> None:
    """Show the numbers of the run at its model too: the same points, not new ones."""
    from mlflow.entities import Metric

    model = uri.removeprefix("models:/")
    points = [
        Metric(key, one.value, one.timestamp, one.step, model_id=model, run_id=run_id)
        for key in metrics
        for one in client.get_metric_history(run_id, key)[-1:]
    ]
    if points:
        client.log_batch(run_id, metrics=points)


def main_metrics(metrics: Mapping[str, float]) -> list[str]:
    """What the table of runs shows of the quality: a released number before an internal one."""
    for prefix in ("released.", "internal."):
        for name in MAIN:
            if f"{prefix}{name}" in metrics:
                return [f"{prefix}{name}"]
    return []


def run_params(
    job: Job, planned: Planned, statement: words.Statement, own: Words
) -> dict[str, Any]:
    """Single-valued parameters, each under one name."""
    promise = statement.guarantee
    return {
        "data.name": job.schema.name,
        "data.n": job.problem.n,
        "data.dimension": job.problem.dimension,
        "data.public": job.public,
        "preprocess.normalise": getattr(job.encoder, "normalise", None),
        "preprocess.numeric": getattr(job.encoder, "numeric", None),
        "preprocess.intercept": job.problem.intercept,
        "objective.loss": job.problem.loss.name,
        "objective.l1": job.problem.l1,
        "objective.l2": job.problem.l2,
        "privacy.unit": promise.unit,
        "privacy.adjacency": str(promise.adjacency),
        "privacy.epsilon": promise.target_epsilon,
        "privacy.delta": promise.delta,
        "privacy.accountant": promise.accountant,
        "privacy.conversion": promise.conversion,
        "privacy.best_order": statement.renyi.best_order,
        "algorithm.name": planned.name,
        "algorithm.preset": planned.preset,
        **{f"algorithm.{key}": value for key, value in planned.parameters.items()},
        **own.params,
        "config.sha256": job.config.sha256,
        "seed": job.config.seed,
    }


def run_tags(job: Job, statement: words.Statement, own: Words) -> dict[str, str]:
    """Where to find the run in the ledger, whether it may be released, and the guarantee in words
    for the UI.
    """
    return {
        "dpflows.data": job.schema.name,
        "dpflows.releasable": "yes" if statement.releasable else "no",
        "dpflows.reasons": "; ".join(statement.reasons) or "none",
        **own.tags,
        "dpflows.sums": compiled.name(),
        "dpflows.ledger_entry": statement.ledger.entry,
        "dpflows.ledger_head": statement.ledger.head,
        NOTE: words.note_of(statement),
    }
