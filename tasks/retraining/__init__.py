"""Scheduled retraining: which period is due, which blocks it reads, one at a time, and whether the
result is better.

Here: its configuration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Literal

from cronsim import CronSim, CronSimError
from pydantic import BeforeValidator, Field

from dpcore.errors import InputError
from tasks.config import TrainConfig
from tasks.config.read import load
from tasks.config.train import SCHEMA_VERSION
from tasks.config.values import Number, Section
from tasks.options.rules import ABSENT, ENCODED, check_facts
from tasks.options.tune import encodings_of, grid_of

Every = Literal["day", "week", "month", "year"]


def _cron(value: object) -> object:
    """Refuse what is no cron expression of five fields, or none for Prefect, before a server would.

    Prefect's own parser knows neither the last Friday (5L) nor the last working day (LW).
    """
    try:
        if isinstance(value, str) and len(value.split()) == 5:
            if re.search(r"(?i)LW|[0-7a-z]L\b", value):
                raise ValueError(
                    "a cron expression that Prefect knows, which has neither LW nor 5L (5#4 is a "
                    "fourth Friday, L in the third field a month's last day)"
                )
            CronSim(value, datetime(2026, 1, 1))
            return value
    except CronSimError:
        pass
    raise ValueError("a cron expression of five fields")


# The longest that a period takes, in days.
LONGEST = {"day": 1, "week": 7, "month": 31, "year": 366}


def rare(schedule: ScheduleSection, now: datetime) -> str:
    """What is wrong with a schedule that fires less often than its periods end; empty where none.

    Each firing trains the newest period alone, so the others would never be trained.
    """
    clock = CronSim(schedule.cron, now)
    times = [next(clock) for _ in range(FIRINGS)]
    gap = max((after - before).days for before, after in pairwise(times))
    if gap <= LONGEST[schedule.every]:
        return ""
    return (
        f"schedule.cron={schedule.cron!r} leaves up to {gap} days between firings, and each trains "
        f"the newest {schedule.every} alone (schedule.every): others are never trained; use a cron "
        "that fires as often, or a longer period."
    )


FIRINGS = 15


def next_firing(cron: str, now: datetime) -> datetime:
    """The first time after ``now`` at which a schedule in UTC fires."""
    return next(CronSim(cron, now))


class ScheduleSection(Section):
    """``cron`` is in UTC: a local hour exists twice, or not at all, on two nights of the year."""

    cron: Annotated[str, BeforeValidator(_cron)] = Field(
        default="0 3 * * 1", description="in UTC, for example '0 3 * * 1': Mondays at 03:00"
    )
    every: Every = Field(
        default="week", description="the period that is trained once: day, week, month or year"
    )
    tolerance_hours: Number = Field(
        default=24.0, gt=0, description="how late a run may start and still count as on time"
    )
    late: Literal["run_once", "skip"] = Field(
        default="run_once", description="run_once takes the newest period, skip does nothing"
    )
    failed: Literal["skip", "run_again"] = Field(
        default="skip",
        description="run_again charges a period again whose first run was charged "
        "and gave no result",
    )
    wait_minutes: Number = Field(
        default=60.0, ge=0, description="how long to wait for another run on the same data"
    )


class WindowSection(Section):
    last: str | None = Field(
        default="12 weeks", description="for example '12 weeks'; null for data without blocks"
    )
    since: str | None = Field(
        default=None, description="the first block that there ever was, for example 2026-W01"
    )
    exhausted: Literal["leave_out", "refuse"] = Field(
        default="leave_out", description="leave_out or refuse"
    )


class ChampionSection(Section):
    """The new model and the old one, measured on a data set that is declared public, or without
    one by the charged, noisy metric of ``training.evaluate.release`` on the same test records.
    """

    data: str | None = Field(
        default=None,
        description="a data schema with `public: true`; null: by training.evaluate.release",
    )
    path: str | None = Field(
        default=None, description="its table, where the schema does not say it"
    )
    model: str | None = Field(default=None, description="the name of the registered model")
    metric: Literal["accuracy", "balanced_accuracy", "roc_auc"] = Field(
        default="balanced_accuracy", description="accuracy, balanced_accuracy or roc_auc"
    )
    min_gain: Number = Field(
        default=0.0, ge=0, description="what the new model must gain over the old one"
    )


class DriftSection(Section):
    epsilon: Number | None = Field(
        default=None,
        gt=0,
        description="what the newest block pays for a noisy class share and histograms; null: none",
    )


class RetrainConfig(Section):
    """Everything that decides about one scheduled retraining; ``training`` is a whole training
    configuration.
    """

    schema_version: Literal[1] = Field(
        default=1, description=f"this version of dpflows reads {SCHEMA_VERSION}"
    )
    name: str = Field(default="weekly", min_length=1, description="a name for the deployment")
    schedule: ScheduleSection = Field(
        default=ScheduleSection(), description="cron, every, tolerance_hours, late"
    )
    window: WindowSection = Field(default=WindowSection(), description="last, since and exhausted")
    warm_start: Literal["none", "previous", "released"] = Field(
        default="previous",
        description="none, previous (the newest model of the data set) or released",
    )
    champion: ChampionSection = Field(
        default=ChampionSection(), description="data, model, metric and min_gain"
    )
    drift: DriftSection = Field(default=DriftSection(), description="epsilon")
    training: TrainConfig = Field(default=TrainConfig(), description="as in conf/train.yaml")


def load_retraining(name: str | None = None, overrides: Sequence[str] = ()) -> RetrainConfig:
    """Read conf/retrain.yaml, another file or the built-in one; raises ``InputError`` on one
    line.
    """
    config, where = load(RetrainConfig, name, "retrain.yaml", overrides, "retrain")
    check_retraining(config, where)
    return config


def check_retraining(config: RetrainConfig, where: str = "configuration") -> None:
    """Raise ``InputError`` for fields that do not go together."""
    _check_rows(config, where)
    if config.champion.data is None and config.champion.model is not None:
        _check_charged(config, where)
    tune = config.training.tune
    grid = ENCODED if tune is not None and encodings_of(grid_of(tune)) else ABSENT
    check_facts({"champion.data": config.champion.data or ABSENT, "tune.grid": grid}, f"{where}: ")
    if config.warm_start == "released" and config.champion.model is None:
        raise InputError(
            f"{where}: Expected champion.model with warm_start='released', got none; name the "
            "registered model, or use warm_start: previous."
        )


def _check_charged(config: RetrainConfig, where: str) -> None:
    """Without a public set the champion is measured by what the training pays for."""
    release, metric = config.training.evaluate.release, config.champion.metric
    if release is None or release.metric != metric:
        got = "none" if release is None else f"training.evaluate.release.metric={release.metric!r}"
        raise InputError(
            f"{where}: Expected champion.data, a data schema with `public: true`, or "
            f"training.evaluate.release with metric {metric!r} (champion.metric), with "
            f"champion.model={config.champion.model!r}, got {got}; name one of them."
        )
    if release.against is not None:
        raise InputError(
            f"{where}: Expected no training.evaluate.release.against with champion.model, which "
            "says whose weights these are; leave it out."
        )


def _check_rows(config: RetrainConfig, where: str) -> None:
    """The window says which rows are read, the training does not."""
    data = config.training.data
    if data.period is not None or (config.window.last is not None and data.blocks is not None):
        key = "data.period" if data.period is not None else "data.blocks"
        raise InputError(
            f"{where}: Expected no training.{key} in a retraining, whose window says it, got "
            f"{data.period or list(data.blocks or ())!r}; leave it out, or set window.last=null "
            "for fixed blocks."
        )
