"""Rounding in single precision: norms that are never too small, and sums that move by no more than
the clip.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcore.errors import AssumptionNotMet
from dpcore.network import clipping
from dpcore.network.clipping import Dense, Places
from dpcore.network.network import Network, NetworkObjective
from dpcore.network.passes import LEAF, MARGIN, cut, keys_of, lengths, passes, shares
from dpcore.network.spec import NetworkSpec
from tests.dpcore.network.small import given

pytest.importorskip("torch")
pytest.importorskip("safetensors")

RNG = np.random.default_rng(5)


def single(values: np.ndarray) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def exact(x: Tensor) -> np.ndarray:
    """Squared norms in extended precision."""
    return np.square(x.flatten(1).numpy().astype(np.longdouble)).sum(1)


@pytest.mark.parametrize("k", [1, 3, 17, 784, 4097, 8192, 8193, 40_000])
@pytest.mark.parametrize("scale", [1e-25, 1e-19, 1.0, 1e15])
def test_a_squared_norm_is_never_too_small(k: int, scale: float) -> None:
    """Plain numbers, equal ones (whose rounding goes one way), and a large one before many that it
    swallows.
    """
    rows = [
        RNG.normal(size=k),
        np.full(k, RNG.uniform(1, 2)),
        np.r_[1.0, np.full(k - 1, 2.4e-4)],
        RNG.uniform(0, 1, k),
    ]
    x = single(scale * np.array(rows))
    found, true = lengths(x).numpy().astype(np.longdouble), exact(x)
    assert np.all(found >= true)
    least = k * np.finfo(np.float32).tiny
    assert np.all(found <= true * 1.002 + 2 * least), "so loose a bound would cost accuracy"


def test_numbers_whose_squares_underflow_still_count() -> None:
    """|d| = 1e-24 and |a| = 1e21 give a gradient of 1e-3, while the square of d is 0 in single
    precision.
    """
    layer = nn.Linear(4, 2)
    a, d = single(np.full((1, 4), 0.5e21)), single(np.full((1, 2), 1e-24))
    true = float(exact(d)[0] * (exact(a)[0] + 1.0))
    assert float(Dense(layer, a, d).squared()[0]) >= true


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_without_full_digits_never_leave_more_than_the_clip(dtype: torch.dtype) -> None:
    """Gradients near the largest number and a small clip: a subnormal share may be rounded up by
    half of itself.
    """
    top = min(torch.finfo(dtype).max, 1e150)
    norms = torch.tensor(top * np.geomspace(1e-3, 1.0, 400), dtype=torch.float64)
    for clip in top * torch.finfo(dtype).tiny * np.geomspace(1e-7, 1.0, 8):
        share, _ = shares(norms.square(), clip, dtype)
        assert torch.all(share.double() * norms <= clip)


@pytest.mark.parametrize("k", [4000, 9000])
def test_records_that_single_precision_cannot_square_contribute_nothing(k: int) -> None:
    assert torch.isinf(lengths(torch.full((1, k), 3e38))).all()


@pytest.mark.parametrize("places", [2, 50, 400])
def test_a_norm_by_products_between_places_is_an_upper_bound(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the places' gradients nearly cancel, single precision would report a tenth of the norm,
    or nothing.
    """
    monkeypatch.setattr(clipping, "FORMED", 0)
    layer = nn.Conv2d(64, 8, 3)
    wide = 1.0 + 10.0 ** RNG.uniform(-7, 0, (20, 1, 1)) * RNG.normal(size=(20, places, 576))
    d = RNG.normal(size=(20, places, 8))
    d -= d.mean(axis=1, keepdims=True)
    a, d = single(wide), single(d)
    true = torch.bmm(d.double().transpose(1, 2), a.double()).flatten(1).square().sum(1)
    true += d.double().sum(1).square().sum(1)
    found = Places(layer, a, d).squared()
    assert torch.all(found >= true)
    rough = torch.tensor(RNG.normal(size=(20, places, 576)), dtype=torch.float32)
    true = torch.bmm(d.double().transpose(1, 2), rough.double()).flatten(1).square().sum(1)
    true += d.double().sum(1).square().sum(1)
    assert torch.all(Places(layer, rough, d).squared() <= 1.1 * true)


@pytest.mark.parametrize("name", ["matmul", "conv2d"])
def test_products_in_fewer_digits_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the numbers, for torch has many switches; once more at each sum."""
    network = nearly_equal(20, 0)
    owner = torch.Tensor if name == "matmul" else torch.nn.functional
    place = "__matmul__" if name == "matmul" else name
    exact = getattr(owner, place)

    def coarse(one: torch.Tensor, other: torch.Tensor, *rest: Any) -> torch.Tensor:
        rounded = one if one.dtype is torch.float64 else one.bfloat16().float()
        return exact(rounded, other, *rest)

    monkeypatch.setattr(owner, place, coarse)
    rule = r"set_float32_matmul_precision\('highest'\)"
    with pytest.raises(AssumptionNotMet, match=rule):
        NetworkSpec(inputs=4, outputs=2, kind="linear").build()
    with pytest.raises(AssumptionNotMet, match=rule):
        network.gradient_sum(np.zeros(network.dimension), 1.0)


def nearly_equal(n: int, seed: int) -> NetworkObjective:
    """Records whose gradients are nearly the same vector of equal numbers: partial sums grow
    straight, and all coordinates round alike.
    """
    rng = np.random.default_rng(seed)
    width = int(rng.choice([4, 20, 100]))
    noise = 10.0 ** rng.integers(-4, -1) * rng.normal(size=(n, 1))
    X = (np.full(width, rng.uniform(0.5, 2.0)) * (1.0 + noise)).astype(np.float32)
    return NetworkObjective(
        NetworkSpec(inputs=width, outputs=2, kind="linear").build(), X, np.zeros(n)
    )


def largest_move(data: NetworkObjective, clip_norm: float) -> float:
    """How far the clipped sum moves, in units of the clip norm, when a record near the start is
    removed.
    """
    w, everyone = np.zeros(data.dimension), np.arange(data.n)
    whole = data.gradient_sum(w, clip_norm)
    rest = [
        data.take(np.delete(everyone, i)).gradient_sum(w, clip_norm) for i in (0, 1, data.n // 3)
    ]
    return float(max(np.linalg.norm(whole - sums) for sums in rest)) / clip_norm


def test_rounded_sums_move_by_the_clip_norm_at_most() -> None:
    moves = [
        largest_move(nearly_equal(2048, seed), 0.1 + 0.01 * seed) for seed in (0, 13, 15, 17, 31)
    ]
    assert 1.0 - MARGIN[torch.float32] - 1e-4 <= max(moves) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("n", [8192, 16_384, 60_000])
def test_so_do_sums_of_many_records(n: int) -> None:
    assert max(largest_move(nearly_equal(n, seed), 0.1 + 0.01 * seed) for seed in range(25)) <= 1.0


IMAGE = {"inputs": 256, "outputs": 3, "image": (1, 16, 16)}
LARGE = {
    "rows": NetworkSpec(inputs=12, outputs=3, hidden=(7,), activation="relu"),
    "formed": NetworkSpec(**IMAGE, kind="small_cnn"),
    "places": NetworkSpec(**IMAGE, kind="small_cnn"),
    "normed": NetworkSpec(
        **IMAGE, kind="small_cnn", activation="elu", group_norm=True, standard_weights=True
    ),
    "copies of rows": NetworkSpec(
        **IMAGE, hidden=(7,), standardise=True, shrink=2, copies=3, shift=1
    ),
    "copies": NetworkSpec(**IMAGE, kind="small_cnn", copies=2, shift=1, mirror=True),
}


def hovering(n: int) -> NetworkObjective:
    """Records in each thousand of which sums rise to 128 and stay there: summed one after the other
    in single precision, all later ones would round up above that number and down below it, and the
    first record decides where they are.
    """
    unit = 2.0**-16  # of numbers from 128 on
    rise, up, down = 0.875, (1000 + 0.3) * unit * 2, (1000 + 0.7) * unit * 2
    block = [(rise, 0)] * 293 + [(up, 0), (down, 1)] * 366
    x, y = np.array((block * (n // 1024 + 1))[:n]).T
    x[1024 * np.arange(1 + (n - 1) // 1024)] = rise
    network = NetworkSpec(inputs=1, outputs=2, kind="linear").build()
    return NetworkObjective(network, x[:, None].astype(np.float32), y)


def test_no_choice_of_other_records_makes_one_record_count_for_more() -> None:
    data, w = hovering(8192), np.zeros(4)
    others = NetworkObjective(data.network, given(data)[0][1:].numpy(), data.y[1:])
    whole, rest = (part.gradient_sum(w, 1.0) for part in (data, others))
    alone = data.take(slice(0, 1)).gradient_sum(w, 1.0)
    assert np.linalg.norm(whole - rest - alone) <= MARGIN[torch.float32] / 10


def sums_of_passes(data: NetworkObjective, w: np.ndarray, clip_norm: float) -> list[bytes]:
    network, records = data.network, data.records
    network.load(w)
    found = []
    for rows, leaves in passes(records.keys, network.rows):
        network.added.start()
        part = network.moved(records[rows], network.order(w))
        network.sums.add(part, clip_norm, leaves, network.added)
        network.sums.finish(network.added)
        found.append(network.added.total.numpy().tobytes())
    return found


@pytest.mark.parametrize("name", LARGE)
def test_a_record_less_changes_one_pass_by_its_own_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other passes have the same sums, bit for bit; and the one is within the proved margin."""
    if name == "places":
        monkeypatch.setattr(clipping, "FORMED", 0)
    network, clip, n, rng = LARGE[name].build(), 0.1, 700, np.random.default_rng(3)
    network.rows = 256  # several passes of several leaves
    row = rng.uniform(0.5, 1.0, network.spec.inputs)
    X = (row * (1.0 + 1e-3 * rng.normal(size=(n, 1)))).astype(np.float32)
    data, w = NetworkObjective(network, X, np.zeros(n)), 0.1 * rng.normal(size=network.dimension)
    whole, before = data.gradient_sum(w, clip), sums_of_passes(data, w, clip)
    for left_out in (0, n - 1):
        rest = np.delete(X, left_out, axis=0)
        part = NetworkObjective(network, rest, np.zeros(n - 1))
        after = sums_of_passes(part, w, clip)
        assert len(set(before) - set(after)) == len(set(after) - set(before)) == 1
        alone = data.take(np.array([left_out])).gradient_sum(w, clip)
        drift = np.linalg.norm(whole - part.gradient_sum(w, clip) - alone) / clip
        assert drift <= 2.0 * 2.0**-24 * (LEAF * (LEAF + 4) + 7 * 1025) <= MARGIN[torch.float32]


@pytest.mark.parametrize("most", [1, 2, 16, 192])
def test_a_key_less_changes_only_the_slices_that_hold_it(most: int) -> None:
    rng = np.random.default_rng(most)
    top = np.uint64(2**64 - 1)
    for keys in (
        rng.integers(0, 2**64, 1000, dtype=np.uint64),
        np.r_[np.zeros(500, np.uint64), np.full(500, top), rng.integers(0, 9, 9, dtype=np.uint64)],
        np.arange(300, dtype=np.uint64),
        np.array([0, 1, top - np.uint64(1), top], dtype=np.uint64),
    ):
        keys = np.sort(keys)
        whole = [tuple(keys[part]) for part in cut(keys, most)]
        assert sum(map(len, whole)) == len(keys) and max(map(len, whole)) <= most
        assert len(whole) <= max(1, len(keys)) and tuple(keys) == sum(whole, ())
        for place in (0, 1, len(keys) // 2, len(keys) - 1):
            rest = np.delete(keys, place)
            less = [tuple(rest[part]) for part in cut(rest, most)]
            gone, new = Counter(whole) - Counter(less), Counter(less) - Counter(whole)
            assert sum(len(part) * k for part, k in gone.items()) <= most + 1
            assert sum(len(part) * k for part, k in new.items()) <= most


def test_equal_records_have_equal_keys_and_only_they() -> None:
    x = torch.arange(12.0).reshape(6, 2) // 4
    y = torch.tensor([0, 0, 0, 1, 0, 0])
    keys = keys_of(x, y)
    for i in range(6):
        for j in range(6):
            alike = torch.equal(x[i], x[j]) and y[i] == y[j]
            assert (keys[i] == keys[j]) == alike
    assert len(keys_of(x[:0], y[:0])) == 0


def test_sums_of_deep_networks_move_by_the_clip_norm_at_most() -> None:
    """Here scores and slopes of the other records change in their last digits, too, with the size
    of the batch.
    """
    network = NetworkSpec(inputs=196, outputs=10, hidden=(64, 64)).build()
    data, w = of(network, 4096), RNG.normal(size=network.dimension) * 0.2
    whole = data.gradient_sum(w, 0.1)
    moves = [
        np.linalg.norm(whole - data.take(np.delete(np.arange(4096), i)).gradient_sum(w, 0.1))
        for i in (0, 2000)
    ]
    assert 0.1 * 0.994 <= max(moves) <= 0.1


@pytest.mark.parametrize("scale", [0.1, 0.2, 0.3, 0.5])
def test_sums_of_losses_move_by_the_clip_at_most(scale: float) -> None:
    network = NetworkSpec(inputs=196, outputs=10, hidden=(64, 64)).build()
    data, w = of(network, 2049), scale * np.random.default_rng(1).normal(size=network.dimension)
    network.load(w)
    losses = network.losses(*given(data))
    cap, top = float(np.quantile(losses, 0.9)), int(np.argmax(losses))
    moved = (
        data.value_sum(w, cap)[0] - data.take(np.delete(np.arange(2049), top)).value_sum(w, cap)[0]
    )
    assert 0.994 * cap <= moved <= cap


def of(network: Network, n: int) -> NetworkObjective:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, (n, network.spec.inputs)).astype(np.float32)
    return NetworkObjective(network, X, rng.integers(0, network.spec.outputs, n).astype(float))
