"""The public side of each combination of a comparison: its training configuration and what follows from it."""

from __future__ import annotations

from dataclasses import replace

from dpcore.problem import Adjacency
from tasks.compare.config import CompareConfig, CompareData, Entry
from tasks.config import TrainConfig
from tasks.config.train import AlgorithmSection, DataSection, EvaluateSection, ObjectiveSection, PrivacySection
from tasks.kinds.base import Job
from tasks.training import steps

# A problem does not depend on delta; the delta of a comparison is checked against the rows of a fold (``warnings_of``).
SMALL_DELTA = 1e-15


class Jobs:
    """The public side of each combination, made once: it does not depend on epsilon, delta or an algorithm's steps."""

    def __init__(self) -> None:
        self._known: dict[str, Job] = {}

    def of(self, config: TrainConfig) -> Job:
        private = config.privacy.model_copy(update={"epsilon": 1.0, "delta": SMALL_DELTA})
        algorithm = AlgorithmSection(name=config.algorithm.name, preset=config.algorithm.preset)
        base = config.model_copy(update={"privacy": private, "algorithm": algorithm})
        if base.sha256 not in self._known:
            job = steps.prepare(base, "compare")
            self._known[base.sha256] = replace(job, warnings=())
        return given(self._known[base.sha256], config)


def given(job: Job, config: TrainConfig) -> Job:
    """The job under a configuration that differs in what the problem does not depend on."""
    return replace(job, config=config, algorithm=config.algorithm)


def training_config(
    config: CompareConfig, data: CompareData, objective: ObjectiveSection, entry: Entry, adjacency: Adjacency
) -> TrainConfig:
    """The configuration that trains one entry of a comparison, at the epsilon of a default."""
    privacy = config.privacy
    return TrainConfig(
        data=DataSection(name=data.name, path=data.path, test_path=data.test_path),
        preprocess=entry.preprocess or config.preprocess,
        objective=objective,
        ranking=entry.ranking or config.ranking,
        privacy=PrivacySection(
            delta=config.delta,
            adjacency=adjacency,
            conversion=privacy.conversion,
            accountant=privacy.accountant,
            noise=privacy.noise,
        ),
        algorithm=AlgorithmSection(name=entry.name, preset=entry.preset, **entry.parameters),
        evaluate=EvaluateSection(baselines=False),
        ledger=config.ledger,
        seed=config.seed,
    )
