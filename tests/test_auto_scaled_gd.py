"""scaled_gd: price, sensitivity on hostile neighbours, scaling, and the faults that its tests must
see.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Events, Target
from dpcore.accounting.exact import gdp_mu, pld_epsilon
from dpcore.algorithms.scaled_gd import ScaledGD
from dpcore.descent import platt
from dpcore.descent.marginals import Marginals
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import Logistic, Squared
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.rows import Rows
from dpcore.problem import Adjacency, Block, Problem
from dpcore.train import plan, run
from tests.tape import ConstantSlope, Tape, ratio

BLOCKS = (Block((0, 1, 2)), Block((3,)), Block((4,), "numeric"), Block((6, 5)))
BOTH = [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE]


def problem(adjacency: Adjacency = Adjacency.ADD_REMOVE, **facts) -> Problem:
    """Columns 0-6 in blocks, column 7 in none, column 8 the constant."""
    settings = {
        "n": 6,
        "dimension": 9,
        "loss": ConstantSlope(),
        "norm_bound": 3.0,
        "blocks": BLOCKS,
        "intercept": True,
    }
    return Problem(adjacency=adjacency, **(settings | facts))


def row(*values: float) -> np.ndarray:
    return np.array([*values, 1.0])


TOP = row(1, 0, 0, 1, 1, 1, 0, 1)
OTHER = row(0, 1, 0, 0, 0, 0, 1, 0)
HOSTILE = {
    "the furthest honest records": (TOP, OTHER),
    "values above 1": (row(7, 0, 0, 9, 5, 8, 0, 3), OTHER),
    "values below 0": (TOP, row(-4, -9, 1, -3, -2, 1, -5, -1)),
    "blocks that sum to more than 1": (row(1, 1, 1, 1, 1, 1, 1, 1), OTHER),
    "huge values": (row(*[1e12] * 8), row(*[-1e12] * 8)),
    "nothing at all": (row(*[0.0] * 8), TOP),
}


def replayed(
    records: tuple[np.ndarray, np.ndarray], adjacency: Adjacency, **settings
) -> tuple[list[float], bool]:
    """Ratios to the priced bound of every release, and whether all else was the same bit for
    bit.
    """
    facts = problem(adjacency, loss=settings.pop("loss", ConstantSlope()))
    algorithm = ScaledGD(steps=4, **({"clip_norm": 0.05} | settings))
    base = np.vstack([TOP, OTHER, TOP, OTHER, TOP])
    y = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])
    first = LinearObjective(np.vstack([base, records[0]]), y, facts.loss)
    removed = adjacency is Adjacency.ADD_REMOVE
    second = LinearObjective(base, y[:-1], facts.loss) if removed else None
    if second is None:
        second = LinearObjective(np.vstack([base, records[1]]), np.append(y[:-1], -1.0), facts.loss)
    planned = Events.of(algorithm.plan(facts), adjacency=adjacency)
    record = Tape(first, 5, planned)
    result = algorithm.fit(facts, record, np.random.default_rng(0))
    again = Tape(second, 5, planned, removed=removed, recorded=record.log)
    same = np.array_equal(result, algorithm.fit(facts, again, np.random.default_rng(0)))
    return [
        ratio(a, b, 5) for a, b in zip(record.log, again.log, strict=True)
    ], same and record.notes == again.notes


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_records_stay_within_the_bounds(kind: str, adjacency: Adjacency) -> None:
    ratios, same = replayed(HOSTILE[kind], adjacency)
    assert same
    assert max(ratios) <= 1.0 + 1e-9


@pytest.mark.parametrize("adjacency", BOTH)
def test_bounds_are_reached(adjacency: Adjacency) -> None:
    ratios, _ = replayed(HOSTILE["the furthest honest records"], adjacency)
    assert ratios[0] > 0.9999, (
        "the marginals' bound is loose, or the column sums see less than they should"
    )
    if adjacency is Adjacency.ADD_REMOVE:
        assert min(ratios[1:]) > 0.9999


@pytest.mark.parametrize("adjacency", BOTH)
def test_the_replay_sees_values_that_nobody_bounded(
    monkeypatch: pytest.MonkeyPatch, adjacency: Adjacency
) -> None:
    monkeypatch.setattr(LinearObjective, "within", lambda self, blocks: self)
    ratios, _ = replayed(HOSTILE["values above 1"], adjacency)
    assert ratios[0] > 1.0


def test_the_replay_sees_centres_subtracted_with_a_declared_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def query(self: Marginals, batch: LinearObjective) -> np.ndarray:
        exact = honest(self, batch)
        exact[: len(self.centers)] += (batch.n - 6) * self.centers
        return exact

    honest = Marginals.query
    monkeypatch.setattr(Marginals, "query", query)
    ratios, _ = replayed(HOSTILE["the furthest honest records"], Adjacency.ADD_REMOVE)
    assert ratios[0] > 1.0


def test_the_replay_sees_rows_thought_shorter_than_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Rows.norms.fget
    monkeypatch.setattr(Rows, "norms", property(lambda self: 0.95 * honest(self)))
    ratios, _ = replayed(HOSTILE["the furthest honest records"], Adjacency.ADD_REMOVE)
    assert max(ratios[1:]) > 1.0


@pytest.mark.parametrize(
    ("kind", "adjacency"), [("add", Adjacency.ADD_REMOVE), ("replace", Adjacency.REPLACE_ONE)]
)
def test_marginal_bound_over_random_rows(kind: str, adjacency: Adjacency) -> None:
    """No row of parts in [0, 1] with sum <= 1 moves the sums by more than the bound; corners come
    close to it.
    """
    rng = np.random.default_rng(0)
    layout = Marginals.of(problem(adjacency))
    bound, largest = layout.sensitivity(adjacency), 0.0
    corner = rng.random((400, 1)) < 0.5
    X = np.where(
        corner,
        (rng.random((400, 9)) < 0.4).astype(float),
        rng.random((400, 9)) * rng.random((400, 1)) * 2,
    )
    values = [
        layout.query(LinearObjective(X[i : i + 1], np.ones(1), Logistic())) for i in range(400)
    ]
    for i in range(400):
        moved = (
            np.linalg.norm(values[i])
            if kind == "add"
            else np.linalg.norm(values[i] - values[i - 1])
        )
        largest = max(largest, float(moved))
    assert 0.8 * bound < largest <= bound


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [
        (0.05, 0.011226),
        (0.1, 0.021769),
        (0.2, 0.042239),
        (0.4, 0.081934),
        (0.8, 0.158631),
        (1.6, 0.305696),
    ],
)
@pytest.mark.parametrize("adjacency", BOTH)
def test_exact_price_is_the_gaussian_one_and_split_as_declared(
    epsilon: float, mu: float, adjacency: Adjacency
) -> None:
    """Golden mu at delta = 1e-8, from delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    planned = plan("scaled_gd", {}, problem(adjacency, n=1000), Target(epsilon, 1e-8))
    assert gdp_mu(planned.events.counts) == pytest.approx(mu, rel=2e-4)
    assert (
        planned.spent_epsilon == pytest.approx(epsilon, rel=1e-4)
        and planned.spent_epsilon <= epsilon
    )
    (marginals, one), (gradient, many) = planned.events.counts
    assert (one, many) == (1, 256)
    assert marginals.ratio**2 == pytest.approx(0.1 * gdp_mu(planned.events.counts) ** 2, rel=1e-9)
    assert gradient.sensitivity == pytest.approx(0.4 if adjacency is Adjacency.ADD_REMOVE else 0.8)


@pytest.mark.slow
def test_privacy_loss_distributions_agree_with_the_exact_price() -> None:
    planned = plan("scaled_gd", {"steps": 16}, problem(n=1000), Target(0.8, 1e-6))
    assert pld_epsilon(planned.events.counts, 1e-6) == pytest.approx(0.8, rel=1e-3)


def test_noise_multiplier_scales_every_noise() -> None:
    single, double = (ScaledGD(noise_multiplier=m).plan(problem()) for m in (1.5, 3.0))
    for a, b in zip(single, double, strict=True):
        assert b.sigma == pytest.approx(2 * a.sigma) and b.sensitivity == a.sensitivity


def test_sensitivity_of_the_marginals_by_hand() -> None:
    """Blocks of 3, 1 (flag), 1 numeric, 2, and one column that no block names, which counts as
    numeric.
    """
    layout = Marginals.of(problem())
    added = (1 - 1 / 3) + 0.25 + (0.25 + 1 / 64) + (1 - 1 / 2) + (0.25 + 1 / 64)
    assert layout.sensitivity(Adjacency.ADD_REMOVE) == pytest.approx(sqrt(added), rel=2e-5)
    assert layout.sensitivity(Adjacency.REPLACE_ONE) == pytest.approx(
        sqrt(2 + 1 + 1 + 2 + 1), rel=2e-5
    )


@pytest.mark.parametrize(
    "blocks", [(Block((0, 1)), Block((1, 2))), (Block((8,)),), (Block((0, 42)),)]
)
def test_blocks_that_overlap_or_name_no_feature_are_refused(blocks: tuple[Block, ...]) -> None:
    with pytest.raises(AssumptionNotMet, match="blocks"):
        plan("scaled_gd", {}, problem(blocks=blocks), Target(1.0, 1e-5))


@pytest.mark.parametrize("intercept", [True, False])
def test_scaled_rows_have_mean_squared_norm_one_and_weights_undo_the_scaling(
    intercept: bool,
) -> None:
    rng = np.random.default_rng(1)
    X = np.eye(5)[rng.integers(0, 5, 4000)]
    blocks = (Block((0, 1, 2, 3, 4)),)
    X = np.c_[X, np.ones(4000)] if intercept else X
    facts = Problem(
        n=4000,
        dimension=X.shape[1],
        loss=Logistic(),
        norm_bound=2.0,
        blocks=blocks,
        intercept=intercept,
    )
    rows = LinearObjective(X, np.ones(4000), Logistic())
    layout = Marginals.of(facts)
    view = layout.scaling(layout.query(rows), 0.0, facts)
    scaled = (X - view.shift) * view.scale
    assert np.mean(np.sum(scaled**2, axis=1)) == pytest.approx(1.0, abs=0.02)
    W = rng.normal(size=(3, X.shape[1]))
    assert np.allclose(scaled @ W.T, X @ view.weights(W).T)
    G = rng.normal(size=(3, X.shape[1]))
    assert np.sum(view.pull_back(G) * W) == pytest.approx(np.sum(G * view.weights(W)))
    assert np.linalg.norm(view.weights(W)) <= view.stretch * np.linalg.norm(W)
    assert np.allclose(view.weights(view.scaled(W)), W)


def test_numeric_variance_comes_from_the_second_moment() -> None:
    u = np.random.default_rng(0).uniform(0.4, 0.6, 5000)
    facts = Problem(n=5000, dimension=2, loss=Logistic(), norm_bound=2.0, intercept=True)
    layout = Marginals.of(facts)
    view = layout.scaling(
        layout.query(LinearObjective(np.c_[u, np.ones(5000)], u, Logistic())), 0.0, facts
    )
    assert view.shift[0] == pytest.approx(u.mean())
    assert (view.scale[1] / view.scale[0]) ** 2 == pytest.approx(
        4 * (u.var() + 1e-3) / 1.001, rel=1e-6
    )


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_row_norms_of_a_scaled_view_are_upper_bounds(sparse: bool, dtype: type) -> None:
    """Against extended precision, with shifts chosen so that rows nearly vanish and the expanded
    formula cancels.
    """
    rng = np.random.default_rng(0)
    X = (rng.random((200, 12)) < 0.3).astype(dtype) * dtype(0.3)
    shift, scale = X[0].astype(float) + 1e-9, rng.uniform(1, 30, 12)
    view = LinearObjective(csr_array(X) if sparse else X, np.ones(200), Logistic()).transform(
        shift, scale
    )
    exact = np.sqrt(np.sum(((X.astype(np.longdouble) - shift) * scale) ** 2, axis=1))
    bound = view.row_norms.astype(np.longdouble) * (1 + view.rows.margin)
    assert np.all(bound >= exact * (1 - 1e-15))
    assert np.all(bound[1:] <= exact[1:] * (1 + 2e-5) + 1e-5)


def test_advice_follows_from_public_facts_alone() -> None:
    few = plan("auto", {}, problem(n=500, loss=Logistic()), Target(0.1, 1e-8))
    assert "majority class" in few.warning
    many = plan("auto", {}, problem(n=50_000, loss=Logistic()), Target(0.1, 1e-8))
    assert many.warning == "" and many.name == "scaled_gd" and "scaled" in many.reason
    halved = plan(
        "auto", {}, problem(Adjacency.REPLACE_ONE, n=5000, loss=Logistic()), Target(0.1, 1e-8)
    )
    added = plan("auto", {}, problem(n=5000, loss=Logistic()), Target(0.1, 1e-8))
    assert halved.warning and not added.warning


def records(
    n: int, classes: int = 2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, tuple[Block, ...]]:
    """One-hot attributes of 4 and 3 levels, a numeric and the constant; labels that follow the
    first attribute.
    """
    rng = np.random.default_rng(seed)
    a, b, u = rng.integers(0, 4, n), rng.integers(0, 3, n), rng.random(n)
    X = np.c_[np.eye(4)[a], np.eye(3)[b], u, np.ones(n)]
    y = (a + (u > 0.7)) % classes
    return X, y.astype(float), (Block((0, 1, 2, 3)), Block((4, 5, 6)), Block((7,), "numeric"))


def test_it_learns_with_privacy() -> None:
    X, y, blocks = records(20_000)
    facts = Problem(
        n=20_000, dimension=9, loss=Logistic(), norm_bound=2.01, blocks=blocks, intercept=True
    )
    planned = plan("auto", {}, facts, Target(0.5, 1e-6))
    weights = run(
        planned, LinearObjective(csr_array(X), 2 * y - 1, Logistic()), fixed_noise_seed=0
    ).weights
    best = np.mean(((X @ weights > 0) == (y > 0))[X[:, 7] < 0.7])
    assert best > 0.95


@pytest.mark.parametrize("adjacency", BOTH)
def test_a_start_is_public_and_moves_no_bound(adjacency: Adjacency) -> None:
    start = tuple(np.random.default_rng(4).normal(size=9).tolist())
    for kind in HOSTILE:
        ratios, same = replayed(HOSTILE[kind], adjacency, start=start)
        assert same and max(ratios) <= 1.0 + 1e-9, kind


def test_a_start_of_another_model_is_refused_and_one_of_zeros_is_none() -> None:
    with pytest.raises(AssumptionNotMet, match=r"Expected start with 9 weights.*got 2"):
        plan("scaled_gd", {"start": [0.1, 0.2]}, problem(n=1000), Target(1.0, 1e-5))
    assert replayed(HOSTILE["huge values"], BOTH[0], start=(0.0,) * 9) == replayed(
        HOSTILE["huge values"], BOTH[0]
    )


def test_a_start_at_the_last_weights_is_better_where_zero_is_not_left_far_behind() -> None:
    """Accuracy at an epsilon of 0.1 after one of 0.3 on other records; the mean over ten seeds."""
    X, y, blocks = records(20_000)
    rows = LinearObjective(X, 2 * y - 1, Logistic())
    facts = Problem(
        n=1_000, dimension=9, loss=Logistic(), norm_bound=2.01, blocks=blocks, intercept=True
    )

    def weights(part: int, epsilon: float, seed: int, **settings) -> np.ndarray:
        planned = plan("scaled_gd", settings, facts, Target(epsilon, 1e-6))
        batch = rows.take(np.arange(1_000) + part * 1_000)
        return run(planned, batch, fixed_noise_seed=seed).weights

    def accuracy(w: np.ndarray) -> float:
        return float(np.mean((X @ w > 0) == (y > 0)))

    gains = []
    for seed in range(10):
        start = tuple(weights(0, 0.3, seed).tolist())
        warm, cold = weights(1, 0.1, seed, start=start), weights(1, 0.1, seed)
        gains.append(accuracy(warm) - accuracy(cold))
    assert np.mean(gains) > 0.01


@pytest.mark.parametrize("name", ["scaled_gd", "dp_sgd"])
def test_joint_softmax_learns_with_privacy(name: str) -> None:
    X, y, blocks = records(20_000, classes=4)
    facts = Problem(
        n=20_000,
        dimension=9,
        loss=Softmax(),
        norm_bound=2.01,
        blocks=blocks,
        intercept=True,
        outputs=4,
        l1=1e-6,
        l2=1e-6,
    )
    planned = plan(name, {}, facts, Target(2.0, 1e-6))
    weights = run(
        planned, MulticlassObjective(X, y, Softmax()), fixed_noise_seed=0
    ).weights.reshape(4, 9)
    right = (X @ weights.T).argmax(axis=1) == y
    assert np.mean(right[X[:, 7] < 0.7]) > 0.95


@pytest.mark.parametrize("adjacency", BOTH)
def test_calibration_takes_its_share_and_keeps_its_bound(adjacency: Adjacency) -> None:
    facts = problem(adjacency, loss=Logistic(), n=1000)
    planned = plan("scaled_gd", {"calibration_share": 0.05}, facts, Target(0.4, 1e-8))
    assert planned.spent_epsilon == pytest.approx(0.4, rel=1e-4)
    last = list(planned.events)[-1]
    assert last.ratio**2 == pytest.approx(0.05 * gdp_mu(planned.events.counts) ** 2, rel=1e-9)
    assert last.sensitivity == (
        1.0 if adjacency is Adjacency.ADD_REMOVE else pytest.approx(sqrt(2.0))
    )
    with pytest.raises(AssumptionNotMet, match="calibration_share=0"):
        plan(
            "scaled_gd",
            {"calibration_share": 0.05},
            replace(facts, loss=Squared()),
            Target(0.4, 1e-8),
        )
    with pytest.raises(InputError, match="shares"):
        plan("scaled_gd", {"calibration_share": 0.95}, facts, Target(0.4, 1e-8))


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("adjacency", BOTH)
def test_calibration_on_hostile_records(kind: str, adjacency: Adjacency) -> None:
    ratios, same = replayed(HOSTILE[kind], adjacency, loss=Logistic(), calibration_share=0.05)
    assert same and max(ratios) <= 1.0 + 1e-9
    if adjacency is Adjacency.ADD_REMOVE:
        assert ratios[-1] == 1.0


def test_calibration_undoes_a_wrong_scale_and_shift() -> None:
    """Scores z with log odds 0.5 z - 1: the fit finds them from exact counts, and from noisy ones
    closely.
    """
    rng = np.random.default_rng(0)
    z = rng.normal(0.0, 2.0, 50_000)
    y = np.where(rng.random(50_000) < 1 / (1 + np.exp(1.0 - 0.5 * z)), 1.0, -1.0)
    counts = LinearObjective(z[:, None], y, Logistic()).score_counts(np.ones(1), platt.EDGES)
    assert counts.sum() == 50_000
    assert platt.fit(counts, 1e-9, 50_000) == pytest.approx((0.5, -1.0), abs=0.05)
    noisy = platt.fit(counts + rng.normal(0.0, 30.0, counts.shape), 30.0, 50_000)
    assert noisy == pytest.approx((0.5, -1.0), abs=0.1)
    assert platt.fit(np.zeros_like(counts), 30.0, 50_000) == (1.0, 0.0)


def test_residual_losses_have_clip_and_horizon_of_their_own() -> None:
    facts = problem(loss=Squared(), n=1000)
    assert ScaledGD().clip(facts) == 0.1
    assert ScaledGD(clip_norm=0.3).clip(facts) == 0.3
    margin = ScaledGD(clip_norm=0.3).step_and_momentum(replace(facts, loss=Logistic()), 0.0)
    assert ScaledGD(clip_norm=0.3).step_and_momentum(facts, 0.0) != margin
