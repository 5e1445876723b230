"""Sums of clipped per-record gradients: in closed form for linear and convolution layers, by vmap
for all others.

One forward pass, one backward pass to the outputs of the layers only: with a the input of a layer
and d the derivative of a record's loss by its output, the gradient of the record is d a' (+ d for
the bias), of norm |d| sqrt(|a|^2 + 1) for a linear layer; for a convolution it is the sum over
places of such products. The clipped sum is then one more product with d scaled by min(1, C / norm).
Goodfellow (2015) for the norm of linear layers; Rochette, Manoel & Tramel (2019) for convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpcore.network.layers import (
    ALIGNED,
    STANDARD,
    applied,
    by_weights,
    has_parameters,
    patches,
    projected,
)
from dpcore.network.passes import (
    LONG,
    WHOLE,
    Records,
    Sums,
    bounded,
    filled,
    kept,
    least_hidden,
    lengths,
    shares,
)


class Closed:
    """Clipped sums of a sequence of layers whose gradients have a closed form.

    Each record's a and d have the precision of the network, of unit roundoff u, and so have sums
    over a leaf of records (``passes``); eight leaves are added in it, and all beyond in float64.
    ``MARGIN`` is proved for single precision and any order of summation (Higham 2002, section 3.1).
    Clipped by an upper bound of its norm a record contributes at most C, and its terms
    share * d_p a_p' have sizes of s C in all; s = 1 for rows and for gradients that were formed. A
    leaf of b <= 192 errs by (b + 4) u b C at most, whatever cancels: three roundings of a term and
    b - 1 additions. One record more or less changes one leaf, or cuts it: this is met twice. It
    changes how the leaves of its pass of n <= 1024 are added, which errs by 7 u n C, twice. So two
    sums over neighbours are no further apart than the exact ones and
    2 u (192 * 196 + 7 * 1025) C = 5.4e-3 C. What K passes over N records round in float64 is
    2 K N 2^-53 C: 3.3e-5 C for ten million records in 15,000 passes.

    Where products between places stand for the norm, a layer is summed in float64 throughout, for
    its terms have sizes of s C, s = hidden**-0.5 (``Places._between``): 5e-5 C for the two sums
    over a pass. That a, d and what is formed of them are the same bits whoever else is in a pass is
    asked of one pass alone, and not proved. Products of some processors (seen with MKL on AMD)
    break it where a row is no multiple of 16 bytes, and steps number by number at the end of what a
    thread has, which is why rows are filled up (``layers.applied``, ``whole``) and passes too
    (``passes.filled``, for one thread or two). What torch does inside other modules is not known:
    ``Mapped`` computes in double.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self.layers = layers
        self.whole = WHOLE  # records that a pass is filled up to a multiple of

    def scores(self, x: Tensor) -> Tensor:
        """Scores of each record, shape (n, outputs)."""
        n, (x, _) = len(x), filled(x, x, self.whole)
        for layer in self.layers:
            x = applied(layer, framed(x))
        return x[:n]

    def backward(self, x: Tensor, y: Tensor) -> list[tuple[nn.Module, Tensor, Tensor]]:
        """(layer, its input, derivative of each record's loss by its output) of the layers with
        parameters. Where ``x`` holds K copies of each record, its loss is the mean over them.
        """
        seen: list[tuple[nn.Module, Tensor, Tensor]] = []
        n, copies = len(x), copies_of(x, y)
        x, y = filled(x, y.repeat_interleave(copies) if copies > 1 else y, self.whole)
        with torch.enable_grad():
            for layer in self.layers:
                x = framed(x)
                out = applied(layer, x)
                if has_parameters(layer):
                    if not out.requires_grad:
                        out.requires_grad_()
                    seen.append((layer, x.detach(), out))
                x = out
            loss = F.cross_entropy(x, y, reduction="sum") / copies
            slopes = torch.autograd.grad(loss, [out for _, _, out in seen])
        return [(layer, a[:n], d[:n]) for (layer, a, _), d in zip(seen, slopes, strict=True)]

    def squares(self, x: Tensor) -> Tensor | None:
        """Squared norms of the inputs ``x`` of a first layer on rows, which stay the same from step
        to step.
        """
        return lengths(x) if type(self.layers[0]) is nn.Linear and x.dim() == 2 and len(x) else None

    def add(self, records: Records, clip_norm: float, leaves: list[slice], sums: Sums) -> None:
        """Add the clipped sum over the ``records`` of one pass with its ``leaves`` to ``sums``."""
        parts = self.parts(records.x, records.y)
        if isinstance(parts[0], Dense):
            parts[0].inner = records.squares
        share, sound = shares(total(part.squared() for part in parts), clip_norm, records.x.dtype)
        for part in parts:
            part.add(share, sound, leaves, sums)

    def finish(self, sums: Sums) -> None:
        """What is done once to the sums of all passes: a linear map that lengthens nothing."""
        for layer in self.layers:
            if isinstance(layer, STANDARD):
                out = channels_last(sums.of(layer.weight))
                out.copy_(projected(out.flatten(1), layer.weight).view(out.shape))

    def squared_norms(self, x: Tensor, y: Tensor) -> Tensor:
        """Upper bound of the squared norm of each record's gradient, shape (n,), float64; tight up
        to rounding.
        """
        return total(part.squared() for part in self.parts(x, y))

    def parts(self, x: Tensor, y: Tensor) -> list[Dense | Places]:
        """The gradients of each layer with parameters."""
        copies = copies_of(x, y)
        return [part_of(layer, a, d, copies) for layer, a, d in self.backward(x, y)]


def total(squares: Iterable[Tensor]) -> Tensor:
    """Their sum, in their order."""
    return reduce(torch.add, squares)


def copies_of(x: Tensor, y: Tensor) -> int:
    """How many rows of ``x`` stand for one record, whose label stands once in ``y``."""
    return max(1, len(x) // max(1, len(y)))


class Dense:
    """The gradients of a linear layer on rows."""

    def __init__(self, layer: nn.Linear, a: Tensor, d: Tensor) -> None:
        self.layer, self.by_bias = layer, d
        self.a, self.d = by_weights(layer, a, d)
        self.inner: Tensor | None = None

    def squared(self) -> Tensor:
        """|d|^2 (|a|^2 + 1), shape (n,)."""
        inner = lengths(self.a) if self.inner is None else self.inner
        if self.d is not self.by_bias:
            bias = lengths(self.by_bias) if self.layer.bias is not None else 0.0
            return lengths(self.d) * inner + bias
        return lengths(self.d) * (inner + (1.0 if self.layer.bias is not None else 0.0))

    def add(self, share: Tensor, sound: Tensor | None, leaves: list[slice], sums: Sums) -> None:
        d = kept(self.d, sound) * share[:, None]
        weight, bias = self.layer.weight, self.layer.bias
        sums.add(weight, sums.of(weight), d, kept(self.a, sound), leaves)
        if bias is not None:
            if self.d is not self.by_bias:
                d = kept(self.by_bias, sound) * share[:, None]
            sums.add(bias, sums.of(bias), d, torch.ones_like(share)[:, None], leaves)


class Places:
    """The gradients of a layer that is applied at several places of a record, or to several copies
    of it: sum over places p of d_p a_p'.

    ``at(a)`` (n, places, inputs), ``d`` (n, places, outputs). Formed for each record where that is
    small, few records at a time, so that what they are made of is still near the processor; else
    their norm comes from the products between places.
    """

    def __init__(
        self, layer: Any, a: Tensor, d: Tensor, at: Callable[[Tensor], Tensor] = lambda a: a
    ) -> None:
        self.layer = layer
        self.formed: Tensor | None = None
        self.bias = d.sum(1) if layer.bias is not None else None
        (n, places, outputs), inputs = d.shape, layer.weight[0].numel()
        if inputs * outputs > places * FORMED:
            self.a, self.d = by_weights(layer, at(a), d)
            return
        self.formed = d.new_empty((n, outputs, inputs))
        norms = d.new_empty(n) if inputs * outputs <= LONG else None
        step = max(1, NEAR // (inputs * (places + outputs)))
        for rows in (slice(start, start + step) for start in range(0, n, step)):
            left, right = by_weights(layer, at(a[rows]), d[rows])
            if outputs % ALIGNED:
                right = F.pad(right, (0, -outputs % ALIGNED))
                self.formed[rows] = torch.bmm(right.transpose(1, 2), left)[:, :outputs]
            else:
                torch.bmm(right.transpose(1, 2), left, out=self.formed[rows])
            if norms is not None:
                torch.linalg.vector_norm(self.formed[rows].flatten(1), dim=1, out=norms[rows])
        self.inner = lengths(self.formed) if norms is None else bounded(norms, self.formed)

    def squared(self) -> Tensor:
        """Upper bound of each record's squared norm, shape (n,), float64."""
        total = self._between() if self.formed is None else self.inner
        return total if self.bias is None else total + lengths(self.bias)

    def _between(self) -> Tensor:
        """sum over places p, q of (a_p a_q') (d_p d_q'), with all that rounding may hide.

        The two products err by at most k u |a_p| |a_q| and m u |d_p| |d_q| for k inputs and m
        outputs, whatever cancels; so the sum, formed in float64, by (k + m + 8) u S, S = (sum_p
        |a_p| |d_p|)^2, which is added. S itself may come out too small by twice the rounding of
        norms and their sum. At least the share of S is added that bounds the terms of a clipped
        sum, too.
        """
        a, d = whole(self.a), whole(self.d)
        products = torch.bmm(a, a.transpose(1, 2)).mul_(torch.bmm(d, d.transpose(1, 2)))
        total = products.sum((1, 2), dtype=torch.float64).clamp_min(0.0)
        limits = torch.finfo(self.a.dtype)
        u, least = limits.eps / 2.0, (2.0 * limits.tiny / limits.eps) ** 0.5
        sizes = (torch.linalg.vector_norm(self.a, dim=2) + least) * (
            torch.linalg.vector_norm(self.d, dim=2) + least
        )
        places, inputs, outputs = self.a.shape[1], self.a.shape[2], self.d.shape[2]
        hidden = max(
            (inputs + outputs + 8) * u / (1.0 - 2.0 * (places + inputs + outputs + 16) * u),
            least_hidden(places),
        )
        squares: Tensor = total + hidden * sizes.sum(1).double().square()
        return squares

    def add(self, share: Tensor, sound: Tensor | None, leaves: list[slice], sums: Sums) -> None:
        weight, bias = self.layer.weight, self.layer.bias
        out = channels_last(sums.of(weight))
        if self.formed is not None:
            formed = kept(self.formed, sound).flatten(1)
            sums.add(weight, out, share[:, None], formed, leaves)
        else:
            d, a = (
                kept(self.d, sound).double() * share[:, None, None].double(),
                kept(self.a, sound).double(),
            )
            out += (d.flatten(0, 1).T @ a.flatten(0, 1)).view(out.shape)
        if self.bias is not None:
            sums.add(bias, sums.of(bias), kept(self.bias, sound), share[:, None], leaves)


def whole(x: Tensor) -> Tensor:
    """``x`` (n, places, k) with zeros behind, so that rows and records of it, and of its products,
    are whole registers: then no last bit depends on a record's place (``layers.applied``).
    """
    return F.pad(x, (0, -x.shape[2] % ALIGNED, 0, -x.shape[1] % ALIGNED))


def channels_last(x: Tensor) -> Tensor:
    """The numbers of a kernel as patches have them; those of a linear layer as they are."""
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x


# A record's gradient of a layer is formed where it has at most this many numbers a place. It takes
# fewer products than the norm between places and, in single precision, than the sum in float64;
# beyond, its memory weighs more.
FORMED = 1600
# As many numbers are formed, and taken for it, at a time: two megabytes in single precision.
NEAR = 500_000
CHANNELS_LAST = 8


def part_of(layer: nn.Module, a: Tensor, d: Tensor, copies: int = 1) -> Dense | Places:
    """The gradients of ``layer`` on records with inputs ``a`` and derivatives ``d``, ``copies``
    rows of each standing for one record.
    """
    if isinstance(layer, nn.Conv2d):
        places = (
            d.flatten(2).transpose(1, 2)
            if d.is_contiguous()
            else d.permute(0, 2, 3, 1).flatten(1, 2)
        )
        of_copies = a.view(-1, copies, *a.shape[1:])
        return Places(
            layer,
            of_copies,
            gathered(places, copies),
            lambda a: gathered(patches(layer, a.flatten(0, 1)), copies),
        )
    if a.dim() == 2 and copies == 1:
        assert isinstance(layer, nn.Linear)
        return Dense(layer, a, d)
    a, d = (x.flatten(1, -2) if x.dim() > 2 else x[:, None] for x in (a, d))
    return Places(layer, gathered(a, copies), gathered(d, copies))


def gathered(x: Tensor, copies: int) -> Tensor:
    """``x`` (n copies, places, k) as (n, copies * places, k): copies are places of their record."""
    return x.reshape(len(x) // copies, copies * x.shape[1], x.shape[2])


def framed(x: Tensor) -> Tensor:
    """Images of many channels with these last in memory, where pooling and patches are faster; else
    ``x`` as it is.
    """
    return (
        x.contiguous(memory_format=torch.channels_last)
        if x.dim() == 4 and x.shape[1] >= CHANNELS_LAST
        else x
    )


def places_by_parameter(module: nn.Module) -> dict[str, list[str]]:
    """All places of each parameter, by its first name: two for tied weights, one for a layer that
    is used twice.
    """
    first: dict[int, str] = {}
    seen: set[tuple[int, str]] = set()
    found: dict[str, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, _, attribute = name.rpartition(".")
        place = id(module.get_submodule(owner)), attribute
        if place not in seen:
            found.setdefault(first.setdefault(id(parameter), name), []).append(name)
        seen.add(place)
    return found


class Mapped:
    """Clipped sums of any module: every record's gradient by ``parameters`` is formed, by
    ``torch.func``, a few records at a time. Other parameters of the module are constants.

    In double: last bits of a record may depend on its place in a pass here, and are far below the
    margin then.
    """

    def __init__(
        self, module: nn.Module, parameters: dict[str, nn.Parameter] | None = None
    ) -> None:
        self.module = module
        self.parameters: dict[str, nn.Parameter] = dict(parameters or module.named_parameters())
        places = places_by_parameter(module)

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            given = {place: value for name, value in parameters.items() for place in places[name]}
            # Ties are resolved here: functional_call would set a layer that stands in two places
            # twice, and leave what it was called with in it.
            scores = torch.func.functional_call(module, given, (x,), tie_weights=False)
            return F.cross_entropy(scores, y.expand(len(x)), reduction="sum") / len(x)

        def score(x: Tensor) -> Tensor:
            score: Tensor = module(x[None])[0]
            return score

        self.gradients: Callable[..., dict[str, Tensor]] = torch.func.vmap(
            torch.func.grad(loss), in_dims=(None, 0, 0)
        )
        # One record at a time here too: what a module does to a batch cannot reach another record's
        # loss.
        self.scores: Callable[[Tensor], Tensor] = torch.func.vmap(score)

    def per_record(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Each record's gradient, by parameter name: the mean over its copies in ``x``."""
        x = x.view(len(y), copies_of(x, y), *x.shape[1:])
        parameters = {name: value.detach() for name, value in self.parameters.items()}
        return {name: value.detach() for name, value in self.gradients(parameters, x, y).items()}

    def squares(self, x: Tensor) -> None:
        """None: what a record's gradient is made of is not known."""

    def add(self, records: Records, clip_norm: float, leaves: list[slice], sums: Sums) -> None:
        """Add the clipped sum over the ``records`` of one pass with its ``leaves`` to ``sums``."""
        found = self.per_record(records.x, records.y)
        share, sound = shares(total(lengths(g) for g in found.values()), clip_norm, records.x.dtype)
        for name, value in found.items():
            parameter = self.parameters[name]
            sums.add(
                parameter, sums.of(parameter), share[:, None], kept(value, sound).flatten(1), leaves
            )

    def finish(self, sums: Sums) -> None:
        """Nothing: what was added are gradients by the parameters."""

    def squared_norms(self, x: Tensor, y: Tensor) -> Tensor:
        """Squared norm of each record's gradient, shape (n,)."""
        return total(lengths(g) for g in self.per_record(x, y).values())
