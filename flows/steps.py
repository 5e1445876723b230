"""How a plain function becomes a visible step of a flow: a Prefect task that spends at most once
and stores nothing; what is said of each step of a training; the store that flows write to, and how
they end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from prefect import task
from prefect.cache_policies import NO_CACHE

from dpcore.errors import DPFlowsError
from dpcore.train import Planned, Result
from flows import story
from flows.exit_codes import words_of_code
from flows.server import end_flow_run, end_gone
from tasks.drawing import metric_title, number
from tasks.home import Home
from tasks.kinds.base import Job, Sealed
from tasks.ledger import Reservation
from tasks.record import run as record_run
from tasks.record import tracking
from tasks.record.index import under
from tasks.record.statement import Statement
from tasks.stores import making_stores

P = ParamSpec("P")
R = TypeVar("R")


class StepFailed(Exception):
    """What the orchestrator gets to see and store of a failure; ``error`` is the failure itself,
    for the operator.

    The text of an error may quote a cell of a private table, so only its kind goes to the
    orchestrator's database. The orchestrator also pickles the exception of a failed run to its
    storage, whatever is said about results.
    """

    def __init__(self, step: str, error: Exception) -> None:
        code = error.exit_code if isinstance(error, DPFlowsError) else 1
        words = f"{words_of_code(code)} (exit code {code}) at step {step!r}"
        super().__init__(f"{words}: {type(error).__name__}")
        self.step = step
        self.error = error

    def __reduce__(self) -> Any:
        return RuntimeError, (str(self),)


class Reporter(Protocol):
    """Who is told how a training goes on."""

    def step(self, name: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    def result(self, summary: Mapping[str, Any]) -> None: ...


class Silence:
    """The reporter of a flow that nobody watches."""

    def step(self, name: str) -> None:
        """Nothing is shown."""

    def progress(self, done: int, total: int) -> None:
        """Nothing is shown."""

    def say(self, text: str) -> None:
        """Nothing is shown."""

    def result(self, summary: Mapping[str, Any]) -> None:
        """Nothing is shown."""


SILENCE = Silence()
reporter: ContextVar[Reporter] = ContextVar("reporter", default=SILENCE)


def step(
    function: Callable[P, R],
    name: str,
    words: Callable[[R], str] | None = None,
    known: Callable[P, str] | None = None,
) -> Callable[P, R]:
    """Return ``function`` as a task called ``name``: no retry, no cache, no stored result, no
    quoted error. ``words`` says the public numbers of its result, which Prefect's log shows;
    ``known`` those of what it is given, where its result is private.

    A retry would draw noise again, which is a second release; a stored result would be a copy of
    private rows.
    """

    @wraps(function)
    def body(*args: P.args, **kwargs: P.kwargs) -> R:
        reporter.get().step(name)
        failed: StepFailed | None = None
        try:
            found = function(*args, **kwargs)
        except Exception as error:
            failed = StepFailed(name, error)
        # Raised here, where nothing is being handled: ``from None`` would keep the failure itself
        # as the context, which is pickled too once Dask has been imported (its tblib sees to it).
        if failed is not None:
            raise failed
        said = [words(found)] if words else []
        said += [known(*args, **kwargs)] if known else []
        story.line(": ".join([name, *said]))
        return found

    made: Any = task(
        name=name,
        retries=0,
        cache_policy=NO_CACHE,
        persist_result=False,
        log_prints=False,
        task_run_name=name,
    )(body)
    return made


@dataclass(frozen=True, slots=True)
class Store:
    """The store that a flow writes to."""

    home: Home
    client: MlflowClient
    experiment: str


def open_store(experiment: str) -> Store:
    """Connect to MLflow, close what dead processes left RUNNING there, and find or create the
    ``experiment``.

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
            place = tracking.ensure_experiment(client, home, experiment)
        except MlflowException as error:
            text = " ".join(str(error).split())[:200]
            raise DPFlowsError(
                f"Expected MLflow's store at {client.tracking_uri} to answer: nothing was spent; "
                f"start it, or correct MLFLOW_TRACKING_URI ({text})."
            ) from error
    return Store(home, client, place)


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


def plan_words(planned: Planned) -> str:
    """The public numbers of a plan."""
    epsilon, noise = planned.spent_epsilon, planned.algorithm.noise_multiplier
    return f"{planned.name}, epsilon {epsilon:.6g}, noise multiplier {noise:.6g}"


def afford_words(planned: Planned) -> str:
    return f"epsilon {planned.spent_epsilon:.6g} is admitted"


def rows_words(job: Job) -> str:
    """What is declared of the rows, whatever was read."""
    return f"public n = {job.problem.n}"


def columns_words(job: Job, loaded: Sealed) -> str:
    """What is declared of the columns; ``loaded`` is not looked at."""
    return f"{job.problem.dimension} coefficients"


def reserve_words(reservation: Reservation) -> str:
    return f"entry {reservation.entry_id} of {reservation.dataset}"


def fit_words(result: Result) -> str:
    return f"{len(result.events)} releases"


def price_words(price: record_run.Price) -> str:
    promise = price.guarantee
    return (
        f"epsilon {promise.epsilon:.6g} at delta {promise.delta:g} for one {promise.unit}, "
        f"{promise.adjacency} ({promise.accountant})"
    )


def statement_words(statement: Statement) -> str:
    return f"entry {statement.ledger.entry}, {'' if statement.releasable else 'not '}releasable"


def metric_words(metrics: dict[str, float]) -> str:
    """Metrics that may leave; those that may not are the operator's."""
    found = {key: value for key, value in under("released.", metrics).items() if value is not None}
    return (
        ", ".join(f"{metric_title(key)} {number(value)}" for key, value in found.items())
        or "internal numbers"
    )
