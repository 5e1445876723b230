"""``dpflows recover``: store in MLflow what was trained and charged by processes that were killed
before they did.

``dpflows move``: a home folder at a new path.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dpcore.errors import DPFlowsError, InputError
from tasks import training
from tasks.config import TrainConfig, parse_config
from tasks.home import Home, one_at_a_time
from tasks.ledger import Ledger, ledger_url
from tasks.ledger.entries import entry as ledger_entry
from tasks.ledger.reservation import is_gone
from tasks.options.noisy_metric import FILE as METRICS
from tasks.record import MODEL, OWNER, index, outbox, sources, tracking
from tasks.record import run as record_run
from tasks.record.model import file_hash
from tasks.record.outbox import Begun, Pending
from tasks.record.stored import START
from tasks.report import attach
from tasks.schema import find_schema
from tasks.stores import making_stores
from tasks.stores.moved import move

AGAIN = "dpflows.recovered"


class Forfeited(DPFlowsError):
    """A whole result whose entry in the ledger was forfeited before it was committed."""


def asked(home: Home, run: str | None) -> list[tuple[Path, Pending]]:
    """What waits, or the one that was asked for. Raises ``InputError`` where that does not wait."""
    waiting = list(outbox.waiting(home))
    found = [(folder, pending) for folder, pending in waiting if run in (None, folder.name)]
    if run is not None and not found:
        known = ", ".join(folder.name for folder, _ in waiting) or "none"
        raise InputError(
            f"Expected a run that waits in {home.outbox}, got {run!r}; waiting: {known}."
        )
    return found


def lines(home: Home, answers: Sequence[dict[str, str]]) -> Iterator[str]:
    """What became of each, for people."""
    for answer in answers:
        note = f": {answer['note']}" if answer["note"] else ""
        yield f"{answer['run_id']}: {answer['outcome']}{note}\n"
    for name in unfinished(home):
        left = home.outbox / name
        yield f"{name}: not finished, or of a process that lives; it is left in {left}\n"
    if not answers:
        yield "Nothing waits to be recovered.\n"


def recover(run: str | None, as_json: bool) -> None:
    """Track every model that waits in the outbox, or that of one run; say what became of each."""
    home = Home.find().prepare()
    with one_at_a_time(home, "recover"):
        answers = settled(home, run)
    if as_json:
        told = {"schema_version": 1, "runs": answers, "unfinished": unfinished(home)}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.writelines(lines(home, answers))
    if any(answer["outcome"] == "kept" for answer in answers):
        raise DPFlowsError(
            "Expected every model in MLflow, but some are kept in the outbox for the reasons above."
        )


def settled(home: Home, run: str | None) -> list[dict[str, Any]]:
    """What became of each folder that waits, or of that one run's."""
    found = asked(home, run)
    with making_stores(home.root):
        client = tracking.tracking_client(home)
        tracking.close_stale_runs(client)
    answers = [one(client, home, folder, pending) for folder, pending in found]
    if run is None:
        answers += [half for folder in outbox.half(home) if (half := ended(client, home, folder))]
    return answers


def unfinished(home: Home) -> list[str]:
    """Folders of the outbox that nobody can track or remove: their process may live."""
    waiting = {folder.name for folder, _ in outbox.waiting(home)}
    return sorted(
        folder.name
        for folder in home.outbox.iterdir()
        if folder.name not in waiting and not (folder / outbox.FORFEITED).exists()
    )


def ended(client: MlflowClient, home: Home, folder: Path) -> dict[str, Any] | None:
    """Settle a folder whose process ended before its result was whole, and remove it; None where
    that process may live.

    Its entry stays charged. The answer is the last that is heard of it.
    """
    begun = outbox.Begun.read(folder)
    try:
        tags = client.get_run(folder.name).data.tags
    except MlflowException:
        tags = {}
    owner = begun.owner if begun is not None else json.loads(tags.get(OWNER, "null"))
    if owner is None or not is_gone(owner) or (folder / outbox.PENDING).exists():
        return None  # the last: it became whole since it was looked at, and waits
    if MODEL in tags:
        note = "everything of it is in MLflow"
    elif begun is None:
        note = "its process ended before its result was whole; what it was charged stays charged"
    else:
        try:
            note = forfeited(home, begun)
        except (DPFlowsError, OSError) as error:
            text = " ".join(str(error).split())[:400]
            return {"run_id": folder.name, "outcome": "kept", "note": f"{text} (files: {folder})"}
    outbox.drop_half(folder)
    return {"run_id": folder.name, "outcome": "removed", "note": note}


def forfeited(home: Home, begun: Begun) -> str:
    """What became of the entry of a training that ended before its result was whole."""
    config = parse_config(begun.config)
    with Ledger(ledger_url(config, find_schema(config.data.name), home)) as ledger:
        ledger.reap(kept=outbox.entries())
        state = ledger.state_of(begun.entry) or "unknown"
    return (
        f"its process ended before its result was whole: entry {begun.entry} of {begun.dataset!r} "
        f"is {state}{'' if state == 'cancelled' else ' and stays charged in full'}"
    )


def one(client: MlflowClient, home: Home, folder: Path, pending: Pending) -> dict[str, Any]:
    """Track one folder; the answer says what became of it and why."""
    try:
        note = stored(client, home, folder, pending)
    except Forfeited as error:
        outbox.settle(folder)
        return {"run_id": folder.name, "outcome": "forfeited", "note": f"{error} (files: {folder})"}
    except (DPFlowsError, MlflowException, OSError) as error:
        text = " ".join(str(error).split())[:400]
        return {"run_id": folder.name, "outcome": "kept", "note": f"{text} (files: {folder})"}
    return {"run_id": folder.name, "outcome": "recovered", "note": note}


def stored(client: MlflowClient, home: Home, folder: Path, pending: Pending) -> str:
    """Close the ledger's entry where that is still to be done, then track as the training would
    have.
    """
    config = parse_config(json.loads((folder / record_run.CONFIG).read_text(encoding="utf-8")))
    with Ledger(ledger_url(config, find_schema(config.data.name), home)) as ledger:
        require_paid(ledger, pending)
        job = training.prepare(config, here=False)
        require_intact(folder, pending)
        notes = [settle(ledger, pending), settle_metric(ledger, folder, pending)]
        ledger.reap(kept=outbox.entries())
        metrics = outbox.kept_metrics(folder) | released(ledger, folder)
        if config.evaluate.release is not None and not (folder / METRICS).is_file():
            notes.append(without_metric(ledger, pending))
    run_id = run_of(client, home, config, folder.name)
    if MODEL not in client.get_run(run_id).data.tags:
        trace = json.loads((folder / record_run.TRACE).read_text(encoding="utf-8"))
        record_run.send(client, run_id, folder, job, pending, trace, metrics, attach)
    else:
        # Everything was stored; only the folder was left.
        outbox.remove(folder)
    client.set_tag(run_id, AGAIN, "yes")
    client.set_terminated(run_id, "FINISHED")
    index.add(home, "run", index.facts_of(client.get_run(run_id)))
    notes.append("" if metrics else "it was not evaluated: the process ended before")
    return "; ".join(filter(None, notes))


def require_intact(folder: Path, pending: Pending) -> None:
    """Raise ``DPFlowsError`` unless the files are those whose hashes close the entry, the statement
    names that entry, and the code is that of then.
    """
    names = {
        **record_run.HASHED,
        **{key: f"model/{name}" for key, name in record_run.MODEL_HASHED.items()},
    }
    names["weights"] = names[START] = "model/weights.npz"
    for key, digest in pending.hashes.items():
        if file_hash(folder / names[key]) != digest:
            raise DPFlowsError(
                f"Expected {names[key]} as the training wrote it, but its hash differs."
            )
    named = json.loads((folder / record_run.STATEMENT).read_text(encoding="utf-8"))["ledger"]
    if (named["entry"], named["dataset"]) != (pending.entry, pending.dataset):
        raise DPFlowsError(
            f"Expected the entry that the statement names, {named['entry']} of "
            f"{named['dataset']!r}, got {pending.entry} of {pending.dataset!r}."
        )
    listed, _ = sources.read_inventory((folder / sources.INVENTORY).read_bytes())
    code = sources.code_hashes()
    if {name: listed.get(name) for name in code} != code:
        raise DPFlowsError(
            "Expected the version of dpflows that trained the model, got another; recover with "
            "that one."
        )


def require_paid(ledger: Ledger, pending: Pending) -> None:
    """Raise ``Forfeited`` where the entry was closed without this result."""
    if ledger.state_of(pending.entry) == "forfeited":
        raise Forfeited(
            f"entry {pending.entry} of {pending.dataset!r} is forfeited: it stays charged in full, "
            "and its model can never be released; remove its folder, or keep it for yourself"
        )


def settle(ledger: Ledger, pending: Pending) -> str:
    """Require a committed entry with these hashes; one that is still open is committed now."""
    found = ledger_entry(ledger, pending.entry)
    if found["state"] == "reserved":
        ledger.commit_for(pending.entry, pending.dataset, pending.hashes, pending.draws)
        return "its ledger entry is committed now"
    if found["state"] != "committed":
        raise DPFlowsError(
            f"Expected a committed entry, got {pending.entry}, which is {found['state']}."
        )
    if any(found["hashes"].get(key) != digest for key, digest in pending.hashes.items()):
        raise DPFlowsError(
            f"Expected the files that entry {pending.entry} was committed with, got others."
        )
    return ""


def settle_metric(ledger: Ledger, folder: Path, pending: Pending) -> str:
    """Commit a noisy metric of the model that lies whole in ``folder`` and is drawn and open."""
    found = outbox.metric_of(folder, pending.entry)
    if found is None or ledger.state_of(found[0]) != "reserved":
        return ""
    ledger.commit_for(found[0], pending.dataset, {"metrics": found[1]}, 1)
    return "its noisy metric is committed now"


def released(ledger: Ledger, folder: Path) -> dict[str, float]:
    """Noisy metrics that were drawn and committed; a file whose entry is not committed is
    removed.
    """
    path = folder / METRICS
    if not path.is_file():
        return {}
    text = path.read_bytes()
    try:
        stored_ = json.loads(text)
        entry = ledger_entry(ledger, stored_["ledger_entry"])
        if (
            entry["state"] == "committed"
            and entry["hashes"].get("metrics") == sha256(text).hexdigest()
        ):
            return {f"released.{name}": float(value) for name, value in stored_["values"].items()}
    except (ValueError, KeyError, DPFlowsError):
        pass
    path.unlink()
    return {}


def without_metric(ledger: Ledger, pending: Pending) -> str:
    """What is said of a model whose noisy metric was asked for and is not there, with the way
    out.
    """
    undrawn = ledger.undrawn_metric(
        pending.entry, pending.hashes["config"], pending.hashes["weights"]
    )
    if undrawn:
        return f"its noisy metric was never drawn ({undrawn}): the model can be released without it"
    return (
        "its noisy metric was drawn and is lost: the model is stored and cannot be released; train "
        "again"
    )


def run_of(client: MlflowClient, home: Home, config: TrainConfig, name: str) -> str:
    """The run that the training opened; a new one where the store does not know it any more."""
    try:
        return str(client.get_run(name).info.run_id)
    except MlflowException:
        experiment = tracking.ensure_experiment(client, home, config.tracking.experiment)
        return tracking.open_run(
            client, experiment, config.tracking.name, {"dpflows.first_run": name}
        )


def move_home(old: Path, new: Path, as_json: bool) -> None:
    """Move the folder, or put right one that was moved or restored, and say what changed."""
    found = move(old.expanduser(), new.expanduser())
    answer = {
        "schema_version": 1,
        "old": str(old.expanduser().absolute()),
        "new": str(new.expanduser().absolute()),
        "places": found.places,
        "missing": list(found.missing),
    }
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    sys.stdout.write(
        f"{found.places} places in MLflow's store lead to {answer['new']} now; ledger, statements "
        f"and bundles hold none. Set DPFLOWS_HOME={answer['new']}.\n"
    )
    for place in found.missing:
        sys.stdout.write(f"Not there: {place} (in a store, but not in the folder).\n")
