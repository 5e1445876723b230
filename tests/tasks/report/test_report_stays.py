"""The report is the operator's: nothing of it, and no exact number on private records, is in a
bundle.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli import run
from tasks.home import Home
from tasks.report import REPORT
from tests.tasks.release.runs import World


def test_a_bundle_holds_no_report_and_no_internal_number(
    home: Home,
    shared_world: World,
    trained: str,
    key: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = tmp_path / "bundle"
    call = [
        "release",
        trained,
        "--to",
        "kept-apart",
        "--approved-by",
        "A. Person",
        "--key",
        str(key),
        "-o",
        str(bundle),
    ]
    assert run([*call, "--ledger", shared_world.ledger_url, "--json"]) == 0
    capsys.readouterr()
    files = {
        path.relative_to(bundle).as_posix(): path.read_bytes()
        for path in bundle.rglob("*")
        if path.is_file()
    }
    assert "privacy/statement.html" in files
    assert not [name for name in files if "report" in name or name.endswith(".png")]
    metrics = shared_world.client.get_run(trained).data.metrics
    # Shorter ones, such as the 0.5 of the majority class, stand in a bundle for other reasons.
    exact = {k: v for k, v in metrics.items() if k.startswith("internal.") and len(f"{v:.6g}") >= 7}
    assert {"internal.brier_score", "internal.non_private_roc_auc", "internal.fit_seconds"} <= set(
        exact
    )
    report = Path(
        shared_world.client.download_artifacts(trained, REPORT, str(tmp_path))
    ).read_text()
    assert f"{exact['internal.brier_score']:.4f}" in report  # so that it would be found
    for name, data in files.items():
        for key, value in exact.items():
            assert f"{value:.6g}".encode() not in data, (name, key)
        assert b"internal." not in data or name == "config.json", name
