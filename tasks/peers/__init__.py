"""Other libraries that train private linear models, each in an interpreter of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dpcore.errors import (
    InputError,
    require_choice,
    require_count,
    require_nonnegative,
    require_open_unit,
    require_positive,
    unknown_name,
)
from dpcore.losses import plain_name
from dpcore.problem import Adjacency, Problem
from tasks.peers.process import WORKER, peer_process

Array = np.ndarray


# What a parameter of a library that is a word may be. ``loading``: a batch cut in one piece,
# or row by row, as the data sets of torch and the examples of Opacus read them.
WORDS = {"accountant": ("prv", "rdp", "gdp"), "loading": ("batches", "rows")}


@dataclass(frozen=True)
class Peer:
    """``adjacency``: that of the library's proof. ``guarantee`` says in words what is peculiar to
    it.

    ``defaults`` are the parameters; those of Opacus and diffprivlib were chosen on Adult, which is
    public: what was best there over the epsilons of ``conf/bench.yaml``. ``install`` makes an
    environment where the library can be imported. ``losses``: those of ours that its training
    stands for. ``additive``: it is given attributes rather than their encoded columns, by
    ``preprocess`` where none is named, and answers with the scores of the test rows.
    """

    name: str
    adjacency: Adjacency
    guarantee: str
    defaults: Mapping[str, Any]
    install: str
    losses: frozenset[str] = frozenset({"logistic"})
    additive: bool = False
    preprocess: Mapping[str, Any] | None = None

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """``given`` over the defaults; raises ``InputError`` for unknown names and values out of
        range.
        """
        for key in given:
            if key not in self.defaults:
                raise unknown_name(f"parameter of {self.name}", key, self.defaults)
        found = {**self.defaults, **given}
        for key, value in found.items():
            if key in WORDS:
                require_choice(WORDS[key], **{key: value})
            elif key.endswith("_frac"):
                require_open_unit(**{key: value})
            elif key in ("momentum", "l2"):
                require_nonnegative(**{key: value})
            elif isinstance(self.defaults[key], int):
                require_count(**{key: value})
            else:
                require_positive(**{key: value})
        return found

    def request(
        self, parameters: Mapping[str, Any], problem: Problem, epsilon: float, delta: float
    ) -> dict[str, Any]:
        """What the library is asked for on ``problem``, without the seed."""
        asked = {
            **parameters,
            "epsilon": epsilon,
            "delta": delta,
            "norm_bound": problem.norm_bound,
            "loss": plain_name(problem.loss),
        }
        if self.additive:
            return asked | {"attributes": attributes(problem)}
        if self.name == "opacus":
            return asked | {"l2": problem.l2}
        # Its objective is sum of losses + ||w||^2 / (2 C), with weights for rows that were scaled
        # to norm 1.
        ridge = problem.n * problem.l2 / problem.norm_bound**2
        return asked | ({"C": 1.0 / ridge} if ridge else {})


def attributes(problem: Problem) -> list[dict[str, Any]]:
    """What the columns of ``problem`` are parts of, the constant left out: ``columns``, whether
    they are the levels of one attribute (``nominal``), and the ``bounds`` of a number.
    """
    features = problem.dimension - int(problem.intercept)
    named = {column for block in problem.blocks for column in block.columns}
    wide = [-problem.norm_bound, problem.norm_bound]
    found = [
        {
            "columns": list(block.columns),
            "nominal": block.kind == "one_hot",
            "bounds": [0.0, 1.0],
        }
        for block in problem.blocks
    ]
    alone = sorted(set(range(features)) - named)
    return found + [{"columns": [j], "nominal": False, "bounds": wide} for j in alone]


RESIDUALS = frozenset({"squared", "huber_regression"})
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
                "loading": "batches",
            },
            "python -m venv peers && peers/bin/pip install opacus",
        ),
        Peer(
            "diffprivlib",
            Adjacency.REPLACE_ONE,
            "objective perturbation with delta = 0, which is (epsilon, delta) for every delta; it "
            "assumes an exact minimiser and has an approximate one. Of a regression the functional "
            "mechanism, every entry of the squared loss by Laplace noise",
            {"C": 0.1, "max_iter": 1000, "tol": 1e-4},
            "python -m venv peers && peers/bin/pip install diffprivlib 'scikit-learn<1.8'",
            frozenset({"logistic"}) | RESIDUALS,
        ),
        Peer(
            "dp_ebm",
            Adjacency.ADD_REMOVE,
            "DP-EBM, additive boosting; it reads the levels of a nominal column and the number of "
            "rows from the data without charge, adds plain floating point noise, and gives half of "
            "delta to the bins, whose share of epsilon is bin_budget_frac. Of a regression it "
            "takes residuals to be within the label's range, which nothing enforces",
            {
                "max_bins": 32,
                "learning_rate": 0.01,
                "max_rounds": 300,
                "max_leaves": 3,
                "bin_budget_frac": 0.1,
            },
            "python -m venv peers && peers/bin/pip install interpret-core",
            frozenset({"logistic"}) | RESIDUALS,
            additive=True,
            preprocess={"normalise": "none", "numeric": "minmax"},
        ),
    )
}


@dataclass(frozen=True)
class PeerRun:
    """A library with its settings, and where it runs: ``python`` is an interpreter (None: this
    one).
    """

    peer: Peer
    parameters: Mapping[str, Any]
    python: str | None
    timeout: float
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return (
            f"{self.peer.guarantee} "
            f"({', '.join(f'{key} {value}' for key, value in self.versions.items())})"
        )

    @property
    def identity(self) -> list[str]:
        """What its numbers depend on beside the configuration: versions and the program that calls
        it.
        """
        return [
            *(f"{key} {value}" for key, value in self.versions.items()),
            sha256(WORKER.read_bytes()).hexdigest(),
        ]

    def train(
        self,
        objective: Any,
        problem: Problem,
        guarantee: tuple[float, float],
        seed: int | None,
        test: Any = None,
        labels: tuple[float, float] = (-1.0, 1.0),
    ) -> dict[str, Any]:
        """Train on the rows of ``objective`` at ``guarantee`` (epsilon, delta); raises
        ``PeerError``.

        The noise is the library's own; ``seed`` None leaves it to the operating system. An additive
        model answers with the ``scores`` of the rows ``test``, others with ``weights``. ``labels``
        is the public range of a regression's.
        """
        asked = self.peer.request(self.parameters, problem, *guarantee)
        arrays = {"X": dense(objective.X), "y": objective.y}
        if self.peer.additive:
            arrays["T"] = dense(test.X)
        return peer_process(self.python, self.peer.name).ask(
            arrays, asked | {"seed": seed, "labels": list(labels)}, self.timeout
        )


def dense(X: Any) -> Array:
    """The rows as one array, which every library reads."""
    found: Array = X.toarray() if issparse(X) else X
    return found


def find_peer(name: str) -> Peer:
    """The library ``name``; raises ``UnknownName``."""
    if name not in PEERS:
        raise unknown_name("library", name, PEERS)
    return PEERS[name]


def check_problem(peer: Peer, problem: Problem) -> None:
    """Raise ``InputError`` where the library has no training for ``problem``."""
    known = problem.loss.name in peer.losses and problem.kind == "linear"
    if not known or problem.outputs != 1 or problem.l1 > 0:
        losses = ", ".join(sorted(peer.losses))
        raise InputError(
            f"Expected a loss of one score ({losses}) without L1 for {peer.name}, got "
            f"loss={problem.loss.name!r}, l1={problem.l1:g}, outputs={problem.outputs}; the worker "
            "has no other training."
        )
    if problem.adjacency is not peer.adjacency:
        raise InputError(
            f"Expected adjacency {peer.adjacency} for {peer.name}, whose proof is for that, got "
            f"{problem.adjacency}; add it to privacy.adjacency."
        )


def check_attributes(peer: Peer, encoder: Any) -> None:
    """Raise ``InputError`` where an additive library would be given parts of a number instead of
    the number.
    """
    parts = getattr(encoder, "parts", ())
    cut = [part.name for part in parts if getattr(part, "map", "") in ("hats", "bins")]
    cut += getattr(encoder, "crossed", ())
    if peer.additive and cut:
        raise InputError(
            f"Expected numbers as one column each for {peer.name}, which cuts them itself, got "
            f"several for {cut[0]!r}; use numeric minmax or log, and no crosses."
        )
