"""The configuration of a comparison: lists where a training has one value, and a protocol.

How often and on which parts of the data a comparison runs: repeats, folds, draws, and presets of
the papers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dpcore.problem import Adjacency
from tasks.config.train import DELTA as DELTA_WORDS
from tasks.config.train import (
    SCHEMA_VERSION,
    EngineSection,
    LedgerSection,
    ModelSection,
    PreprocessSection,
    RankingSection,
    TrackingSection,
)
from tasks.config.values import (
    LIST,
    Count,
    Epsilon,
    Names,
    Number,
    NumberOrTarget,
    Places,
    Positive,
    Section,
    Strength,
    Values,
    Whole,
    named,
)
from tasks.peers import PEERS


class ProtocolSection(Section):
    """``repeats`` partitions of the training part into ``folds``, each trained with ``draws`` draws
    of the noise.

    With one fold the declared training part is trained on and the declared test part tested on.
    ``parts``: ranking data that come as partition files (S1, S2, ...) keep these as their folds,
    and repeats are draws. ``epsilon`` and ``delta`` are those of the source, used where the
    configuration names none.
    """

    name: str = Field(default="own", description="leave it out")
    repeats: Count = Field(default=1, description="1 or more")
    folds: Count = Field(default=3, description="1 (the declared split) or more")
    draws: Count = Field(default=1, description="1 or more")
    parts: bool = Field(default=False, description="true or false")
    epsilon: tuple[Number, ...] | None = Field(default=None, description="for example [0.1, 1]")
    delta: Number | None = Field(default=None, gt=0, lt=1, description="for example 1e-6")

    @property
    def partitions(self) -> int:
        """How many partitions into folds there are; partition files are one."""
        return 1 if self.parts else self.repeats

    @property
    def noise_draws(self) -> int:
        """Draws of the noise on each fold."""
        return self.repeats * self.draws if self.parts else self.draws

    @property
    def words(self) -> str:
        splits = (
            "the declared split" if self.folds == 1 else f"{self.partitions} x {self.folds} folds"
        )
        draws = self.noise_draws
        return f"{splits}, {draws} {'draw' if draws == 1 else 'draws'} of the noise each"


PROTOCOLS: dict[str, dict[str, Any]] = {
    "quick": {"repeats": 1, "folds": 3},
    "paper_ch3": {"repeats": 20, "folds": 5},
    "paper_ch4": {"repeats": 10, "folds": 10},
    "paper_ch5": {"repeats": 5, "folds": 10},
    "paper_ch6": {"repeats": 10, "folds": 5, "parts": True},
    "paper_003": {
        "repeats": 1,
        "folds": 1,
        "draws": 100,
        "epsilon": [0.1, 0.5, 1, 2],
        "delta": 1e-3,
    },
}


def named_protocol(value: object) -> object:
    """A name as its section; chapters are those of Chen (2020), 003 is Zhang et al. (2017)."""
    if not isinstance(value, str):
        return value
    if value not in PROTOCOLS:
        raise ValueError(f"{', '.join(PROTOCOLS)}, or a section with repeats and folds")
    return {"name": value, **PROTOCOLS[value]}


EPSILONS = (0.1, 0.2, 0.4, 0.8, 1.6)
DELTA = 1e-6
MAJORITY, MEAN_LABEL, NON_PRIVATE = "majority", "mean_label", "non_private"
LINES = (MAJORITY, MEAN_LABEL, NON_PRIVATE)


class CompareData(Section):
    """One data set. ``loss`` and ``l2`` take the place of those of the objective for this one
    alone.

    Of a table in blocks ``blocks`` are read, cut into folds together, and charged for every cell.
    """

    name: str = Field(min_length=1, description="name a schema of conf/data, or a YAML file")
    path: Places = Field(default=None, description="name files that exist")
    test_path: Places = Field(default=None, description="name files that exist")
    blocks: tuple[str, ...] | None = Field(
        default=None, description="for example [2026-01, 2026-02]"
    )
    loss: Names | None = Field(default=None, description="leave it out for those of the objective")
    l2: Annotated[tuple[Strength, ...], *LIST] | None = Field(
        default=None, description="for example [0, 0.1]"
    )


class CompareObjective(Section):
    """Every loss with every strength. ``loss_parameters`` by the name of the loss: {huber_hinge:
    {h: 0.5}}.
    """

    loss: Names = Field(default=("logistic",), description="for example [logistic, huber_hinge]")
    loss_parameters: dict[str, dict[str, NumberOrTarget]] = Field(
        default={}, description="for example {huber_hinge: {h: 0.5}}"
    )
    l1: Annotated[tuple[Strength, ...], *LIST] = Field(
        default=(0.0,), description="for example [0, 1e-4]"
    )
    l2: Annotated[tuple[Strength, ...], *LIST] | None = Field(
        default=None, description="for example [1e-4]; null for each algorithm's own rule"
    )


class ComparePrivacy(Section):
    epsilon: Annotated[tuple[Epsilon, ...], *LIST] | None = Field(
        default=None, description="for example [0.1, 1]; null for those of the protocol"
    )
    noise_multiplier: Annotated[tuple[Positive, ...], *LIST] | None = Field(
        default=None,
        description="for example [1.5, 2], in place of epsilon, which then follows from the price",
    )
    delta: Number | None = Field(default=None, gt=0, lt=1, description=DELTA_WORDS)
    adjacency: Annotated[tuple[Adjacency, ...], *LIST] = Field(
        default=(Adjacency.ADD_REMOVE,), description="which two tables are neighbours"
    )
    conversion: Literal["cks", "prop21"] = Field(default="cks", description="one of cks, prop21")
    accountant: Literal["auto", "rdp", "pld", "gdp", "profile", "pure", "advanced"] = Field(
        default="auto", description="auto takes the exact one where there is one, else rdp"
    )
    noise: Literal["rounded", "discrete"] = Field(
        default="rounded", description="discrete is exact and slower"
    )


class AlgorithmEntry(Section):
    """One algorithm. What stands below ``parameters`` takes the place of the common value for this
    entry alone.
    """

    name: str = Field(default="auto", min_length=1, description="for example dp_sgd or output_gd")
    preset: str | None = Field(
        default=None, description="paper takes the setting of the source; leave it out for ours"
    )
    label: str | None = Field(default=None, min_length=1, description="the name to show")
    parameters: dict[str, Any] = Field(default={}, description="for example {epochs: 10}")
    adjacency: Annotated[tuple[Adjacency, ...], *LIST] | None = Field(
        default=None, description="leave it out"
    )
    loss: str | None = Field(default=None, description="leave it out for those of the objective")
    loss_parameters: dict[str, NumberOrTarget] | None = Field(
        default=None, description="leave it out"
    )
    l2: Strength | None = Field(default=None, description="leave it out for that of the objective")
    preprocess: PreprocessSection | None = Field(default=None, description="normalise and numeric")
    ranking: RankingSection | None = Field(default=None, description="features, scorer and metrics")
    vary: dict[str, Values] = Field(
        default={}, description="for example {armijo: [0.1, 0.5]}, one parameter at a time"
    )

    @property
    def shown(self) -> str:
        """The label: as given, else name, preset and parameters."""
        if self.label:
            return self.label
        own = [f"{key}={value}" for key, value in self.parameters.items()]
        return " ".join([self.name, *([self.preset] if self.preset else []), *own])


class PeerEntry(Section):
    """Another library on the same folds. ``parameters``: those of ``tasks.peers``."""

    name: str = Field(min_length=1, description=f"one of {', '.join(PEERS)}")
    label: str | None = Field(default=None, min_length=1, description="the name to show")
    parameters: dict[str, Any] = Field(default={}, description="for example {epochs: 10}")
    preprocess: PreprocessSection | None = Field(default=None, description="normalise and numeric")

    @property
    def shown(self) -> str:
        return self.label or " ".join(
            [self.name, *(f"{key}={value}" for key, value in self.parameters.items())]
        )


class PeersSection(Section):
    """Other libraries beside ours, each in a process of its own; public data alone.

    ``python``: an interpreter that has them, where this one has not (diffprivlib needs an older
    scikit-learn).
    """

    python: str | None = Field(
        default=None, min_length=1, description="the path of an interpreter; null for this one"
    )
    timeout: Number = Field(
        default=600.0, gt=0, description="seconds for one training, for example 600"
    )
    libraries: Annotated[tuple[PeerEntry, ...], BeforeValidator(named), Field(min_length=1)] = (
        Field(description="names, or sections {name, label, parameters}, for example [opacus]")
    )


class CoverageSection(Section):
    """Which data have known relevant columns: their first ``relevant``."""

    data: Names = Field(default=("sparse-linear",), description="names of data sets")
    relevant: Count = Field(default=20, description="how many first columns matter")
    counts: Annotated[tuple[Count, ...], *LIST] = Field(
        default=(20, 40), description="for example [20, 40]"
    )


class PrintedLine(Section):
    """A number that a source prints, drawn across the figures of its metric as a line of its own
    name.
    """

    label: str = Field(min_length=1, description="the name to show, with the word printed")
    metric: str = Field(min_length=1, description="for example accuracy")
    value: Number = Field(description="the number as it is printed")
    data: str | None = Field(default=None, description="the name of a data set; null for all")


class CompareConfig(Section):
    """Everything that decides about a comparison. ``seed`` is the public one: folds and starts,
    never noise.
    """

    schema_version: Literal[1] = Field(
        default=1, description=f"this version of dpflows reads {SCHEMA_VERSION}"
    )
    data: Annotated[tuple[CompareData, ...], BeforeValidator(named), Field(min_length=1)] = Field(
        description="name the data, for example [census]"
    )
    preprocess: PreprocessSection = Field(
        default=PreprocessSection(), description="normalise and numeric"
    )
    objective: CompareObjective = Field(default=CompareObjective(), description="loss, l2 and l1")
    model: ModelSection | None = Field(
        default=None, description="for a neural network in place of a linear model"
    )
    ranking: RankingSection | None = Field(
        default=None, description="for ranking data alone: features and scorer"
    )
    privacy: ComparePrivacy = Field(
        default=ComparePrivacy(), description="epsilon, delta and adjacency"
    )
    peers: PeersSection | None = Field(
        default=None, description="for example {libraries: [{name: opacus}]}"
    )
    algorithms: Annotated[
        tuple[AlgorithmEntry, ...], BeforeValidator(named), Field(min_length=1)
    ] = Field(
        description="names, or sections {name, preset, label, parameters}, for example [auto, "
        "dp_sgd]"
    )
    protocol: Annotated[ProtocolSection, BeforeValidator(named_protocol)] = Field(
        default=ProtocolSection(name="quick", **PROTOCOLS["quick"]),
        description="quick, or {repeats: 5, folds: 10}",
    )
    printed: tuple[PrintedLine, ...] = Field(
        default=(), description="numbers that a source prints, drawn as lines beside ours"
    )
    quick: dict[str, Any] = Field(
        default={},
        description="what protocol=quick puts in, by dotted key: {privacy.epsilon: [0.1, 0.8]}",
    )
    metrics: Names | None = Field(
        default=None, description="for example [accuracy, objective]; null for all"
    )
    coverage: CoverageSection | None = Field(
        default=None, description="for example {relevant: 20, counts: [20, 40]}"
    )
    curve_every: Count | None = Field(
        default=None, description="a number of releases; null for no curves"
    )
    runner: Literal["threads", "processes", "dask"] = Field(
        default="threads", description="threads, processes or dask"
    )
    workers: Count | None = Field(default=None, description="null for one a processor")
    engine: EngineSection | None = Field(
        default=None,
        description="where rows are kept: kind, and the address of a scheduler, which runner: dask "
        "takes too",
    )
    reproducible: bool = Field(
        default=False, description="true draws noise from the seed, on public data alone"
    )
    ledger: LedgerSection = Field(default=LedgerSection(), description="where the budget is kept")
    tracking: TrackingSection = Field(
        default=TrackingSection(experiment="compare"), description="names in MLflow"
    )
    seed: Whole = Field(default=0, ge=0, description="any whole number from 0")

    @model_validator(mode="after")
    def _one_label_each(self) -> CompareConfig:
        labels = [entry.shown for entry in self.algorithms if entry.name not in LINES]
        labels += [entry.shown for entry in self.peers.libraries] if self.peers else []
        double = next(
            (label for label in labels if labels.count(label) > 1 or label in LINES), None
        )
        if double is not None:
            raise ValueError(
                f"a label of its own for each algorithm, but two are called {double!r}: give "
                "`label`"
            )
        return self

    @model_validator(mode="after")
    def _noise_once(self) -> CompareConfig:
        noise, epsilon = self.privacy.noise_multiplier, self.privacy.epsilon
        if noise is not None and epsilon is not None:
            raise ValueError(
                "privacy.epsilon or privacy.noise_multiplier, one of them, but both are given: the "
                "other one follows; leave one out (--set privacy.epsilon=null)"
            )
        given = (one.shown for one in self.algorithms if "noise_multiplier" in one.parameters)
        if noise is not None and (twice := next(given, None)) is not None:
            raise ValueError(
                f"privacy.noise_multiplier or that of algorithm {twice!r}, one of them, but both "
                "are given: leave one out"
            )
        if self.model is not None and self.peers is not None:
            raise ValueError(
                "libraries beside linear models, got peers with section model: leave one out"
            )
        return self

    @property
    def kind(self) -> str:
        """The command that it is for: compare, crossval or bench."""
        if self.protocol.name == "crossval":
            return "crossval"
        return "bench" if self.peers else "compare"

    @property
    def title(self) -> str:
        """What its run and its page are called."""
        # a name, or the file of a schema
        names = (Path(data.name).name.removesuffix(".yaml") for data in self.data)
        return self.tracking.name or f"{self.kind} {', '.join(names)}"

    @property
    def epsilons(self) -> tuple[float, ...]:
        return self.privacy.epsilon or self.protocol.epsilon or EPSILONS

    @property
    def delta(self) -> float:
        return self.privacy.delta or self.protocol.delta or DELTA
