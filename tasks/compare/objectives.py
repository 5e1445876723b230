"""What is minimised in a comparison: losses and strengths, the common ones or those of one data set or algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from tasks.compare.config import CompareConfig, CompareData, Entry
from tasks.config import ObjectiveSection


def losses_of(config: CompareConfig, data: CompareData) -> tuple[str, ...]:
    """The losses on a data set, where an algorithm brings none of its own."""
    return data.loss or config.objective.loss


def strengths_of(config: CompareConfig, data: CompareData) -> Sequence[float | None]:
    """The L2 strengths on a data set, None for each algorithm's own rule."""
    return data.l2 or config.objective.l2 or (None,)


def several(config: CompareConfig, name: str) -> dict[str, bool]:
    """By loss, l1, l2 and adjacency: whether the settings of the data set ``name`` differ in it."""
    own = [data for data in config.data if data.name == name]
    return {
        "loss": len({loss for data in own for loss in losses_of(config, data)}) > 1,
        "l1": len(config.objective.l1) > 1,
        "l2": len({strength for data in own for strength in strengths_of(config, data)}) > 1,
        "adjacency": len(config.privacy.adjacency) > 1,
    }


def objectives_of(config: CompareConfig, data: CompareData, entry: Entry | None = None) -> Iterator[ObjectiveSection]:
    """Every loss with every L1 and L2 strength. Those of an algorithm come before those of the data, these before the
    common ones."""
    common = config.objective
    losses, strengths = losses_of(config, data), strengths_of(config, data)
    given = None
    if entry is not None:
        losses = losses if entry.loss is None else (entry.loss,)
        strengths = strengths if entry.l2 is None else (entry.l2,)
        given = entry.loss_parameters
    for loss, l1, l2 in product(losses, common.l1, strengths):
        parameters = common.loss_parameters.get(loss, {}) if given is None else given
        yield ObjectiveSection(loss=loss, loss_parameters=parameters, l1=l1, l2=l2)
