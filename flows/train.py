"""The training flow: plan, affordable?, load, preprocess, reserve, fit, convert, commit, evaluate,
track.

``convert`` stands before ``commit``, since the ledger's entry is closed with the hash of the
privacy statement, which holds the converted price.
"""

# No postponed annotations here: a deployed flow is rebuilt from its annotations where this module
# has no name yet.

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from prefect import flow

from dpcore.errors import DPFlowsError
from dpcore.train import Planned
from flows import story
from flows.exit_codes import heed
from flows.steps import (
    StepFailed,
    Store,
    afford_words,
    arrived,
    columns_words,
    completed,
    fit_words,
    metric_words,
    open_store,
    plan_words,
    price_words,
    reporter,
    reserve_words,
    rows_words,
    statement_words,
    step,
)
from tasks import training
from tasks.config import TrainConfig
from tasks.home import Home
from tasks.kinds import engine
from tasks.kinds.base import Job, Sealed
from tasks.kinds.table import class_warning, count_warning
from tasks.ledger import Ledger, Reservation, ledger_url
from tasks.ledger.summary import share_left
from tasks.options.base import Run, build_objective, load_records
from tasks.record import index, outbox, tracking, view
from tasks.record import run as record_run
from tasks.report import attach

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
    started, told = perf_counter(), reporter.get()
    job = training.prepare(config)
    for warning in job.warnings:
        told.say(f"Warning: {warning}")
    store = open_store(config.tracking.experiment)
    if left_over := outbox.words(store.home):
        told.say(f"Warning: {left_over}.")
    with Ledger(ledger_url(config, job.schema, store.home)) as ledger:
        for hook in hooks(job, "before_plan"):
            job = hook(job)
        planned = afford_step(job, plan_step(job), ledger)
        if planned.warning:
            told.say(f"Warning: {planned.warning}")
        with engine.storage_told(job, told.say, told.progress):
            loaded = load_step(job)
        objective = preprocess_step(job, loaded)
        if far := count_warning(job.problem.n, objective.open().n, job.problem.unit):
            told.say(f"Warning, {far}")
        if alone := class_warning(loaded.open().one_class, job.schema.label.column):
            told.say(f"Warning, {alone}")
        run = hooked("before_reserve", Run(job, planned, loaded, objective, objective))
        with mlflow_run(store, job, planned) as run_id:
            run = replace(run, folder=store.home.outbox / run_id)
            with reserved(reserve_step(job, planned, ledger, loaded), run.place) as reservation:
                run = hooked("before_fit", run, reservation)
                iterates = Sealed(run.job.kind.iterates(run.job, run.planned))
                observers = (iterates, *run.observers)
                result = fit_step(
                    run.job, run.planned, run.sums, reservation, told.progress, observers
                )
                run = hooked("after_fit", replace(run, result=result), reservation)
                job, planned, folder = run.job, run.planned, run.place
                if title := job.kind.shows(job, planned):
                    step(job.kind.show, title)(folder, job, planned, result.weights)
                price = convert_step(planned)
                statement = commit_step(run, price, ledger, reservation)
            with kept(folder):
                metrics = evaluate_step(job, result.weights, run.data, run.known, folder, iterates)
                run = hooked("after_commit", replace(run, metrics=metrics), ledger)
                # Whoever waits for the numbers need not wait for figures, report and model.
                seconds = {"fit": result.seconds, "flow": perf_counter() - started}
                told.result(
                    index.summary(run, statement, run_id, story.flow_run_id(), None, seconds)
                )
                uri = track_step(store.client, run_id, run, statement, attach)
        seconds = {"fit": result.seconds, "flow": perf_counter() - started}
        answer = index.summary(run, statement, run_id, story.flow_run_id(), uri, seconds)
        index.note_run(store.home, answer, config.data.period, job.blocks)
        left = share_left(ledger, answer["data"], job.blocks)
    story.write_end(answer, left, job.blocks, store.home, store.experiment)
    return arrived(answer)


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
        "dpflows.flow_run": story.flow_run_id(),
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
def reserved(reservation: Reservation, folder: Path) -> Iterator[Reservation]:
    """A reservation that ends with the block, and words about the budget where the block fails.

    What half a training wrote to ``folder`` is removed then; a whole one is kept there.
    """
    for note in reservation.notes:
        reporter.get().say(f"Warning: {note}")
    try:
        with reservation:
            heed()
            yield reservation
    except BaseException:
        reporter.get().say(reservation.fate)
        if reservation.state == "committed":
            reporter.get().say(f"Its model and statement are kept in {folder}: `dpflows recover`.")
        elif reservation.state != "reserved":
            outbox.drop_half(folder)
        raise


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


def train(config: TrainConfig) -> dict[str, Any]:
    """Run the flow and raise what really went wrong, which the orchestrator does not get to see."""
    try:
        return completed(lambda: train_flow(config))
    except StepFailed as failed:
        if isinstance(failed.error, DPFlowsError):
            raise failed.error from None
        raise failed.error from failed
