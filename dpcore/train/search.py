"""Hyper-parameters selected on the records, and paid for: the best of a random number of trials is
one release.

A trial draws one of the settings, trains with it and releases how many training records the model
gets right, with noise. The number of trials is secret and random, and only model and setting of the
trial with the highest score leave. The price of the whole is ``dpcore.mechanisms.repeated``:
Papernot & Steinke (2022), Theorem 2 or 6, for the dearest setting. Everything that follows from the
selected setting later is post-processing of that one charge, a training with it too: what that one
releases is charged for itself, the choice of its setting is not charged again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget, open_door
from dpcore.accounting.calibrate import (
    calibrate,
    calibrated_gaussian,
    check_limits,
    planned_events,
    with_multiplier,
)
from dpcore.accounting.events import Events
from dpcore.accounting.limits import Limit, Target, target_among
from dpcore.algorithms.base import Trainer
from dpcore.errors import (
    AssumptionNotMet,
    InputError,
    require_below_one,
    require_choice,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.mechanisms.repeated import Composition, Repeated, RepeatNegativeBinomial, RepeatPoisson
from dpcore.problem import Adjacency, Problem, Requires
from dpcore.train.planning import Planned, plan

DISTRIBUTIONS = ("negative_binomial", "poisson")
# Cells of a score: below 0 and from 0 on, which is where a label is predicted.
SIDES = np.array([-1.0, 0.0, 1.0])
# One record more, fewer or other changes the number of right predictions by at most one, under
# either relation.
SCORE_SENSITIVITY = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting that a trial may draw: the names and ``values`` that differ, all ``parameters``,
    and its problem.

    ``part``: which of the objective's ``parts`` it trains on, the same records in other columns;
    None: on itself.
    """

    values: Mapping[str, Any]
    parameters: Mapping[str, Any]
    problem: Problem
    part: int | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """How many trials: the law of K >= 1, its ``mean``, ``eta`` of the negative binomial law (0,
    which None stands for: logarithmic, often a single trial; 1: geometric); and the ``share`` of a
    trial's Rényi cost that its score takes.

    Up to a mean of about 8 Poisson is the cheapest for Gaussian trials on all rows, and it is never
    far from its mean.
    """

    distribution: str = "poisson"
    mean: float = 6.0
    eta: float | None = None
    share: float = 0.05

    def __post_init__(self) -> None:
        require_choice(DISTRIBUTIONS, distribution=self.distribution)
        require_positive(mean=self.mean, share=self.share)
        require_below_one(share=self.share)
        if self.distribution == "poisson" and self.eta is not None:
            raise InputError(
                f"Expected no eta for the Poisson law, got eta={self.eta!r}; leave it out, or use "
                "negative_binomial."
            )

    def law(self, trials: tuple[Composition, ...]) -> Repeated:
        """The release that repeats and selects among ``trials``."""
        if self.distribution == "poisson":
            return RepeatPoisson.of_mean(trials, self.mean)
        return RepeatNegativeBinomial.of_mean(trials, self.mean, self.eta or 0.0)


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate with its algorithm, calibrated as if it ran alone for the whole target."""

    values: Mapping[str, Any]
    algorithm: Trainer
    problem: Problem
    part: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    """K trials, K random: each draws one of the settings uniformly, trains with it, and counts the
    training records that its model gets right, with Gaussian noise. The model with the highest
    noisy count is the result.

    A count moves by at most 1 when a record is added, removed or replaced. The price of the whole
    is that of one trial (the largest Rényi curve of the settings, each with its count) and of
    repeating it: Papernot & Steinke (2022), Theorem 2 (truncated negative binomial law) or Theorem
    6 (Poisson law, given K >= 1). Conditions: K, the draws of settings and the public seed do not
    depend on the records, trials are identically distributed, and neither K nor any other trial is
    released.

    ``noise_multiplier`` is the factor on the noise of every setting, over what it would need alone.
    """

    adaptive: ClassVar[bool] = False
    private: ClassVar[bool] = True
    releases: ClassVar[str] = (
        "the setting of the selected trial; nothing of other trials, nor how many there were"
    )

    settings: tuple[Trial, ...]
    search: Search
    score: Gaussian
    noise: str = "rounded"
    noise_multiplier: float = 1.0
    selected: int | None = None

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)

    @property
    def name(self) -> str:
        """That of the algorithm that is tuned."""
        return self.settings[0].algorithm.name

    @property
    def argument(self) -> str:
        """Why a record moves a release of a trial by no more than its sensitivity."""
        return self.settings[0].algorithm.argument

    @property
    def requires(self) -> Requires:
        """What the algorithm that is tuned needs."""
        return self.settings[0].algorithm.requires

    @property
    def asks(self) -> frozenset[str]:
        """What the algorithm that is tuned asks of records."""
        return self.settings[0].algorithm.asks

    @property
    def adjacencies(self) -> frozenset[Adjacency]:
        """Those of the algorithm that is tuned."""
        return self.settings[0].algorithm.adjacencies

    @property
    def calibrates(self) -> bool:
        """Whether every setting does, since any may be selected."""
        return all(setting.algorithm.calibrates for setting in self.settings)

    @property
    def hidden_noise(self) -> str:
        """A search keeps one of its trials, and which says something about the noise in it."""
        return (
            "the model was chosen among trials by a noisy score, which depends on the noise in it"
        )

    def marginals(self, problem: Problem, first: Any) -> dict[str, Array]:
        """What the trials release on the way is not published."""
        return {}

    def weight_noise(self, problem: Problem) -> float | None:
        """See ``hidden_noise``."""
        return None

    def advice(self, problem: Problem) -> str:
        """The first warning of a setting."""
        found = (self._noisy(setting).advice(setting.problem) for setting in self.settings)
        return next((text for text in found if text), "")

    def check(self, problem: Problem) -> None:
        """What every setting asks."""
        for setting in self.settings:
            self._noisy(setting).check(setting.problem)

    def outline(self, problem: Problem) -> list[dict[str, Any]]:
        """A search has no phases of its own."""
        return []

    def plan(self, problem: Problem) -> list[Mechanism]:
        """One release: the selection among the settings' distinct prices."""
        priced = (self._price(setting, problem) for setting in self.settings)
        return [self.search.law(tuple(dict.fromkeys(priced)))]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the weights of the best trial; its setting is noted as ``setting``."""
        [selection] = self.plan(problem)
        seed = int(rng.integers(2**63))
        index, weights = budget.release(selection, lambda batch: partial(self.trial, batch, seed))
        budget.note(setting=index)
        return np.asarray(weights)

    def trial(
        self, batch: Any, seed: int, secret: np.random.Generator
    ) -> tuple[float, tuple[int, Array]]:
        """One trial on the leased ``batch``: (score, (index of the setting, weights)).

        Every trial has the same public ``seed``: trials must be identically distributed.
        """
        index = int(secret.integers(len(self.settings)))
        part = self.settings[index].part
        rows = batch if part is None else batch.parts[part]
        door = partial(open_door, records=rows, secret=secret, noise=self.noise)
        return self.attempt(index, door, np.random.default_rng(seed))

    def attempt(
        self, index: int, door: Callable[..., Any], rng: np.random.Generator
    ) -> tuple[float, tuple[int, Array]]:
        """Train setting ``index`` and score its model, through doors for what a trial is priced
        for.

        A model that is not finite has the least score, which follows from what the trial released.
        """
        setting = self.settings[index]
        algorithm, problem = self._noisy(setting), setting.problem
        with np.errstate(all="ignore"):  # a warning would tell something about a losing trial
            weights = algorithm.fit(
                problem, door(self._training(setting), adaptive=algorithm.adaptive), rng
            )
            noisy = door(self._scoring(problem)).release(
                self._score, lambda data: right(data, weights, problem)
            )
        return (float(noisy) if np.all(np.isfinite(weights)) else -inf), (index, weights)

    def parameters(self, problem: Problem) -> dict[str, Any]:
        """What will be used, by name: of the selected setting once there is one, else of all (lists
        where they differ).

        Under ``tuning`` what was searched and how; the number of trials is not known here, nor
        anywhere else.
        """
        chosen = self.settings
        if self.selected is not None:
            chosen = (self.settings[self.selected],)
        each = [self._noisy(setting).parameters(setting.problem) for setting in chosen]
        shown = {
            key: value
            if all(other[key] == value for other in each)
            else [other[key] for other in each]
            for key, value in each[0].items()
        }
        return shown | {"tuning": self.words(problem)}

    def words(self, problem: Problem) -> dict[str, Any]:
        """Grid, law of the trials and noise of the score as plain values."""
        [law] = self.plan(problem)
        assert isinstance(law, Repeated)
        names = self.settings[0].values
        found = {
            "grid": {
                name: list(dict.fromkeys(setting.values[name] for setting in self.settings))
                for name in names
            },
            "settings": len(self.settings),
            "distribution": self.search.distribution,
            "eta": getattr(law, "eta", None),
            "expected_trials": law.mean,
            "score": "right predictions on the training records",
            "score_noise": self._score.sigma,
            "noise_factor": self.noise_multiplier,
        }
        if self.selected is not None:
            found["selected"] = dict(self.settings[self.selected].values)
        return found

    @property
    def _score(self) -> Gaussian:
        return replace(self.score, sigma=self.score.sigma * self.noise_multiplier)

    def _noisy(self, setting: Trial) -> Trainer:
        multiplier = setting.algorithm.noise_multiplier * self.noise_multiplier
        return with_multiplier(setting.algorithm, multiplier)

    def _training(self, setting: Trial) -> Events:
        return planned_events(self._noisy(setting), setting.problem, self.noise)

    def _scoring(self, problem: Problem) -> Events:
        return Events.of(
            [self._score.with_noise(self.noise)], adjacency=problem.adjacency, unit=problem.unit
        )

    def _price(self, setting: Trial, problem: Problem) -> Composition:
        trained = planned_events(self._noisy(setting), setting.problem).then(
            Events.of([self._score], adjacency=problem.adjacency, unit=problem.unit)
        )
        mechanisms, counts = zip(*trained.counts, strict=True)
        return Composition(mechanisms, counts, setting.algorithm.adaptive)


def right(data: Any, weights: Array, problem: Problem) -> float:
    """How many records ``weights`` predict right: the sign of the score, or the class of largest
    score.
    """
    if problem.outputs > 1:
        return float(data.right_count(weights))
    counts = data.score_counts(weights, SIDES)
    return float(counts[0, 1] + counts[1, 0])


def plan_tuning(
    name: str,
    candidates: Sequence[Candidate],
    problem: Problem,
    search: Search,
    *limits: Limit,
    preset: str | None = None,
    noise: str = "rounded",
) -> Planned:
    """Plan a tuned training from public facts; no record is read.

    Every setting, and the score, is calibrated alone: the score to sqrt(share) epsilon, the
    training to sqrt(1 - share) epsilon of the target, which makes the score about ``share`` of a
    trial's Rényi cost. One factor on all noise is then calibrated so that the whole meets all
    ``limits``. Raises ``InputError`` and ``BudgetExceeded`` as ``plan``.
    """
    if problem.kind != "linear" or problem.unit != "record":
        raise AssumptionNotMet(
            f"Expected a linear model and unit record to tune, got kind={problem.kind!r} and "
            f"unit={problem.unit!r}: the score counts single records that such a model gets right; "
            "fix the parameters."
        )
    target = target_among(limits)
    if target is None or not candidates:
        raise InputError("Expected a target and at least one setting to tune, got none; name both.")
    if target.accountant not in ("auto", "rdp", "pure"):
        raise InputError(
            "Expected accountant auto, rdp or pure for a tuned training, got "
            f"accountant={target.accountant!r}: selection among trials is proved for Rényi curves; "
            "use accountant='auto'."
        )
    alone = replace(target, epsilon=target.epsilon * sqrt(1.0 - search.share), accountant="rdp")
    least: dict[Events, float] = {}
    settings = tuple(_setting(name, one, alone, preset, noise, least) for one in candidates)
    scored = replace(target, epsilon=target.epsilon * sqrt(search.share), accountant="rdp")
    score = calibrated_gaussian(SCORE_SENSITIVITY, scored, problem.adjacency)
    tuned: Any = Tuned(settings=settings, search=search, score=score, noise=noise)
    tuned = calibrate(tuned, problem, *limits, noise=noise)
    events = planned_events(tuned, problem, noise)
    check_limits(events, *limits)
    return Planned(tuned.name, tuned, problem, events, tuple(limits), preset, "", noise)


def _setting(
    name: str,
    candidate: Candidate,
    target: Target,
    preset: str | None,
    noise: str,
    least: dict[Events, float],
) -> Trial:
    """A candidate with its own least noise; ``least`` keeps that of settings of equal releases."""
    first = plan(name, dict(candidate.parameters), candidate.problem, preset=preset, noise=noise)
    algorithm = first.algorithm
    if not algorithm.private:
        raise AssumptionNotMet(
            f"Expected a private algorithm to tune, got {first.name!r}, which has no guarantee."
        )
    if first.events not in least:
        calibrated = calibrate(algorithm, candidate.problem, target, noise=noise)
        least[first.events] = calibrated.noise_multiplier
    return Trial(
        candidate.values,
        with_multiplier(algorithm, least[first.events]),
        candidate.problem,
        candidate.part,
    )


def select(planned: Planned, notes: Sequence[Mapping[str, float]]) -> Planned:
    """``planned`` with the setting that ``notes`` of its run name; itself where it is no tuned
    training.
    """
    if not isinstance(planned.algorithm, Tuned):
        return planned
    index = int(next(note["setting"] for note in notes if "setting" in note))
    return replace(planned, algorithm=replace(planned.algorithm, selected=index))
