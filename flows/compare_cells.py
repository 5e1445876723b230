"""How the cells of a comparison run: in batches, on threads, processes or Dask, each setting closed
when complete.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import count
from threading import Lock
from typing import Any

from prefect import task, unmapped
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from threadpoolctl import threadpool_limits

from flows.exit_codes import heed
from flows.steps import Store, reporter
from tasks.compare import tracking as children
from tasks.compare.batch import (
    Batch,
    Bench,
    batches_of,
    leave_interrupts,
    run_batch,
    run_batch_alone,
)
from tasks.compare.cell import CellRecord
from tasks.compare.config import CompareConfig
from tasks.compare.grid import Setting
from tasks.compare.resume import Comparison
from tasks.data.scheduler import security_of
from tasks.ledger import Reservation
from tasks.peers.process import end_all

OPTIONS: dict[str, Any] = {
    "retries": 0,
    "cache_policy": NO_CACHE,
    "persist_result": False,
    "log_prints": False,
    "task_run_name": "{batch.name} #{batch.index}",
}
cells_here = task(name="cells", **OPTIONS)(run_batch)
cells_elsewhere = task(name="cells", **OPTIONS)(run_batch_alone)


def run_cells(
    store: Store, parent: str, comparison: Comparison, reservations: dict[int, Reservation]
) -> list[CellRecord]:
    """Run what is to run and close each setting's child when its last cell is there; records in the
    order of cells.
    """
    config = comparison.config
    progress = Progress(len(comparison.to_run))
    bench = Bench(
        comparison.name,
        config,
        comparison.rows,
        comparison.plans,
        comparison.journals,
        {setting: reservation.on_charge for setting, reservation in reservations.items()},
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
        end_all()  # a library that trains elsewhere is not waited for
        book.close_all("KILLED")
        raise
    return [known[cell.key] for cell in comparison.cells if cell.key in known]


def batches(comparison: Comparison, bench: Bench) -> Iterator[list[CellRecord]]:
    """The records of each batch, as they end. Only threads are run when the rows are private."""
    workers = worker_count(comparison.config)
    found = batches_of(comparison.to_run, workers, timed=comparison.config.peers is not None)
    if not found:
        return
    reporter.get().step("cells")
    run: Any = cells_here if comparison.config.runner == "threads" else cells_elsewhere
    futures = run.map(batch=found, bench=unmapped(bench))
    by_future = dict(zip(futures, found, strict=True))
    try:
        for future in as_completed(list(futures)):
            heed()  # a signal that a library kept to itself
            yield records_of(future, by_future[future])
    except BaseException:
        bench.stop.set()
        raise


def records_of(future: Any, batch: Batch) -> list[CellRecord]:
    """The records of a batch; all its cells failed where its worker died."""
    try:
        return list(future.result())
    except Exception as error:
        return [failed(cell, error) for cell in batch.cells]


def failed(cell: Any, error: Exception) -> CellRecord:
    """The record of a cell whose worker did not answer."""
    text = f"worker: {type(error).__name__}" + (f": {error}" if cell.setting.job.public else "")
    base = {
        **cell.setting.facts,
        "cell": cell.key,
        "repeat": cell.repeat,
        "fold": cell.fold,
        "draw": cell.draw,
    }
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

    def one(self, record: CellRecord) -> None:
        with self._lock:
            self._watch.progress(next(self._done), self.total)
            if record["status"] == "failed":
                self._watch.say(f"Failed: {record['data']} {record['label']}: {record['error']}")

    def many(self, records: Sequence[CellRecord]) -> None:
        for record in records:
            self.one(record)


class Book:
    """The children of a comparison: each is opened and closed when all cells of its setting are
    known.
    """

    def __init__(
        self, store: Store, parent: str, comparison: Comparison, known: dict[str, CellRecord]
    ) -> None:
        self.store, self.parent, self.comparison, self.known = store, parent, comparison, known
        self.waiting: dict[int, list[str]] = {}
        self.settings: dict[int, Setting] = {}
        for cell in comparison.cells:
            self.waiting.setdefault(id(cell.setting), []).append(cell.key)
            self.settings[id(cell.setting)] = cell.setting

    def close_complete(self) -> None:
        """Write every setting whose cells are all there."""
        for key in [
            key for key, cells in self.waiting.items() if all(cell in self.known for cell in cells)
        ]:
            self._write(key, "FINISHED")

    def close_all(self, status: str) -> None:
        """Write what there is of settings that did not come to their end."""
        for key in [
            key for key, cells in self.waiting.items() if any(cell in self.known for cell in cells)
        ]:
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
    return config.workers or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(2)
    )


def task_runner(config: CompareConfig) -> Any:
    """Threads, processes, a Dask cluster on this machine, or the one at ``engine.address``."""
    workers = worker_count(config)
    if config.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=workers)
    if config.runner == "processes":
        return ProcessPoolTaskRunner(max_workers=workers, initializer=leave_interrupts)
    from prefect_dask import DaskTaskRunner

    logging.getLogger("distributed").setLevel(logging.WARNING)  # it tells every opening and closing
    if config.engine is not None and config.engine.address is not None:
        engine = config.engine
        tls = {"ca": engine.ca, "cert": engine.cert, "key": engine.key}
        security = security_of(config.engine.address, tls)
        return DaskTaskRunner(address=engine.address, client_kwargs={"security": security})
    return DaskTaskRunner(cluster_kwargs={"n_workers": workers, "threads_per_worker": 1})
