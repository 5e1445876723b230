"""scikit-learn estimator of private learning to rank."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpcore.accounting.limits import Allowance, Limit, Target
from dpcore.algorithms import registry
from dpcore.errors import InputError, unknown_name
from dpcore.losses import Array
from dpcore.problem import Adjacency
from dpcore.ranking_losses import RankingLoss, make_ranking_loss
from dpcore.ranking_metrics import mean_average_precision
from dpcore.ranking_objective import SessionObjective
from dpcore.ranking_problem import ranking_problem
from dpcore.scorers import SCORERS, Scorer, make_scorer
from dpcore.sessions import FEATURES, Documents, Sessions
from dpcore.train import Planned, plan, run

# Clipped ListNet on [raw, rank] features: the setting that was best at every epsilon where documents are private.
CLIPPED_LISTNET: dict[str, Any] = {
    "steps": 10,
    "clip_norm": 0.3,
    "learning_rate": 1.0,
    "momentum": 0.8,
    "schedule": "linear",
    "average": 0.5,
}
# Loss that an algorithm is meant for, where none is named.
LOSSES = {"privbr": "bayesrank"}


@dataclass(frozen=True)
class Recipe:
    """What ``auto`` stands for."""

    algorithm: str
    parameters: dict[str, Any]
    reason: str


def ranking_recipe(adjacency: Adjacency | str, scorer: str = "linear") -> Recipe:
    """The default for this adjacency: one noisy vector where documents are public, clipped steps otherwise."""
    if Adjacency(adjacency) is Adjacency.REPLACE_LABELS and scorer == "linear":
        return Recipe("listnet_one_shot", {}, "documents are public: labels enter a linear ListNet through one vector")
    return Recipe("dp_sgd", CLIPPED_LISTNET, "documents are private or the scorer is not linear: clipped ListNet")


class DPRanker(BaseEstimator):
    """A ranker trained under (epsilon, delta)-differential privacy for one session's labels, or one whole session.

    ``adjacency``: ``replace_labels`` (documents are public), ``add_remove`` or ``replace_one`` (documents are private).
    ``algorithm``: ``auto`` is ``listnet_one_shot`` where documents are public and ListNet with clipped sessions
    otherwise; ``privbr``, ``best_feature``, ``dp_sgd``, ``dp_adam`` and ``non_private`` by name. ``loss``: ``listnet``,
    ``listmle`` or ``bayesrank``; ``scorer``: ``linear`` or ``mlp`` (with ``hidden``, ``activation``). ``features``:
    ``raw``, within-session ``rank``, or both. ``n`` is the declared nominal number of sessions under add/remove;
    without it the count of the data is taken, and ``releasable_`` is false. ``budget`` is an ``Allowance`` that
    outlives fits. Other keyword arguments go to the algorithm. The noise comes from the operating system;
    ``random_state`` seeds the public start alone.
    """

    def __init__(
        self,
        algorithm: str = "auto",
        loss: str | None = None,
        scorer: str = "linear",
        epsilon: float = 1.0,
        delta: float = 1e-5,
        adjacency: str = "replace_labels",
        features: tuple[str, ...] = ("raw", "rank"),
        hidden: tuple[int, ...] = (256,),
        activation: str = "relu",
        l2: float = 0.0,
        n: int | None = None,
        budget: Allowance | None = None,
        random_state: Any = None,
        preset: str | None = None,
        **algorithm_parameters: Any,
    ) -> None:
        self.algorithm = algorithm
        self.loss = loss
        self.scorer = scorer
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.features = features
        self.hidden = hidden
        self.activation = activation
        self.l2 = l2
        self.n = n
        self.budget = budget
        self.random_state = random_state
        self.preset = preset
        for name, value in algorithm_parameters.items():
            setattr(self, name, value)

    def _algorithm_parameters(self) -> dict[str, Any]:
        own = set(self._get_param_names())
        return {k: v for k, v in vars(self).items() if k not in own and not k.startswith("_") and not k.endswith("_")}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters of the estimator and of its algorithm: ``clone`` and searches keep both."""
        return super().get_params(deep) | self._algorithm_parameters()

    def set_params(self, **params: Any) -> DPRanker:
        """Set parameters of the estimator or of its algorithm; raises ``UnknownName`` with near misses."""
        own, known = set(self._get_param_names()), {f.name for cls in registry.values() for f in fields(cls)}
        for name, value in params.items():
            if name not in own | known:
                raise unknown_name("parameter of DPRanker", name, own | known)
            setattr(self, name, value)
        return self

    def fit(self, X: Any, y: Any, groups: Any = None) -> DPRanker:
        """Train on documents ``X`` (rows, p), relevance labels ``y`` >= 0 and query ids ``groups``, in any order.

        Raises ``InputError`` for bad input and ``BudgetExceeded`` where the budget has no room; nothing is spent then.
        """
        if groups is None:
            raise InputError("Expected groups, the query id of every row, got groups=None; pass groups=query_ids.")
        sessions = Sessions.from_rows(X, y, groups).features(*self._kinds())
        planned, objective = self._plan(sessions)
        if self.budget is not None:
            self.budget.charge(planned.events)
        result = run(planned, objective, seed=check_random_state(self.random_state).randint(2**31 - 1))
        self.weights_, self.planned_, self.scorer_ = result.weights, planned, objective.public.scorer
        self.events_, self.trace_ = planned.events, result.trace
        self.coef_ = result.weights if self.scorer == "linear" else None
        self.n_features_in_ = np.shape(X)[1]
        target = planned.target
        self.spent_ = {
            "epsilon": planned.spent_epsilon,
            "delta": self.delta,
            "adjacency": str(planned.problem.adjacency),
            "unit": planned.problem.unit,
            "accountant": target.accountant_of(planned.events) if target and planned.algorithm.private else "none",
        }
        counted = self.n is None and planned.problem.adjacency is Adjacency.ADD_REMOVE
        self.blocked_ = ("n was counted from the data; declare n, the nominal number of sessions",) if counted else ()
        return self

    def _kinds(self) -> tuple[str, ...]:
        kinds = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        if not kinds or any(kind not in FEATURES for kind in kinds):
            raise InputError(f"Expected features among {', '.join(FEATURES)}, got features={self.features!r}.")
        return kinds

    def _plan(self, sessions: Sessions) -> tuple[Planned, SessionObjective]:
        """Plan from parameters and public facts alone."""
        try:
            adjacency = Adjacency(self.adjacency)
        except ValueError:
            raise unknown_name("adjacency", self.adjacency, [str(item) for item in Adjacency]) from None
        name, parameters, self.reason_ = self.algorithm, self._algorithm_parameters(), ""
        if name == "auto":
            recipe = ranking_recipe(adjacency, self.scorer)
            name, parameters, self.reason_ = recipe.algorithm, recipe.parameters | parameters, recipe.reason
        loss, scorer = self._loss(name), self._scorer(sessions.documents.dimension)
        problem = ranking_problem(sessions, loss, scorer, adjacency=adjacency, n=self._count(adjacency), l2=self.l2)
        limits: list[Limit] = [Target(self.epsilon, self.delta)]
        if self.budget is not None:
            limits.append(self.budget.room)
        return plan(name, parameters, problem, *limits, preset=self.preset), SessionObjective(sessions, loss, scorer)

    def _count(self, adjacency: Adjacency) -> int | None:
        """The declared n, which only add/remove needs: elsewhere the exact count is public."""
        return self.n if adjacency is Adjacency.ADD_REMOVE else None

    def _loss(self, algorithm: str) -> RankingLoss:
        return make_ranking_loss(LOSSES.get(algorithm, "listnet") if self.loss is None else self.loss)

    def _scorer(self, inputs: int) -> Scorer:
        if self.scorer not in SCORERS:
            raise unknown_name("scorer", self.scorer, SCORERS)
        if self.scorer == "linear":
            return make_scorer("linear", inputs)
        start = check_random_state(self.random_state).randint(2**31 - 1)
        return make_scorer(self.scorer, inputs, hidden=self.hidden, activation=self.activation, seed=int(start))

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """Scores of documents, higher is better; ``groups`` is needed where a feature is a rank within its session."""
        check_is_fitted(self, "weights_")
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.n_features_in_:
            raise InputError(f"Expected documents with {self.n_features_in_} features as in fit, got shape {X.shape}.")
        if self._kinds() == ("raw",):
            return self.scorer_.scores(self.weights_, X)
        if groups is None:
            raise InputError("Expected groups with rank features, got groups=None; pass the query id of every row.")
        _, owner = np.unique(np.asarray(groups), return_inverse=True)
        order = np.argsort(owner, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(owner)))
        scores = np.empty(len(X))
        scores[order] = self.scorer_.scores(self.weights_, Documents(X[order], offsets).features(*self._kinds()).X)
        return scores

    predict = decision_function

    def score(self, X: Any, y: Any, groups: Any = None) -> float:
        """Mean average precision, queries without relevant documents left out. Internal where the rows are private."""
        return mean_average_precision(y, self.decision_function(X, groups), groups)

    @property
    def releasable_(self) -> bool:
        """Whether nothing but charged mechanisms read the private part of the sessions."""
        check_is_fitted(self, "weights_")
        return not self.blocked_ and self.planned_.algorithm.private
