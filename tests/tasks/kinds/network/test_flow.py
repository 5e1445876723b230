"""Networks through the whole flow: configuration, training, curves, stored state, prediction, audit
and release.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load

from dpcore.errors import AssumptionNotMet, InputError
from dpcore.network.network import NetworkObjective
from dpcore.network.spec import KINDS, NetworkSpec
from dpcore.preprocess.design import Data
from flows.cli import run
from flows.commands.audit import read
from tasks import training
from tasks.audit import audit
from tasks.config import TrainConfig, load_config, parse_config
from tasks.config.train import ModelSection
from tasks.home import Home
from tasks.kinds.network import LAYERS, READ, check_read
from tasks.kinds.quality import SUBGROUPS
from tasks.record import stored as record_stored
from tasks.record import tracking
from tests.flows.small import small_frame
from tests.tasks.kinds.network.conftest import SIDE, pictures
from tests.tasks.release.runs import World
from tests.tasks.training.test_training import config_of

pytest.importorskip("torch")
pytest.importorskip("safetensors")

QUICK = {
    "name": "dp_sgd",
    "steps": 12,
    "sampling_rate": 0.2,
    "clip_norm": 0.5,
    "learning_rate": 0.5,
    "momentum": 0.8,
}
PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib"}


def picture_config(schema: Path, **sections: dict[str, Any]) -> TrainConfig:
    values: dict[str, dict[str, Any]] = {
        "data": {"name": str(schema), "path": str(schema.parent)},
        "model": {"kind": "mlp", "hidden": [16], "standardise": True},
        "privacy": {"epsilon": 8.0, "delta": 1e-4},
        "algorithm": QUICK,
        "evaluate": {"baselines": False},
    }
    return parse_config(
        {name: {**values.get(name, {}), **sections.get(name, {})} for name in {*values, *sections}}
    )


@pytest.mark.slow
def test_images_are_trained_on_tracked_and_predicted(
    server: str, home: Home, images: Path, tmp_path: Path
) -> None:
    from flows.train import train

    summary = train(
        picture_config(images, evaluate={"baselines": True}, tracking={"experiment": "pictures"})
    )
    client = tracking.tracking_client(home)
    run_ = client.get_run(summary["run_id"])
    metrics = run_.data.metrics
    assert (
        metrics["released.accuracy"]
        == metrics["internal.accuracy"]
        > metrics["internal.majority_accuracy"]
    )
    assert metrics["internal.non_private_accuracy"] > 0.9
    assert (
        run_.data.params["model.kind"] == "mlp"
        and run_.data.params["objective.loss"] == "cross_entropy"
    )
    for name in ("released.curve.accuracy", "released.curve.objective"):
        history = client.get_metric_history(summary["run_id"], name)
        assert [point.step for point in history] == list(range(13))
    objective = [
        p.value for p in client.get_metric_history(summary["run_id"], "released.curve.objective")
    ]
    assert objective[-1] < objective[0] == pytest.approx(np.log(3), abs=0.3)
    assert len(client.get_metric_history(summary["run_id"], "released.step_size")) == 12
    figures = {item.path for item in client.list_artifacts(summary["run_id"], "figures/network")}
    assert figures == {
        f"figures/network/{name}.png" for name in ("accuracy", "objective", "step_size")
    }
    for name in ("balanced_accuracy", "brier_score"):
        assert 0.0 < metrics[f"released.{name}"] < 1.0

    X, y = pictures(100, 2)
    frame = pd.DataFrame(X.reshape(100, -1), columns=[f"pixel{j + 1}" for j in range(SIDE * SIDE)])
    scored = record_stored.load_model(record_stored.run_model(client, summary["run_id"])).predict(
        frame
    )
    right = np.mean(scored["label"].to_numpy(dtype=str) == y.astype(str))
    assert right == pytest.approx(metrics["internal.accuracy"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert run(["predict", summary["run_id"], "new.csv", "--output", "scored.csv"]) == 0
    assert list(pd.read_csv(tmp_path / "scored.csv", dtype=str)["label"]) == list(scored["label"])


def test_a_table_is_trained_on_audited_and_released(
    world: World, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = QUICK | {"sampling_rate": 1.0}
    config = world.config(
        model={"kind": "mlp", "hidden": [6]}, algorithm=full, privacy={"epsilon": 2.0}
    )
    run_id = world.train(config)
    uri = record_stored.run_model(world.client, run_id)
    folder = next(world.home.artifacts.rglob(uri.removeprefix("models:/"))) / "artifacts"
    assert not [path for path in folder.rglob("*") if path.suffix in PICKLES]
    assert "torch==" in (folder / "requirements.txt").read_text()

    stored = read(world.client, run_id, world.ledger_url)
    assert not [finding for finding in audit(stored).findings if finding.severity == "block"]
    state = load(stored.model["state.safetensors"])
    assert {name: value.shape for name, value in state.items()} == {
        "0.weight": (6, 3), "0.bias": (6,), "2.weight": (2, 6), "2.bias": (2,),
    }  # fmt: skip
    card = json.loads(stored.model["model.json"])["network"]
    network = NetworkSpec(**card["spec"]).build()
    network.load_state(state)
    frame = small_frame(np.random.default_rng(1), 30).drop(columns="paid")
    scored = record_stored.load_model(uri).predict(frame)
    scores = network.scores_of(training.prepare(config).encoder.transform(frame))
    np.testing.assert_array_equal(scored["score"], scores[:, 1] - scores[:, 0])
    assert list(scored["label"]) == ["yes" if lead > 0 else "no" for lead in scored["score"]]

    assert (
        run(
            [
                "release",
                run_id,
                "--to",
                "nets",
                "--approved-by",
                "A. Person",
                "--key",
                str(key),
                "--json",
            ]
        )
        == 0
    )
    bundle = Path(json.loads(capsys.readouterr().out)["bundle"])
    assert (bundle / "model/state.safetensors").read_bytes() == stored.model["state.safetensors"]
    assert run(["verify", str(bundle), "--any-signer"]) == 0
    text = (bundle / "README.md").read_text()
    assert (
        "A neural-network model" in text
        and "3 encoded columns" in text
        and "single precision" in text
    )


def test_groups_of_a_column_are_measured(world: World, tmp_path: Path) -> None:
    """Accuracy in each city is that of the rows of the city, and goes to the table that the report
    shows.
    """
    config = world.config(
        model={"kind": "linear"}, evaluate={"subgroup": "city", "baselines": False}
    )
    job = training.prepare(config)
    loaded = training.load_records(job)
    weights = np.random.default_rng(0).normal(size=job.problem.dimension)
    found = training.measure(job, weights, loaded, training.build_objective(job, loaded), tmp_path)
    frame = pd.read_csv(world.folder / "small.csv")
    assert job.model is not None
    network = job.model.build()
    network.load(weights)
    scores = network.scores_of(job.encoder.transform(frame))
    right = (np.argmax(scores, axis=1) == 1) == (frame["paid"] == "yes")
    table = {
        row["group"]: row["value"]
        for row in json.loads((tmp_path / SUBGROUPS).read_text())["groups"]
    }
    assert table == pytest.approx(right.groupby(frame["city"]).mean().to_dict())
    assert {f"internal.subgroup.{name}.accuracy" for name in table} <= set(found)


@pytest.mark.parametrize("change", ["flip", pytest.param("drop", marks=pytest.mark.slow)])
def test_a_changed_state_blocks_the_release(world: World, change: str) -> None:
    config = world.config(model={"kind": "linear"}, algorithm=QUICK, evaluate={"baselines": False})
    stored = read(world.client, world.train(config), world.ledger_url)
    data = stored.model["state.safetensors"]
    files = {name: value for name, value in stored.model.items() if name != "state.safetensors"}
    if change == "flip":
        files["state.safetensors"] = data[:-1] + bytes([data[-1] ^ 1])
    codes = {
        finding.code
        for finding in audit(replace(stored, model=files)).findings
        if finding.severity == "block"
    }
    assert codes == {"state_changed"}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"kind": "mpl"}}, "model: .*kind"),
        ({"model": {"kind": "cnn"}}, "model: .*image"),
        ({"model": {"kind": "linear", "hidden": [8]}}, r"no model\.hidden for model\.kind=linear"),
        ({"model": {"kind": "mlp", "width": 3}}, "did you mean|Unknown key"),
        ({"model": {"kind": "module", "path": "tests.dpcore.network.small:Batched"}}, "model: "),
        ({"objective": {"loss": "hinge"}}, "cross_entropy"),
        ({"objective": {"l1": 0.1}}, "objective.l1=0"),
        ({"preprocess": {"intercept": False}}, r"no preprocess\.intercept"),
        ({"evaluate": {"release": {"metric": "accuracy"}}}, "evaluate.release"),
        ({"tune": {"grid": {"algorithm.learning_rate": [1, 2]}}}, "section tune beside model"),
        (
            {"algorithm": {"name": "output_gd"}, "privacy": {"adjacency": "replace_one"}},
            "linear model",
        ),
        ({"algorithm": {"name": "scaled_gd"}}, "linear model"),
    ],
)
def test_what_does_not_go_with_a_network_is_refused(
    small: Path, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises((InputError, AssumptionNotMet), match=words):
        training.plan_training(
            training.prepare(config_of(small, **({"model": {"kind": "mlp"}} | sections)))
        )


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [("mnist_mlp", "mlp", 118_794), *(pytest.param(*example, marks=pytest.mark.slow) for example in (
        ("mnist_blsgd", "mlp", 269_322), ("mnist_cnn", "wavelet_cnn", 12_938), ("mnist_scattering", "scattering", 39_700),
        ("fmnist_mlp", "mlp", 269_322), ("fmnist_cnn", "cnn", 139_414), ("cifar10_cnn", "deep_cnn", 5_851_338),
     ))],
)  # fmt: skip
def test_the_examples_meet_their_budget(name: str, kind: str, parameters: int) -> None:
    root = Path(__file__).resolve().parents[4]
    job = training.prepare(load_config(str(root / "conf" / f"{name}.yaml")))
    assert (job.model.kind, job.problem.dimension) == (kind, parameters)
    planned = training.plan_training(job)
    assert 0.99 * job.config.privacy.epsilon <= planned.spent_epsilon <= job.config.privacy.epsilon


@pytest.mark.slow
def test_cifar_files_are_read_and_trained_on(home: Home, tmp_path: Path) -> None:
    """A generated file in CIFAR-10's binary layout: a label byte, then the red, green and blue
    planes.
    """
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows = rng.integers(0, 256, (12, 3073)).astype(np.uint8)
        rows[:, 0] = np.arange(12) % 10
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    root = Path(__file__).resolve().parents[4]
    settings = ("data.path=.", "algorithm.steps=2", "algorithm.sampling_rate=0.0001")
    job = training.prepare(load_config(str(root / "conf" / "cifar10_cnn.yaml"), settings))
    loaded = training.load_records(job)
    sums = training.build_objective(job, loaded).open()
    assert isinstance(sums, NetworkObjective) and isinstance(loaded.open().train, Data)
    assert sums.n == 60 and sums.records.x.shape == (60, 3, 32, 32)
    first = np.frombuffer((tmp_path / "data_batch_1.bin").read_bytes(), np.uint8)
    red = first[1:1025].reshape(32, 32)
    shown = sums.take(np.array([0])).records.x[0, 0].numpy()
    assert np.corrcoef(shown.ravel(), red.ravel())[0, 1] > 0.999999
    moved = sums.take(np.arange(3)).gradient_sum(np.zeros(sums.dimension), 0.1)
    assert 0.0 < np.linalg.norm(moved) <= 0.3


@pytest.mark.slow
def test_quality_on_another_set_and_the_empirical_audit(world: World) -> None:
    from tasks.audit.recompute import attack_run

    config = world.config(model={"kind": "linear"}, algorithm=QUICK, evaluate={"baselines": False})
    run_id = world.train(config)
    stored = read(world.client, run_id, world.ledger_url)
    assert "linear models" in attack_run(stored)["skipped"]
    job = training.prepare(config)
    part = training.load_records(job).open().train
    with np.load(io.BytesIO(stored.model["weights.npz"])) as arrays:
        found = job.kind.quality(job, part, arrays["weights"])
    assert found["accuracy"] == pytest.approx(
        world.client.get_run(run_id).data.metrics["internal.accuracy"]
    )
    assert set(found) == {
        "accuracy",
        "balanced_accuracy",
        "roc_auc",
        "average_precision",
        "brier_score",
        "log_loss",
    }


def test_the_numbers_of_a_network_are_those_of_linear_models() -> None:
    """Scores (0, z) of two classes say what the margin z says; of three they are the scores of
    softmax regression.
    """
    from sklearn.metrics import (
        average_precision_score,
        balanced_accuracy_score,
        brier_score_loss,
        log_loss,
        roc_auc_score,
    )

    from tasks.kinds.network import classified

    rng = np.random.default_rng(0)
    y, z = rng.integers(0, 2, 200), rng.normal(size=200)
    found = classified(y.astype(float), np.column_stack([1.0 - z / 2, 1.0 + z / 2]))
    assert found == pytest.approx(
        {
            "accuracy": np.mean((z > 0) == y),
            "balanced_accuracy": balanced_accuracy_score(y, z > 0),
            "roc_auc": roc_auc_score(y, z),
            "average_precision": average_precision_score(y, z),
            "brier_score": brier_score_loss(y, 1.0 / (1.0 + np.exp(-z))),
            "log_loss": log_loss(y, 1.0 / (1.0 + np.exp(-z))),
        }
    )
    y, scores = rng.integers(0, 3, 200), rng.normal(size=(200, 3))
    chance = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert classified(y.astype(float), scores) == pytest.approx(
        {
            "accuracy": np.mean(scores.argmax(1) == y),
            "balanced_accuracy": balanced_accuracy_score(y, scores.argmax(1)),
            "brier_score": np.mean(((chance - np.eye(3)[y]) ** 2).sum(1)),
            "log_loss": log_loss(y, chance),
        }
    )


OTHERS: dict[str, Any] = {
    "hidden": (8,),
    "activation": "relu",
    "pool": "mean",
    "group_norm": True,
    "standard_weights": True,
    "centred": True,
    "arguments": {"in_features": 784, "out_features": 2, "bias": False},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_is_refused_where_the_layers_of_a_kind_do_not_read_it(
    kind: str, name: str
) -> None:
    base: dict[str, Any] = {"kind": kind}
    if kind == "module":
        arguments = {"in_features": 784, "out_features": 2}
        base |= {"path": "torch.nn:Linear", "arguments": arguments}
    facts = {"inputs": 784, "outputs": 2, "image": (1, 28, 28)}
    scores = []
    for values in (base, base | {name: OTHERS[name]}):
        network = NetworkSpec(**facts, **values).build()
        ones = np.full((1, 784), 0.3, dtype=np.float32)
        draws = np.random.default_rng(0).normal(0.0, 0.1, network.dimension)
        found = NetworkObjective(network, ones, np.zeros(1)).scores(draws)
        scores.append((str(network.body), found.tolist()))
    given = ModelSection.model_validate(base | {name: OTHERS[name]})
    assert (scores[0] != scores[1]) is (name in READ.get(kind, ()))
    if name in READ.get(kind, ()):
        check_read(given)
    else:
        with pytest.raises(InputError, match=rf"no model\.{name} for model\.kind={kind}"):
            check_read(given)
    assert set(OTHERS) | {"path"} == set(LAYERS)
