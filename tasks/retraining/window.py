"""Which blocks a retraining reads: the last ones of a window that can still pay for it."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

from dpcore.accounting.conversion import order_budgets
from dpcore.accounting.limits import order_index
from dpcore.errors import BudgetExceeded, InputError
from tasks import training
from tasks.config import TrainConfig
from tasks.ledger import Blocks
from tasks.ledger.reader import LedgerReader
from tasks.release.metrics import planned_release
from tasks.retraining.config import WindowSection

# A share that is compared with itself must not fail by rounding.
ROUNDING = 1e-12


class Reading(NamedTuple):
    """The training that reads ``kept`` blocks, and what was left out because its budget is spent."""

    config: TrainConfig
    kept: tuple[str, ...]
    left_out: tuple[str, ...]


def choose(
    config: TrainConfig, window: WindowSection, division: Blocks, until: date, period: str, ledger: LedgerReader
) -> Reading:
    """Return the training for ``period`` on the blocks of the window that ends at the day ``until``.

    Its n is declared rows per block times blocks, never a count. A block whose budget is spent is left out, or the run
    is refused (``BudgetExceeded``), by ``window.exhausted``. Only declarations and the ledger are read.
    """
    if window.last is None:
        return Reading(_with(config, config.data.blocks, period), config.data.blocks or (), ())
    names = division.window(window.last, until)
    if window.since is not None:
        names = tuple(name for name in names if name >= division.check(window.since))
        if not names:
            raise InputError(
                f"Expected a window with blocks from window.since={window.since!r} on, got one that ends {period}; "
                "nothing was spent."
            )
    kept = names
    # Fewer blocks mean a smaller n and another plan, whose price at the ledger's order may differ a little.
    for _ in names:
        found = _affordable(_with(config, kept, period), kept, ledger, window.exhausted)
        left_out = tuple(name for name in names if name not in found)
        if found == kept:
            return Reading(_with(config, kept, period), kept, left_out)
        kept = found
    raise AssertionError("each round leaves out a block, or is the last")


def _with(config: TrainConfig, blocks: tuple[str, ...] | None, period: str) -> TrainConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"blocks": blocks, "period": period})})


def _affordable(config: TrainConfig, blocks: tuple[str, ...], ledger: LedgerReader, policy: str) -> tuple[str, ...]:
    """The blocks with room for the plan of ``config``, or for the worth of its guarantee if that is less."""
    job = training.prepare(config)
    planned = training.plan_training(job)
    name, public = job.schema.name, job.public
    room = ledger.room(name, blocks, public=public)
    if room is None:
        return blocks
    index, target = order_index(room.order), training.target_of(config)
    cost = float(planned.events.price(room.adjacency)[index])
    worth = float(order_budgets(target.epsilon, target.delta, target.conversion)[index])
    budget = ledger.dataset(name).budget
    assert budget is not None
    metric = planned_release(job)
    beside = 0.0 if metric is None else float(metric.price(room.adjacency)[index])
    share = ((min(cost, worth) if worth > 0 else cost) + beside) / budget * (1 - ROUNDING)
    try:
        return ledger.window(name, blocks, policy=policy, least=share, public=public).kept
    except BudgetExceeded as error:
        rule = "window.exhausted=refuse" if policy == "refuse" else "all of them"
        raise BudgetExceeded(
            f"Window {blocks[0]} to {blocks[-1]}: blocks without room ({rule}). {error}",
            asked=error.asked,
            left=error.left,
        ) from None
