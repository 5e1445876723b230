"""An algorithm once more with other values of its parameters, one parameter at a time.

Comparisons at given noise: nothing is asked of epsilon, which follows from the price of each
algorithm.

What is minimised in a comparison: losses and strengths, the common ones or those of one data set or
algorithm.

The public side of each combination: its training configuration and what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from dpcore.algorithms import make
from dpcore.algorithms.base import under_new_names
from dpcore.errors import InputError
from dpcore.problem import Adjacency
from tasks import training
from tasks.compare.config import (
    LINES,
    AlgorithmEntry,
    CompareConfig,
    CompareData,
    CompareObjective,
    ComparePrivacy,
    ProtocolSection,
)
from tasks.config import TrainConfig
from tasks.config.train import (
    AlgorithmSection,
    DataSection,
    EvaluateSection,
    ObjectiveSection,
    PrivacySection,
)
from tasks.kinds import kind_of
from tasks.kinds.base import WEAK_EPSILON, Job
from tasks.options import check_options
from tasks.schema import find_schema


@dataclass(frozen=True)
class Effect:
    """One parameter of the entry ``of``: its ``values`` in order, with the entry's own, and the
    ``labels`` of the runs.

    A value that the algorithm derives from public facts when it is left out is None.
    """

    of: str
    parameter: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the facts of a comparison."""
        return asdict(self)


def spread_out(entries: Iterable[AlgorithmEntry]) -> tuple[list[AlgorithmEntry], list[Effect]]:
    """The entries, each followed by one for every other value under its ``vary``, and what is
    varied.

    Raises ``InputError`` for a parameter that the algorithm lacks, for a line without privacy and
    for equal labels.
    """
    found: list[AlgorithmEntry] = []
    effects: list[Effect] = []
    for entry in entries:
        found.append(entry)
        if not entry.vary:
            continue
        if entry.name in (*LINES, "auto"):
            raise InputError(
                f"Expected an algorithm with parameters to vary, got name={entry.name!r}; leave "
                "vary out."
            )
        for parameter, values in entry.vary.items():
            others, effect = _one_parameter(entry, parameter, values)
            found += others
            effects.append(effect)
    labels = [entry.shown for entry in found if entry.name not in LINES]
    double = next((label for label in labels if labels.count(label) > 1), None)
    if double is not None:
        raise InputError(
            "Expected a label of its own for each algorithm and each varied value, but two are "
            f"called {double!r}; give `label`, or leave one out."
        )
    return found, effects


def _one_parameter(
    entry: AlgorithmEntry, parameter: str, values: tuple[Any, ...]
) -> tuple[list[AlgorithmEntry], Effect]:
    entry = entry.model_copy(update={"parameters": under_new_names(entry.name, entry.parameters)})
    [parameter] = under_new_names(entry.name, {parameter: None})
    # names an unknown parameter
    make(entry.name, entry.parameters | {parameter: values[0]}, entry.preset)
    own = make(entry.name, entry.parameters, entry.preset).given()[parameter]
    others = [_with(entry, parameter, value) for value in values if value != own]
    labels = {repr(other.parameters[parameter]): other.shown for other in others} | {
        repr(own): entry.shown
    }
    order = [
        *([] if own in values else [own]),
        *(own if value == own else value for value in values),
    ]
    if all(_is_number(value) for value in order):
        order.sort()
    return others, Effect(
        entry.shown, parameter, tuple(order), tuple(labels[repr(value)] for value in order)
    )


def _with(entry: AlgorithmEntry, parameter: str, value: Any) -> AlgorithmEntry:
    label = f"{entry.label} {parameter}={value}" if entry.label else None
    changes = {"parameters": entry.parameters | {parameter: value}, "label": label, "vary": {}}
    return entry.model_copy(update=changes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# A noise multiplier that is given "must fit" the target; this one is there to be converted and
# admits every price.
OPEN_EPSILON = 1e12
# Two prices that differ by no more than this share are one epsilon: folds differ in size by one
# record.
SAME = 0.01


def levels(config: CompareConfig, base: TrainConfig) -> list[tuple[TrainConfig, float | None]]:
    """``base`` at every epsilon, or at every given noise multiplier (with it), in the order of the
    configuration.
    """
    if config.privacy.noise_multiplier is None:
        return [(_at(base, epsilon), None) for epsilon in config.epsilons]
    found: list[tuple[TrainConfig, float | None]] = []
    for noise in config.privacy.noise_multiplier:
        algorithm = base.algorithm.model_copy(update={"noise_multiplier": noise})
        found.append((_at(base.model_copy(update={"algorithm": algorithm}), OPEN_EPSILON), noise))
    return found


def _at(config: TrainConfig, epsilon: float) -> TrainConfig:
    return config.model_copy(
        update={"privacy": config.privacy.model_copy(update={"epsilon": epsilon})}
    )


def weak(noise: float | None, spent: float) -> list[str]:
    """A warning where the epsilon that followed from given noise promises next to nothing."""
    if noise is None or spent <= WEAK_EPSILON:
        return []
    return [f"noise_multiplier={noise:g} gives epsilon={spent:.3g}, which protects hardly anybody."]


def same_price(items: Sequence[tuple[Any, float | None]]) -> list[list[Any]]:
    """Items with their epsilon, parted so that those of one part have the same one (within
    ``SAME``).
    """
    parts: list[list[Any]] = []
    first = -math.inf
    for item, spent in sorted(items, key=lambda pair: math.inf if pair[1] is None else pair[1]):
        value = math.inf if spent is None else spent
        if not parts or value > first * (1.0 + SAME):
            parts.append([])
            first = value
        parts[-1].append(item)
    return parts


def price_words(curves: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """Epsilon in the middle and at the end of the curves of each label, as the captions of Chen
    (2020), Figure 6.1.

    Said once where all labels have the same; for more than two different ones the range alone: a
    table has them all.
    """
    told: dict[str, list[str]] = {}
    ends: list[float] = []
    for label, points in curves.items():
        spent = {
            int(point["step"]): float(point["spent_epsilon"])
            for point in points
            if point.get("spent_epsilon")
        }
        if not spent:
            continue
        last = max(spent)
        middle = min(spent, key=lambda step: abs(step - last / 2))
        steps = dict.fromkeys((middle, last))
        ends.append(spent[last])
        told.setdefault(", ".join(f"{spent[step]:.3g} at {step}" for step in steps), []).append(
            label
        )
    if len(told) == 1:
        return f"epsilon {next(iter(told))}"
    if len(told) > 2:
        return f"epsilon {min(ends):.3g} to {max(ends):.3g} after the last iteration"
    return "; ".join(f"{', '.join(labels)}: epsilon {words}" for words, labels in told.items())


def losses_of(config: CompareConfig, data: CompareData) -> tuple[str, ...]:
    """The losses on a data set, where an algorithm brings none of its own."""
    return data.loss or config.objective.loss


def strengths_of(config: CompareConfig, data: CompareData) -> Sequence[float | None]:
    """The L2 strengths on a data set, None for each algorithm's own rule."""
    return data.l2 or config.objective.l2 or (None,)


def several(config: CompareConfig, name: str) -> dict[str, bool]:
    """By loss, l1, l2 and adjacency: whether the settings of the data set ``name`` differ in it."""
    own = [data for data in config.data if data.name == name]
    return {
        "loss": len({loss for data in own for loss in losses_of(config, data)}) > 1,
        "l1": len(config.objective.l1) > 1,
        "l2": len({strength for data in own for strength in strengths_of(config, data)}) > 1,
        "adjacency": len(config.privacy.adjacency) > 1,
    }


def objectives_of(
    config: CompareConfig, data: CompareData, entry: AlgorithmEntry | None = None
) -> Iterator[ObjectiveSection]:
    """Every loss with every L1 and L2 strength. Those of an algorithm come before those of the
    data, these before the common ones."""
    common = config.objective
    losses, strengths = losses_of(config, data), strengths_of(config, data)
    given = None
    if entry is not None:
        losses = losses if entry.loss is None else (entry.loss,)
        strengths = strengths if entry.l2 is None else (entry.l2,)
        given = entry.loss_parameters
    for loss, l1, l2 in product(losses, common.l1, strengths):
        parameters = common.loss_parameters.get(loss, {}) if given is None else given
        yield ObjectiveSection(loss=loss, loss_parameters=parameters, l1=l1, l2=l2)


# A problem does not depend on delta; the delta of a comparison is checked against the rows of a
# fold (``warnings_of``).
SMALL_DELTA = 1e-15


class Jobs:
    """The public side of each combination, made once: it does not depend on epsilon, delta or an
    algorithm's steps.
    """

    def __init__(self) -> None:
        self._known: dict[str, Job] = {}

    def of(self, config: TrainConfig) -> Job:
        private = config.privacy.model_copy(update={"epsilon": 1.0, "delta": SMALL_DELTA})
        algorithm = AlgorithmSection(name=config.algorithm.name, preset=config.algorithm.preset)
        base = config.model_copy(update={"privacy": private, "algorithm": algorithm})
        if base.sha256 not in self._known:
            job = training.prepare(base, "compare")
            self._known[base.sha256] = replace(job, warnings=())
        return given(self._known[base.sha256], config)


def given(job: Job, config: TrainConfig) -> Job:
    """The job under a configuration that differs in what the problem does not depend on."""
    return replace(job, config=config, algorithm=config.algorithm)


def training_config(
    config: CompareConfig,
    data: CompareData,
    objective: ObjectiveSection,
    entry: AlgorithmEntry,
    adjacency: Adjacency,
) -> TrainConfig:
    """The configuration that trains one entry of a comparison, at the epsilon of a default."""
    privacy = config.privacy
    return TrainConfig(
        data=DataSection(
            name=data.name, path=data.path, test_path=data.test_path, blocks=data.blocks
        ),
        preprocess=entry.preprocess or config.preprocess,
        objective=objective,
        model=config.model,
        ranking=entry.ranking or config.ranking,
        privacy=PrivacySection(
            delta=config.delta,
            adjacency=adjacency,
            conversion=privacy.conversion,
            accountant=privacy.accountant,
            noise=privacy.noise,
        ),
        algorithm=AlgorithmSection(name=entry.name, preset=entry.preset, **entry.parameters),
        evaluate=EvaluateSection(baselines=False),
        # what runs elsewhere reads its rows into its own memory
        engine=config.engine if config.runner == "threads" else None,
        ledger=config.ledger,
        seed=config.seed,
    )


def of_training(config: TrainConfig, protocol: ProtocolSection, **options: Any) -> CompareConfig:
    """The comparison that cross-validates one training configuration; raises ``InputError`` for
    what has no place.
    """
    if config.data.period:
        raise InputError(
            f"Expected no data.period to cross-validate, got {config.data.period!r}: it is of a "
            "training that is made once; name data.blocks, or leave it out."
        )
    schema = find_schema(config.data.name)
    check_options(config, schema, kind_of(config, schema).name, "compare")
    objective, privacy, algorithm = config.objective, config.privacy, config.algorithm
    parameters = {objective.loss: objective.loss_parameters} if objective.loss_parameters else {}
    return CompareConfig(
        data=(
            CompareData(**config.data.model_dump(include={"name", "path", "test_path", "blocks"})),
        ),
        preprocess=config.preprocess,
        objective=CompareObjective(
            loss=(objective.loss,),
            loss_parameters=parameters,
            l1=(objective.l1,),
            l2=None if objective.l2 is None else (objective.l2,),
        ),
        model=config.model,
        ranking=config.ranking,
        privacy=ComparePrivacy(
            **{
                **privacy.model_dump(),
                "epsilon": (privacy.epsilon,),
                "adjacency": (privacy.adjacency,),
            }
        ),
        algorithms=(
            AlgorithmEntry(
                name=algorithm.name, preset=algorithm.preset, parameters=algorithm.parameters
            ),
        ),
        protocol=protocol,
        ledger=config.ledger,
        tracking=config.tracking,
        seed=config.seed,
        reproducible=config.unsafe_fixed_noise_seed is not None,
        **options,
    )
