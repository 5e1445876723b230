"""A network as an objective sees it: a flat vector of weights, measured from a public start.

Private sums over the records of a network, with the methods of ``LinearObjective``.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from math import gcd, inf
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.weight_norm import WeightNorm

from dpcore.errors import InputError
from dpcore.network.clipping import Closed, Mapped, framed
from dpcore.network.images import Copies, Standardise, Upright
from dpcore.network.layers import closes, has_parameters, layers_of, places_of
from dpcore.network.models import Described, make_module
from dpcore.network.passes import LEAST, MARGIN, MOST, WHOLE, Records, Sums, keys_of, passes
from dpcore.network.refusals import (
    refuse_branches,
    refuse_coarse_products,
    refuse_layers,
    refuse_mixing,
    refuse_ties,
)
from dpcore.problem import Problem

Array = np.ndarray

SINGLE = torch.float32
DTYPES = {"single": SINGLE, "double": torch.float64}
# Layers that leave the pixels of an image where they stand.
IMAGE_TO_IMAGE = (Upright, Standardise, nn.Unflatten, nn.Flatten)
# Records of one pass: as many as keep the patches of convolutions within this many numbers.
PATCHES = 4_000_000
# vmap forms every record's gradient: together at most this many numbers.
FORMED_NUMBERS = 8_000_000
# Public features are computed of as many records at a time as hold this many numbers.
DESCRIBED_NUMBERS = 600_000_000


class Network:
    """A module with its public start theta_0; the weights w of an algorithm stand for theta_0 + w.

    ``w`` is flat, float64, in the order of ``module.named_parameters()``; training begins at w = 0.
    Parameters that are frozen (``requires_grad`` off) stay as they are and are not among the w. The
    leading layers without parameters that are trained are public ``features`` of a record, computed
    once. Parameters take no gradient of their own.
    """

    def __init__(self, module: nn.Module, spec: Described) -> None:
        self.spec = spec
        refuse_coarse_products()
        refuse_layers(module)
        refuse_ties(module)
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.closed = closes(module)
        self.dtype = DTYPES[spec.precision if self.closed else "double"]
        self.module = module.to(self.dtype).eval().requires_grad_(False)
        for layer in module.modules():
            if getattr(layer, "inplace", False):
                switched: Any = layer
                switched.inplace = False
            for hook in layer._forward_pre_hooks.values():
                if isinstance(hook, WeightNorm):  # a product of parameters, which .to() passes by
                    setattr(layer, hook.name, hook.compute_weight(layer))
        self.parameters = {
            name: value for name, value in module.named_parameters() if name in trained
        }
        if not self.parameters:
            raise InputError(
                "Expected a network with parameters that are trained, got none; there is nothing "
                "to train: leave requires_grad on for those that are."
            )
        refuse_mixing(module, spec.inputs, spec.outputs)
        self._start = torch.cat([parameter.ravel() for parameter in self.parameters.values()])
        self._theta = self._start.clone()
        for parameter, value in zip(self.parameters.values(), self._cut(self._theta), strict=True):
            parameter.data = (
                value  # all parameters live in one vector, so that they are set in one go
            )
        self.added = Sums(self.parameters.values(), self.dtype)
        self.copies = (
            Copies(spec.image, spec.copies, spec.shift, spec.mirror)
            if spec.shift or spec.mirror
            else None
        )
        self.features, self.body = self._split()
        beside = self._beside()
        self.together = max(1, min(MOST, DESCRIBED_NUMBERS // beside))
        self.rows, held = self._rows()
        # records of a pass, of layers and of public features, and what it holds for each
        self.held = (self.rows, spec.copies * held), (self.together, beside)

    @classmethod
    def of(cls, spec: Described) -> Network:
        """The network that ``spec`` names."""
        return cls(make_module(spec), spec)

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    def _split(self) -> tuple[nn.Module | None, nn.Module]:
        """Public features, and the rest."""
        if not self.closed:
            self.sums: Closed | Mapped = Mapped(self.module, self.parameters)
            refuse_branches(self.sums, self.spec.inputs, self.dtype)
            return None, self.module
        layers = layers_of(self.module) or []
        first = next(i for i, layer in enumerate(layers) if self._begins(layer))
        self.sums = Closed(layers[first:])
        return (
            (nn.Sequential(*layers[:first]) if first else None),
            nn.Sequential(*layers[first:]),
        )

    def _begins(self, layer: nn.Module) -> bool:
        """Whether ``layer`` is computed anew in each step: it is trained, or would not leave an
        image to be moved.
        """
        if self.copies is not None and type(layer) not in IMAGE_TO_IMAGE:
            return True
        return has_parameters(layer)

    def _beside(self) -> int:
        """Numbers that a pass over public features holds for a record, about."""
        layers: Any = [] if self.features is None else self.features
        inputs = self.spec.inputs
        return max((getattr(layer, "beside", 4 * inputs) for layer in layers), default=inputs)

    def memory(self, n: int) -> dict[str, int]:
        """Bytes that training on ``n`` records holds at least: ``records`` as the layers see them;
        beside them one ``pass``, or as many bytes again where they are made of the given ones and
        put in order; and ``weights`` with their gradient.
        """
        size, made = self._start.element_size(), self.features is not None or self.dtype != SINGLE
        records = size * n * self.width
        return {
            "records": records,
            "pass": max(records * made, *(size * min(n, some) * held for some, held in self.held)),
            "weights": (2 * size + 16) * self.dimension,
        }

    def _rows(self) -> tuple[int, int]:
        """Records of one pass, from the shapes of the layers, and the numbers that it holds for
        each.
        """
        copies, self.width = self.spec.copies, self.spec.inputs
        if not isinstance(self.sums, Closed):
            most = min(MOST, FORMED_NUMBERS // self.dimension)
            return max(LEAST, most // copies), self.dimension
        x, patches, whole = self.described(np.zeros((1, self.spec.inputs))), 0, 1
        held = x.numel()
        self.width = held
        with torch.no_grad():
            body: Any = self.body  # a sequence where there is a closed form
            for layer in body:
                x = layer(x)
                patches += (places := places_of(layer, tuple(x.shape)))
                held = max(held, places)
                if not has_parameters(layer):  # then it may go number by number
                    whole = max(whole, WHOLE // gcd(WHOLE, x.numel()))
        self.sums.whole = whole
        most = min(MOST, PATCHES // patches) if patches else MOST
        return max(LEAST, most // copies), held

    def described(self, X: Array) -> Tensor:
        """The public features of records given as rows."""
        # torch asks for a writable array
        x = torch.from_numpy(np.require(X, requirements=("C", "W"))).to(self.dtype)
        if self.features is None:
            return x
        with torch.no_grad():
            if not len(x):  # no module is called with zero rows: some fail there
                none: Tensor = self.features(torch.zeros((1, x.shape[1]), dtype=self.dtype))[:0]
                return none
            return torch.cat(
                [framed(self.features(x[rows])) for rows in blocks(len(x), self.together)]
            )

    def load(self, w: Array) -> None:
        """Set the parameters to the start plus ``w`` (d,)."""
        self._theta.copy_(torch.from_numpy(w))
        self._theta += self._start

    def _cut(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector (d,), one of each parameter's shape."""
        found, place = [], 0
        for parameter in self.parameters.values():
            found.append(flat[place : place + parameter.numel()].view(parameter.shape))
            place += parameter.numel()
        return found

    def state(self, w: Array) -> dict[str, Array]:
        """The parameters (and constant buffers) at ``w`` by name."""
        self.load(w)
        return {name: value.numpy().copy() for name, value in self.module.state_dict().items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Set the parameters to stored ones; raises ``InputError`` where names or shapes differ."""
        try:
            self.module.load_state_dict(
                {name: torch.from_numpy(np.array(value)) for name, value in state.items()}
            )
        except RuntimeError as error:
            text = " ".join(str(error).split())[:200]
            raise InputError(
                f"Expected the tensors of this network, got others: {text}; train again."
            ) from None

    def scores_now(self, x: Tensor) -> Tensor:
        """Scores (n, outputs) of records given by their features, with the parameters as they
        are.
        """
        if not len(x):
            return torch.zeros((0, self.spec.outputs), dtype=self.dtype)
        with torch.no_grad():
            return torch.cat([self.sums.scores(x[rows]) for rows in blocks(len(x), self.rows)])

    def scores_of(self, X: Array) -> Array:
        """Scores (n, outputs) of rows, with the parameters as they are."""
        return np.asarray(self.scores_now(self.described(X)).double().numpy())

    def records(self, x: Tensor, y: Tensor) -> tuple[Records, Array]:
        """Records with features ``x`` and labels ``y`` in the order of their keys, and that
        order.
        """
        keys = keys_of(x, y)
        order = np.argsort(keys, kind="stable")
        x = x[order]
        squares = self.sums.squares(x) if self.copies is None else None
        return Records(x, y[order], keys[order], squares), order

    def gradient_sum(self, w: Array, records: Records, clip_norm: float = inf) -> Array:
        """Sum of clipped gradients over the records, shape (d,), float64."""
        self.load(w)
        self.added.start()
        order = self.order(w)
        for rows, leaves in passes(records.keys, self.rows):
            self.sums.add(self.moved(records[rows], order), clip_norm, leaves, self.added)
        self.sums.finish(self.added)
        return np.asarray(self.added.total)

    def order(self, w: Array) -> Array | None:
        """The order in which copies are taken at ``w``; None where there are none."""
        return None if self.copies is None else self.copies.order(w)

    def moved(self, records: Records, order: Array | None) -> Records:
        """The copies of ``records`` that a gradient is of; ``records`` where there are none."""
        if self.copies is None or order is None:
            return records
        return self.copies.of(records, order)

    def losses(self, x: Tensor, y: Tensor) -> Array:
        """Cross-entropy of each record with the parameters as they are, shape (n,), float64."""
        return F.cross_entropy(self.scores_now(x).double(), y, reduction="none").numpy()


def blocks(n: int, step: int) -> Iterator[slice]:
    """Slices of at most ``step`` of ``n`` rows."""
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def inverse(order: Array) -> Array:
    """The place of each record in ``order`` (n,), shape (n,)."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


class NetworkObjective:
    """Sums of the cross-entropy and its gradient over the rows of ``X`` (n, inputs) with class
    numbers ``y`` (n,).

    Weights w (d,) are the displacement from the network's public start. ``gradient_sum(w, C)``
    scales each record's gradient down to norm C, so a record added or removed moves the sum by at
    most C and a replaced one by 2C; ``value_sum`` cuts losses alike. Norms are upper bounds,
    rounding included (``passes.lengths``). For the rounding of sums all clips are cut short by
    ``passes.MARGIN``: by 0.0055 in single precision, 1e-4 in double, as ``clipping.Closed``
    proves for records that are summed in the order of their content (``passes``).
    """

    def __init__(self, network: Network, X: Any, y: Array) -> None:
        X = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
        if X.ndim != 2 or X.shape[1] != network.spec.inputs:
            raise InputError(
                f"Expected rows of {network.spec.inputs} numbers, as many as the network takes, "
                f"got shape {X.shape}."
            )
        if np.shape(y) != (len(X),):
            raise InputError(
                f"Expected one label per row, got {len(X)} rows and labels of shape {np.shape(y)}."
            )
        if not np.isfinite(np.sum(X, dtype=np.float64)) and not np.all(np.isfinite(X)):
            row = int(np.flatnonzero(~np.isfinite(X).all(axis=1))[0])
            raise InputError(
                f"Expected finite features, got NaN or inf in record {row}; fill it by the schema."
            )
        self.network = network
        self.loss = network.spec.loss
        self.y = np.asarray(y, dtype=np.float64)
        if np.any((self.y != np.floor(self.y)) | (self.y < 0) | (self.y >= network.spec.outputs)):
            raise InputError(
                f"Expected class numbers 0 to {network.spec.outputs - 1} as labels, got others; "
                "encode the classes."
            )
        self.records, order = network.records(
            network.described(X), torch.from_numpy(self.y.astype(np.int64))
        )
        self._places = inverse(order)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def dimension(self) -> int:
        """Number of weights."""
        return self.network.dimension

    def check(self, problem: Problem) -> None:
        """Raise ``InputError`` unless ``problem`` counts these records and parameters; all is
        clipped, no row bound.
        """
        problem.check_count(self.n)
        if self.dimension != problem.dimension:
            raise InputError(
                f"Expected a network of {problem.dimension} parameters, got {self.dimension}."
            )

    def take(self, rows: Array | slice) -> Self:
        """The records ``rows`` as an objective of their own."""
        places = self._places[rows if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)]
        order = np.argsort(places)  # of records in the order of their keys
        batch = copy(self)
        batch.y, batch.records, batch._places = (
            self.y[rows],
            self.records[places[order]],
            inverse(order),
        )
        return batch

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over records of the gradient at ``w`` (d,), each scaled down to norm ``clip_norm``;
        shape (d,).

        A record whose gradient is not finite contributes nothing.
        """
        refuse_coarse_products()
        return self.network.gradient_sum(w, self.records, clip_norm)

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over records of the loss, each cut to [0, ``clip``], for every row of ``W`` (k, d);
        shape (k,).

        A loss that is not finite counts as ``clip``.
        """
        totals, clip = [], clip * (1.0 - MARGIN[self.network.dtype])
        for w in np.atleast_2d(W):
            self.network.load(w)
            losses = self.network.losses(self.records.x, self.records.y)
            totals.append(float(np.minimum(np.nan_to_num(losses, nan=inf, posinf=inf), clip).sum()))
        return np.array(totals)

    def scores(self, w: Array) -> Array:
        """Scores of every record at ``w``, shape (n, outputs)."""
        self.network.load(w)
        found: Array = self.network.scores_now(self.records.x).double().numpy()
        return np.asarray(found[self._places])
