"""Plans of many rounds: what planning does, prices and stores does not grow with their number."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import Target
from dpcore.accounting.events import MOST_RUNS, Events
from dpcore.algorithms import registry
from dpcore.errors import InputError
from dpcore.losses import Logistic
from dpcore.mechanisms import Exponential, Gaussian, InTurn, Rounds
from dpcore.problem import Problem
from dpcore.train import plan

COUNTS = {
    **{"dp_agd": "rounds", "dp_svrg": "epochs", "privgene": "generations"},
    **{"dp_blsgd": "iterations", "dp_blgd": "iterations"},
    **dict.fromkeys(("dp_sgd", "dp_adam", "scaled_gd", "mpadmm", "ssadmm", "dp_admm"), "steps"),
}
# What planning a thousand rounds takes, a hundred times over; a list of 10^7 took more than 10^8.
MOST_CALLS = 3_000_000
FIRST, SECOND = Gaussian(1.0, 3.0), Exponential(1.0, 2.0)


@contextmanager
def few_calls(most: int) -> Iterator[None]:
    """Raise once the block makes more than ``most`` calls, of Python or of C."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 2 * most:  # a call and its return
            sys.setprofile(None)
            raise AssertionError(f"more than {most} calls")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("rounds", [1, 4_999, 5_001, 10**7])
@pytest.mark.parametrize("name", COUNTS)
def test_a_plan_of_any_number_of_rounds_is_made_in_few_calls(name: str, rounds: int) -> None:
    adjacency = sorted(registry[name].adjacencies)[0]
    problem = Problem(n=100_000, dimension=10, loss=Logistic(), l2=1e-4, adjacency=adjacency)
    with few_calls(MOST_CALLS):
        planned = plan(name, {COUNTS[name]: rounds}, problem, Target(1.0, 1e-6, accountant="rdp"))
        text = planned.events.to_json()
    assert 0.9 < planned.spent_epsilon <= 1.0
    assert len(planned.events) >= rounds
    assert len(text) < 20 * MOST_RUNS


def events_of(mechanisms: Any) -> Events:
    return Events.of(mechanisms, adjacency="add_remove")


def long_and_short() -> tuple[Events, Events]:
    """Equal releases: one list that is kept as rounds, and one that is written out."""
    rounds = Rounds([FIRST, SECOND, SECOND], MOST_RUNS)
    return events_of(rounds), events_of([*rounds])


def test_rounds_are_priced_as_their_list() -> None:
    long, short = long_and_short()
    assert long.rounds == MOST_RUNS and short.rounds == 1
    assert long.counts == short.counts and long.charged == short.charged
    assert len(long) == len(short) == 3 * MOST_RUNS and [*long] == [*short]
    assert np.array_equal(long.price(), short.price())
    assert np.array_equal(long.prices(), short.prices())


def test_rounds_are_cut_continued_and_stored_as_their_list() -> None:
    long, short = long_and_short()
    assert long.prefix(7) == short.prefix(7)
    assert long.prefix(0).order == ()
    before = events_of([SECOND])
    assert before.then(long) == before.then(short)
    assert long.then(before) == short.then(before)
    assert Events.from_json(long.to_json()) == long
    assert len(long.to_json()) < 500


def test_few_rounds_are_stored_as_before() -> None:
    few = events_of(Rounds([FIRST, SECOND], 50))
    assert few == events_of([FIRST, SECOND] * 50)
    assert "rounds" not in json.loads(few.to_json())
    assert events_of(Rounds([FIRST], 10**7)).order == ((0, 10**7),)


@pytest.mark.parametrize("rounds", [0, -1, 1.5, True])
def test_a_stored_number_of_rounds_is_a_count(rounds: Any) -> None:
    stored = json.loads(events_of([FIRST]).to_json()) | {"rounds": rounds}
    with pytest.raises(InputError, match="Expected"):
        Events.from_json(json.dumps(stored))


def test_a_plan_reads_as_the_list_that_it_stands_for() -> None:
    rounds = Rounds([FIRST, SECOND], 3)
    both = InTurn(([SECOND], rounds, []))
    for found, told in ((rounds, [FIRST, SECOND] * 3), (both, [SECOND, *[FIRST, SECOND] * 3])):
        assert [*found] == told == found and len(found) == len(told)
        assert found != told[1:] and found != [*told[1:], told[0]]
        assert [found[k] for k in range(-len(told), len(told))] == told * 2
        assert found[1:4] == told[1:4] and found[::-2] == told[::-2]
        with pytest.raises(IndexError):
            found[len(told)]
    assert events_of(both) == events_of([*both])
