"""The line search family: its queries, its budgets and what the trace shows."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.algorithms import make
from dpcore.algorithms.dp_blgd import DPBLGD
from dpcore.algorithms.dp_blsgd import DPBLSGD
from dpcore.errors import BudgetExceeded, InputError
from dpcore.losses import Logistic, Squared
from dpcore.mechanisms import AboveThreshold, Gaussian
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.sampling import Sampled
from dpcore.train import plan, run
from tests.tape import RECORDS, ConstantSlope, replay

NAMES = ("dp_blsgd", "dp_blgd", "dp_blsgd_ac")


def records(n: int = 300, seed: int = 2) -> tuple[Problem, LinearObjective]:
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    X = rng.normal(size=(n, 4)) + y[:, None]
    X /= np.linalg.norm(X, axis=1)[:, None]
    return Problem(n=n, dimension=4, loss=Logistic(), l2=0.01), LinearObjective(X, y, Logistic())


class Scripted:
    """A door without noise: gradients and halting indices come from lists, money ends with the
    indices.
    """

    def __init__(self, gradients: list[np.ndarray], indices: list[int]) -> None:
        self.gradients, self.indices = iter(gradients), list(indices)
        self.released: list = []
        self.queries: list = []
        self.notes: list[dict[str, float]] = []

    def affords(self, *mechanisms) -> bool:
        return bool(self.indices)

    def release(self, mechanism, query):
        self.released.append(mechanism)
        self.queries.append(query)
        inner = mechanism.mechanism if isinstance(mechanism, Sampled) else mechanism
        return next(self.gradients) if isinstance(inner, Gaussian) else self.indices.pop(0)

    def note(self, **numbers: float) -> None:
        self.notes.append(numbers)


def walk(algorithm, gradients, indices) -> Scripted:
    door = Scripted(gradients, indices)
    algorithm.fit(records()[0], door, np.random.default_rng(0))
    return door


def every(**changes) -> DPBLSGD:
    settings = {
        "search_every": 1,
        "first_step": 1.0,
        "max_queries": 5,
        "momentum": 0.0,
        "decay": False,
    }
    return DPBLSGD(**(settings | changes))


def test_the_halting_index_is_the_step_that_is_taken():
    door = walk(every(), [np.ones(4)] * 3, [0, 2, 4])
    assert [note["step_size"] for note in door.notes] == pytest.approx([1.0, 0.25, 0.0625])


def test_first_step_follows_the_last_searches_and_never_rises():
    door = walk(every(reset_every=2), [np.ones(4)] * 4, [1, 2, 0, 0])
    assert [note["step_size"] for note in door.notes] == pytest.approx([0.5, 0.25, 0.6, 0.6])


def test_smallest_step_on_failure():
    door = walk(every(on_failure="smallest_step"), [np.ones(4)], [5])
    assert door.notes[0]["step_size"] == pytest.approx(0.5**5)


@pytest.mark.parametrize(
    ("growth", "second", "rho", "search"),
    [
        ("none", [1.0, 0, 0, 0], 1.0, 1.0),
        ("always", [1.0, 0, 0, 0], 1.3, 1.3),
        ("adaptive", [-1.0, 0, 0, 0], 1.3, 1.0),  # opposite directions: the gradient is noise
        ("adaptive", [0.0, 1.0, 0, 0], 1.0, 1.0),  # 90 degrees, as expected at the start
        ("adaptive", [1.0, 0.1, 0, 0], 1.0, 1.3),  # one direction: the search was too noisy
    ],
)
def test_which_budget_grows_after_a_failure(growth, second, rho, search):
    door = walk(every(budget_growth=growth), [np.array([1.0, 0, 0, 0]), np.array(second)], [5, 0])
    assert (2.0 / door.notes[0]["noise_scale"]) ** 2 == pytest.approx(rho)
    assert door.notes[0]["search_epsilon"] * 2.0 == pytest.approx(search)


def test_difference_growth_pays_only_the_difference_and_weights_by_budget():
    """Weights 1 and 0.3 of gradients of variance S^2 and S^2 / 0.3: together the variance of 1.3
    budgets.
    """
    problem, _ = records()
    a, b = np.array([1.0, 0, 0, 0]), np.array([0, 1.0, 0, 0])
    algorithm = DPBLGD(search_every=1, first_step=1.0, momentum=0.0, decay=False)
    door = Scripted([a, b], [algorithm.max_queries, 0])
    w = algorithm.fit(problem, door, np.random.default_rng(0))
    sigmas = [m.sigma for m in door.released if isinstance(m, Gaussian)]
    assert sigmas[1] / sigmas[0] == pytest.approx(1 / sqrt(0.3))
    np.testing.assert_allclose(w, -(a + 0.3 * b) / 1.3 / problem.n, atol=1e-12)


def test_clips_shrink_once_an_iteration():
    east = np.array([1.0, 0, 0, 0])
    door = Scripted([east, -east, -3.0 * east, np.ones(4)], [5, 5, 0, 0])
    make("dp_blsgd_ac", {"search_every": 1, "max_queries": 5}).fit(
        records()[0], door, np.random.default_rng(0)
    )
    clips = [note["clip_norm"] for note in door.notes]
    assert clips[1] / clips[0] == pytest.approx(0.95)


def test_quotient_is_the_difference_divided_by_the_length_and_moves_by_the_slope_bound():
    problem, objective = records()
    values = {}
    for form in ("difference", "quotient"):
        door = walk(
            every(query=form, clip_loss=50.0), [30 * np.array([-1.0, -1.0, -1.0, -1.0])], [0]
        )
        values[form] = (door.queries[1](objective), door.queries[1](objective.take(slice(0, 299))))
    ratio = values["difference"][0] / values["quotient"][0]
    # lengths fall by the factor 2
    assert ratio[:-1] / ratio[1:] == pytest.approx(np.full(4, 2.0), rel=1e-3)
    assert np.abs(values["quotient"][0] - values["quotient"][1]).max() <= problem.lipschitz


def test_candidates_of_large_models_are_formed_one_by_one(monkeypatch):
    """The same questions, and never more than one candidate in memory: 31 rows of six million
    numbers are 1.5 GB.
    """
    seen: list[int] = []

    class Seen(LinearObjective):
        def value_sum(self, W, clip=np.inf):
            seen.append(len(W))
            return super().value_sum(W, clip)

    problem, objective = records()
    objective = Seen(objective.X, objective.y, problem.loss)
    values = []
    for numbers in (4_000_000, 8, 1):
        monkeypatch.setattr("dpcore.descent.line_search.FORMED_NUMBERS", numbers)
        door = walk(every(), [np.array([-90.0, 30.0, 9.0, 1.0])], [0])
        values.append(door.queries[1](objective))
    assert seen == [6] + [2] * 3 + [1] * 6
    assert np.allclose(values[1], values[0], rtol=1e-12) and np.allclose(
        values[2], values[0], rtol=1e-12
    )


def test_quotient_needs_a_bounded_slope():
    problem = replace(records()[0], loss=Squared())
    assert not every().by_quotient(problem)
    with pytest.raises(InputError, match=r"query='quotient'.*use query='difference'"):
        every(query="quotient").plan(problem)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_price_of_a_search(noise):
    """Laplace: epsilon_BT in pure terms. Gaussian: a rho + ln(K) / (a - 1) with rho = epsilon_BT^2
    / 2.
    """
    algorithm = DPBLGD(noise=noise)
    search = algorithm.search(records()[0], 1.0, 0.2)
    assert isinstance(search, AboveThreshold)
    if noise == "laplace":
        assert search.pure_epsilon == pytest.approx(0.2)
    else:
        order = 64.0
        expected = order * 0.02 + np.log(algorithm.max_queries) / (order - 1.0)
        assert search.rdp(np.array([order]))[0] == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
def test_paper_preset(name):
    paper = make(name, {}, "paper")
    knobs = (
        paper.armijo,
        paper.backtrack,
        paper.reset_every,
        paper.reset_factor,
        paper.angle_high,
        paper.angle_low,
    )
    assert knobs == (0.5, 0.8, 10, 1.2, 1.1, 0.5)
    assert (paper.angle_memory, paper.growth, paper.clip_norm, paper.clip_loss) == (
        0.8,
        0.3,
        3.0,
        1.0,
    )
    assert paper.sampling_rate == (1.0 if name == "dp_blgd" else 0.1)


@pytest.mark.parametrize(
    "changes", [{"query": "difference"}, {"noise": "gaussian"}, {"budget_growth": "always"}]
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_replay_of_the_other_forms(name, adjacency, changes):
    problem = Problem(n=RECORDS, dimension=4, loss=ConstantSlope(), adjacency=adjacency, l2=0.1)
    algorithm = make(
        name, {"iterations": 4, "clip_norm": 0.05, "clip_loss": 0.2, "search_every": 1} | changes
    )
    shown = [replay(algorithm, problem, seed) for seed in range(4)]
    assert all(item.sound for item in shown)
    assert max(max(item.ratios) for item in shown) >= 0.99


def test_a_thousand_random_runs_never_overspend():
    """Random knobs, growth and failures; prices are read again from the list of what ran."""
    rng = np.random.default_rng(5)
    problem, objective = records(40)
    choices = {
        "budget_growth": ("none", "always", "adaptive", "difference"),
        "on_failure": ("retry", "smallest_step"),
        "noise": ("laplace", "gaussian"),
        "query": ("difference", "quotient"),
        "search_every": (1, 2, 3),
        "growth": (0.3, 2.0),
    }
    reserved = {}
    for _ in range(1000):
        settings = {key: options[rng.integers(len(options))] for key, options in choices.items()}
        name = NAMES[rng.integers(3)]
        key = (name, *settings.values())
        if key not in reserved:
            fixed = {
                "noise_multiplier": 5.0,
                "iterations": 4,
                "sampling_rate": 1.0,
                "max_queries": 3,
            }
            reserved[key] = plan(name, fixed | settings, problem)
        ran = run(reserved[key], objective).events
        assert len(ran) > 0
        assert np.all(ran.price() <= reserved[key].events.price() * (1 + 1e-8))


def test_sampled_runs_stay_within_their_target():
    problem, objective = records()
    for name in NAMES:
        planned = plan(name, {"iterations": 8, "search_every": 1}, problem, Target(1.0, 1e-5))
        result = run(planned, objective)
        assert np.all(result.events.price() <= planned.events.price() * (1 + 1e-8))
        assert {"step_size", "noise_scale", "search_epsilon", "angle", "searches"} <= set(
            result.notes[0]
        )


def test_a_used_batch_and_an_overdrawn_run_are_refused():
    problem, objective = records()
    planned = plan("dp_blgd", {"iterations": 1, "noise_multiplier": 3.0}, problem)

    class Twice(DPBLGD):
        def fit(self, problem, budget, rng):
            for mechanism in [*self.plan(problem)] * 2:
                budget.release(mechanism, lambda batch: np.zeros(4))

    with pytest.raises(BudgetExceeded, match="affords"):
        run(replace(planned, algorithm=Twice(iterations=1, noise_multiplier=3.0)), objective)


def test_events_survive_json():
    problem, _ = records()
    events = Events.of(DPBLSGD().plan(problem), adjacency="add_remove")
    assert Events.from_json(events.to_json()).to_json() == events.to_json()
