"""A stored model where nothing is installed but what its own requirements name: it loads, scores,
and is served.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from packaging.requirements import Requirement

from dpcore.network.spec import NetworkSpec
from dpcore.ranking.model import RankingModel
from flows.server import free_port
from tasks import readers
from tasks.home import Home
from tasks.kinds import network as kinds_network
from tasks.record import model, tracking
from tasks.record.sources import OTHER_NAMES, libraries, requirements
from tasks.schema import Schema, find_schema
from tests.tasks.kinds.test_ranking_flow import SCHEMA as RANKING
from tests.tasks.record.served import ask

CLASSES = """\
schema_version: 1
name: shapes
public: {n: 90, public: true}
source: {path: shapes.csv}
columns: {width: {kind: numeric, low: 0, high: 1}, height: {kind: numeric, low: 0, high: 1}}
label: {column: shape, kind: classes, levels: [disc, cross, bar]}
split: {kind: none}
"""

# Run by each Python process before anything else: what is not listed cannot be imported, and our
# sources not found.
CONFINED = """\
import json, os, sys

sys.path[:] = [place for place in sys.path if not os.path.isdir(os.path.join(place, "dpcore"))]
ALLOWED = set(json.loads(os.environ["TEST_ALLOWED"])) | set(sys.stdlib_module_names) | {"dpcore"}

class Only:
    def find_spec(self, name, path=None, target=None):
        if path is None and name not in ALLOWED and not name.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}: requirements.txt does not bring it", name=name)

sys.meta_path.insert(0, Only())
"""
SCORE = """\
import json, sys
import mlflow.pyfunc, pandas

answers = []
for folder, frame in json.load(sys.stdin):
    found = mlflow.pyfunc.load_model(folder).predict(pandas.DataFrame(frame))
    answers.append(found.to_dict(orient="list"))
import dpcore
print(json.dumps({"answers": answers, "code": dpcore.__file__}))
"""


def store(
    home: Home,
    schema: Schema,
    weights: np.ndarray,
    ranker: RankingModel | None = None,
    spec: NetworkSpec | None = None,
) -> Path:
    """Store a model as a training does; the folder that MLflow made."""
    encoder = schema.encoder()
    client = tracking.tracking_client(home)
    run_id = tracking.open_run(
        client, tracking.ensure_experiment(client, home, "models alone"), None, {}
    )
    folder = home.outbox / run_id / "model"
    folder.mkdir(parents=True)
    of_kind: dict[str, Any] = {} if ranker is None else {"ranker": asdict(ranker)}
    if spec is not None:
        of_kind["network"] = kinds_network.save_state(folder, spec, weights)
    model.save_model(folder, weights, encoder, schema, "logistic", of_kind)
    uri = model.log_model(client, run_id, folder, encoder, schema)
    tracking.close_run(client, run_id, "FINISHED")
    return next(home.artifacts.rglob(uri.removeprefix("models:/"))) / "artifacts"


def brought_by(lines: list[str]) -> set[str]:
    """Top-level names that an installation of these requirements brings, with what they need in
    turn.
    """
    wanted, known = list(lines), set()
    while wanted:
        requirement = Requirement(wanted.pop())
        key = (canonical(requirement.name), *sorted(requirement.extras))
        if key in known:
            continue
        known.add(key)
        try:
            more = requires(requirement.name) or []
        except PackageNotFoundError:
            continue
        extras = ["", *requirement.extras]
        wanted += [one for one in more if applies(Requirement(one), extras)]
    names = {key[0] for key in known}
    return {
        top
        for top, found in packages_distributions().items()
        if names & {canonical(one) for one in found}
    }


def applies(requirement: Requirement, extras: list[str]) -> bool:
    return requirement.marker is None or any(
        requirement.marker.evaluate({"extra": extra}) for extra in extras
    )


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def confined(folder: Path, place: Path, clean: Mapping[str, str]) -> dict[str, str]:
    """The environment of an interpreter in which only the requirements of the model can be
    imported.
    """
    lines = (folder / "requirements.txt").read_text().split()
    allowed = brought_by(lines)
    assert not allowed & {"randomgen", "dp_accounting", "prefect"}
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(CONFINED)
    return {
        **clean,
        "PYTHONPATH": str(place),
        "TEST_ALLOWED": json.dumps(sorted(allowed)),
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{place}/none.db",
    }


def score(
    models: list[tuple[Path, dict[str, Any]]], place: Path, clean: Mapping[str, str]
) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", SCORE],
        input=json.dumps([(str(folder), frame) for folder, frame in models]),
        env=confined(models[0][0], place / "confined", clean),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert any(Path(answer["code"]).is_relative_to(folder) for folder, _ in models)
    found: list[dict[str, Any]] = answer["answers"]
    return found


def test_linear_and_ranking_models_need_their_requirements_alone(
    home: Home, small: Path, clean_environment: dict[str, str]
) -> None:
    ages = {"age": [20, 80], "city": ["south", "north"]}
    linear = find_schema(str(small))
    weights = np.array([1.0, 0.5, -0.5, -0.4])
    (small.parent / "lists.yaml").write_text(RANKING.format(ledger="sqlite:///lists.db"))
    lists = find_schema(str(small.parent / "lists.yaml"))
    documents: dict[str, Any] = {f"feature_{i}": [0.1 * i, 0.9, 0.3] for i in range(1, 7)} | {
        "query": ["a", "a", "b"]
    }
    names = model.raw_columns(lists.encoder())
    documents = dict(zip(names, [documents[f"feature_{i}"] for i in range(1, 7)], strict=True)) | {
        readers.QUERY: documents["query"]
    }
    kinds = RankingModel(features=("raw",))
    found, ranked = score(
        [
            (store(home, linear, weights), ages),
            (store(home, lists, np.arange(1.0, 8.0), ranker=kinds), documents),
        ],
        small.parent,
        clean_environment,
    )
    import pandas as pd

    expected = linear.encoder().transform(pd.DataFrame(ages)) @ weights
    np.testing.assert_allclose(found["score"], expected, rtol=0, atol=1e-12)
    assert found["label"] == ["yes" if value >= 0 else "no" for value in expected]
    assert sorted(ranked["rank"][:2]) == [1, 2]
    assert ranked["rank"][2] == 1


@pytest.mark.slow
def test_a_network_needs_its_requirements_alone(
    home: Home, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "shapes.yaml").write_text(CLASSES)
    schema = find_schema(str(tmp_path / "shapes.yaml"))
    encoder = schema.encoder()
    frame = {"width": [0.1, 0.9], "height": [0.7, 0.2]}
    import pandas as pd

    rows = encoder.transform(pd.DataFrame(frame))
    spec = NetworkSpec(inputs=rows.shape[1], outputs=3, kind="mlp", hidden=(4,))
    weights = np.linspace(-1, 1, spec.build().dimension)
    folder = store(home, schema, weights, spec=spec)
    assert any(
        line.startswith("torch==") for line in (folder / "requirements.txt").read_text().split()
    )
    [found] = score([(folder, frame)], tmp_path, clean_environment)
    assert len(found["label"]) == 2
    assert set(found["label"]) <= {"disc", "cross", "bar"}


@pytest.mark.slow
def test_a_model_is_served_from_its_requirements_alone(
    home: Home, small: Path, clean_environment: dict[str, str]
) -> None:
    schema = find_schema(str(small))
    weights = np.array([1.0, 0.5, -0.5, -0.4])
    folder = store(home, schema, weights)
    port = free_port()
    call = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        str(folder),
        "--env-manager",
        "local",
    ]
    environment = confined(folder, small.parent / "confined", clean_environment)
    # MLflow starts its server by name, so the programs of this environment have to be found first.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    frame = {"age": [20, 80], "city": ["south", "north"]}
    body = json.dumps(
        {
            "dataframe_split": {
                "columns": list(frame),
                "data": list(zip(*frame.values(), strict=True)),
            }
        }
    )
    place = f"http://127.0.0.1:{port}/invocations"
    request = Request(place, body.encode(), headers={"Content-Type": "application/json"})
    table = Request(place, b"city,age\nsouth,20\nnorth,80\n", headers={"Content-Type": "text/csv"})
    incomplete = Request(place, b"city\nsouth\n", headers={"Content-Type": "text/csv"})
    with (
        (small.parent / "serve.log").open("w") as log,
        subprocess.Popen(
            [*call, "--host", "127.0.0.1", "--port", str(port)],
            cwd=small.parent,
            env=environment,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            answers = [json.loads(ask(one, process))["predictions"] for one in (request, table)]
            with pytest.raises(HTTPError) as refused:
                urlopen(incomplete, timeout=300)
        finally:
            process.terminate()
            process.wait(timeout=300)
    import pandas as pd

    expected = schema.encoder().transform(pd.DataFrame(frame)) @ weights
    for answer in answers:
        np.testing.assert_allclose([row["score"] for row in answer], expected, rtol=0, atol=1e-12)
    assert refused.value.code == 400
    assert "got none for age; add it" in refused.value.read().decode()


def test_requirements_follow_from_what_the_scorer_imports(tmp_path: Path) -> None:
    (tmp_path / "scorer.py").write_text(
        "from typing import TYPE_CHECKING\nimport json\nimport dpcore.errors\nif TYPE_CHECKING:\n  "
        "  import prefect\ndef later():\n    from dpcore.noise import discrete_gaussian\n    "
        "import yaml\n"
    )
    assert (
        libraries(tmp_path / "scorer.py") == {"numpy", "randomgen", "yaml"} | libraries_of_noise()
    )
    names = {line.partition("==")[0] for line in requirements(model.SCORER_FILE)}
    assert names == {"mlflow", "numpy", "pandas", "scipy", "scikit-learn"}
    network = {line.partition("==")[0] for line in requirements(model.SCORER_FILE, network=True)}
    assert network - names == {"torch", "safetensors"}
    assert not any("+" in line for line in requirements(model.SCORER_FILE, network=True))
    for name, known in OTHER_NAMES.items():
        assert known in packages_distributions()[name]


def libraries_of_noise() -> set[str]:
    import dpcore.noise

    return libraries(Path(str(dpcore.noise.__file__)))
