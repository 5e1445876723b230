"""What a fitted estimator says: its terms, scores and coefficients, what it has spent, and whether
it may leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from dpcore.accounting.limits import Allowance
from dpcore.errors import InputError
from dpcore.estimators.rows import RowMap, named_rows, row_pieces, short
from dpcore.estimators.spent import Lineage, Spent, together
from dpcore.losses import Array
from dpcore.train import Planned

if TYPE_CHECKING:
    import pandas as pd

    from dpcore.preprocess import Encoder, MatrixEncoder

# What a pickled model does not hold: other fits of its kind, and exact numbers on records.
STAY = ("_lineage", "_member", "internal_")


class FittedModel(BaseEstimator):
    """The half of an estimator that is there after ``fit``: everything in it follows from what was
    released, and from public facts.
    """

    rows_: RowMap
    weights_: Array
    planned_: Planned
    marginals_: Any
    n_features_in_: int
    _spent: Spent
    _paid: Allowance | None
    _blocked: tuple[str, ...]

    def __getstate__(self) -> dict[str, Any]:
        """A fitted model leaves with what is known of it; exact counts of records, the budget and
        other fits stay.
        """
        state: dict[str, Any] = super().__getstate__()
        if "weights_" not in state:
            return state
        frozen = {"_spent": self.spent_, "_paid": None, "_blocked": self.blocked_}
        return {key: value for key, value in state.items() if key not in STAY} | frozen

    def _family(self) -> Lineage:
        """The record of fits that this estimator shares with its clones."""
        family: Lineage = self.__dict__.setdefault("_lineage", Lineage())
        return family

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the columns that ``coef_`` is about: those of the rows of ``fit``, else x0, x1,
        ...

        Raises ``InputError`` for ``input_features`` that are other names.
        """
        check_is_fitted(self, "n_features_in_")
        made = [f"x{place}" for place in range(self.n_features_in_)]
        names = np.asarray(getattr(self, "feature_names_in_", made), dtype=object)
        if input_features is not None and list(input_features) != list(names):
            raise InputError(
                f"Expected input_features as in fit, {short(list(names))}, got "
                f"{short(list(input_features))}; leave them out."
            )
        return names

    def _validated(self, X: Any, **options: Any) -> Any:
        """Rows (and labels) as arrays of finite floats, one shape for fit and predict."""
        return validate_data(
            self, named_rows(X), accept_sparse="csr", dtype=[np.float64, np.float32], **options
        )

    def explain(self, encoder: Encoder | MatrixEncoder | None = None) -> pd.DataFrame:
        """What the model says, as a frame with a line for each point of each term.

        A score is a constant and one term a column (of a one-hot block one term), centred on its
        mean under released marginals where there are some. ``encoder``: the one that made ``X``;
        terms are then over its columns' own units. Columns of the frame: ``term``, ``at`` (a level,
        a number, a pair of a cross), ``output`` (the class), ``value`` (log-odds, score or label
        units), ``band`` (two standard deviations of the noise where that is public, else NaN) and
        ``importance`` (standard deviation of the term). ``attrs["constant"]`` is the rest of a
        score, ``attrs["band"]`` says why there is none. It is post-processing and costs nothing.
        """
        from dpcore.preprocess.terms import additive

        check_is_fitted(self, "weights_")
        weights, scale, shift = self._explained()
        found = additive(
            self._pieces(encoder),
            weights,
            self.rows_.constant,
            self.marginals_ or None,
            self.planned_.algorithm.weight_noise(self.planned_.problem),
            scale,
            shift,
        )
        frame = found.frame(self._output_names(len(weights)))
        frame.attrs["band"] = self.planned_.algorithm.hidden_noise
        return frame

    def _pieces(self, encoder: Encoder | MatrixEncoder | None) -> Any:
        """The terms of the caller's columns, or those of ``encoder``."""
        rows = self.rows_
        if encoder is not None:
            from dpcore.preprocess.encoder import Encoder
            from dpcore.preprocess.matrix import MatrixEncoder
            from dpcore.preprocess.terms import require_additive

            if not isinstance(encoder, Encoder | MatrixEncoder):
                raise InputError(
                    "Expected the Encoder or MatrixEncoder that made X, got "
                    f"{type(encoder).__name__}; leave it out to explain the columns of X."
                )
            require_additive(rows.dimension, encoder, rows.columns)
            return encoder
        names = [str(name) for name in getattr(self, "feature_names_in_", np.arange(rows.columns))]
        return row_pieces(rows, names)

    def _explained(self) -> tuple[Array, float, float]:
        """Weights (outputs, d), and the map from scores to the label's unit."""
        return self.weights_.reshape(-1, self.rows_.dimension), 1.0, 0.0

    def _output_names(self, outputs: int) -> Sequence[str]:
        """What the outputs are called; one has no name."""
        return [""] if outputs == 1 else [str(name) for name in getattr(self, "classes_", [])]

    def _scores(self, X: Any) -> Array:
        """Scores (n, k) of the model for rows brought within the same bounds as in training."""
        check_is_fitted(self, "weights_")
        mapped, _, _ = self.rows_(self._validated(X, reset=False))
        self._note_scored()
        return np.asarray(mapped @ self.weights_.reshape(-1, self.rows_.dimension).T)

    def _note_scored(self) -> None:
        if "_lineage" in self.__dict__:
            self._family().note_scored(self.__dict__["_member"])

    def _coefficients(self) -> tuple[Any, Any]:
        """Coefficients and intercepts of the caller's columns, for rows that nothing but a linear
        map is done to.
        """
        return self.rows_.unmap(self.weights_.reshape(-1, self.rows_.dimension))

    def _no_coefficients(self) -> str:
        """Why no coefficients of the caller's columns give ``predict``; empty where they do."""
        return ""

    def _linear(self) -> tuple[Any, Any]:
        check_is_fitted(self, "weights_")
        if reason := self._no_coefficients():
            raise AttributeError(reason)
        return self._coefficients()

    @property
    def coef_(self) -> Any:
        """Coefficients of the caller's columns; ``AttributeError`` where none give what ``predict``
        gives.
        """
        return self._linear()[0]

    @property
    def intercept_(self) -> Any:
        """The constant that belongs to ``coef_``."""
        return self._linear()[1]

    @property
    def spent_(self) -> Spent:
        """The guarantee of this fit; of all fits together that its budget paid, where these are
        several.
        """
        check_is_fitted(self, "weights_")
        return together(self._spent, self._paid)

    @property
    def blocked_(self) -> tuple[str, ...]:
        """Why the fitted model must not be released; empty where it may."""
        check_is_fitted(self, "weights_")
        family = self.__dict__.get("_lineage")
        return self._blocked + (
            () if family is None else family.reasons(self.__dict__["_member"], self._paid)
        )

    @property
    def releasable_(self) -> bool:
        """Whether nothing but charged mechanisms read the records: then coefficients may leave,
        ``internal_`` never.
        """
        check_is_fitted(self, "weights_")
        return not self.blocked_ and self.planned_.algorithm.private
