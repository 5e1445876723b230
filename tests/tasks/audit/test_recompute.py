"""The second accountant of the audit: sound runs pass, whatever they sample; a price that is too
low does not.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dpcore.accounting import Events, Target
from dpcore.accounting.curves import epsilon_of
from dpcore.losses import Logistic
from dpcore.mechanisms import Gaussian
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import Sampled, WithoutReplacement
from dpcore.train import Planned, plan
from tasks.audit.recompute import UPPER_BOUND, agrees, independent_epsilon

DELTA = 1e-5


def planned_with(**parameters: Any) -> Planned:
    adjacency = Adjacency(parameters.pop("adjacency", "add_remove"))
    problem = Problem(n=10_000, dimension=5, loss=Logistic(), adjacency=adjacency)
    return plan("dp_sgd", parameters, problem, Target(2.0, DELTA, "cks", "rdp"))


def second(planned: Planned) -> tuple[str, float, float]:
    curve = planned.events.price()
    promise = SimpleNamespace(accountant="rdp", conversion="cks", delta=DELTA, epsilon=2.0)
    stated: Any = SimpleNamespace(
        guarantee=promise, renyi=SimpleNamespace(epsilon=epsilon_of(curve, DELTA))
    )
    found = independent_epsilon(planned.events, stated)
    assert found is not None
    return found


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5])
@pytest.mark.parametrize("steps", [4, pytest.param(64, marks=pytest.mark.slow)])
def test_poisson_batches_are_priced_alike(rate: float, steps: int) -> None:
    planned = planned_with(sampling_rate=rate, steps=steps)
    method, ours, found = second(planned)
    assert method == "dp-accounting, Rényi"
    assert found == pytest.approx(ours, rel=1e-6)
    assert agrees(method, ours, found, planned.events)
    assert not agrees(method, ours, found * 1.001, planned.events)
    assert not agrees(method, ours, found * 0.999, planned.events)


@pytest.mark.parametrize("rate", [0.05, 0.2])
@pytest.mark.parametrize("steps", [pytest.param(4, marks=pytest.mark.slow), 64])
def test_batches_without_replacement_have_an_upper_bound(rate: float, steps: int) -> None:
    planned = planned_with(sampling_rate=rate, steps=steps, adjacency="replace_one")
    [(item, _)] = planned.events.counts
    assert isinstance(item, Sampled)
    fixed = WithoutReplacement(round(rate * 10_000), 10_000).amplify(item.mechanism)
    planned = replace(planned, events=Events.of([fixed] * steps, adjacency="replace_one"))
    method, ours, found = second(planned)
    assert method == UPPER_BOUND
    assert found >= ours
    assert agrees(method, ours, found, planned.events)
    assert not agrees(method, ours, ours * 0.99, planned.events)


def test_a_price_of_less_noise_is_seen() -> None:
    """Ours from the stored noise, the other from noise that is 2 % larger: they part."""
    planned = planned_with(sampling_rate=0.2, steps=16)
    method, ours, _ = second(planned)
    [(item, count)] = planned.events.counts
    assert isinstance(item, Sampled)
    assert isinstance(item.mechanism, Gaussian)
    louder = replace(item, mechanism=replace(item.mechanism, sigma=item.mechanism.sigma * 1.02))
    other = second(
        replace(
            planned,
            events=type(planned.events).of([louder] * count, unit="record", adjacency="add_remove"),
        )
    )
    assert not agrees(method, ours, other[2], planned.events)
