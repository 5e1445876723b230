"""``dpcore.accounting.epsilon`` and ``delta``: the relation of the mechanisms, the least statement,
and the ends.
"""

from __future__ import annotations

from math import inf

import pytest

from dpcore.accounting import Events, delta, epsilon
from dpcore.accounting.curves import epsilon_of
from dpcore.errors import InputError, PriceUnknown
from dpcore.mechanisms import Exact, Gaussian, Laplace
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson, WithoutReplacement

GAUSSIAN = Gaussian(1.0, 2.0)
FIXED = WithoutReplacement(10, 1000).amplify(GAUSSIAN, Adjacency.REPLACE_ONE)
SAMPLED = Poisson(0.01).amplify(GAUSSIAN, Adjacency.ADD_REMOVE)


def test_a_sampler_without_replacement_has_a_price() -> None:
    curve = Events.of([FIXED] * 100, adjacency=Adjacency.REPLACE_ONE).price()
    assert epsilon([FIXED] * 100, 1e-5) == epsilon_of(curve, 1e-5)
    assert delta([FIXED] * 100, epsilon([FIXED] * 100, 1e-5)) == pytest.approx(1e-5, rel=1e-6)
    assert epsilon([FIXED] * 100, 1e-5, adjacency="replace_one") == epsilon([FIXED] * 100, 1e-5)
    with pytest.raises(PriceUnknown, match="add_remove"):
        epsilon([FIXED], 1e-5, adjacency="add_remove")
    with pytest.raises(InputError, match="one relation, got add_remove and replace_one"):
        epsilon([FIXED, SAMPLED], 1e-5)


def test_a_replaced_record_costs_more_than_an_added_one() -> None:
    assert epsilon([GAUSSIAN], 1e-5) == epsilon([GAUSSIAN], 1e-5, adjacency="add_remove")
    assert epsilon([SAMPLED] * 50, 1e-5, adjacency="replace_one") > epsilon([SAMPLED] * 50, 1e-5)
    alone = Events.of([SAMPLED] * 50, adjacency=Adjacency.ADD_REMOVE).price(Adjacency.REPLACE_ONE)
    assert epsilon([SAMPLED] * 50, 1e-5, adjacency="replace_one") == epsilon_of(alone, 1e-5)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_pure_epsilons_are_added_where_that_is_least(count: int) -> None:
    noise = [Laplace(1.0, 10.0)] * count
    curve = epsilon_of(Events.of(noise, adjacency=Adjacency.ADD_REMOVE).price(), 1e-9)
    assert epsilon(noise, 1e-9) == pytest.approx(min(curve, count / 10.0))
    assert delta(noise, count / 10.0 + 1e-9) == 0.0
    assert 0.0 < delta(noise, count / 10.0 - 0.05) < 1.0
    assert epsilon([*noise, GAUSSIAN], 1e-9) < inf


def test_the_pure_sum_is_that_of_the_relation_asked() -> None:
    """Replaced records cost a sampled Laplace release more than its pure epsilon under add/remove
    says.
    """
    sampled = Poisson(0.5).amplify(Laplace(1.0, 10.0), Adjacency.ADD_REMOVE)
    assert epsilon([sampled], 1e-300) == pytest.approx(sampled.pure_epsilon)
    assert epsilon([sampled], 1e-300, adjacency="replace_one") > 1.5 * sampled.pure_epsilon
    assert delta([sampled], sampled.pure_epsilon + 1e-9) == 0.0
    assert delta([sampled], sampled.pure_epsilon + 1e-9, adjacency="replace_one") > 0.0


def test_the_ends() -> None:
    assert delta([Exact()], inf) == 1.0 == delta([Exact()], 1.0) == delta([Exact(), GAUSSIAN], inf)
    assert epsilon([Exact()], 1e-5) == inf
    assert delta([GAUSSIAN], inf) == 0.0 == delta([], 0.0) and epsilon([], 1e-5) == 0.0
    assert delta([GAUSSIAN], 0.0) <= 1.0
