"""Charts, curves and pages from plain numbers; nothing here knows a run.

Here: how metrics are called and numbers written, everywhere that people read them: tables, figures,
pages, terminals.
"""

from __future__ import annotations

from math import exp, isfinite

TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "roc_auc": "ROC AUC",
    "average_precision": "average precision",
    "brier_score": "Brier score",
    "log_loss": "log loss",
    "mean_squared_error": "mean squared error, scaled label",
    "root_mean_squared_error": "root mean squared error, label's unit",
    "mean_absolute_error": "mean absolute error, label's unit",
    "r2": "R²",
    "map": "MAP",
    "fit_seconds": "seconds of the fit",
}
BASELINES = {
    "majority_": "majority class",
    "mean_label_": "mean of the label",
    "random_": "random order",
    "best_feature_": "best feature",
    "non_private_": "non-private",
}
DIGITS = 4


def metric_title(key: str) -> str:
    """The name of a metric as people write it; a baseline's with the baseline's name in
    brackets.
    """
    for prefix, name in BASELINES.items():
        if key.startswith(prefix):
            return f"{metric_title(key.removeprefix(prefix))} ({name})"
    for prefix, name in (("ndcg_at_", "NDCG"), ("map_at_", "MAP")):
        if key.startswith(prefix):
            return f"{name}@{key.removeprefix(prefix)}"
    return TITLES.get(key, key.replace("_", " "))


def number(given: float, digits: int = DIGITS) -> str:
    """``given`` in significant digits, zeros at the end kept, whole numbers as they are.

    0.8610, 12.30, 32000; powers of ten only where a number is very small or large: 1e-06.
    """
    value = float(given)
    if not isfinite(value) or not 1e-4 <= abs(value) < 1e6:
        return str(int(value)) if value == 0 else f"{value:.{digits}g}"
    if value.is_integer():
        return str(int(value))
    text = f"{value:#.{digits}g}".rstrip(".")
    return f"{value:.0f}" if "e" in text else text


def counted(count: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """A share with three digits; what is not all of it is not called 100 %."""
    text = f"{100 * share:.3g}"
    return f"{text} %" if share >= 1 or text != "100" else "nearly 100 %"


def percent_in_words(share: float) -> str:
    """A share as a person reads it; what is not certain is not called 100 %."""
    text = f"{100.0 * share:.1f}"
    return "more than 99.9 %" if text == "100.0" and share < 1.0 else f"{text.removesuffix('.0')} %"


def odds(epsilon: float) -> str:
    """The factor by which a conclusion may become more likely, e^epsilon."""
    return f"{exp(epsilon):.3g}" if epsilon < 20.0 else "more than 4e8"
