"""What a record adds may be far smaller than the numbers it is added to: steps that hardly move,
iterates that run away, penalties of huge weights. Rounding to the size of these must not move a
release by more than is charged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from dpcore.algorithms import make
from dpcore.descent.line_search import public_part
from dpcore.losses import Logistic
from dpcore.mechanisms import AboveThreshold
from dpcore.objective import LinearObjective
from dpcore.objective.rounding import FAR, TOGETHER, UNIT, at_most, rounded_sum, within
from dpcore.problem import Adjacency, Problem

# What cutting public numbers to ``FAR`` leaves, twice.
LEFT = 4 * UNIT * FAR


@dataclass
class Compared:
    """A door that asks each query of two neighbours, and keeps how far they lie apart over the
    sensitivity.
    """

    first: LinearObjective
    second: LinearObjective
    most: int = 12
    ratios: list[float] = field(default_factory=list)
    rng: Any = field(default_factory=lambda: np.random.default_rng(1))

    def note(self, **numbers: float) -> None:
        """Nothing is traced."""

    def affords(self, *mechanisms: Any) -> bool:
        return len(self.ratios) < self.most

    def release(self, mechanism: Any, query: Any) -> Any:
        with np.errstate(all="ignore"):
            value, other = query(self.first), query(self.second)
        self.ratios.append(mechanism.distance(value, other) / mechanism.sensitivity)
        if isinstance(mechanism, AboveThreshold):
            return 0
        return mechanism.release(value, self.rng)


def pair(n: int, adjacency: Adjacency, place: int) -> tuple[LinearObjective, LinearObjective]:
    """Rows of norm 1, and the same without the one at ``place``, or with its opposite label."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True) * (1.0 + 1e-12)
    y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    first = LinearObjective(X, y, Logistic())
    if adjacency is Adjacency.ADD_REMOVE:
        keep = np.delete(np.arange(n), place)
        return first, LinearObjective(X[keep], y[keep], Logistic())
    other = y.copy()
    other[place] = -y[place]
    return first, LinearObjective(X, other, Logistic())


def worst(name: str, n: int, adjacency: Adjacency, l2: float = 0.0, **settings: Any) -> float:
    """The largest ratio of a run on some neighbours."""
    problem = Problem(n=n, dimension=5, loss=Logistic(), adjacency=adjacency, l2=l2)
    found = 0.0
    for place in (0, n // 2):
        door: Any = Compared(*pair(n, adjacency, place))
        with np.errstate(all="ignore"):
            make(name, settings).fit(problem, door, np.random.default_rng(0))
        assert np.all(np.isfinite(door.ratios))
        found = max(found, *door.ratios)
    return found


BOTH = pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])


@BOTH
def test_differences_of_sums_keep_their_bound_however_near_the_points_are(
    adjacency: Adjacency,
) -> None:
    settings = {"epochs": 1, "inner": 3, "sampling_rate": 1.0, "clip_norm": 1.0}
    for rate in (1e-10, 1e-11, 1e-12, 1e-14):
        assert worst("dp_svrg", 50_000, adjacency, learning_rate=rate, **settings) <= 1.0


@BOTH
@pytest.mark.parametrize("perturb", ["x", "xzy"])
def test_iterates_that_run_away_tell_no_more_of_a_record(
    perturb: str, adjacency: Adjacency
) -> None:
    for l2 in (1e4, 1.3e4, 1.6e4, 2e4, 2.5e4, 3e4):
        found = worst(
            "mpadmm", 500, adjacency, l2, learning_rate=1.0, steps=5, perturb=perturb, momentum=0.0
        )
        assert found <= 1.0 + LEFT


@BOTH
@pytest.mark.parametrize("query", ["difference", "quotient"])
def test_line_searches_of_huge_weights_keep_their_bound(query: str, adjacency: Adjacency) -> None:
    for step in (1e9, 1.3e9, 1.7e9, 2.2e9, 2.9e9, 3.8e9, 5e9):
        settings = {"sampling_rate": 1.0, "search_every": 1, "query": query, "first_step": step}
        assert worst("dp_blsgd", 2_000, adjacency, 1e-3, **settings) <= 1.0 + LEFT


@BOTH
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dp_agd", {"rounds": 3, "max_step": 1e10}),
        ("privgene", {"generations": 3, "mutation_size": 1e10, "population": 20}),
    ],
)
def test_choices_among_huge_weights_keep_their_bound(
    name: str, settings: dict[str, Any], adjacency: Adjacency
) -> None:
    assert worst(name, 2_000, adjacency, 1e-3, **settings) <= 1.0 + LEFT


def test_a_public_part_changes_no_choice() -> None:
    """What all candidates share, and what is hopelessly behind, is cut; gaps stay as they are."""
    penalty = np.array([7e20, 7e20 + 3e6, 7e20 + 9e6])
    assert np.array_equal(public_part(penalty, 0.5), penalty - penalty[0])
    assert public_part(np.array([0.0, 1e30]), 0.5).tolist() == [0.0, 0.5 * FAR]
    assert public_part(np.array([np.inf, np.inf]), 0.5).tolist() == [0.0, 0.0]
    assert public_part(np.array([np.nan, 1.0]), 0.5).tolist() == [0.0, 0.0]
    assert within(np.array([np.nan, -np.inf, 3.0]), 2.0).tolist() == [0.0, -2.0, 2.0]
    assert at_most(np.array([3.0, 4.0]), 5.0).tolist() == [3.0, 4.0]


def test_rounding_of_a_sum_is_at_least_that_of_one_that_is_added_term_by_term() -> None:
    """Numbers whose exact sum is known: each addition of a long partial sum loses what it can."""
    for n in (1_000, 60_000):
        for term in (1.0 / 3.0, 1.0 - 2.0**-30, 1.0):
            summed = np.add.accumulate(np.full(n, term))[-1]
            exact = np.longdouble(term) * n
            assert abs(float(summed - exact)) <= rounded_sum(n)
    assert rounded_sum(2 * TOGETHER) < 4.0 * rounded_sum(TOGETHER)
    assert rounded_sum(10**6) < 1e-5


def test_settings_that_never_meet_a_cut_keep_their_iterates() -> None:
    """The cut of what a step adds is far beyond what a run that converges needs."""
    problem = Problem(n=500, dimension=5, loss=Logistic(), l2=1e-2)
    first, _ = pair(500, Adjacency.ADD_REMOVE, 0)
    algorithm = make("mpadmm", {"learning_rate": 1.0, "steps": 4})
    weights = []
    for far in (FAR, 2.0**200):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dpcore.algorithms.mpadmm.FAR", far)
            door: Any = Compared(first, first)
            weights.append(replace(algorithm).fit(problem, door, np.random.default_rng(0)))
    assert np.array_equal(*weights)
