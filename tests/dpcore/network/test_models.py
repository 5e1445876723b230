"""Which networks there are, which are refused and why, and what is stored of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from torch import nn

from dpcore.accounting import Target
from dpcore.algorithms import check_assumptions, make, registry
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.network import network, scattering
from dpcore.network.layers import has_closed_form
from dpcore.network.models import weights_on_wavelets
from dpcore.network.network import Network
from dpcore.network.spec import NetworkSpec, network_problem
from dpcore.problem import Adjacency
from dpcore.train import plan, run
from tests.dpcore.network.small import SPECS, records, spec_of

pytest.importorskip("torch")
pytest.importorskip("safetensors")

MNIST = {"inputs": 784, "outputs": 10, "image": (1, 28, 28)}
# What needs neither a linear model nor a convex loss, with settings for a few records.
TRAINS = {
    "dp_sgd": {"steps": 3},
    "dp_adam": {"steps": 3},
    "dp_agd": {},
    "dp_blgd": {"iterations": 3},
    "dp_blsgd": {"iterations": 3},
    "dp_blsgd_ac": {"iterations": 3},
    "privgene": {"generations": 2},
    "non_private": {"steps": 3},
    "adam": {"epochs": 2},
}


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("small_cnn", 26_010),
        ("cnn", 139_414),
        ("mlp", 269_322),
        ("linear", 7_850),
        ("scattering", 39_700),
        ("wavelet_cnn", 12_938),
    ],
)
def test_sizes_on_mnist(kind: str, parameters: int) -> None:
    assert NetworkSpec(**MNIST, kind=kind).build().dimension == parameters


def test_a_network_beyond_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(InputError, match=r"at most 500,000,000 weights, got 1,\d{3},.* smaller"):
        NetworkSpec(inputs=4, outputs=2, kind="mlp", hidden=(200_000_000,)).build()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"image": (1, 2000, 2000)},
            r"less than 1021 pixels a side .* image=\[1, 2000, 2000\]; shr",
        ),
        ({"image": (1, 2, 1100)}, r"less than 1021 pixels a side .* image=\[1, 2, 1100\]"),
        ({"image": (3, 900, 900), "centred": True}, r"256 drawn .* centred=true, got \d.* shrink"),
        (
            {"image": (3, 1000, 1000), "outputs": 1000},
            r"at most 500,000,000 weights, got .* shrink",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["scattering", "wavelet_cnn"])
def test_wavelets_beyond_memory_are_refused_before_they_are_made(
    kind: str, changes: dict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("wavelets were made")

    monkeypatch.setattr(scattering, "_morlet", made)
    given = {"outputs": 10, **changes, "inputs": int(np.prod(changes["image"]))}
    with pytest.raises(InputError, match=words):
        NetworkSpec(kind=kind, **given).build()


@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (1, 20, 9)])
@pytest.mark.parametrize("kind", ["scattering", "wavelet_cnn"])
def test_weights_on_wavelets_are_counted_without_making_them(kind: str, image: tuple) -> None:
    spec = NetworkSpec(inputs=int(np.prod(image)), outputs=7, image=image, kind=kind)
    assert weights_on_wavelets(spec) == spec.build().dimension


@pytest.mark.parametrize("centred", [False, True])
def test_features_of_a_few_records_at_a_time_are_those_of_all(
    centred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over public features holds a bounded number of numbers, whatever the image."""
    spec = NetworkSpec(**MNIST, kind="scattering", upright=True, centred=centred)
    X = np.random.default_rng(0).random((40, 784), dtype=np.float32)
    whole = spec.build()
    monkeypatch.setattr(network, "DESCRIBED_NUMBERS", 700_000)
    monkeypatch.setattr(scattering, "STROKES_AT_ONCE", 3_000_000)
    parts = spec.build()
    assert whole.together == 1024 and parts.together == 6
    assert np.abs((parts.described(X) - whole.described(X)).numpy()).max() < 1e-6


@pytest.mark.parametrize("name", SPECS)
def test_memory_counts_records_once_more_where_they_are_made(name: str) -> None:
    made = spec_of(name).build()
    held = records(made, 30).records.x
    found = made.memory(30)
    assert found["records"] == held.numel() * held.element_size()
    assert found["pass"] >= found["records"] * (made.features is not None)
    assert found["weights"] >= 16 * made.dimension
    many = made.memory(10**7)
    assert many["records"] == 10**7 // 30 * found["records"] + 10 * found["records"] // 30
    assert many["pass"] >= many["records"]  # features, or numbers in double precision


def test_the_deep_network_has_three_linear_layers_of_4096_1024_512() -> None:
    network = NetworkSpec(inputs=3072, outputs=10, image=(3, 32, 32), kind="deep_cnn").build()
    shapes = [tuple(p.shape) for p in network.parameters.values() if p.dim() == 2]
    assert shapes == [(1024, 4096), (512, 1024), (10, 512)]


@pytest.mark.parametrize("name", SPECS)
def test_the_seed_gives_the_start_and_nothing_else_is_drawn(name: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        spec_of(name).build(),
        spec_of(name).build(),
        spec_of(name, seed=1).build(),
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    w = np.zeros(first.dimension)
    state = first.state(w)
    assert all(np.array_equal(value, again.state(w)[key]) for key, value in state.items())
    same = all(np.array_equal(value, other.state(w)[key]) for key, value in state.items())
    assert same == (name in ("linear", "scattering"))  # these start at zero


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("precision", ["single", "double"])
def test_state_survives_storage_bit_for_bit(name: str, precision: str) -> None:
    spec = spec_of(name, precision=precision)
    network = spec.build()
    w = np.random.default_rng(0).normal(size=network.dimension) * 0.1
    scores = records(network, 4).scores(w)
    state = network.state(w)
    again = NetworkSpec(**json.loads(json.dumps(spec.to_dict()))).build()
    again.load_state(load(save(state)))
    kept = {name: value.numpy() for name, value in again.module.state_dict().items()}
    assert kept.keys() == state.keys()
    for name, value in state.items():
        assert kept[name].dtype == value.dtype
        assert kept[name].tobytes() == value.tobytes()
    # Scores are products of matrices: some processors' last bit depends on a row's place in them.
    X = np.random.default_rng(0).uniform(0.0, 1.0, (4, spec.inputs))
    close = 1e-5 if precision == "single" else 1e-13
    np.testing.assert_allclose(again.scores_of(X), scores, rtol=close, atol=close)


def test_tensors_of_another_network_are_refused() -> None:
    with pytest.raises(InputError, match="tensors of this network"):
        spec_of("mlp").build().load_state(spec_of("linear").build().state(np.zeros(788)))


@pytest.mark.parametrize(
    ("name", "words"),
    [("Batched", "BatchNorm1d at 'inner.1.0', which mixes the "
                 "records"), ("Centred", "depend on that record alone"),
     ("Remembering", "buffer 'seen'"), ("Dropping", "Dropout at '1'"), ("TwoOutputs", r"shape \(n, 4\)"),
     ("Branching", "branch on values")],
)  # fmt: skip
def test_what_does_not_treat_records_one_by_one_is_refused(name: str, words: str) -> None:
    with pytest.raises(AssumptionNotMet, match=words):
        spec_of("module", path=f"tests.dpcore.network.small:{name}", arguments={}).build()


def test_what_runs_beside_a_layer_takes_the_closed_form_away() -> None:
    """A hook or a negative padding may mix the rows of a batch: then every record's gradient is
    formed by itself.
    """
    spec = NetworkSpec(inputs=6, outputs=4, kind="mlp")
    plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    assert Network(plain, spec).closed
    hooked = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    hooked[0].register_forward_hook(
        lambda layer, x, out: out - out.mean(0) if len(out) > 20 else out
    )
    network = Network(hooked, spec)
    assert not network.closed
    x, y = torch.rand(30, 6, dtype=network.dtype), torch.zeros(30, dtype=torch.int64)
    alone = torch.cat([network.sums.squared_norms(x[i : i + 1], y[:1]) for i in range(30)])
    torch.testing.assert_close(network.sums.squared_norms(x, y), alone, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssumptionNotMet, match="depend on that record alone"):
        Network(nn.Sequential(nn.ZeroPad2d((0, 0, 1, -1)), nn.Linear(6, 4)), spec)
    assert not has_closed_form(nn.ZeroPad2d((0, 0, 1, -1)))
    assert has_closed_form(nn.GroupNorm(2, 4, affine=False))
    assert not has_closed_form(nn.GroupNorm(2, 4))
    assert has_closed_form(nn.ZeroPad2d(1))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_old_weight_norm_is_trained_record_by_record() -> None:
    layer = nn.utils.weight_norm(nn.Linear(6, 4))
    network = Network(nn.Sequential(layer), NetworkSpec(inputs=6, outputs=4, kind="mlp"))
    assert not network.closed


@pytest.mark.parametrize(
    ("path", "arguments", "words"),
    [
        ("os:system", {"command": "true"}, "subclass of torch.nn.Module"),
        ("tests.dpcore.network.small:nothing", {}, "subclass"),
        ("no_such_package:Net", {}, "can be imported"),
        ("tests.dpcore.network.small", {}, "package.module:Name"),
        ("tests.dpcore.network.small:Residual", {"depth": 3}, "arguments"),
        ("tests.dpcore.network.small:Gone", {}, "can be imported"),
    ],
)
def test_only_classes_of_modules_are_called(path: str, arguments: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        spec_of("module", path=path, arguments=arguments).build()


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"kind": "cnn"}, "image"), ({"kind": "resnet"}, "kind"), ({"hidden": (0,)}, "hidden_0"),
     ({"kind": "module"}, "path"), ({"path": "a:B"}, "path"), ({"image": (1, 5, 5)}, "product"),
     ({"kind": "small_cnn", "image": (4, 7, 7)}, "large enough"), ({"precision": "half"}, "precision")],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        NetworkSpec(**({"inputs": 196, "outputs": 4} | changes)).build()


@pytest.mark.parametrize("name", sorted(registry))
def test_an_algorithm_trains_a_network_or_says_why_not(name: str) -> None:
    network = spec_of("mlp", hidden=(3,)).build()
    data = records(network, 30)
    problem = network_problem(
        network, 30, next(a for a in Adjacency if a in registry[name].adjacencies)
    )
    if name not in TRAINS:
        with pytest.raises(AssumptionNotMet, match=rf"for {name!r}, got .*; use"):
            check_assumptions(make(name, {}), problem)
        return
    target = [Target(2.0, 1e-3)] if registry[name].private else []
    result = run(plan(name, TRAINS[name], problem, *target), data, seed=0)
    assert result.weights.shape == (network.dimension,) and np.all(np.isfinite(result.weights))


def test_auto_is_clipped_descent_from_public_sizes() -> None:
    network = NetworkSpec(**MNIST).build()
    planned = plan("auto", {}, network_problem(network, 60_000), Target(2.0, 1e-5))
    assert planned.name == "dp_sgd" and planned.parameters["sampling_rate"] == 4096 / 60_000
    assert (
        plan("auto", {}, network_problem(network, 1000), Target(2.0, 1e-5)).parameters[
            "sampling_rate"
        ]
        == 1.0
    )


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [(np.zeros((3, 5)), np.zeros(3), "196 numbers"), (np.zeros((3, 196)), np.zeros(2), "one label per row"),
     (np.full((3, 196), np.nan), np.zeros(3), "NaN or inf in record "
                                              "0"), (np.zeros((2, 196)), [0.0, 4.0], "class")],
)  # fmt: skip
def test_records_that_do_not_fit_are_refused(X: np.ndarray, y: np.ndarray, words: str) -> None:
    from dpcore.network.network import NetworkObjective

    with pytest.raises(InputError, match=words):
        NetworkObjective(spec_of("mlp").build(), X, np.asarray(y))
