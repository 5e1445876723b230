"""The training flow: plan, affordable?, load, preprocess, reserve, fit, convert, commit, evaluate,
track.

``convert`` stands before ``commit``, since the ledger's entry is closed with the hash of the
privacy statement, which holds the converted price.
"""

# No postponed annotations here: a deployed flow is rebuilt from its annotations where this module
# has no name yet.

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import prefect.runtime.flow_run
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from prefect import flow

from dpcore.errors import DPFlowsError
from dpcore.train import Planned
from flows import story
from flows.exit_codes import heed
from flows.server import end_flow_run, end_gone
from flows.steps import (
    StepFailed,
    afford_words,
    columns_words,
    fit_words,
    metric_words,
    plan_words,
    price_words,
    reporter,
    reserve_words,
    rows_words,
    statement_words,
    step,
    under,
)
from tasks import training
from tasks.config import TrainConfig
from tasks.data.store import written
from tasks.home import Home
from tasks.kinds.base import Job, Sealed
from tasks.kinds.engine import choose
from tasks.kinds.table import class_warning, count_warning
from tasks.ledger import Ledger, Reservation, ledger_url
from tasks.options.base import Run, build_objective, load_records
from tasks.record import index, outbox, tracking, view
from tasks.record import run as record_run
from tasks.record.statement import Statement
from tasks.report import attach
from tasks.stores import making_stores

# Read from top to bottom they tell what a training does.
plan_step = step(training.plan_training, "plan noise and price", plan_words)
afford_step = step(training.fit_to_ledger, "ask the budget", afford_words)
load_step = step(load_records, "read the records", known=rows_words)
preprocess_step = step(build_objective, "encode the columns", known=columns_words)
reserve_step = step(training.reserve_budget, "reserve the price", reserve_words)
fit_step = step(training.fit_model, "fit with noise", fit_words)
convert_step = step(record_run.convert, "state the guarantee", price_words)
commit_step = step(record_run.commit, "charge and keep the model", statement_words)
evaluate_step = step(training.measure, "measure quality", metric_words)
track_step = step(record_run.track, "record in MLflow", str)


@dataclass(frozen=True, slots=True)
class Store:
    """The store that a flow writes to."""

    home: Home
    client: MlflowClient
    experiment: str


def open_store(config: TrainConfig) -> Store:
    """Connect to MLflow, close what dead processes left RUNNING there, and find or create the
    experiment.

    Raises ``DPFlowsError`` where the store does not answer; nothing was spent then.
    """
    home = Home.find()
    # Two processes that open a new store on a server at once would both create its tables, and one
    # would fail.
    with making_stores(home.root):
        client = tracking.tracking_client(home)
        try:
            for run_id in tracking.close_stale_runs(client):
                end_flow_run(client.get_run(run_id).data.tags.get("dpflows.flow_run", ""))
            end_gone(home)
            experiment = tracking.ensure_experiment(client, home, config.tracking.experiment)
        except MlflowException as error:
            text = " ".join(str(error).split())[:200]
            raise DPFlowsError(
                f"Expected MLflow's store at {client.tracking_uri} to answer: nothing was spent; "
                f"start it, or correct MLFLOW_TRACKING_URI ({text})."
            ) from error
    return Store(home, client, experiment)


@flow(
    name="dpflows-train",
    flow_run_name=story.training_name,
    retries=0,
    persist_result=False,
    log_prints=False,
)
def train_flow(config: TrainConfig) -> dict[str, Any]:
    """Train one private model; returns the numbers of the run's summary.

    Refused before a file is opened where the budget does not allow it, before anything is reserved
    where the data are not as declared. From the reservation on, a failure leaves the run charged
    unless nothing was drawn. It prepares its own home (``DPFLOWS_HOME``, else ``runs``), so a
    script, another flow or a worker may call it as the command does.
    """
    name = story.data_name(config.data.name)
    story.tag(name)
    with Home.find().adopted(), story.told(name):
        answer = _steps(config)
    message = (
        f"{answer['algorithm']}, epsilon {answer['epsilon_spent']:.6g} at delta "
        f"{answer['delta']:g}, MLflow run {answer['run_id']}"
    )
    ended: dict[str, Any] = story.ended(
        message, answer
    )  # a state, of which the caller gets the answer
    return ended


def _steps(config: TrainConfig) -> dict[str, Any]:
    """The steps of the flow, in its home."""
    started = perf_counter()
    job = training.prepare(config)
    for warning in job.warnings:
        reporter.get().say(f"Warning: {warning}")
    store = open_store(config)
    if left := outbox.words(store.home):
        reporter.get().say(f"Warning: {left}.")
    with Ledger(ledger_url(config, job.schema, store.home)) as ledger:
        for hook in hooks(job, "before_plan"):
            job = hook(job)
        planned = afford_step(job, plan_step(job), ledger)
        if planned.warning:
            reporter.get().say(f"Warning: {planned.warning}")
        with shards_told(job):
            loaded = load_step(job)
        objective = preprocess_step(job, loaded)
        if far := count_warning(job.problem.n, objective.open().n, job.problem.unit):
            reporter.get().say(f"Warning, {far}")
        if alone := class_warning(loaded.open().one_class, job.schema.label.column):
            reporter.get().say(f"Warning, {alone}")
        run = hooked("before_reserve", Run(job, planned, loaded, objective, objective))
        with mlflow_run(store, job, planned) as run_id:
            run = replace(run, folder=store.home.outbox / run_id)
            with reserved(reserve_step(job, planned, ledger, loaded)) as reservation:
                run = hooked("before_fit", run, reservation)
                iterates = Sealed(run.job.kind.iterates(run.job, run.planned))
                observers, progress = (iterates, *run.observers), reporter.get().progress
                result = fit_step(run.job, run.planned, run.sums, reservation, progress, observers)
                run = hooked("after_fit", replace(run, result=result), reservation)
                job, planned, folder = run.job, run.planned, run.place
                if title := job.kind.shows(job, planned):
                    step(job.kind.show, title)(folder, job, planned, result.weights)
                price = convert_step(planned)
                statement = commit_step(folder, job, planned, price, result, ledger, reservation)
            with kept(folder):
                metrics = evaluate_step(job, result.weights, run.data, run.known, folder, iterates)
                metrics = hooked("after_commit", replace(run, metrics=metrics), ledger).metrics
                # Whoever waits for the numbers need not wait for figures, report and model.
                seconds = {"fit": result.seconds, "flow": perf_counter() - started}
                reporter.get().result(
                    summary(job, planned, statement, metrics, run_id, None, seconds)
                )
                uri = track_step(
                    store.client, run_id, folder, job, planned, statement, result, metrics, attach
                )
    seconds = {"fit": result.seconds, "flow": perf_counter() - started}
    answer = summary(job, planned, statement, metrics, run_id, uri, seconds)
    index.note_run(store.home, answer, config.data.period, job.blocks)
    tell_end(answer, store, job)
    return arrived(answer)


def tell_end(answer: dict[str, Any], store: Store, job: Job) -> None:
    """The page of a training that came to its end, and the events about it."""
    name = answer["data"]
    with Ledger(ledger_url(job.config, job.schema, store.home)) as ledger:
        left = story.share_left(ledger, name, job.blocks)
    story.write_page(name, story.page(answer, left, store.home, store.experiment), "training")
    facts = {
        key: answer[key] for key in ("run_id", "algorithm", "epsilon_spent", "delta", "releasable")
    }
    story.emit("trained", name, **facts, share_left=left, released=answer["released"])
    if left is not None and left < story.LOW:
        story.emit("budget-low", name, share_left=left, blocks=list(job.blocks))


@contextmanager
def shards_told(job: Job) -> Iterator[None]:
    """Say where rows are kept that are not kept in memory, and how far their encoding is."""
    if not job.kind.coded or (choice := choose(job)).kind == "memory":
        yield
        return
    reporter.get().say(f"Rows are kept by engine {choice.kind}: {choice.reason}.")
    token = written.set(
        lambda rows: reporter.get().progress(min(rows, job.problem.n), job.problem.n)
    )
    try:
        yield
    finally:
        written.reset(token)


def hooks(job: Job, name: str) -> Iterator[Callable[..., Any]]:
    """A hook of each option that has one for this job, as a step under its own name."""
    for option in job.options:
        if title := option.title(name, job):
            yield step(getattr(option, name), title)


def hooked(name: str, run: Run, *given: Any) -> Run:
    """The run after that hook of all its options; the operator is told what each has to say."""
    for hook in hooks(run.job, name):
        run = hook(run, *given)
        for note in run.notes:
            reporter.get().say(note)
        run = replace(run, notes=())
    return run


@contextmanager
def mlflow_run(store: Store, job: Job, planned: Planned) -> Iterator[str]:
    """An MLflow run that this block opens and closes: FINISHED, FAILED, or KILLED where the process
    was told to end.
    """
    tags = {
        "dpflows.flow_run": str(prefect.runtime.flow_run.id or ""),
        "dpflows.algorithm": planned.name,
        view.COLOUR: view.colour(len(index.runs(store.home))),
    }
    epsilon = job.config.privacy.epsilon
    name = job.config.tracking.name or view.run_title(job.schema.name, planned.name, epsilon)
    run_id = tracking.open_run(store.client, store.experiment, name, tags)
    try:
        yield run_id
    except BaseException as error:
        # Exceptions that are none of Exception are signals: the keyboard, or the end of the
        # process.
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        tracking.close_run(store.client, run_id, status, f"{type(error).__name__}: {error}"[:200])
        raise
    tracking.close_run(store.client, run_id, "FINISHED")


@contextmanager
def reserved(reservation: Reservation) -> Iterator[Reservation]:
    """A reservation that ends with the block, and words about the budget where the block fails."""
    for note in reservation.notes:
        reporter.get().say(f"Warning: {note}")
    try:
        with reservation:
            heed()
            yield reservation
    except BaseException:
        reporter.get().say(budget_words(reservation))
        raise


def budget_words(reservation: Reservation) -> str:
    """What became of the budget of a run that did not end well."""
    entry = f"ledger entry {reservation.entry_id} of {reservation.dataset!r}"
    if reservation.state == "cancelled":
        return f"Budget: nothing was drawn, so nothing was spent ({entry} is cancelled)."
    if reservation.state == "committed":
        return f"Budget: the run was trained and stays charged ({entry} is committed)."
    return (
        f"Budget: noise was drawn, so the run stays charged in full ({entry} is "
        f"{reservation.state})."
    )


@contextmanager
def kept(folder: Any) -> Iterator[None]:
    """Say where the trained model lies when something fails after its commit."""
    try:
        yield
    except BaseException:
        reporter.get().say(
            f"The run is trained and charged; its model and statement are kept in {folder}."
        )
        raise


def summary(
    job: Job,
    planned: Planned,
    statement: Statement,
    metrics: dict[str, float],
    run_id: str,
    uri: str | None,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The summary of a trained run as one JSON-able object; numbers under ``internal`` are exact
    ones on records.

    ``uri`` is that of the model, None while it is not stored yet.
    """
    promise = statement.guarantee
    return {
        "schema_version": 1,
        "data": job.schema.name,
        "public_n": job.problem.n,
        "n_kind": statement.data.n_kind,
        "dimension": job.problem.dimension,
        "algorithm": planned.name,
        "parameters": planned.parameters,
        "reason": planned.reason,
        "unit": promise.unit,
        "adjacency": str(promise.adjacency),
        "epsilon_asked": promise.target_epsilon,
        "epsilon_spent": promise.epsilon,
        "delta": promise.delta,
        "accountant": promise.accountant,
        "conversion": promise.conversion,
        "best_order": statement.renyi.best_order,
        "renyi_epsilon": statement.renyi.epsilon,
        "internal": under("internal.", metrics),
        "released": under("released.", metrics),
        "releasable": statement.releasable,
        "reasons": statement.reasons,
        "ledger_entry": statement.ledger.entry,
        "experiment": job.config.tracking.experiment,
        "run_id": run_id,
        "flow_run_id": str(prefect.runtime.flow_run.id or ""),
        "model": uri,
        "seconds": seconds,
        **({"conventions": meant} if (meant := job.kind.conventions(job)) else {}),
    }


results: ContextVar[list[dict[str, Any]] | None] = ContextVar("results", default=None)


def arrived(answer: dict[str, Any]) -> dict[str, Any]:
    """Note the answer of a flow at its very end, before the orchestrator records it."""
    noted = results.get()
    if noted is not None:
        noted.append(answer)
    return answer


def completed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call a flow. Where it came to its end and only the orchestrator failed to record that, say so
    and answer.
    """
    noted: list[dict[str, Any]] = []
    token = results.set(noted)
    try:
        return run()
    except Exception as error:
        if not noted:
            raise
        reporter.get().say(
            "Warning: the work is done, charged and stored, but Prefect could not record its end "
            f"({type(error).__name__}); its page shows the run as unfinished."
        )
        return noted[-1]
    finally:
        results.reset(token)


def train(config: TrainConfig) -> dict[str, Any]:
    """Run the flow and raise what really went wrong, which the orchestrator does not get to see."""
    try:
        return completed(lambda: train_flow(config))
    except StepFailed as failed:
        if isinstance(failed.error, DPFlowsError):
            raise failed.error from None
        raise failed.error from failed
