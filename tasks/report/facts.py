"""What the report of a run is made of: its own files and numbers, other draws of it, and the
ledger's view.

The part that a run has in the budget of its data set, as the ledger has it.

How the budgets of all blocks went over time, as numbers.

What seconds were measured on: processor, cores, memory, linear algebra and versions.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from sqlalchemy import select
from threadpoolctl import threadpool_info

from dpcore.errors import InputError
from tasks import kinds
from tasks.kinds.quality import SUBGROUPS
from tasks.ledger import schema
from tasks.ledger.entries import entries
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import Dataset
from tasks.record.explain import TERMS
from tasks.record.statement import Statement, software


@dataclass(frozen=True, slots=True)
class Step:
    """A charged entry: when, and the share of the budget that it costs."""

    at: str
    share: float
    own: bool
    state: str


@dataclass(frozen=True, slots=True)
class Share:
    """Charged entries of ``block``, the fullest one that the run reads, oldest first. ``limited``:
    it has a budget.
    """

    dataset: str
    limited: bool
    guarantee: str
    block: str = ""
    steps: Sequence[Step] = ()

    @property
    def before(self) -> float:
        """What was charged before the run's first entry."""
        first = next((k for k, step in enumerate(self.steps) if step.own), len(self.steps))
        return sum(step.share for step in self.steps[:first])

    @property
    def own(self) -> float:
        return sum(step.share for step in self.steps if step.own)

    @property
    def after(self) -> float:
        """What others were charged since."""
        return sum(step.share for step in self.steps) - self.before - self.own

    @property
    def left(self) -> float:
        return max(0.0, 1.0 - sum(step.share for step in self.steps))


def _blocks_of(charged: Sequence[Mapping[str, Any]], mine: set[str]) -> set[str]:
    """The blocks that the entries ``mine`` were charged to."""
    return {block for one in charged if one["entry"] in mine for block in one["blocks"]}


def _fullest(charged: Sequence[Mapping[str, Any]], blocks: set[str]) -> str | None:
    """The block that most was charged to, the first of them by name; None where there is none."""
    totals = {
        block: sum(_cost(entry) for entry in charged if block in entry["blocks"])
        for block in sorted(blocks)
    }
    return max(totals, key=lambda name: totals[name], default=None)


def _charged(ledger: LedgerReader, dataset: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(ledger, dataset) if entry["state"] != "cancelled"]


def share_of(
    ledger: LedgerReader, dataset: str, blocks: Iterable[str], own: Iterable[str]
) -> Share | None:
    """The share of the entries ``own`` in the fullest of ``blocks``; None where the ledger has no
    such data set.
    """
    found = next((one for one in ledger.datasets() if one.name == dataset), None)
    if found is None:
        return None
    if not found.limited or not found.budget:
        return Share(dataset, False, "")
    charged = _charged(ledger, dataset)
    mine = set(own)
    block = _fullest(charged, _blocks_of(charged, mine) or set(blocks))
    if block is None:
        return None
    steps = [_step(entry, found.budget, mine) for entry in charged if block in entry["blocks"]]
    return Share(dataset, True, found.guarantee(), block, steps)


def _step(entry: Mapping[str, Any], budget: float, mine: set[str]) -> Step:
    """What one entry took of the budget."""
    return Step(entry["at"], _cost(entry) / budget, entry["entry"] in mine, entry["state"])


def _cost(entry: Mapping[str, Any]) -> float:
    return float(entry["cost"])


STATEMENT = "privacy/statement.json"
TRACE = "privacy/trace.json"
METRICS = "privacy/metrics.json"
CURVES = "figures"
OWN_FIGURE = "figures/budget.png"
INTERNAL = "internal."


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a report shows. ``draws`` are the internal metrics of other finished runs of
    the same config.
    """

    run_id: str
    name: str
    statement: Statement
    metrics: Mapping[str, float] = field(default_factory=dict)
    trace: Sequence[Mapping[str, float]] = ()
    draws: Sequence[Mapping[str, float]] = ()
    share: Share | None = None
    subgroups: Mapping[str, Any] | None = None
    terms: Mapping[str, Any] | None = None
    noisy: Mapping[str, Any] | None = None
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    conventions: Mapping[str, Any] = field(default_factory=dict)
    curve: Sequence[Mapping[str, float]] = ()
    link: str = ""  # the run's page in MLflow

    @property
    def internal(self) -> dict[str, float]:
        """Exact numbers on records, without their prefix; what is no number is left out."""
        return finite_under(self.metrics)


def finite_under(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite internal metrics without their prefix."""
    return {
        k.removeprefix(INTERNAL): v
        for k, v in metrics.items()
        if k.startswith(INTERNAL) and isfinite(v)
    }


def read_facts(
    folder: Path,
    run_id: str,
    name: str,
    metrics: Mapping[str, float],
    draws: Sequence[Mapping[str, float]],
    share: Share | None,
) -> Facts:
    """Facts from the files of a run in ``folder``. Raises ``InputError`` where there is no
    statement to explain.
    """
    path = folder / STATEMENT
    if not path.is_file():
        raise InputError(
            f"Expected a run with a privacy statement, got {run_id!r}, which has none; choose a "
            "finished training."
        )
    try:
        statement = Statement.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(
            f"Expected a privacy statement that this version reads, got another in run {run_id!r}; "
            "`dpflows audit` says what is wrong."
        ) from None
    pictures = {
        found.relative_to(folder).as_posix(): found.read_bytes()
        for found in sorted((folder / CURVES).rglob("*.png"))
        if found.relative_to(folder).as_posix() != OWN_FIGURE
    }
    trace = read_json(folder / TRACE)
    exact = next(
        (
            found
            for kind in kinds.KINDS
            if isinstance(found := read_json(folder / kind.numbers), dict)
        ),
        {},
    )
    return Facts(
        run_id=run_id,
        name=name,
        statement=statement,
        metrics=dict(metrics),
        trace=trace if isinstance(trace, list) else [],
        draws=[finite_under(one) for one in draws],
        share=share,
        subgroups=read_json(folder / SUBGROUPS),
        terms=read_json(folder / TERMS),
        noisy=read_json(folder / METRICS),
        pictures=pictures,
        conventions=exact.get("conventions", {}),
        curve=exact.get("curve", ()),
    )


def read_json(path: Path) -> Any:
    """The value of a JSON file, None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def machine() -> dict[str, Any]:
    """Facts of this machine by name; threads of the linear algebra are those in force now."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": f"{usable} usable of {os.cpu_count()} "
        f"({psutil.cpu_count(logical=False) or 'unknown'} physical)",
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load": ", ".join(f"{value:.1f}" for value in os.getloadavg()),
        "linear_algebra": linear_algebra(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": software(),
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """The model of the processor, as the system names it."""
    try:
        named = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M
        )
    except OSError:
        named = None
    if named:
        return named[1].strip()
    try:  # macOS
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or "unknown"


def linear_algebra() -> str:
    """Libraries of linear algebra and OpenMP that are loaded, each once with version and
    threads.
    """
    found = {
        f"{one['internal_api']} {one.get('version') or ''}".strip()
        + f": {_threads(one['num_threads'])}"
        for one in threadpool_info()
    }
    return "; ".join(sorted(found)) or "none loaded"


def _threads(count: int) -> str:
    return f"{count} thread" + ("" if count == 1 else "s")


class History(NamedTuple):
    """``shares`` (blocks, changes): the share of its budget that a block had spent after each
    change.
    """

    dataset: Dataset
    blocks: list[str]
    times: list[datetime]
    shares: np.ndarray


def history(ledger: LedgerReader, name: str) -> History:
    """Return how the totals of all blocks went; raises InputError for public data, which have no
    budget.
    """
    dataset = ledger.dataset(name)
    if not dataset.limited:
        raise InputError(
            f"Expected a data set with a limit, got {name!r}, which is public; it has no budget to "
            "draw."
        )
    totals, records = schema.balances, schema.records
    joined = totals.join(records, totals.c.seq == records.c.seq)
    rows = select(totals.c.block, totals.c.units, totals.c.seq, records.c.created_at).select_from(
        joined
    )
    with ledger.store.reading() as connection:
        assert connection is not None
        found = connection.execute(
            rows.where(totals.c.dataset == name).order_by(totals.c.seq)
        ).all()
    blocks = sorted({row.block for row in found})
    place = {block: index for index, block in enumerate(blocks)}
    times = {row.seq: datetime.fromisoformat(row.created_at) for row in found}
    column = {seq: index for index, seq in enumerate(times)}
    units = np.full((len(blocks), len(times)), np.nan)
    for row in found:
        units[place[row.block], column[row.seq] :] = row.units
    return History(dataset, blocks, list(times.values()), np.nan_to_num(units) / dataset.limit)
