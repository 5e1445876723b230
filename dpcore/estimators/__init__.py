"""scikit-learn estimators: private training behind fit and predict."""

from dpcore.estimators.base import PrivacyWarning, Spent
from dpcore.estimators.classifier import DPClassifier
from dpcore.estimators.regressor import DPRegressor
from dpcore.ranker import DPRanker

__all__ = ["DPClassifier", "DPRanker", "DPRegressor", "PrivacyWarning", "Spent"]
