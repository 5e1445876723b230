"""Networks: model, encoder and public problem, private sums, and the stored state.

How well a trained network classifies, beside the majority class and Adam without privacy: internal
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from hashlib import sha256
from math import isqrt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.observers import Iterates
from dpcore.errors import InputError
from dpcore.metrics import (
    average_precision,
    balanced_accuracy,
    brier_score,
    log_loss,
    mean_recall,
    probabilities,
    roc_auc,
)
from dpcore.network import MARGINS
from dpcore.network.spec import IMAGES, PACKAGES, NetworkSpec, network_problem
from dpcore.preprocess.design import Data
from dpcore.train import Planned, plan, run
from tasks.config import TrainConfig
from tasks.config.train import ModelSection
from tasks.data import Loaded
from tasks.drawing.curves import curve_figure
from tasks.kinds.base import Array, Job, Kind, Metrics, Words
from tasks.kinds.quality import BY_LABEL
from tasks.schema import Schema

STATE = "state.safetensors"
# Losses that a configuration may name: the one of the output layer, and its special case of two
# classes.
LOSSES = ("cross_entropy", "softmax", "logistic")
# What is remembered of a run to draw its curves: together at most this many numbers, and at most so
# many iterates.
REMEMBERED, MOST_ITERATES = 20_000_000, 30
# Records that the curve of the objective is computed on.
CURVE_RECORDS = 10_000
SINGLE = (
    f"the network computes in single precision: its clips are cut by {100 * MARGINS['single']:g} "
    "percent to cover the rounding of sums, with model.precision double by "
    f"{100 * MARGINS['double']:g} percent, and so where a module is not made of known layers, for "
    "it computes in double at any rate; proved for any records, if one has the same bits whoever "
    "stands beside it, for which rows of products are filled up to whole registers"
)


class Network(Kind):
    """A neural network that classifies the rows of a table; its model is a ``NetworkSpec``."""

    name = "network"
    report = "network"
    noun = "network"
    exact = "adam"
    packages = PACKAGES
    baseline_words: ClassVar[Mapping[str, str]] = {"non_private_": "Adam, not private"}
    param_names = tuple(f"model.{field.name}" for field in fields(NetworkSpec))

    def fits(self, config: TrainConfig, schema: Schema) -> bool:
        return config.model is not None

    def describe(self, config: TrainConfig, schema: Schema) -> Job:
        section = config.model or ModelSection()
        check_network(config, schema)
        named = config.preprocess.model_dump(exclude_none=True)
        try:
            encoder = schema.encoder(
                **{"normalise": "none", "numeric": "minmax", **named, "intercept": False},
                sparse=False,
                dtype="float32",
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
        blocks = tuple(config.data.blocks or ())
        privacy, l2 = config.privacy, config.objective.l2 or 0.0
        problem = network_problem(
            network, schema.n(len(blocks) or 1), privacy.adjacency, l2=l2, unit=schema.unit
        )
        taken = blocks or ("all",)
        job = Job(config, schema, config.algorithm, self, spec, encoder, problem, taken)
        return replace(job, memory=network.memory(problem.n))

    def sums(self, job: Job, part: Any) -> Any:
        from dpcore.network.network import NetworkObjective

        if not isinstance(part, Data):
            raise InputError(
                "Expected a table of records for a network, got sessions; leave out section model."
            )
        return NetworkObjective(job.model.build(), part.X, class_numbers(part.y, job.model))

    def held_out(self, job: Job, data: Loaded, sums: Any) -> Any:
        """Sums over the test part, whose public features are computed once."""
        return sums if data.test is None else self.sums(job, data.test)

    def _scored(self, job: Job, part: Any) -> Any:
        """Sums over ``part``, which may still be rows, as folds of a comparison are."""
        return self.sums(job, part) if isinstance(part, Data) else part

    def quality(self, job: Job, part: Any, weights: Array) -> Metrics:
        objective = self._scored(job, part)
        return classified(objective.y, objective.scores(weights))

    def metric_names(self, job: Job) -> tuple[str, ...]:
        return BY_LABEL[job.schema.label.kind]

    def baselines(self, job: Job, train: Any, part: Any, sums: Any) -> dict[str, Metrics]:
        """The accuracy of the majority class of the training records, and Adam without privacy."""
        majority = np.bincount(sums.records.y.numpy(), minlength=job.model.outputs).argmax()
        adam = run(plan("adam", {}, job.problem), sums, seed=job.config.seed).weights
        return {
            "majority_": {"accuracy": float(np.mean(part.y == majority))},
            "non_private_": self.quality(job, part, adam),
        }

    def by_record(self, job: Job, part: Any, weights: Array) -> tuple[str, Array]:
        objective = self._scored(job, part)
        return "accuracy", np.argmax(objective.scores(weights), axis=1) == objective.y

    def iterates(self, job: Job, planned: Planned) -> Iterates:
        return Iterates(
            max(4, min(MOST_ITERATES, REMEMBERED // job.problem.dimension)), of="gradients"
        )

    def curve(
        self, job: Job, iterates: Iterable[tuple[int, Array]], part: Any, sums: Any
    ) -> list[Metrics]:
        """Accuracy, and the mean loss with the L2 term on at most 10,000 training records: Fig. 5.5
        of Chen (2020).
        """
        stride = max(1, -(-sums.n // CURVE_RECORDS))
        some, tested = sums.take(slice(0, None, stride)), self._scored(job, part)
        rows = []
        for iteration, w in iterates:
            loss = float(some.value_sum(w)[0]) / some.n + job.problem.l2 / 2 * float(w @ w)
            accuracy = float(np.mean(np.argmax(tested.scores(w), axis=1) == tested.y))
            rows.append({"iteration": iteration, "accuracy": accuracy, "objective": loss})
        return rows

    def curves(self, job: Job) -> tuple[str, ...]:
        return "accuracy", "objective"

    def save(self, folder: Path, job: Job, planned: Planned, weights: Array) -> dict[str, Any]:
        """The parameters go to ``state.safetensors``; the card names the network and the hash of
        that file.
        """
        return {"network": save_state(folder, job.model, weights)}

    def words(self, job: Job, planned: Planned, weights: Array) -> Words:
        shown = {
            key: value
            for key, value in asdict(job.model).items()
            if key not in ("arguments", "seed")
        }
        return Words(
            limits=(SINGLE,) if job.model.precision == "single" else (),
            params={
                f"model.{key}": value for key, value in shown.items() if value not in (None, ())
            },
        )

    def write_notes(self, folder: Path, job: Job, notes: Sequence[Mapping[str, float]]) -> None:
        """The step size of every iteration as ``step_size.png``; nothing where none was noted."""
        steps = [note["step_size"] for note in notes if "step_size" in note]
        if not steps:
            return
        place = folder / self.figures / "step_size.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        path = [{"iteration": number, "step_size": step} for number, step in enumerate(steps, 1)]
        curve_figure(
            [{"label": job.algorithm.name, "curve": path}], {}, "step_size", job.schema.name, place
        )


def save_state(folder: Path, spec: NetworkSpec, weights: Array) -> dict[str, Any]:
    """Write the parameters to ``state.safetensors``; return what the card says: the network and
    that file's hash.
    """
    from safetensors.numpy import save

    data = save(spec.build().state(weights))
    (folder / STATE).write_bytes(data)
    return {"spec": spec.to_dict(), "state_sha256": sha256(data).hexdigest()}


def image_of(kind: str, inputs: int) -> tuple[int, ...]:
    """A square image of one or three colours with ``inputs`` numbers, for a kind that reads images;
    else nothing.
    """
    for colours in (1, 3):
        side = isqrt(inputs // colours)
        if kind in IMAGES and colours * side * side == inputs:
            return colours, side, side
    return ()


def check_network(config: TrainConfig, schema: Schema) -> None:
    """Raise ``InputError`` where data or objective do not go with a network."""
    if schema.public.n is None and not config.data.blocks:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, which declares rows_per_block, got "
            "none; list the blocks to train on."
        )
    if config.objective.loss not in LOSSES:
        raise InputError(
            f"Expected objective.loss {' or '.join(LOSSES)} for a network (all of them "
            f"cross-entropy), got {config.objective.loss!r}; set objective.loss=cross_entropy."
        )
    if schema.label.weights is not None:
        raise InputError(
            f"Expected no label.weights in schema {schema.name!r} for a network, whose loss has "
            "none; leave them out."
        )
    if config.objective.l1 > 0:
        raise InputError(
            f"Expected objective.l1=0 for a network, got {config.objective.l1:g}; use l2."
        )
    if not config.preprocess.intercept:
        raise InputError(
            "Expected no preprocess.intercept for a network, whose layers have their own, got "
            "false; leave it out."
        )
    check_read(config.model or ModelSection())


# What the layers of each kind read of section ``model``; the rest is read for every kind.
CONVOLUTIONS = ("activation", "pool", "group_norm", "standard_weights")
LAYERS = ("hidden", *CONVOLUTIONS, "centred", "path", "arguments")
READ = {
    "mlp": ("hidden", "activation", "group_norm", "standard_weights"),
    "cnn": CONVOLUTIONS,
    "small_cnn": CONVOLUTIONS,
    "deep_cnn": CONVOLUTIONS,
    "scattering": ("centred",),
    "wavelet_cnn": ("activation", "group_norm", "standard_weights", "centred"),
    "module": ("path", "arguments"),
}


def check_read(section: ModelSection) -> None:
    """Raise ``InputError`` for a setting that the layers of a kind do not read."""
    unset, read = ModelSection(), (*READ.get(section.kind, ()), "path")
    for name in (field for field in LAYERS if field not in read):
        if (value := getattr(section, name)) != getattr(unset, name):
            kinds = ", ".join(kind for kind, names in READ.items() if name in names)
            shown = list(value) if isinstance(value, tuple) else value
            raise InputError(
                f"Expected no model.{name} for model.kind={section.kind}, whose layers do not read "
                f"it, got {shown!r}; leave it out (kinds that read it: {kinds})."
            )


def class_numbers(y: Array, spec: NetworkSpec) -> Array:
    """Class numbers of labels; of two classes -1 is class 0 and +1 is class 1."""
    return (
        (np.asarray(y) + 1.0) / 2.0
        if spec.outputs == 2 and np.min(y, initial=0.0) < 0
        else np.asarray(y)
    )


def classified(y: Array, scores: Array) -> Metrics:
    """Accuracy, balanced accuracy, Brier score and log loss; of two classes ROC AUC and average
    precision of the lead as well.

    The same numbers as of linear models (``tasks.kinds.quality.predicted``): a softmax of scores is
    what cross-entropy takes for the chances of the classes, and of two classes their difference for
    the log-odds.
    """
    label = np.argmax(scores, axis=1)
    found = {"accuracy": float(np.mean(label == y))}
    if scores.shape[1] > 2:
        chance = probabilities("softmax", scores)
        assert chance is not None
        return found | {
            "balanced_accuracy": mean_recall(y, label),
            "brier_score": brier_score(y, chance),
            "log_loss": log_loss(y, scores),
        }
    lead, sign = scores[:, 1] - scores[:, 0], 2.0 * y - 1.0
    chance = probabilities("logistic", lead)
    assert chance is not None
    return found | {
        "balanced_accuracy": balanced_accuracy(sign, lead),
        "roc_auc": roc_auc(sign, lead),
        "average_precision": average_precision(sign, lead),
        "brier_score": brier_score(sign, chance),
        "log_loss": log_loss(sign, lead),
    }
