"""A network by name: plain values that a configuration and a stored model can hold.

Whether torch is there: asked before a network is built. The loss of its output layer, as the
algorithms see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpcore.errors import InputError, require_choice, require_count
from dpcore.losses import Array, MarginLoss
from dpcore.problem import Adjacency, Problem

if TYPE_CHECKING:
    from dpcore.network.network import Network


PACKAGES = ("torch", "safetensors")


def require_torch() -> None:
    """Raise ``InputError`` that says what to install unless torch and safetensors can be
    imported.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected the extra nn for a network, got no {' and no '.join(missing)}; pip install "
            "'dpflows[nn]'."
        )


@dataclass(frozen=True, slots=True)
class CrossEntropy(MarginLoss):
    """-log softmax(s)_y of the ``outputs`` scores s of a network; in its parameters neither convex
    nor Lipschitz.

    As a function of a margin, the lead z of the true class over all others at equal scores: log(1 +
    (K - 1) e^-z). At z = 0, where a network with equal scores stands, that is log K. Gradients are
    bounded by clipping alone.
    """

    name: ClassVar[str] = "cross_entropy"
    convex: ClassVar[bool] = False
    lipschitz: ClassVar[float] = inf
    smoothness: ClassVar[float] = inf

    outputs: int = 2

    def __post_init__(self) -> None:
        require_count(outputs=self.outputs)
        if self.outputs < 2:
            raise InputError(
                f"Expected at least 2 classes for cross-entropy, got outputs={self.outputs!r}."
            )

    def _value(self, t: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, np.log(self.outputs - 1.0) - t))

    def _slope(self, t: Array) -> Array:
        return np.asarray(-1.0 / (1.0 + np.exp(t) / (self.outputs - 1.0)))

    def _curvature(self, t: Array) -> Array:
        p = -self._slope(t)
        return p * (1.0 - p)


KINDS = ("linear", "mlp", "cnn", "small_cnn", "deep_cnn", "scattering", "wavelet_cnn", "module")
IMAGES = ("cnn", "small_cnn", "deep_cnn", "scattering", "wavelet_cnn")
ACTIVATIONS = ("tanh", "relu", "elu")
POOLS = ("max", "mean")
PRECISIONS = ("single", "double")
# What is done to images, with the values that do nothing.
ON_IMAGES = {"upright": False, "shrink": 1, "copies": 1, "shift": 0, "mirror": False}


@dataclass(frozen=True)
class NetworkSpec:
    """Which network, from which public start.

    ``kind``: ``linear`` (softmax regression, zero start); ``mlp`` with widths ``hidden``; ``cnn``,
    ``small_cnn`` and ``deep_cnn`` on images; ``scattering`` (fixed wavelet features, then softmax
    regression) and ``wavelet_cnn`` (their first order under one convolution); ``module``: the
    class ``path`` ("package.module:Name"), made with ``arguments``.
    ``image``: channels, height, width of a record. ``centred``: the wavelet features less their
    mean over drawn strokes, which is public (``scattering.strokes``).
    ``upright`` takes the slant off each image (``images.Upright``), ``standardise`` brings each
    record to mean 0 and variance 1 by its own numbers, ``shrink`` s > 1 takes the means of s x s
    pixels: in this order, record by record, in public. ``group_norm`` centres and scales small
    groups of channels after each hidden layer, within the record (Wu & He 2018, without
    parameters); ``standard_weights`` takes the weights of its units centred and of norm 1
    (``layers.StandardLinear``). ``copies`` K, ``shift`` and ``mirror``: while it trains, a
    record's gradient is the mean over K copies of its image that are moved and mirrored, and is
    clipped as one (``images.Copies``; De et al. 2022); losses and scores are of the image itself.
    ``seed`` draws the first parameters, in public. ``precision``: arithmetic of the network in
    single (fast) or double; modules of other than known layers take double.
    """

    inputs: int
    outputs: int
    kind: str = "mlp"
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "tanh"
    pool: str = "max"
    image: tuple[int, ...] = ()
    group_norm: bool = False
    standard_weights: bool = False
    upright: bool = False
    standardise: bool = False
    shrink: int = 1
    copies: int = 1
    shift: int = 0
    mirror: bool = False
    centred: bool = False
    path: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    precision: str = "single"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        object.__setattr__(self, "image", tuple(self.image))
        require_count(
            inputs=self.inputs,
            outputs=self.outputs,
            **{f"hidden_{i}": w for i, w in enumerate(self.hidden)},
        )
        require_choice(KINDS, kind=self.kind)
        require_choice(ACTIVATIONS, activation=self.activation)
        require_choice(POOLS, pool=self.pool)
        require_choice(PRECISIONS, precision=self.precision)
        require_count(shrink=self.shrink, copies=self.copies)
        self._check_image()
        self._check_moves()
        if (self.kind == "module") != (self.path is not None):
            raise InputError(
                "Expected a path 'package.module:Name' for kind module and for no other, got "
                f"kind={self.kind!r} and path={self.path!r}; give both or neither."
            )

    def _check_image(self) -> None:
        if not self.image:
            if self.kind in IMAGES:
                raise InputError(
                    "Expected the image of a record (channels, height, width) for "
                    f"kind={self.kind!r}, got none; for example image=[1, 28, 28]."
                )
            return
        if (
            len(self.image) != 3
            or min(self.image) < 1
            or self.image[0] * self.image[1] * self.image[2] != self.inputs
        ):
            raise InputError(
                f"Expected channels, height and width of the {self.inputs} numbers of a record, "
                f"got image={list(self.image)!r}; their product must be {self.inputs}."
            )

    def _check_moves(self) -> None:
        """Raise ``InputError`` where what is done to images does not go with the image."""
        asked = [name for name in ON_IMAGES if getattr(self, name) != ON_IMAGES[name]]
        if not asked:
            return
        if not self.image:
            raise InputError(
                f"Expected the image of a record for {asked[0]}={getattr(self, asked[0])!r}, got "
                "none; give its channels, height and width, for example image=[1, 28, 28]."
            )
        least = min(self.image[1:])
        if isinstance(self.shift, bool) or not 0 <= self.shift < least:
            raise InputError(
                f"Expected a shift of 0 to {least - 1} pixels of image={list(self.image)}, got "
                f"shift={self.shift!r}."
            )
        if self.shrink > least:
            raise InputError(
                f"Expected squares within image={list(self.image)}, got shrink={self.shrink!r}; "
                f"use {least} or less."
            )
        most = (2 * self.shift + 1) ** 2 * (2 if self.mirror else 1)
        if self.copies > most:
            raise InputError(
                f"Expected at most {most} copies of a record for shift={self.shift} and "
                f"mirror={self.mirror}, got copies={self.copies}; allow longer shifts."
            )

    @property
    def loss(self) -> CrossEntropy:
        """The loss of the output layer."""
        return CrossEntropy(self.outputs)

    def build(self) -> Network:
        """The network at its public start; raises ``InputError`` where torch is missing or a layer
        is refused.
        """
        require_torch()
        from dpcore.network.network import Network

        return Network.of(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``NetworkSpec(**values)`` gives the same back."""
        return asdict(self) | {
            "hidden": list(self.hidden),
            "image": list(self.image),
            "arguments": dict(self.arguments),
        }


def network_problem(
    network: Network,
    n: int,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    *,
    l2: float = 0.0,
    unit: str = "record",
) -> Problem:
    """The public facts of training ``network``: as many weights as it has parameters, measured from
    its start.

    The L2 term l2/2 ||w||^2 is that of the displacement w from the public start, so it pulls
    towards the start.
    """
    return Problem(
        n=n,
        dimension=network.dimension,
        loss=network.spec.loss,
        adjacency=Adjacency(adjacency),
        unit=unit,
        kind="network",
        l2=l2,
    )
