"""Runs that somebody changed after the training, in MLflow or in the ledger: each is caught, by
name.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.cli import run
from flows.commands.audit import read
from tasks.audit import Subject, audit
from tests.tasks.release.runs import World


@pytest.fixture
def subject(shared_world: World, trained: str) -> Subject:
    return read(shared_world.client, trained, shared_world.ledger_url)


def file(name: str, change: Callable[[Any], None]) -> Callable[[Subject], Subject]:
    """Change a JSON file of the run."""

    def do(found: Subject) -> Subject:
        stored = json.loads(found.files[name])
        change(stored)
        return replace(
            found,
            files={**found.files, name: json.dumps(stored, indent=1, sort_keys=True).encode()},
        )

    return do


def model(name: str, data: bytes) -> Callable[[Subject], Subject]:
    return lambda found: replace(found, model={**found.model, name: data})


def metric(name: str, *values: float) -> Callable[[Subject], Subject]:
    return lambda found: replace(found, metrics={**found.metrics, name: values})


def param(name: str, *values: str) -> Callable[[Subject], Subject]:
    return lambda found: replace(found, params={**found.params, name: values})


def tag(name: str, value: str) -> Callable[[Subject], Subject]:
    return lambda found: replace(found, tags={**found.tags, name: value})


def ledger(**fields: Any) -> Callable[[Subject], Subject]:
    return lambda found: replace(found, ledger=replace(found.ledger, **fields))  # type: ignore[type-var]


def stored(*extra: str) -> Callable[[Subject], Subject]:
    return lambda found: replace(found, artifacts=(*found.artifacts, *extra))


def attached(what: str) -> Callable[[Subject], Subject]:
    return lambda found: replace(found, attached=(*found.attached, what))


def weights(value: float) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, weights=np.full(4, value))
    return sink.getvalue()


TAMPERED: dict[str, tuple[Callable[[Subject], Subject], str]] = {
    "weights": (model("weights.npz", weights(1.0)), "weights_changed"),
    "weights that are no numbers": (model("weights.npz", weights(np.nan)), "weights_not_finite"),
    "preprocessing": (model("encoder.json", b'{"encoder": "matrix"}'), "encoder_changed"),
    "rows in the input example": (
        model("input_example.json", b'{"columns": ["age", "city"], "data": [[41.0, "north"]]}'),
        "input_example_not_synthetic",
    ),
    "statement": (
        file("privacy/statement.json", lambda s: s["guarantee"].update(epsilon=0.1)),
        "statement_changed",
    ),
    "mechanisms": (
        file("privacy/mechanisms.json", lambda s: s["order"][0].__setitem__(1, 1)),
        "mechanisms_changed",
    ),
    "configuration": (file("config.json", lambda s: s.update(seed=1)), "config_changed"),
    "noise seed in the configuration": (
        file("config.json", lambda s: s.update(unsafe_fixed_noise_seed=1)),
        "fixed_noise_seed",
    ),
    "canaries in the configuration": (
        file("config.json", lambda s: s.update(audit={"canaries": 300})),
        "canaries_added",
    ),
    "noisy metric's file": (
        file("privacy/metrics.json", lambda s: s["values"].update(accuracy=1.0)),
        "metrics_file_changed",
    ),
    "metric": (metric("released.accuracy", 0.7, 0.99), "metric_changed"),
    "metric without a charge": (metric("released.roc_auc", 0.99), "metric_unaccounted"),
    "epsilon shown": (metric("spent.epsilon", 0.01), "shown_differs"),
    "exact number called spent": (metric("spent.accuracy", 0.9), "metric_unaccounted"),
    "infinite metric": (metric("internal.accuracy", 1.7976931348623157e308), "metric_infinite"),
    "parameter": (param("privacy.epsilon", "0.1"), "shown_differs"),
    "second value of a parameter": (param("algorithm.steps", "8", "9"), "param_changed"),
    "noise seed": (param("noise_seed", "7"), "seed_recorded"),
    "parameter with a count": (param("data.positives", "412"), "param_unknown"),
    "parameter with weights": (param("algorithm.exact_weights", "[0.1, 0.2]"), "param_unknown"),
    "tag with levels": (tag("levels_seen", "north,south"), "tag_unknown"),
    "tag of ours with a count": (tag("dpflows.rows", "1021"), "tag_unknown"),
    "tag in MLflow's own words": (tag("mlflow.positives", "412"), "tag_unknown"),
    "data set with a profile": (attached("dataset rows of June"), "attached"),
    "undefined number of no metric": (tag("not_finite.rows", "1021"), "tag_unknown"),
    "file beside the run": (stored("privacy/levels.json"), "file_unknown"),
    "file among the figures": (stored("figures/ages.png"), "file_unknown"),
    "note beside the configuration": (stored("config.json.bak"), "file_unknown"),
    "open run": (lambda found: replace(found, status="RUNNING", ended=False), "run_not_finished"),
    "model of another run": (
        lambda found: replace(found, model_run="0" * 32),
        "model_of_another_run",
    ),
    "generator's state": (stored("debug/rng_state.json"), "rng_state_stored"),
    "rows": (stored("data/train.parquet"), "rows_stored"),
    "ledger entry not committed": (ledger(states=("reserved", "forfeited")), "ledger_entry"),
    "other mechanisms charged": (ledger(events_sha256="0" * 64), "ledger_mechanisms"),
    "other ledger": (ledger(head_found=False), "ledger_head"),
    "public data that the ledger knows as private": (
        lambda found: ledger(private_as=("visits",))(
            file("privacy/statement.json", lambda s: s["data"].update(public=True))(found)
        ),
        "data_not_public",
    ),
    "no ledger": (lambda found: replace(found, ledger=None), "ledger_missing"),
}


def test_untouched_run_is_clean(subject: Subject) -> None:
    report = audit(subject)
    assert report.findings == ()
    assert report.seconds < 3.0


@pytest.mark.parametrize("name", TAMPERED)
def test_changed_run_is_caught_by_name(subject: Subject, name: str) -> None:
    change, expected = TAMPERED[name]
    report = audit(change(subject))
    assert expected in report.codes, report.findings


def codes(world: World, run_id: str) -> set[str]:
    return audit(read(world.client, run_id, world.ledger_url)).codes


def test_what_mlflow_lets_one_overwrite_is_seen(world: World, tmp_path: Path) -> None:
    run_id = world.train()
    client = world.client
    assert codes(world, run_id) == set()
    client.log_metric(run_id, "internal.accuracy", 0.999)
    assert codes(world, run_id) == {"metric_changed"}
    client.log_metric(run_id, "spent.epsilon", 0.01, step=99)
    assert "shown_differs" in codes(world, run_id)
    client.set_tag(run_id, "dpflows.ledger_entry", "0" * 32)
    assert "ledger_entry_tag" in codes(world, run_id)
    statement = json.loads(
        Path(client.download_artifacts(run_id, "privacy/statement.json", str(tmp_path))).read_text()
    )
    statement["guarantee"]["epsilon"] = 0.01
    client.log_text(run_id, json.dumps(statement), "privacy/statement.json")
    assert "statement_changed" in codes(world, run_id)


def test_changed_ledger_row_is_seen(world: World) -> None:
    run_id = world.train()
    with sqlite3.connect(world.folder / "ledger.db") as connection:
        for (trigger,) in connection.execute(
            "select name from sqlite_master where type = 'trigger'"
        ).fetchall():
            connection.execute(f"drop trigger {trigger}")
        connection.execute(
            "update ledger_records set body = replace(body, '\"draws\":8', '\"draws\":1') where "
            "kind = 'committed'"
        )
    assert "ledger_chain" in codes(world, run_id)


def test_command_marks_a_blocked_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = world.train()
    world.client.set_tag(run_id, "dpflows.releasable", "no")
    assert run(["audit", run_id, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["releasable"] is False
    assert world.client.get_run(run_id).data.tags["dpflows.audit"] == "blocked: shown_differs"
    assert run(["audit", "0" * 32]) == 2


def test_fixed_noise_is_never_releasable(world: World) -> None:
    run_id = world.train(world.config().model_copy(update={"unsafe_fixed_noise_seed": 3}))
    assert {"fixed_noise_seed", "not_releasable"} <= codes(world, run_id)
