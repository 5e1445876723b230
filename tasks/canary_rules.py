"""Where canaries have a theorem and a place: decided from configuration and schema, before a file is opened."""

from __future__ import annotations

from dpcore.errors import InputError
from dpcore.problem import Adjacency
from tasks.config import TrainConfig
from tasks.schema import Schema

LEAST, MOST = 20, 1000


def count_of(config: TrainConfig, dimension: int) -> int:
    """How many canaries a run gets: the number given, else one for each column, from 20 to 1,000."""
    assert config.audit is not None
    return config.audit.canaries or min(max(dimension, LEAST), MOST)


def check_canaries(config: TrainConfig, schema: Schema) -> None:
    """Raise ``InputError`` where canaries have no theorem or no place in this training."""
    if config.audit is None:
        return
    faults = {
        "sessions of a ranking are no single records": schema.label.kind == "relevance",
        "a network's canaries would need gradients of their own": config.model is not None,
        "the attack scores one margin, so it needs a binary label": schema.label.kind != "binary",
        "a canary is a record and the unit is another": schema.unit != "record",
        "a search (tune) splits the records before it trains": config.tune is not None,
        "bounds and levels must be declared: an estimate would be made without the canaries": (
            bool(schema.undeclared_columns)
        ),
        "evaluate.release would pay for a metric of a model that is never released": (
            config.evaluate.release is not None
        ),
    }
    for reason, found in faults.items():
        if found:
            raise InputError(
                f"Expected no audit.canaries here, got {_shown(config)}: {reason}; leave the section audit out, or use "
                "`dpflows audit RUN --empirical`."
            )


def crowd(config: TrainConfig, n: int, dimension: int) -> tuple[str, ...]:
    """A warning where canaries hide each other. Raises ``InputError`` where they leave too few places for records.

    Under replace_one they take the places of as many records, since the number of records is public.
    """
    if config.audit is None:
        return ()
    count = count_of(config, dimension)
    if config.privacy.adjacency is Adjacency.REPLACE_ONE and 2 * count > n:
        raise InputError(
            f"Expected audit.canaries of at most half of n={n} under replace_one, where they take the places of "
            f"records, got {count}; lower it, or use privacy.adjacency=add_remove."
        )
    if count > 2 * dimension:
        return (
            f"audit.canaries={count} share {dimension} columns and hide each other: about as many canaries as columns "
            "show most.",
        )
    return ()


def _shown(config: TrainConfig) -> str:
    assert config.audit is not None
    return "the section" if config.audit.canaries is None else str(config.audit.canaries)
