"""What an algorithm may ask of records: rows in storage, and the sums over them."""

from dpcore.objective.base import Objective
from dpcore.objective.linear import LinearObjective

__all__ = ["LinearObjective", "Objective"]
