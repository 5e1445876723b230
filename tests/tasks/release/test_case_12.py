"""Case 12: the best of six private trainings is to replace a champion; the search is charged, not
the winner alone.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from dpcore.accounting.events import Events
from dpcore.mechanisms import Gaussian
from tasks.release.gate import Candidate, Champion, Policy, decide
from tasks.release.trials import search_epsilon

CONVERSIONS = {"rdp_prop_2_1": "prop21"}
SCORES = ("accuracy", "balanced_accuracy", "predicted_positive_rate")


@pytest.fixture
def case(shared: Path) -> Path:
    return shared / "cases" / "12-release-gate-after-tuning"


def candidates(case: Path) -> list[Candidate]:
    with (case / "candidates.csv").open() as file:
        return [_candidate(row) for row in csv.DictReader(file)]


def _candidate(row: dict[str, str]) -> Candidate:
    steps = [Gaussian(1.0, float(row["noise_multiplier"]))] * int(row["steps_done"])
    return Candidate(
        row["id"],
        row["status"] == "FINISHED",
        bool(row["epsilon_recorded"]),
        {name: float(row[name]) for name in SCORES},
        Events.of(steps, adjacency="add_remove"),
    )


def gate(case: Path, policy: str) -> tuple[float, float, object]:
    stored = yaml.safe_load((case / policy).read_text())
    conversion, delta = CONVERSIONS[stored["conversion"]], float(stored["delta"])
    rules = Policy(
        max_epsilon=stored["max_epsilon"],
        metric=stored["metric"],
        min_gain=stored["min_gain"],
        conversion=conversion,
    )
    champion = json.loads((case / "champion.json").read_text())
    scores = {name: champion[name] for name in ("accuracy", "balanced_accuracy")}
    found = candidates(case)
    one = search_epsilon([found[0].events], "add_remove", delta, conversion)  # type: ignore[list-item]
    whole = search_epsilon([item.events for item in found], "add_remove", delta, conversion)  # type: ignore[misc]
    return (
        one,
        whole,
        decide(found, Champion(str(champion["version"]), scores), rules, whole, delta),
    )


def test_the_search_is_charged_not_only_the_winner(case: Path) -> None:
    one, whole, _ = gate(case, "policy_b.yaml")
    assert one == pytest.approx(3.2349, abs=5e-5)
    assert whole == pytest.approx(8.6338, abs=5e-5)


def test_failed_unlabelled_and_majority_are_not_considered(case: Path) -> None:
    _, _, decision = gate(case, "policy_b.yaml")
    assert set(decision.rejected) == {"c2", "c3", "c5"}  # type: ignore[attr-defined]
    assert "majority" in decision.rejected["c2"]  # type: ignore[attr-defined]


def test_policy_a_promotes_nothing_and_says_why(case: Path) -> None:
    _, _, decision = gate(case, "policy_a.yaml")
    assert decision.promote is None  # type: ignore[attr-defined]
    assert "8.6338 > 5.0" in decision.reasons[0]  # type: ignore[attr-defined]


def test_policy_b_promotes_c1_by_its_gain(case: Path) -> None:
    _, _, decision = gate(case, "policy_b.yaml")
    assert decision.promote == "c1"  # type: ignore[attr-defined]
    assert (round(decision.epsilon, 4), decision.delta) == (8.6338, 1e-5)  # type: ignore[attr-defined]
    only_c4 = [one for one in candidates(case) if one.name == "c4"]
    rules = Policy(max_epsilon=9.0, metric="balanced_accuracy", min_gain=0.005)
    assert (
        decide(only_c4, Champion("7", {"balanced_accuracy": 0.735}), rules, 8.6338, 1e-5).promote
        is None
    )
