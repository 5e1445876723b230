"""Every page that people see, in a real browser at three widths, ours by day and by night; pictures
of them are kept where DPFLOWS_SHOTS names a folder.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tasks.compare.figures import write_figures
from tasks.compare.page import write_page
from tests.browser.chrome import Page, keep
from tests.browser.site import Site, site
from tests.browser.test_budget_page import CLIPPED, CONTRAST
from tests.browser.test_pages import IMAGES, OVERFLOW
from tests.tasks.compare.cells import grid

pytestmark = pytest.mark.slow

WIDTHS = (1440, 1280, 390)
CHARTS = "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.data.length)"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as found:
        yield found


def read(tab: Page, address: str, width: int, *words: str, height: int = 900) -> str:
    """Open a page of another's program, wait for ``words``, and return its text."""
    tab.open("about:blank")
    tab.open(address, width, height)
    for word in words:
        tab.wait(f"document.body.innerText.includes({json.dumps(word)})")
    time.sleep(2)  # charts are drawn after the text
    return str(tab.ask("document.body.innerText"))


def artifact_of(found: Site) -> str:
    """The page of the first training, among Prefect's artifacts."""
    wanted = {"artifacts": {"flow_run_id": {"any_": [found.flow_run("first")]}}}
    wanted["artifacts"]["type"] = {"any_": ["markdown"]}
    request = Request(
        f"{found.links['prefect']}/api/artifacts/filter",
        data=json.dumps(wanted).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=300) as answer:
        return str(json.load(answer)[0]["id"])


def fresh_links(found: Site) -> dict[str, str]:
    """Links to the experiments that were made since the servers started."""
    base, side = found.links["mlflow"], "compareRunsMode=CHART&workflowType=machine_learning"
    shared = f"viewStateShareKey=dpflows-trainings&{side}"
    return {"runs": f"{base}/#/experiments/1/runs?{shared}"}


@pytest.mark.parametrize("width", [1440, 1280])
def test_mlflow_shows_trainings_by_their_guarantee(tab: Page, shown: Site, width: int) -> None:
    base, first = shown.links["mlflow"], shown.run("first")
    title = "small · scaled_gd · ε 1"
    charts = fresh_links(shown)["runs"]
    read(tab, charts, width, title)
    keep(tab, f"mlflow-runs-{width}")
    tab.wait(f"{CHARTS}.length >= 2")
    assert min(tab.ask(CHARTS)) >= 1, "a chart is empty"
    table = read(tab, charts.replace("compareRunsMode=CHART&", ""), 1900, title)
    keep(tab, "mlflow-table")
    for word in ("privacy.epsilon", "privacy.delta", "privacy.adjacency", "add_remove"):
        assert word.split(".")[-1] in table, word
    run = f"{base}/#/experiments/1/runs/{first}?workflowType=machine_learning"
    assert "Report, internal" in read(tab, run, width, title, "About this run")
    keep(tab, f"mlflow-run-{width}")
    runs = quote(json.dumps([first, shown.run("second")]))
    read(tab, f'{base}/#/compare-runs?runs={runs}&experiments=["1"]', width, "privacy.epsilon")
    keep(tab, f"mlflow-compare-{width}")
    model = read(tab, f"{base}/#/models/small/versions/1", width, "small")
    keep(tab, f"mlflow-model-{width}")
    assert "of the release as a whole" in model and re.search(r"Epsilon [\d.]+ at delta", model)


def test_mlflow_has_no_page_for_a_phone_whatever_it_shows(tab: Page, shown: Site) -> None:
    """At 390 pixels MLflow's own side bars leave no room, on a page without anything of ours too:
    its layout, which no run can change. Names of runs are there, and our report fits.
    """
    base, first = shown.links["mlflow"], shown.run("first")
    room = "(document.querySelector('main') || document.body).getBoundingClientRect().width"
    read(tab, f"{base}/#/experiments?workflowType=machine_learning", 390, "Experiments")
    keep(tab, "mlflow-experiments-390")
    theirs = tab.ask(room)
    for name, place in (
        ("runs", fresh_links(shown)["runs"]),
        ("run", f"{base}/#/experiments/1/runs/{first}?workflowType=machine_learning"),
    ):
        read(tab, place, 390, "small · scaled_gd · ε 1")
        keep(tab, f"mlflow-{name}-390")
        assert theirs < 390 / 2 or tab.ask(room) >= theirs - 1, "less room than without our runs"


@pytest.mark.parametrize("width", WIDTHS)
def test_prefect_tells_trainings_and_skips_apart(tab: Page, shown: Site, width: int) -> None:
    base = shown.links["prefect"]
    text = read(tab, f"{base}/runs", width, "clinic", "Skipped")
    keep(tab, f"prefect-runs-{width}")
    assert re.search(r"small \d{4}-\d\d-\d\d eps 1", text) and "retraining" in text
    # Prefect loads a log where it is looked at, so the window is as high as the page.
    for name, *words in (
        ("first", "Completed", "plan noise and price: scaled_gd, epsilon", "fit with noise: 25"),
        ("skipped", "Skipped", "is trained already: nothing was done and nothing was spent"),
    ):
        place = f"{base}/runs/flow-run/{shown.flow_run(name)}"
        read(tab, place, width, *words, height=900 if width > 1000 else 2400)
        keep(tab, f"prefect-{name}-{width}")
    versions = read(tab, f"{base}/artifacts/key/dpflows-small", width, "training")
    assert len(re.findall(r"small \d{4}-\d\d-\d\d eps", versions)) == 2
    page = read(tab, f"{base}/artifacts/artifact/{artifact_of(shown)}", width, "guarantee")
    keep(tab, f"prefect-page-{width}")
    assert "budget left" in page and "█" in page
    assert tab.ask(OVERFLOW) == 0 or width < 1000


@pytest.fixture(scope="module")
def ours(shown: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of our own pages."""
    from tests.browser.site import command

    folder = tmp_path_factory.mktemp("ours")
    records = grid(["auto", "dp_sgd", "objective_perturbation"], [0.1, 0.5, 1.0])
    facts = {"metrics": ["accuracy", "roc_auc"], "public": True, "machine": {"cores": 2}}
    figures = write_figures(records, folder / "figures", facts)
    report = command(shown.folder, "ui", "--report", shown.run("first"))["report"]
    show = ["ledger", "show", "--ledger", str(shown.folder / "ledger.db")]
    command(shown.folder, *show, "--html", str(folder / "budget.html"))
    return {
        "report": Path(report),
        "budget": folder / "budget.html",
        "comparison": write_page(records, facts, figures, folder / "comparison.html"),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["report", "budget", "comparison"])
def test_our_pages_are_whole_and_readable(
    tab: Page, ours: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.call("Emulation.setEmulatedMedia", features=media)
    try:
        tab.open(ours[name].as_uri(), width)
        keep(tab, f"{name}-{width}-{scheme}", whole=True)
        assert tab.ask(OVERFLOW) == 0, "the page is wider than its window"
        assert tab.ask(CONTRAST) >= 4.5 and tab.ask(CLIPPED) == 0
        for complete, natural, visible, alt in tab.ask(IMAGES):
            assert complete and natural > 300 and alt
            # A wide figure of a comparison is moved under a finger: its letters stay legible.
            assert 100 < visible <= width or (name == "comparison" and visible == 640)
        if width >= 1280:
            wide = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1)"
            assert tab.ask(f"{wide}.length") == 0, "a table has to be scrolled"
        assert tab.errors == []
    finally:
        tab.call("Emulation.setEmulatedMedia", features=[])


def test_a_report_leads_to_its_run(ours: dict[str, Path], shown: Site) -> None:
    text = ours["report"].read_text(encoding="utf-8")
    [link] = re.findall(r'href="([^"]*/runs/[0-9a-f]{32}[^"]*)"', text)
    assert link.startswith(shown.links["mlflow"]) and shown.run("first") in link
