"""A training with ``audit.canaries`` through the flow: charged, measured, drawn, and never
released.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpcore.errors import InputError
from tasks import training
from tasks.home import Home
from tasks.options import canaries
from tasks.record import tracking
from tests.flows.test_flow import ledger, runs_of, states
from tests.tasks.training.test_training import config_of

__all__ = ["ledger"]

AUDIT = {"audit": {"canaries": 300}}


@pytest.mark.slow
def test_a_run_with_canaries_is_charged_and_never_leaves(
    server: str, home: Home, small: Path, ledger: Any
) -> None:
    from flows.commands.audit import read
    from flows.train import train
    from tasks.audit import audit

    summary = train(config_of(small, tracking={"experiment": "canaries"}, **AUDIT))
    assert states(ledger) == ["reserved", "committed"]
    assert not summary["releasable"] and summary["reasons"] == [canaries.REASON]
    found = summary["internal"]
    assert found["canary.claimed_epsilon"] == pytest.approx(summary["epsilon_spent"])
    # How often the bound stays below epsilon is tested on simulated runs; a single run may miss.
    assert 0.0 <= found["canary.epsilon_lower_bound"] < float("inf")
    assert found["canary.count"] == 300 and found["canary.guesses"] in (150, 60)
    assert 0.0 < found["canary.p_value"] <= 1.0 and found["canary.releases_seen"] > 0

    [run_] = runs_of(home, "canaries")
    client = tracking.tracking_client(home)
    assert run_.data.tags[canaries.TAG] == "300" and run_.data.tags["dpflows.releasable"] == "no"
    folder = Path(client.download_artifacts(run_.info.run_id, ""))
    assert (folder / canaries.FIGURE).read_bytes().startswith(b"\x89PNG")
    assert (
        json.loads((folder / "privacy/statement.json").read_text())["data"]["public_n"]
        == summary["public_n"]
    )
    report = audit(read(client, run_.info.run_id, None))
    assert {"not_releasable", "canaries_added"} <= report.codes


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        (
            {"audit": {"canaries": 200}, "privacy": {"adjacency": "replace_one"}},
            "at most half of n=300",
        ),
        ({"evaluate": {"release": {"metric": "accuracy", "epsilon": 0.05}}}, "evaluate.release"),
        ({"tune": {"grid": {"algorithm.clip_norm": [0.1, 1.0]}}}, "tune"),
    ],
)
def test_what_has_no_theorem_is_refused_in_words(
    home: Home, small: Path, sections: dict[str, Any], word: str
) -> None:
    """Already by ``prepare``, with which ``plan`` and ``train`` begin."""
    with pytest.raises(InputError, match=word):
        training.prepare(config_of(small, **(AUDIT | sections)))


def test_canaries_that_share_columns_are_warned_of(home: Home, small: Path) -> None:
    """The table has few columns; left out, their number follows from the columns, and is at least
    20.
    """
    assert any(
        "hide each other" in warning
        for warning in training.prepare(config_of(small, **AUDIT)).warnings
    )
    job = training.prepare(config_of(small, audit={}, privacy={"adjacency": "replace_one"}))
    assert canaries.count_of(job.config, job.problem.dimension) == canaries.LEAST
