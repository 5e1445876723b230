"""Where the rows of a training are kept and its sums are made: a choice among equals, so it changes
no promise.
"""

from __future__ import annotations

from tasks.kinds.base import Job
from tasks.kinds.engine import choose
from tasks.options.base import Option


class Engine(Option):
    """What was asked for is refused where it does not go; without it the rule of
    ``tasks.kinds.engine`` holds.
    """

    name = "engine"
    asked = "config.engine"

    def check(self, job: Job) -> None:
        choose(job)
