"""What the estimators share: parameters of the chosen algorithm, the plan, the charge and the run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpcore.accounting.limits import Allowance, Target
from dpcore.algorithms import registry
from dpcore.auto import resolve
from dpcore.bounding import Matrix
from dpcore.errors import BudgetExceeded, InputError, unknown_name
from dpcore.estimators.rows import RowMap, as_blocks
from dpcore.losses import Array, Loss
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.selection import ranked_columns
from dpcore.train import Planned, check_public_facts, plan, run

# Ridge of an algorithm whose proof needs strong convexity, where the caller named none.
LEAST_RIDGE = 1e-3
# A fit that the rest of a budget would press below this share of its epsilon is refused: it would be noise.
LEAST_SHARE = 0.5
# Share of the values that may be cut to their bounds without a word.
MUCH_CLIPPED = 0.05


class PrivacyWarning(UserWarning):
    """Something was read from private data without a charge, or public facts say that little can be learned."""


class InternalWarning(UserWarning):
    """What the exact numbers in ``internal_`` say about the fit: for the operator's eyes alone."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The guarantee of one fit, stated whole."""

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    accountant: str
    conversion: str

    def __str__(self) -> str:
        return (
            f"({self.epsilon:.6g}, {self.delta:g})-differential privacy for one {self.unit} under {self.adjacency} "
            f"(accountant {self.accountant}, conversion {self.conversion})"
        )


class PrivateEstimator(BaseEstimator):
    """Base of the estimators. Extra keyword arguments are parameters of the algorithm, visible in ``get_params``."""

    algorithm: str
    loss: str
    epsilon: float
    delta: float
    adjacency: str
    norm_bound: float
    l2: float | None
    l1: float
    n: int | None
    budget: Allowance | None
    random_state: Any
    intercept: bool | str
    blocks: Any
    bounds: Any
    preset: str | None

    def _algorithm_parameters(self) -> dict[str, Any]:
        """The parameters given for the algorithm, by name."""
        own = set(self._get_param_names())
        return {k: v for k, v in vars(self).items() if k not in own and not k.startswith("_") and not k.endswith("_")}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters of the estimator and of its algorithm: ``clone`` and searches keep both."""
        return super().get_params(deep) | self._algorithm_parameters()

    def set_params(self, **params: Any) -> PrivateEstimator:
        """Set parameters of the estimator or of its algorithm; raises ``UnknownName`` with near misses."""
        own = set(self._get_param_names())
        algorithm = params.get("algorithm", self.algorithm)
        known = algorithm_fields(algorithm)
        for name in params:
            if name not in own and name not in known and name not in self._algorithm_parameters():
                raise unknown_name(
                    f"parameter of {type(self).__name__} with algorithm {algorithm!r}", name, own | known
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.sparse = True
        return tags

    def _validated(self, X: Any, **options: Any) -> Any:
        """Rows (and labels) as arrays of finite floats, one shape for fit and predict."""
        return validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], **options)

    def _plan(self, X: Matrix, loss: Loss, outputs: int) -> tuple[Planned, RowMap]:
        """Problem and plan from parameters, the shape of the data, and nothing else."""
        if self.budget is not None and not isinstance(self.budget, Allowance):
            raise InputError(f"Expected budget to be an Allowance or None, got {type(self.budget).__name__}.")
        target = Target(self.epsilon, self.delta)
        blocks, d = as_blocks(self.blocks), X.shape[1]
        facts: dict[str, Any] = {"n": X.shape[0] if self.n is None else self.n, "loss": loss, "outputs": outputs}
        facts |= {"adjacency": self._relation(), "l1": self.l1, "l2": self.l2 or 0.0, "blocks": blocks}
        draft = Problem(dimension=d, norm_bound=self.norm_bound, **facts)
        name, parameters, reason = resolve(self.algorithm, self._algorithm_parameters(), draft, target)
        chosen = registry[name]
        by_blocks = chosen.bounds_rows_by == "blocks"
        rows = RowMap(d, self.norm_bound, by_blocks, blocks, self.intercept, self.bounds)
        if self.l2 is None:
            least = LEAST_RIDGE if chosen.requires.strongly_convex else 0.0
            facts["l2"] = max(chosen.default_l2, least)
        problem = Problem(dimension=rows.dimension, norm_bound=rows.row_bound, intercept=rows.constant, **facts)
        limits = (target,) if self.budget is None else (target, self.budget.room)
        planned = plan(name, parameters, problem, *limits, preset=self.preset)
        self.reason_ = reason
        return planned, rows

    def _relation(self) -> Adjacency:
        try:
            return Adjacency(self.adjacency)
        except ValueError:
            raise unknown_name("adjacency", self.adjacency, [str(item) for item in Adjacency]) from None

    def _train(self, X: Matrix, y: Array, loss: Loss, outputs: int, objective: type[LinearObjective]) -> None:
        """Plan, check, charge, run; every refusal comes before the charge."""
        if self.n is None and self._relation() is Adjacency.ADD_REMOVE:
            self._block("n was counted from the data; declare n, the nominal number of records")
        planned, rows = self._plan(X, loss, outputs)
        mapped, _, counts = rows(X)
        sums = objective(mapped, y, loss)
        check_public_facts(planned.problem, sums)
        if self.budget is not None:
            if planned.spent_epsilon < LEAST_SHARE * self.epsilon:
                raise BudgetExceeded(
                    f"Expected room for epsilon={self.epsilon:g} in the budget, but what is left is enough for "
                    f"epsilon={planned.spent_epsilon:.3g}; lower epsilon, or end here.",
                    asked=self.epsilon,
                    left=planned.spent_epsilon,
                )
            self.budget.charge(planned.events)
        if planned.warning:
            warnings.warn(planned.warning, PrivacyWarning, stacklevel=3)
        if counts.get("clipped_values", 0) > MUCH_CLIPPED * X.shape[0] * X.shape[1]:
            share = counts["clipped_values"] / (X.shape[0] * X.shape[1])
            warnings.warn(
                f"{share:.0%} of the values lie outside {'[0, 1]' if self.bounds is None else 'bounds'} and were cut, "
                "which loses what they say: declare bounds=(low, high) that hold them. This share was counted on the "
                "records and must not leave.",
                InternalWarning,
                stacklevel=3,
            )
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        result = run(planned, sums, seed=seed)
        weights = result.weights.reshape(outputs, rows.dimension)
        self.coef_, self.intercept_ = rows.unmap(weights)
        self.weights_, self.rows_, self.planned_ = weights, rows, planned
        self.events_, self.trace_ = planned.events, result.trace
        self.internal_ = counts | {"records": X.shape[0]}
        target = planned.target
        self.spent_ = Spent(
            planned.spent_epsilon,
            self.delta,
            str(planned.problem.adjacency),
            planned.problem.unit,
            target.accountant_of(planned.events) if target and planned.algorithm.private else "none",
            "cks",
        )
        if self.l1 > 0 or registry[planned.name].selects:
            names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
            order = ranked_columns(self.coef_)
            self.ranked_features_ = names[order]
            self.selected_features_ = names[order[np.any(self.coef_ != 0.0, axis=0)[order]]]

    def _scores(self, X: Any) -> Array:
        """Scores (n, k) of the model for rows brought within the same bounds as in training."""
        check_is_fitted(self, "weights_")
        mapped, _, _ = self.rows_(self._validated(X, reset=False))
        return np.asarray(mapped @ self.weights_.T)

    def _block(self, reason: str) -> None:
        """Note why the fitted model must not be released."""
        self.blocked_ = (*getattr(self, "blocked_", ()), reason)

    @property
    def releasable_(self) -> bool:
        """Whether nothing but charged mechanisms read the records: then coefficients may leave, ``internal_`` never."""
        check_is_fitted(self, "weights_")
        return not self.blocked_ and self.planned_.algorithm.private


def algorithm_fields(name: Any) -> set[str]:
    """Parameters of an algorithm, or of any of them for ``auto`` and for a name that ``fit`` will refuse."""
    known = registry[name] if registry.knows(name) else None
    return {field.name for cls in ([known] if known else registry.values()) for field in fields(cls)}


def refuse_weights(unsupported: dict[str, Any]) -> None:
    """Raise ``InputError`` for sample weights and anything else that ``fit`` does not take."""
    for name in unsupported:
        if name == "sample_weight":
            raise InputError(
                "Expected no sample_weight, got one; a weight multiplies what one record can change, which no price "
                "here covers. Repeat nothing and drop the argument."
            )
        raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
