"""What the orchestrator shows of a run: name, tags, a line a step, events, a page at the end.

All of it is stored by Prefect's server and read by whoever may see its pages. So it holds public
numbers and charged ones alone: what follows from the plan, what the ledger holds, metrics that
passed a mechanism or are of a public table. Never a cell, a count of records or an internal number.
Nothing here ends a run: what cannot be shown is left out.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec

import prefect.runtime.flow_run
from prefect.context import FlowRunContext
from prefect.states import Completed

from dpcore.errors import BudgetExceeded, DPFlowsError
from flows.exit_codes import words_of_code
from flows.server import living
from tasks.drawing import metric_title, number
from tasks.home import Home, tracking_page

P = ParamSpec("P")
log = logging.getLogger(__name__)

LOW = 0.2  # share of a budget below which its owner should hear of it
EVENTS = (
    "trained",
    "skipped",
    "refused",
    "failed",
    "budget-low",
    "drift",
    "champion-kept",
    "released",
)
BAR = 20  # letters


def shielded(tell: Callable[P, None]) -> Callable[P, None]:
    """``tell`` inside a flow run alone, and without a fault of its own: a run is never lost for a
    line about it.
    """

    def body(*args: P.args, **kwargs: P.kwargs) -> None:
        if FlowRunContext.get() is None:
            return
        try:
            tell(*args, **kwargs)
        except Exception as error:
            log.info("not shown in Prefect: %s", type(error).__name__)

    return body


def data_name(name: str) -> str:
    """The data set that a configuration names, also by the path of its schema."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else name


def flow_run_id() -> str:
    """The run of the flow that runs now, as Prefect knows it; empty outside one."""
    return str(prefect.runtime.flow_run.id or "")


def day() -> str:
    """The day that the run was meant for."""
    found = prefect.runtime.flow_run.scheduled_start_time or datetime.now(UTC)
    return f"{found:%Y-%m-%d}"


def _of(given: Any, *path: str) -> Any:
    """A value of a configuration, which a served flow gets as plain mappings."""
    for key in path:
        given = given.get(key) if isinstance(given, Mapping) else getattr(given, key, None)
    return given


def training_name() -> str:
    """``visits 2026-11-27 eps 0.5``."""
    config = prefect.runtime.flow_run.parameters.get("config")
    name, epsilon = _of(config, "data", "name"), _of(config, "privacy", "epsilon")
    period = _of(config, "data", "period") or day()
    return f"{data_name(str(name))} {period} eps {_short(epsilon)}"


def retraining_name() -> str:
    """The same, of a schedule: the day is that of its trigger, or the one that was asked for."""
    given = prefect.runtime.flow_run.parameters
    config, at = _of(given.get("config"), "training"), given.get("at")
    when = day() if at is None else str(at)[:10]
    name, epsilon = _of(config, "data", "name"), _of(config, "privacy", "epsilon")
    return f"{data_name(str(name or 'census'))} {when} eps {_short(epsilon or 1.0)} retraining"


def comparison_name() -> str:
    """``adult, bank 2026-11-27 compare``."""
    config = prefect.runtime.flow_run.parameters.get("config")
    names = [data_name(str(_of(one, "name") or one)) for one in _of(config, "data") or ()]
    return f"{', '.join(names)} {day()} {_of(config, 'kind') or 'compare'}"


def _short(value: object) -> str:
    return f"{float(str(value)):g}" if value is not None else "as planned"


@shielded
def line(text: str) -> None:
    """One info line of the task or flow that runs now."""
    from prefect.logging import get_run_logger

    found: Any = get_run_logger()
    own = logging.getLogger(f"{found.logger.name}.dpflows")
    own.setLevel(logging.INFO)  # whatever Prefect's own level is, which is quiet by default
    logging.LoggerAdapter(own, found.extra).info("%s", text)


@shielded
def tag(*names: str) -> None:
    """Tags of the flow run that runs now: the data set, above all."""
    from prefect.client.orchestration import get_client

    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    with get_client(sync_client=True) as client:
        client.update_flow_run(context.flow_run.id, tags=[*context.flow_run.tags, *names])


@shielded
def emit(what: str, data: str, **payload: Any) -> None:
    """The event ``dpflows.WHAT`` of a data set, which an automation can act on."""
    assert what in EVENTS
    send(f"dpflows.{what}", resource(data), payload)


def send(event: str, about: dict[str, str], payload: dict[str, Any]) -> None:
    """Hand an event to Prefect."""
    from prefect.events import emit_event

    emit_event(event, resource=about, payload=payload)


def resource(data: str) -> dict[str, str]:
    """What events are about: a data set."""
    return {
        "prefect.resource.id": f"dpflows.data.{slug(data)}",
        "prefect.resource.name": data,
        "dpflows.data": data,
    }


def slug(text: str) -> str:
    """A name in the letters that keys of artifacts may have."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "data"


@shielded
def write_page(data: str, text: str, what: str) -> None:
    """The page of the run that runs now; newest first under the key of its data set."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(text, key=f"dpflows-{slug(data)}", description=what)


@contextmanager
def told(data: str) -> Iterator[None]:
    """Events about the end of a run that fails: refused by the budget, or failed otherwise; and
    whose process it is while it lasts.
    """
    try:
        with living(Home.find(), flow_run_id()):
            yield
    except Exception as error:
        cause = getattr(error, "error", error)
        code = cause.exit_code if isinstance(cause, DPFlowsError) else 1
        what = "refused" if isinstance(cause, BudgetExceeded) else "failed"
        emit(what, data, exit_code=code, words=words_of_code(code), step=getattr(error, "step", ""))
        line(f"{what}: {words_of_code(code)} (exit code {code})")
        raise


def write_end(
    answer: Mapping[str, Any],
    left: float | None,
    blocks: tuple[str, ...],
    home: Home,
    experiment: str,
) -> None:
    """The page of a training that came to its end, and the events about it."""
    name = answer["data"]
    write_page(name, page(answer, left, home, experiment), "training")
    facts = {
        key: answer[key] for key in ("run_id", "algorithm", "epsilon_spent", "delta", "releasable")
    }
    emit("trained", name, **facts, share_left=left, released=answer["released"])
    if left is not None and left < LOW:
        emit("budget-low", name, share_left=left, blocks=list(blocks))


def bar(share: float) -> str:
    """``share`` as a bar of letters."""
    full = round(BAR * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (BAR - full)


def page(summary: Mapping[str, Any], left: float | None, home: Home, experiment: str) -> str:
    """The page of a training in Markdown, from public and charged numbers alone."""
    run = summary["run_id"]
    base = tracking_page(home)
    place = f"{base}/#/experiments/{experiment}/runs/{run}"
    released = summary["released"]
    named = [
        f"{metric_title(key)} {number(value)}"
        for key, value in released.items()
        if value is not None
    ]
    rows = [
        ("data set", f"{summary['data']}, public n = {summary['public_n']} ({summary['n_kind']})"),
        (
            "guarantee",
            f"ε = {summary['epsilon_spent']:.6g} at δ = {summary['delta']:g} for one "
            f"{summary['unit']}, {summary['adjacency']} (asked: {summary['epsilon_asked']:g})",
        ),
        ("accountant", f"{summary['accountant']}, {summary['conversion']}"),
        ("algorithm", str(summary["algorithm"])),
        (
            "budget left",
            "no limit (public data)" if left is None else f"`{bar(left)}` {100 * left:.1f} %",
        ),
        ("released metrics", ", ".join(named) or "none"),
        ("may be released", "yes, where audit and policy agree" if summary["releasable"] else "no"),
        ("ledger entry", f"`{summary['ledger_entry']}`"),
    ]
    links = [
        f"[MLflow run]({place}?workflowType=machine_learning)",
        f"[report, internal]({place}/artifacts/report/report.html)",
        f"[statement]({place}/artifacts/privacy/statement.json)",
    ]
    head, *lines = [f"| {name} | {_cell(text)} |" for name, text in rows]
    table = "\n".join([head, "| --- | --- |", *lines])
    return (
        f"# {summary['data']}: {summary['algorithm']}, ε {summary['epsilon_spent']:.4g}\n\n"
        f"{table}\n\n{' · '.join(links)}\n\nLinks answer while `dpflows ui` "
        f"runs. `dpflows show {run[:8]}` and `dpflows ui --report {run}` say more on the machine "
        "of the home folder.\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@contextmanager
def slot(data: str) -> Iterator[None]:
    """Hold the slot of a data set in Prefect's own concurrency limit ``dpflows:NAME``, made where
    it is missing: its page shows what runs, and who sets it to 0 stops retrainings of that data.

    The lock in the ledger decides who runs: a slot that a killed process still holds is passed by.
    Raises ``DPFlowsError`` where the limit is 0 or not active.
    """
    name = f"dpflows:{data}"
    limit = _limit(name)
    if limit == 0:
        raise DPFlowsError(
            f"Expected an open concurrency limit {name!r} in Prefect, got 0: somebody paused this "
            "data set; nothing was spent. Set it to 1 to go on."
        )
    with ExitStack() as stack:
        if limit is not None:
            # A busy server answers late: passed by, it is no error to a person.
            noisy = logging.getLogger("prefect._internal.concurrency")
            level = noisy.level
            noisy.setLevel(logging.CRITICAL)
            try:
                from prefect.concurrency.sync import concurrency

                stack.enter_context(concurrency(name, timeout_seconds=1))
            except Exception as error:
                log.info("slot of %s not taken: %s", name, type(error).__name__)
            finally:
                noisy.setLevel(level)
        yield


def _limit(name: str) -> int | None:
    """The concurrency limit of that name, made as 1 where there is none; None without a server."""
    if FlowRunContext.get() is None:
        return None
    try:
        from prefect.client.orchestration import get_client
        from prefect.exceptions import ObjectNotFound

        with get_client(sync_client=True) as client:
            try:
                found = client.read_global_concurrency_limit_by_name(name)
            except ObjectNotFound:
                client.upsert_global_concurrency_limit_by_name(name, 1)
                return 1
            return int(found.limit) if found.active else 0
    except Exception as error:
        log.info("no concurrency limit %s: %s", name, type(error).__name__)
        return None


@contextmanager
def fired(data: str) -> Iterator[Callable[[str], None]]:
    """One line on standard output for each firing of a served schedule, whatever becomes of it;
    nothing elsewhere. The function that is given takes the words of a good end.
    """
    words = [""]
    if served():
        for name in ("prefect.flow_runs", "prefect.task_runs"):
            logging.getLogger(name).propagate = False  # to the terminal; the server gets all of it

    def end(text: str) -> None:
        words[0] = text

    try:
        yield end
    except BaseException as error:
        cause = getattr(error, "error", error)
        code = cause.exit_code if isinstance(cause, DPFlowsError) else 1
        words[0] = f"{words_of_code(code)} (exit code {code}): {type(cause).__name__}"
        raise
    finally:
        if served():
            now = datetime.now(UTC)
            sys.stdout.write(f"{now:%Y-%m-%d %H:%M} UTC  {data}: {words[0]}\n")
            sys.stdout.flush()


# In the processes that Prefect starts for runs of a deployment: set by `dpflows retrain --serve`,
# or by a worker.
SERVED = ("_DPFLOWS_SERVED", "PREFECT__FLOW_RUN_ID")


def served() -> bool:
    """Whether this process was started for a firing of a schedule."""
    return any(name in os.environ for name in SERVED)


def ended(message: str, answer: dict[str, Any], name: str | None = None) -> Any:
    """The final state of a flow that came to its end: its name and words, and its answer."""
    return Completed(name=name, message=message, data=answer)
