"""Sums on the workers of a Dask cluster: the bits of one process, after a worker's death too, and
nothing private told.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import yaml

from dpcore.accounting.limits import Target
from dpcore.errors import DPFlowsError, InputError
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled
from dpcore.preprocess.coding import Coding
from dpcore.problem import Problem
from dpcore.train import plan, run
from tasks.data import workers
from tasks.data.cluster import Cluster, RemoteRows
from tasks.data.load import load
from tasks.data.scheduler import connect
from tasks.data.store import Storage, written
from tasks.data.workers import Question, Source, answer, forget, sizes
from tasks.kinds.engine import by_counts
from tasks.readers.once import glance
from tasks.readers.parts import parts_at
from tasks.schema import Schema, find_schema
from tests.tasks.data.test_scheduler import HERE, Fake

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
            lines.append(f"{city},{100 * age:.9f},{'yes' if y else 'no'}")
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
    """Workers as processes, as a training starts them."""
    pytest.importorskip("distributed")
    made = Cluster(source_of(lake), *connect(None, 2, {}))
    yield made
    made.close()


@pytest.fixture(scope="module")
def threads(lake: Path) -> Iterator[Cluster]:
    """Workers as threads of this process, by the same protocol: they start in no time."""
    distributed = pytest.importorskip("distributed")
    quick = {"processes": False, "protocol": "tcp://", "dashboard_address": None}
    place = distributed.LocalCluster(n_workers=4, threads_per_worker=1, memory_limit=0, **quick)
    made = Cluster(source_of(lake), distributed.Client(place), place)
    yield made
    made.close()


def lose_one(cluster: Cluster) -> None:
    """End a worker: kill its process, or close its thread."""
    pids = cluster.client.run(os.getpid)
    if set(pids.values()) == {os.getpid()}:
        there = {worker.address: worker for worker in cluster.client.cluster.workers.values()}
        cluster.client.sync(there[min(pids)].close)
    else:
        os.kill(next(iter(pids.values())), signal.SIGKILL)


EITHER = pytest.mark.parametrize(
    "where", ["threads", pytest.param("cluster", marks=pytest.mark.slow)]
)


@EITHER
def test_sums_are_those_of_one_process_bit_for_bit_after_a_worker_died_too(
    where: str, lake: Path, request: pytest.FixtureRequest
) -> None:
    cluster: Cluster = request.getfixturevalue(where)
    source = cluster.source
    storage = Storage(Coding.of(source.encoder), True, 480)
    here = load(
        source.schema, source.encoder, list(source.files), spool=lake / "spool", storage=storage
    )
    assert list(cluster.glances.values()) == [glance(file) for file in source.files]
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
    lose_one(cluster)
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
    threads: Cluster,
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
    from distributed import Client

    with pytest.raises(InputError, match="got InputError") as raised:
        Cluster(source, Client(threads.client.cluster))
    logs = [text for lines in threads.client.get_worker_logs().values() for _, text in lines]
    logs += [text for _, text in threads.client.get_scheduler_logs()]
    assert (
        CANARY
        not in f"{raised.value}{caplog.text}{logs}{raised.value.__cause__}{raised.value.__context__}"
    )


def gradient(cluster: Cluster) -> np.ndarray:
    sums = RemoteRows(cluster, "train").objective(np.empty(0), LinearObjective, Logistic())
    return sums.gradient_sum(np.linspace(-1.0, 1.0, sums.dimension), 0.3)


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_that_changed_before_another_worker_reads_it_ends_the_training(
    threads: Cluster, lake: Path, tmp_path: Path, changed: bool
) -> None:
    """The same number of rows, one cell another: sums of other rows would pass for a training."""
    from distributed import Client

    part = tmp_path / "part.csv"
    part.write_text((lake / "part-0.csv").read_text())
    whole = find_schema(str(lake / "lake.yaml"))
    whole = whole.model_copy(update={"split": whole.split.model_copy(update={"kind": "none"})})
    source = replace(source_of(lake, [part]), schema=whole, token=f"changed {changed}")
    there = Cluster(source, Client(threads.client.cluster))
    first = gradient(there)
    forget(source.token)  # as a worker does that dies
    if changed:
        header, row, *rows = part.read_text().splitlines()
        city, _, label = row.split(",")
        part.write_text("\n".join([header, f"{city},0.5,{label}", *rows]) + "\n")
        with pytest.raises(DPFlowsError, match="a file was changed while it trained"):
            gradient(there)
        with pytest.raises(DPFlowsError, match="a file was changed"):  # nor is it kept
            gradient(there)
    else:
        assert np.array_equal(gradient(there), first)
    there.close()


def test_no_frame_on_the_network_holds_a_row(
    threads: Cluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that driver, scheduler and workers write: declarations, weights and sums of shards."""
    from distributed import Client
    from distributed.comm import tcp

    sent: list[bytes] = []
    framed = tcp.to_frames

    async def watched(*given: Any, **named: Any) -> Any:
        frames = await framed(*given, **named)
        sent.append(b"".join(bytes(frame) for frame in frames))
        return frames

    monkeypatch.setattr(tcp, "to_frames", watched)
    source = replace(source_of(lake), token="watched")
    far = Cluster(source, Client(threads.client.cluster))
    gradient(far)
    there = b"".join(sent)
    assert len(sent) > 10 and b"gradient_sum" in there
    held = workers._held[source.token].files[0]["train"][0]
    rows: Any = held.rows
    told = [rows.table.narrow[0, :64], rows.table.fractions[0, :8], held.y[:64]]
    texts = [line.split(",")[1] for line in (lake / "part-0.csv").read_text().splitlines()[1:]]
    for cell in (*(np.ascontiguousarray(part).tobytes() for part in told), *map(str.encode, texts)):
        assert cell not in there or len(cell) < 6
    far.close()


def test_a_worker_that_is_lost_in_mid_sum_is_not_waited_for(lake: Path) -> None:
    """Its part of the question is taken back and asked of another."""
    pytest.importorskip("distributed")
    other = "tcp://127.0.0.1:2"
    there = [{**HERE, other: 1}, {other: 1}]
    cancelled: list[Any] = []

    class Half(Fake):
        """The future of one worker of two: that of the first never ends."""

        def submit(self, task: Any, *given: Any, workers: list[str], **named: Any) -> Any:
            self.asked += 1
            facts = {"test": [], "rows": "", "glance": (0, "")}
            told = {file: ("sums", {"train": [file], **facts}) for file in given[1]}

            def result(timeout: float) -> Any:
                if workers == [other]:
                    return told
                raise TimeoutError

            return SimpleNamespace(result=result, cancel=lambda: cancelled.append(workers))

    made = Cluster.__new__(Cluster)
    made.client = Half(dict, lambda: there.pop(0) if len(there) > 1 else there[0])
    made.owner, made.alive, made.source = {}, [], SimpleNamespace(files=("a", "b", "c"))
    assert {file: counts["train"] for file, counts in made.read().items()} == {
        0: [0],
        1: [1],
        2: [2],
    }
    assert cancelled and all(workers == list(HERE) for workers in cancelled)
    assert set(made.owner.values()) == {other}


def test_a_worker_keeps_rows_of_several_drivers_until_they_leave(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (
        replace(source_of(lake), token=name, folder=str(tmp_path / "own")) for name in "ab"
    )
    read: list[str] = []
    loading = workers.load
    monkeypatch.setattr(
        workers, "load", lambda *given, **named: read.append("x") or loading(*given, **named)
    )
    for source in (one, other, one):
        assert sizes(source, [0])[0][0] == "sums"
    assert len(read) == 2 and set("ab") <= set(workers._held)
    forget("a")
    assert "a" not in workers._held
    monkeypatch.setattr(workers, "IDLE", -1.0)
    sizes(one, [1])
    assert set(workers._held) == {"a"}
    forget("a")


def test_a_folder_of_a_worker_that_others_open_or_that_is_a_link_is_refused(
    lake: Path, tmp_path: Path
) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name in ("open", "link"):
        source = replace(source_of(lake), token=name, folder=str(tmp_path / name))
        assert sizes(source, [0]) == {0: ("failed", "InputError")}
        assert not list((tmp_path / "own").iterdir())


def test_a_file_without_a_row_for_training_is_no_fault_of_the_others(lake: Path) -> None:
    """As files of other blocks are; counts belong to all files together."""
    source = source_of(lake)
    found = {
        share: sizes(
            replace(source, token=str(share), schema=with_share(source.schema, share)), [0]
        )
        for share in (1e-9, 1 - 1e-9)
    }
    for token in map(str, found):
        forget(token)
    for (_, counts), expected in zip(
        (each[0] for each in found.values()), ([[200], []], [[], [200]]), strict=True
    ):
        assert [counts["train"], counts["test"]] == expected


def with_share(schema: Schema, share: float) -> Schema:
    split = schema.split.model_copy(update={"test_share": share})
    return schema.model_copy(update={"split": split})


@pytest.mark.slow
def test_no_page_shows_tasks_or_logs_and_ports_want_a_certificate(cluster: Cluster) -> None:
    from distributed import Client

    scheduler = cluster.client.cluster.scheduler
    ports = [scheduler.http_server.port]
    ports += [
        one["services"]["dashboard"] for one in cluster.client.scheduler_info()["workers"].values()
    ]
    for port in ports:
        for page in ("info/main/workers.html", "metrics", "json/counts.json", "info/logs.html"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"http://127.0.0.1:{port}/{page}", timeout=300)
    assert scheduler.address.startswith("tls://127.0.0.1")
    with pytest.raises((OSError, ValueError, TypeError)):
        Client(scheduler.address, timeout="2s")


def test_workers_read_an_object_store_by_its_own_file_system(
    threads: Cluster, lake: Path, tmp_path: Path
) -> None:
    """As a bucket is read: by URL, through a file system that a task carries without credentials."""
    from distributed import Client

    pytest.importorskip("fsspec")
    parts = parts_at(f"local://{lake}/part-*.csv")
    assert [type(part).__name__ for part in parts] == ["Remote"] * 3
    source = replace(source_of(lake), token="bucket", files=tuple(parts))
    far = Cluster(source, Client(threads.client.cluster))
    w = np.random.default_rng(2).normal(size=source.encoder.design.dimension)
    one, other = (
        RemoteRows(made, "train").objective(np.empty(0), LinearObjective, Logistic())
        for made in (threads, far)
    )
    assert np.array_equal(one.gradient_sum(w, 0.3), other.gradient_sum(w, 0.3))
    far.close()


def test_progress_is_told_file_by_file(threads: Cluster) -> None:
    told: list[int] = []
    token = written.set(told.append)
    counts = threads.read()
    written.reset(token)
    assert len(told) == 3 and told == sorted(told) and told[-1] == 600
    assert counts == threads.counts


@EITHER
def test_noise_is_drawn_once_though_a_worker_died_in_mid_training(
    where: str, request: pytest.FixtureRequest
) -> None:
    """Every release is charged once, and the weights are those of a training without the death."""
    cluster: Cluster = request.getfixturevalue(where)
    problem = Problem(
        n=480, dimension=cluster.source.encoder.design.dimension, loss=Logistic(), norm_bound=2.0
    )
    planned = plan("dp_sgd", {"steps": 12, "sampling_rate": 0.1}, problem, Target(1.0, 1e-4))

    def weights(strike: int | None) -> tuple[np.ndarray, int]:
        charged = []

        def charge() -> None:
            charged.append(len(charged))
            if len(charged) == strike:
                lose_one(cluster)

        sums = RemoteRows(cluster, "train").objective(np.empty(0), LinearObjective, Logistic())
        result = run(planned, sums, seed=0, on_charge=charge, fixed_noise_seed=3)
        return result.weights, len(charged)

    quiet, struck = weights(None), weights(6)
    assert np.array_equal(quiet[0], struck[0]) and quiet[1] == struck[1] == len(planned.events)
