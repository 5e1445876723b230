"""A private table that grows by a week at a time, with its schema, and a public set of the same
columns.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from tasks.retraining import RetrainConfig
from tests.flows.small import small_frame

MONDAY = date(2026, 1, 5)  # of 2026-W02
ROWS = 60

SCHEMA = """\
schema_version: 1
name: clinic
ledger: {ledger}
public: {{rows_per_block: 60}}
source: {{path: clinic.csv}}
block: {{column: visit, by: week}}
columns:
  age: {{kind: numeric, low: 0, high: 100}}
  city: {{kind: categorical, levels: [north, south]}}
  visit: {{kind: block}}
label: {{column: paid, positive: "yes", negative: "no"}}
split: {{kind: none}}
"""

PUBLIC = """\
schema_version: 1
name: census-extract
public: {n: 300, public: true}
source: {path: public.csv}
columns:
  age: {kind: numeric, low: 0, high: 100}
  city: {kind: categorical, levels: [north, south]}
label: {column: paid, positive: "yes", negative: "no"}
split: {kind: none}
"""


def write_weekly(folder: Path, weeks: int = 8) -> None:
    """Write ``clinic.csv`` with rows of the weeks from 2026-W02 on, ``clinic.yaml``, and the public
    set.
    """
    rng = np.random.default_rng(11)
    frame = small_frame(rng, weeks * ROWS)
    days = np.repeat(np.arange(weeks), ROWS) * 7 + rng.integers(0, 7, weeks * ROWS)
    frame["visit"] = [(MONDAY + timedelta(days=int(day))).isoformat() for day in days]
    frame.to_csv(folder / "clinic.csv", index=False)
    small_frame(rng, 300).to_csv(folder / "public.csv", index=False)
    (folder / "clinic.yaml").write_text(SCHEMA.format(ledger=f"sqlite:///{folder / 'ledger.db'}"))
    (folder / "public.yaml").write_text(PUBLIC)


def config_of(folder: Path, **sections: Any) -> RetrainConfig:
    """A weekly retraining on the last three weeks; epsilon 0.8 a run."""
    values: dict[str, Any] = {
        "schedule": {"tolerance_hours": 24 * 365 * 100, "wait_minutes": 0},
        "window": {"last": "3 weeks", "since": "2026-W02"},
        "training": {
            "data": {"name": str(folder / "clinic.yaml"), "path": str(folder / "clinic.csv")},
            "privacy": {"epsilon": 0.8, "delta": 1e-4},
            "algorithm": {"name": "dp_sgd", "steps": 8},
            "evaluate": {"baselines": False},
            "tracking": {"experiment": folder.name},
        },
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return RetrainConfig.model_validate(values)
