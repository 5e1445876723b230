"""The flow of a comparison: cells, affordable?, load, reserve, cells in batches, report.

Workers answer with plain records; only this process writes to MLflow and ledger.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any

import prefect.runtime.flow_run
from prefect import flow, task, unmapped
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from threadpoolctl import threadpool_limits

from dpcore.errors import DPFlowsError, InputError
from flows.steps import StepFailed, reporter, step
from flows.train import Open, budget_words, completed, open_store
from flows.train import arrived as arrived_at_end
from tasks import tracking
from tasks.compare import session
from tasks.compare import tracking as children
from tasks.compare.batch import Batch, Bench, batches_of, run_batch, run_batch_alone
from tasks.compare.cell import Record, missing_metrics
from tasks.compare.charge import Charge
from tasks.compare.config import CompareConfig
from tasks.compare.grid import Setting
from tasks.compare.report import machine, report
from tasks.compare.session import Comparison
from tasks.config import TrainConfig
from tasks.home import Home
from tasks.ledger import Blocks, Ledger, Reservation
from tasks.training import ledger_url, require_files

OPTIONS: dict[str, Any] = {
    "retries": 0,
    "cache_policy": NO_CACHE,
    "persist_result": False,
    "log_prints": False,
    "task_run_name": "{batch.name} #{batch.index}",
}
cells_here = task(name="cells", **OPTIONS)(run_batch)
cells_elsewhere = task(name="cells", **OPTIONS)(run_batch_alone)


def load_rows(comparison: Comparison) -> None:
    """Read every data set that has cells to run, once for each encoding."""
    for setting in {id(cell.setting): cell.setting for cell in comparison.to_run}.values():
        comparison.rows.table(setting)
        comparison.rows.check_classes(setting)


grid_step = step(session.make_comparison, "cells")
afford_step = step(session.charges, "affordable?")
load_step = step(load_rows, "load")
report_step = step(report, "report")


@flow(name="dpflows-compare", retries=0, persist_result=False, log_prints=False)
def compare_flow(config: CompareConfig, fresh: bool = False) -> dict[str, Any]:
    """Run every cell that is not finished, and report on all of them; returns the numbers of the summary.

    Cells that fail are recorded as failed and do not stop the others.
    """
    started = perf_counter()
    store = open_store(TrainConfig(tracking=config.tracking))
    comparison = grid_step(config, store.home, fresh)
    charges = afford_step(comparison, store.home)
    say_first(comparison, charges)
    if config.runner == "threads":
        load_step(comparison)
    with ExitStack() as stack:
        parent = stack.enter_context(parent_run(store, comparison))
        reservations = reserve_all(stack, comparison, charges, store.home)
        seconds = {"load": perf_counter() - started}
        records = run_cells(store, parent, comparison, reservations)
        for data, reservation in reservations.items():
            reservation.commit(result_hashes(comparison, records, data))
        seconds["cells"] = perf_counter() - started - seconds["load"]
        facts = make_facts(comparison, charges, perf_counter() - started)
        files = report_step(store.client, parent, store.home.outbox / parent, records, facts)
    seconds["flow"] = perf_counter() - started
    return arrived_at_end(summary(comparison, records, charges, parent, files, seconds, store))


def say_first(comparison: Comparison, charges: dict[str, Charge]) -> None:
    """What a person should know before cells run: what is left out, resumed and charged."""
    say = reporter.get().say
    for warning in comparison.warnings:
        say(f"Warning: {warning}")
    for reason, labels in grouped_reasons(comparison).items():
        say(f"Left out: {labels}: {reason}")
    if comparison.finished:
        say(f"{len(comparison.finished)} of {len(comparison.cells)} cells are finished already and are kept.")
    if comparison.begun and charges:
        say(f"{comparison.begun} cells had begun and did not end: what they drew stays charged, they are charged anew.")
    for charge in charges.values():
        say(f"Charge: {charge.words}")


def grouped_reasons(comparison: Comparison) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for item in comparison.left_out:
        found.setdefault(item.reason, []).append(f"{item.label} ({item.where})")
    return {
        reason: ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        for reason, labels in found.items()
    }


@contextmanager
def parent_run(store: Open, comparison: Comparison) -> Iterator[str]:
    """The parent MLflow run: FINISHED, FAILED, or KILLED where the process was told to end."""
    config = comparison.config
    name = config.tracking.name or f"compare {', '.join(data.name for data in config.data)}"
    tags = {"dpflows.flow_run": str(prefect.runtime.flow_run.id or ""), "dpflows.kind": "comparison"}
    run_id = tracking.open_run(store.client, store.experiment, name, tags)
    try:
        counts = {"all": len(comparison.cells), "kept": len(comparison.finished)}
        tracking.log_params(store.client, run_id, children.parent_params(config, counts))
        store.client.log_text(run_id, config.model_dump_json(indent=1), "config.json")
        yield run_id
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        tracking.close_run(store.client, run_id, status, type(error).__name__)
        raise
    tracking.close_run(store.client, run_id, "FINISHED")


def reserve_all(
    stack: ExitStack, comparison: Comparison, charges: dict[str, Charge], home: Home
) -> dict[str, Reservation]:
    """One reservation for each private data set; each is forfeited or cancelled where the block does not end well."""
    found: dict[str, Reservation] = {}
    for data, charge in charges.items():
        job = comparison.private_jobs[data]
        ledger = stack.enter_context(Ledger(ledger_url(job.config, job.schema, home)))
        ledger.reap()
        files = require_files(job)
        made = ledger.reserve(
            data,
            charge.events,
            job.blocks,
            {"config": sha256(comparison.config.model_dump_json().encode()).hexdigest()},
            fingerprint=ledger.fingerprint(files) if files else None,
            division=Blocks.of(job.schema),
        )
        for note in made.notes:
            reporter.get().say(f"Warning: {note}")
        found[data] = stack.enter_context(told(made))
    return found


@contextmanager
def told(reservation: Reservation) -> Iterator[Reservation]:
    """A reservation that ends with the block, and words about the budget where the block fails."""
    try:
        with reservation:
            yield reservation
    except BaseException:
        reporter.get().say(budget_words(reservation))
        raise


def run_cells(store: Open, parent: str, comparison: Comparison, reservations: dict[str, Reservation]) -> list[Record]:
    """Run what is to run and close each setting's child when its last cell is there; records in the order of cells."""
    config = comparison.config
    progress = Progress(len(comparison.to_run))
    bench = Bench(
        comparison.name,
        config,
        comparison.rows,
        comparison.plans,
        comparison.journals,
        {data: reservation.on_charge for data, reservation in reservations.items()},
        progress.one if config.runner == "threads" else None,
    )
    known = dict(comparison.finished)
    book = Book(store, parent, comparison, known)
    try:
        # Linear algebra on many threads in every worker would fight for the processors.
        with threadpool_limits(1):
            book.close_complete()
            for records in batches(comparison, bench):
                known |= {record["cell"]: record for record in records}
                if config.runner != "threads":
                    progress.many(records)
                book.close_complete()
    except BaseException:
        bench.stop.set()
        book.close_all("KILLED")
        raise
    return [known[cell.key] for cell in comparison.cells if cell.key in known]


def batches(comparison: Comparison, bench: Bench) -> Iterator[list[Record]]:
    """The records of each batch, as they end. Only threads are run when the rows are private."""
    workers = worker_count(comparison.config)
    found = batches_of(comparison.to_run, workers)
    if not found:
        return
    reporter.get().step("cells")
    run: Any = cells_here if comparison.config.runner == "threads" else cells_elsewhere
    futures = run.map(batch=found, bench=unmapped(bench))
    by_future = dict(zip(futures, found, strict=True))
    try:
        for future in as_completed(list(futures)):
            yield records_of(future, by_future[future])
    except BaseException:
        bench.stop.set()
        raise


def records_of(future: Any, batch: Batch) -> list[Record]:
    """The records of a batch; all its cells failed where its worker died."""
    try:
        return list(future.result())
    except Exception as error:
        return [failed(cell, error) for cell in batch.cells]


def failed(cell: Any, error: Exception) -> Record:
    """The record of a cell whose worker did not answer."""
    text = f"worker: {type(error).__name__}" + (f": {error}" if cell.setting.job.public else "")
    base = {**cell.setting.facts, "cell": cell.key, "repeat": cell.repeat, "fold": cell.fold, "draw": cell.draw}
    empty: dict[str, Any] = {
        "n": None,
        "seconds": None,
        "spent_epsilon": None,
        "metrics": {},
        "curve": [],
        "warnings": [],
    }
    return {**base, **empty, "status": "failed", "error": text[:500]}


class Progress:
    """Counts cells for the bar, whose end it foretells."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._watch = reporter.get()
        self._done = count(1)
        self._lock = Lock()

    def one(self, record: Record) -> None:
        with self._lock:
            self._watch.progress(next(self._done), self.total)
            if record["status"] == "failed":
                self._watch.say(f"Failed: {record['data']} {record['label']}: {record['error']}")

    def many(self, records: Sequence[Record]) -> None:
        for record in records:
            self.one(record)


class Book:
    """The children of a comparison: each is opened and closed when all cells of its setting are known."""

    def __init__(self, store: Open, parent: str, comparison: Comparison, known: dict[str, Record]) -> None:
        self.store, self.parent, self.comparison, self.known = store, parent, comparison, known
        self.waiting: dict[int, list[str]] = {}
        self.settings: dict[int, Setting] = {}
        for cell in comparison.cells:
            self.waiting.setdefault(id(cell.setting), []).append(cell.key)
            self.settings[id(cell.setting)] = cell.setting

    def close_complete(self) -> None:
        """Write every setting whose cells are all there."""
        for key in [key for key, cells in self.waiting.items() if all(cell in self.known for cell in cells)]:
            self._write(key, "FINISHED")

    def close_all(self, status: str) -> None:
        """Write what there is of settings that did not come to their end."""
        for key in [key for key, cells in self.waiting.items() if any(cell in self.known for cell in cells)]:
            self._write(key, status)

    def _write(self, key: int, status: str) -> None:
        setting = self.settings[key]
        records = [self.known[cell] for cell in self.waiting.pop(key) if cell in self.known]
        if status == "FINISHED" and all(record["status"] == "failed" for record in records):
            status = "FAILED"
        client, config = self.store.client, self.comparison.config
        run_id = children.open_child(client, self.store.experiment, self.parent, setting, config)
        children.close_child(client, run_id, setting, records, status)


def worker_count(config: CompareConfig) -> int:
    """As configured, else one for each processor that this process may use."""
    return config.workers or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(2))


def task_runner(config: CompareConfig) -> Any:
    """Threads, processes or a local Dask cluster."""
    workers = worker_count(config)
    if config.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=workers)
    if config.runner == "processes":
        return ProcessPoolTaskRunner(max_workers=workers)
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise InputError(
            "Expected the package prefect-dask for runner: dask, which is not installed; "
            "pip install prefect-dask 'dask[distributed]', or use runner: processes."
        ) from error
    return DaskTaskRunner(cluster_kwargs={"n_workers": workers, "threads_per_worker": 1})


def result_hashes(comparison: Comparison, records: Sequence[Record], data: str) -> dict[str, str]:
    """What closes the ledger's entry: the hash of the records of the charged cells."""
    charged = {cell.key for cell in comparison.charged(data)}
    own = [record for record in records if record["cell"] in charged]
    text = json.dumps(own, sort_keys=True, separators=(",", ":"))
    return {"results": sha256(text.encode()).hexdigest()}


def make_facts(comparison: Comparison, charges: dict[str, Charge], seconds: float) -> dict[str, Any]:
    """What stands beside the numbers in tables, figures and page."""
    config, protocol = comparison.config, comparison.config.protocol
    metrics = [name for name in config.metrics or () if name != "coverage"]
    if config.coverage is not None and (config.metrics is None or "coverage" in config.metrics):
        metrics += [f"coverage_at_{k}" for k in config.coverage.counts] if config.metrics is not None else []
    public = {setting.data: setting.job.public for setting in comparison.settings}
    charge = "; ".join(charge.words for charge in charges.values())
    left_out = [f"left out: {who}: {why}" for why, who in grouped_reasons(comparison).items()]
    return {
        "title": config.tracking.name or f"Comparison on {', '.join(public)}",
        "protocol": f"{protocol.name}: {protocol.words}",
        "folds": protocol.folds,
        "repeats": protocol.partitions,
        "draws": protocol.noise_draws,
        "metrics": metrics,
        "public": public,
        "charge": charge or "public data, or all cells were finished before: nothing is charged",
        "paired": "every algorithm and epsilon meets the same folds and the same public seeds; noise is drawn anew",
        "seed": config.seed,
        "seconds": round(seconds, 3),
        "machine": machine(),
        "config": config.model_dump_json(),
        "warnings": [*comparison.warnings, *left_out],
        "code": session.code_version(),
    }


def summary(
    comparison: Comparison,
    records: Sequence[Record],
    charges: dict[str, Charge],
    parent: str,
    files: Sequence[str],
    seconds: dict[str, float],
    store: Open,
) -> dict[str, Any]:
    """The end of a comparison as one JSON-able object."""
    config = comparison.config
    states = Counter(record["status"] for record in records)
    return {
        "schema_version": 1,
        "data": [data.name for data in config.data],
        "protocol": config.protocol.words,
        "cells": {
            "all": len(comparison.cells),
            "done": states["done"],
            "failed": states["failed"],
            "kept": len(comparison.finished),
        },
        "children": len(comparison.settings),
        "left_out": [f"{item.label} ({item.where}): {item.reason}" for item in comparison.left_out],
        "failures": failures(records),
        "missing_metrics": missing_metrics(records, config.metrics or ()),
        "charged": {data: {"cells": c.cells, "cost": c.cost, "order": c.room.order} for data, c in charges.items()},
        "means": means(comparison, records),
        "experiment": config.tracking.experiment,
        "run_id": parent,
        "flow_run_id": str(prefect.runtime.flow_run.id or ""),
        "report": list(files),
        "seconds": seconds,
    }


def failures(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Failed cells, the same failure once with how often it was seen."""
    seen = Counter((r["data"], r["label"], r["error"]) for r in records if r["status"] == "failed")
    return [{"data": data, "label": label, "error": error, "cells": n} for (data, label, error), n in seen.items()]


def means(comparison: Comparison, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Mean metrics of each setting, in their order."""
    groups: dict[str, list[Record]] = {}
    for cell, record in zip(comparison.cells, records, strict=False):
        groups.setdefault(children.child_name(cell.setting, comparison.config), []).append(record)
    found = []
    for name, own in groups.items():
        done = [record for record in own if record["status"] == "done"]
        metrics = {
            key: sum(values) / len(values)
            for key in children.names_of(done)
            if (values := [r["metrics"][key] for r in done if r["metrics"].get(key) is not None])
        }
        times = [record["seconds"] for record in done]
        found.append(
            {
                "name": name,
                **{key: own[0][key] for key in ("data", "label", "loss", "l1", "l2", "epsilon", "adjacency")},
                "cells": len(done),
                "metrics": metrics,
                "seconds": sum(times) / len(times) if times else None,
            }
        )
    return found


def compare(config: CompareConfig, fresh: bool = False) -> dict[str, Any]:
    """Run the flow and raise what really went wrong, which the orchestrator does not get to see."""
    run: Callable[..., dict[str, Any]] = compare_flow.with_options(task_runner=task_runner(config))
    try:
        return completed(lambda: run(config, fresh))
    except StepFailed as failed_:
        if isinstance(failed_.error, DPFlowsError):
            raise failed_.error from None
        raise failed_.error from failed_
