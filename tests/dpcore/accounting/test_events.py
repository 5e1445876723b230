"""Events are stored as text and priced again from it, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcore.accounting.curves import curve_of
from dpcore.accounting.events import Events
from dpcore.errors import InputError, PriceUnknown
from dpcore.mechanisms import Gaussian
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson

A, B = Gaussian(1.0, 3.0), Poisson(0.1).amplify(Gaussian(0.3, 0.7), Adjacency.ADD_REMOVE)


def test_text_gives_back_the_same_events_and_the_same_price() -> None:
    events = Events.of([A, A, B, A, B, B], adjacency="add_remove")
    again = Events.from_json(events.to_json())
    assert again == events
    assert np.array_equal(again.price(), events.price())
    assert list(again) == [A, A, B, A, B, B]


def test_equal_neighbours_are_one_run() -> None:
    events = Events.of([Gaussian(1.0, 3.0), Gaussian(1.0, 3.0), B], adjacency="add_remove")
    assert events.order == ((0, 2), (1, 1))
    assert len(events) == 3


def test_price_is_the_sum_of_the_parts() -> None:
    events = Events.of([A] * 5 + [B] * 7, adjacency="add_remove")
    np.testing.assert_allclose(events.price(), 5 * curve_of(A) + 7 * curve_of(B), rtol=1e-14)


def test_prefix() -> None:
    events = Events.of([A, A, B, A], adjacency="add_remove")
    assert list(events.prefix(3)) == [A, A, B]
    assert len(events.prefix(0)) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version=99),
        lambda d: d["mechanisms"][0].update(kind="gausian"),
        lambda d: d["mechanisms"][0].update(extra=1),
        lambda d: d.update(order=[[7, 1]]),
        lambda d: d.update(order=[[0, 0]]),
        lambda d: d.pop("adjacency"),
    ],
)
def test_malformed_text_is_refused(change) -> None:
    stored = json.loads(Events.of([A], adjacency="add_remove").to_json())
    change(stored)
    with pytest.raises(InputError):
        Events.from_json(json.dumps(stored))


def test_a_million_steps_are_encoded_quickly() -> None:
    events = Events.of([B] * 10**6, adjacency="add_remove")
    assert len(events) == 10**6
    assert events.order == ((0, 10**6),)


def test_a_mechanism_priced_for_another_relation_is_refused() -> None:
    with pytest.raises(PriceUnknown, match="replace_one"):
        Events.of([B], adjacency="replace_one")
