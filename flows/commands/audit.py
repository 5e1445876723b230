"""``dpflows audit``: check a run before it may leave, and mark it."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from dpcore.errors import InputError, VerificationFailed
from flows.terminal import print_whole
from tasks.audit import Audit, Finding, Subject, audit
from tasks.audit.mlflow_run import Database
from tasks.audit.subject import CONFIG, from_record, ledger_facts
from tasks.home import Home
from tasks.ledger import ledger_of_run
from tasks.record import AUDIT
from tasks.stores.moved import require_in_place

if TYPE_CHECKING:
    from mlflow import MlflowClient


RUN_ID = "[0-9a-f]{32}"


def audit_run(
    run: str,
    ledger: str | None,
    empirical: bool,
    as_json: bool,
    any_signer: bool = False,
    replan: bool = False,
) -> None:
    """Audit a run of the store, or a record in a JSON file; raises ``VerificationFailed`` where it
    is blocked.

    ``replan``: also plan a run of this project again, which needs the libraries of a training.
    """
    path = Path(run)
    of_file = path.suffix == ".json" or os.sep in run
    if of_file:
        subject = recorded(run)
        report = audit(subject)
    else:
        subject, report = stored(run, ledger, any_signer, replan)
    measured = measure(subject) if empirical else None
    if measured is not None and "skipped" not in measured and not of_file:
        keep(report.run_id, measured)
    show(report, measured, as_json)
    if report.blocked:
        raise VerificationFailed(
            f"Run {report.run_id} must not be released: {', '.join(sorted(report.codes))}."
        )


def recorded(run: str) -> Subject:
    """A run record in a JSON file."""
    path = Path(run)
    if path.suffix == ".json" and path.is_file():
        return from_record(path)
    wrong = "which is no file with JSON" if path.exists() else "which is missing"
    raise InputError(
        f"Expected a run id, or a run record in a JSON file, got {run!r}, {wrong}; correct the "
        "path."
    )


def stored(run: str, ledger: str | None, any_signer: bool, replan: bool) -> tuple[Subject, Audit]:
    """A run of the store, or the one behind a registered model, with its audit, which is noted at
    the run.
    """
    if (found := quick(run)) is not None:
        database, plain = found
        subject = with_ledger(plain, ledger)
        report = audit(subject, planned_again(subject, ledger) if replan else [])
        database.set_tag(run, AUDIT, verdict(report))
        return subject, report
    client = open_store()
    known, more = run, list[Finding]()
    if not re.fullmatch(RUN_ID, run) and is_name(client, run):
        known, subject, more = registered(client, run, ledger, any_signer)
    else:
        subject = read(client, known, ledger)
    report = audit(subject, [*more, *(planned_again(subject, ledger) if replan else [])])
    mark(client, known, report)
    return subject, report


def quick(run: str) -> tuple[Database, Subject] | None:
    """A run read straight from the local database, without MLflow's import; None where the client
    has to look.
    """
    require_in_place(Home.find().prepare())
    database = Database.of(os.environ["MLFLOW_TRACKING_URI"]) if re.fullmatch(RUN_ID, run) else None
    stored = None if database is None else database.read_run(run)
    return None if database is None or stored is None else (database, stored)


def open_store() -> MlflowClient:
    """The client of this project's store."""
    home = Home.find().prepare()
    from tasks.record.tracking import tracking_client

    return tracking_client(home)


def is_name(client: MlflowClient, name: str) -> bool:
    """Whether a registered model has this name, or releases of it lie in the home folder."""
    from tasks.release.registry import find_model

    return find_model(client, name) is not None or (
        os.sep not in name and (Home.find().root / "releases" / name / "front.json").is_file()
    )


def registered(
    client: MlflowClient, name: str, ledger: str | None, any_signer: bool
) -> tuple[str, Subject, list[Finding]]:
    """The run behind a registered model's released version, with what differs between bundle, run
    and registry.
    """
    from tasks.release.front import same_chain, same_run, where_released
    from tasks.release.gate import load_policy
    from tasks.release.keys import trusted_keys

    trusted = None if any_signer else trusted_keys(load_policy().trusted_keys)
    found, shown = where_released(client, Home.find().root / "releases" / name, name, trusted)
    subject = read(client, found.manifest.run_id, ledger)
    chain = same_chain(found, ledger or ledger_of(subject))
    return found.manifest.run_id, subject, [*shown, *same_run(found, subject), *chain]


def read(client: MlflowClient, run: str, ledger: str | None = None) -> Subject:
    """A run of the store with the facts of its ledger."""
    from tasks.audit.mlflow_run import read_run

    return with_ledger(read_run(client, run), ledger)


def with_ledger(subject: Subject, ledger: str | None) -> Subject:
    """A run with what its ledger knows of it."""
    facts, metric_facts = ledger_facts(subject.files, ledger or ledger_of(subject))
    return replace(subject, ledger=facts, metric_ledger=metric_facts)


def ledger_of(subject: Subject) -> str:
    """Where the budget of the run is kept: its configuration, its data schema, ``DPFLOWS_LEDGER``,
    the home folder.
    """
    try:
        values = json.loads(subject.files[CONFIG])
    except (KeyError, ValueError):
        values = {}
    return ledger_of_run(values, Home.find())


def planned_again(subject: Subject, ledger: str | None) -> list[Finding]:
    """What differs where the run is planned again from its own configuration."""
    from tasks.audit.planned import plan_again

    return plan_again(subject, ledger or ledger_of(subject))


def mark(client: MlflowClient, run: str, report: Audit) -> None:
    """Write on the run what the audit found."""
    client.set_tag(run, AUDIT, verdict(report))


def verdict(report: Audit) -> str:
    """What the audit found, as a tag."""
    return f"blocked: {', '.join(sorted(report.codes))}"[:1000] if report.blocked else "clean"


def measure(subject: Subject) -> dict[str, Any]:
    """Empirical lower bounds for the algorithm of the run, on synthetic data of the same shape."""
    from tasks.audit.recompute import attack_run

    return attack_run(subject)


def keep(run: str, measured: dict[str, Any]) -> None:
    """Store metrics and figure of an empirical audit with the run; they stand on synthetic data
    alone.
    """
    from tasks.audit.recompute import FIGURE, metrics_of, write_figure
    from tasks.record.tracking import log_files, log_metrics

    client = open_store()
    log_metrics(client, run, metrics_of(measured))
    with TemporaryDirectory() as folder:
        write_figure(measured, Path(folder) / FIGURE)
        log_files(client, run, Path(folder), [FIGURE])


def show(report: Audit, measured: dict[str, Any] | None, as_json: bool) -> None:
    """Print the findings."""
    if as_json:
        answer = report.to_dict() | ({"empirical": measured} if measured is not None else {})
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    console = Console()
    state = "blocked" if report.blocked else "nothing found that blocks a release"
    table = Table(title=f"Audit of {report.run_id}: {state}", title_justify="left")
    for name in ("severity", "code", "what", "why", "fix"):
        table.add_column(name, overflow="fold")
    for item in report.findings:
        table.add_row(str(item.severity), item.code, item.what, item.why, item.fix)
    if report.findings:
        print_whole(console, table)
    else:
        console.print(
            f"Audit of {report.run_id}: {state} ({len(report.checks)} rules).", soft_wrap=True
        )
    if measured is not None:
        empirical = Table(
            title="Empirical lower bounds on epsilon", title_justify="left", show_header=False
        )
        for name, value in measured.items():
            empirical.add_row(
                name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value)
            )
        print_whole(console, empirical)
