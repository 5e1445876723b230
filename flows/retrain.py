"""The retraining flow: due?, one at a time, window, warm start, training, champion; and its place
on a schedule.
"""

# No postponed annotations here: a served flow is rebuilt from its annotations where this module has
# no name yet.

import os
from datetime import UTC, datetime
from typing import Any

import prefect.runtime.flow_run
from prefect import flow

from dpcore.errors import DPFlowsError
from flows import story
from flows.steps import StepFailed, arrived, completed, open_store, reporter, step
from flows.train import train_flow
from tasks import ledger as ledger_place
from tasks.home import Home
from tasks.ledger import Blocks, Ledger
from tasks.record import outbox, tracking, view
from tasks.retraining import RetrainConfig, champion, check_retraining, drift, schedule
from tasks.retraining import schedule as retraining_schedule
from tasks.retraining.backfill import Planned
from tasks.retraining.champion import Start, warm
from tasks.retraining.schedule import one_at_a_time
from tasks.schema import find_schema

drift_step = step(drift.release_drift, "release drift figures")


@flow(
    name="dpflows-retrain",
    flow_run_name=story.retraining_name,
    retries=0,
    persist_result=False,
    log_prints=False,
)
def retrain_flow(config: RetrainConfig, at: datetime | None = None) -> dict[str, Any]:
    """Train the newest period that was complete at ``at``, once; default: at the scheduled time of
    this flow run.

    A time that is given means its own period, however long ago. A trigger for a period that is
    done, or one of the schedule that comes too late, does nothing and says so. Returns ``outcome``
    (trained or skipped) with its reason, and the summary of the training.
    """
    check_retraining(config)
    name = story.data_name(config.training.data.name)
    story.tag(name, "retraining")
    with story.fired(name) as fired, Home.find().adopted() as home, story.told(name):
        answer = _steps(config, at, home)
        fired(end_words(answer))
    # A state, of which the caller gets the answer.
    skip = "Skipped" if answer["outcome"] == "skipped" else None
    ended: dict[str, Any] = story.ended(end_words(answer), answer, skip)
    return ended


def end_words(answer: dict[str, Any]) -> str:
    """How a retraining ended, from public and charged numbers: for the state and the log."""
    if answer["outcome"] == "skipped":
        return f"skipped: {answer['reason']}"
    run = answer["training"]
    words = (
        f"period {answer['period']} trained: {run['algorithm']}, epsilon "
        f"{run['epsilon_spent']:.6g} at delta {run['delta']:g}, MLflow run {run['run_id']}"
    )
    battle = answer["champion"]
    if battle is None:
        return words
    return words + (", better than the champion" if battle["won"] else ", the champion is kept")


def _steps(config: RetrainConfig, at: datetime | None, home: Home) -> dict[str, Any]:
    """The steps of the flow, in its home."""
    schema = find_schema(config.training.data.name)
    champion.require_public(config.champion, schema)
    drift.require_drift(config.drift.epsilon, schema)
    now = datetime.now(UTC)
    scheduled = at or prefect.runtime.flow_run.scheduled_start_time or now
    with Ledger(ledger_place.ledger_url(config.training, schema, home)) as ledger:
        # Periods of processes that died are known as such before they are asked for.
        ledger.reap(kept=outbox.entries())
        found = look(config, ledger, scheduled, now, at is not None)
        if found.idle:
            return skipped(config, found)
        with (
            one_at_a_time(ledger, schema.name, config.schedule.wait_minutes),
            story.slot(schema.name),
        ):
            found = look(config, ledger, scheduled, datetime.now(UTC), at is not None)
            return arrived(skipped(config, found) if found.idle else _train(config, found, ledger))


def look(
    config: RetrainConfig, ledger: Ledger, scheduled: datetime, now: datetime, asked: bool = False
) -> schedule.Due:
    """Which period is due; raises ``InputError`` where schedule and blocks of the data do not
    agree.
    """
    schema = find_schema(config.training.data.name)
    schedule.require_division(
        Blocks.of(schema), config.schedule.every, config.window.last, schema.name
    )
    return schedule.due(ledger, schema.name, config.schedule, scheduled.astimezone(UTC), now, asked)


def _train(config: RetrainConfig, found: schedule.Due, ledger: Ledger) -> dict[str, Any]:
    say = reporter.get().say
    division = Blocks.of(find_schema(config.training.data.name))
    reading = retraining_schedule.choose(
        config.training, config.window, division, found.until.date(), found.period, ledger
    )
    store = open_store(reading.config.tracking.experiment)
    start = warm(config, reading.config, store.client, ledger)
    rival = champion.beside(config.champion, start.config, store.client, ledger)
    notes = [found.note, _window_words(reading), start.note, rival.note]
    for note in filter(None, notes):
        say(f"Period {found.period}: {note}.")
    summary = completed(lambda: train_flow(rival.config))
    _tag(store.client, summary["run_id"], found, reading, start)
    _nest(store, config.name, summary)
    answer = {
        "schema_version": 1,
        "outcome": "trained",
        "data": summary["data"],
        "period": found.period,
        "reason": "",
        "notes": [note for note in notes if note],
        "blocks": list(reading.kept),
        "left_out": list(reading.left_out),
        "warm_start": start.run_id,
        "champion": None,
        "training": summary,
        "flow_run_id": story.flow_run_id(),
    }
    if config.champion.data is not None or config.champion.model is not None:
        answer["champion"] = champion.challenge(
            config.champion, start.config, summary, store.client, ledger
        )
        if not answer["champion"]["won"]:
            story.emit("champion-kept", summary["data"], **answer["champion"])
    if config.drift.epsilon is not None:
        answer["drift"] = _drift(
            config.drift.epsilon, start.config, found.period, store.client, summary, ledger
        )
    return answer


def _drift(
    epsilon: float, config: Any, period: str, client: Any, summary: dict[str, Any], ledger: Ledger
) -> Any:
    """Figures of the newest block, with the run they belong to; a word where its budget has no room
    for them.
    """
    measured = drift_step(epsilon, config, period, ledger)
    if not measured.text:
        reporter.get().say(f"Warning: {measured.note}")
        return {"note": measured.note}
    client.log_text(summary["run_id"], measured.text, drift.FILE)
    tracking.log_metrics(client, summary["run_id"], measured.metrics)
    share = measured.metrics["released.drift_positive_share"]
    story.emit("drift", summary["data"], period=period, positive_share=share, epsilon=epsilon)
    return {"positive_share": share, "file": drift.FILE}


def _window_words(reading: retraining_schedule.Reading) -> str:
    if not reading.left_out:
        return ""
    return (
        f"left out, since their budget is spent: {', '.join(reading.left_out)}; "
        f"{len(reading.kept)} blocks are read"
    )


def _tag(
    client: Any,
    run_id: str,
    found: schedule.Due,
    reading: retraining_schedule.Reading,
    start: Start,
) -> None:
    tags = {
        "period": found.period,
        "warm_start": start.run_id or "none",
        "left_out": " ".join(reading.left_out) or "none",
    }
    for name, value in tags.items():
        client.set_tag(run_id, f"dpflows.{name}", value[: tracking.PARAM_LENGTH])


def _nest(store: Any, name: str, summary: dict[str, Any]) -> None:
    """Put the run of a period below one of the whole schedule, which is made once."""
    title = f"{summary['data']} · {name}"
    wanted = f"tags.`dpflows.schedule` = '{tracking.safe_name(title)}'"
    found = store.client.search_runs([store.experiment], filter_string=wanted, max_results=1)
    if found:
        parent = str(found[0].info.run_id)
    else:
        tags = {"dpflows.schedule": tracking.safe_name(title), "dpflows.data": summary["data"]}
        parent = tracking.open_run(store.client, store.experiment, title, tags)
        tracking.close_run(store.client, parent, "FINISHED")
    store.client.set_tag(summary["run_id"], view.PARENT, parent)


def skipped(config: RetrainConfig, found: schedule.Due) -> dict[str, Any]:
    """The answer of a trigger that has nothing to do."""
    reporter.get().say(f"{found.idle[0].upper()}{found.idle[1:]}.")
    name = find_schema(config.training.data.name).name
    story.line(found.idle)
    story.emit("skipped", name, period=found.period, reason=found.idle)
    common = {"schema_version": 1, "outcome": "skipped", "data": name, "period": found.period}
    return common | {"reason": found.idle, "flow_run_id": story.flow_run_id()}


def retrain(config: RetrainConfig, at: datetime | None = None) -> dict[str, Any]:
    """Run the flow and raise what really went wrong, which the orchestrator does not get to see."""
    try:
        return completed(lambda: retrain_flow(config, at))
    except StepFailed as failed:
        if isinstance(failed.error, DPFlowsError):
            raise failed.error from None
        raise failed.error from failed


def backfill(config: RetrainConfig, planned: list[Planned]) -> dict[str, Any]:
    """Train the planned periods one after the other, oldest first, each by a flow run of its own.

    One that fails ends it: the error says which periods stand. Those that were trained stay trained
    and charged.
    """
    answers: list[dict[str, Any]] = []
    for one in planned:
        if not one.idle:
            try:
                answers.append(retrain(config, one.at))
            except BaseException:
                done = ", ".join(answer["period"] for answer in answers) or "none"
                reporter.get().say(f"Backfill stopped at {one.period}; trained before it: {done}.")
                raise
    idle = [
        {"period": one.period, "outcome": "skipped", "reason": one.idle}
        for one in planned
        if one.idle
    ]
    found = sorted([*answers, *idle], key=lambda answer: str(answer["period"]))
    name = find_schema(config.training.data.name).name
    flow_run = answers[-1]["flow_run_id"] if answers else ""
    return {
        "schema_version": 1,
        "outcome": "backfilled",
        "data": name,
        "periods": found,
        "flow_run_id": flow_run,
    }


def place(config: RetrainConfig) -> dict[str, Any]:
    """The schedule of the flow, its parameters, and the rule for runs that overlap: the later one
    waits (ENQUEUE).

    Cancelling it instead would skip a period in silence.
    """
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.flows import EntrypointType
    from prefect.schedules import Cron

    return {
        "name": config.name,
        "tags": [story.data_name(config.training.data.name), "retraining"],
        "schedule": Cron(config.schedule.cron, timezone="UTC"),
        "parameters": {"config": config.model_dump(mode="json", exclude_unset=True)},
        "concurrency_limit": ConcurrencyLimitConfig(
            limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
        ),
        "entrypoint_type": EntrypointType.MODULE_PATH,
    }


def serve(config: RetrainConfig, home: Home) -> None:
    """Put the flow on its schedule and run what becomes due, until interrupted.

    The server must outlive single runs: one that ``PREFECT_API_URL`` names, or `dpflows ui
    --prefect`.
    """
    # Runs start in processes of their own: relative folders must mean the same there.
    os.environ["DPFLOWS_HOME"] = str(home.root)
    os.environ[story.SERVED[0]] = "1"
    options = place(config)
    options["global_limit"] = options.pop("concurrency_limit")
    retrain_flow.serve(limit=1, print_starting_message=False, **options)
