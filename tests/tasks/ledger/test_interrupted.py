"""Trainings that are interrupted or killed at any line from the reservation to the commit: what was
not drawn costs nothing, what was drawn is charged once, and a model that lies whole on disk is not
lost.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from flows.commands.recover import settle
from flows.train import reserved
from tasks.ledger import Ledger, reservation
from tasks.record import outbox
from tests.tasks.ledger.conftest import gaussian

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

WATCHED = tuple(
    f"/tasks/{name}.py"
    for name in ("ledger/ledger", "ledger/reservation", "ledger/chain", "record/outbox")
)
HASHES = {"weights": "0" * 64}


def stretch(ledger: Ledger, folder: Path, drawn: list[int]) -> None:
    """What a training does between its reservation and the commit, with nothing to compute."""
    with reserved(ledger.reserve("east", gaussian(50.0)), folder) as held:
        held.on_charge()
        drawn.append(1)
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "weights.npz").write_bytes(b"1")
        pending = outbox.Pending(
            held.entry_id, "east", "", 1e-6, 1.0, 1, {}, {}, HASHES, reservation.this_process()
        )
        held.keeps(lambda: outbox.hashes_of(folder, held.entry_id))
        pending.write(folder)
        held.commit(HASHES)


class At:
    """Calls ``act`` at line number ``place`` of the watched files; counts them without."""

    def __init__(self, place: int, act: Callable[[], None]) -> None:
        self.place, self.act, self.count = place, act, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.place:
                sys.settrace(None)
                self.act()
        return self

    def run(self, folder: Path, drawn: list[int]) -> None:
        """The stretch on the ledger in ``folder``, watched until its own block is left."""
        with Ledger(folder / "ledger.db") as ledger:
            sys.settrace(self)
            try:
                stretch(ledger, folder / "run", drawn)
            finally:
                sys.settrace(None)


def stop() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def opened(folder: Path) -> Path:
    folder.mkdir()
    with Ledger(folder / "ledger.db") as ledger:
        ledger.init("east", 3.0, 1e-6, "add_remove")
    return folder


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many lines the stretch has."""
    for name in "first", "second":  # the first fills what is remembered of the process
        at = At(0, stop)
        at.run(opened(tmp_path_factory.mktemp("whole") / name), [])
    assert at.count > 150
    return at.count


def found(folder: Path) -> tuple[Ledger, str | None, float, bool]:
    """The ledger, the state of its one entry, what is spent, and whether its first draw is on
    record.
    """
    ledger = Ledger(folder / "ledger.db")
    assert ledger.verify().ok
    entry = max(entries(ledger), default="none")
    spent = sum(ledger.spent("east").values())
    return ledger, ledger.state_of(entry), spent, ledger.is_drawn(entry)


def entries(ledger: Ledger) -> set[str]:
    with ledger.store.reading() as connection:
        assert connection is not None
        rows = connection.exec_driver_sql("SELECT entry FROM ledger_records WHERE entry <> ''")
        return {entry for (entry,) in rows}


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 13])
def test_an_interrupted_stretch_costs_nothing_before_the_draw_and_loses_no_whole_model(
    tmp_path: Path, lines: int, every: int
) -> None:
    states = []
    for place in range(1, lines + 1, every):
        folder, drawn = opened(tmp_path / str(place)), list[int]()
        with pytest.raises(KeyboardInterrupt):
            At(place, stop).run(folder, drawn)
        ledger, state, spent, recorded = found(folder)
        ledger.close()
        whole = outbox.Pending.read(folder / "run") is not None
        assert recorded or not drawn, place
        assert (spent > 0) is (state not in (None, "cancelled")), (place, state)
        if not recorded:
            assert state in (None, "cancelled"), (place, state)
        assert (state == "committed") is whole, (place, state)
        if state in (None, "cancelled", "forfeited"):
            assert not (folder / "run").exists(), (place, state)
        states.append(state)
    assert {None, "cancelled", "forfeited", "committed"} <= set(states)
    # Between the record of the first draw and its count in this process: it stays reserved, and the
    # next training forfeits it.
    assert states.count("reserved") <= 1


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 31])
def test_a_killed_stretch_is_charged_once_and_a_whole_model_is_committed(
    tmp_path: Path, lines: int, every: int
) -> None:
    outcomes = set()
    for place in range(1, lines + 1, every):
        folder = opened(tmp_path / str(place))
        child = os.fork()
        if child == 0:
            At(place, kill).run(folder, [])
            os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        ledger, state, spent, recorded = found(folder)
        with ledger:
            assert state in (None, "reserved", "committed")
            assert (spent > 0) is (state is not None)
            pending = outbox.Pending.read(folder / "run")
            assert state != "committed" or pending is not None
            if pending is not None:
                assert recorded
                settle(ledger, pending)
                assert settle(ledger, pending) == ""
            ledger.reap(kept=())
            [again] = {one: ledger.state_of(one) for one in entries(ledger)}.values() or [None]
            assert again == ("committed" if pending else "forfeited" if state else None)
            assert sum(ledger.spent("east").values()) == spent and ledger.verify().ok
            outcomes.add(again)
    assert outcomes == {None, "forfeited", "committed"}


def test_what_nobody_holds_is_ended_with_the_ledgers_own_block(tmp_path: Path) -> None:
    folder = opened(tmp_path / "0")
    with pytest.raises(KeyboardInterrupt), Ledger(folder / "ledger.db") as ledger:
        untouched, drawn = (ledger.reserve("east", gaussian(50.0)) for _ in range(2))
        drawn.on_charge()
        raise KeyboardInterrupt
    assert (untouched.state, drawn.state) == ("cancelled", "forfeited")
    with Ledger(folder / "ledger.db") as ledger:
        assert ledger.open_entries() == [] and ledger.verify().ok


def test_a_ledger_that_does_not_answer_leaves_the_first_error(tmp_path: Path) -> None:
    folder = opened(tmp_path / "0")
    with pytest.raises(ZeroDivisionError), Ledger(folder / "ledger.db") as ledger:
        ledger.reserve("east", gaussian(50.0))
        (folder / "ledger.db").write_bytes(b"no database")
        raise ZeroDivisionError


def test_the_reaper_says_that_no_draw_is_on_record(tmp_path: Path) -> None:
    folder = opened(tmp_path / "0")
    for draw in (False, True):
        child = os.fork()
        if child == 0:
            held = Ledger(folder / "ledger.db").reserve("east", gaussian(50.0))
            if draw:
                held.on_charge()
            kill()
        os.waitpid(child, 0)
    with Ledger(folder / "ledger.db") as ledger:
        first, second = ledger.reap(kept=())
        with ledger.store.reading() as connection:
            assert connection is not None
            bodies = dict(
                connection.exec_driver_sql(
                    "SELECT entry, body FROM ledger_records WHERE kind = 'forfeited'"
                ).all()
            )
    assert "and no draw is on record" in bodies[first]
    assert "no draw" not in bodies[second]
