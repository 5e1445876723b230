"""The manifest of a bundle: what was released, by whom, at what price, and the checksum of every
file.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpcore.problem import Adjacency
from tasks.record.statement import First

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
WEIGHTS, ENCODER, CARD = "model/weights.npz", "model/encoder.json", "model/model.json"
STATE = "model/state.safetensors"  # of a network alone
STATEMENT, MECHANISMS, TUNING = (
    "privacy/statement.json",
    "privacy/mechanisms.json",
    "privacy/tuning.json",
)
METRICS, CONFIG, README = "privacy/metrics.json", "config.json", "README.md"
REQUIRED = (WEIGHTS, ENCODER, CARD, STATEMENT, MECHANISMS, TUNING, CONFIG, README)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Price(Strict):
    """What the release costs as a whole: every trial it was chosen from and its noisy metrics."""

    unit: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    conversion: str
    trials: int = Field(
        description="charged runs that the price includes; their mechanisms are in "
        "privacy/tuning.json"
    )
    scope: Literal["dataset", "run", "public"]


class Approval(Strict):
    who: str
    when: str
    note: str = ""


class ReleasedMetric(Strict):
    """A number about quality that may leave: on public data, or from a charged mechanism."""

    name: str
    value: float
    source: Literal["public data", "charged mechanism"]
    standard_error: float | None = Field(default=None, description="of the noise alone")


class File(Strict):
    sha256: str
    bytes: int


class Position(Strict):
    """Where the ledger stood at the release, and what its commit record of the run holds."""

    head: str = Field(
        description="hash of the newest record; the chain of the next release must contain it"
    )
    seq: int = Field(description="number of that record")
    hashes: dict[str, str] = Field(description="SHA-256 of the run's files in its commit record")


class Manifest(Strict):
    schema_version: First = 1
    name: str
    version: str
    created: str
    run_id: str
    price: Price
    approval: Approval
    policy: dict[str, Any]
    metrics: list[ReleasedMetric]
    previous: str | None = Field(description="the version that this one replaces")
    files: dict[str, File]
    ledger: Position | None = Field(
        default=None, description="None in bundles from before it was kept"
    )
    serial: int | None = Field(
        default=None, description="counts the decisions of a name; None in older bundles"
    )

    def to_json(self) -> str:
        """Readable JSON with sorted keys; the signature is over exactly these bytes."""
        return json.dumps(
            self.model_dump(mode="json"),
            indent=1,
            sort_keys=True,
            ensure_ascii=False,
            allow_nan=False,
        )
