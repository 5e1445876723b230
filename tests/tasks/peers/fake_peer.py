"""Stands for the interpreter of another library: a program that runs the real worker with a library
made here.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """\
#!{python}
import importlib.util, os, sys, time

spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


class Peer:
    packages = ("numpy",)

    def __init__(self):
        {start}

    def train(self, X, y, asked):
        print("this library is talkative")
        {train}
        weights = y @ X / len(y)
        told = {{"seconds": 0.5, "spent_epsilon": asked["epsilon"]}}
        if "T" in asked:
            levels = worker.values(asked["T"], asked["attributes"])
            assert levels.shape == (len(asked["T"]), len(asked["attributes"]))
            return {{"scores": (asked["T"] @ weights).tolist(), **told}}
        return {{"weights": weights.tolist(), **told}}


worker.PEERS = {{name: Peer for name in worker.PEERS}}
worker.main(sys.argv[2])
"""


def fake_python(folder: Path, train: str = "pass", start: str = "pass") -> str:
    """The path of such a program; ``start`` and ``train`` are statements that it runs at these
    moments.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python"
    path.write_text(PROGRAM.format(python=sys.executable, start=start, train=train))
    path.chmod(0o755)
    return str(path)
