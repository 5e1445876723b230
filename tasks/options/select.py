"""``select:`` before training: both phases as one algorithm, with one price, one reservation and
one statement.
"""

from __future__ import annotations

from typing import Any

from dpcore.algorithms import make, registry
from dpcore.algorithms.two_phase import SECOND
from dpcore.errors import InputError
from tasks.config import TrainConfig
from tasks.config.train import AlgorithmSection
from tasks.kinds.base import Job
from tasks.kinds.table import check_kept
from tasks.options.base import Option
from tasks.schema import Schema

# What trains after a selection where the configuration leaves the choice to ``auto``.
DEFAULT_TRAINER = "ssadmm"


def algorithm_of(config: TrainConfig) -> AlgorithmSection:
    """The algorithm that runs: that of the configuration, or with ``select`` ``two_phase`` with it
    as second phase.

    Raises ``InputError`` for a trainer whose price needs the norm bound of whole rows: on the kept
    columns alone that bound is a guess, which clipping enforces and nothing else does.
    """
    chosen, select = config.algorithm, config.select
    if select is None:
        return chosen
    trainer = DEFAULT_TRAINER if chosen.name == "auto" else chosen.name
    if registry[trainer].name == "two_phase":
        raise InputError(
            f"Expected a trainer in algorithm.name beside select, got {chosen.name!r}, which "
            f"selects by itself; name one of {', '.join(SECOND)}, or leave select out and write "
            "keep and share under algorithm."
        )
    if registry[trainer].name not in SECOND:
        raise InputError(
            "Expected a trainer that clips gradients in algorithm.name beside select, got "
            f"{chosen.name!r}: its price is not one of clipping alone, and the norm of rows on the "
            f"kept columns is a guess; use {', '.join(SECOND)}."
        )
    parameters = dict(chosen.parameters)
    make(trainer, parameters, chosen.preset)
    common = {name: parameters.pop(name) for name in ("noise_multiplier",) if name in parameters}
    preset: dict[str, Any] = registry[trainer].presets[chosen.preset] if chosen.preset else {}
    given = {
        name: value
        for name, value in select.model_dump(exclude={"method"}).items()
        if value is not None
    }
    both = {
        "second": registry[trainer].name,
        "settings": {**preset, **parameters},
        **common,
        **given,
    }
    return AlgorithmSection.model_validate({"name": "two_phase", **both})


class Select(Option):
    """The algorithm that runs is both phases; the configuration keeps what was asked for."""

    name = "select"
    asked = "config.select"

    def adapt(self, config: TrainConfig, schema: Schema) -> tuple[TrainConfig, Schema]:
        return config.model_copy(update={"algorithm": algorithm_of(config)}), schema

    def check(self, job: Job) -> None:
        check_kept(job, "select.keep")
