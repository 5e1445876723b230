"""The network side of a training: model, encoder and public problem, private sums, and the stored state.

How well a trained network classifies, beside the majority class and Adam without privacy: internal numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.errors import InputError
from dpcore.metrics import average_precision, balanced_accuracy, brier_score, mean_recall, probabilities, roc_auc
from dpcore.network.spec import IMAGES, NetworkSpec, network_problem
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.preprocess.design import Data
from dpcore.problem import Problem
from dpcore.ranking.model import Watched
from dpcore.train import plan, run
from tasks.config import TrainConfig
from tasks.config.train import ModelSection
from tasks.drawing.curves import curve_figure
from tasks.kinds.quality import means_by_group
from tasks.schema import Schema

if TYPE_CHECKING:
    from tasks.data import Loaded
    from tasks.kinds.base import Job


Array = np.ndarray

STATE = "state.safetensors"
# Losses that a configuration may name: the one of the output layer, and its special case of two classes.
LOSSES = ("cross_entropy", "softmax", "logistic")
# What is remembered of a run to draw its curves: together at most this many numbers, and at most so many iterates.
REMEMBERED, MOST_ITERATES = 20_000_000, 30
SINGLE = (
    "the network computes in single precision: its clips are cut by 0.2 percent to cover the rounding of sums, twice "
    "the worst that was found on adversarial records, not proved; with model.precision double rounding is below a "
    "billionth"
)


def describe(config: TrainConfig, schema: Schema) -> tuple[Encoder | MatrixEncoder, NetworkSpec, Problem]:
    """Encoder, network and public problem; no file is opened. Raises ``InputError`` for what does not fit together."""
    section = config.model or ModelSection()
    check_network(config, schema)
    named = config.preprocess.model_dump(exclude_none=True)
    try:
        encoder = schema.encoder(
            **{"normalise": "none", "numeric": "minmax", **named, "intercept": False}, sparse=False, dtype="float32"
        )
    except InputError as error:
        raise type(error)(f"preprocess: {error}") from None
    inputs = encoder.design.dimension
    outputs = len(schema.label.levels) if schema.label.kind == "classes" else 2
    try:
        spec = NetworkSpec(
            inputs=inputs,
            outputs=outputs,
            image=section.image or image_of(section.kind, inputs),
            seed=config.seed,
            **section.model_dump(exclude={"image"}),
        )
        network = spec.build()
    except InputError as error:
        raise type(error)(f"model: {error}") from None
    blocks = config.data.blocks or ()
    privacy, l2 = config.privacy, config.objective.l2 or 0.0
    problem = network_problem(network, schema.n(len(blocks) or 1), privacy.adjacency, l2=l2, unit=schema.unit)
    return encoder, spec, problem


def image_of(kind: str, inputs: int) -> tuple[int, ...]:
    """A square image of one or three colours with ``inputs`` numbers, for a kind that reads images; else nothing."""
    for colours in (1, 3):
        side = isqrt(inputs // colours)
        if kind in IMAGES and colours * side * side == inputs:
            return colours, side, side
    return ()


def check_network(config: TrainConfig, schema: Schema) -> None:
    """Raise ``InputError`` where data or objective do not go with a network."""
    if schema.public.n is None and not config.data.blocks:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, which declares rows_per_block, got none; list the "
            "blocks to train on."
        )
    if config.objective.loss not in LOSSES:
        raise InputError(
            f"Expected objective.loss {' or '.join(LOSSES)} for a network (all of them cross-entropy), got "
            f"{config.objective.loss!r}; set objective.loss=cross_entropy."
        )
    if schema.label.weights is not None:
        raise InputError(
            f"Expected no label.weights in schema {schema.name!r} for a network, whose loss has none; leave them out."
        )
    if config.objective.l1 > 0:
        raise InputError(f"Expected objective.l1=0 for a network, got {config.objective.l1:g}; use l2.")


def network_sums(spec: NetworkSpec, problem: Problem, train: Any) -> Watched:
    """Private sums over the training records, checked against the public facts before anything is reserved."""
    from dpcore.network.network import NetworkObjective

    if not isinstance(train, Data):
        raise InputError("Expected a table of records for a network, got sessions; leave out section model.")
    objective = NetworkObjective(spec.build(), train.X, class_numbers(train.y, spec))
    objective.check_records(problem.dimension, problem.norm_bound)
    most = max(4, min(MOST_ITERATES, REMEMBERED // problem.dimension))
    return Watched(objective, most=most)  # type: ignore[arg-type]


def class_numbers(y: Array, spec: NetworkSpec) -> Array:
    """Class numbers of labels; of two classes -1 is class 0 and +1 is class 1."""
    return (np.asarray(y) + 1.0) / 2.0 if spec.outputs == 2 and np.min(y, initial=0.0) < 0 else np.asarray(y)


def save_state(folder: Path, job: Job, weights: Array) -> None:
    """Write the parameters to ``state.safetensors`` and name network and hash of that file in ``model.json``."""
    from safetensors.numpy import save

    assert job.network is not None
    data = save(job.network.build().state(weights))
    (folder / STATE).write_bytes(data)
    card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    card["network"] = {"spec": job.network.to_dict(), "state_sha256": sha256(data).hexdigest()}
    (folder / "model.json").write_text(json.dumps(card, indent=2, ensure_ascii=False), encoding="utf-8")


def limits(job: Job) -> list[str]:
    """What a statement has to say about the arithmetic of the network."""
    return [SINGLE] if job.network is not None and job.network.precision == "single" else []


def params(job: Job) -> dict[str, Any]:
    """The model's settings for the run's parameters."""
    if job.network is None:
        return {}
    shown = {key: value for key, value in asdict(job.network).items() if key not in ("arguments", "seed")}
    return {f"model.{key}": value for key, value in shown.items() if value not in (None, ())}


REPORT = "report/network.json"
FIGURES = "figures/network"
# Records that the curve of the objective is computed on.
CURVE_RECORDS = 10_000


def measure(job: Job, weights: Array, loaded: Loaded, sums: Watched, folder: Path | None = None) -> dict[str, float]:
    """Accuracy on the test part, else on the training records; exact: internal, released where the data are public.

    With ``folder`` the numbers are written to ``report/network.json`` with the curves over the iterations: accuracy,
    and the mean loss (with the L2 term) on at most 10,000 training records, as Fig. 5.5 of Chen (2020) shows them;
    accuracy by ``evaluate.subgroup`` goes to ``report/subgroups.json``.
    """
    from dpcore.network.network import NetworkObjective

    spec, train = job.network, sums.inner
    assert spec is not None and isinstance(loaded.train, Data) and isinstance(train, NetworkObjective)
    test: NetworkObjective = train
    if isinstance(loaded.test, Data):
        test = NetworkObjective(train.network, loaded.test.X, class_numbers(loaded.test.y, spec))
    scores = test.scores(weights)
    found = {f"internal.{key}": value for key, value in quality(test, scores).items()}
    right = np.argmax(scores, axis=1) == test.y
    groups = means_by_group(job, right, "accuracy", loaded.groups, folder)
    found |= {f"internal.{key}": value for key, value in groups.items()}
    if job.config.evaluate.baselines:
        majority = np.bincount(train.labels.numpy(), minlength=spec.outputs).argmax()
        adam = run(plan("adam", {}, job.problem), train, seed=job.config.seed).weights
        found["internal.majority_accuracy"] = float(np.mean(test.y == majority))
        exact = quality(test, test.scores(adam))
        found |= {f"internal.non_private_{key}": value for key, value in exact.items()}
    found |= {f"internal.{key}": value for key, value in loaded.report.counts().items()}
    if job.public:
        found |= {f"released.{key}": value for key, value in quality(test, scores).items()}
    if folder is not None:
        iterates = [*sums.iterates, (sums.iterates.count, weights)]
        write(job, folder, found, curve(job, iterates, train, test) if len(iterates) > 2 else [])
    return found


def measured(job: Job, part: Data, weights: Array) -> dict[str, float]:
    """Quality of the network at ``weights`` on the records ``part``."""
    from dpcore.network.network import NetworkObjective

    assert job.network is not None
    objective = NetworkObjective(job.network.build(), part.X, class_numbers(part.y, job.network))
    return quality(objective, objective.scores(weights))


def quality(objective: Any, scores: Array) -> dict[str, float]:
    """Accuracy, balanced accuracy and Brier score; of two classes ROC AUC and average precision of the lead as well.

    The same numbers as of linear models (``tasks.kinds.quality.predicted``): a softmax of scores is what cross-entropy
    takes for the chances of the classes, and of two classes their difference for the log-odds.
    """
    label = np.argmax(scores, axis=1)
    found = {"accuracy": float(np.mean(label == objective.y))}
    if scores.shape[1] > 2:
        chance = probabilities("softmax", scores)
        assert chance is not None
        return found | {
            "balanced_accuracy": mean_recall(objective.y, label),
            "brier_score": brier_score(objective.y, chance),
        }
    lead, y = scores[:, 1] - scores[:, 0], 2.0 * objective.y - 1.0
    chance = probabilities("logistic", lead)
    assert chance is not None
    return found | {
        "balanced_accuracy": balanced_accuracy(y, lead),
        "roc_auc": roc_auc(y, lead),
        "average_precision": average_precision(y, lead),
        "brier_score": brier_score(y, chance),
    }


def curve(job: Job, iterates: Iterable[tuple[int, Array]], train: Any, test: Any) -> list[dict[str, float]]:
    """Rows (iteration, accuracy, objective) for some of the iterates, which the algorithm released anyway."""
    stride = max(1, -(-train.n // CURVE_RECORDS))
    some = train.take(slice(0, None, stride))
    rows = []
    for iteration, w in iterates:
        loss = float(some.value_sum(w)[0]) / some.n + job.problem.l2 / 2 * float(w @ w)
        accuracy = float(np.mean(np.argmax(test.scores(w), axis=1) == test.y))
        rows.append({"iteration": iteration, "accuracy": accuracy, "objective": loss})
    return rows


def write(job: Job, folder: Path, metrics: Mapping[str, float], path: Sequence[Mapping[str, float]]) -> None:
    """The numbers as JSON, and the curves as figures."""
    stored = {"schema_version": 1, "internal": not job.public, "metrics": dict(metrics), "curve": list(path)}
    (folder / REPORT).parent.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if not path:
        return
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    word = "" if job.public else " (internal)"
    for metric in ("accuracy", "objective"):
        lines = {
            name: metrics[f"internal.{key}_{metric}"]
            for name, key in (("majority", "majority"), ("Adam, not private", "non_private"))
            if f"internal.{key}_{metric}" in metrics
        }
        rows = [{"label": "private network", "curve": path}]
        curve_figure(rows, lines, metric, f"{job.schema.name}{word}", folder / FIGURES / f"{metric}.png")


def step_figure(job: Job, notes: Sequence[Mapping[str, float]], folder: Path) -> None:
    """The step size of every iteration as ``figures/network/step_size.png``; nothing where none was noted.

    Notes follow from releases alone, so the figure may leave with them.
    """
    steps = [note["step_size"] for note in notes if "step_size" in note]
    if not steps:
        return
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    path = [{"iteration": number, "step_size": step} for number, step in enumerate(steps, 1)]
    rows = [{"label": job.config.algorithm.name, "curve": path}]
    curve_figure(rows, {}, "step_size", job.schema.name, folder / FIGURES / "step_size.png")
