"""What people see: the report of a run, and MLflow's page that compares runs, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from flows.commands.ui import experiment_links, mlflow_server
from flows.server import free_port
from tasks.home import Home
from tasks.report import REPORT
from tests.browser.chrome import Page, keep
from tests.tasks.compare.test_engine import comparison_of, public
from tests.tasks.release.runs import EXPERIMENT, World

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
IMAGES = (
    "[...document.images].map(i => [i.complete, i.naturalWidth, i.getBoundingClientRect().width, "
    "i.alt])"
)


@pytest.fixture
def report(shared_world: World, trained: str, tmp_path: Path) -> Path:
    return Path(shared_world.client.download_artifacts(trained, REPORT, str(tmp_path)))


@pytest.mark.parametrize("width", [1200, 390, 320])
def test_the_report_renders_whole_and_alone(tab: Page, report: Path, width: int) -> None:
    tab.open(report.as_uri(), width)
    images = tab.ask(IMAGES)
    assert len(images) >= 5
    for complete, natural, shown, alt in images:
        assert complete and natural > 400 and 150 < shown <= width and len(alt) > 40
    assert tab.ask(OVERFLOW) == 0, "the page is wider than its window"
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [report.as_uri()]
    heads = tab.ask("[...document.querySelectorAll('h1, h2')].map(h => h.innerText)")
    assert "What an attacker may learn" in heads and "How good the model is" in heads


def test_small_letters_stay_large_enough_on_a_phone(tab: Page, report: Path) -> None:
    """Letters of 9 points in figures of 4.4 inches are at least 9 CSS pixels high; those of the
    page 14.
    """
    tab.open(report.as_uri(), 390)
    shown = min(width for _, _, width, _ in tab.ask(IMAGES))
    assert 9 / 72 * shown / 4.4 >= 9
    sizes = (
        "[...document.querySelectorAll('p, li, td, th, figcaption')].map(e => "
        "parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(tab.ask(sizes)) >= 14


@pytest.mark.slow
def test_mlflow_compares_runs_by_epsilon_and_quality(
    tab: Page, shared_world: World, trained: str
) -> None:
    other = shared_world.train(shared_world.config(privacy={"epsilon": 0.5}))
    accuracy = shared_world.client.get_run(other).data.metrics["internal.accuracy"]
    with mlflow_server(shared_world.home, free_port()) as (base, _):
        experiment = (
            experiment_links(shared_world.home, base)[EXPERIMENT]
            .split("/experiments/")[1]
            .split("/")[0]
        )
        lists = [quote(json.dumps(value)) for value in ([trained, other], [experiment])]
        tab.open(f"{base}/#/compare-runs?runs={lists[0]}&experiments={lists[1]}")
        tab.wait("/privacy.epsilon\\s+1.0\\s+0.5/.test(document.body.innerText)")
        tab.wait("document.body.innerText.includes('internal.accuracy')")
        text = str(tab.ask("document.body.innerText"))
        for name in (
            "privacy.delta",
            "privacy.adjacency",
            "spent.epsilon",
            "internal.non_private_accuracy",
            other,
        ):
            assert name in text, name
        shown = [float(word) for word in text.split() if word.replace(".", "", 1).isdigit()]
        assert min(abs(number - accuracy) for number in shown) < 5e-4
        tab.open("about:blank")


@pytest.mark.slow
def test_mlflow_shows_a_comparison_by_line_with_curves_overlaid(
    tab: Page, server: str, home: Home, small: Path
) -> None:
    """The link of `dpflows ui`: every run by name, best first, one chart of all lines against
    epsilon and one of all iterations, and algorithm, epsilon, delta and adjacency as columns."""
    from flows.compare import compare

    public(small)
    config = comparison_of(
        small, tracking={"experiment": "seen"}, curve_every=1, metrics=["accuracy"]
    )
    best = max(compare(config)["means"], key=lambda mean: mean["metrics"]["accuracy"])["name"]
    with mlflow_server(home, free_port()) as (base, _):
        link = experiment_links(home, base)["seen"]
        assert "viewStateShareKey=" in link
        tab.open(link, 1600, 1100)
        # Lines and points by epsilon, lines by iteration, parallel axes, bars of quality and time.
        tab.wait("/Comparison\\s*\\(6\\)/.test(document.body.innerText)")
        tab.wait("document.querySelectorAll('.js-plotly-plot').length >= 2")
        text = str(tab.ask("document.body.innerText"))
        names = [
            f"small dp_{name} steps=3 eps={epsilon}"
            for name in ("sgd", "adam")
            for epsilon in ("0.5", "1")
        ]
        for name in (*names, "small majority", "small non_private minmax cap", "compare small"):
            assert name in text, name
        first = min(
            (text.index(name), name)
            for name in (*names, "small non_private minmax cap", "small majority")
        )[1]
        assert first == best or first.startswith(best)
        traces = tab.ask(
            "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.data.length)"
        )
        assert max(traces) >= 4  # the lines of four settings in one chart
        keep(tab, "mlflow-comparison")
        tab.open("about:blank")
        tab.open(link.replace("compareRunsMode=CHART&", ""), 1900, 1100)
        for name in (
            "released.accuracy",
            "adjacency",
            "delta",
            "epsilon",
            "label",
            "add_remove",
            "0.0001",
        ):
            tab.wait(f"document.body.innerText.includes('{name}')")
        tab.open("about:blank")
