"""scikit-learn estimators: private training behind fit and predict."""

from dpcore.estimators.base import InternalWarning, PrivacyWarning
from dpcore.estimators.linear import DPClassifier, DPRegressor
from dpcore.estimators.ranker import DPRanker
from dpcore.estimators.spent import Spent

__all__ = ["DPClassifier", "DPRanker", "DPRegressor", "InternalWarning", "PrivacyWarning", "Spent"]
