"""The configuration of a training: its fields with their rules, files, overrides, and errors on one
line.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator

from dpcore.identity import canonical
from dpcore.problem import Adjacency
from tasks.config.values import MOST_EPSILON, Count, Number, NumberOrTarget, Places, Section, Whole

SCHEMA_VERSION = 1


class DataSection(Section):
    name: str = Field(
        default="census", min_length=1, description="name a schema of conf/data, or a YAML file"
    )
    path: Places = Field(default=None, description="name files that exist")
    test_path: Places = Field(default=None, description="name files that exist")
    blocks: tuple[str, ...] | None = Field(
        default=None, description="for example [2026-01, 2026-02]"
    )
    period: str | None = Field(
        default=None, description="leave it out: a scheduled retraining sets it"
    )

    @field_validator("blocks")
    @classmethod
    def _as_rows_name_them(cls, blocks: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """A block is charged by the text that its rows have by the identity rule."""
        return None if blocks is None else tuple(dict.fromkeys(map(canonical, blocks)))


class PreprocessSection(Section):
    normalise: Literal["none", "cap", "unit"] | None = Field(
        default=None, description="none, cap or unit; leave it out for what goes with the algorithm"
    )
    numeric: str | None = Field(
        default=None,
        description="minmax, log, centred, hats(8), bins(8), or one of them with +bins(256) for "
        "wide columns; leave it out for what goes with the algorithm",
    )
    crosses: tuple[tuple[Any, ...], ...] | None = Field(
        default=None,
        description="pairs of columns, for example [[month, {duration: bins(6)}]]; leave it out "
        "for the schema's",
    )
    cross_width: Count | None = Field(
        default=None, description="the most columns of one cross; leave it out for 1024"
    )
    intercept: bool = Field(
        default=True, description="true or false: a constant column beside the declared ones"
    )


class ObjectiveSection(Section):
    loss: str = Field(default="logistic", description="for example logistic or huber_hinge")
    loss_parameters: dict[str, NumberOrTarget] = Field(
        default={}, description="for example {h: 0.5} for huber_hinge"
    )
    l2: Number | None = Field(
        default=None, ge=0, description="0 is no penalty; leave it out for the algorithm's rule"
    )
    l1: Number = Field(
        default=0.0,
        ge=0,
        description="0 is no penalty; of another kind: algorithm.penalty, by ADMM",
    )


class RankingSection(Section):
    """The model of ranked lists and what its metrics mean; see
    ``dpcore.ranking.metrics.Conventions``.
    """

    features: tuple[Literal["raw", "rank"], ...] = Field(
        default=("raw", "rank"), description="[raw, rank]"
    )
    scorer: Literal["linear", "mlp"] = Field(default="linear", description="linear or mlp")
    hidden: tuple[Count, ...] = Field(
        default=(256,), description="widths of the mlp, for example [256]"
    )
    activation: Literal["relu", "tanh", "sigmoid"] = Field(
        default="relu", description="relu, tanh or sigmoid"
    )
    empty: Literal["skip", "zero", "one"] | None = Field(
        default=None, description="queries without a relevant document: skip, zero or one"
    )
    conventions: Literal["letor", "trec_eval"] | None = Field(
        default=None,
        description="of MAP and NDCG, as LETOR's script or trec_eval: letor or trec_eval",
    )
    ties: Literal["average", "worst"] = Field(default="average", description="average or worst")
    discount: Literal["log2", "letor"] | None = Field(default=None, description="log2 or letor")
    divisor: Literal["min_k", "retrieved", "relevant"] | None = Field(
        default=None, description="of AP@k: min_k, retrieved or relevant"
    )
    short: Literal["keep", "zero"] | None = Field(
        default=None, description="queries with fewer than k documents in NDCG@k: keep or zero"
    )
    gain: Literal["exponential", "linear"] | None = Field(
        default=None, description="of NDCG: exponential (2^grade - 1) or linear"
    )
    relevant_from: Number = Field(
        default=1.0, gt=0, description="the least grade that counts as relevant"
    )
    at: tuple[Count, ...] = Field(default=(1, 2, 4, 8), description="ranks k of NDCG@k")
    map_at: tuple[Count, ...] = Field(default=(), description="ranks k of MAP@k, for example [10]")


class ModelSection(Section):
    """A neural network in place of a linear model; see ``dpcore.network.spec.NetworkSpec``."""

    kind: str = Field(
        default="mlp",
        description="linear, mlp, cnn, small_cnn, deep_cnn, scattering, wavelet_cnn or module",
    )
    hidden: tuple[Count, ...] = Field(
        default=(256, 256), description="widths of the mlp, for example [256, 256]"
    )
    activation: str = Field(default="tanh", description="tanh, relu or elu")
    group_norm: bool = Field(
        default=False,
        description="true or false: groups of channels centred and scaled in the record",
    )
    standard_weights: bool = Field(
        default=False,
        description="true or false: weights of hidden units are taken centred and of norm 1",
    )
    pool: str = Field(default="max", description="max or mean")
    image: tuple[Count, ...] = Field(
        default=(), description="channels, height and width, for example [1, 28, 28]"
    )
    upright: bool = Field(
        default=False, description="true or false: the slant is taken off every image"
    )
    standardise: bool = Field(
        default=False, description="true or false: every record to mean 0 and variance 1"
    )
    shrink: Count = Field(default=1, description="means of so many by so many pixels of an image")
    copies: Count = Field(
        default=1, description="a record's gradient is the mean over so many copies of its image"
    )
    shift: int = Field(default=0, ge=0, description="pixels that a copy is moved by at most")
    mirror: bool = Field(
        default=False, description="true or false: copies may be mirrored left to right"
    )
    centred: bool = Field(
        default=False,
        description="of kinds scattering and wavelet_cnn, true or false: less the mean features of "
        "drawn strokes",
    )
    path: str | None = Field(default=None, description="of kind module: package.module:Name")
    arguments: dict[str, Any] = Field(
        default={}, description="of kind module, for example {width: 64}"
    )
    precision: str = Field(
        default="single",
        description="single or double; modules of other than known layers take double",
    )


DELTA = (
    "take one well below 1/n, for example 1e-6; pure privacy comes from the noise, not from delta: "
    "algorithm.noise=gamma (objective_perturbation, output_gd) holds for every delta"
)


class PrivacySection(Section):
    epsilon: Number = Field(
        default=1.0, gt=0, le=MOST_EPSILON, description="usual values lie between 0.1 and 8"
    )
    delta: Number = Field(default=1e-6, gt=0, lt=1, description=DELTA)
    adjacency: Adjacency = Field(
        default=Adjacency.ADD_REMOVE, description="it says which two tables are neighbours"
    )
    conversion: Literal["cks", "prop21"] = Field(default="cks", description="one of cks, prop21")
    accountant: Literal["auto", "rdp", "pld", "gdp", "profile", "pure", "advanced"] = Field(
        default="auto", description="auto takes the exact one where there is one, else rdp"
    )
    noise: Literal["rounded", "discrete"] = Field(
        default="rounded", description="discrete is exact and slower"
    )


class SelectSection(Section):
    """A selection before the training, within its budget; see ``dpcore.algorithms.two_phase``."""

    method: Literal["noisy_correlations"] = Field(
        default="noisy_correlations", description="noisy_correlations"
    )
    keep: Count | None = Field(default=None, description="how many columns stay, for example 25")
    share: Number | None = Field(
        default=None, gt=0, lt=1, description="of the budget, for example 0.2"
    )
    clip_norm: Number | None = Field(
        default=None, gt=0, description="leave it out for the public rule"
    )


class AlgorithmSection(Section):
    """``name``, ``preset`` and, beside them, any parameter that the algorithm has."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(
        default="auto", min_length=1, description="for example auto, dp_sgd or output_gd"
    )
    preset: str | None = Field(
        default=None, description="paper takes the setting of the source; leave it out for ours"
    )

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ReleaseSection(Section):
    """A metric that may leave: it gets noise and is charged beside the training."""

    metric: str = Field(default="accuracy", description="accuracy or balanced_accuracy")
    epsilon: Number = Field(default=0.05, gt=0, description="for example 0.05")
    against: tuple[Number, ...] | None = Field(
        default=None,
        description="weights of an earlier, charged model, measured on the same records for the "
        "same price; a retraining with champion.model sets it",
    )


class EvaluateSection(Section):
    goal: Literal["accuracy", "auc", "probability"] = Field(
        default="accuracy",
        description="accuracy, auc (ranking of records) or probability: what auto is tuned for",
    )
    baselines: bool = Field(default=True, description="true or false")
    release: ReleaseSection | None = Field(
        default=None, description="for example {metric: accuracy, epsilon: 0.05}"
    )
    subgroup: str | None = Field(
        default=None, description="a declared column: accuracy by its groups, internal"
    )
    subgroup_least: Count = Field(
        default=50, description="the size below which groups are put together"
    )


class TrialsSection(Section):
    distribution: Literal["poisson", "negative_binomial"] = Field(
        default="poisson", description="poisson or negative_binomial"
    )
    mean: Number = Field(
        default=6.0, gt=1, le=200, description="expected number of trials, for example 6"
    )
    eta: Number | None = Field(
        default=None, ge=-0.5, le=10, description="of negative_binomial: 0 or 1"
    )


class ScoreSection(Section):
    metric: Literal["accuracy"] = Field(default="accuracy", description="accuracy")
    share: Number = Field(
        default=0.05, gt=0, lt=1, description="of the cost of one trial, for example 0.05"
    )


class TuneSection(Section):
    """Parameters selected on the records, within the budget; see ``tasks.options.tune``."""

    grid: dict[str, Any] = Field(description="for example {algorithm.learning_rate: [1, 4]}")
    trials: TrialsSection = Field(default=TrialsSection(), description="distribution, mean and eta")
    score: ScoreSection = Field(default=ScoreSection(), description="metric and share")


class AuditSection(Section):
    """Made-up records in the training that show how much leaks: ``tasks.options.canaries``. Never
    released.
    """

    canaries: Count | None = Field(
        default=None, ge=20, le=5000, description="leave it out for one a column"
    )


class EngineSection(Section):
    """Where the rows of a training are kept and its sums are made; see ``tasks.kinds.engine``."""

    kind: Literal["auto", "memory", "shards", "dask"] = Field(
        default="auto", description="auto, memory, shards or dask"
    )
    address: str | None = Field(
        default=None, description="of a Dask scheduler, for example tls://10.0.0.5:8786"
    )
    workers: Count | None = Field(
        default=None, description="of a Dask cluster on this machine, where no address is given"
    )
    ca: str | None = Field(default=None, description="of TLS: the file of the authority")
    cert: str | None = Field(default=None, description="of TLS: the file of the certificate")
    key: str | None = Field(default=None, description="of TLS: the file of the private key")


class LedgerSection(Section):
    url: str | None = Field(
        default=None, description="for example sqlite:////srv/privacy/ledger.db"
    )


class TrackingSection(Section):
    experiment: str = Field(
        default="dpflows", min_length=1, description="name an MLflow experiment"
    )
    name: str | None = Field(default=None, description="a name for the run")


class TrainConfig(Section):
    """Everything that decides about one training. ``seed`` is the public one: splits and starts,
    never noise.
    """

    schema_version: Literal[1] = Field(
        default=1, description=f"this version of dpflows reads {SCHEMA_VERSION}"
    )
    data: DataSection = Field(default=DataSection(), description="name and path of the data")
    preprocess: PreprocessSection = Field(
        default=PreprocessSection(), description="normalise, numeric and intercept"
    )
    objective: ObjectiveSection = Field(default=ObjectiveSection(), description="loss, l2 and l1")
    ranking: RankingSection | None = Field(
        default=None, description="for ranking data alone: features and scorer"
    )
    model: ModelSection | None = Field(
        default=None, description="a neural network: kind and its sizes"
    )
    privacy: PrivacySection = Field(
        default=PrivacySection(), description="epsilon, delta and adjacency"
    )
    select: SelectSection | None = Field(
        default=None, description="method, keep and share of a selection of columns"
    )
    algorithm: AlgorithmSection = Field(
        default=AlgorithmSection(), description="name and parameters"
    )
    tune: TuneSection | None = Field(
        default=None, description="grid, trials and score of a charged search"
    )
    evaluate: EvaluateSection = Field(default=EvaluateSection(), description="what is measured")
    audit: AuditSection | None = Field(
        default=None, description="canaries: a run that measures and is never released"
    )
    engine: EngineSection | None = Field(
        default=None, description="where rows are kept: kind, and the address of a scheduler"
    )
    ledger: LedgerSection = Field(default=LedgerSection(), description="where the budget is kept")
    tracking: TrackingSection = Field(default=TrackingSection(), description="names in MLflow")
    seed: Whole = Field(default=0, ge=0, description="any whole number from 0")
    unsafe_fixed_noise_seed: Whole | None = Field(
        default=None, ge=0, description="leave it out: it is for tests"
    )

    def canonical(self) -> str:
        """Canonical JSON of the whole configuration, defaults included.

        Without an engine, crosses or a goal it is that of configurations from before there were
        any.
        """
        found = self.model_dump(mode="json")
        if self.engine is None:
            del found["engine"]
        for name in ("crosses", "cross_width"):
            if found["preprocess"][name] is None:
                del found["preprocess"][name]
        if self.evaluate.goal == "accuracy":
            del found["evaluate"]["goal"]
        return json.dumps(found, sort_keys=True, separators=(",", ":"))

    @property
    def sha256(self) -> str:
        return sha256(self.canonical().encode()).hexdigest()
