"""DP-AGD: averaged gradients, the ladder of steps, and a budget that is asked before every
query.
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.algorithms import make
from dpcore.algorithms.dp_agd import DPAGD
from dpcore.losses import Logistic
from dpcore.mechanisms import Exponential, Gaussian, NoisyMax
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import plan, run


def records(n: int = 400) -> tuple[Problem, LinearObjective]:
    rng = np.random.default_rng(2)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    X = rng.normal(size=(n, 4)) + y[:, None]
    X /= np.linalg.norm(X, axis=1)[:, None]
    return Problem(n=n, dimension=4, loss=Logistic(), l2=0.01), LinearObjective(X, y, Logistic())


class Scripted:
    """A door without noise that answers gradients and choices from lists and counts what it can
    still afford.
    """

    def __init__(self, gradients: list[np.ndarray], choices: list[int]) -> None:
        self.gradients, self.choices = iter(gradients), iter(choices)
        self.left = len(choices)
        self.asked: list[tuple] = []
        self.released: list = []
        self.notes: list[dict[str, float]] = []

    def affords(self, *mechanisms) -> bool:
        self.asked.append(mechanisms)
        return self.left > 0

    def release(self, mechanism, query):
        self.released.append((mechanism, query))
        if isinstance(mechanism, Gaussian):
            return next(self.gradients)
        self.left -= 1
        return next(self.choices)

    def note(self, **numbers: float) -> None:
        self.notes.append(numbers)


def test_failed_directions_are_averaged_with_their_budgets():
    """Two failures, then success: the weights are the differences of rho, and the last average is
    the direction.
    """
    problem, _ = records()
    g = [np.array([1.0, 0, 0, 0]), np.array([0, 1.0, 0, 0]), np.array([0, 0, 1.0, 0])]
    door = Scripted(g, [0, 0, 20])
    w = DPAGD(growth=0.5).fit(problem, door, np.random.default_rng(0))
    expected = 1.0 * g[0] + 0.5 * g[1] + 0.75 * g[2]  # rho grows 1, 1.5, 2.25
    np.testing.assert_allclose(
        w / np.linalg.norm(w), -expected / np.linalg.norm(expected), atol=1e-12
    )
    sigmas = [m.sigma for m, _ in door.released if isinstance(m, Gaussian)]
    assert sigmas[1] / sigmas[0] == pytest.approx(sqrt(1 / 0.5))
    assert sigmas[2] / sigmas[0] == pytest.approx(sqrt(1 / 0.75))


def test_averaged_gradients_have_the_variance_of_their_joint_budget():
    """Weights rho_i / sum rho on variances S^2 / (2 rho_i) give S^2 / (2 sum rho)."""
    rho = np.array([1.0, 0.5, 0.75])
    assert np.sum((rho / rho.sum()) ** 2 / (2 * rho)) == pytest.approx(1 / (2 * rho.sum()))


def test_every_query_is_asked_for_and_a_gradient_never_runs_without_its_choice():
    problem, _ = records()
    door = Scripted([np.ones(4)] * 5, [3, 0, 4])
    DPAGD().fit(problem, door, np.random.default_rng(0))
    kinds = [type(m) for m, _ in door.released]
    assert kinds == [Gaussian, Exponential] * 3
    assert all([type(m) for m in asked] == [Gaussian, Exponential] for asked in door.asked)
    assert len(door.asked) == 4  # three rounds and the refusal


def test_the_chosen_candidate_is_the_step_that_is_taken():
    """The public code applies candidate[idx - 1]."""
    problem, _ = records()
    for index in (1, 7, 20):
        algorithm = DPAGD(max_step=2.0)
        w = algorithm.fit(problem, Scripted([np.ones(4)], [index]), np.random.default_rng(0))
        assert np.linalg.norm(w) == pytest.approx(algorithm.steps(2.0)[index])


def test_largest_step_follows_the_last_ten():
    problem, _ = records()
    algorithm = DPAGD(max_step=2.0, ladder="linear", update_every=10)
    door = Scripted([np.ones(4)] * 11, [5] * 9 + [8] + [20])
    algorithm.fit(problem, door, np.random.default_rng(0))
    taken = [note["step_size"] for note in door.notes]
    assert taken[:9] == pytest.approx([0.5] * 9)
    assert taken[9] == pytest.approx(0.8)
    assert taken[10] == pytest.approx(1.1 * 0.8)


def test_golden_10_price_of_a_choice(shared: Path) -> None:
    """Gumbel noise of scale C / sqrt(8 rho) costs at most rho, half the noise of Laplace at the
    same rho.
    """
    rows = json.loads((shared / "golden/g10_misc.json").read_text())["selection"]["rows"]
    problem, _ = records()
    for row in rows:
        choice = Exponential(1.0, 1.0 / row["range"], False)
        assert choice.rdp(np.array([float(row["alpha"])]))[0] <= row["rdp_cdp"] * (1 + 1e-12)
        assert choice.rdp(np.array([float(row["alpha"])]))[0] == pytest.approx(
            row["rdp_tight"], rel=1e-4
        )
    gumbel, laplace = DPAGD().choice(problem), DPAGD(selection="laplace").choice(problem)
    assert isinstance(laplace, NoisyMax)
    assert laplace.scale / gumbel.scale == pytest.approx(2.0)
    assert gumbel.range**2 / 8 == pytest.approx(laplace.range**2 / 2)


@pytest.mark.parametrize(
    "changes", [{}, {"selection": "laplace"}, {"sampling_rate": 0.2}, {"growth": 5.0}]
)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_a_run_ends_within_the_price_of_its_plan(changes, adjacency):
    problem, objective = records()
    problem = Problem(n=400, dimension=4, loss=Logistic(), adjacency=adjacency, l2=0.01)
    planned = plan("dp_agd", {"rounds": 8} | changes, problem, Target(1.0, 1e-5))
    result = run(planned, objective)
    assert len(result.events) >= 4
    assert np.all(result.events.price() <= planned.events.price() * (1 + 1e-8))


def test_two_sided_choice_under_replace_one():
    problem, _ = records()
    replaced = Problem(n=400, dimension=4, loss=Logistic(), adjacency="replace_one", l2=0.01)
    one, two = DPAGD().choice(problem), DPAGD().choice(replaced)
    assert not one.two_sided and two.two_sided
    assert two.scale == pytest.approx(2 * one.scale)
    price = [Events.of([c], adjacency="add_remove").price() for c in (one, two)]
    np.testing.assert_allclose(price[0], price[1])


def test_paper_preset_keeps_the_source_setting():
    paper = make("dp_agd", {}, "paper")
    assert (paper.selection, paper.rounds, paper.ladder, paper.candidates) == (
        "laplace",
        60,
        "linear",
        20,
    )
    assert (paper.max_step, paper.growth, paper.update_every) == (2.0, 0.1, 10)
    assert len(paper.steps(2.0)) == 21 and paper.steps(2.0)[1] == pytest.approx(0.1)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_the_cap_of_losses_rises_where_the_choice_is_quiet(adjacency: str) -> None:
    """Once to one and a half times the usual cap, by n and noise alone; the price stays: noise
    rises with the cap.
    """
    caps = []
    for noise in (1000.0, 100.0, 60.0, 10.0):
        algorithm = DPAGD(noise_multiplier=noise)
        problem = Problem(n=30_000, dimension=4, loss=Logistic(), adjacency=adjacency)
        choice = algorithm.choice(problem)
        assert choice.sensitivity == algorithm.clips(problem)[1]
        fixed = DPAGD(noise_multiplier=noise, clip_loss=1.0).choice(problem)
        np.testing.assert_allclose(
            choice.rdp(np.array([2.0, 8.0])), fixed.rdp(np.array([2.0, 8.0])), rtol=1e-12
        )
        caps.append(algorithm.clips(problem)[1])
    assert caps == sorted(caps)
    assert caps[0] == pytest.approx(3 * np.log(2)) and caps[-1] == pytest.approx(4.5 * np.log(2))


def test_a_rare_class_is_not_given_up_at_a_large_epsilon() -> None:
    """One in seven positive, hardly told apart: by losses cut at 2 the best model calls everybody
    surely negative, at a mean loss well above that of the constant model."""
    rng = np.random.default_rng(3)
    n = 20_000
    y = np.where(rng.random(n) < 0.15, 1.0, -1.0)
    X = np.column_stack([0.1 * rng.normal(size=n) + 0.02 * y, np.full(n, 0.9)])
    X /= np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None]
    problem, objective = (
        Problem(n=n, dimension=2, loss=Logistic()),
        LinearObjective(X, y, Logistic()),
    )

    def mean_loss(**parameters: float) -> float:
        planned = plan("dp_agd", parameters, problem, Target(4.0, 1e-6))
        w = run(planned, objective, fixed_noise_seed=1).weights
        return float(objective.value_sum(w[None, :])[0]) / n

    base = float(-(0.15 * np.log(0.15) + 0.85 * np.log(0.85)))
    assert mean_loss() < 1.12 * base
    assert mean_loss(clip_loss=2.0) > 1.15 * base
