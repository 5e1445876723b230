"""Generated images in the layouts of the real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

SIDE, CLASSES = 12, 3

SCHEMA = f"""\
schema_version: 1
name: pictures
ledger: {{ledger}}
public: {{{{n: 400, public: true}}}}
source: {{{{format: idx, path: [train-images-idx3-ubyte, train-labels-idx1-ubyte]}}}}
features: [{{{{name: pixel, count: {SIDE * SIDE}, low: 0, high: 255}}}}]
label: {{{{column: class, kind: classes, levels: [0, 1, 2]}}}}
split: {{{{kind: file, path: [t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte]}}}}
"""


def pictures(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey pictures of three shapes at random places, with noise: (n, 12, 12) bytes and class
    numbers.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n).astype(np.uint8)
    row, column = np.mgrid[:SIDE, :SIDE]
    X = np.empty((n, SIDE, SIDE))
    for i, label in enumerate(y):
        r, c = row - rng.integers(4, 8), column - rng.integers(4, 8)
        shape = [
            (np.abs(r) < 1) | (np.abs(c) < 1),
            r**2 + c**2 < 10,
            (np.abs(r) < 2) & (np.abs(c) < 5),
        ][label]
        X[i] = 180 * shape + rng.uniform(0, 60, (SIDE, SIDE))
    return X.astype(np.uint8), y


def write_idx(folder: Path, part: str, X: np.ndarray, y: np.ndarray) -> None:
    """A pair of idx files: big-endian sizes, then unsigned bytes."""
    for kind, values in (("images-idx3", X), ("labels-idx1", y)):
        sizes = np.array(values.shape, dtype=">u4").tobytes()
        (folder / f"{part}-{kind}-ubyte").write_bytes(
            bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()
        )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The schema of 400 training and 100 test pictures in ``tmp_path``."""
    write_idx(tmp_path, "train", *pictures(400, 1))
    write_idx(tmp_path, "t10k", *pictures(100, 2))
    (tmp_path / "pictures.yaml").write_text(
        SCHEMA.format(ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    )
    return tmp_path / "pictures.yaml"
