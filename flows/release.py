"""``dpflows release``: audit, price of the search, policy, champion, registry version, aliases, signed bundle."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from dpcore.errors import InputError, VerificationFailed
from flows.audit import ledger_of, mark, open_store, read
from tasks.audit import Subject, audit
from tasks.audit.rules_content import noisy_metrics
from tasks.audit.subject import METRICS as METRICS_FILE
from tasks.home import Home, one_at_a_time
from tasks.ledger import Ledger
from tasks.release import manifest as names
from tasks.release import registry
from tasks.release.bundle import checksums, write_bundle
from tasks.release.card import make_card, read_model
from tasks.release.gate import Candidate, Champion, Decision, decide, search_epsilon
from tasks.release.manifest import Approval, Manifest, Price, ReleasedMetric
from tasks.release.policy import Policy, load_policy
from tasks.release.probe import fault
from tasks.release.signature import load_key
from tasks.release.trials import Trial, charged, search
from tasks.statement import Statement, now

if TYPE_CHECKING:
    from mlflow import MlflowClient

READABLE = ("privacy/statement.md", "privacy/statement.html")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operator wants released."""

    run: str
    name: str
    approval: Approval
    policy: Policy
    output: Path | None
    ledger: str | None


def release_run(
    run: str,
    to: str,
    approved_by: str,
    note: str,
    policy: str | None,
    key: Path | None,
    output: Path | None,
    ledger: str | None,
    as_json: bool,
) -> None:
    """Release a run and print where it is; raises ``VerificationFailed`` where gate or policy say no."""
    if not approved_by.strip():
        raise InputError("Expected a name for --approved-by, got none; a release needs somebody who decides.")
    secret = load_key(key)
    asked = Asked(
        run, to, Approval(who=approved_by.strip(), when=now(), note=note), load_policy(policy), output, ledger
    )
    client = open_store()
    with one_at_a_time(Home.find(), "release"):
        answer = release(client, asked, secret)
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        Console().print(_table(answer))


def _table(answer: dict[str, Any]) -> Table:
    table = Table(title="Release", show_header=False, title_justify="left")
    for name, value in answer.items():
        if name != "schema_version":
            table.add_row(name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
    return table


def release(client: MlflowClient, asked: Asked, secret: Any) -> dict[str, Any]:
    """One gate, start to end. The same run again changes nothing."""
    done = registry.version_of(client, asked.name, asked.run)
    if done is not None and registry.AT_TAG in done.tags:
        return _already(client, asked, done)
    subject = read(client, asked.run, asked.ledger)
    report = audit(subject)
    mark(client, asked.run, report)
    if report.blocked:
        raise VerificationFailed(
            f"Run {asked.run} must not be released: {', '.join(sorted(report.codes))}; see the audit."
        )
    statement = subject.statement
    assert statement is not None
    before = registry.aliases(client, asked.name).get(registry.RELEASED)
    trials, newest = _trials(client, asked, subject, statement, before)
    price = _price(statement, trials, asked.policy)
    metrics = released_metrics(subject, statement)
    decision = _decide(client, asked, subject, statement, price, metrics, before)
    if decision.promote is None:
        raise VerificationFailed(
            f"Nothing is released to {asked.name!r}{f', version {before} stays' if before else ''}: "
            f"{'; '.join(decision.reasons)}."
        )
    tags = {
        "epsilon": f"{price.epsilon:.6g}",
        "delta": f"{price.delta:g}",
        "adjacency": str(price.adjacency),
        "approved_by": asked.approval.who,
        "approved_at": asked.approval.when,
        registry.SEQ_TAG: str(newest),
        **{f"{registry.METRIC_TAG}{one.name}": repr(one.value) for one in metrics},
    }
    registry.ensure_model(client, asked.name)
    version = registry.add_version(
        client, asked.name, asked.run, client.get_run(asked.run).data.tags["dpflows.model"], tags
    )
    folder = asked.output or Home.find().root / "releases" / asked.name / version
    bundle = make_bundle(asked, version, subject, statement, price, metrics, trials, before)
    write_bundle(folder, *bundle, secret)
    client.set_model_version_tag(asked.name, version, registry.DONE_TAG, str(folder))
    previous = registry.promote(client, asked.name, version)
    client.set_tag(asked.run, "dpflows.released_as", f"{asked.name}@{version}")
    return _answer(asked, version, price.epsilon, price.delta, previous, str(folder), True)


def _answer(
    asked: Asked, version: str, epsilon: float, delta: float, previous: str | None, folder: str, changed: bool
) -> dict[str, Any]:
    from tasks.release.signature import check

    bundle = Path(folder)
    signer = ""
    if (bundle / names.SIGNATURE).is_file():
        signer = check((bundle / names.SIGNATURE).read_bytes(), (bundle / names.MANIFEST).read_bytes())
    return {
        "schema_version": 1,
        "name": asked.name,
        "version": version,
        "run_id": asked.run,
        "epsilon": epsilon,
        "delta": delta,
        "previous": previous,
        "bundle": folder,
        "signer": signer,
        "changed": changed,
    }


def _already(client: MlflowClient, asked: Asked, done: Any) -> dict[str, Any]:
    """A run that was released before: nothing changes where it is in front, else it is put there again (a way back)."""
    current, version = registry.aliases(client, asked.name), str(done.version)
    changed = current.get(registry.RELEASED) != version
    if changed:
        registry.promote(client, asked.name, version)
        client.set_model_version_tag(asked.name, version, "approved_by", asked.approval.who)
        client.set_model_version_tag(asked.name, version, "approved_at", asked.approval.when)
    epsilon, delta = float(done.tags["epsilon"]), float(done.tags["delta"])
    previous = registry.aliases(client, asked.name).get(registry.PREVIOUS)
    return _answer(asked, version, epsilon, delta, previous, done.tags[registry.DONE_TAG], changed)


def _trials(
    client: MlflowClient, asked: Asked, subject: Subject, statement: Statement, before: str | None
) -> tuple[list[Trial], int]:
    """The charged runs behind the release, and the number of the newest record of the data set."""
    own = [statement.ledger.entry]
    if METRICS_FILE in subject.files:
        own.append(str(json.loads(subject.files[METRICS_FILE])["ledger_entry"]))
    with Ledger(asked.ledger or ledger_of(subject)) as ledger:
        found = charged(ledger, statement.ledger.dataset)
    newest = max((one.seq for one in found), default=0)
    since = 0
    if before is not None:
        since = int(client.get_model_version(asked.name, before).tags.get(registry.SEQ_TAG, 0))
    if asked.policy.tuning == "run" or statement.data.public:
        since = newest
    blocks = subject.ledger.blocks if subject.ledger is not None else ()
    return search(found, own, blocks, since), newest


def _price(statement: Statement, trials: list[Trial], policy: Policy) -> Price:
    promise = statement.guarantee
    conversion = policy.conversion or promise.conversion
    if len(trials) == 1:
        epsilon = promise.epsilon
    else:
        epsilon = search_epsilon((one.events for one in trials), promise.adjacency, promise.delta, conversion)
    scope = "public" if statement.data.public else policy.tuning
    return Price(
        unit=promise.unit,
        adjacency=promise.adjacency,
        epsilon=epsilon,
        delta=promise.delta,
        conversion=conversion,
        trials=len(trials),
        scope=scope,
    )


def released_metrics(subject: Subject, statement: Statement) -> list[ReleasedMetric]:
    """Numbers about quality that may leave: from a charged mechanism, or any on public data."""
    noisy = noisy_metrics(subject)
    errors = json.loads(subject.files[METRICS_FILE]).get("standard_errors", {}) if noisy else {}
    found = [
        ReleasedMetric(name=key, value=value, source="charged mechanism", standard_error=errors.get(key))
        for key, value in noisy.items()
    ]
    if statement.data.public:
        errors_of = ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error")
        quality = ("accuracy", "balanced_accuracy", "roc_auc", *errors_of, "average_precision", "brier_score")
        public = {key.removeprefix("released."): values[-1] for key, values in subject.metrics.items()}
        ranking = sorted(key for key in public if key == "map" or key.startswith("ndcg_at_"))
        found += [
            ReleasedMetric(name=key, value=public[key], source="public data")
            for key in (*quality, *ranking)
            if f"released.{key}" in subject.metrics and key not in noisy
        ]
    return found


def _decide(
    client: MlflowClient,
    asked: Asked,
    subject: Subject,
    statement: Statement,
    price: Price,
    metrics: list[ReleasedMetric],
    before: str | None,
) -> Decision:
    # Of public data the exact numbers of baselines are public too.
    exact = subject.metrics if statement.data.public else {}
    label = read_model(subject.model["model.json"])["label"]
    candidate = Candidate(
        asked.run,
        finished=True,
        stated=True,
        metrics={one.name: one.value for one in metrics},
        delta=statement.guarantee.delta,
        n=statement.data.public_n,
        classes=len(label.get("levels", ())) or 2,
        baselines={key.removeprefix("internal."): values[-1] for key, values in exact.items() if values},
        fault=fault(subject.model),
    )
    champion = None
    if before is not None:
        champion = Champion(before, registry.metrics_of(client, asked.name, before))
    return decide([candidate], champion, asked.policy, price.epsilon, price.delta)


def make_bundle(
    asked: Asked,
    version: str,
    subject: Subject,
    statement: Statement,
    price: Price,
    metrics: list[ReleasedMetric],
    trials: list[Trial],
    before: str | None,
) -> tuple[Manifest, dict[str, bytes]]:
    """Manifest and files of a release, from what the run holds and nothing else."""
    model, stored = subject.model, subject.files
    card = make_card(asked.name, version, statement, read_model(model["model.json"]), price, metrics, asked.approval)
    tuning = {"schema_version": 1, "trials": [json.loads(one.events.to_json()) for one in trials]}
    files = {
        names.WEIGHTS: model["weights.npz"],
        names.ENCODER: model["encoder.json"],
        names.CARD: model["model.json"],
        names.STATEMENT: stored["privacy/statement.json"],
        names.MECHANISMS: stored["privacy/mechanisms.json"],
        names.TUNING: json.dumps(tuning, indent=1, sort_keys=True).encode(),
        names.CONFIG: stored["config.json"],
        names.README: card.encode(),
        **({names.STATE: model["state.safetensors"]} if "state.safetensors" in model else {}),
        **{name: stored[name] for name in (*READABLE, names.METRICS) if name in stored},
    }
    manifest = Manifest(
        name=asked.name,
        version=version,
        created=now(),
        run_id=asked.run,
        price=price,
        approval=asked.approval,
        policy=asked.policy.model_dump(mode="json"),
        metrics=metrics,
        previous=before,
        files=checksums(files),
    )
    return manifest, files
