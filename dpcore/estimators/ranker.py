"""scikit-learn estimator of private learning to rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpcore.accounting.limits import Allowance, Limit, Target
from dpcore.errors import InputError, unknown_name
from dpcore.estimators.base import PrivateEstimator, Spent
from dpcore.identity import unit_codes
from dpcore.losses import Array
from dpcore.problem import Adjacency
from dpcore.ranking.metrics import mean_average_precision
from dpcore.ranking.model import LOSSES, RankingModel
from dpcore.ranking.sessions import Documents, Sessions, offsets_of
from dpcore.train import Planned, check_public_facts, plan, run


class DPRanker(PrivateEstimator):
    """A ranker trained under (epsilon, delta)-differential privacy for one session's labels, or one whole session.

    ``adjacency``: ``replace_labels`` (documents are public), ``add_remove`` or ``replace_one`` (documents are private).
    ``algorithm``: ``auto`` is ``listnet_one_shot`` where documents are public and ListNet with clipped sessions
    otherwise; by name ``privbr``, ``best_feature``, ``dp_sgd``, ``non_private``, for whole sessions ``dp_adam`` too.
    ``loss``: ``listnet``,
    ``listmle``, ``bayesrank``, or ``auto`` (bayesrank for privbr); ``scorer``: ``linear`` or ``mlp`` (with ``hidden``,
    ``activation``). ``features``: ``raw``, within-session ``rank``, or both. ``n`` is the declared nominal number of
    sessions under add/remove; without it the count of the data is taken, and ``releasable_`` is false. ``budget`` is an
    ``Allowance`` that outlives fits. Other keyword arguments go to the algorithm. The noise comes from the operating
    system; ``random_state`` seeds the public start alone.
    """

    def __init__(
        self,
        algorithm: str = "auto",
        loss: str = "auto",
        loss_parameters: dict[str, Any] | None = None,
        scorer: str = "linear",
        epsilon: float = 1.0,
        delta: float = 1e-5,
        adjacency: str = "replace_labels",
        features: tuple[str, ...] = ("raw", "rank"),
        hidden: tuple[int, ...] = (256,),
        activation: str = "relu",
        l2: float | None = None,
        n: int | None = None,
        budget: Allowance | None = None,
        random_state: Any = None,
        preset: str | None = None,
        **algorithm_parameters: Any,
    ) -> None:
        self.algorithm = algorithm
        self.loss = loss
        self.loss_parameters = loss_parameters
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

    def fit(self, X: Any, y: Any, groups: Any = None) -> DPRanker:
        """Train on documents ``X`` (rows, p), relevance labels ``y`` >= 0 and query ids ``groups``, in any order.

        Raises ``InputError`` for bad input and ``BudgetExceeded`` where the budget has no room; nothing is spent then.
        """
        if groups is None:
            raise InputError("Expected groups, the query id of every row, got groups=None; pass groups=query_ids.")
        model, algorithm, parameters = self._resolve()
        self.blocked_: tuple[str, ...] = ()
        if self.n is None and self._adjacency() is Adjacency.ADD_REMOVE:
            self._block("n was counted from the data; declare n, the nominal number of sessions")
        objective = model.objective(Sessions.from_rows(X, y, groups))
        problem = model.problem(objective, self._adjacency(), self.n, self.l2 or 0.0)
        limits: list[Limit] = [Target(self.epsilon, self.delta)]
        if self.budget is not None:
            limits.append(self.budget.room)
        planned = plan(algorithm, parameters, problem, *limits, preset=self.preset)
        check_public_facts(problem, objective)
        if self.budget is not None:
            self.budget.charge(planned.events)
        result = run(planned, objective, seed=check_random_state(self.random_state).randint(2**31 - 1))
        self.model_, self.weights_, self.planned_ = model, result.weights, planned
        self.events_, self.trace_, self.reason_ = planned.events, result.trace, planned.reason
        if self.scorer == "linear":
            self.coef_ = result.weights
        self.n_features_in_ = np.shape(X)[1]
        self.spent_ = self._spent(planned)
        return self

    def _spent(self, planned: Planned) -> Spent:
        target = planned.target
        accountant = target.accountant_of(planned.events) if target and planned.algorithm.private else "none"
        adjacency, unit = str(planned.problem.adjacency), planned.problem.unit
        return Spent(planned.spent_epsilon, self.delta, adjacency, unit, accountant, "cks")

    def _adjacency(self) -> Adjacency:
        try:
            return Adjacency(self.adjacency)
        except ValueError:
            raise unknown_name("adjacency", self.adjacency, [str(item) for item in Adjacency]) from None

    def _resolve(self) -> tuple[RankingModel, str, dict[str, Any]]:
        """The model, the algorithm and its parameters; from what the caller said alone."""
        name, parameters = self.algorithm, self._algorithm_parameters()
        model = RankingModel(
            features=self.features,
            scorer=self.scorer,
            hidden=self.hidden,
            activation=self.activation,
            seed=0 if self.scorer == "linear" else check_random_state(self.random_state).randint(2**31 - 1),
            loss=LOSSES.get(name, "listnet") if self.loss == "auto" else self.loss,
            loss_parameters={} if self.loss_parameters is None else self.loss_parameters,
        )
        return model, name, parameters

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """Scores of documents, higher is better; ``groups`` is needed where a feature is a rank within its session."""
        check_is_fitted(self, "weights_")
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.n_features_in_:
            raise InputError(f"Expected documents with {self.n_features_in_} features as in fit, got shape {X.shape}.")
        if groups is None:
            if "rank" in self.model_.features:
                raise InputError("Expected groups with rank features, got groups=None; pass the query id of every row.")
            groups = np.zeros(len(X))
        owner, _ = unit_codes(groups, "groups")
        order = np.argsort(owner, kind="stable")
        scores = np.empty(len(X))
        scores[order] = self.model_.scores(self.weights_, Documents(X[order], offsets_of(np.bincount(owner))))
        return scores

    predict = decision_function

    def score(self, X: Any, y: Any, groups: Any = None) -> float:
        """Mean average precision, queries without relevant documents left out. Internal where the rows are private."""
        return mean_average_precision(y, self.decision_function(X, groups), groups)
