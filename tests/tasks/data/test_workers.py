"""Sums on the workers of a Dask cluster: the bits of one process, after a worker's death too, and
nothing private told.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from dpcore.errors import InputError
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled
from dpcore.preprocess.coding import Coding
from tasks.data import workers
from tasks.data.load import load
from tasks.data.shards import Storage
from tasks.data.workers import Cluster, Question, Remote, RemoteRows, Source, answer, connect, sizes
from tasks.kinds.table import by_counts
from tasks.schema import find_schema

CANARY = "kanarienvogel-4711"


@pytest.fixture(autouse=True)
def _plain_passes() -> None:
    """The sources of these tests say so; a training before them may have said otherwise."""
    compiled.use(False)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema and three files of rows."""
    folder, rng = tmp_path_factory.mktemp("lake"), np.random.default_rng(0)
    for k in range(3):
        lines = ["city,age,y"]
        for city, age, y in zip(
            rng.choice(list("abc"), 200), rng.random(200), rng.random(200) < 0.5, strict=True
        ):
            lines.append(f"{city},{100 * age:.3f},{'yes' if y else 'no'}")
        (folder / f"part-{k}.csv").write_text("\n".join(lines) + "\n")
    schema = {
        "schema_version": 1,
        "name": "lake",
        "public": {"n": 480},
        "columns": {
            "city": {"kind": "categorical", "levels": ["a", "b", "c"]},
            "age": {"kind": "numeric", "low": 0, "high": 100},
        },
        "split": {"kind": "hash", "test_share": 0.2},
        "label": {"column": "y", "kind": "binary", "positive": "yes", "negative": "no"},
    }
    (folder / "lake.yaml").write_text(yaml.safe_dump(schema))
    return folder


def source_of(lake: Path, files: list[Path] | None = None) -> Source:
    schema = find_schema(str(lake / "lake.yaml"))
    files = sorted(lake.glob("part-*.csv")) if files is None else files
    encoder = schema.encoder(normalise="none", numeric="hats(8)")
    return Source(
        f"test-{len(files)}-{files[0].name}", schema, encoder, tuple(files), None, Logistic(), False
    )


@pytest.fixture(scope="module")
def cluster(lake: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    made = Cluster(source_of(lake), *connect(None, 2, {}))
    yield made
    made.close()


def test_sums_are_those_of_one_process_bit_for_bit_after_a_worker_died_too(
    cluster: Cluster, lake: Path
) -> None:
    source = cluster.source
    storage = Storage(Coding.of(source.encoder), True, 480)
    here = load(
        source.schema, source.encoder, list(source.files), spool=lake / "spool", storage=storage
    )
    near = here.train.X.objective(here.train.y, LinearObjective, Logistic())
    far = RemoteRows(cluster, "train").objective(here.train.y, LinearObjective, Logistic())
    assert (far.n, far.dimension) == (near.n, near.dimension)
    rng = np.random.default_rng(1)
    w, W = rng.normal(size=near.dimension), rng.normal(size=(3, near.dimension))
    shift, scale, some = (
        rng.random(len(w)),
        rng.uniform(0.5, 2, len(w)),
        np.sort(rng.choice(near.n, 90, replace=False)),
    )
    blocks = source.encoder.design.blocks

    def same() -> None:
        for ask in (
            lambda o: o.gradient_sum(w, 0.3),
            lambda o: o.value_sum(W, 0.7),
            lambda o: o.within(blocks).transform(shift, scale).gradient_sum(w, 0.3),
            lambda o: o.take(some).gradient_sum(w, 0.3),
            lambda o: o.column_sum(),
        ):
            assert np.array_equal(ask(near), ask(far))

    same()
    pids = cluster.client.run(os.getpid)
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    same()
    quality = by_counts(
        RemoteRows(cluster, "test").objective(here.test.y, LinearObjective, Logistic()), w
    )
    right = np.mean((here.test.X @ w >= 0) == (np.asarray(here.test.y) > 0))
    assert quality["accuracy"] == pytest.approx(right) and 0 < quality["roc_auc"] < 1


def test_a_task_is_small_and_holds_no_cell(lake: Path) -> None:
    """Pickled by reference, with declarations and weights alone."""
    rows = (lake / "part-0.csv").read_text()
    question = Question("train", "gradient_sum", {0: ([], (np.zeros(12), 0.3))})
    told = pickle.dumps((answer, source_of(lake), question))
    assert len(told) < 34_000
    assert not any(line.split(",")[1].encode() in told for line in rows.splitlines()[1:])
    assert answer.__module__ == sizes.__module__ == "tasks.data.workers"


def test_no_text_of_a_workers_error_leaves_it(
    cluster: Cluster,
    lake: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text(f"city,age,y\na,1,yes\n{CANARY},2,no\n")
    source = source_of(lake, [broken])
    monkeypatch.setattr(workers.tempfile, "gettempdir", lambda: str(tmp_path))
    assert answer(source, Question("train", "column_sum", {0: ([], ())})) == {
        0: ("failed", "InputError")
    }
    (words,) = tmp_path.glob("dpflows-worker-*/errors-*.txt")
    assert CANARY in words.read_text() and words.stat().st_mode & 0o777 == 0o600
    assert words.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.undo()
    with pytest.raises(InputError, match="got InputError") as raised:
        Cluster(source, cluster.client)
    logs = [text for lines in cluster.client.get_worker_logs().values() for _, text in lines]
    logs += [text for _, text in cluster.client.get_scheduler_logs()]
    assert (
        CANARY
        not in f"{raised.value}{caplog.text}{logs}{raised.value.__cause__}{raised.value.__context__}"
    )


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:8786", "10.0.0.5:8786", "ucx://host:1"])
def test_a_scheduler_elsewhere_is_reached_by_tls_alone(address: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="tls://"):
        connect(address, None, {})
    with pytest.raises(InputError, match=r"engine\.ca"):
        connect("tls://10.0.0.5:8786", None, {})


def test_workers_elsewhere_behind_a_scheduler_here_need_tls_too() -> None:
    workers.refuse_open(["tcp://127.0.0.1:1", "tls://10.0.0.7:2"])
    with pytest.raises(InputError, match="with tls://"):
        workers.refuse_open(["tcp://127.0.0.1:1", "tcp://10.0.0.7:2"])


def test_without_dask_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"dpflows\[dask\]"):
        connect(None, None, {})


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler without an answer: the question is given up, and nothing is asked twice
    meanwhile.
    """

    class Silent:
        def nthreads(self) -> dict[str, int]:
            return {"tcp://127.0.0.1:1": 1}

        def submit(self, *arguments: object, **named: object) -> Silent:
            return self

        def result(self, timeout: float) -> None:
            time.sleep(timeout)
            raise TimeoutError

    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "PATIENCE", 0.05)
    monkeypatch.setattr(workers, "LOOK", 0.02)
    made = Cluster.__new__(Cluster)
    made.client, made.owner, made.alive, made.source = Silent(), {}, [], None
    with pytest.raises(Exception, match="got none in time"):
        made.ask(sizes, [0])
    assert Remote is not None
