"""What public facts refuse before a comparison starts: metrics that no setting can have, more folds than rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpcore.errors import InputError, unknown_name
from tasks import attributes, rankers
from tasks.compare.cell import SUPPORT
from tasks.compare.config import CompareConfig
from tasks.compare.counting import COUNTS
from tasks.compare.grid import Setting
from tasks.compare.grouping import SECONDS
from tasks.compare.optimum import MINIMISATION_ERROR

# Numbers on held-out rows by kind of label, as ``quality.predicted`` and ``ranking_evaluation.numbers`` have them.
BY_LABEL = {
    "binary": ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "brier_score"),
    "classes": ("accuracy", "balanced_accuracy", "brier_score"),
    "regression": ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error"),
    "relevance": ("map",),
}
OF_TRAINING = ("objective", MINIMISATION_ERROR, *COUNTS)


def metric_names(setting: Setting, config: CompareConfig) -> set[str]:
    """The metrics that a cell of ``setting`` may have; ``ndcg`` and ``coverage`` stand for all that begin so."""
    job = setting.job
    found = {*BY_LABEL[job.schema.label.kind], SECONDS}
    if job.ranker is not None:
        return {*found, "ndcg", *(f"ndcg_at_{k}" for k in rankers.ranks(setting.config))}
    found |= set(OF_TRAINING)
    counts: Sequence[int] = attributes.COUNTS if job.schema.relevant else ()
    if config.coverage is not None and job.schema.name in config.coverage.data:
        counts = (*counts, *config.coverage.counts)
    return found | ({"coverage", *(f"coverage_at_{k}" for k in counts), *SUPPORT} if counts else set())


def check_metrics(config: CompareConfig, settings: Iterable[Setting]) -> None:
    """Raise ``InputError`` for a name in ``metrics`` that none of ``settings`` can have, with the near misses."""
    if config.metrics is None:
        return
    known = set().union(*(metric_names(setting, config) for setting in settings))
    for name in config.metrics:
        if name not in known:
            kinds = ", ".join(sorted({setting.job.schema.label.kind for setting in settings}))
            raise unknown_name(f"metric (for labels of kind {kinds})", name, known)


def check_folds(config: CompareConfig, settings: Iterable[Setting]) -> None:
    """Raise ``InputError`` for more folds than a data set has rows (sessions), by its public count."""
    folds = config.protocol.folds
    for setting in settings:
        n = setting.job.problem.n
        if folds > n:
            where = "--folds" if config.kind == "crossval" else "protocol.folds"
            raise InputError(
                f"Expected at most n={n} folds, one for each {setting.job.schema.unit.split('_')[0]} of "
                f"{setting.job.schema.name!r}, got {where}={folds}; usual are 5 or 10."
            )
