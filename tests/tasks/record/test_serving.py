"""The released version scores rows: by MLflow with pickle forbidden, by the command, and over
HTTP.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import Request

import numpy as np
import pandas as pd
import pytest

from flows.cli import run
from flows.server import free_port
from tasks.record.stored import load_model
from tasks.release.keys import TRUSTED
from tasks.schema import find_schema
from tests.flows.small import small_frame
from tests.tasks.record.served import ask
from tests.tasks.release.runs import World
from tests.tasks.release.scene import Scene

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def served(world: World, key: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, Path]:
    """A released model's URI and its bundle."""
    call = [
        "release",
        world.train(),
        "--to",
        "served",
        "--approved-by",
        "A. Person",
        "--key",
        str(key),
        "--json",
    ]
    assert run(call) == 0
    return "models:/served@released", Path(json.loads(capsys.readouterr().out)["bundle"])


def expected(world: World, bundle: Path, frame: pd.DataFrame) -> np.ndarray:
    """Scores from the bundle's weights alone."""
    with np.load(bundle / "model" / "weights.npz", allow_pickle=False) as arrays:
        return (
            find_schema(str(world.folder / "small.yaml")).encoder().transform(frame)
            @ arrays["weights"]
        )


def test_released_version_predicts_like_its_bundle(
    world: World, served: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    frame = small_frame(np.random.default_rng(1), 20).drop(columns="paid")
    scores = expected(world, served[1], frame)
    np.testing.assert_allclose(
        load_model(served[0]).predict(frame)["score"], scores, rtol=0, atol=1e-12
    )
    frame.to_csv(world.folder / "rows.csv", index=False)
    assert run(["predict", "served", str(world.folder / "rows.csv"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    np.testing.assert_allclose([row["score"] for row in rows], scores, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_released_version_answers_over_http(
    world: World, served: tuple[str, Path], tmp_path: Path
) -> None:
    """``mlflow models serve`` on the released alias takes 10 to 40 s to start."""
    port = free_port()
    call = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        served[0],
        "--env-manager",
        "local",
    ]
    # MLflow starts its server by name, so the programs of this environment have to be found first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = {
        **os.environ,
        "PATH": path,
        "MLFLOW_TRACKING_URI": world.home.tracking_uri,
        "PYTHONPATH": str(ROOT),
    }
    log = (tmp_path / "serve.log").open("w")
    with subprocess.Popen(
        [*call, "--host", "127.0.0.1", "--port", str(port)],
        cwd=tmp_path,
        env=options,
        stdout=log,
        stderr=log,
    ) as process:
        try:
            frame = small_frame(np.random.default_rng(2), 5).drop(columns="paid")
            body = json.dumps({"dataframe_split": frame.to_dict(orient="split")}).encode()
            request = Request(
                f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
            )
            answer = json.loads(ask(request, process))
        finally:
            process.terminate()
            process.wait(timeout=300)
    scores = [row["score"] for row in answer["predictions"]]
    np.testing.assert_allclose(scores, expected(world, served[1], frame), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_bundle_scores_as_the_model_that_it_was_made_of(
    scene: Scene,
    tmp_path: Path,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where the model's store is not at hand; a bundle that does not verify scores nothing."""
    rows = scene.world.folder / "small.csv"
    capsys.readouterr()
    assert run(["predict", scene.run, str(rows), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["rows"]
    bundle = tmp_path / "copy"
    shutil.copytree(scene.bundle, bundle)
    given = Path(shutil.make_archive(str(bundle), "zip", bundle)) if form == "zip" else bundle
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path / "elsewhere"))
    assert run(["predict", str(given), str(rows), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    words = answer.pop("columns")
    assert list(words) == list(stored[0]) == ["label", "probability", "score"]
    assert "not calibrated" in words["probability"] and words["score"].startswith("margin")
    assert answer == {"model": f"{scene.name}@1", "rows": stored}
    assert not (tmp_path / "elsewhere").exists()
    monkeypatch.delenv(TRUSTED)
    assert run(["predict", str(given), str(rows)]) == 4
    assert "--any-signer" in capsys.readouterr().err
    assert (
        run(["predict", str(given), str(rows), "--any-signer", "-o", str(tmp_path / "scores.csv")])
        == 0
    )
    (bundle / "model/weights.npz").write_bytes(
        (scene.other_bundle / "model/weights.npz").read_bytes()
    )
    assert run(["predict", str(bundle), str(rows), "--any-signer"]) == 4
    assert "file_changed" in capsys.readouterr().err
    assert run(["predict", scene.run, str(rows), "--any-signer"]) == 2
