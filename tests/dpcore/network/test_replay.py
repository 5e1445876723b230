"""Algorithms on networks, recorded on one data set and replayed on the neighbour: only clipped sums
may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpcore.accounting.events import Events
from dpcore.algorithms import make, registry
from dpcore.network.network import Network, NetworkObjective
from dpcore.network.spec import NetworkSpec, network_problem
from dpcore.problem import Adjacency, Problem
from tests.dpcore.network.small import IMAGE
from tests.tape import RECORDS, SLACK, Tape, ratio

pytest.importorskip("torch")
pytest.importorskip("safetensors")

MODELS = {
    "mlp": NetworkSpec(inputs=6, outputs=3, hidden=(5,), precision="double"),
    "cnn": NetworkSpec(inputs=196, outputs=3, kind="cnn", image=IMAGE, precision="double"),
    "module": NetworkSpec(
        inputs=196,
        outputs=4,
        kind="module",
        path="tests.dpcore.network.small:Residual",
        arguments={"width": 3},
        precision="double",
    ),
    "copies": NetworkSpec(
        inputs=6,
        outputs=3,
        hidden=(5,),
        image=(1, 2, 3),
        copies=3,
        shift=1,
        mirror=True,
        precision="double",
    ),
    "copies of images": NetworkSpec(
        inputs=196,
        outputs=3,
        kind="cnn",
        image=IMAGE,
        group_norm=True,
        standard_weights=True,
        upright=True,
        standardise=True,
        copies=2,
        shift=1,
        precision="double",
    ),
    "wavelets": NetworkSpec(
        inputs=196,
        outputs=3,
        kind="wavelet_cnn",
        image=IMAGE,
        upright=True,
        centred=True,
        precision="double",
    ),
    "copies for a module": NetworkSpec(
        inputs=196,
        outputs=4,
        kind="module",
        path="tests.dpcore.network.small:Residual",
        arguments={"width": 3},
        image=IMAGE,
        copies=2,
        shift=1,
        precision="double",
    ),
}
# Small clips, so that every record's gradient is cut and a missing cut shows.
SETTINGS: dict[str, dict[str, Any]] = {
    "dp_sgd": {"steps": 3, "clip_norm": 0.01, "learning_rate": 0.5, "momentum": 0.5},
    "dp_adam": {"steps": 3, "clip_norm": 0.01},
    "dp_blsgd": {
        "iterations": 3,
        "clip_norm": 0.01,
        "clip_loss": 0.05,
        "search_every": 2,
        "sampling_rate": 0.5,
    },
}


def pair(network: Network, adjacency: Adjacency) -> tuple[NetworkObjective, NetworkObjective]:
    """Six equal records, and the same without the last, or with its opposite of another class in
    its place.
    """
    rng = np.random.default_rng(0)
    X = np.tile(rng.uniform(-1.0, 1.0, network.spec.inputs), (RECORDS, 1))
    y = np.zeros(RECORDS)
    other, others = X.copy(), y.copy()
    other[-1], others[-1] = -X[-1], 1.0
    if adjacency is Adjacency.ADD_REMOVE:
        return NetworkObjective(network, X, y), NetworkObjective(network, X[:-1], y[:-1])
    return NetworkObjective(network, X, y), NetworkObjective(network, other, others)


@dataclass
class Shown:
    ratios: list[float]
    same: bool


def replayed(
    algorithm: Any, problem: Problem, pair: tuple[NetworkObjective, NetworkObjective]
) -> Shown:
    planned = Events.of(algorithm.plan(problem), adjacency=problem.adjacency, unit=problem.unit)
    removed = problem.adjacency is Adjacency.ADD_REMOVE
    record = Tape(pair[0], RECORDS - 1, planned, algorithm.adaptive)  # type: ignore[arg-type]
    result = algorithm.fit(problem, record, np.random.default_rng(0))
    again = Tape(pair[1], RECORDS - 1, planned, algorithm.adaptive, removed, record.log)  # type: ignore[arg-type]
    other = algorithm.fit(problem, again, np.random.default_rng(0))
    same = (
        np.array_equal(result, other)
        and record.notes == again.notes
        and [item.mechanism for item in record.log] == [item.mechanism for item in again.log]
    )
    return Shown(
        [ratio(a, b, RECORDS - 1) for a, b in zip(record.log, again.log, strict=True)], same
    )


CASES = [(name, adjacency) for name in SETTINGS for adjacency in sorted(registry[name].adjacencies)]


@pytest.mark.parametrize(
    ("name", "adjacency"), [c for c in CASES if c[1] != Adjacency.REPLACE_LABELS]
)
@pytest.mark.parametrize("model", MODELS)
def test_only_values_depend_on_the_records(name: str, adjacency: Adjacency, model: str) -> None:
    network = MODELS[model].build()
    problem = network_problem(network, RECORDS, adjacency, l2=0.1)
    shown = replayed(make(name, SETTINGS[name]), problem, pair(network, adjacency))
    assert shown.same
    assert max(shown.ratios) <= 1 + SLACK
    if adjacency is Adjacency.ADD_REMOVE:
        assert max(shown.ratios) >= 0.99, "no bound is reached: an idle clip may hide a missing one"


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_a_missing_clip_would_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unclipped = NetworkObjective.gradient_sum
    monkeypatch.setattr(
        NetworkObjective, "gradient_sum", lambda self, w, clip_norm=np.inf: unclipped(self, w)
    )
    network = MODELS["mlp"].build()
    problem = network_problem(network, RECORDS, l2=0.1)
    shown = replayed(make(name, SETTINGS[name]), problem, pair(network, problem.adjacency))
    assert max(shown.ratios) > 2.0


def test_copies_that_are_clipped_one_by_one_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a record would count once for each of its copies."""
    spec = MODELS["copies"]
    whole = Network.gradient_sum

    def each(self: Network, w: np.ndarray, records: Any, clip_norm: float = np.inf) -> np.ndarray:
        moved, copies = self.moved(records, self.order(w)), self.copies
        monkeypatch.setattr(self, "copies", None)
        parts = [
            whole(self, w, replace(records, x=moved.x[k :: spec.copies]), clip_norm)
            for k in range(spec.copies)
        ]
        monkeypatch.setattr(self, "copies", copies)
        return np.sum(parts, axis=0)

    monkeypatch.setattr(Network, "gradient_sum", each)
    network = spec.build()
    problem = network_problem(network, RECORDS, l2=0.1)
    shown = replayed(make("dp_sgd", SETTINGS["dp_sgd"]), problem, pair(network, problem.adjacency))
    assert max(shown.ratios) > 2.0
