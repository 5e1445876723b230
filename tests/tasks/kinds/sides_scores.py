"""The scores of ``Sides`` as they are stored with a model: on which side of the middle a row
lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpcore.metrics import probabilities

OUTPUTS = {"side": "string", "chance": "double", "score": "double"}


def scored(card: Mapping[str, Any], weights: np.ndarray, rows: Any) -> dict[str, np.ndarray]:
    """The side, the chance of the upper one, and the log-odds, each (n,)."""
    score = np.asarray(rows @ weights, dtype=np.float64)
    middle = card["sides"]["middle"]
    side = np.where(score >= 0, f"above {middle:g}", f"below {middle:g}").astype(object)
    chance = probabilities(card["loss"], score)
    assert chance is not None
    return {"side": side, "chance": chance, "score": score}
