"""The steps of one training, as plain functions: what is decided from public facts, and what sees the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpcore.accounting.limits import Target
from dpcore.errors import InputError
from dpcore.network.spec import NetworkSpec
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.preprocess.estimate import EstimateColumns
from dpcore.problem import Problem
from dpcore.ranking.model import RankingModel
from tasks.config import TrainConfig
from tasks.schema import Schema


def check_delta(config: TrainConfig, n: int) -> tuple[str, ...]:
    """Refuse delta >= 1/n, which would allow a record to be published; warn only where a paper's setting has it."""
    delta = config.privacy.delta
    if delta < 1 / n:
        return ()
    if config.algorithm.preset == "paper":
        return (f"privacy.delta={delta:g} is not below 1/n={1 / n:.3g}: this run can never be released.",)
    raise InputError(
        f"Expected privacy.delta below 1/n={1 / n:.3g} for the public n={n}, got {delta:g}; lower it, for example to "
        f"{0.1 / n:.1g} (algorithm.preset=paper allows it for a run that is never released)."
    )


# Above this, the odds of any guess about a record may change by more than e^10 = 22,000.
WEAK_EPSILON = 10.0


def weak_promise(config: TrainConfig) -> tuple[str, ...]:
    """A warning where (epsilon, delta) promises next to nothing."""
    epsilon = config.privacy.epsilon
    if epsilon <= WEAK_EPSILON:
        return ()
    return (
        f"privacy.epsilon={epsilon:g} protects hardly anybody: the odds of a guess about a record may change by a "
        f"factor of e^{epsilon:g}; usual values lie between 0.1 and 8.",
    )


@dataclass(frozen=True, slots=True)
class Job:
    """The public side of a training: configuration, schema, encoder and problem. No file of the data was opened."""

    config: TrainConfig
    schema: Schema
    encoder: Encoder | MatrixEncoder
    problem: Problem
    blocks: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    ranker: RankingModel | None = None
    network: NetworkSpec | None = None
    estimate: EstimateColumns | None = None  # of bounds and levels that are not known yet

    @property
    def public(self) -> bool:
        return self.schema.public.public


class Sealed:
    """A value that an orchestrator may carry from step to step but neither look into, print nor store."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def open(self) -> Any:
        return self._value

    def __repr__(self) -> str:
        return "<sealed: private>"

    def __reduce__(self) -> Any:
        raise TypeError("Private rows stay in the process that read them.")


def target_of(config: TrainConfig) -> Target:
    privacy = config.privacy
    return Target(privacy.epsilon, privacy.delta, privacy.conversion, privacy.accountant)
