"""Reports of one run: one self-contained page for the operator, and the figures in it.

Where the report of a run comes from and goes to: MLflow, the ledger, a file of the operator.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dpcore.errors import DPFlowsError, InputError
from tasks.home import Home, tracking_page
from tasks.kinds.quality import SUBGROUPS
from tasks.ledger.reader import LedgerReader
from tasks.record import ENTRY, OURS, view
from tasks.report.facts import METRICS, STATEMENT, Facts, Share, read_facts, read_json, share_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


REPORT = "report/report.html"
CONFIG_PARAM = "config.sha256"
MOST_DRAWS = 200

log = logging.getLogger(__name__)


def attach(
    client: MlflowClient, run_id: str, folder: Path, metrics: Mapping[str, float], ledger: str
) -> list[str]:
    """Write the report of the run whose files lie in ``folder``; return what is to be uploaded, as
    relative names.

    A training that was paid for does not fail for its report: what goes wrong is said, and nothing
    is written.
    """
    from tasks.report.page import run_report

    try:
        page = run_report(gather(client, run_id, folder, metrics, ledger))
    except Exception as error:
        log.warning(
            "The report of run %s was not written (%s: %s).", run_id, type(error).__name__, error
        )
    else:
        (folder / REPORT).parent.mkdir(parents=True, exist_ok=True)
        (folder / REPORT).write_text(page, encoding="utf-8")
    return [name for name in (REPORT, SUBGROUPS) if (folder / name).is_file()]


def gather(
    client: MlflowClient,
    run_id: str,
    folder: Path,
    metrics: Mapping[str, float],
    ledger: str | None,
) -> Facts:
    """The facts of a run whose files lie in ``folder``; ``ledger``: where its budget is kept."""
    run = client.get_run(run_id)
    draws = draws_of(client, run)
    found = read_facts(
        folder, run_id, run.info.run_name or run_id, metrics, draws, share(folder, ledger)
    )
    place = f"{tracking_page(Home.find())}/{view.run_place(run.info.experiment_id, run_id)}"
    return replace(found, link=f"{place}?{view.SIDE}")


def draws_of(client: MlflowClient, run: Any) -> list[dict[str, float]]:
    """Metrics of the other finished runs of the experiment with the same configuration: draws of
    the same noise.
    """
    digest = run.data.params.get(CONFIG_PARAM)
    if not digest:
        return []
    wanted = f"attributes.status = 'FINISHED' and params.`{CONFIG_PARAM}` = '{digest}'"
    found = client.search_runs(
        [run.info.experiment_id], filter_string=wanted, max_results=MOST_DRAWS
    )
    return [dict(one.data.metrics) for one in found if one.info.run_id != run.info.run_id]


def share(folder: Path, ledger: str | None) -> Share | None:
    """The run's part in the budget; None where no ledger answers."""
    statement = read_json(folder / STATEMENT)
    if ledger is None or not isinstance(statement, dict):
        return None
    entry = statement["ledger"]
    noisy = read_json(folder / METRICS)
    own = [entry["entry"], *([noisy["ledger_entry"]] if noisy else [])]
    try:
        with LedgerReader(ledger) as reader:
            return share_of(reader, entry["dataset"], entry["blocks"], own)
    except DPFlowsError:
        return None


def latest_run(client: MlflowClient) -> str:
    """The newest finished training of the store. Raises ``InputError`` where there is none."""
    experiments = client.search_experiments(filter_string=f"tags.{OURS} = '1'")
    ids = [experiment.experiment_id for experiment in experiments]
    wanted = f"attributes.status = 'FINISHED' and tags.`{ENTRY}` != ''"
    order = ["attributes.start_time DESC"]
    found = (
        client.search_runs(ids, filter_string=wanted, order_by=order, max_results=1) if ids else []
    )
    if not found:
        raise InputError(
            f"Expected a finished training in {client.tracking_uri}, got none; `dpflows train` "
            "makes one."
        )
    return str(found[0].info.run_id)


def write_report(
    client: MlflowClient, run_id: str | None, folder: Path, ledger: str | None = None
) -> tuple[str, Path]:
    """Make the report of a stored run anew (default: the latest) and write it to ``folder``; return
    run and file.

    Other draws and the ledger are those of now. Raises ``InputError`` for a run that is none or has
    no statement.
    """
    from mlflow.exceptions import MlflowException

    from tasks.report.page import run_report

    name = run_id or latest_run(client)
    with TemporaryDirectory() as place:
        try:
            run = client.get_run(name)
            files = Path(client.download_artifacts(name, "", place))
        except (MlflowException, OSError):
            raise InputError(
                f"Expected a run of {client.tracking_uri}, got {name!r}; `dpflows ui` lists them."
            ) from None
        text = run_report(gather(client, name, files, run.data.metrics, ledger or ledger_of(files)))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{name}.html"
    path.write_text(text, encoding="utf-8")
    return name, path


def ledger_of(files: Path) -> str:
    """Where the budget of the run in ``files`` is kept."""
    from tasks.ledger import ledger_of_run

    return ledger_of_run(read_json(files / "config.json") or {}, Home.find())
