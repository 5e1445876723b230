"""What is done to images record by record: copies of which a gradient is the mean, and public
steps before the first layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpcore.errors import InputError
from dpcore.network.images import Upright
from dpcore.network.models import make_module
from dpcore.network.network import NetworkObjective
from dpcore.network.passes import MARGIN
from dpcore.network.scattering import strokes
from dpcore.network.spec import NetworkSpec
from tests.dpcore.network.small import given, records, spec_of

pytest.importorskip("torch")
pytest.importorskip("safetensors")

RNG = np.random.default_rng(8)
IMAGE = (1, 14, 14)
COPIED = {
    "rows": spec_of("mlp", image=IMAGE, copies=3, shift=2, mirror=True),
    "prepared": spec_of("prepared", copies=4, shift=1),
    "images": spec_of("cnn", copies=4, shift=1),
    "normed": spec_of("normed", copies=2, shift=1),
    "one moved": spec_of("small_cnn", copies=1, shift=1),
    "features": spec_of("scattering", copies=2, shift=1),
    "maps": spec_of("wavelet_cnn", copies=2, shift=1),
    "module": spec_of("module", image=IMAGE, copies=2, shift=1),
}


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("clip_norm", [0.3, np.inf])
def test_the_mean_gradient_of_a_records_copies_is_clipped_once(name: str, clip_norm: float) -> None:
    spec = COPIED[name]
    network = spec.build()
    data, w = records(network, 6), RNG.normal(size=network.dimension) * 0.1
    found = data.gradient_sum(w, clip_norm)
    network.load(w)
    copies, order = network.copies, network.order(w)
    assert copies is not None and order is not None
    x = copies.of(data.records, order).x.unflatten(0, (6, spec.copies))
    parameters, total = list(network.parameters.values()), np.zeros(network.dimension)
    network.body.requires_grad_(True)
    for own, y in zip(x, data.records.y, strict=True):
        loss = nn.functional.cross_entropy(network.body(own), y.repeat(spec.copies))
        parts = torch.autograd.grad(loss, parameters)
        gradient = torch.cat([part.ravel() for part in parts]).numpy()
        cut = clip_norm * (1.0 - MARGIN[torch.float64]) / float(np.linalg.norm(gradient))
        total += gradient * min(1.0, cut)
    # norms of weights that are taken scaled are bounds: what is projected away is counted
    loose = 2e-2 if spec.standard_weights and clip_norm < np.inf else 1e-6
    assert np.allclose(found, total, rtol=loose, atol=loose * np.abs(total).max())


def test_copies_of_a_record_are_other_moves_of_it_and_change_with_the_weights() -> None:
    network = COPIED["rows"].build()
    data, copies = records(network, 5), network.copies
    assert copies is not None and copies.moves == 50
    orders = [network.order(RNG.normal(size=network.dimension)) for _ in range(2)]
    moved = [network.moved(data.records, order).x.view(5, 3, 196) for order in orders]
    assert not torch.equal(*moved)
    alone = data.take(np.array([2]))
    again = network.moved(alone.records, orders[0]).x
    assert torch.equal(again, moved[0][data._places[2]]), "whoever else is there"
    for own, all_of_it in zip(data.records.x, moved[0], strict=True):
        padded = nn.functional.pad(own.view(1, 1, 14, 14), (2, 2, 2, 2), mode="replicate")[0, 0]
        windows = [padded[dy : dy + 14, dx : dx + 14] for dy in range(5) for dx in range(5)]
        every = {
            image.contiguous().numpy().tobytes()
            for window in windows
            for image in (window, window.flip(1))
        }
        made = {copy.numpy().tobytes() for copy in all_of_it}
        assert len(made) == 3 and made <= every


def test_losses_and_scores_are_of_the_image_itself() -> None:
    plain, moved = spec_of("cnn").build(), COPIED["images"].build()
    w = RNG.normal(size=plain.dimension) * 0.1
    one, other = records(plain, 6), records(moved, 6)
    assert np.array_equal(one.scores(w), other.scores(w))
    assert np.array_equal(one.value_sum(w, 2.0), other.value_sum(w, 2.0))
    assert not np.array_equal(one.gradient_sum(w, 2.0), other.gradient_sum(w, 2.0))


@pytest.mark.parametrize("name", ["prepared", "normed"])
@pytest.mark.parametrize("copies", [{}, {"copies": 2, "shift": 1}])
def test_no_record_of_scaled_weights_passes_the_clip_norm(name: str, copies: dict) -> None:
    network = spec_of(name, precision="single", **copies).build()
    data, w = records(network, 9), RNG.normal(size=network.dimension)
    norms = [np.linalg.norm(data.take(np.array([i])).gradient_sum(w, 0.01)) for i in range(9)]
    assert 0.009 <= max(norms) <= 0.01


@pytest.mark.parametrize("slant", [-0.5, 0.0, 0.7])
def test_a_slanted_bar_stands_upright(slant: float) -> None:
    row, column = np.mgrid[:28, :28] - 13.5
    bar = np.exp(-((column - slant * row) ** 2) / 4.0) * (np.abs(row) < 9)
    x = torch.tensor(np.stack([bar, 0.0 * bar])).flatten(1)
    upright = Upright((1, 28, 28))(x)
    found = upright[0].view(28, 28).numpy()
    assert abs(np.sum(found * row * column)) <= 0.05 * np.sum(found * column**2)
    assert torch.equal(upright[1], x[1]), "an even image stays as it is"


def test_what_stands_before_the_layers_reads_one_record_and_is_computed_once() -> None:
    network = spec_of("prepared").build()
    data = records(network, 5)
    assert data.records.x.shape == (5, 49) and network.dimension == 9 * 50 + 7 * 10 + 4 * 8
    alone = NetworkObjective(
        network, np.random.default_rng(0).uniform(0.0, 1.0, (5, 196))[2:3], np.zeros(1)
    )
    assert torch.equal(alone.records.x[0], given(data)[0][2])
    module = make_module(spec_of("prepared"))
    assert sum(type(layer) is nn.GroupNorm for layer in module) == 2


@pytest.mark.parametrize("changes", [{}, {"upright": True}, {"image": (3, 14, 14), "inputs": 588}])
def test_the_centre_of_features_is_their_mean_over_drawn_strokes_and_of_no_record(
    changes: dict,
) -> None:
    spec = replace(spec_of("scattering"), **changes)
    plain, centred = spec.build(), replace(spec, centred=True).build()
    X = RNG.uniform(0.0, 1.0, (5, spec.inputs))
    drawn = strokes(spec.image)
    assert torch.equal(drawn, strokes(spec.image)) and 0.0 <= drawn.min() <= drawn.max() <= 1.0
    less = plain.described(X) - plain.described(drawn.numpy()).mean(0)
    found = centred.described(X)
    assert torch.allclose(found, less / less.norm(dim=1, keepdim=True), atol=1e-5)
    alone = torch.cat([centred.described(row[None]) for row in X])
    assert torch.allclose(alone, found, atol=1e-12), "whoever else is there"
    assert centred.dimension == plain.dimension


def test_a_stroke_stands_in_the_middle() -> None:
    ink = strokes((1, 28, 20)).view(-1, 28, 20)
    total = ink.sum((1, 2))
    down, right = (
        (ink.sum(2) @ torch.arange(28.0)) / total,
        (ink.sum(1) @ torch.arange(20.0)) / total,
    )
    assert (down - 13.5).abs().max() < 1.0 and (right - 9.5).abs().max() < 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"copies": 2}, "at most 1 copies of a record for shift=0"),
        ({"copies": 10, "shift": 1}, "at most 9 copies"),
        ({"shift": 14}, "shift of 0 to 13 pixels"),
        ({"shift": -1}, "shift of 0 to 13 pixels"),
        ({"shrink": 15}, "use 14 or less"),
        ({"image": (), "upright": True}, "the image of a record for upright=True"),
        ({"image": (), "mirror": True}, "the image of a record for mirror=True"),
    ],
)
def test_settings_of_images_that_do_not_fit_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        NetworkSpec(**({"inputs": 196, "outputs": 4, "image": IMAGE} | changes))
