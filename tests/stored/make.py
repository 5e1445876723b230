"""Make a store to be opened by every later version: ``python -m tests.stored.make NAME`` writes
``NAME.zip``.

It holds what users keep: a table with its schema, a ledger, a home with MLflow's database and
models, and two signed bundles (a classifier and a ranker). It is made below
``/tmp/dpflows-stored``, the place that its stores remember, and opened elsewhere by
``test_stored.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

PLACE = Path("/tmp/dpflows-stored")
HERE = Path(__file__).parent
# Prefect's database is not a record of anything released, and caches are made again.
LEFT_OUT = ("prefect", "matplotlib", "cells", ".lock")


def make(name: str) -> Path:
    """Train, release and pack; returns the archive."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(mode=0o700)
    os.environ |= {"DPFLOWS_HOME": str(PLACE / "runs"), "PYTHONPATH": str(HERE.parents[1])}
    from tasks.home import Home

    Home.find().prepare()
    import numpy as np
    import pandas as pd

    from dpcore.ranking.synthetic import search
    from tests.flows.small import write_small
    from tests.release_fixtures import write_key

    os.chdir(PLACE)
    write_small(PLACE, np.random.default_rng(7))
    schema = PLACE / "small.yaml"
    text = schema.read_text().replace(f"ledger: sqlite:///{PLACE}/ledger.db\n", "")
    schema.write_text(text)
    (PLACE / "model").mkdir()
    key = write_key(PLACE / "key.pem")
    small = [
        "--set",
        f"data.name={schema}",
        "--set",
        "privacy.epsilon=1",
        "--set",
        "privacy.delta=1e-5",
    ]
    metric = ["--set", "evaluate.release.metric=accuracy", "--set", "evaluate.release.epsilon=0.5"]

    def call(*words: str) -> dict[str, Any]:
        sys.stderr.write(f"dpflows {' '.join(words)}\n")
        command = [sys.executable, "-c", "from flows.cli import main; main()", *words, "--json"]
        answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        return dict(json.loads(answer)) if answer.strip() else {}

    def release(name: str, trained: dict[str, Any]) -> None:
        signed = ["--approved-by", "somebody", "--key", str(key), "-o", f"{name}-bundle"]
        call("release", trained["run_id"], "--to", name, *signed)

    call("ledger", "init", "small", "--epsilon", "8", "--delta", "1e-5")
    release("small", call("train", *small, *metric))
    call("train", *small, "--set", "algorithm.name=dp_sgd")
    release("ranking", call("train", str(HERE.parents[1] / "conf" / "ranking.yaml")))
    key.unlink()
    pd.DataFrame(search(20)).drop(columns="grade").to_csv("search.csv", index=False)
    for model, table in (("small", "small.csv"), ("ranking", "search.csv")):
        call("predict", model, table, "-o", f"{model}-scores.csv")
    return pack(name)


def pack(name: str) -> Path:
    """The archive of all that is kept, times left out so that it depends on contents alone."""
    target = HERE / f"{name}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(PLACE.rglob("*")):
            inside = path.relative_to(PLACE)
            if path.is_file() and not any(part.endswith(LEFT_OUT) for part in inside.parts):
                archive.writestr(
                    zipfile.ZipInfo(inside.as_posix()), path.read_bytes(), zipfile.ZIP_DEFLATED
                )
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{make(sys.argv[1])}\n")
