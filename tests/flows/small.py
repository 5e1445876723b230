"""A small private table with a schema, for tests that need real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

SCHEMA = """\
schema_version: 1
name: small
ledger: {ledger}
public: {{n: 300}}
source: {{path: small.csv}}
columns:
  age: {{kind: numeric, low: 0, high: 100}}
  city: {{kind: categorical, levels: [north, south]}}
label: {{column: paid, positive: "yes", negative: "no"}}
split: {{kind: none}}
"""


def small_frame(rng: np.random.Generator, rows: int = 300) -> pd.DataFrame:
    """Rows whose label follows age and city."""
    age = rng.integers(18, 90, rows)
    city = rng.choice(["north", "south"], rows)
    paid = np.where(
        age / 90 + (city == "north") * 0.4 + rng.normal(scale=0.2, size=rows) > 0.8, "yes", "no"
    )
    return pd.DataFrame({"age": age, "city": city, "paid": paid})


def write_small(folder: Path, rng: np.random.Generator) -> None:
    """Write ``small.csv`` and ``small.yaml`` to ``folder``; the ledger is a file beside them."""
    small_frame(rng).to_csv(folder / "small.csv", index=False)
    (folder / "small.yaml").write_text(SCHEMA.format(ledger=f"sqlite:///{folder / 'ledger.db'}"))
