"""Scorers: functions of one document's features and of the parameters w, with per-document
gradients in factored form.

A block is a set of sessions padded to one length: ``X`` (B, n, p). ``forward`` returns the scores
(B, n) and, for every layer, its input A (B, n, in) and the derivative D (B, n, out) of the score by
its output, so that the gradient of one document's score is the list of outer products A_i D_i'.
Nothing of size (documents x parameters) is ever formed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod, sqrt
from typing import Any, ClassVar, Protocol

import numpy as np

from dpcore.errors import InputError, require_choice, require_count, unknown_name

Array = np.ndarray
Layers = list[tuple[Array, Array]]


class Scorer(Protocol):
    """What objectives need of a scorer; ``w`` is the displacement from a public start: training
    begins at w = 0.
    """

    name: ClassVar[str]
    constant: ClassVar[bool]  # the gradient is the document, whatever w is

    @property
    def inputs(self) -> int: ...

    @property
    def size(self) -> int: ...

    def scores(self, w: Array, X: Array) -> Array: ...

    def forward(self, w: Array, X: Array) -> tuple[Array, Layers]: ...

    def normalised(self, w: Array) -> Array: ...


@dataclass(frozen=True)
class Linear:
    """Score x @ w; the start is 0."""

    name: ClassVar[str] = "linear"
    constant: ClassVar[bool] = True

    inputs: int

    def __post_init__(self) -> None:
        require_count(inputs=self.inputs)

    @property
    def size(self) -> int:
        return self.inputs

    def scores(self, w: Array, X: Array) -> Array:
        """Scores of documents ``X`` (..., p)."""
        scores: Array = X @ w
        return scores

    def forward(self, w: Array, X: Array) -> tuple[Array, Layers]:
        return X @ w, [(X, np.ones((*X.shape[:-1], 1)))]

    def normalised(self, w: Array) -> Array:
        """w itself: a linear score has no inner layer to normalise."""
        return w


ACTIVATIONS = ("relu", "tanh", "sigmoid")


@dataclass(frozen=True)
class MLP:
    """Fully connected layers ``hidden``, a bias in the first only, one output: the scorer of Chen
    (2020), 6.6.3.

    Parameters start from Glorot's uniform law, drawn from the public ``seed``; w is measured from
    there. ``inputs``: p.
    """

    name: ClassVar[str] = "mlp"
    constant: ClassVar[bool] = False

    inputs: int
    hidden: tuple[int, ...] = (256,)
    activation: str = "relu"
    seed: int = 0
    _shapes: list[tuple[int, int]] = field(
        init=False, repr=False, compare=False, default_factory=list
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        widths = {f"hidden_{i}": width for i, width in enumerate(self.hidden)}
        require_count(inputs=self.inputs, layers=len(self.hidden), **widths)
        require_choice(ACTIVATIONS, activation=self.activation)
        object.__setattr__(self, "_shapes", list(pairwise([self.inputs + 1, *self.hidden, 1])))

    @property
    def size(self) -> int:
        return sum(prod(shape) for shape in self._shapes)

    @cached_property
    def start(self) -> Array:
        """Public initial parameters, shape (size,)."""
        rng = np.random.default_rng(self.seed)
        return np.concatenate(
            [rng.uniform(-1, 1, a * b) * sqrt(6.0 / (a + b)) for a, b in self._shapes]
        )

    def matrices(self, w: Array) -> list[Array]:
        """The weight matrices (in, out) at displacement ``w``."""
        theta, place, found = self.start + w, 0, []
        for high, wide in self._shapes:
            found.append(theta[place : place + high * wide].reshape(high, wide))
            place += high * wide
        return found

    def _act(self, h: Array) -> Array:
        """The activation of ``h``, which it may overwrite."""
        match self.activation:
            case "relu":
                cut: Array = np.maximum(h, 0.0, out=h)
                return cut
            case "tanh":
                found: Array = np.tanh(h, out=h)
                return found
            case _:
                return 0.5 * (1.0 + np.tanh(h / 2.0))

    def _slope(self, a: Array) -> Array:
        """Derivative of the activation, from its value."""
        match self.activation:
            case "relu":
                return (a > 0.0).astype(np.float64)
            case "tanh":
                slope: Array = 1.0 - a * a
                return slope
            case _:
                return a * (1.0 - a)

    def _pass(self, w: Array, X: Array) -> tuple[list[Array], list[Array]]:
        """Weight matrices, and the inputs of every layer with the score (documents, 1) at the end;
        X (documents, p).
        """
        weights = self.matrices(w)
        first = np.empty((len(X), X.shape[1] + 1))
        first[:, :-1], first[:, -1] = X, 1.0
        inputs = [first]
        for matrix in weights[:-1]:
            inputs.append(self._act(inputs[-1] @ matrix))
        return weights, [*inputs, inputs[-1] @ weights[-1]]

    def scores(self, w: Array, X: Array) -> Array:
        """Scores of documents ``X`` (..., p)."""
        return self._pass(w, X.reshape(-1, X.shape[-1]))[1][-1].reshape(X.shape[:-1])

    def forward(self, w: Array, X: Array) -> tuple[Array, Layers]:
        shape = X.shape[:-1]
        weights, inputs = self._pass(w, X.reshape(-1, X.shape[-1]))
        derivative = np.ones((len(inputs[0]), 1))
        layers: Layers = []
        for k in range(len(weights) - 1, -1, -1):
            layers.append((inputs[k].reshape(*shape, -1), derivative.reshape(*shape, -1)))
            if k:
                derivative = (derivative @ weights[k].T) * self._slope(inputs[k])
        return inputs[-1].reshape(shape), layers[::-1]

    def normalised(self, w: Array) -> Array:
        """``w`` such that every weight matrix has spectral norm at most 1 (Chen 2020, 6.5.4), by
        power iteration.

        Post-processing of released parameters. Longer matrices are divided by their norm; shorter
        ones are kept.
        """
        parts = [matrix / max(spectral_norm(matrix), 1.0) for matrix in self.matrices(w)]
        moved: Array = np.concatenate([part.ravel() for part in parts]) - self.start
        return moved


def spectral_norm(matrix: Array, iterations: int = 12) -> float:
    """Largest singular value by power iteration on the smaller side, from a fixed start; within
    about 1 percent.
    """
    gram = matrix.T @ matrix if matrix.shape[1] <= matrix.shape[0] else matrix @ matrix.T
    v = np.random.default_rng(0).normal(size=len(gram))
    for _ in range(iterations):
        v = gram @ v
        length = sqrt(float(v @ v))
        if length == 0.0:
            return 0.0
        v /= length
    return sqrt(float(v @ gram @ v))


SCORERS: dict[str, Callable[..., Scorer]] = {"linear": Linear, "mlp": MLP}


def make_scorer(name: str, inputs: int, **parameters: Any) -> Scorer:
    """Return the scorer called ``name`` for ``inputs`` features; raise ``UnknownName`` with near
    misses.
    """
    if name not in SCORERS:
        raise unknown_name("scorer", name, SCORERS)
    try:
        return SCORERS[name](inputs=inputs, **parameters)
    except TypeError as error:
        raise InputError(
            f"Expected parameters that scorer {name!r} has, got {parameters}: {error}."
        ) from error


def gradient(layers: Layers, coefficient: Array) -> Array:
    """sum over all documents of coefficient_i * (gradient of score i), shape (size,);
    ``coefficient`` (B, n).
    """
    return np.concatenate([layer_gradient(A, D, coefficient) for A, D in layers])


def layer_gradient(A: Array, D: Array, coefficient: Array) -> Array:
    """The part of one layer in ``gradient``."""
    weighted = (coefficient[..., None] * D).reshape(-1, D.shape[-1])
    found: Array = (A.reshape(-1, A.shape[-1]).T @ weighted).ravel()
    return found


def gram(layers: Layers) -> Array:
    """K_ik = (gradient of score i) . (gradient of score k) within each session, shape (B, n, n)."""
    total: Array | float = 0.0
    for A, D in layers:
        part = A @ np.swapaxes(A, 1, 2)
        total = total + (
            part if D.shape[2] == 1 and np.all(D == 1.0) else part * (D @ np.swapaxes(D, 1, 2))
        )
    return np.asarray(total)
