"""A newcomer's home with trainings, a skip, a release and a comparison, and the servers of `dpflows
ui` on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.flows.small import write_small
from tests.release_fixtures import write_key
from tests.tasks.retraining.weekly import config_of, write_weekly

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Site:
    """``links`` are those of `dpflows ui`; the runs are ids of MLflow, the flow runs of Prefect."""

    folder: Path
    links: dict[str, str]
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def flow_run(self, name: str) -> str:
        return str(self.answers[name]["flow_run_id"])

    def run(self, name: str) -> str:
        return str(self.answers[name]["run_id"])


def command(folder: Path, *words: str) -> dict[str, Any]:
    """Run ``dpflows`` in a home of its own; its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *words, "--json"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"dpflows {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return dict(json.loads(done.stdout)) if done.stdout.strip() else {}


SKIP = """
import json, sys
from datetime import datetime, UTC
from flows.retrain import retrain_flow
from tasks.retraining import load_retraining
at = datetime(2026, 1, 26, 3, tzinfo=UTC)
state = retrain_flow(load_retraining("retrain.yaml"), at, return_state=True)
print(json.dumps({"flow_run_id": str(state.state_details.flow_run_id)}))
"""


def skipped(found: Site) -> dict[str, Any]:
    """The flow on a period that is trained: the command alone sees that before it starts one."""
    done = subprocess.run(
        [sys.executable, "-c", SKIP],
        cwd=found.folder,
        env=environment(found.folder) | {"PREFECT_API_URL": f"{found.links['prefect']}/api"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def environment(folder: Path) -> dict[str, str]:
    """That of a newcomer: nothing of the tests' own stores."""
    foreign = ("PREFECT", "MLFLOW", "DPFLOWS")
    found = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return found | {"DPFLOWS_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Everything that the pages show, and the servers that show it."""
    write_small(folder, np.random.default_rng(7))
    write_weekly(folder)
    key = write_key(folder / "key.pem")
    command(
        folder, "ledger", "init", str(folder / "small.yaml"), "--epsilon", "4", "--delta", "1e-4"
    )
    command(
        folder, "ledger", "init", str(folder / "clinic.yaml"), "--epsilon", "3", "--delta", "1e-4"
    )
    ui = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "ui", "--prefect", "--json"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert ui.stdout is not None
        found = Site(folder, json.loads(ui.stdout.readline()))
        for name, epsilon in (("first", "1"), ("second", "0.5")):
            given = [f"data.name={folder / 'small.yaml'}", f"privacy.epsilon={epsilon}"]
            given += ["privacy.delta=1e-5", "evaluate.release={metric: accuracy, epsilon: 0.2}"]
            words = [word for one in given for word in ("--set", one)]
            found.answers[name] = command(folder, "train", *words)
        values = config_of(folder).model_dump(mode="json")
        values["training"]["tracking"]["experiment"] = "weekly"
        (folder / "retrain.yaml").write_text(yaml.safe_dump(values))
        retrain = ["retrain", str(folder / "retrain.yaml"), "--at"]
        for name, at in (("third", "26"), ("fourth", "19")):
            answer = command(folder, *retrain, f"2026-01-{at}T03:00")
            found.answers[name] = answer["training"] | {"flow_run_id": answer["flow_run_id"]}
        found.answers["skipped"] = skipped(found)
        signed = ["--approved-by", "A. Person", "--key", str(key), "-o", "bundle"]
        command(folder, "release", found.run("first"), "--to", "small", *signed)
        yield found
    finally:
        ui.terminate()
        ui.wait(timeout=300)
