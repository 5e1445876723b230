"""``dpflows ui``: MLflow's and Prefect's pages on this project's store, on this machine only.

``dpflows ui --report``: the report of a run, written to a file and shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpcore.errors import DPFlowsError, InputError
from flows.server import ADDRESS_FILE, free_port, healthy, is_free, reachable
from tasks.home import UI_FILE, Home
from tasks.record import OURS, view
from tasks.record.tracking import DATABASES, tracking_client
from tasks.schema import find_schema
from tasks.stores import ensure_stores
from tasks.stores.moved import require_in_place

STARTUP_SECONDS = 120.0
PAGE_SECONDS = 30.0  # after which the page of the budget is written anew


def serve(with_prefect: bool, port: int, prefect_port: int, as_json: bool) -> None:
    """Start the servers, print their links, and wait until interrupted or until one of them
    ends.
    """
    home = Home.find().prepare()
    require_in_place(home)
    with ExitStack() as stack:
        servers: list[subprocess.Popen[bytes]] = []
        if os.environ["MLFLOW_TRACKING_URI"].startswith(DATABASES):
            base, process = stack.enter_context(mlflow_server(home, usable(port)))
            servers.append(process)
        else:
            base = os.environ["MLFLOW_TRACKING_URI"].rstrip("/")
        links = {"mlflow": base}
        stack.enter_context(announced(home, base))
        links |= {f"experiment {name}": link for name, link in experiment_links(home, base).items()}
        if with_prefect:
            api, process = stack.enter_context(prefect_server(home, usable(prefect_port)))
            servers.append(process)
            links["prefect"] = api.removesuffix("/api")
        links["budget"] = write_budget_page(home).as_uri()
        show(links, as_json)
        fresh = time.monotonic()
        while servers and all(server.poll() is None for server in servers):
            time.sleep(0.3)
            if time.monotonic() > fresh + PAGE_SECONDS:
                write_budget_page(home)
                fresh = time.monotonic()
        if servers:
            raise DPFlowsError(
                f"Expected the servers to keep running, but one ended; see the logs in {home.root}."
            )


def write_budget_page(home: Home) -> Path:
    """Write the page of the budget of this home's ledger, and return where it is."""
    from tasks.ledger import Ledger, ledger_for
    from tasks.report.budget import FILE, write_budget

    with Ledger(ledger_for(None, home)) as ledger:
        return write_budget(home.root / FILE, budget_text(ledger, home))


def write_page(ledger: Any, file: Path) -> None:
    """Write the page of ``ledger`` to ``file``; raises ``InputError`` where that cannot be."""
    from tasks.report.budget import write_budget

    try:
        write_budget(file, budget_text(ledger, Home.find()))
    except OSError as error:
        raise InputError(
            f"Expected a file for a page, got --html {file} ({error}); e.g. budget.html."
        ) from error


def draw_blocks(opened: Any, name: str, file: Path) -> None:
    """Draw the budget of each block over time to ``file``; raises ``InputError``."""
    from tasks.report.facts import history
    from tasks.report.figures import draw

    try:
        draw(history(opened, name)).savefig(file)
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected a file for a figure, got --figure {file} ({error}); e.g. budget.png."
        ) from error


def budget_text(ledger: Any, home: Home) -> str:
    """The page of a ledger with what stands around it: schedules, releases, what waits."""
    from tasks.record import index, outbox
    from tasks.report.budget import budget_page

    runs = index.runs(home)
    releases = [{**one, "data": run["data"]} for run in runs for one in run["releases"]]
    left = outbox.words(home) if home.outbox.is_dir() else ""
    return budget_page(ledger, next_firings(), releases, [f"{left}."] if left else [])


def next_firings() -> dict[str, list[str]]:
    """When the schedule of conf/retrain.yaml in this folder fires next, by data set."""
    from tasks.retraining import load_retraining, next_firing

    if not any((Path(folder) / "retrain.yaml").is_file() for folder in ("conf", ".")):
        return {}
    try:
        config = load_retraining()
        name = find_schema(config.training.data.name).name
    except DPFlowsError as error:
        return {"": [str(error)]}
    when = next_firing(config.schedule.cron, datetime.now(UTC))
    cron = config.schedule.cron
    return {name: [f"{when:%Y-%m-%d %H:%M} UTC ({config.name}, cron {cron}), where it is served"]}


@contextmanager
def announced(home: Home, base: str) -> Iterator[None]:
    """Say in the home folder where MLflow answers, for links of pages written meanwhile."""
    place = home.root / UI_FILE
    place.write_text(json.dumps({"mlflow": base}))
    try:
        yield
    finally:
        place.unlink(missing_ok=True)


def show(links: dict[str, str], as_json: bool) -> None:
    """Print the links, flushed: a script may wait for them."""
    if as_json:
        sys.stdout.write(json.dumps(links) + "\n")
    else:
        width = max(map(len, links))
        sys.stdout.write("".join(f"{name:<{width}}  {link}\n" for name, link in links.items()))
        sys.stdout.write("Press Ctrl-C to stop.\n")
    sys.stdout.flush()


def usable(port: int) -> int:
    """``port`` where it is free, else another one."""
    return port if is_free(port) else free_port()


def experiment_links(home: Home, base: str) -> dict[str, str]:
    """Straight to the runs and their curves, past the start page that MLflow has for other work.

    An experiment is shown by the view of its trainings, and its latest comparison beside it.
    """
    links: dict[str, str] = {}
    for one in tracking_client(home).search_experiments(filter_string=f"tags.{OURS} = '1'"):
        page = f"{base}/#/experiments/{one.experiment_id}/runs?compareRunsMode=CHART&{view.SIDE}"
        shown = view.view_of(one.tags, view.TRAININGS)
        compared = view.view_of(one.tags)
        first = shown or compared
        links[one.name] = page + (f"&viewStateShareKey={first}" if first else "")
        if shown and compared:
            links[f"{one.name}, comparison"] = f"{page}&viewStateShareKey={compared}"
    return links


@contextmanager
def mlflow_server(home: Home, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """MLflow's server on the local database; yields its address when it answers."""
    ensure_stores(home, prefect=False)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        os.environ["MLFLOW_TRACKING_URI"],
    ]
    options = [
        "--default-artifact-root",
        home.artifacts.as_uri(),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with running(
        [*command, *options, "--workers", "1"], home.root / "mlflow-server.log", {}
    ) as process:
        base = f"http://127.0.0.1:{port}"
        wait(process, lambda: reachable(f"{base}/health"), home.root / "mlflow-server.log")
        yield base, process


@contextmanager
def prefect_server(home: Home, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Prefect's server with its pages; trainings started meanwhile find it through the address
    file.
    """
    ensure_stores(home, mlflow=False)
    api = f"http://127.0.0.1:{port}/api"
    log = home.prefect / "ui-server.log"
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with running(
        command, log, {"PREFECT_SERVER_UI_API_URL": api, "PREFECT_API_URL": api}
    ) as process:
        wait(process, lambda: healthy(api), log)
        address = home.prefect / ADDRESS_FILE
        address.write_text(json.dumps({"api": api}))
        try:
            yield api, process
        finally:
            address.unlink(missing_ok=True)


@contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A child process whose output goes to ``log``, ended with the block."""
    with log.open("ab") as sink:
        options = {**os.environ, **environment}
        process = subprocess.Popen(
            command, env=options, stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    """Wait until ``answers()`` is true; raises ``DPFlowsError`` when the process ends or time runs
    out.
    """
    give_up = time.monotonic() + STARTUP_SECONDS
    while not answers():
        if process.poll() is not None or time.monotonic() > give_up:
            raise DPFlowsError(f"Expected a server to start, but it did not; its log is {log}.")
        time.sleep(0.2)


def show_report(run: str | None, as_json: bool) -> None:
    """Write the report of ``run`` (default: the latest training), print where it is, and open a
    browser if one is.

    Raises ``InputError`` for a run that is none, or has no statement.
    """
    home = Home.find().prepare()
    from tasks.record.tracking import tracking_client
    from tasks.report import write_report

    name, path = write_report(tracking_client(home), run, home.root / "reports")
    if as_json:
        sys.stdout.write(
            json.dumps({"schema_version": 1, "run_id": name, "report": str(path)}) + "\n"
        )
        return
    sys.stdout.write(f"{path}\n")
    sys.stdout.flush()
    if has_display():
        open_page(path)


def has_display() -> bool:
    """Whether somebody sits at a screen: a terminal to the command, and a display that a browser
    could use.
    """
    screen = (
        sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return sys.stdout.isatty() and bool(screen)


def open_page(path: Path) -> None:
    """Open the browser of the desktop; without one the printed path is enough."""
    try:
        webbrowser.open(path.as_uri())
    except webbrowser.Error:
        return


def require_report(run: str | None, report: bool) -> None:
    """Raise ``InputError`` for a run that is named without asking for its report."""
    if run is not None and not report:
        raise InputError(
            f"Expected --report with a run, got {run!r} alone; `dpflows ui --report {run}` shows "
            "its report."
        )
