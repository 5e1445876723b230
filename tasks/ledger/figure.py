"""Budget of each block over time, as numbers and as a figure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import numpy as np
from matplotlib.dates import AutoDateFormatter, AutoDateLocator, date2num
from matplotlib.figure import Figure
from sqlalchemy import select

from dpcore.errors import InputError
from tasks.ledger import schema
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import Dataset

LINES = 8
"""Up to this many blocks are drawn as lines, more as a map of colours."""


class History(NamedTuple):
    """``shares`` (blocks, changes): the share of its budget that a block had spent after each change."""

    dataset: Dataset
    blocks: list[str]
    times: list[datetime]
    shares: np.ndarray


def history(ledger: LedgerReader, name: str) -> History:
    """Return how the totals of all blocks went; raises InputError for public data, which have no budget."""
    dataset = ledger.dataset(name)
    if not dataset.limited:
        raise InputError(f"Expected a data set with a limit, got {name!r}, which is public; it has no budget to draw.")
    totals, records = schema.balances, schema.records
    joined = totals.join(records, totals.c.seq == records.c.seq)
    rows = select(totals.c.block, totals.c.units, totals.c.seq, records.c.created_at).select_from(joined)
    with ledger.store.reading() as connection:
        assert connection is not None
        found = connection.execute(rows.where(totals.c.dataset == name).order_by(totals.c.seq)).all()
    blocks = sorted({row.block for row in found})
    place = {block: index for index, block in enumerate(blocks)}
    times = {row.seq: datetime.fromisoformat(row.created_at) for row in found}
    column = {seq: index for index, seq in enumerate(times)}
    units = np.full((len(blocks), len(times)), np.nan)
    for row in found:
        units[place[row.block], column[row.seq] :] = row.units
    return History(dataset, blocks, list(times.values()), np.nan_to_num(units) / dataset.limit)


def draw(story: History) -> Figure:
    """Return a figure of the share that each block has spent after each run, under the whole guarantee."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(f"{story.dataset.name}: {story.dataset.guarantee()}", fontsize=8)
    if len(story.blocks) <= LINES:
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(AutoDateFormatter(locator))
        for block, shares in zip(story.blocks, story.shares, strict=True):
            axes.step([date2num(time) for time in story.times], shares, where="post", label=block)
        axes.axhline(1.0, color="black", linestyle="--", label="budget")
        axes.set(xlabel="time (UTC)", ylabel="share of the budget spent")
        axes.legend()
        return figure
    image = axes.imshow(story.shares, aspect="auto", origin="lower", interpolation="nearest", vmin=0, vmax=1)
    shown = np.unique(np.linspace(0, len(story.blocks) - 1, 12).astype(int))
    axes.set_yticks(shown, [story.blocks[index] for index in shown])
    axes.set(xlabel="changes of the ledger, oldest first", ylabel="block")
    figure.colorbar(image, label="share of the budget spent")
    return figure
