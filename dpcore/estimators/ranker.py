"""scikit-learn estimator of private learning to rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpcore.accounting.limits import Allowance, Limit, Target
from dpcore.errors import InputError, require_word
from dpcore.estimators.base import PrivateEstimator
from dpcore.estimators.rows import named_rows, short
from dpcore.losses import Array
from dpcore.problem import Adjacency
from dpcore.ranking.metrics import mean_average_precision
from dpcore.ranking.model import LOSSES, RankingModel
from dpcore.ranking.sessions import Documents, Sessions, by_query, offsets_of, query_ids
from dpcore.train import plan


class DPRanker(PrivateEstimator):
    """A ranker trained under (epsilon, delta)-differential privacy for one session's labels, or one
    whole session.

    ``adjacency``: ``replace_labels`` (documents are public), ``add_remove`` or ``replace_one``
    (documents are private).
    ``algorithm``: ``auto`` is ``listnet_one_shot`` where documents are public and ListNet with
    clipped sessions otherwise; by name ``privbr``, ``best_feature``, ``dp_sgd``, ``non_private``,
    for whole sessions ``dp_adam`` too.
    ``loss``: ``listnet``,
    ``listmle``, ``bayesrank``, or ``auto`` (bayesrank for privbr); ``scorer``: ``linear`` or
    ``mlp`` (with ``hidden``, ``activation``). ``features``: ``raw``, within-session ``rank``, or
    both. ``n`` is the declared nominal number of sessions under add/remove; without it the count of
    the data is taken, and ``releasable_`` is false. ``budget`` is an ``Allowance`` that outlives
    fits. Other keyword arguments go to the algorithm. The noise comes from the operating system;
    ``random_state`` seeds the public start alone.

    ``coef_`` (p,) exists for a linear scorer of ``raw`` features alone, where X @ coef_ are the
    scores; otherwise the scores are not linear in the columns, and ``weights_`` are the parameters
    of the scorer.
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
        """Train on documents ``X`` (rows, p), relevance labels ``y`` >= 0 and query ids ``groups``,
        in any order.

        Raises ``InputError`` for bad input and ``BudgetExceeded`` where the budget has no room;
        nothing is spent then.
        """
        if groups is None:
            raise InputError(
                "Expected groups, the query id of every row, got groups=None; pass "
                "groups=query_ids."
            )
        self._check_parameters()
        with self._kept_on_failure():
            X, y = self._documents(X, y=y, y_numeric=True)
            model, algorithm, parameters = self._resolve()
            blocked: tuple[str, ...] = ()
            if self.n is None and self._relation() is Adjacency.ADD_REMOVE:
                blocked = (
                    "n was counted from the data; declare n, the nominal number of sessions",
                )
            objective = model.objective(Sessions.from_rows(X, y, groups))
            problem = model.problem(objective, self._relation(), self.n, self.l2 or 0.0)
            limits: list[Limit] = [Target(self.epsilon, self.delta)]
            if self.budget is not None:
                limits.append(self.budget.room)
            planned = plan(algorithm, parameters, problem, *limits, preset=self.preset)
            fitted = {"model_": model, "reason_": planned.reason, "_blocked": blocked}
            self.trace_ = self._run(planned, objective, fitted).trace
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        require_word(scorer=self.scorer, activation=self.activation)
        if self.loss_parameters is not None and not isinstance(self.loss_parameters, Mapping):
            raise InputError(
                "Expected loss_parameters by name, got "
                f"loss_parameters={short(self.loss_parameters)}; pass a dict."
            )
        for name in ("features", "hidden"):
            value = getattr(self, name)
            if not isinstance(value, str | list | tuple) or (
                name == "hidden" and isinstance(value, str)
            ):
                raise InputError(f"Expected a list for {name}, got {name}={short(value)}.")

    def _resolve(self) -> tuple[RankingModel, str, dict[str, Any]]:
        """The model, the algorithm and its parameters; from what the caller said alone."""
        name, parameters = self.algorithm, self._algorithm_parameters()
        model = RankingModel(
            features=self.features,
            scorer=self.scorer,
            hidden=self.hidden,
            activation=self.activation,
            seed=0
            if self.scorer == "linear"
            else check_random_state(self.random_state).randint(2**31 - 1),
            loss=LOSSES.get(name, "listnet") if self.loss == "auto" else self.loss,
            loss_parameters={} if self.loss_parameters is None else self.loss_parameters,
        )
        return model, name, parameters

    def _documents(self, X: Any, **options: Any) -> Any:
        """Documents (and labels) as dense arrays of finite floats, columns in the order of fit."""
        try:
            return validate_data(self, named_rows(X), dtype=np.float64, **options)
        except ValueError as error:
            raise InputError(str(error)) from None

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """Scores of documents, higher is better; ``groups`` is needed where a feature is a rank
        within its session.
        """
        check_is_fitted(self, "weights_")
        X = self._documents(X, reset=False)
        if groups is None:
            if "rank" in self.model_.features:
                raise InputError(
                    "Expected groups with rank features, got groups=None; pass the query id of "
                    "every row."
                )
            groups = np.zeros(len(X))
        self._note_scored()
        order, lengths = by_query(query_ids(groups, len(X)))
        scores = np.empty(len(X))
        scores[order] = self.model_.scores(self.weights_, Documents(X[order], offsets_of(lengths)))
        return scores

    predict = decision_function

    def score(self, X: Any, y: Any, groups: Any = None) -> float:
        """Mean average precision, queries without relevant documents left out. Internal where the
        rows are private.
        """
        return mean_average_precision(y, self.decision_function(X, groups), groups)

    def _coefficients(self) -> tuple[Any, Any]:
        return self.weights_, 0.0

    def _no_coefficients(self) -> str:
        if self.model_.scorer == "linear" and self.model_.features == ("raw",):
            return ""
        return (
            "The scores are not linear in the columns as they are, so no coefficients of these "
            "give what predict gives: use predict, or scorer='linear' and features='raw'; weights_ "
            "are those of the scorer."
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        return tags
