"""What leaves a step that failed: its kind, never the words of what went wrong."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import pytest
from cloudpickle import dumps
from prefect import flow

from dpcore.errors import InputError
from flows.steps import StepFailed, step

WORD = "zebrafinch"


def reads_a_row() -> None:
    try:
        float(WORD)
    except ValueError as error:
        raise InputError(f"Expected a number, got {WORD}") from error


@flow(name="one step", persist_result=False)
def one_step() -> Any:
    return step(reads_a_row, "read the records")()


def test_a_failed_step_keeps_no_other_exception_beside_its_own() -> None:
    """Where Dask was imported, its tblib pickles causes and contexts of every exception."""
    with pytest.raises(StepFailed) as caught:
        step(reads_a_row, "read the records").fn()
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert isinstance(caught.value.error, InputError)


def test_an_exception_as_dask_pickles_it_says_no_cell(server: str) -> None:
    support = pytest.importorskip("tblib.pickling_support")
    with pytest.raises(StepFailed) as caught:
        one_step()
    parts = support.pickle_exception(caught.value)[1]
    kept = dumps([part for part in parts if not isinstance(part, TracebackType)])
    assert b"read the records" in kept and WORD.encode() not in kept
