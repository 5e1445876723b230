"""What earlier versions stored opens, verifies and scores: each ``home-*.zip`` was made by the code
of its time.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flows.cli import run
from flows.commands.predict import read_table
from tasks.ledger import Ledger
from tasks.record.stored import load_model

ARCHIVES = sorted(Path(__file__).parent.glob("home-*.zip"))
ROWS = {"small": "small.csv", "ranking": "search.csv"}


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.stem)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored place, opened elsewhere than where it was made."""
    folder = tmp_path_factory.mktemp("stored")
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("name", ROWS)
def test_bundle_verifies(stored: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    signer = json.loads((stored / f"{name}-bundle" / "signature.json").read_text())["fingerprint"]
    assert (
        run(["verify", str(stored / f"{name}-bundle"), "--key", signer, "--expect", f"{name}@1"])
        == 0
    )


def test_ledger_verifies(stored: Path) -> None:
    with Ledger(f"sqlite:///{stored / 'runs' / 'ledger.db'}") as ledger:
        report = ledger.verify()
    assert report.ok, report


@pytest.mark.parametrize("name", ROWS)
def test_model_gives_the_scores_of_its_time(stored: Path, name: str) -> None:
    [folder] = [
        path.parent
        for path in (stored / "runs" / "artifacts").rglob("registered_model_meta")
        if f"model_name: {name}" in path.read_text()
    ]
    model = load_model(str(folder))
    scorer = model.unwrap_python_model()
    rows = read_table(stored / ROWS[name], scorer.encoder, scorer.card)
    then = pd.read_csv(stored / f"{name}-scores.csv")
    np.testing.assert_allclose(model.predict(rows)["score"], then["score"], rtol=1e-12, atol=1e-12)
