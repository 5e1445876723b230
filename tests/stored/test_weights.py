"""Equal seeds give equal weights, version after version."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.stored.weights import LINEAR, machine, weights

KEPT = json.loads((Path(__file__).parent / "weights.json").read_text())


def test_every_algorithm_has_kept_weights() -> None:
    assert sorted(KEPT["weights"]) == LINEAR


@pytest.mark.parametrize("name", LINEAR)
def test_equal_seeds_give_equal_weights(name: str) -> None:
    """Bit for bit where numpy, scipy and the kernels of linear algebra are those of then, else
    nearly.
    """
    now, then = weights(name), KEPT["weights"][name]
    if machine() == KEPT["machine"]:
        assert now == then
    else:
        np.testing.assert_allclose(
            [float.fromhex(x) for x in now], [float.fromhex(x) for x in then], rtol=1e-6, atol=1e-6
        )
