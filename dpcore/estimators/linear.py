"""Private linear classification.

Private linear regression.
"""

from __future__ import annotations

import warnings
from math import isfinite, nan
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, log_softmax, logsumexp, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, unique_labels

from dpcore.accounting.limits import Allowance
from dpcore.algorithms import registry
from dpcore.errors import InputError
from dpcore.estimators.base import PrivacyWarning, PrivateEstimator, refuse_weights
from dpcore.estimators.rows import numbers, short
from dpcore.losses import Array, make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.train.planning import resolve_name


def _has_probabilities(estimator: DPClassifier) -> bool:
    return estimator.loss == "logistic"


class DPClassifier(ClassifierMixin, PrivateEstimator):
    """Linear classifier trained under (epsilon, delta)-differential privacy.

    ``algorithm``: a name of the registry; ``auto`` chooses by a public rule. ``loss``: of the
    margin; ``logistic`` with more than two classes is trained as a joint softmax where the
    algorithm can, otherwise one class against the rest.
    ``adjacency``: ``add_remove`` or ``replace_one``. ``norm_bound`` bounds ||x||_2 with the
    constant in it, longer rows are scaled down; ``scaled_gd`` clips values to [0, 1] and ``blocks``
    (column numbers of each one-hot group) to sum <= 1 instead. ``bounds`` = (low, high), scalars or
    one a column, or {column: (low, high)}, first maps columns onto [0, 1] and clips them.
    ``l2``: ridge, None for the algorithm's rule. ``n``: the nominal number of records under
    add/remove. ``classes``: the labels. ``budget``: an ``Allowance`` that outlives fits and clones.
    ``intercept``: True appends a constant, ``"last"`` says that the last column is one.
    ``random_state`` seeds starts only; noise and samples come from the operating system. Other
    keyword arguments go to the algorithm.

    After ``fit``: ``coef_`` (1 or K, d) and ``intercept_`` for rows within ``bounds``,
    ``classes_``, ``spent_`` (of all fits that ``budget`` paid, where these are several),
    ``events_`` (what was charged), ``trace_``, ``reason_``, ``ranked_features_`` (with l1 > 0),
    ``releasable_`` and ``blocked_`` (why not), and ``internal_`` (exact counts that must not
    leave). Where ``classes`` or ``n`` is left out it is read from the data, and the model must not
    be released; nor a clone whose siblings were fitted without its budget, or scored before.

    Where rows are bounded by their norm, ``decision_function`` is X @ coef_ + intercept_ times the
    factor by which each row was scaled down, which changes no label. With ``intercept=False``
    columns are scaled about 0 and never shifted.
    """

    def __init__(
        self,
        algorithm: str = "auto",
        loss: str = "logistic",
        epsilon: float = 1.0,
        delta: float = 1e-5,
        adjacency: str = "add_remove",
        norm_bound: float = 1.0,
        l2: float | None = None,
        l1: float = 0.0,
        n: int | None = None,
        classes: Any = None,
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
        self.classes = classes
        self.budget = budget
        self.random_state = random_state
        self.intercept = intercept
        self.blocks = blocks
        self.bounds = bounds
        self.preset = preset
        for name, value in algorithm_parameters.items():
            setattr(self, name, value)

    def fit(self, X: Any, y: Any, **unsupported: Any) -> DPClassifier:
        """Train on rows ``X`` (n, d), dense or CSR, and labels ``y`` (n,).

        Raises ``InputError`` for anything malformed and ``BudgetExceeded`` where ``budget`` has no
        room, both before anything is spent.
        """
        refuse_weights(unsupported)
        self._check_parameters()
        with self._kept_on_failure():
            X, y = self._validated(X, y=y)
            check_classification_targets(y)
            classes, blocked = self._classes(y)
            numbers = encode(y, classes)
            fitted = {"classes_": classes, "_blocked": blocked}
            if len(classes) == 2:
                self._train(
                    X, 2.0 * numbers - 1.0, make_loss(self.loss), 1, LinearObjective, fitted
                )
            else:
                self._train(
                    X, numbers, self._multiclass_loss(), len(classes), MulticlassObjective, fitted
                )
        return self

    def _classes(self, y: Array) -> tuple[Array, tuple[str, ...]]:
        """The sorted labels, and why the model must not be released where they were read from the
        records.
        """
        blocked: tuple[str, ...] = ()
        if self.classes is None:
            warnings.warn(
                "classes=None reads the label values from the private data, so this model must not "
                "be released; declare classes.",
                PrivacyWarning,
                stacklevel=3,
            )
            blocked = ("the label values were read from the data; declare classes",)
            classes = unique_labels(y)
        else:
            classes = _sorted(self.classes)
        if len(classes) < 2:
            raise InputError(
                f"Expected at least two classes, got {len(classes)} class; declare classes=[...]."
            )
        return classes, blocked

    def _multiclass_loss(self) -> Any:
        """Joint softmax where the loss is logistic and the algorithm can; else one class against
        the rest.
        """
        loss = make_loss(self.loss)
        name = resolve_name(self.algorithm, "softmax" if self.loss == "logistic" else self.loss)
        return Softmax() if self.loss == "logistic" and registry[name].requires.softmax else loss

    def decision_function(self, X: Any) -> Array:
        """Scores: (n,) for two classes, positive for ``classes_[1]``; (n, K) for more."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """Labels (n,) of the largest score."""
        scores = self.decision_function(X)
        labels: Array = self.classes_[
            (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        ]
        return labels

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, K) that the model states. Clipping biases them: they rank records,
        uncalibrated.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            positive = expit(scores)
            return np.column_stack([1.0 - positive, positive])
        if self.planned_.problem.loss.argument == "scores":
            stated: Array = softmax(scores, axis=1)
            return stated
        odds = log_expit(scores)  # logarithms: the odds of all classes may round to 0
        chances: Array = np.exp(odds - logsumexp(odds, axis=1, keepdims=True))
        return chances

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms (n, K) of ``predict_proba``, formed from the scores: finite where a
        probability rounds to 0.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([log_expit(-scores), log_expit(scores)])
        if self.planned_.problem.loss.argument == "scores":
            stated: Array = log_softmax(scores, axis=1)
            return stated
        odds = log_expit(scores)
        logs: Array = odds - logsumexp(odds, axis=1, keepdims=True)
        return logs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


def _sorted(classes: Any) -> Array:
    """The declared labels, sorted; raises ``InputError`` for what is no list of labels of one
    kind.
    """
    try:
        found = np.asarray(list(classes))
        if found.ndim == 1 and found.dtype.kind in "biufUO" and not _has_gap(found):
            return np.unique(found)
    except (TypeError, ValueError):
        pass
    raise InputError(
        "Expected classes as a list of labels of one kind, no NaN or None among them, got "
        f"classes={short(classes)}; leave such rows out."
    )


def _has_gap(values: Array) -> bool:
    """Whether a label is none: it equals nothing, itself included."""
    return any(value is None or bool(value != value) for value in values.tolist())


def encode(y: Array, classes: Array) -> Array:
    """Positions (n,) of labels among sorted ``classes`` as floats; raises ``InputError`` for a
    label that is none.
    """
    places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    if not np.array_equal(classes[places], y):
        raise InputError(
            f"Expected labels among classes={classes.tolist()}, got others; correct y or declare "
            "them all."
        )
    return places.astype(np.float64)


class DPRegressor(RegressorMixin, PrivateEstimator):
    """Linear regression trained under (epsilon, delta)-differential privacy.

    ``target_bounds`` = (low, high) declares the range of the target: values beyond are clipped, and
    the range is mapped onto [-1, 1] for training, so a loss sees residuals of at most 2; with
    ``intercept=False`` it is scaled about 0, for such a model has no constant to shift by. None
    reads the range from the data and blocks release. ``loss``: ``squared`` or ``huber_regression``.
    All else is as in ``DPClassifier``, with one difference: where rows are bounded by their norm,
    ``predict`` scales long rows down, which no coefficients do, so ``coef_`` and ``intercept_``
    exist only where ``bounds`` are declared and ``norm_bound`` holds every row within them.
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
        """Train on rows ``X`` (n, d), dense or CSR, and targets ``y`` (n,); errors as in
        ``DPClassifier.fit``.
        """
        refuse_weights(unsupported)
        self._check_parameters()
        with self._kept_on_failure():
            X, y = self._validated(X, y=y, y_numeric=True)
            low, high, blocked = self._target_bounds(y)
            loss = make_loss(self.loss)
            if loss.argument != "residual":
                raise InputError(
                    f"Expected a loss of residuals for regression, got loss={self.loss!r}; use "
                    "'squared'."
                )
            middle, half = self._target_map(low, high)
            targets = (np.clip(np.asarray(y, dtype=np.float64), low, high) - middle) / half
            fitted = {"target_bounds_": (low, high), "_target": (middle, half), "_blocked": blocked}
            self._train(X, np.clip(targets, -1.0, 1.0), loss, 1, LinearObjective, fitted)
        return self

    def _explained(self) -> tuple[Array, float, float]:
        middle, half = self._target
        return self.weights_.reshape(-1, self.rows_.dimension), half, middle

    def _target_map(self, low: float, high: float) -> tuple[float, float]:
        """Middle and half width of what is mapped onto [-1, 1]; about 0 where the model has no
        constant to shift by.
        """
        if self.intercept is False:
            return 0.0, max(abs(low), abs(high))
        return low / 2.0 + high / 2.0, (high - low) / 2.0

    def _target_bounds(self, y: Array) -> tuple[float, float, tuple[str, ...]]:
        """The range of the target, and why the model must not be released where it was read from
        the records.
        """
        if self.target_bounds is not None:
            low, high = numbers("target_bounds", self.target_bounds)
            if not (isfinite(low) and isfinite(high) and isfinite(high - low) and low < high):
                raise InputError(
                    "Expected target_bounds=(low, high) with low < high, a finite distance apart, "
                    f"got {self.target_bounds!r}; correct them."
                )
            return low, high, ()
        warnings.warn(
            "target_bounds=None reads the range of the target from the private data, so this model "
            "must not be released; declare target_bounds.",
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

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R squared of the predictions; NaN where it is no number: for one row, or targets that are
        all alike, of whose spread no share can be explained.
        """
        found = float(r2_score(y, self.predict(X), sample_weight=sample_weight, force_finite=False))
        return found if isfinite(found) else nan

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
