"""``dpflows`` in a process of its own in which something happens at a chosen point of the training.

Arguments: the point (before, during, after, committed), what happens (kill, term, full, server),
then the command.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import psutil

from flows.cli import main
from tasks import training

POINT, EVENT, *COMMAND = sys.argv[1:]


def happen() -> None:
    """The event, in the middle of the process's work."""
    match EVENT:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "term":
            os.kill(os.getpid(), signal.SIGTERM)
        case "full":
            # Every file is at its largest size from here on: writes fail as on a full disk.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        case "server":
            for child in psutil.Process().children(recursive=True):
                if any("uvicorn" in word for word in child.cmdline()):
                    child.kill()


real_run, real_measure = training.run, training.measure


def run(planned: Any, objective: Any, on_charge: Callable[[], None], **others: Any) -> Any:
    """Train, with the event before the first charge, after the third one, or after the last
    release.
    """
    charged = 0

    def charge() -> None:
        nonlocal charged
        on_charge()
        charged += 1
        if POINT == "during" and charged == 3:
            happen()

    if POINT == "before":
        happen()
    result = real_run(planned, objective, on_charge=charge, **others)
    if POINT == "after":
        happen()
    return result


def measure(*arguments: Any) -> Any:
    """Evaluate; the model is committed by then."""
    if POINT == "committed":
        happen()
    return real_measure(*arguments)


training.run, training.measure = run, measure  # type: ignore[assignment]

main(COMMAND)
