"""Cells in plain Python, many in one visible task: what a worker does between two words with the
orchestrator.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from tasks.compare.cell import CellRecord, Stopped, run_cell
from tasks.compare.charge import by_setting
from tasks.compare.config import CompareConfig
from tasks.compare.folds import Rows
from tasks.compare.grid import Cell, Plans
from tasks.compare.resume import Journal

# Rows and plans of a worker process, by comparison: read and calibrated once, not once a batch.
_here: dict[str, tuple[Rows, Plans]] = {}
_here_lock = threading.Lock()


class Bench:
    """What all cells of a comparison share. An orchestrator may carry it but not look into it.

    ``charges``: by ``id`` of a private setting, what counts a release in its reservation. In
    another process it has no reservation, no progress and no stop: only cells on published rows go
    there.
    """

    def __init__(
        self,
        name: str,
        config: CompareConfig,
        rows: Rows,
        plans: Plans,
        journals: dict[str, Journal],
        charges: dict[int, Callable[[], None]] | None = None,
        on_cell: Callable[[CellRecord], None] | None = None,
    ) -> None:
        self.name, self.config, self.rows, self.plans, self.journals = (
            name,
            config,
            rows,
            plans,
            journals,
        )
        self.charges = charges or {}
        self.on_cell = on_cell
        self.stop = threading.Event()

    def __repr__(self) -> str:
        return f"<comparison {self.name}>"

    def __reduce__(self) -> Any:
        paths = {data: journal.path for data, journal in self.journals.items()}
        return _in_worker, (self.name, self.config, self.rows, paths)

    def run(self, cell: Cell) -> CellRecord:
        """Run one cell; its record is on disk when this returns. Raises ``Stopped`` where the
        comparison ends.
        """
        journal = self.journals[cell.setting.data]
        charge = self.charges.get(id(cell.setting))
        if self.stop.is_set():
            raise Stopped
        if charge is not None:
            journal.begin(cell.key)
        record = run_cell(cell, self.config, self.rows, self.plans, charge, self._go_on)
        journal.append(record)
        if self.on_cell is not None:
            self.on_cell(record)
        return record

    def _go_on(self, done: int, total: int) -> None:
        if self.stop.is_set():
            raise Stopped


def _in_worker(name: str, config: CompareConfig, rows: Rows, paths: dict[str, Any]) -> Bench:
    with _here_lock:
        known = _here.setdefault(name, (rows, Plans()))
    return Bench(name, config, *known, {data: Journal(path) for data, path in paths.items()})


class Batch:
    """Some cells of one setting, which an orchestrator may carry but not look into."""

    def __init__(self, index: int, cells: Sequence[Cell]) -> None:
        self.index = index
        self.cells = tuple(cells)
        setting = cells[0].setting
        self.name = " ".join(filter(None, (setting.data, setting.label, setting.level)))

    def __repr__(self) -> str:
        return f"<{len(self.cells)} cells of {self.name}>"


def run_batch(batch: Batch, bench: Bench) -> list[CellRecord]:
    """The records of a batch, those of cells that ended before the comparison was stopped."""
    found: list[CellRecord] = []
    try:
        for cell in batch.cells:
            found.append(bench.run(cell))
    except Stopped:
        pass
    return found


def leave_interrupts() -> None:
    """For a worker: Ctrl-C at a terminal reaches every process of a command, and it is the first
    one that ends the others; a worker that ends by itself leaves it waiting.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_batch_alone(batch: Batch, bench: Bench) -> list[CellRecord]:
    """The same in a process of its own, whose linear algebra keeps to one thread."""
    with threadpool_limits(1):
        return run_batch(batch, bench)


def batches_of(cells: Sequence[Cell], workers: int, timed: bool = False) -> list[Batch]:
    """Batches of one setting each, small enough that every worker gets several.

    Where speed is compared (``timed``) all settings take turns on each fold, so that a slow minute
    of the machine meets all of them.
    """
    if timed:
        turns = sorted(cells, key=lambda cell: (cell.repeat, cell.fold, cell.draw))
        return [Batch(index, [cell]) for index, cell in enumerate(turns)]
    most = max(1, -(-len(cells) // (4 * workers)))
    pieces = [
        group[start : start + most]
        for group in by_setting(cells)
        for start in range(0, len(group), most)
    ]
    return [Batch(index, piece) for index, piece in enumerate(pieces)]
