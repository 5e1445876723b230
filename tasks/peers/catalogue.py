"""Which libraries are known, under which guarantee they train, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from scipy.sparse import issparse

from dpcore.checks import require_choice, require_count, require_nonnegative, require_positive
from dpcore.errors import InputError, unknown_name
from dpcore.problem import Adjacency, Problem
from tasks.peers.process import WORKER, peer_process

ACCOUNTANTS = ("prv", "rdp", "gdp")


@dataclass(frozen=True)
class Peer:
    """``adjacency``: that of the library's proof. ``guarantee`` says in words what is peculiar to it.

    ``defaults`` are the parameters; they were chosen on Adult, which is public: what was best there over the epsilons
    of ``conf/bench.yaml``. ``install`` makes an environment where the library can be imported.
    """

    name: str
    adjacency: Adjacency
    guarantee: str
    defaults: Mapping[str, Any]
    install: str

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """``given`` over the defaults; raises ``InputError`` for unknown names and values out of range."""
        for key in given:
            if key not in self.defaults:
                raise unknown_name(f"parameter of {self.name}", key, self.defaults)
        found = {**self.defaults, **given}
        for key, value in found.items():
            if key == "accountant":
                require_choice(ACCOUNTANTS, accountant=value)
            elif key in ("momentum", "l2"):
                require_nonnegative(**{key: value})
            elif isinstance(self.defaults[key], int):
                require_count(**{key: value})
            else:
                require_positive(**{key: value})
        return found

    def request(self, parameters: Mapping[str, Any], problem: Problem, epsilon: float, delta: float) -> dict[str, Any]:
        """What the library is asked for on ``problem``, without the seed."""
        asked = {**parameters, "epsilon": epsilon, "delta": delta, "norm_bound": problem.norm_bound}
        if self.name == "opacus":
            return asked | {"l2": problem.l2}
        # Its objective is sum of losses + ||w||^2 / (2 C), with weights for rows that were scaled to norm 1.
        ridge = problem.n * problem.l2 / problem.norm_bound**2
        return asked | ({"C": 1.0 / ridge} if ridge else {})


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "opacus",
            Adjacency.ADD_REMOVE,
            "DP-SGD on Poisson batches, priced by its own accountant",
            {
                "batch_size": 2048,
                "epochs": 20,
                "learning_rate": 8.0,
                "momentum": 0.0,
                "clip_norm": 1.0,
                "accountant": "prv",
            },
            "python -m venv peers && peers/bin/pip install opacus",
        ),
        Peer(
            "diffprivlib",
            Adjacency.REPLACE_ONE,
            "objective perturbation with delta = 0, which is (epsilon, delta) for every delta; it assumes an exact "
            "minimiser and has an approximate one",
            {"C": 0.1, "max_iter": 1000, "tol": 1e-4},
            "python -m venv peers && peers/bin/pip install diffprivlib 'scikit-learn<1.8'",
        ),
    )
}


@dataclass(frozen=True)
class PeerRun:
    """A library with its settings, and where it runs: ``python`` is an interpreter (None: this one)."""

    peer: Peer
    parameters: Mapping[str, Any]
    python: str | None
    timeout: float
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return f"{self.peer.guarantee} ({', '.join(f'{key} {value}' for key, value in self.versions.items())})"

    @property
    def identity(self) -> list[str]:
        """What its numbers depend on beside the configuration: versions and the program that calls it."""
        return [*(f"{key} {value}" for key, value in self.versions.items()), sha256(WORKER.read_bytes()).hexdigest()]

    def train(
        self, objective: Any, problem: Problem, guarantee: tuple[float, float], seed: int | None
    ) -> dict[str, Any]:
        """Train on the rows of ``objective`` at ``guarantee`` (epsilon, delta); raises ``PeerError``.

        The noise is the library's own; ``seed`` None leaves it to the operating system.
        """
        X = objective.X.toarray() if issparse(objective.X) else objective.X
        asked = self.peer.request(self.parameters, problem, *guarantee)
        return peer_process(self.python, self.peer.name).ask(X, objective.y, asked | {"seed": seed}, self.timeout)


def find_peer(name: str) -> Peer:
    """The library ``name``; raises ``UnknownName``."""
    if name not in PEERS:
        raise unknown_name("library", name, PEERS)
    return PEERS[name]


def check_problem(peer: Peer, problem: Problem) -> None:
    """Raise ``InputError`` where the library has no training for ``problem``."""
    if problem.kind != "linear" or problem.outputs != 1 or problem.loss.name != "logistic" or problem.l1 > 0:
        raise InputError(
            f"Expected a logistic loss of two classes without L1 for {peer.name}, got loss={problem.loss.name!r}, "
            f"l1={problem.l1:g}, outputs={problem.outputs}; the worker has no other training."
        )
    if problem.adjacency is not peer.adjacency:
        raise InputError(
            f"Expected adjacency {peer.adjacency} for {peer.name}, whose proof is for that, got {problem.adjacency}; "
            "add it to privacy.adjacency."
        )
