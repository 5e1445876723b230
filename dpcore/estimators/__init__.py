"""scikit-learn estimators: private training behind fit and predict."""

from dpcore.estimators.base import InternalWarning, PrivacyWarning, Spent
from dpcore.estimators.classifier import DPClassifier
from dpcore.estimators.ranker import DPRanker
from dpcore.estimators.regressor import DPRegressor

__all__ = ["DPClassifier", "DPRanker", "DPRegressor", "InternalWarning", "PrivacyWarning", "Spent"]
