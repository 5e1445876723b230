"""Plan a private training from public facts, then run it through its one door."""

from dpcore.train.planning import Planned, plan, replan
from dpcore.train.running import Result, run

__all__ = ["Planned", "Result", "plan", "replan", "run"]
