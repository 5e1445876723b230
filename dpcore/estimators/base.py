"""What the estimators share: parameters of the chosen algorithm, the plan, the charge and the
run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from dpcore.accounting.limits import Allowance, Target
from dpcore.algorithms import registry
from dpcore.errors import (
    BudgetExceeded,
    InputError,
    require_count,
    require_nonnegative,
    require_word,
    unknown_name,
)
from dpcore.estimators.fitted import FittedModel
from dpcore.estimators.rows import (
    RowMap,
    as_blocks,
    bounds_by_column,
    takes_sparse,
)
from dpcore.estimators.spent import guarantee
from dpcore.losses import Array, Loss
from dpcore.objective import LinearObjective, Objective
from dpcore.objective.rows import Matrix
from dpcore.penalties import ranked_columns
from dpcore.problem import Adjacency, Problem
from dpcore.train import Planned, Result, plan, run
from dpcore.train.planning import resolve

if TYPE_CHECKING:
    pass

# Ridge of an algorithm whose proof needs strong convexity, where the caller named none.
LEAST_RIDGE = 1e-3
# A fit that the rest of a budget would press below this share of its epsilon is refused: it would
# be noise.
LEAST_SHARE = 0.5
# Share of the values that may be cut to their bounds without a word.
MUCH_CLIPPED = 0.05


class PrivacyWarning(UserWarning):
    """Something was read from private data without a charge, or public facts say that little can be
    learned.
    """


class InternalWarning(UserWarning):
    """What the exact numbers in ``internal_`` say about the fit: for the operator's eyes alone."""


class PrivateEstimator(FittedModel):
    """Base of the estimators. Extra keyword arguments are parameters of the algorithm, visible in
    ``get_params``.
    """

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
        return {
            k: v
            for k, v in vars(self).items()
            if k not in own and not k.startswith("_") and not k.endswith("_")
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters of the estimator and of its algorithm: ``clone`` and searches keep both."""
        parameters: dict[str, Any] = super().get_params(deep) | self._algorithm_parameters()
        return parameters

    def set_params(self, **params: Any) -> PrivateEstimator:
        """Set parameters of the estimator or of its algorithm; raises ``UnknownName`` with near
        misses.
        """
        own = set(self._get_param_names())
        algorithm = params.get("algorithm", self.algorithm)
        known = algorithm_fields(algorithm)
        for name in params:
            if name not in own and name not in known and name not in self._algorithm_parameters():
                raise unknown_name(
                    f"parameter of {type(self).__name__} with algorithm {algorithm!r}",
                    name,
                    own | known,
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> Any:
        copy = super().__sklearn_clone__()
        copy._lineage = self._family()
        return copy

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.sparse = getattr(self, "bounds", None) is None or takes_sparse(
            self.bounds, self.intercept
        )
        return tags

    @contextmanager
    def _kept_on_failure(self) -> Iterator[None]:
        """A fit that fails before its model is stored leaves the estimator as it was, an earlier
        model with it.
        """
        self._family()
        self.__dict__.setdefault("_member", object())
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            if self.__dict__.get("weights_") is before.get("weights_"):
                self.__dict__ = before
            raise

    def _check_parameters(self) -> None:
        """Raise ``InputError`` in one line for a parameter of the wrong kind; others check the
        ranges.
        """
        for name in ("algorithm", "loss", "adjacency"):
            require_word(**{name: getattr(self, name)})
        if self.preset is not None:
            require_word(preset=self.preset)
        if self.n is not None:
            require_count(n=self.n)
        if self.l2 is not None:
            require_nonnegative(l2=self.l2)
        if self.budget is not None and not isinstance(self.budget, Allowance):
            raise InputError(
                f"Expected budget to be an Allowance or None, got {type(self.budget).__name__}."
            )

    def _plan(self, X: Matrix, loss: Loss, outputs: int) -> tuple[Planned, RowMap, str]:
        """Problem, plan and the reason for it from parameters, the shape of the data, and nothing
        else.
        """
        target = Target(self.epsilon, self.delta)
        blocks, d = as_blocks(self.blocks), X.shape[1]
        facts: dict[str, Any] = {
            "n": X.shape[0] if self.n is None else self.n,
            "loss": loss,
            "outputs": outputs,
        }
        facts |= {
            "adjacency": self._relation(),
            "l1": self.l1,
            "l2": self.l2 or 0.0,
            "blocks": blocks,
        }
        draft = Problem(dimension=d, norm_bound=self.norm_bound, **facts)
        name, parameters, reason = resolve(
            self.algorithm, self._algorithm_parameters(), draft, target
        )
        chosen = registry[name]
        by_blocks = chosen.bounds_rows_by == "blocks"
        names = getattr(self, "feature_names_in_", None)
        bounds = bounds_by_column(self.bounds, names)
        rows = RowMap(d, self.norm_bound, by_blocks, blocks, self.intercept, bounds)
        if self.l2 is None:
            least = LEAST_RIDGE if chosen.requires.strongly_convex else 0.0
            facts["l2"] = max(chosen.default_l2, least)
        problem = Problem(
            dimension=rows.dimension, norm_bound=rows.row_bound, intercept=rows.constant, **facts
        )
        limits = (target,) if self.budget is None else (target, self.budget.room)
        planned = plan(name, parameters, problem, *limits, preset=self.preset)
        return planned, rows, reason

    def _relation(self) -> Adjacency:
        try:
            return Adjacency(self.adjacency)
        except ValueError:
            raise unknown_name(
                "adjacency", self.adjacency, [str(item) for item in Adjacency]
            ) from None

    def _train(
        self,
        X: Matrix,
        y: Array,
        loss: Loss,
        outputs: int,
        objective: type[LinearObjective],
        fitted: dict[str, Any],
    ) -> None:
        """Plan, check, charge, run and store; ``fitted`` is what the model needs beside its
        weights.
        """
        blocked: tuple[str, ...] = fitted["_blocked"]
        if self.n is None and self._relation() is Adjacency.ADD_REMOVE:
            blocked += ("n was counted from the data; declare n, the nominal number of records",)
        planned, rows, reason = self._plan(X, loss, outputs)
        mapped, _, counts = rows(X)
        internal = counts | {"records": X.shape[0]}
        fitted = fitted | {
            "rows_": rows,
            "reason_": reason,
            "internal_": internal,
            "_blocked": blocked,
        }
        result = self._run(planned, objective(mapped, y, loss), fitted)
        self.weights_: Array = self.weights_.reshape(outputs, rows.dimension)
        self.trace_ = result.trace
        self.marginals_ = result.marginals
        if self.l1 > 0 or registry[planned.name].selects:
            coef, _ = rows.unmap(self.weights_)
            names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
            order = ranked_columns(coef)
            self.ranked_features_ = names[order]
            self.selected_features_ = names[order[np.any(coef != 0.0, axis=0)[order]]]
        self._warn_of_clipping(counts.get("clipped_values", 0), X.shape[0] * X.shape[1])

    def _run(self, planned: Planned, sums: Objective, fitted: dict[str, Any]) -> Result:
        """Charge, train and store the model.

        What can be refused or can fail without the records comes before the charge; a failure
        before the first draw gives the charge back; the model is stored, by one assignment, before
        anything else is made of it.
        """
        sums.check(planned.problem)
        self._require_share(planned)
        if planned.warning:
            warnings.warn(planned.warning, PrivacyWarning, stacklevel=4)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        family, member, budget = self._family(), self.__dict__["_member"], self.budget
        blocked = fitted["_blocked"] + family.chosen(member)
        fitted = fitted | {"planned_": planned, "events_": planned.events, "_blocked": blocked}
        fitted |= {"_spent": guarantee(planned, self.delta), "_paid": budget}
        kept = {name: value for name, value in self.__dict__.items() if not _of_a_model(name)}

        def store(weights: Array) -> None:
            self.__dict__ = {**kept, **fitted, "weights_": weights}

        with nullcontext(_nothing) if budget is None else budget.reserved(planned.events) as draw:
            family.fits.append((member, budget))
            return run(planned, sums, seed=seed, on_charge=draw, on_weights=store)

    def _require_share(self, planned: Planned) -> None:
        if self.budget is not None and planned.spent_epsilon < LEAST_SHARE * self.epsilon:
            raise BudgetExceeded(
                f"Expected room for epsilon={self.epsilon:g} in the budget, but what is left is "
                f"enough for epsilon={planned.spent_epsilon:.3g}; lower epsilon, or end here.",
                asked=self.epsilon,
                left=planned.spent_epsilon,
            )

    def _warn_of_clipping(self, clipped: int, values: int) -> None:
        """Say what the records say against the bounds; last of all, for a caller may turn warnings
        into errors.
        """
        if clipped <= MUCH_CLIPPED * values:
            return
        warnings.warn(
            f"{clipped / values:.0%} of the values lie outside "
            f"{'[0, 1]' if self.bounds is None else 'bounds'} and were cut, which loses what they "
            "say: declare bounds=(low, high) that hold them. This share was counted on the "
            "records and must not leave.",
            InternalWarning,
            stacklevel=4,
        )


def _of_a_model(name: str) -> bool:
    """Whether an attribute is that of an earlier fit; what describes the columns was set anew
    already.
    """
    return name.endswith("_") and name not in ("n_features_in_", "feature_names_in_")


def _nothing() -> None:
    """Nothing is to be told of a draw that no budget pays for."""


def algorithm_fields(name: Any) -> set[str]:
    """Parameters of an algorithm, or of any of them for ``auto`` and for a name that ``fit`` will
    refuse.
    """
    known = registry[name] if registry.knows(name) else None
    return {
        field.name for cls in ([known] if known else registry.values()) for field in fields(cls)
    }


def refuse_weights(unsupported: dict[str, Any]) -> None:
    """Raise ``InputError`` for sample weights and anything else that ``fit`` does not take."""
    for name in unsupported:
        if name == "sample_weight":
            if unsupported[name] is None:
                continue
            raise InputError(
                "Expected no sample_weight, got one; a weight multiplies what one record can "
                "change, which no price here covers. Repeat nothing and drop the argument."
            )
        raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
