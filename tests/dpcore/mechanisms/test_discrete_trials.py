"""The delta of trials with discrete noise, by the law of that noise, and what price rules take for
it.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from dpcore.accounting import ORDERS, Events
from dpcore.mechanisms import (
    Composition,
    Gaussian,
    RepeatPoisson,
    gaussian_delta,
)
from dpcore.mechanisms.base import ROUNDING
from dpcore.problem import Adjacency


def discrete_delta(epsilon: float, steps: int, sigma: float) -> float:
    """delta at ``epsilon`` of discrete Gaussian noise of ``sigma`` grid steps for a shift by
    ``steps`` of them, by its definition: the sum of what one law has above the other.
    """
    x = np.arange(-14 * sigma, 14 * sigma + steps + 1).round()
    law, shifted = (np.exp(-((x - shift) ** 2) / (2 * sigma**2)) for shift in (0, steps))
    above = shifted - exp(epsilon) * law
    return float(above[above > 0].sum() / law.sum())


@pytest.mark.parametrize("steps", [900, 921])
def test_the_delta_of_a_discrete_trial_is_that_of_its_law(steps: int) -> None:
    """It lies above the Gaussian's, by less than the share that is added; by rules 2 it was taken
    for it.
    """
    grid = 1031  # steps a sigma
    ratio = steps / grid
    trial = Composition((Gaussian(1.0, (1 + ROUNDING) / ratio, ROUNDING),), (1,))
    assert trial.mechanisms[0].ratio == pytest.approx(ratio, rel=1e-12)  # type: ignore[attr-defined]
    epsilon = log(2.0)
    exact = discrete_delta(epsilon, steps, grid)
    assert gaussian_delta(epsilon, ratio) < exact <= exp(trial.log_delta(ORDERS, epsilon))
    law = RepeatPoisson((trial,), 4.0)
    now, before, first = (
        Events((law,), ((0, 1),), Adjacency.ADD_REMOVE, rules=rules).price() for rules in (3, 2, 1)
    )
    assert np.all(now >= before) and np.any(now > before) and np.all(now <= before * (1 + 2e-5))
    np.testing.assert_array_equal(before, first)
    plain = RepeatPoisson((trial.mapped(lambda item: replace(item, rounding=0.0)),), 4.0)
    now, before = (
        Events((plain,), ((0, 1),), Adjacency.ADD_REMOVE, rules=rules).price() for rules in (3, 2)
    )
    np.testing.assert_array_equal(now, before)
