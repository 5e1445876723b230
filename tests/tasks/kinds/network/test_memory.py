"""A network whose declared sizes no memory holds is refused in the plan, before any file is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpcore.errors import InputError
from tasks import training
from tasks.config.read import parse_config
from tasks.training import machine_memory, prepare

pytest.importorskip("torch")
pytest.importorskip("safetensors")

HERE = 2.0**28


def config_of(folder: Path, n: int, pixels: int, **model: Any) -> Any:
    """A training on n grey images of so many pixels, none of which is there."""
    place = folder / "pictures.yaml"
    place.write_text(
        f"""\
schema_version: 1
name: pictures
public: {{n: {n}}}
source: {{format: idx, path: [images-idx3-ubyte, labels-idx1-ubyte]}}
features: [{{name: pixel, count: {pixels}, low: 0, high: 255}}]
label: {{column: class, kind: classes, levels: [0, 1, 2]}}
split: {{kind: none}}
"""
    )
    return parse_config(
        {
            "data": {"name": str(place)},
            "objective": {"loss": "cross_entropy"},
            "privacy": {"delta": 1e-12},
            "algorithm": {"name": "dp_sgd", "steps": 2, "sampling_rate": 0.1},
            "model": model,
        }
    )


@pytest.mark.parametrize(
    ("n", "pixels", "model", "words"),
    [
        (
            60_000,
            64 * 64,
            {"kind": "wavelet_cnn"},
            r"kind=wavelet_cnn, image=\[1, 64, 64\], shrink=1, copies=1 for n=60,000, which holds "
            r"at least .* its records as the layers see them\); set model.shrink",
        ),
        (60_000, 48 * 48, {"kind": "scattering"}, r"image=\[1, 48, 48\].*set model.shrink"),
        (10**9, 28 * 28, {"kind": "cnn"}, "n=1,000,000,000.*records as the layers see them"),
        (10**9, 28 * 28, {"kind": "mlp"}, "n=1,000,000,000.*records as the layers see them"),
        (
            5_000,
            28 * 28,
            {"kind": "deep_cnn", "copies": 3_000, "shift": 20, "mirror": True},
            r"copies=3000 .*one pass over .*lower model\.copies",
        ),
        (5_000, 10, {"kind": "mlp", "hidden": [4_000, 4_000]}, "choose smaller layers"),
    ],
)
def test_what_no_memory_holds_is_refused_and_says_what_would_go(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    n: int,
    pixels: int,
    model: dict[str, Any],
    words: str,
) -> None:
    config = config_of(tmp_path, n, pixels, **model)
    monkeypatch.setattr(training, "machine_memory", lambda: HERE)
    with pytest.raises(InputError, match=words) as raised:
        prepare(config)
    assert "this machine's 0.268 GB of memory" in str(raised.value)
    assert str(raised.value).endswith("Nothing was spent.") and "\n" not in str(raised.value)
    assert sum(prepare(config, here=False).memory.values()) > HERE  # an audit trains nothing


def test_what_memory_holds_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "machine_memory", lambda: HERE)
    for model in ({"kind": "wavelet_cnn"}, {"kind": "cnn", "copies": 16, "shift": 4}):
        job = prepare(config_of(tmp_path, 5_000, 28 * 28, **model))
        assert 0 < sum(job.memory.values()) < HERE
        need = sum(job.memory.values())
        monkeypatch.setattr(training, "machine_memory", lambda need=need: need)
        prepare(config_of(tmp_path, 5_000, 28 * 28, **model))
        monkeypatch.setattr(training, "machine_memory", lambda need=need: need - 1.0)
        with pytest.raises(InputError, match="this machine's"):
            prepare(config_of(tmp_path, 5_000, 28 * 28, **model))
        monkeypatch.setattr(training, "machine_memory", lambda: HERE)


def test_a_containers_limit_counts_where_it_is_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "memory.max"
    monkeypatch.setattr(training, "CONTAINER", (str(said), str(tmp_path / "none")))
    whole = machine_memory()
    assert whole > HERE
    for text, found in (("1000000\n", 1e6), ("max\n", whole), (f"{2**63}\n", whole)):
        said.write_text(text)
        assert machine_memory() == found
