"""Reaching a scheduler: addresses without certificates are refused, a missing library is named, and
nobody waits for ever for workers that do not answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dpcore.errors import DPFlowsError, InputError
from tasks.data import cluster as driver
from tasks.data.cluster import Cluster, refuse_open
from tasks.data.scheduler import connect

SECRET = "kanarienvogel-4712"


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:8786", "10.0.0.5:8786", "ucx://host:1"])
def test_a_scheduler_elsewhere_is_reached_by_tls_alone(address: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="tls://"):
        connect(address, None, {})
    with pytest.raises(InputError, match=r"engine\.ca"):
        connect("tls://10.0.0.5:8786", None, {})


def test_workers_elsewhere_behind_a_scheduler_here_need_tls_too() -> None:
    refuse_open(["tcp://127.0.0.1:1", "tls://10.0.0.7:2"])
    with pytest.raises(InputError, match="with tls://"):
        refuse_open(["tcp://127.0.0.1:1", "tcp://10.0.0.7:2"])


def test_without_dask_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"dpflows\[dask\]"):
        connect(None, None, {})


class Fake:
    """A client whose workers do as ``result`` says."""

    def __init__(self, result: Callable[[], Any], there: Callable[[], dict[str, int]]) -> None:
        self.found, self.there, self.asked = result, there, 0

    def nthreads(self) -> dict[str, int]:
        return self.there()

    def submit(self, *arguments: object, **named: object) -> Fake:
        self.asked += 1
        return self

    def result(self, timeout: float) -> Any:
        return self.found()

    def cancel(self, *futures: object) -> None: ...


def raising(error: type[Exception]) -> Callable[[], Any]:
    def raised() -> Any:
        time.sleep(0.02)
        raise error(SECRET)

    return raised


HERE = {"tcp://127.0.0.1:1": 1}


@pytest.mark.parametrize(
    ("result", "there", "words", "asked"),
    [
        (raising(TimeoutError), lambda: HERE, "got none in time", 1),
        (raising(RuntimeError), lambda: HERE, "Expected workers that stay", driver.TRIES),
        (raising(RuntimeError), raising(OSError), "scheduler to answer, got OSError", 0),
        (raising(TimeoutError), dict, "got none; start some", 0),
    ],
    ids=["silent", "lost again and again", "no scheduler", "no workers"],
)
def test_nobody_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
    result: Callable[[], Any],
    there: Callable[[], dict[str, int]],
    words: str,
    asked: int,
) -> None:
    """The question is given up, in a line without a word of the error's own."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(driver, "PATIENCE", 0.05)
    made = Cluster.__new__(Cluster)
    made.client, made.owner, made.alive = Fake(result, there), {}, []
    made.source = SimpleNamespace(files=("a",))
    with pytest.raises(DPFlowsError, match=words) as raised:
        made.read()
    assert made.client.asked == asked and SECRET not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
