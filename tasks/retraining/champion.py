"""Models before this one: whose weights a training starts from, and the champion that it must beat.

Champion and challenger on a data set that is declared public: free numbers, which may be released.
Or by the noisy metric that the training pays for: the counts of both models are one release.

Warm start: the weights of an earlier, released or previous model as the first iterate.
Post-processing, so free.
"""

from __future__ import annotations

from dataclasses import fields
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from dpcore.algorithms import registry as algorithms
from dpcore.errors import InputError
from dpcore.preprocess.design import Data
from tasks import training
from tasks.config import TrainConfig
from tasks.data import Reading
from tasks.ledger import Ledger
from tasks.ledger.entries import entry
from tasks.options.noisy_metric import CHAMPION
from tasks.options.rules import DECLARED, check_facts, declared
from tasks.record.stored import finished_runs, read_stored
from tasks.record.tracking import log_metrics
from tasks.release import registry
from tasks.release.gate import Candidate, Champion, Policy, decide
from tasks.release.registry import RELEASED, RUN_TAG, aliases
from tasks.retraining import ChampionSection, RetrainConfig
from tasks.schema import Schema, find_schema

if TYPE_CHECKING:
    from mlflow import MlflowClient


CANDIDATE = "candidate"
PUBLIC_TAG = "dpflows.public_set"


def require_public(section: ChampionSection, trained: Schema) -> Schema | None:
    """The schema of the public set, None where there is no comparison.

    Raises ``InputError`` unless it is declared public and has the columns and the label of the
    training data.
    """
    if section.data is None:
        return None
    schema = find_schema(section.data)
    if not schema.public.public:
        raise InputError(
            f"Expected a public data set for champion.data, got {schema.name!r}, which is private: "
            "an exact score on it would cost budget. Declare `public: {public: true}` if its "
            "rows are published, or leave it out."
        )
    for facts in (declared(trained), declared(schema) | {"bounds": DECLARED}):
        check_facts(facts | {"champion.data": section.data})
    if schema.columns.keys() < {name for name, column in trained.columns.items() if column.feature}:
        raise InputError(
            f"Expected the columns of {trained.name!r} in champion.data={schema.name!r}, which "
            "lacks some."
        )
    return schema


def challenge(
    section: ChampionSection,
    config: TrainConfig,
    summary: dict[str, Any],
    client: MlflowClient,
    ledger: Ledger,
) -> dict[str, Any]:
    """Measure the new model and the champion on the public set, or take the noisy numbers that the
    training paid for (``beside``); the better one carries the alias ``candidate``.

    A model that may never be released is not measured, and loses.

    The champion is the candidate of an earlier retraining, else the released version. Releasing
    stays a decision of a person (`dpflows release`). Returns what is shown: the metrics, who won,
    and why.
    """
    run_id, old = summary["run_id"], _champion(section, client)
    if not summary["releasable"]:
        mine, theirs, where = {}, {}, None
    elif section.data is None:
        mine, theirs, where = *_charged(summary["released"]), None
    else:
        mine, theirs, where = _on_public(section, config, run_id, old, client, ledger)
        shown = {f"released.public_{name}": value for name, value in mine.items()}
        log_metrics(client, run_id, shown)
        client.set_tag(run_id, PUBLIC_TAG, where)
    policy = Policy(max_epsilon=inf, metric=section.metric, min_gain=section.min_gain)
    champion = None if old is None else Champion(old.version, theirs)
    stated = bool(summary["releasable"])
    candidate = Candidate(run_id, True, stated, mine, delta=summary["delta"], n=summary["public_n"])
    verdict = decide([candidate], champion, policy, summary["epsilon_spent"], summary["delta"])
    reasons = verdict.reasons if stated else ("it may not be released", *summary["reasons"])
    won = verdict.promote is not None
    client.set_tag(
        run_id, "dpflows.challenge", "won" if won else f"lost: {'; '.join(reasons)}"[:1000]
    )
    if won and section.model is not None:
        _put_forward(client, section.model, summary)
    return {
        "public_set": where,
        "metric": section.metric,
        "challenger": _number(mine, section.metric),
        "champion": _number(theirs, section.metric),
        "champion_version": None if old is None else str(old.version),
        "won": won,
        "reasons": list(reasons),
    }


def _on_public(
    section: ChampionSection,
    config: TrainConfig,
    run_id: str,
    old: Any | None,
    client: MlflowClient,
    ledger: Ledger,
) -> tuple[dict[str, float], dict[str, float], str]:
    """Exact metrics of the new model and the champion on the public set, and its name."""
    job = training.prepare(config)
    schema = require_public(section, job.schema)
    assert schema is not None
    rows = Reading(schema, section.path)
    ledger.require_public(schema.name, rows.files())
    public = rows.load(job.encoder).train
    assert isinstance(public, Data)
    mine = job.kind.quality(job, public, read_stored(client, run_id, ledger).weights)
    if old is None:
        return mine, {}, schema.name
    weights = _weights(client, old, job.encoder.to_json(), ledger)
    return mine, job.kind.quality(job, public, weights), schema.name


def _charged(released: dict[str, float | None]) -> tuple[dict[str, float], dict[str, float]]:
    """Noisy metrics of the new model and of the champion on the same records, which were charged
    together.
    """
    known = {name: value for name, value in released.items() if value is not None}
    theirs = {name: value for name, value in known.items() if name.startswith(CHAMPION)}
    mine = {name: value for name, value in known.items() if name not in theirs}
    return mine, {name.removeprefix(CHAMPION): value for name, value in theirs.items()}


def beside(
    section: ChampionSection, chosen: TrainConfig, client: MlflowClient, ledger: Ledger
) -> Start:
    """The training that measures the champion on its own test records, by the release that it pays
    for; unchanged where there is none, or with the reason why it cannot be measured.
    """
    old = None if section.data is not None else _champion(section, client)
    release = chosen.evaluate.release
    if old is None or release is None:
        return Start(chosen, None, "")
    job = training.prepare(chosen)
    title = f"version {old.version} of {old.name!r}"
    try:
        found = read_stored(client, old.tags.get(RUN_TAG) or old.run_id, ledger)
    except InputError as error:
        return Start(chosen, None, f"{title} is not measured: {error}")
    if why := found.unfit(job.encoder.to_json(), job.problem.dimension * job.problem.outputs):
        return Start(chosen, None, f"{title} is not measured: {why}")
    asked = release.model_copy(update={"against": tuple(found.weights.tolist())})
    evaluate = chosen.evaluate.model_copy(update={"release": asked})
    note = f"{title} is measured on the same records"
    return Start(chosen.model_copy(update={"evaluate": evaluate}), found.run_id, note)


def _number(metrics: dict[str, float], name: str) -> float | None:
    """A metric where there is such a number."""
    value = metrics.get(name)
    return value if value is not None and isfinite(value) else None


def _champion(section: ChampionSection, client: MlflowClient) -> Any | None:
    if section.model is None:
        return None
    known = registry.aliases(client, section.model)
    version = known.get(CANDIDATE) or known.get(registry.RELEASED)
    return None if version is None else client.get_model_version(section.model, version)


def _weights(client: MlflowClient, version: Any, encoder: str, ledger: Ledger) -> Any:
    found = read_stored(client, version.tags.get(registry.RUN_TAG) or version.run_id, ledger)
    if found.encoder != encoder:
        raise InputError(
            f"Expected a champion with the columns of this training, got version {version.version} "
            f"of {version.name!r} with others; name another champion.model."
        )
    return found.weights


def _put_forward(client: MlflowClient, name: str, summary: dict[str, Any]) -> None:
    registry.ensure_model(client, name)
    tags = {"epsilon": f"{summary['epsilon_spent']:.6g}", "delta": f"{summary['delta']:g}"}
    version = registry.add_version(client, name, summary["run_id"], summary["model"], tags)
    client.set_registered_model_alias(name, CANDIDATE, version)


class Start(NamedTuple):
    """The training with its start, the run that gave it (None: zero), and a word about it."""

    config: TrainConfig
    run_id: str | None
    note: str


def warm(config: RetrainConfig, chosen: TrainConfig, client: MlflowClient, ledger: Ledger) -> Start:
    """Return the training that begins with an earlier model's weights, or unchanged with the reason
    why not.

    Only weights whose hash a committed ledger entry holds are taken: they were paid for, and the
    ledger admits runs that depend on earlier results. A model of other columns gives no start, and
    none of a later period: a backfill shows what a schedule would have given at its time.
    """
    if config.warm_start == "none":
        return Start(chosen, None, "")
    # `auto` decides from public facts, so the plan says which algorithm it is.
    job = training.prepare(chosen)
    planned = training.plan_training(job)
    if (
        "start" not in {field.name for field in fields(algorithms[planned.name])}
        or "start" in chosen.algorithm.parameters
    ):
        return Start(chosen, None, f"no warm start: {planned.name} takes no other start")
    run_id = _source(config, client, job.schema.name, ledger, chosen.data.period)
    if run_id is None:
        return Start(chosen, None, "no warm start: there is no earlier model")
    try:
        found = read_stored(client, run_id, ledger)
    except InputError as error:
        return Start(chosen, None, f"no warm start: {error}")
    if why := found.unfit(job.encoder.to_json(), job.problem.dimension * job.problem.outputs):
        return Start(chosen, None, f"no warm start: {why}")
    algorithm = chosen.algorithm.model_copy(update={"start": found.weights.tolist()})
    return Start(
        chosen.model_copy(update={"algorithm": algorithm}), run_id, f"warm start from run {run_id}"
    )


def _source(
    config: RetrainConfig, client: MlflowClient, dataset: str, ledger: Ledger, period: str | None
) -> str | None:
    if config.warm_start == "previous":
        runs = finished_runs(client, dataset)
        return next(
            (run_id for run_id, charged in runs if not _later(ledger, charged, period)), None
        )
    name = str(config.champion.model)
    version = aliases(client, name).get(RELEASED)
    return None if version is None else client.get_model_version(name, version).tags.get(RUN_TAG)


def _later(ledger: Ledger, charged: str, period: str | None) -> bool:
    """Whether an entry is of a period after ``period``; names of periods of one schedule sort as
    time does.
    """
    try:
        other = entry(ledger, charged)["period"]
    except InputError:
        return False  # who reads its weights says what is wrong
    return period is not None and other is not None and str(other) > period
