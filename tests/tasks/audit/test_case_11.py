"""Case 11: a run record after a retried job. Each trouble is named, and nothing that is sound
is.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import run
from tasks.audit import Audit, Severity, audit
from tasks.audit.subject import from_record

EXPECTED = {
    "run_not_finished": "status",
    "epsilon_infinite": "epsilon_spent",
    "metric_nan": "accuracy_test",
    "param_changed": "noise_multiplier",
    "seed_recorded": "noise_seed",
    "rng_state_stored": "debug/rng_state.json",
    "exact_metric": "train_loss_without_noise",
    "clear_values_stored": "debug/clean_gradients.npy",
    "input_example_stored": "model/input_example.json",
    "bounds_from_data": "feature_max, bounds_source",
    "conversion_missing": "conversion",
}


@pytest.fixture
def record(shared: Path) -> Path:
    return shared / "cases" / "11-run-record-audit" / "run_record.json"


def blocking(report: Audit) -> dict[str, str]:
    return {item.code: item.subject for item in report.findings if item.severity is Severity.BLOCK}


def test_every_trouble_is_named_and_nothing_else_blocks(record: Path) -> None:
    report = audit(from_record(record))
    assert blocking(report) == EXPECTED
    assert len([item for item in report.findings if item.severity is Severity.BLOCK]) == len(
        EXPECTED
    )
    changed = next(item for item in report.findings if item.code == "param_changed")
    assert "20.0, 25.0" in changed.what


def test_sound_fields_raise_no_alarm(record: Path, tmp_path: Path) -> None:
    stored = json.loads(record.read_text())
    stored |= {"status": "FINISHED", "end_time": "2026-01-01T00:00:00Z", "param_events": []}
    stored["params"] = {
        k: v for k, v in stored["params"].items() if k not in ("noise_seed", "feature_max")
    }
    stored["metrics"] = {"epsilon_spent": "3.9", "ndcg_at_10": "0.61"}
    stored["artifacts"] = ["model/weights.json"]
    stored["tags"] = {
        "conversion": "cks",
        "bounds_source": "declared",
        "evaluated_on": "public held-out set B",
    }
    path = tmp_path / "sound.json"
    path.write_text(json.dumps(stored))
    assert audit(from_record(path)).findings == ()


def test_command_is_machine_readable_and_ends_with_4(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", str(record), "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["releasable"] is False
    assert {item["code"] for item in answer["findings"] if item["severity"] == "block"} == set(
        EXPECTED
    )
    assert all(item[key] for item in answer["findings"] for key in ("what", "why", "fix"))
