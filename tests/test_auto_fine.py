"""Fine blocks and crosses in scaled_gd: every block with sums is paid for, and which fine blocks
are used is read from noisy marginals alone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Events, Target
from dpcore.algorithms.scaled_gd import ScaledGD
from dpcore.descent.gradient import NoisyGradient
from dpcore.descent.marginals import DOMINANT, TOLD_FROM, Marginals, Watch, within_block
from dpcore.errors import InputError
from dpcore.features import Column
from dpcore.losses import Logistic, Loss, Squared
from dpcore.objective import LinearObjective
from dpcore.objective.sparse import LEFT_OUT
from dpcore.preprocess import Encoder
from dpcore.problem import Adjacency, Block, Problem
from dpcore.train import plan, run
from tests.tape import ConstantSlope, Tape, ratio

BOTH = [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE]
COLUMNS = (
    Column(name="gain", low=0, high=1000),
    Column(name="city", kind="categorical", levels=("north", "south")),
)
CROSSES = [["city", {"gain": "bins(3)"}]]


def made(intercept: bool = True) -> Encoder:
    """Hats, 16 fine bins, two levels and a cross of 6 columns."""
    maps = {"normalise": "none", "numeric": "hats(3)+bins(16)", "intercept": intercept}
    return Encoder(COLUMNS, crosses=CROSSES, sparse=False, **maps)


def problem(adjacency: Adjacency = Adjacency.ADD_REMOVE, n: int = 7, **facts) -> Problem:
    design = made(facts.pop("intercept", True)).design
    own = {"dimension": design.dimension, "blocks": design.blocks, "intercept": design.intercept}
    settings = {"n": n, "loss": ConstantSlope(), "norm_bound": design.norm_bound} | own | facts
    return Problem(adjacency=adjacency, **settings)


def rows(gains: list[float], cities: list[str] | None = None, intercept: bool = True) -> np.ndarray:
    frame = pd.DataFrame({"gain": gains, "city": cities or ["north"] * len(gains)})
    return np.asarray(made(intercept).transform(frame))


@pytest.fixture(params=[0.0, np.inf], ids=["with sums", "guessed"])
def told_from(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Fine blocks with sums of their own, and without."""
    monkeypatch.setattr("dpcore.descent.marginals.TOLD_FROM", request.param)
    return float(request.param)


@pytest.mark.parametrize("adjacency", BOTH)
def test_no_corner_moves_the_marginals_by_more_than_their_bound(
    adjacency: Adjacency, told_from: float
) -> None:
    """Brute force: of every block no part, one part whole, or two halves; each with each."""
    blocks = (Block((0, 1, 2)), Block((3, 4, 5, 6), fine=True), Block((7, 8, 9, 10)), Block((11,)))
    facts = problem(adjacency, dimension=13, blocks=blocks)
    layout = Marginals.of(facts, 1.0)
    assert len(layout.summed) == 12 - 4 * bool(layout.guessed) and bool(told_from) != bool(
        layout.released[1].fine
    )
    corners = []
    for block in blocks:
        unit = np.eye(13)[list(block.columns)]
        corners.append([np.zeros(13), *unit, (unit[0] + unit[-1]) / 2.0])
    constant = np.eye(13)[-1]
    records = np.array([sum(parts) + constant for parts in product(*corners)])
    ones = np.ones(1)
    sums = np.array([layout.query(LinearObjective(r[None], ones, Logistic())) for r in records])
    bound = layout.sensitivity(adjacency)
    if adjacency is Adjacency.ADD_REMOVE:
        largest = np.linalg.norm(sums, axis=1).max()
        fine = 0.0 if told_from else 1 - 1 / 4
        expected = np.sqrt((1 - 1 / 3) + (1 - 1 / 4) + 1 / 4 + fine)
    else:
        squares = (sums**2).sum(axis=1)
        pairs = squares[:, None] + squares - 2.0 * sums @ sums.T
        largest, expected = np.sqrt(pairs.max()), np.sqrt((2 if told_from else 3) * 2 + 1)
    assert largest == pytest.approx(expected) and largest <= bound < 1.0001 * largest


def replay(adjacency: Adjacency, first: np.ndarray, second: np.ndarray) -> tuple[list[float], bool]:
    """Ratios to the bound of every release, and whether all else was the same bit for bit."""
    facts = problem(adjacency)
    algorithm = ScaledGD(steps=4, clip_norm=0.05, noise_multiplier=0.5)
    labels = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 1.0])
    planned = Events.of(algorithm.plan(facts), adjacency=adjacency)
    record = Tape(LinearObjective(first, labels, facts.loss), 6, planned)
    result = algorithm.fit(facts, record, np.random.default_rng(0))
    removed = adjacency is Adjacency.ADD_REMOVE
    labels[-1] = -1.0
    other = LinearObjective(second, labels[: len(second)], facts.loss)
    again = Tape(other, 6, planned, removed=removed, recorded=record.log)
    same = np.array_equal(result, algorithm.fit(facts, again, np.random.default_rng(0)))
    return [ratio(a, b, 6) for a, b in zip(record.log, again.log, strict=True)], same


def neighbours(adjacency: Adjacency) -> tuple[np.ndarray, np.ndarray]:
    """Six rows with gain 0 and one with another: the share of the largest bin lies on both sides of
    what decides.
    """
    gains = [0.0] * 6
    first = rows([*gains, 700.0], ["north", "south"] * 3 + ["south"])
    if adjacency is Adjacency.ADD_REMOVE:
        return first, first[:-1]
    return first, np.vstack([first[:-1], rows([0.0], ["north"])])


@pytest.mark.parametrize("adjacency", BOTH)
def test_neighbours_with_fine_blocks_and_crosses_stay_within_the_bounds(
    adjacency: Adjacency, told_from: float
) -> None:
    ratios, same = replay(adjacency, *neighbours(adjacency))
    assert same and max(ratios) <= 1.0 + 1e-9
    assert ratios[0] > 0.9  # 1 but for the hats, which are no corner here


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize("excess", [-1.0, 1.0])
def test_neighbours_are_told_apart_by_no_watch(
    adjacency: Adjacency, excess: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the gradients say of a fine block that is watched."""
    asked = []
    monkeypatch.setattr(Watch, "_told", lambda self, columns: True)
    monkeypatch.setattr(Watch, "_excess", lambda self, *block: asked.append(1) or excess)
    monkeypatch.setattr("dpcore.descent.marginals.TOLD_FROM", 0.0)
    monkeypatch.setattr("dpcore.descent.marginals.DOMINANT", 0.5)
    ratios, same = replay(adjacency, *neighbours(adjacency))
    assert same and max(ratios) <= 1.0 + 1e-9 and len(asked) == 2


def test_the_replay_sees_a_choice_by_exact_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpcore.descent.marginals.TOLD_FROM", 0.0)
    honest, exact = Marginals.query, []

    def query(self: Marginals, batch: LinearObjective) -> np.ndarray:
        found = honest(self, batch)
        exact[:] = [self.centers + found[: len(self.centers)] / batch.n]
        return found

    chosen = Marginals.idle
    monkeypatch.setattr(Marginals, "query", query)
    monkeypatch.setattr(Marginals, "idle", lambda self, means: chosen(self, exact[0]))
    monkeypatch.setattr("dpcore.descent.marginals.DOMINANT", 0.9)
    monkeypatch.setattr(Watch, "_told", lambda self, columns: False)  # it moves from the start
    _, same = replay(Adjacency.ADD_REMOVE, *neighbours(Adjacency.ADD_REMOVE))
    assert not same


@pytest.mark.parametrize(("share", "used"), [(DOMINANT + 0.02, True), (DOMINANT - 0.02, False)])
def test_a_fine_block_is_used_where_nearly_all_rows_lie_in_one_bin(
    share: float, used: bool
) -> None:
    layout, facts = Marginals.of(problem()), problem()
    fine = np.flatnonzero(layout.fine)
    assert len(fine) == 16
    means = np.full(len(layout.centers), 0.2)
    means[fine] = (1.0 - share) / 15
    means[fine[0]] = share
    released = np.append((means - layout.centers) * facts.n, np.zeros(len(layout.numeric)))
    scale = layout.scaling(released, 0.01, facts).scale
    assert np.all(scale[fine] > 0.0) == used and np.all(scale[fine] == 0.0) != used
    others = np.delete(scale, fine)
    noisier = released.copy()
    noisier[fine[1:]] += 0.05 * facts.n  # what fine bins hold does not change the others' scale
    again = np.delete(layout.scaling(noisier, 0.01, facts).scale, fine)
    assert np.array_equal(others, again)


@pytest.mark.parametrize(("hat", "bin_of"), [(0, 0), (1, 8), (2, 15)])
@pytest.mark.parametrize(("share", "used"), [(DOMINANT + 0.02, True), (DOMINANT - 0.02, False)])
def test_without_sums_of_its_own_the_coarser_block_tells_whether_a_fine_one_is_used(
    share: float, used: bool, hat: int, bin_of: int
) -> None:
    """The largest hat names the largest bin, which alone is shifted by much."""
    facts = problem()
    layout = Marginals.of(facts, TOLD_FROM - 1.0)
    assert Marginals.of(facts, TOLD_FROM).guessed == ()
    fine = np.flatnonzero(layout.fine)
    found = np.full(len(layout.centers), 0.2)
    found[:3] = (1.0 - share) / 2
    found[hat] = share
    summed = layout.summed
    assert set(summed) == set(np.flatnonzero(~layout.fine))
    released = np.append((found - layout.centers)[summed] * facts.n, np.zeros(len(layout.numeric)))
    means, variances = layout.moments(released, facts.n)
    assert means[fine].argmax() == bin_of and means[fine[bin_of]] == pytest.approx(share)
    assert means[fine].sum() == pytest.approx(1.0) and np.all(variances >= 0.0)
    view = layout.scaling(released, 0.01, facts)
    assert np.all(view.scale[fine] > 0.0) == used and np.all(view.scale[fine] == 0.0) != used
    assert layout.fine_terms(view) == []  # and nothing watches it


def test_guessed_bins_are_spikes_that_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's own bin tells the label, with the bins' sums and without."""
    rng = np.random.default_rng(3)
    spikes = rng.choice([200.0, 400.0, 640.0], 6000, p=[0.2, 0.6, 0.2])
    gains = np.where(rng.random(6000) < 0.9, 0.0, spikes)
    y, X, facts = np.where(gains == 400.0, 1.0, -1.0), rows(gains.tolist()), problem(n=6000)
    facts = replace(facts, loss=Logistic())
    for told_from in (0.0, np.inf):
        monkeypatch.setattr("dpcore.descent.marginals.TOLD_FROM", told_from)
        planned = plan("scaled_gd", {}, facts, Target(4.0, 1e-6))
        weights = run(planned, LinearObjective(X, y, facts.loss), fixed_noise_seed=1).weights
        assert np.mean(np.sign(X @ weights) == y) > 0.98


def test_parts_of_a_block_are_the_nearest_that_a_block_can_have() -> None:
    """Against a search over a grid of blocks of three parts."""
    rng = np.random.default_rng(0)
    grid = np.array(list(product(np.linspace(0.0, 1.0, 51), repeat=3)))
    grid = grid[grid.sum(axis=1) <= 1.0 + 1e-9]
    for parts in rng.normal(0.3, 0.5, (50, 3)):
        nearest = within_block(parts)
        assert np.all(nearest >= 0.0) and nearest.sum() <= 1.0 + 1e-12
        best = np.min(np.sum((grid - parts) ** 2, axis=1))
        assert np.sum((nearest - parts) ** 2) <= best + 1e-12
    inside = np.array([0.2, 0.0, 0.7])
    assert np.array_equal(within_block(inside), inside)


def test_weights_are_the_same_where_a_pass_leaves_unused_bins_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which they are is known from the marginals, so leaving them out is post-processing."""
    rng = np.random.default_rng(1)
    X = csr_array(rows(rng.uniform(0, 1000, 400).tolist(), ["north", "south"] * 200))
    y, facts = rng.choice([-1.0, 1.0], 400), problem(n=400, loss=Logistic())
    planned = plan("scaled_gd", {"steps": 20}, facts, Target(2.0, 1e-6))
    found = {}
    for name, share in {"left out": LEFT_OUT, "looked up": 2.0}.items():
        monkeypatch.setattr("dpcore.objective.sparse.LEFT_OUT", share)
        objective = LinearObjective(X, y, facts.loss)
        found[name] = run(planned, objective, fixed_noise_seed=4).weights
    assert np.array_equal(found["left out"], found["looked up"])
    idle = found["left out"][[c for b in facts.blocks if b.fine for c in b.columns]]
    assert np.all(idle == 0.0) and np.all(found["left out"][:3] != 0.0)


def test_fine_blocks_stay_unused_without_a_constant_column() -> None:
    facts = problem(intercept=False)
    layout = Marginals.of(facts)
    means = np.full(len(layout.centers), 0.2)
    means[np.flatnonzero(layout.fine)[0]] = 0.99
    assert layout.idle(means).sum() == 16
    released = np.append((means - layout.centers) * facts.n, np.zeros(len(layout.numeric)))
    assert np.all(np.isfinite(layout.scaling(released, 0.1, facts).scale))


def test_a_goal_changes_the_clip_where_the_signal_is_strong() -> None:
    """And the share of calibration where probabilities are wanted; the price stays the target."""
    target = Target(2.0, 1e-8)
    clips = {}
    for n in (3_000, 300_000):
        facts = problem(n=n, loss=Logistic())
        for goal in ("accuracy", "auc", "probability"):
            planned = plan("scaled_gd", {"goal": goal}, facts, target)
            clips[n, goal] = planned.parameters["clip_norm"]
            assert planned.spent_epsilon == pytest.approx(2.0, rel=1e-3)
            assert len(planned.events) == 257 + (goal == "probability")
    assert [clips[300_000, goal] for goal in ("accuracy", "auc", "probability")] == [0.4, 1.0, 1.0]
    assert all(clips[3_000, goal] == 0.4 for goal in ("accuracy", "auc", "probability"))
    assert planned.warning == ""
    blind = plan(
        "auto", {"goal": "probability"}, problem(n=5_600, loss=Logistic()), Target(0.1, 1e-8)
    )
    assert "too little for a calibration" in blind.warning
    assert plan("auto", {}, problem(n=5_600, loss=Logistic()), Target(0.1, 1e-8)).warning == ""
    with pytest.raises(InputError, match="goal"):
        plan("auto", {"goal": "profit"}, problem(loss=Logistic()), target)
    with pytest.raises(InputError, match="margins"):
        plan("auto", {"goal": "auc"}, problem(loss=Squared()), target)


def watched(rate: float = 1.0, noise: float = 3.0, outputs: int = 1) -> tuple[Watch, np.ndarray]:
    """A watch of 9 steps over the 16 fine bins of 5,000 rows, nine in ten of them in the first, and
    the columns of the bins.
    """
    facts = problem(n=5_000, outputs=outputs, loss=Logistic())
    layout = Marginals.of(facts)
    fine = np.flatnonzero(layout.fine)
    means = np.full(len(layout.centers), 0.2)
    means[fine] = np.append(0.9, np.linspace(1.0, 9.0, 15) / 750.0)
    released = np.append((means - layout.centers) * facts.n, np.zeros(len(layout.numeric)))
    view = layout.scaling(released, 1e-3, facts)
    gradient = NoisyGradient.of(facts, 0.4, noise, rate)
    return Watch.of(layout, view, means, gradient, noise * 0.4, 72, facts), fine


@pytest.mark.parametrize(("rate", "outputs"), [(1.0, 1), (0.25, 1), (1.0, 3)])
def test_what_chance_leaves_of_a_fine_block_is_as_large_as_the_watch_says(
    rate: float, outputs: int
) -> None:
    """Gradients of rows whose slopes have the largest size and any sign, beside a smooth part."""
    watch, fine = watched(rate, outputs=outputs)
    (columns, smooth), rng, steps = watch.terms[0], np.random.default_rng(2), 9
    assert np.array_equal(columns, fine) and watch.steps == steps
    drawn, noisy, use = watch._spread(columns)
    n, s, m = 5_000, watch.view.scale[columns], watch.means[columns]
    deviation = np.sqrt(drawn / outputs + noisy / outputs)
    found = []
    for _ in range(600):
        sums = n * m * (smooth @ np.array([0.1, -0.05, 0.02])[: smooth.shape[1]])
        sums = sums + deviation * rng.normal(size=(outputs, 16))
        total = np.zeros((outputs, len(watch.view.scale)))
        total[:, columns] = sums * s / n
        watch.total = total
        found.append(watch._excess(columns, smooth))
    chance, error = -float(use @ drawn), np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - chance) < 4.0 * error < -0.2 * chance
    alone = watched(1.0, outputs=outputs)[0]._spread(columns)
    assert np.allclose(drawn, alone[0] * (1.0 + (1.0 / rate - 1.0) / steps))
    assert np.allclose(noisy, alone[1] / rate**2)


def test_watched_weights_set_out_from_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients from before a block moves are no part of its momentum; other columns keep
    theirs.
    """
    monkeypatch.setattr(Watch, "_told", lambda self, columns: True)
    monkeypatch.setattr(Watch, "_excess", lambda self, *block: 1.0)
    monkeypatch.setattr("dpcore.descent.marginals.TOLD_FROM", 0.0)
    monkeypatch.setattr("dpcore.descent.marginals.DOMINANT", 0.5)
    facts, algorithm = problem(loss=Logistic()), ScaledGD(steps=4, horizon=1e3)
    X = neighbours(Adjacency.ADD_REMOVE)[0]
    planned = Events.of(algorithm.plan(facts), adjacency=facts.adjacency)
    tape = Tape(LinearObjective(X, np.ones(7), facts.loss), 6, planned)
    weights = algorithm.fit(facts, tape, np.random.default_rng(0))
    layout, first = Marginals.of(facts), tape.log[0]
    view = layout.scaling(first.output, first.mechanism.sigma / facts.n, facts)
    momentum = algorithm.step_and_momentum(facts, 0.0)[1]
    assert momentum > 0.9
    held, moving = np.flatnonzero(layout.fine), np.flatnonzero(~layout.fine)
    for columns, since in ((held, 1), (moving, 0)):
        expected, velocity = np.zeros(len(columns)), np.zeros(len(columns))
        for entry, note in list(zip(tape.log[1:], tape.notes, strict=True))[since:]:
            velocity = momentum * velocity + entry.output[columns] / facts.n
            expected -= note["step_size"] * velocity
        assert np.allclose(weights[columns], expected * view.scale[columns])


def test_no_slope_exceeds_what_a_watch_allows_for() -> None:
    watch, fine = watched()
    rng = np.random.default_rng(0)
    X = rows(rng.uniform(0, 1000, 200).tolist(), ["north", "south"] * 100)
    drawn, _, _ = watch._spread(fine)
    bound = np.sqrt(drawn / (5_000 * watch.means[fine]))
    sizes = np.zeros(16)
    for row in X:
        one = LinearObjective(row[None], np.ones(1), Logistic()).transform(
            watch.view.shift, watch.view.scale
        )
        slope = one.gradient_sum(np.zeros(len(row)), 0.4)[-1] / watch.view.scale[-1]
        bin_of = int(np.argmax(row[fine]))
        sizes[bin_of] = max(sizes[bin_of], abs(slope))
    assert np.all(sizes <= bound) and np.any(sizes > 0.8 * bound)


def test_a_watch_needs_gradients_that_tell_chance_from_more() -> None:
    assert watched(noise=3.0)[0].held.sum() == 16
    assert not watched(noise=300.0)[0].held.any()


@pytest.mark.parametrize("spikes", [True, False])
@pytest.mark.parametrize("start", [0.0, 0.5])
def test_fine_bins_move_where_they_tell_more_than_chance(spikes: bool, start: float) -> None:
    """Nine in ten rows are 0; of the others each value has its own share of labels, or all the
    same. A start that nothing speaks against stays.
    """
    rng = np.random.default_rng(5)
    gains = np.where(rng.random(4000) < 0.9, 0.0, rng.choice(np.linspace(70, 970, 8), 4000))
    even = np.searchsorted(np.linspace(70, 970, 8), gains - 1.0) % 2 == 0
    chance = np.where(even, 0.9, 0.1) if spikes else np.full(4000, 0.6)
    y = np.where(rng.random(4000) < np.where(gains == 0.0, 0.4, chance), 1.0, -1.0)
    facts = problem(n=4000, loss=Logistic())
    fine = [c for b in facts.blocks if b.fine for c in b.columns]
    first = np.zeros(facts.dimension)
    first[fine[-1]] = start
    planned = plan("scaled_gd", {"start": first.tolist()}, facts, Target(8.0, 1e-6))
    objective = LinearObjective(rows(gains.tolist()), y, facts.loss)
    weights = run(planned, objective, fixed_noise_seed=2).weights[fine]
    moved = np.abs(weights - first[fine]) > 1e-9
    assert moved[:15].any() == spikes and moved[-1] == spikes


@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=lambda loss: loss.name)
def test_spikes_that_hats_cannot_tell_apart_are_learnt(loss: Loss) -> None:
    """Nine in ten rows are 0; of the others those in the middle differ from both sides."""
    rng = np.random.default_rng(3)
    spikes = rng.choice([200.0, 400.0, 640.0], 6000, p=[0.2, 0.6, 0.2])
    gains = np.where(rng.random(6000) < 0.9, 0.0, spikes)
    y = np.where(gains == 400.0, 1.0, -1.0)
    X = rows(gains.tolist())
    facts = problem(n=6000, loss=loss)
    found = {}
    for name, blocks in {
        "fine": facts.blocks,
        "coarse": tuple(b for b in facts.blocks if not b.fine),
    }.items():
        columns = sorted({c for b in blocks for c in b.columns} | {facts.dimension - 1})
        place = {c: i for i, c in enumerate(columns)}
        moved = tuple(Block(tuple(place[c] for c in b.columns), b.kind, b.fine) for b in blocks)
        single = problem(n=6000, loss=loss, dimension=len(columns), blocks=moved)
        planned = plan("scaled_gd", {}, single, Target(4.0, 1e-6))
        part = X[:, columns]
        result = run(planned, LinearObjective(part, y, loss), fixed_noise_seed=1)
        found[name] = float(np.mean(np.sign(part @ result.weights) == y))
    assert found["fine"] > 0.98 > found["coarse"], found
