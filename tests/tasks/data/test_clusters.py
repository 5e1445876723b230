"""Schedulers and workers as processes of their own, reached by TLS: what goes through, what is
refused, and what is left when one of them, or the driver, is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import psutil
import pytest

from dpcore.errors import DPFlowsError, InputError
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled
from tasks.data import cluster as driver
from tasks.data import workers
from tasks.data.cluster import Cluster, RemoteRows
from tasks.data.scheduler import connect
from tasks.ledger import Ledger
from tests.tasks.data.test_kills import states, wait_for
from tests.tasks.data.test_workers import CANARY, source_of
from tests.tasks.data.test_workers import lake as lake

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.slow


def certificates(folder: Path) -> dict[str, str]:
    """An authority of a test and a certificate of it, as files."""
    made = distributed.Security.temporary()
    folder.mkdir()
    found = {}
    for name, text in (
        ("ca", made.tls_ca_file),
        ("cert", made.tls_client_cert),
        ("key", made.tls_client_key),
    ):
        (folder / f"{name}.pem").write_text(text)
        found[name] = str(folder / f"{name}.pem")
    return found


@dataclass
class Elsewhere:
    address: str
    tls: dict[str, str]
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)


@pytest.fixture
def elsewhere(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Elsewhere]:
    """A scheduler and two workers that take TLS alone."""
    tls = certificates(tmp_path / "tls")
    given = [f"--tls-ca-file={tls['ca']}", f"--tls-cert={tls['cert']}", f"--tls-key={tls['key']}"]
    place = tmp_path / "scheduler.json"
    call = [sys.executable, "-m", "distributed.cli"]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = clean_environment | {"TMPDIR": str(tmp_path)}
    scheduler = subprocess.Popen(
        [
            *call[:-1],
            "distributed.cli.dask_scheduler",
            *given,
            "--protocol=tls",
            "--host=127.0.0.1",
            "--port=0",
            "--no-dashboard",
            f"--scheduler-file={place}",
        ],
        env=environment,
        **pipes,
    )
    wait_for(lambda: place.exists() and place.read_text().endswith("}"), scheduler)
    found = Elsewhere(json.loads(place.read_text())["address"], tls, scheduler)
    found.workers = [
        subprocess.Popen(
            [
                *call[:-1],
                "distributed.cli.dask_worker",
                found.address,
                *given,
                "--no-nanny",
                "--no-dashboard",
                "--nthreads=1",
                "--memory-limit=0",
            ],
            env=environment,
            **pipes,
        )
        for _ in range(2)
    ]
    yield found
    for process in (*found.workers, scheduler):
        process.kill()
        process.wait()


def held() -> int:
    return len(workers._held)


def sums_of(lake: Path, place: Elsewhere) -> tuple[Cluster, Any]:
    client, owned = connect(place.address, None, place.tls)
    client.wait_for_workers(2, timeout=300)
    made = Cluster(replace(source_of(lake), token="elsewhere"), client, owned)
    return made, RemoteRows(made, "train").objective(np.empty(0), LinearObjective, Logistic())


def test_a_scheduler_elsewhere_answers_by_tls_and_to_its_own_certificates_alone(
    lake: Path, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.use(False)
    made, sums = sums_of(lake, elsewhere)
    w = np.random.default_rng(0).normal(size=sums.dimension)
    whole = sums.gradient_sum(w, 0.3)
    assert sums.n > 400 and all(name.startswith("tls://") for name in made.alive)
    os.kill(elsewhere.workers[0].pid, signal.SIGKILL)
    assert np.array_equal(sums.gradient_sum(w, 0.3), whole)
    made.close()
    with connect(elsewhere.address, None, elsewhere.tls)[0] as client:
        assert set(client.run(held).values()) == {0}  # the rows went with their driver

    monkeypatch.setattr(driver, "CONNECT", 2.0)
    others = certificates(tmp_path / "others")
    for address, tls, words in (
        (elsewhere.address, others, "correct engine.address and the certificates"),
        (elsewhere.address.replace("tls", "tcp"), {}, "correct engine.address"),
        (elsewhere.address, elsewhere.tls | {"key": str(tmp_path / "none")}, r"engine\.key"),
    ):
        with pytest.raises((DPFlowsError, InputError), match=words) as refused:
            connect(address, None, tls)
        assert "\n" not in str(refused.value)


def test_a_scheduler_that_is_lost_ends_the_question(lake: Path, elsewhere: Elsewhere) -> None:
    made, sums = sums_of(lake, elsewhere)
    w = np.zeros(sums.dimension)
    Timer(0.3, elsewhere.scheduler.kill).start()
    started = time.monotonic()
    with pytest.raises(DPFlowsError, match="Dask scheduler to answer") as lost:
        while time.monotonic() - started < 180:
            sums.gradient_sum(w, 0.3)
    assert time.monotonic() - started < 150 and CANARY not in str(lost.value)
    made.close()


DRIVER = """
import sys
from tasks import training
from tasks.config import load_config
from tasks.ledger import Ledger

if __name__ == "__main__":
    job = training.prepare(load_config(None, sys.argv[2:]))
    planned = training.plan_training(job)
    run = training.read_run(job, planned)
    with Ledger(sys.argv[1]) as ledger:
        reservation = training.reserve_budget(job, planned, ledger)
        told = lambda done, total: done == 3 and print("drawing", flush=True)
        training.fit_model(job, planned, run.sums, reservation, told)
"""


def test_a_driver_that_is_lost_is_charged_once_and_leaves_no_process(
    small: Path, clean_environment: dict[str, str]
) -> None:
    """The process that has the door is killed between two releases."""
    home = small.parent / "home"
    url = f"sqlite:///{small.parent / 'ledger.db'}"
    with Ledger(url) as ledger:
        ledger.init("small", 9.0, 1e-3, "add_remove")
    script = small.with_name("driver.py")
    script.write_text(DRIVER)
    settings = [f"data.name={small}", f"data.path={small.with_name('small.csv')}"]
    settings += ["privacy.delta=1e-4", "algorithm.name=dp_sgd", "algorithm.steps=3000"]
    settings += ["engine.kind=dask", "engine.workers=2"]
    process = subprocess.Popen(
        [sys.executable, str(script), url, *settings],
        env=clean_environment | {"DPFLOWS_HOME": str(home)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == "drawing\n", process.stderr
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=300)
    assert not alive and not list((home / "workers" / "rows").iterdir())
    assert states(small) == ["reserved"]  # charged in full, whatever was drawn
    with Ledger(url) as ledger:
        ledger.reap(kept=())
    assert states(small) == ["forfeited"]
