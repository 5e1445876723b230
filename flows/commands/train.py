"""The commands ``train`` and ``plan``: what happens around the flow, and what is printed."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from dpcore.accounting import Events
from dpcore.train import Planned
from flows.terminal import Terminal, plan_table, print_whole, summary_table
from tasks import training
from tasks.config import TrainConfig, load_config
from tasks.data import peek
from tasks.home import Home
from tasks.kinds.base import Job
from tasks.kinds.charge import require_files
from tasks.kinds.engine import digested, outlook
from tasks.ledger import Ledger, ledger_url
from tasks.ledger.entries import WORTH, best_counting, counting_of
from tasks.ledger.records import Dataset
from tasks.options.base import entries_of, readable, words_of
from tasks.record import statement
from tasks.stores import stores_to_make
from tasks.stores.moved import require_in_place


def run_training(config: str | None, overrides: Sequence[str], as_json: bool) -> None:
    """``dpflows train``: refuse early what can be refused from public facts, then run the flow on a
    local server.
    """
    home = Home.find()
    settings = load_config(config, overrides)
    with Terminal(Console(stderr=True), None if as_json else show_summary) as terminal:
        terminal.step("plan")
        job, _, admitted = refuse_early(settings, home)
        if words := large_words(job, admitted):
            terminal.say(words)
        look(job)
        summary = on_server(settings, home.prepare(), terminal, lambda: run_flow(settings))
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")


def show_summary(summary: Mapping[str, Any]) -> None:
    """Print the table of a training on standard output."""
    print_whole(Console(), summary_table(summary))
    sys.stdout.flush()


def refuse_early(settings: TrainConfig, home: Home) -> tuple[Job, Planned, Planned]:
    """Plan and ask the ledger without any server: a refusal takes a second and starts nothing.

    Returns job, plan for the run's own target, and the plan that the ledger admits. The flow does
    the same again, where it is seen.
    """
    job = training.prepare(settings)
    with Ledger(ledger_url(settings, job.schema, home)) as ledger:
        admitted = training.plan_within(job, ledger)
    require_files(job)
    return job, training.plan_training(job), admitted


def large_words(job: Job, admitted: Planned) -> str:
    """Price, disk and time of a training whose rows are not kept in memory, before a file of it is
    opened; empty of others.
    """
    if not job.kind.coded or (found := outlook(job, admitted))["engine"] == "memory":
        return ""
    promise = statement.guarantee(admitted)
    return (
        f"Plan: epsilon {promise.epsilon:.6g} at delta {promise.delta:g} for one {promise.unit}; "
        f"{found['stored_columns']} columns, {found['row_bytes']} bytes a row, "
        f"{found['disk_gb']:g} GB of disk in {found['shards']} shards, {found['passes']} passes, "
        f"about {found['minutes_about']:g} minutes, {found['encoding_minutes']:g} of them to "
        f"encode. Engine {found['engine']}: {found['engine_reason']}.{split_words(job)}"
    )


def split_words(job: Job) -> str:
    """What a split by many columns costs, and how it costs less; empty of others."""
    if job.schema.split.by or (count := digested(job)) < 2:
        return ""
    return (
        f" The split goes by the text of every cell, {count} columns of numbers or names: split.by "
        "with one column that tells rows apart is encoded faster (and splits anew)."
    )


def look(job: Job) -> None:
    """Refuse a table whose header or first rows are wrong before any server starts; the flow reads
    all of it.
    """
    data, blocks = job.config.data, None if job.blocks == ("all",) else job.blocks
    peek(readable(job), job.encoder, data.path, data.test_path, blocks)


def on_server(
    settings: TrainConfig, home: Home, terminal: Terminal, work: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Call a flow on a local Prefect server, which starts while the libraries are imported; returns
    its answer.
    """
    from flows.server import LocalServer

    require_in_place(home)
    if stores_to_make(home):
        terminal.step("making the stores of this home folder")
    with LocalServer(home) as server:
        terminal.step("starting Prefect and MLflow")
        from flows.steps import open_store, reporter

        keep_quiet()
        # The tables of a new MLflow store are made while the server starts.
        open_store(settings.tracking.experiment)
        server.ready()
        token = reporter.set(terminal)
        try:
            answer = work()
        finally:
            reporter.reset(token)
            send_logs()
        terminal.step("closing")
        server.drain(answer["flow_run_id"])
    return answer


def run_flow(settings: TrainConfig) -> dict[str, Any]:
    """The training flow; imported when the server already starts."""
    from flows.train import train

    return train(settings)


def keep_quiet() -> None:
    """Keep Prefect's copies of our errors off the terminal; they reach Prefect's store, and ours
    are printed.
    """
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).propagate = False


def send_logs() -> None:
    """Hand Prefect's last log lines to its server, while that still runs."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            handler.flush()


def show_plan(config: str | None, overrides: Sequence[str], as_json: bool) -> None:
    """``dpflows plan``: the price of a training and what the ledger would have left."""
    home = Home.find()
    settings = load_config(config, overrides)
    job = training.prepare(settings)
    with Ledger(ledger_url(settings, job.schema, home)) as ledger:
        opened = job.public or any(found.name == job.schema.name for found in ledger.datasets())
        admitted = training.plan_within(job, ledger) if opened else training.plan_training(job)
        room = ledger.room(job.schema.name, job.blocks, public=job.public) if opened else None
    report = plan_report(job, admitted)
    if not opened:
        # A price needs no budget, but the training will.
        report["ledger_left"] = (
            f"no budget yet: dpflows ledger init {job.schema.name} --epsilon E --delta D"
        )
    elif room is not None:
        cost = sum(room.cost(events) for events in (admitted.events, *entries_of(job).values()))
        report |= {"ledger_order": room.order, "ledger_left": room.left, "ledger_cost": cost}
        report["ledger_left_after"] = room.left - cost
        with Ledger(ledger_url(settings, job.schema, home)) as ledger:
            report["ledger_better"] = better_counting(
                ledger.dataset(job.schema.name), admitted.events
            )
    else:
        report["ledger_left"] = "unlimited (public data)"
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        print_whole(Console(), plan_table(report))


def better_counting(dataset: Dataset, events: Events) -> str | None:
    """What a budget for runs like this one should count in, where that admits more of them."""
    here, best = counting_of(dataset, events), best_counting(dataset, events)
    if best.runs <= WORTH * here.runs:
        return None
    return (
        f"{1 / here.runs:.4g} of a whole budget {dataset.counting}; {1 / best.runs:.4g} where it "
        f"is opened with {best.option}, which admits {best.admitted} such runs, not {here.admitted}"
    )


def plan_report(job: Job, planned: Planned) -> dict[str, Any]:
    """The public numbers of a plan."""
    promise, curve = statement.guarantee(planned), statement.renyi(planned)
    parameters = {key: value for key, value in planned.parameters.items() if key != "tuning"}
    return {
        "schema_version": 1,
        "data": job.schema.name,
        "public_n": job.problem.n,
        "dimension": job.problem.dimension,
        "crosses": getattr(job.encoder, "crossed", {}),
        "fine_columns": sum(len(b.columns) for b in job.problem.blocks if b.fine) or None,
        "norm_bound": job.problem.norm_bound if job.kind.bounds_norms else None,
        "algorithm": planned.name,
        "reason": planned.reason,
        "parameters": parameters,
        **words_of(job, planned).report,
        **(outlook(job, planned) if job.kind.coded else {}),
        "phases": planned.phases,
        "noise_multiplier": parameters["noise_multiplier"],
        "releases": len(planned.events),
        "unit": promise.unit,
        "adjacency": str(promise.adjacency),
        "epsilon_asked": promise.target_epsilon,
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "accountant": promise.accountant,
        "conversion": promise.conversion,
        "best_order": curve.best_order,
        "renyi_epsilon": curve.epsilon,
        "warnings": [*job.warnings, *([planned.warning] if planned.warning else [])],
    }
