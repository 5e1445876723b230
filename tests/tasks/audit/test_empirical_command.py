"""``dpflows audit --empirical``: numbers and a figure that stay with the run, shown beside the
claim.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands import audit as command
from tasks.audit import recompute
from tasks.report import figures
from tasks.report import page as report_page
from tasks.report.facts import read_facts
from tasks.report.page import run_report
from tests.tasks.release.runs import World


def test_metrics_and_figure_stay_with_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for twice: measurements on synthetic data may be repeated, and speak against no run."""
    run_id = world.train()
    whole = recompute.attack_run
    # a bound of 40 fits is a matter of chance: the stored one must be the last
    for bound in (0.25, 0.125):
        found = {"lower_bound_any_mechanism": bound}
        monkeypatch.setattr(
            command,
            "measure",
            lambda subject, found=found: whole(subject, fits=40, workers=1) | found,
        )
        command.audit_run(run_id, world.ledger_url, empirical=True, as_json=True)
        report = json.loads(capsys.readouterr().out)
        assert report["releasable"] and report["empirical"]["claimed_here"] == pytest.approx(
            4.0, abs=1e-3
        )
    metrics = world.client.get_run(run_id).data.metrics
    shown = {key: value for key, value in metrics.items() if key.startswith(recompute.PREFIX)}
    assert shown == pytest.approx(recompute.metrics_of(report["empirical"])) and len(shown) == 4
    folder = Path(world.client.download_artifacts(run_id, ""))
    assert (folder / recompute.FIGURE).read_bytes().startswith(b"\x89PNG")
    page = run_report(read_facts(folder, run_id, "a run", metrics, [], None))
    assert "2 x 40 fits of this algorithm on synthetic neighbours: epsilon is at least" in page


@pytest.mark.parametrize(
    ("p_value", "verdict"), [(0.4, "do not speak against the claim"), (0.01, "refute the claim")]
)
def test_canaries_are_told_in_words(
    shared_world: World, trained: str, tmp_path: Path, p_value: float, verdict: str
) -> None:
    numbers = {"count": 140, "guesses": 70, "right": 50, "p_value": p_value}
    numbers |= {"epsilon_lower_bound": 0.72, "claimed_epsilon": 4.0, "gaussian_lower_bound": 1.14}
    metrics = {f"internal.canary.{key}": float(value) for key, value in numbers.items()}
    folder = Path(shared_world.client.download_artifacts(trained, "", str(tmp_path)))
    facts: Any = read_facts(folder, trained, "a run", metrics, [], None)
    [(said, picture)] = figures.found(facts)
    assert (
        "50 of 70 guesses" in said
        and "at least 0.72, 1.14 for Gaussian outputs" in said
        and verdict in said
    )
    assert picture is None and said in run_report(facts)
    assert report_page.metric_keys({"accuracy": 0.8, "filled_test": 3.0, **facts.internal}) == [
        "accuracy"
    ]
