"""Whether the process behind a reservation is gone: only what is certain counts."""

from __future__ import annotations

import multiprocessing
import os
import sys

import pytest

from tasks.ledger.reservation import is_gone, this_process


def test_the_running_process_is_not_gone() -> None:
    assert not is_gone(this_process())


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"started": "1"}, True),
        ({"pid": 2**22 + 1}, True),
        ({"host": "elsewhere", "pid": 2**22 + 1}, False),
        ({"namespace": "pid:[1]", "pid": 2**22 + 1}, False),
    ],
)
def test_a_reused_pid_is_gone_and_a_foreign_one_is_unknown(change: dict, gone: bool) -> None:
    assert is_gone(this_process() | change) is gone


def test_an_earlier_boot_is_gone_where_boots_have_names() -> None:
    owner = this_process()
    assert is_gone(owner | {"boot": "another"}) is bool(owner["boot"])


@pytest.mark.skipif(sys.platform == "win32", reason="zombies")
def test_a_process_that_ended_is_gone_even_before_it_is_collected() -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(this_process()))
    child.start()
    owner = answers.get()
    assert owner["pid"] == child.pid
    os.waitid(os.P_PID, owner["pid"], os.WEXITED | os.WNOWAIT)
    assert is_gone(owner)
    child.join()
    assert is_gone(owner)
