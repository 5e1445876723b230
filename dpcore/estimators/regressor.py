"""Private linear regression."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from dpcore.accounting.limits import Allowance
from dpcore.errors import InputError
from dpcore.estimators.base import PrivacyWarning, PrivateEstimator, refuse_weights
from dpcore.estimators.rows import numbers
from dpcore.losses import Array, make_loss
from dpcore.objective import LinearObjective


class DPRegressor(RegressorMixin, PrivateEstimator):
    """Linear regression trained under (epsilon, delta)-differential privacy.

    ``target_bounds`` = (low, high) declares the range of the target: values beyond are clipped, and the range is mapped
    onto [-1, 1] for training, so a loss sees residuals of at most 2; with ``intercept=False`` it is scaled about 0, for
    such a model has no constant to shift by. None reads the range from the data and blocks release. ``loss``:
    ``squared`` or ``huber_regression``. All else is as in ``DPClassifier``, with one difference: where rows are bounded
    by their norm, ``predict`` scales long rows down, which no coefficients do, so ``coef_`` and ``intercept_`` exist
    only where ``bounds`` are declared and ``norm_bound`` holds every row within them.
    """

    _target: tuple[float, float]

    def __init__(
        self,
        algorithm: str = "auto",
        loss: str = "squared",
        epsilon: float = 1.0,
        delta: float = 1e-5,
        adjacency: str = "add_remove",
        norm_bound: float = 1.0,
        l2: float | None = None,
        l1: float = 0.0,
        n: int | None = None,
        target_bounds: tuple[float, float] | None = None,
        budget: Allowance | None = None,
        random_state: Any = None,
        intercept: bool | str = True,
        blocks: Any = None,
        bounds: Any = None,
        preset: str | None = None,
        **algorithm_parameters: Any,
    ) -> None:
        self.algorithm = algorithm
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.norm_bound = norm_bound
        self.l2 = l2
        self.l1 = l1
        self.n = n
        self.target_bounds = target_bounds
        self.budget = budget
        self.random_state = random_state
        self.intercept = intercept
        self.blocks = blocks
        self.bounds = bounds
        self.preset = preset
        for name, value in algorithm_parameters.items():
            setattr(self, name, value)

    def fit(self, X: Any, y: Any, **unsupported: Any) -> DPRegressor:
        """Train on rows ``X`` (n, d), dense or CSR, and targets ``y`` (n,); errors as in ``DPClassifier.fit``."""
        refuse_weights(unsupported)
        self._check_parameters()
        with self._kept_on_failure():
            X, y = self._validated(X, y=y, y_numeric=True)
            low, high, blocked = self._target_bounds(y)
            loss = make_loss(self.loss)
            if loss.argument != "residual":
                raise InputError(f"Expected a loss of residuals for regression, got loss={self.loss!r}; use 'squared'.")
            middle, half = self._target_map(low, high)
            targets = (np.clip(np.asarray(y, dtype=np.float64), low, high) - middle) / half
            fitted = {"target_bounds_": (low, high), "_target": (middle, half), "_blocked": blocked}
            self._train(X, np.clip(targets, -1.0, 1.0), loss, 1, LinearObjective, fitted)
        return self

    def _target_map(self, low: float, high: float) -> tuple[float, float]:
        """Middle and half width of what is mapped onto [-1, 1]; about 0 where the model has no constant to shift by."""
        if self.intercept is False:
            return 0.0, max(abs(low), abs(high))
        return (low + high) / 2.0, (high - low) / 2.0

    def _target_bounds(self, y: Array) -> tuple[float, float, tuple[str, ...]]:
        """The range of the target, and why the model must not be released where it was read from the records."""
        if self.target_bounds is not None:
            low, high = numbers("target_bounds", self.target_bounds)
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise InputError(f"Expected target_bounds=(low, high) with low < high, got {self.target_bounds!r}.")
            return low, high, ()
        warnings.warn(
            "target_bounds=None reads the range of the target from the private data, so this model must "
            "not be released; declare target_bounds.",
            PrivacyWarning,
            stacklevel=3,
        )
        blocked = ("the range of the target was read from the data; declare target_bounds",)
        low, high = float(np.min(y)), float(np.max(y))
        return (low, high, blocked) if low < high else (low - 1.0, low + 1.0, blocked)

    def predict(self, X: Any) -> Array:
        """Predicted targets (n,) in the units of ``y``."""
        scores = self._scores(X)[:, 0]
        middle, half = self._target
        return middle + scores * half

    def _coefficients(self) -> tuple[Any, Any]:
        coef, intercept = super()._coefficients()
        middle, half = self._target
        return coef[0] * half, float(intercept[0] * half + middle)

    def _no_coefficients(self) -> str:
        return self.rows_.bent

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
