"""How a plain function becomes a visible step of a flow: a Prefect task that spends at most once
and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE

from dpcore.errors import DPFlowsError
from flows import story
from flows.exit_codes import words_of_code

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
