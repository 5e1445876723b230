"""Rows in shards on disk: the same sums, a folder that nobody else opens, and nothing left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import DPFlowsError, InputError
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled, shards
from dpcore.objective.shards import ShardedObjective, ShardedRows
from dpcore.preprocess.coding import Coding
from tasks import training
from tasks.data import store as spool
from tasks.data.load import load
from tasks.data.store import Storage
from tasks.schema import find_schema
from tests.tasks.training.test_training import config_of

RNG = np.random.default_rng(0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 64 rows, encoded 25 at a time."""
    for module in (shards, spool):
        monkeypatch.setattr(module, "SHARD_ROWS", 64)
    monkeypatch.setattr(spool, "SLICE", 25)


def loaded(small: Path, storage: bool, spool_folder: Path | None = None):
    schema = find_schema(str(small))
    encoder = schema.encoder(normalise="none", numeric="hats(8)")
    kept = Storage(Coding.of(encoder), True, 300) if storage else Storage()
    return load(
        schema, encoder, str(small.with_name("small.csv")), spool=spool_folder, storage=kept
    )


@pytest.mark.parametrize("fast", [False, True])
def test_sums_over_shards_are_those_over_the_matrix(
    small: Path, short: None, fast: bool, tmp_path: Path
) -> None:
    if fast:
        pytest.importorskip("numba")
    whole, parts = loaded(small, False).train, loaded(small, True, tmp_path / "spool").train
    assert isinstance(parts.X, ShardedRows)
    assert [part.n for part in parts.X.parts] == [64, 64, 64, 64, 44]
    made = LinearObjective(whole.X, whole.y, Logistic())
    compiled.use(fast)
    sums = parts.X.objective(parts.y, LinearObjective, Logistic())
    w, W = RNG.normal(size=made.dimension), RNG.normal(size=(3, made.dimension))
    shift, scale = RNG.random(len(w)), RNG.uniform(0.5, 2, len(w))
    some = np.sort(RNG.choice(300, 80, replace=False))
    blocks = whole.design.blocks
    for ask in (
        lambda o: o.gradient_sum(w, 0.3),
        lambda o: o.value_sum(W, 0.7),
        lambda o: o.within(blocks).transform(shift, scale).gradient_sum(w, 0.3),
        lambda o: o.column_sum(0.5),
        lambda o: o.square_sum(),
        lambda o: o.take(some).gradient_sum(w, 0.3),
        lambda o: o.take(slice(60, 200)).value_sum(W),
        lambda o: o.columns(np.array([0, 2])).gradient_sum(w[[0, 2]], 0.3),
        lambda o: np.array([o.n, o.take(some).n, o.take(slice(60, 200)).n]),
    ):
        assert np.abs(ask(made) - ask(sums)).max() < 1e-5  # fractions are kept in single precision
    compiled.use(False)
    with pytest.raises(InputError, match="rising order"):
        sums.take(np.array([3, 1]))
    assert np.abs(parts.X @ w - whole.X @ w).max() < 1e-5
    assert parts.X.every(7).n == len(range(0, 300, 7))
    assert np.abs(parts.X.every(7) @ w - (whole.X @ w)[::7]).max() < 1e-5


def test_norms_are_kept_beside_the_rows_though_their_folder_is_gone(
    small: Path, short: None, tmp_path: Path
) -> None:
    """From the second pass on, eight bytes a row as a plan counts, in files without a name."""
    pytest.importorskip("numba")
    parts = loaded(small, True, tmp_path / "spool").train
    sums = parts.X.objective(parts.y, LinearObjective, Logistic())
    scales = RNG.uniform(0.5, 2, (2, sums.dimension))
    compiled.use()
    for scale in scales:
        view = sums.transform(0.5 * scale, scale)
        for turn in range(3):
            view.gradient_sum(scale, 0.3)
            found = [part.table.kept.get("norms") for part in parts.X.parts]
            assert [one is None for one in found] == 5 * [turn == 0]
    compiled.use(False)
    assert all(isinstance(norms, np.memmap) for _, norms in found)
    assert sum(norms.nbytes for _, norms in found) == spool.NORM_BYTES * 300
    assert list((tmp_path / "spool").iterdir()) == []


def test_the_folder_is_private_and_gone_when_the_rows_are_read(
    small: Path, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    stored = spool._stored

    def watched(path: Path, part: np.ndarray) -> np.ndarray:
        found = stored(path, part)
        if part.size:
            seen.extend((path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777))
        return found

    monkeypatch.setattr(spool, "_stored", watched)
    told: list[int] = []
    token = spool.written.set(told.append)
    loaded(small, True, tmp_path / "spool")
    spool.written.reset(token)
    assert set(seen) == {0o600, 0o700}
    assert list((tmp_path / "spool").iterdir()) == []
    assert told == [64, 128, 192, 256, 300]


def test_a_shard_or_a_table_that_is_replaced_after_it_was_read_changes_no_sum(
    small: Path, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are mapped when they are written; no name is opened again."""
    expected = loaded(small, True, tmp_path / "spool").train.X
    stored = spool._stored

    def replaced(path: Path, part: np.ndarray) -> np.ndarray:
        found = stored(path, part)
        if part.size:
            other = path.with_suffix(".other")
            other.write_bytes(bytes(len(part.tobytes())))
            other.replace(path)
        return found

    monkeypatch.setattr(spool, "_stored", replaced)
    found = loaded(small, True, tmp_path / "spool").train.X
    small.with_name("small.csv").write_text("gone\n")
    w = RNG.normal(size=expected.shape[1])
    assert np.array_equal(found @ w, expected @ w)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    with spool.private_folder(tmp_path) as mine:
        dead = tmp_path / f"{spool.PREFIX}{os.getpid()}-x"  # the number says nothing, the lock does
        dead.mkdir()
        spool.sweep(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [mine.name]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_full_disk_is_said_in_a_line_and_leaves_nothing(
    small: Path, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """While shards are written, and while a matrix is."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool, "_stored", full)
    monkeypatch.setattr(spool.GrowingArray, "finish", full)
    with pytest.raises(DPFlowsError, match=r"No space left on device; make room .* not begun"):
        loaded(small, kept, tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_an_error_while_encoding_leaves_nothing(small: Path, short: None, tmp_path: Path) -> None:
    table = small.with_name("small.csv")
    lines = table.read_text().splitlines()
    table.write_text(
        "\n".join([*lines[:250], ",".join(["?!"] * len(lines[0].split(","))), *lines[250:]])
    )
    with pytest.raises(InputError):
        loaded(small, True, tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_disk_without_room_is_refused_before_a_row_is_read(small: Path, tmp_path: Path) -> None:
    encoder = find_schema(str(small)).encoder(normalise="none", numeric="minmax")
    with pytest.raises(InputError, match=r"free disk .* Nothing was spent"):
        Storage(Coding.of(encoder), True, 10**15).require_room(tmp_path)


@pytest.mark.parametrize("name", ["scaled_gd", "dp_sgd", "dp_agd"])
def test_a_training_on_shards_gives_what_one_in_memory_gives(
    small: Path, short: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path))
    found = []
    for engine in ({}, {"engine": {"kind": "shards"}}):
        config = config_of(small, algorithm={"name": name}, **engine)
        config = config.model_copy(update={"unsafe_fixed_noise_seed": 1})
        if name != "dp_sgd":
            config = config.model_copy(
                update={"algorithm": config.algorithm.model_validate({"name": name})}
            )
        job = training.prepare(config)
        run = training.read_run(job, training.plan_training(job))
        if engine:
            assert isinstance(run.sums.open(), ShardedObjective)
        from dpcore.train import run as fit

        sums = run.sums.open()
        result = fit(job.kind.runnable(run.planned, sums), sums, seed=0, fixed_noise_seed=1)
        metrics = training.measure(job, result.weights, run.data, run.known)
        found.append((result.weights, metrics["internal.accuracy"]))
    assert np.abs(found[0][0] - found[1][0]).max() < 1e-4 * max(np.abs(found[0][0]).max(), 1.0)
    assert abs(found[0][1] - found[1][1]) < 0.02


def test_what_does_not_go_on_shards_is_refused_from_declarations(small: Path) -> None:
    small.with_name("small.csv").unlink()
    for section, words in (
        ({"algorithm": {"name": "objective_perturbation", "steps": None}}, "single rows"),
        ({"audit": {"canaries": 20}}, "canaries"),
    ):
        values = {"engine": {"kind": "shards"}, "privacy": {"delta": 1e-4}, **section}
        with pytest.raises(InputError, match=words):
            config = config_of(small, **values)
            given = {
                k: v
                for k, v in config.algorithm.parameters.items()
                if v is not None and k != "steps"
            }
            named = config.algorithm.model_validate({"name": config.algorithm.name, **given})
            training.prepare(config.model_copy(update={"algorithm": named}))


def test_pandas_frames_of_dictionaries_are_coded_alike(small: Path) -> None:
    schema = find_schema(str(small))
    encoder = schema.encoder(normalise="none", numeric="minmax")
    frame = pd.read_csv(small.with_name("small.csv"))
    coding = Coding.of(encoder)
    from dpcore.preprocess.design import EncodingReport

    names = [
        name
        for name in frame.columns
        if frame[name].dtype == object or str(frame[name].dtype).startswith("str")
    ]
    categories = frame.astype(dict.fromkeys(names, "category"))
    one, other = (coding.table(f, EncodingReport()) for f in (frame, categories))
    assert np.array_equal(one.narrow, other.narrow)
