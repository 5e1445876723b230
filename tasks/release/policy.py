"""The policy of a release: what a run must meet, from a YAML file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpcore.errors import InputError
from tasks.config import find_config
from tasks.config_errors import describe
from tasks.plain_yaml import load_yaml
from tasks.versions import First


class Policy(BaseModel):
    """Limits on what a release may cost and must reach. ``tuning`` says which runs its price includes.

    ``dataset``: every charged run on the same records since the last release of that name, for the choice may depend on
    any of them. ``run``: this run alone; the approval then stands for settings that were fixed before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: First = 1
    max_epsilon: float = Field(default=10.0, gt=0, description="the most epsilon of a release")
    max_delta: float | None = Field(default=None, gt=0, lt=1, description="the most delta of a release")
    metric: str | None = Field(default=None, description="for example accuracy or balanced_accuracy")
    min_value: float | None = Field(default=None, description="the least value of the metric")
    max_value: float | None = Field(default=None, description="the largest value of the metric, where it is an error")
    min_gain: float = Field(default=0.0, ge=0, description="how much better than the champion the metric must be")
    tuning: Literal["dataset", "run"] = Field(default="dataset", description="dataset or run")
    conversion: Literal["cks", "prop21"] | None = Field(default=None, description="cks or prop21")
    trusted_keys: tuple[str, ...] = Field(
        default=(), description="fingerprints whose signatures are believed; keys that were replaced stay listed"
    )


def load_policy(name: str | None = None) -> Policy:
    """Read a policy file, conf/release.yaml or the built-in one; raises ``InputError`` on one line."""
    where, text = find_config(name, "release.yaml")
    try:
        return Policy.model_validate(load_yaml(text, where))
    except ValidationError as error:
        raise InputError(describe(error, Policy, where)) from None
