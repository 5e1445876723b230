"""A tuned training through the door: what a trial releases, what is charged, what leaves, and who
wins.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import ORDERS, Events, Target
from dpcore.accounting.budget import Budget, open_door
from dpcore.accounting.limits import Room, order_index
from dpcore.errors import BudgetExceeded, DPFlowsError, InputError
from dpcore.losses import Logistic
from dpcore.mechanisms import Gaussian
from dpcore.mechanisms.repeated import Repeated
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run
from dpcore.train import search as train_search
from dpcore.train.search import Candidate, Search, Tuned, plan_tuning, right, select
from tests.dpcore.train.small import RATES, candidates, planned_of, problem_of, records
from tests.tape import RECORDS, ConstantSlope, replay

LAWS = [Search(), Search("negative_binomial", 10.0), Search("negative_binomial", 4.0, 1.0)]


class OneTrial:
    """One trial of a tuned training as the Tape sees it: the training's releases, then the noisy
    count.
    """

    def __init__(self, tuned: Tuned, index: int) -> None:
        self.tuned, self.index = tuned, index
        self.adaptive = tuned.settings[index].algorithm.adaptive

    def plan(self, problem: Problem) -> list[Any]:
        [law] = self.tuned.plan(problem)
        [trial] = [law.trials[0]]  # type: ignore[attr-defined]
        return [
            item
            for item, count in zip(trial.mechanisms, trial.counts, strict=True)
            for _ in range(count)
        ]

    def fit(self, problem: Problem, budget: Any, rng: np.random.Generator) -> np.ndarray:
        door = lambda events, adaptive=False: Door(budget, events)  # noqa: E731
        score, (_, weights) = self.tuned.attempt(self.index, door, rng)
        return np.append(weights, score)


class Door:
    """The part of a Tape that ``events`` pay for."""

    def __init__(self, tape: Any, events: Events) -> None:
        self.release, self.note = tape.release, tape.note
        self._tape, self._cap = tape, events.price() * (1 + 1e-9)

    def affords(self, *mechanisms: Any) -> bool:
        """Whether the training, which comes first, may release these too."""
        spent = 0.0 if self._tape.spent is None else self._tape.spent
        return bool(np.all(spent + sum(item.rdp(ORDERS) for item in mechanisms) <= self._cap))


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("dp_sgd", {"steps": 3, "clip_norm": 0.05, "learning_rate": 0.5}),
        pytest.param(
            "dp_sgd", {"steps": 3, "clip_norm": 0.05, "sampling_rate": 0.5}, marks=pytest.mark.slow
        ),
        ("objective_perturbation", {}),
        ("dp_agd", {}),
    ],
)
def test_replay_of_a_trial_finds_nothing_but_values(
    name: str, parameters: dict[str, Any], adjacency: Adjacency
) -> None:
    """The Tape on training and score of one trial: each value within its bound, everything else bit
    for bit.
    """
    best = 0.0
    for seed in range(4):
        loss = ConstantSlope() if name == "dp_sgd" and seed < 2 else Logistic()
        problem = Problem(n=RECORDS, dimension=4, loss=loss, adjacency=adjacency, l2=0.1)
        one = Candidate({"algorithm.steps": 3}, parameters, problem)
        planned = plan_tuning(name, [one], problem, Search(), Target(20.0, 1e-3))
        shown = replay(OneTrial(planned.algorithm, 0), problem, seed)  # type: ignore[arg-type]
        assert shown.sound, shown
        best = max(best, shown.ratios[-1])
    assert best == pytest.approx(1.0)  # a count moves by one, and somewhere it does


@pytest.mark.parametrize("search", LAWS)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_the_whole_meets_the_target_and_wastes_nothing(search: Search, adjacency: str) -> None:
    problem = problem_of(adjacency=adjacency)
    planned = planned_of(problem, search)
    assert 0.999 < planned.spent_epsilon <= 1.0 + 1e-9
    [law] = list(planned.events)
    assert isinstance(law, Repeated) and law.mean == pytest.approx(search.mean)
    single = plan("dp_sgd", {"steps": 4}, problem, Target(1.0, 1e-4, accountant="rdp"))
    assert planned.parameters["noise_multiplier"] > single.algorithm.noise_multiplier


def test_the_ledger_s_room_is_met_too() -> None:
    problem = problem_of()
    room = Room(20.0, 0.1, Adjacency.ADD_REMOVE)
    planned = plan_tuning(
        "dp_sgd",
        candidates(problem, learning_rate=RATES),
        problem,
        Search(),
        Target(1.0, 1e-4),
        room,
    )
    cost = planned.events.price()[order_index(20.0)]
    assert 0.0999 < cost <= 0.1 * (1 + 1e-9)
    with pytest.raises(BudgetExceeded):  # repeating costs something, whatever the noise
        tight = Room(2.0, 1e-5, Adjacency.ADD_REMOVE)
        plan_tuning(
            "dp_sgd",
            candidates(problem, learning_rate=RATES),
            problem,
            Search(),
            Target(1.0, 1e-4),
            tight,
        )


def test_settings_of_one_price_share_it_and_others_are_priced_each() -> None:
    [rates] = list(planned_of(problem_of(), learning_rate=(0.1, 1.0, 10.0)).events)
    [steps] = list(planned_of(problem_of(), steps=(2, 8, 32)).events)
    assert (len(rates.trials), len(steps.trials)) == (1, 3)  # type: ignore[attr-defined]
    curves = np.array([trial.rdp(ORDERS) for trial in steps.trials])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(steps.trial_rdp(ORDERS), curves.max(axis=0))  # type: ignore[attr-defined]
    # each is calibrated to the same budget
    assert np.all(curves.min(axis=0) > 0.999 * curves.max(axis=0))


@pytest.mark.parametrize("noise", ["rounded", "discrete"])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_a_trial_spends_what_it_is_priced_for(
    monkeypatch: pytest.MonkeyPatch, noise: str, rate: float
) -> None:
    """The doors inside a trial release, together, exactly the composition in the price."""
    doors: list[Budget] = []

    class Seen(Budget):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            doors.append(self)

    monkeypatch.setattr(train_search, "open_door", partial(open_door, door=Seen))
    problem = problem_of()
    planned = planned_of(problem, noise=noise, sampling_rate=(rate, rate))
    run(planned, records(problem))
    [law] = list(planned.events)
    assert len(doors) % 2 == 0
    for training, score in zip(doors[::2], doors[1::2], strict=True):
        np.testing.assert_allclose(training.spent + score.spent, law.trial_rdp(ORDERS), rtol=1e-12)  # type: ignore[attr-defined]
        assert (training.releases, score.releases) == (4, 1)


def test_one_charge_before_the_first_draw_and_nothing_tells_the_number_of_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, shown = problem_of(), []
    planned = planned_of(problem)
    for trials in (1, 23):
        order: list[str] = []
        attempt = Tuned.attempt
        monkeypatch.setattr(Repeated, "draw", lambda self, rng, trials=trials: trials)
        monkeypatch.setattr(
            Tuned, "attempt", lambda *a, order=order, f=attempt: (order.append("trial"), f(*a))[1]
        )
        progress: list[tuple[int, int]] = []
        result = run(
            planned,
            records(problem),
            on_charge=lambda order=order: order.append("charge"),
            on_progress=lambda done, total, progress=progress: progress.append((done, total)),
        )
        monkeypatch.undo()
        assert order == ["charge", *["trial"] * trials]
        assert result.events == planned.events and len(result.events) == 1
        shown.append(
            (
                progress,
                [sorted(note) for note in result.notes],
                [sorted(row) for row in result.trace],
            )
        )
    assert (
        shown[0]
        == shown[1]
        == ([(1, 1)], [["release", "setting"]], [["release", "setting", "spent_epsilon"]])
    )


def test_trials_are_identically_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public seed is the same in each, and settings are drawn uniformly (chi-square, false
    alarm 1e-6).
    """
    planned = planned_of(problem_of(), learning_rate=(0.1, 1.0, 10.0))
    drawn: list[int] = []
    seeds: set[float] = set()

    def attempt(
        self: Tuned, index: int, door: Any, rng: np.random.Generator
    ) -> tuple[float, tuple[int, np.ndarray]]:
        drawn.append(index)
        seeds.add(rng.random())
        return 0.0, (index, np.zeros(3))

    monkeypatch.setattr(Tuned, "attempt", attempt)
    monkeypatch.setattr(Repeated, "draw", lambda self, rng: 3000)
    run(planned, records(problem_of()), seed=5)
    counts = np.bincount(drawn, minlength=3)
    assert len(seeds) == 1 and counts.sum() == 3000
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 27.6


def test_the_better_setting_wins_and_is_named() -> None:
    problem = problem_of()
    bad = {"steps": 4, "start": (-1.0, 0.0, 0.0), "learning_rate": 1e-6}
    good = {"steps": 4, "start": (0.0, 0.0, 0.0), "learning_rate": 2.0}
    both = [
        Candidate({"algorithm.learning_rate": one["learning_rate"]}, one, problem)
        for one in (bad, good)
    ]
    planned = plan_tuning(
        "dp_sgd", both, problem, Search("negative_binomial", 20.0, 1.0), Target(50.0, 1e-4)
    )
    won = [select(planned, run(planned, records(problem)).notes) for _ in range(10)]
    rates = [one.parameters["learning_rate"] for one in won]
    # the other wins where no trial had this: a share of 0.048, six times by 3e-6
    assert rates.count(2.0) >= 5
    assert won[0].parameters["tuning"]["selected"] == {"algorithm.learning_rate": rates[0]}
    assert "selected" not in planned.parameters["tuning"]
    assert planned.parameters["learning_rate"] == [1e-6, 2.0]
    assert json.loads(json.dumps(won[0].parameters))["tuning"] == won[0].parameters["tuning"]
    other = plan("dp_sgd", {"steps": 4}, problem, Target(1.0, 1e-4))
    assert select(other, []) is other


def test_a_model_that_is_not_finite_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of()
    planned = planned_of(problem)
    kind = type(planned.algorithm.settings[0].algorithm)  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "fit", lambda *given: np.full(3, np.nan))
    budget = Budget(planned.events, records(problem), np.random.default_rng(0))
    score, (_, weights) = planned.algorithm.trial(budget._objective, 1, np.random.default_rng(2))  # type: ignore[attr-defined]
    assert score == -np.inf and np.isnan(weights).all()


@pytest.mark.parametrize("loss", [Logistic(), Softmax()])
def test_several_classes(loss: Any) -> None:
    rng = np.random.default_rng(1)
    problem = Problem(n=300, dimension=3, loss=loss, outputs=3)
    y = rng.integers(0, 3, 300).astype(float)
    X = np.eye(3)[y.astype(int)] * 0.9
    objective = MulticlassObjective(X, y, loss)
    settings = candidates(problem, learning_rate=(1.0, 4.0))
    planned = plan_tuning("dp_sgd", settings, problem, Search(mean=3.0), Target(20.0, 1e-4))
    weights = run(planned, objective).weights
    assert weights.shape == (9,)
    assert right(objective, np.eye(3).ravel(), problem) == 300.0
    assert right(objective, -np.eye(3).ravel(), problem) == 0.0
    assert right(objective, weights, problem) > 200


def test_an_adaptive_training_is_a_cap_and_a_planned_one_a_list() -> None:
    problem = problem_of()
    for name, cap in (("dp_sgd", False), ("dp_agd", True)):
        one = Candidate({}, {}, problem)
        [law] = list(plan_tuning(name, [one], problem, Search(), Target(1.0, 1e-4)).events)
        assert [trial.cap for trial in law.trials] == [cap]  # type: ignore[attr-defined]


def test_right_counts_signs_as_labels_are_predicted() -> None:
    X = np.array([[0.5], [0.0], [-0.5], [-5.0]])
    objective = LinearObjective(X, np.array([1.0, 1.0, 1.0, -1.0]), Logistic())
    assert right(objective, np.array([1.0]), problem_of(n=4, dimension=1)) == 3.0
    assert right(objective, np.array([-1.0]), problem_of(n=4, dimension=1)) == 2.0


def test_the_score_takes_its_share_of_a_trial() -> None:
    planned = planned_of(problem_of(), Search(share=0.2))
    [law] = list(planned.events)
    [trial] = law.trials  # type: ignore[attr-defined]
    score = [
        item for item in trial.mechanisms if isinstance(item, Gaussian) and item.sensitivity == 1.0
    ]
    share = score[-1].rdp(ORDERS) / trial.rdp(ORDERS)
    assert share == pytest.approx(np.full(len(ORDERS), 0.2), abs=0.03)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"target": Target(1.0, 1e-4, accountant="pld")},
            "auto, rdp or pure for a tuned training, got accountant='pld'",
        ),
        ({"target": Target(1.0, 1e-4, accountant="gdp")}, "got accountant='gdp'"),
        ({"settings": []}, "at least one setting"),
        ({"problem": {"unit": "user"}}, "unit record to tune, got kind='linear' and unit='user'"),
        (
            {"problem": {"kind": "network"}},
            "linear model and unit record to tune, got kind='network'",
        ),
        ({"name": "non_private", "settings": [{}]}, "private algorithm to tune"),
        ({"settings": [{"steps": 0}]}, "steps"),
        ({"settings": [{"stepz": 1}]}, "did you mean 'steps'"),
        ({"search": lambda: Search("poisson", eta=1.0)}, "no eta for the Poisson law"),
        ({"search": lambda: Search("binomial")}, "negative_binomial"),
        ({"search": lambda: Search(share=1.0)}, "share"),
        ({"search": lambda: Search(mean=0.5)}, "above 1 and at most 500"),
    ],
)
def test_what_cannot_be_tuned_is_refused(change: dict[str, Any], words: str) -> None:
    problem = problem_of(**change.get("problem", {}))
    settings = [Candidate({}, one, problem) for one in change.get("settings", [{"steps": 4}])]
    with pytest.raises(DPFlowsError, match=words) as raised:
        search = change.get("search", Search)()
        plan_tuning(
            change.get("name", "dp_sgd"),
            settings,
            problem,
            search,
            change.get("target", Target(1.0, 1e-4)),
        )
    assert isinstance(raised.value, InputError) and "\n" not in str(raised.value)


def test_stored_events_of_a_tuned_run_are_priced_again_bit_for_bit() -> None:
    events = planned_of(problem_of(), steps=(2, 8), noise="discrete").events
    again = Events.from_json(events.to_json())
    np.testing.assert_array_equal(again.price(), events.price())
    np.testing.assert_array_equal(again.price("replace_one"), events.price("replace_one"))
    assert again == replace(events)
