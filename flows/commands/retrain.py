"""The command ``retrain``: what is said without a server, one run now, or the schedule."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from dpcore.errors import InputError
from flows.commands.train import on_server
from flows.server import healthy, running_address
from flows.terminal import Terminal, print_whole, summary_rows
from tasks import training
from tasks.home import Home
from tasks.kinds.charge import require_files
from tasks.ledger import Blocks, Ledger, ledger_url
from tasks.retraining import RetrainConfig, champion, drift, load_retraining, rare, schedule
from tasks.retraining import schedule as retraining_schedule
from tasks.retraining.backfill import Planned, rehearse
from tasks.retraining.schedule import break_lock
from tasks.schema import find_schema


def run_retraining(
    config: str | None,
    overrides: Sequence[str],
    at: str | None,
    span: tuple[str | None, str | None],
    serve: bool,
    unlock: bool,
    as_json: bool,
) -> None:
    """``dpflows retrain``: nothing is started where there is nothing to do, or the budget does not
    allow it.

    ``at`` asks for the period that was complete then, ``span`` for all from its first to its last
    one.
    """
    home = Home.find()
    settings = load_retraining(config, overrides)
    require_one_way(at, span, serve)
    if wrong := rare(settings.schedule, datetime.now(UTC)):
        sys.stderr.write(f"Warning: {wrong}\n")
    scheduled = schedule.utc(at) if at is not None else datetime.now(UTC)
    if unlock:
        _unlock(settings, home, as_json)
        return
    if serve:
        refuse_early(settings, home, None)
        _serve(settings, home.prepare())
        return
    if span[0] is not None:
        _backfill(settings, home, span[0], span[1], as_json)
        return
    idle = refuse_early(settings, home, scheduled, at is not None)
    if idle is not None:
        _show(idle, as_json)
        return
    given = scheduled if at is not None else None
    with Terminal(Console(stderr=True)) as terminal:
        answer = on_server(
            settings.training, home.prepare(), terminal, lambda: _run(settings, given)
        )
    _show(answer, as_json)


def require_one_way(at: str | None, span: tuple[str | None, str | None], serve: bool) -> None:
    """Raise ``InputError`` for options of which one says another period than the other."""
    given = [
        name
        for name, value in (("--at", at), ("--from", span[0]), ("--serve", serve or None))
        if value
    ]
    if len(given) > 1:
        raise InputError(
            f"Expected one of --at, --from and --serve, got {' and '.join(given)}; leave one out."
        )
    if span[1] is not None and span[0] is None:
        raise InputError(f"Expected --from with --to {span[1]}; name the oldest period to train.")


def _backfill(
    settings: RetrainConfig, home: Home, first: str, last: str | None, as_json: bool
) -> None:
    """Ask the budget for the whole range, then train what is left of it, oldest first."""
    _require_facts(settings)
    schema = find_schema(settings.training.data.name)
    with Ledger(ledger_url(settings.training, schema, home)) as ledger:
        planned = rehearse(settings, first, last, ledger)
    if all(one.idle for one in planned):
        idle = [{"period": one.period, "outcome": "skipped", "reason": one.idle} for one in planned]
        common = {"schema_version": 1, "outcome": "backfilled", "data": schema.name}
        _show_backfill(common | {"periods": idle, "flow_run_id": ""}, as_json)
        return
    with Terminal(Console(stderr=True)) as terminal:
        for one in planned:
            if one.left_out:
                terminal.say(
                    f"Period {one.period}: the budget of {', '.join(one.left_out)} will be spent "
                    "by then."
                )
        answer = on_server(
            settings.training, home.prepare(), terminal, lambda: _run_all(settings, planned)
        )
    _show_backfill(answer, as_json)


def _require_facts(settings: RetrainConfig) -> None:
    """Raise ``InputError`` where configuration and data set do not go together, from their
    declarations alone.
    """
    schema = find_schema(settings.training.data.name)
    champion.require_public(settings.champion, schema)
    drift.require_drift(settings.drift.epsilon, schema)
    schedule.require_division(
        Blocks.of(schema), settings.schedule.every, settings.window.last, schema.name
    )


def _run_all(settings: RetrainConfig, planned: list[Planned]) -> dict[str, Any]:
    from flows.retrain import backfill

    return backfill(settings, planned)


def _show_backfill(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    table = Table(title=f"Backfill of {answer['data']}", title_justify="left")
    for name in ("period", "outcome", "blocks", "run"):
        table.add_column(name, overflow="fold", no_wrap=name == "period")
    for one in answer["periods"]:
        blocks = _span(one.get("blocks", ())) or "-"
        table.add_row(
            one["period"],
            one["outcome"],
            blocks,
            one.get("training", {}).get("run_id", one["reason"]),
        )
    print_whole(Console(), table)


def refuse_early(
    settings: RetrainConfig, home: Home, scheduled: datetime | None, asked: bool = False
) -> dict[str, Any] | None:
    """Refuse what can be refused from public facts, and return the answer of a trigger with nothing
    to do.

    The flow looks again, under its lock. ``scheduled`` None: only the configuration is looked at.
    """
    _require_facts(settings)
    schema = find_schema(settings.training.data.name)
    division = Blocks.of(schema)
    with Ledger(ledger_url(settings.training, schema, home)) as ledger:
        now = datetime.now(UTC)
        found = schedule.due(ledger, schema.name, settings.schedule, scheduled or now, now, asked)
        # An entry of a process that died is open until the flow's reaper has seen it.
        if found.idle and ledger.period_state(schema.name, found.period) != "reserved":
            common = {
                "schema_version": 1,
                "outcome": "skipped",
                "data": schema.name,
                "period": found.period,
            }
            return common | {"reason": found.idle}
        if scheduled is not None and not found.idle:
            reading = retraining_schedule.choose(
                settings.training,
                settings.window,
                division,
                found.until.date(),
                found.period,
                ledger,
            )
            require_files(training.prepare(reading.config))
    return None


def _run(settings: RetrainConfig, scheduled: datetime | None) -> dict[str, Any]:
    """The retraining flow; imported when the server already starts."""
    from flows.retrain import retrain

    return retrain(settings, scheduled)


def _serve(settings: RetrainConfig, home: Home) -> None:
    api = os.environ.get("PREFECT_API_URL") or running_address(home)
    if api is None or not healthy(api):
        where = f"PREFECT_API_URL={api}, which does not answer" if api else "none"
        raise InputError(
            f"Expected a Prefect server that stays for --serve, got {where}; start `dpflows ui "
            "--prefect` beside it, or set PREFECT_API_URL."
        )
    os.environ["PREFECT_API_URL"] = api
    from flows.retrain import serve

    sys.stderr.write(
        f"Serving {settings.name!r}, cron {settings.schedule.cron!r} UTC, on {api}; Ctrl-C ends "
        "it.\n"
    )
    serve(settings, home)


def _unlock(settings: RetrainConfig, home: Home, as_json: bool) -> None:
    schema = find_schema(settings.training.data.name)
    with Ledger(ledger_url(settings.training, schema, home)) as ledger:
        holder = break_lock(ledger, schema.name)
    if as_json:
        sys.stdout.write(
            json.dumps({"schema_version": 1, "data": schema.name, "removed": holder}) + "\n"
        )
    else:
        words = (
            "there was none"
            if holder is None
            else f"it was held since {holder['since']} by {holder['owner']}"
        )
        Console().print(
            f"Lock of {schema.name!r} removed: {words}.",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    if answer["outcome"] == "skipped":
        Console().print(
            f"Nothing to do: {answer['reason']}.", soft_wrap=True, highlight=False, markup=False
        )
        return
    table = Table(
        title=f"Retraining of {answer['period']}", show_header=False, title_justify="left"
    )
    for name, value in _rows(answer):
        table.add_row(name, value)
    print_whole(Console(), table)


def _span(blocks: Sequence[str]) -> str:
    return f"{blocks[0]} to {blocks[-1]}" if blocks else ""


def _rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    blocks, battle = answer["blocks"], answer["champion"]
    rows = [("window", f"{_span(blocks)} ({len(blocks)} blocks)" if blocks else "all records")]
    rows += [("note", note) for note in answer["notes"]]
    if battle is not None:
        old = (
            "none"
            if battle["champion"] is None
            else f"{battle['champion']:.4f} (version {battle['champion_version']})"
        )
        new = "undefined" if battle["challenger"] is None else f"{battle['challenger']:.4f}"
        verdict = "won" if battle["won"] else f"lost: {'; '.join(battle['reasons'])}"
        rows.append(
            (f"{battle['metric']} on {battle['public_set']} (public)", f"{new}, champion {old}")
        )
        rows.append(("champion", verdict))
    return rows + summary_rows(answer["training"])
