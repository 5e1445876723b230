"""``dpflows release``: audit, price of the search, policy, champion, registry version, aliases,
signed bundle.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from dpcore.errors import InputError, VerificationFailed
from flows.commands.audit import ledger_of, mark, open_store, planned_again, read
from flows.commands.key import ask_passphrase
from flows.server import tell_released
from flows.terminal import print_whole
from tasks.audit import Subject, audit
from tasks.audit.mlflow_run import find_run
from tasks.home import Home, one_at_a_time
from tasks.ledger import Ledger
from tasks.record import index
from tasks.record.example import columns_words
from tasks.record.statement import Statement, now
from tasks.release import front, registry
from tasks.release import manifest as names
from tasks.release.bundle import require_place, write_bundle
from tasks.release.contents import Asked, Said, check_export, make_bundle
from tasks.release.front import Front, Released
from tasks.release.gate import (
    epsilon_with_later,
    judged,
    load_policy,
    price_of,
    released_metrics,
    trials_behind,
)
from tasks.release.keys import load_key, load_openssf_key, own_fingerprint, trusted_keys
from tasks.release.manifest import Approval, Position, Price
from tasks.release.trials import newest_of, position, require_chain, require_head

if TYPE_CHECKING:
    from mlflow import MlflowClient


# Letters that look alike in every font are one letter only among these.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,98}[A-Za-z0-9]|[A-Za-z0-9]")


def release_run(
    run: str,
    to: str,
    approved_by: str,
    note: str,
    policy: str | None,
    keys: tuple[Path | None, Path | None],
    output: Path | None,
    ledger: str | None,
    as_json: bool,
    head: str | None,
    said: Said,
) -> None:
    """Release a run, signed by ``keys`` (ours, OpenSSF's), and print where it is; raises
    ``VerificationFailed`` where gate or policy say no.
    """
    check_words(approved_by.strip(), note, said, to)
    check_export(said.export)
    asked = Asked(
        run,
        to,
        Approval(who=approved_by.strip(), when=now(), note=note),
        load_policy(policy),
        output,
        ledger,
        head,
        said,
    )
    if output is not None:
        require_place(output, to)
    client = open_store()
    find_run(client, run)
    secret = _signers(*keys)
    with one_at_a_time(home := Home.find(), "release"):
        answer = release(client, asked, *secret)
        if answer["changed"]:
            index.note_release(home, answer, asked.approval.who)
            known = ("name", "version", "run_id", "epsilon", "delta")
            payload = {key: answer[key] for key in known} | {"approved_by": asked.approval.who}
            tell_released(home, answer["data"], payload)
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        print_whole(Console(), _table(answer))


def check_words(approved_by: str, note: str, said: Said, to: str) -> None:
    """Raise ``InputError`` for words that cannot stand in a model card, or for the name of a
    model.
    """
    if not approved_by:
        raise InputError(
            "Expected a name for --approved-by, got none; a release needs somebody who decides."
        )
    texts = {"--approved-by": approved_by, "--note": note}
    texts |= {"--licence": said.licence, "--contact": said.contact}
    for option, text in texts.items():
        if not (text.isprintable() or not text):
            raise InputError(
                f"Expected one line of printable text for {option}, got {text!r}; it stands in the "
                "model card."
            )
    if not NAME.fullmatch(to):
        raise InputError(
            "Expected 1 to 100 letters a-z, digits, blanks, '.', '_' or '-' for --to, with a "
            f"letter or digit at both ends, got {to!r}: other letters look like these."
        )


def _signers(key: Path | None, second: Path | None) -> tuple[Any, Any]:
    """The key of the manifest, and one of OpenSSF's where there is one."""
    ask = ask_passphrase if sys.stdin.isatty() else None
    return load_key(key, ask), load_openssf_key(second, ask)


def _table(answer: dict[str, Any]) -> Table:
    table = Table(title="Release", show_header=False, title_justify="left")
    rows = [
        (name, value) for name, value in answer.items() if name not in ("schema_version", "notes")
    ]
    for name, value in (*rows, *(("note", note) for note in answer["notes"])):
        table.add_row(name.replace("_", " "), _words(value))
    return table


def _words(value: Any) -> str:
    """A value of the answer as a person reads it: a first release has no previous version."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def release(client: MlflowClient, asked: Asked, secret: Any, second: Any = None) -> dict[str, Any]:
    """One gate, start to end. The same run again changes nothing. ``second``: a key of OpenSSF's.

    Of earlier releases only their signed bundles are believed; MLflow's tags and aliases are for
    people to see.
    """
    _require_own_name(client, asked.name)
    trusted = (own_fingerprint(secret), *trusted_keys(asked.policy.trusted_keys))
    pointer, champion = front.in_front(client, asked.folder, asked.name, trusted)
    subject, statement, notes = audited(client, asked)
    shown = {"notes": notes, "data": statement.data.name}
    with Ledger(asked.ledger or ledger_of(subject)) as ledger:
        require_head(ledger, asked.head)
        if champion is not None and champion.dataset == statement.ledger.dataset:
            require_chain(ledger, f"{asked.name}@{champion.version}", champion.manifest.ledger)
        done = front.released_before(client, asked.folder, asked.name, asked.run, trusted)
        if done is not None:
            return _already(client, asked, done, subject, ledger, pointer, champion, secret) | shown
        seq, head = position(ledger)
        trials = trials_behind(subject, statement, champion, asked.policy, ledger)
    price = price_of(statement, trials, asked.policy)
    metrics = released_metrics(subject, statement)
    decision = judged(subject, statement, price, metrics, champion, asked.policy)
    before = None if champion is None else champion.version
    if decision.promote is None:
        raise VerificationFailed(
            "Nothing is released to "
            f"{asked.name!r}{f', version {before} stays' if before else ''}: "
            f"{'; '.join(decision.reasons)}."
        )
    tags = {
        "epsilon": f"{price.epsilon:.6g}",
        "delta": f"{price.delta:g}",
        "adjacency": str(price.adjacency),
        "approved_by": asked.approval.who,
        "approved_at": asked.approval.when,
        **{f"{registry.METRIC_TAG}{one.name}": repr(one.value) for one in metrics},
    }
    registry.ensure_model(client, asked.name)
    version = registry.add_version(
        client, asked.name, asked.run, client.get_run(asked.run).data.tags["dpflows.model"], tags
    )
    described = json.loads(subject.model["encoder.json"]), json.loads(subject.model["model.json"])
    words = f"{version_words(statement, price, asked)}\n\n{columns_words(*described)}"
    client.update_model_version(asked.name, version, words)
    folder = require_place(asked.output or asked.folder / version, asked.name, version)
    serial = _next_serial(pointer, champion)
    manifest, files = make_bundle(
        asked,
        version,
        subject,
        statement,
        price,
        metrics,
        trials,
        before,
        _position(subject, seq, head),
        serial,
    )
    write_bundle(folder, manifest, files, secret, second)
    client.set_model_version_tag(asked.name, version, registry.DONE_TAG, str(folder))
    previous = _put_in_front(client, asked, version, serial, folder, secret)
    client.set_tag(asked.run, "dpflows.released_as", f"{asked.name}@{version}")
    answer = _answer(
        asked, version, price.epsilon, price.delta, previous, folder, own_fingerprint(secret), True
    )
    return answer | shown


def audited(client: MlflowClient, asked: Asked) -> tuple[Subject, Statement, list[str]]:
    """The run that is asked for, its statement, and what its audit has to say; raises
    ``VerificationFailed`` where the audit blocks it.
    """
    subject = read(client, asked.run, asked.ledger)
    report = audit(subject, planned_again(subject, asked.ledger))
    mark(client, asked.run, report)
    if report.blocked:
        raise VerificationFailed(
            f"Run {asked.run} must not be released: {', '.join(sorted(report.codes))}; see the "
            "audit."
        )
    assert subject.statement is not None
    return subject, subject.statement, [finding.line() for finding in report.findings]


def version_words(statement: Statement, price: Price, asked: Asked) -> str:
    """What the registry says of a version: the guarantee, whole, and who approved it."""
    promise = statement.guarantee
    return (
        f"Epsilon {price.epsilon:.6g} at delta {price.delta:g} for one {promise.unit}, "
        f"{price.adjacency}, of the release as a whole (the run alone: {promise.epsilon:.6g} by "
        f"{promise.accountant}). {statement.training.algorithm} on {statement.data.name}, public n "
        f"= {statement.data.public_n}. Approved by {asked.approval.who}."
    )


def _require_own_name(client: MlflowClient, name: str) -> None:
    """Raise ``InputError`` for a name that another one differs from by case or blanks alone."""
    plain = re.sub(r"[ ._-]+", "", name).casefold()
    for one in registry.model_names(client):
        if one != name and re.sub(r"[ ._-]+", "", one).casefold() == plain:
            raise InputError(
                f"Expected a name for --to that no other looks like, got {name!r} beside {one!r}."
            )


def _next_serial(pointer: Front | None, champion: Released | None) -> int:
    stated = (champion.manifest.serial or 0) if champion is not None else 0
    return max(pointer.serial if pointer is not None else 0, stated) + 1


def _position(subject: Subject, seq: int, head: str) -> Position:
    """Where the ledger stands, and the hashes that it holds of the run's files."""
    hashes = dict(subject.ledger.hashes) if subject.ledger is not None else {}
    metric = (
        subject.metric_ledger.hashes.get("metrics") if subject.metric_ledger is not None else None
    )
    return Position(head=head, seq=seq, hashes=hashes | ({"metrics": metric} if metric else {}))


def _put_in_front(
    client: MlflowClient, asked: Asked, version: str, serial: int, folder: Path, secret: Any
) -> str | None:
    """Sign that this version is in front, then move MLflow's aliases; return the version called
    previous.
    """
    place = folder.relative_to(asked.folder) if folder.is_relative_to(asked.folder) else folder
    decided = Front(
        asked.name, version, serial, str(place), asked.approval.who, asked.approval.when
    )
    front.write_front(asked.folder, decided, secret)
    return registry.promote(client, asked.name, version, serial)


def _answer(
    asked: Asked,
    version: str,
    epsilon: float,
    delta: float,
    previous: str | None,
    folder: Path,
    signer: str,
    changed: bool,
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": asked.name,
        "version": version,
        "run_id": asked.run,
        "epsilon": epsilon,
        "delta": delta,
        "previous": previous,
        "bundle": str(folder),
        "signer": signer,
        "changed": changed,
    }


def _difference(done: Released, asked: Asked, subject: Subject) -> str:
    """How the bundle of a release differs from the run that it should hold; empty where it does
    not.
    """
    if done.manifest.run_id != asked.run:
        return f"of run {done.manifest.run_id}"
    other = done.differs(subject)
    return f"with another {other}" if other else ""


def _require_same(done: Released, asked: Asked, subject: Subject) -> None:
    """Raise where the bundle of a release is not what is asked for now."""
    if what := _difference(done, asked, subject):
        raise VerificationFailed(
            f"Expected {asked.name}@{done.version} to be the release of run {asked.run} as it is "
            f"now, got a bundle {what}; restore what was changed."
        )
    if asked.said.export is not None and names.ONNX not in done.bundle:
        raise InputError(
            f"Expected no --export for run {asked.run}, released as {asked.name}@{done.version} "
            "without a graph, which a signed bundle does not get later; leave --export out, or "
            "use another name for --to."
        )
    if asked.output is not None and asked.output.resolve() != done.folder.resolve():
        raise InputError(
            f"Expected no other --output for run {asked.run}, released as "
            f"{asked.name}@{done.version} in {done.folder}, got {asked.output}; copy that folder, "
            "which is whole and signed, or leave --output out."
        )


def _already(
    client: MlflowClient,
    asked: Asked,
    done: Released,
    subject: Subject,
    ledger: Ledger,
    pointer: Front | None,
    champion: Released | None,
    secret: Any,
) -> dict[str, Any]:
    """A run that was released before: nothing changes where it is in front, else it is put there
    again (a way back).

    The price is that of its own release. A way back may depend on what was learned since, so the
    answer holds the price of everything up to now beside it.
    """
    manifest = done.manifest
    _require_same(done, asked, subject)
    require_chain(ledger, f"{asked.name}@{done.version}", manifest.ledger)
    current = registry.aliases(client, asked.name)
    shown = current.get(registry.RELEASED) == done.version
    changed = not shown or champion is None or champion.version != done.version
    previous = current.get(registry.PREVIOUS)
    if changed or pointer is None:
        serial = _next_serial(pointer, champion)
        previous = _put_in_front(client, asked, done.version, serial, done.folder, secret)
        client.set_model_version_tag(asked.name, done.version, "approved_by", asked.approval.who)
        client.set_model_version_tag(asked.name, done.version, "approved_at", asked.approval.when)
    price = manifest.price
    signer = (
        own_fingerprint(secret)
        if pointer is None
        else json.loads(done.bundle[names.SIGNATURE])["fingerprint"]
    )
    answer = _answer(
        asked, done.version, price.epsilon, price.delta, previous, done.folder, signer, changed
    )
    since = manifest.ledger.seq if manifest.ledger is not None else newest_of(ledger, done.entries)
    return answer | (
        {"epsilon_with_runs_since": epsilon_with_later(done, subject, ledger, since)}
        if changed
        else {}
    )
