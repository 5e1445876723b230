"""What a configuration adds to a training: one file an option, one entry here, and its rows in the
table of rules.
"""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace

from tasks.config import TrainConfig
from tasks.options.base import Option
from tasks.options.bounds import Bounds
from tasks.options.canaries import Audit
from tasks.options.engine import Engine
from tasks.options.joined import Joined
from tasks.options.noisy_metric import NoisyMetric
from tasks.options.rules import RULES, check_rules
from tasks.options.select import Select
from tasks.options.tune import Tune
from tasks.schema import Schema

OPTIONS: tuple[type[Option], ...] = (
    Select,
    Bounds,
    Tune,
    Audit,
    NoisyMetric,
    Engine,
    Joined,
)


def options_of(config: TrainConfig, schema: Schema) -> tuple[Option, ...]:
    """The options that configuration and schema ask for, in the order in which their hooks are
    called.
    """
    given = SimpleNamespace(config=config, schema=schema)
    return tuple(option() for option in OPTIONS if attrgetter(option.asked)(given))


def check_options(
    config: TrainConfig, schema: Schema, kind: str, command: str = "train"
) -> tuple[Option, ...]:
    """The options that are asked for of a training of ``kind``; raises ``InputError`` for what does
    not go together, before any is described.
    """
    found = options_of(config, schema)
    check_rules(config, schema, kind, command, [option.name for option in found])
    return found


__all__ = ["OPTIONS", "RULES", "Option", "check_options", "options_of"]
