"""Proximal points against every point of a grid, and the facts that the classes state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.errors import AssumptionNotMet, InputError, UnknownName
from dpcore.losses import Logistic
from dpcore.penalties import make_penalty, penalties, penalty_of, prox_l2, soft_threshold
from dpcore.problem import Block, Problem

GRID = np.linspace(-6.0, 6.0, 2401)
numbers = st.floats(-5.0, 5.0, allow_nan=False)
strengths = st.floats(0.01, 2.0)
steps = st.floats(0.05, 6.0)


def penalty(name: str, strength: float, intercept: bool = False):
    more = {"groups": ((0, 1), (2,))} if name == "group_l1" else {}
    return make_penalty(name, strength=strength, intercept=intercept, **more)


def cost(rule, v, w, step):
    return float(np.sum((w - v) ** 2)) / 2.0 + step * rule.value(w)


@pytest.mark.parametrize("name", ["l1", "l2", "elastic_net", "scad", "mcp", "nuclear"])
@given(v=numbers, strength=strengths, step=steps)
@settings(max_examples=40, deadline=None)
def test_prox_of_one_coordinate_beats_every_grid_point(name, v, strength, step):
    rule = penalty(name, strength)
    point = np.array([v])
    best = cost(rule, point, rule.prox(point, step), step)
    assert best <= min(cost(rule, point, np.array([w]), step) for w in (*GRID[::8], v, 0.0)) + 1e-9


@pytest.mark.parametrize("name", sorted(penalties))
@given(
    v=st.lists(numbers, min_size=4, max_size=4),
    strength=strengths,
    step=st.floats(0.05, 1.5),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_prox_of_a_vector_beats_its_neighbourhood(name, v, strength, step, seed):
    """Random points near and far: nothing has a smaller ||w - v||^2 / 2 + step * penalty(w)."""
    rule = penalty(name, strength)
    v = np.array(v)
    best = rule.prox(v, step)
    value = cost(rule, v, best, step)
    rng = np.random.default_rng(seed)
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(5):
            assert value <= cost(rule, v, best + scale * rng.normal(size=4), step) + 1e-9


@given(seed=st.integers(0, 500), strength=strengths, step=steps)
@settings(max_examples=40, deadline=None)
def test_nuclear_prox_of_a_matrix_is_optimal_and_lowers_the_rank(seed, strength, step):
    rng = np.random.default_rng(seed)
    V = rng.normal(size=(3, 5)) * 2
    rule = penalty("nuclear", strength)
    W = rule.prox(V, step)
    value = cost(rule, V, W, step)
    assert np.linalg.matrix_rank(W, tol=1e-9) == np.sum(
        np.linalg.svd(V, compute_uv=False) > step * strength + 1e-9
    )
    for scale in (1e-3, 0.3):
        for _ in range(5):
            assert value <= cost(rule, V, W + scale * rng.normal(size=V.shape), step) + 1e-9


@pytest.mark.parametrize("name", sorted(set(penalties) - {"l2", "elastic_net"}))
@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_the_constant_column_stays(name, shape):
    v = np.random.default_rng(0).normal(size=shape)
    kept = v.copy()
    assert np.array_equal(penalty(name, 0.7, intercept=True).prox(v, 1.0)[..., -1], v[..., -1])
    assert np.array_equal(v, kept), "prox must not write into its argument"


@pytest.mark.parametrize("name", sorted(penalties))
def test_zero_strength_moves_nothing(name):
    v = np.array([1.5, -0.2, 0.0, 3.0])
    more = {"ridge": 0.0} if name == "elastic_net" else {}
    if name == "group_l1":
        more = {"groups": ((0, 1),)}
    rule = make_penalty(name, strength=0.0, **more)
    assert rule.prox(v, 2.0) == pytest.approx(v, abs=1e-12)
    assert rule.value(v) == pytest.approx(0.0, abs=1e-12)


def test_convexity_is_stated_and_true():
    """The flag against the midpoint inequality on random pairs: SCAD and MCP break it, the others
    do not.
    """
    rng = np.random.default_rng(3)
    for name in penalties:
        rule = penalty(name, 0.8)
        pairs = [(rng.normal(size=4) * 4, rng.normal(size=4) * 4) for _ in range(300)]
        broken = any(
            rule.value((a + b) / 2) > (rule.value(a) + rule.value(b)) / 2 + 1e-9 for a, b in pairs
        )
        assert broken is not rule.convex, name


@given(v=st.lists(numbers, min_size=3, max_size=3), l1=strengths, l2=strengths)
@settings(max_examples=30, deadline=None)
def test_free_functions_agree_with_the_classes(v, l1, l2):
    v = np.array(v)
    assert make_penalty("l1", strength=l1).prox(v, 1.0) == pytest.approx(soft_threshold(v, l1))
    assert make_penalty("l2", strength=l2).prox(v, 1.0) == pytest.approx(prox_l2(v, l2))
    both = make_penalty("elastic_net", strength=l1, ridge=l2)
    assert both.prox(v, 1.0) == pytest.approx(soft_threshold(v, l1) / (1.0 + l2))


def test_scad_and_mcp_leave_large_weights_alone():
    """No bias beyond a lambda and gamma lambda, the point of both penalties; L1 subtracts
    everywhere.
    """
    v = np.array([10.0, -8.0, 0.01])
    assert penalty("scad", 0.5).prox(v, 1.0)[:2] == pytest.approx(v[:2])
    assert penalty("mcp", 0.5).prox(v, 1.0)[:2] == pytest.approx(v[:2])
    assert penalty("scad", 0.5).prox(v, 1.0)[2] == penalty("mcp", 0.5).prox(v, 1.0)[2] == 0.0
    assert penalty("l1", 0.5).prox(v, 1.0)[0] == 9.5


def test_groups_come_from_the_blocks_of_the_problem():
    problem = Problem(
        n=10,
        dimension=4,
        loss=Logistic(),
        l1=0.3,
        blocks=(Block((0, 1)), Block((2,))),
        intercept=True,
    )
    rule = penalty_of(problem, "group_l1")
    assert rule.groups == ((0, 1), (2,)) and rule.strength == 0.3
    small = rule.prox(np.array([0.1, 0.2, 5.0, 7.0]), 1.0)
    assert np.array_equal(small[:2], [0.0, 0.0]) and small[3] == 7.0


def test_refusals():
    with pytest.raises(UnknownName, match="did you mean 'scad'"):
        make_penalty("scda")
    with pytest.raises(UnknownName, match="penalty"):
        penalty_of(Problem(n=10, dimension=2, loss=Logistic()), "l0")
    with pytest.raises(AssumptionNotMet, match=r"group_l1.*got none"):
        penalty_of(Problem(n=10, dimension=2, loss=Logistic()), "group_l1")
    with pytest.raises(InputError, match="a > 2"):
        make_penalty("scad", a=2.0)
    with pytest.raises(InputError, match="common columns"):
        make_penalty("group_l1", groups=((0, 1), (1, 2)))
    for name in penalties:
        with pytest.raises(InputError, match="strength"):
            make_penalty(name, strength=-1.0)


@pytest.mark.parametrize(
    "name", [name for name in penalties if name not in ("l1", "group_l1", "nuclear")]
)
def test_a_named_penalty_of_strength_0_is_refused(name):
    with pytest.raises(
        InputError, match=f"l1 > 0, the strength of penalty='{name}', got l1=0; set objective.l1"
    ):
        penalty_of(Problem(n=10, dimension=2, loss=Logistic()), name)
    assert penalty_of(Problem(n=10, dimension=2, loss=Logistic(), l1=1e-3), name).strength == 1e-3
