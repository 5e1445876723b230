"""Plans of cells, calibrated once for equal public facts: folds and repeats share them."""

from __future__ import annotations

import json
import threading
from typing import Any

from dpcore.problem import Problem
from dpcore.train import Planned, plan
from tasks.compare.grid import Setting


class Plans:
    """Calibrated plans by (algorithm, problem, target). Threads that ask for one plan wait for the first of them."""

    def __init__(self) -> None:
        self._known: dict[Any, Planned] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Plans, ()

    def of(self, setting: Setting, problem: Problem) -> Planned:
        """The plan of a setting on ``problem``; raises ``InputError`` or ``BudgetExceeded`` where there is none."""
        algorithm, noise = setting.config.algorithm, setting.config.privacy.noise
        parameters = setting.parameters()
        limits = (setting.target,) if setting.private else ()
        key = (algorithm.name, json.dumps(parameters, sort_keys=True), algorithm.preset, noise, problem, limits)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                self._known[key] = plan(
                    algorithm.name, parameters, problem, *limits, preset=algorithm.preset, noise=noise
                )
            return self._known[key]
