"""Which layers have gradients in closed form, how they are applied to records, and those that take
weights centred and scaled.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpcore.network.images import Standardise, Upright
from dpcore.network.scattering import Scattering

# Rows of weights shorter than this are not scaled up further.
SHORTEST = 1e-6


def directions(weight: Tensor) -> Tensor:
    """The weights of each unit as a row (outputs, k), centred and scaled to norm 1."""
    centred = weight.flatten(1) - weight.flatten(1).mean(dim=1, keepdim=True)
    return centred / lengths_of(weight)[:, None]


def lengths_of(weight: Tensor) -> Tensor:
    """|w_o - mean of w_o| of each unit o, shape (outputs,)."""
    rows = weight.flatten(1)
    centred = rows - rows.mean(dim=1, keepdim=True)
    found: Tensor = torch.linalg.vector_norm(centred, dim=1).clamp_min(SHORTEST)
    return found


class StandardLinear(nn.Linear):
    """x W' + b with rows u_o = (w_o - mean) / |w_o - mean| for W: weight standardisation, Qiao et
    al. (2019), scaled by the root of the inputs as in De et al. (2022), section 3.1.

    By the chain rule the gradient by w_o is P_o g_o / |w_o - mean|, g_o the one by u_o and
    P_o = (I - u_o u_o')(I - 1 1'/k), a projection that is the same for all records.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, directions(self.weight), self.bias)


class StandardConv2d(nn.Conv2d):
    """A convolution with the weights of ``StandardLinear``: one row for each output channel."""

    def forward(self, x: Tensor) -> Tensor:
        weight = directions(self.weight).view_as(self.weight)
        found: Tensor = self._conv_forward(x, weight, self.bias)
        return found


STANDARD = (StandardLinear, StandardConv2d)
# Rows of a linear layer's products are multiples of so many numbers: whole vector registers.
ALIGNED = 16


def applied(layer: nn.Module, x: Tensor) -> Tensor:
    """``layer`` of records ``x`` (n, ..., inputs), shape (n, ..., outputs). Inputs, weights and
    outputs of a linear layer are filled up with zeros to multiples of ``ALIGNED``.

    Where rows begin anywhere in a register, some processors add the products of a row in an order
    that depends on its place, there and in the derivatives: then one record more or less changes
    the last bits of all others, which cancellation makes as large as it likes.
    """
    if not isinstance(layer, nn.Linear):
        found: Tensor = layer(x)
        return found
    weight = directions(layer.weight) if type(layer) is StandardLinear else layer.weight
    outputs, inputs = weight.shape
    more = -inputs % ALIGNED, -outputs % ALIGNED
    wide = F.pad(weight, (0, more[0], 0, more[1]))
    scores = F.linear(F.pad(x, (0, more[0])), wide)[..., :outputs]
    return scores.contiguous() if layer.bias is None else scores + layer.bias


def by_weights(layer: nn.Module, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's inputs ``a`` (..., k) and derivatives ``d`` (..., outputs) whose products are the
    gradients by its weights: where these are taken scaled, inputs are centred, since
    (I - 1 1'/k) a is, and derivatives divided by |w_o - mean|. What is left out, I - u_o u_o', is
    applied to sums (``projected``) and makes norms a little too large, never too small.
    """
    if not isinstance(layer, STANDARD):
        return a, d
    return a - a.mean(dim=-1, keepdim=True), d / lengths_of(layer.weight)


def projected(rows: Tensor, weight: Tensor) -> Tensor:
    """Every P_o of ``StandardLinear`` applied to gradients ``rows`` (outputs, k) by ``weight``, a
    kernel's given with its channels last. No projection lengthens a difference, so sums of
    neighbours stay as close as they were.
    """
    unit = directions(weight if weight.dim() == 2 else weight.permute(0, 2, 3, 1)).to(rows.dtype)
    rows = rows - rows.mean(dim=1, keepdim=True)
    return rows - unit * (rows * unit).sum(dim=1, keepdim=True)


# Layers without parameters that treat records one by one.
PLAIN = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.ELU,
    nn.SiLU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Identity,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.ZeroPad2d,
    Scattering,
    Standardise,
    Upright,
)


def layers_of(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a sequence in their order, sequences inside it opened; None for any other
    structure.

    Only exact types count: a subclass may do something else. A layer, or a parameter, may stand in
    one place only.
    """
    if type(module) is not nn.Sequential or is_hooked(module):
        return None
    found: list[nn.Module] = []
    for layer in module:
        inner = layers_of(layer) if type(layer) is nn.Sequential else [layer]
        if inner is None:
            return None
        found += inner
    places = [id(parameter) for layer in found for parameter in layer.parameters()]
    return found if len(set(places)) == len(places) else None


def has_parameters(layer: nn.Module) -> bool:
    return any(True for _ in layer.parameters())


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer has no parameters and treats records one by one."""
    if type(layer) is nn.Flatten:
        return layer.start_dim >= 1
    if type(layer) is nn.Unflatten:
        return isinstance(layer.dim, int) and layer.dim >= 1
    if type(layer) is nn.GroupNorm:
        return not bool(layer.affine)
    if type(layer) is nn.ZeroPad2d and min(layer.padding) < 0:
        return False  # on rows it may take some records away and add others
    return type(layer) in PLAIN


def is_hooked(layer: nn.Module) -> bool:
    """Whether something runs beside the layer's own forward pass, which may mix records or change
    parameters.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, name, None) for name in hooks)


def has_closed_form(layer: nn.Module) -> bool:
    """Whether ``layer`` is plain, linear, or a convolution in one group with zero padding, and
    nothing more.
    """
    if is_hooked(layer):
        return False
    if isinstance(layer, nn.Conv2d) and type(layer) in (nn.Conv2d, StandardConv2d):
        return (
            layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        )
    return type(layer) in (nn.Linear, StandardLinear) or is_plain(layer)


def closes(module: nn.Module) -> bool:
    """Whether ``module`` is a sequence of layers with closed forms whose parameters are all
    trained.
    """
    layers = layers_of(module)
    return layers is not None and all(
        has_closed_form(layer) and all(p.requires_grad for p in layer.parameters())
        for layer in layers
    )


def patches(layer: nn.Conv2d, a: Tensor) -> Tensor:
    """What the kernel sees at each place, (n, places, kernel * channels); a strided copy, faster
    than ``F.unfold``, place by place or number by number, whichever has the longer runs in memory.
    """
    (high, wide), (down, right), (rows, columns) = layer.kernel_size, layer.stride, layer.dilation
    assert not isinstance(layer.padding, str)
    pad_h, pad_w = layer.padding
    a = a.permute(0, 2, 3, 1).contiguous()
    if pad_h or pad_w:
        a = F.pad(a, (0, 0, pad_w, pad_w, pad_h, pad_h))
    n, height, width, channels = a.shape
    across = (width - columns * (wide - 1) - 1) // right + 1
    shape = (n, (height - rows * (high - 1) - 1) // down + 1, across, high, wide, channels)
    record, row, column, channel = a.stride()
    strides = (record, down * row, right * column, rows * row, columns * column, channel)
    view = a.as_strided(shape, strides)
    places, numbers = shape[1] * shape[2], high * wide * channels
    if channels == right == 1 and across > wide:
        return view.permute(0, 3, 4, 5, 1, 2).reshape(n, numbers, places).transpose(1, 2)
    return view.reshape(n, places, numbers)


def places_of(layer: nn.Module, shape: tuple[int, ...]) -> int:
    """How many numbers a record's patches have in a convolution with output ``shape``; 0 for other
    layers.
    """
    if not isinstance(layer, nn.Conv2d):
        return 0
    return layer.in_channels * prod(layer.kernel_size) * prod(shape[2:])
