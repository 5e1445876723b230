"""Opening, reserving, closing: what each may do, on both kinds of database."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import stat
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from dpcore.accounting import ORDERS, Events
from dpcore.accounting.curves import epsilon_of
from dpcore.errors import AssumptionNotMet, BudgetExceeded, DPFlowsError, InputError
from dpcore.mechanisms import Gaussian
from dpcore.mechanisms.pairs import replaced_gaussian
from dpcore.sampling import Poisson
from tasks.ledger import Ledger
from tasks.ledger.records import UNIT
from tasks.ledger.reservation import this_process


def test_a_run_is_charged_when_reserve_returns_and_stays_charged(ledger: Ledger, events) -> None:
    opened = ledger.init("east", epsilon=1.0, delta=1e-6, adjacency="add_remove")
    before = ledger.room("east").left
    assert before == opened.budget
    reservation = ledger.reserve("east", events(100.0, 50), hashes={"config": "ab" * 32})
    cost = 50 * opened.order / (2 * 100.0**2)
    assert ledger.room("east").left == pytest.approx(before - cost, rel=1e-9)
    reservation.on_charge()
    head = reservation.commit({"weights": "0" * 64, "statement": "1" * 64})
    assert ledger.head() == head
    assert ledger.room("east").left == pytest.approx(before - cost, rel=1e-9)
    assert ledger.verify(head).ok
    assert ledger.verify(reservation.head).head_found_at == 2


def test_reading_creates_and_changes_nothing(ledger: Ledger) -> None:
    assert ledger.head() == "" and ledger.datasets() == [] and ledger.verify().records == 0
    assert ledger.room("toy", public=True) is None
    with pytest.raises(InputError, match="dpflows ledger init toy"):
        ledger.room("toy")
    if ledger.store.path:
        assert not ledger.store.path.parent.exists()


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path / "runs" / "ledger.db") as ledger:
        ledger.init("east", 1.0, 1e-6, "add_remove")
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "runs").iterdir()}
    assert modes and set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o700


def test_a_file_with_wider_rights_is_narrowed(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch(mode=0o644)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.init("east", 1.0, 1e-6, "add_remove")
    assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == 0o600


def test_a_budget_is_opened_once(ledger: Ledger) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    with pytest.raises(InputError, match="never changed"):
        ledger.init("east", 9.0, 1e-6, "add_remove")
    assert [d.epsilon for d in ledger.datasets()] == [1.0]


def test_the_order_follows_from_the_target_alone_or_is_declared(ledger: Ledger) -> None:
    """B(32) at epsilon 1, delta 1e-8 is 0.549331122794 with CKS and 0.405784492131 with Prop. 2.1
    (golden g12).
    """
    assert ledger.init("a", 1.0, 1e-8, "add_remove", order=32.0).budget == pytest.approx(
        0.549331122794, rel=1e-10
    )
    assert ledger.init(
        "b", 1.0, 1e-8, "add_remove", order=32.0, conversion="prop21"
    ).budget == pytest.approx(0.405784492131, rel=1e-10)
    free = ledger.init("c", 1.0, 1e-8, "add_remove")
    assert free.budget / free.order > 0.549331122794 / 32
    with pytest.raises(InputError, match="no order has room"):
        ledger.init("d", 1e-4, 1e-8, "add_remove")
    with pytest.raises(InputError, match="order"):
        ledger.init("d", 1.0, 1e-8, "add_remove", order=8.0)
    with pytest.raises(InputError, match="grid"):
        ledger.init("d", 1.0, 1e-8, "add_remove", order=32.5)


def test_a_full_budget_still_converts_to_its_target(ledger: Ledger, events) -> None:
    ledger.init("east", 2.0, 1e-6, "add_remove")
    admitted = 0
    with pytest.raises(BudgetExceeded) as refused:
        while True:
            ledger.reserve("east", events(10.0))
            admitted += 1
    assert admitted > 3 and refused.value.exit_code == 3
    assert refused.value.asked > refused.value.left >= 0
    assert "0 of" not in str(refused.value) and "nothing was reserved" in str(refused.value)
    assert epsilon_of(events(10.0, admitted).price(), 1e-6) <= 2.0
    head = ledger.head()
    with pytest.raises(BudgetExceeded):
        ledger.reserve("east", events(10.0))
    assert ledger.head() == head, "a refusal leaves the ledger as it was"


def test_an_unknown_price_is_refused(ledger: Ledger, events) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("east", events(1e-9))
    assert ledger.verify().entries == 0


def test_cancel_gives_back_only_before_the_first_draw(ledger: Ledger, events) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    full = ledger.room("east").left
    first = ledger.reserve("east", events(20.0))
    first.cancel()
    assert ledger.room("east").left == full
    with pytest.raises(DPFlowsError, match="retry is a new charge"):
        first.on_charge()
    second = ledger.reserve("east", events(20.0))
    second.on_charge()
    with pytest.raises(DPFlowsError, match="forfeit"):
        second.cancel()
    second.forfeit("the solver failed")
    assert ledger.room("east").left < full
    for closed in (first, second):
        with pytest.raises(DPFlowsError, match="open entry"):
            closed.commit()
    assert ledger.verify().ok


def test_leaving_the_block_cancels_or_forfeits(ledger: Ledger, events) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    full = ledger.room("east").left
    with ledger.reserve("east", events(20.0)) as untouched:
        pass
    assert untouched.state == "cancelled" and ledger.room("east").left == full
    with pytest.raises(ZeroDivisionError), ledger.reserve("east", events(20.0)) as drawn:
        drawn.on_charge()
        raise ZeroDivisionError
    assert drawn.state == "forfeited" and ledger.room("east").left < full
    assert not ledger.open_entries()


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_another_process_can_neither_draw_nor_cancel(sqlite_ledger: Ledger, events) -> None:
    sqlite_ledger.init("east", 1.0, 1e-6, "add_remove")
    reservation = sqlite_ledger.reserve("east", events(20.0))

    def child(answers) -> None:
        for action in (reservation.on_charge, reservation.cancel, reservation.commit):
            try:
                action()
                answers.put("done")
            except DPFlowsError as error:
                answers.put(str(error))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    said = [answers.get(timeout=300) for _ in range(3)]
    process.join()
    assert all("process that reserved" in words for words in said)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(reservation)
    reservation.cancel()


def test_a_reaper_leaves_the_living_alone_and_gives_nothing_back(
    sqlite_ledger: Ledger, events, monkeypatch
) -> None:
    sqlite_ledger.init("east", 1.0, 1e-6, "add_remove")
    reservation = sqlite_ledger.reserve("east", events(20.0))
    left = sqlite_ledger.room("east").left
    assert sqlite_ledger.reap(kept=()) == [] and len(sqlite_ledger.open_entries()) == 1
    monkeypatch.setattr("tasks.ledger.ledger.is_gone", lambda owner: True)
    assert sqlite_ledger.reap(kept=()) == [reservation.entry_id]
    assert sqlite_ledger.room("east").left == left and sqlite_ledger.reap(kept=()) == []
    for close in (reservation.cancel, reservation.commit):
        with pytest.raises(DPFlowsError, match="reserved -> forfeited"):
            close()


def test_the_stored_owner_alone_may_cancel(sqlite_ledger: Ledger, events, monkeypatch) -> None:
    sqlite_ledger.init("east", 1.0, 1e-6, "add_remove")
    reservation = sqlite_ledger.reserve("east", events(20.0))
    monkeypatch.setattr(
        "tasks.ledger.ledger.this_process", lambda: this_process() | {"started": "earlier"}
    )
    with pytest.raises(DPFlowsError, match="stays charged"):
        reservation.cancel()
    assert len(sqlite_ledger.open_entries()) == 1


def test_public_data_are_recorded_without_a_limit(ledger: Ledger, events) -> None:
    with pytest.raises(InputError, match="ledger init census"):
        ledger.reserve("census", events(20.0))
    ledger.reserve("census", events(0.001), public=True).commit()
    assert ledger.room("census", public=True) is None
    report = ledger.verify()
    assert (report.entries, report.records) == (1, 3)
    with pytest.raises(InputError, match="declared private"):
        ledger.reserve("census", events(20.0))


def test_a_public_flag_does_not_lift_a_budget(ledger: Ledger, events) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("east", events(0.1), public=True)


def test_rows_cannot_be_changed_or_removed(ledger: Ledger, events) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    ledger.reserve("east", events(20.0)).commit()
    statements = [
        f"{verb} {table}{tail}"
        for table in (
            "ledger_records",
            "ledger_balances",
            "ledger_events",
            "ledger_schema",
            "ledger_secret",
        )
        for verb, tail in (("DELETE FROM", ""),)
    ]
    statements += ["UPDATE ledger_records SET body = '{}'", "UPDATE ledger_balances SET units = 0"]
    for statement in statements:
        with (
            pytest.raises(DBAPIError, match="append-only"),
            ledger.store.engine.begin() as connection,
        ):
            connection.execute(text(statement))
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("budget", "run", "way_out"),
    [
        (("add_remove", "record"), ("replace_one", "record"), "adjacency=replace_one"),
        (("replace_one", "record"), ("add_remove", "user"), "unit='record'"),
        (("replace_one", "session"), ("replace_labels", "session_labels"), "unit='session'"),
    ],
)
def test_runs_that_a_budget_does_not_take(
    sqlite_ledger: Ledger, events, budget, run, way_out
) -> None:
    sqlite_ledger.init("east", 1.0, 1e-6, budget[0], unit=budget[1])
    with pytest.raises(AssumptionNotMet, match=way_out):
        sqlite_ledger.reserve("east", events(20.0, 1, *run))
    assert sqlite_ledger.verify().entries == 0


def cost_of(ledger: Ledger, dataset: str) -> float:
    return max(ledger.spent(dataset).values()) / UNIT


def test_an_add_remove_run_costs_a_replace_one_budget_four_times(
    sqlite_ledger: Ledger, events
) -> None:
    """Twice the sensitivity of a clipped sum: the Rényi divergence of a Gaussian grows with its
    square.
    """
    opened = sqlite_ledger.init("swap", 1.0, 1e-6, "replace_one")
    sqlite_ledger.reserve("swap", events(50.0)).commit()
    assert cost_of(sqlite_ledger, "swap") == pytest.approx(
        4 * opened.order / (2 * 50.0**2), rel=1e-9
    )


def test_a_poisson_batch_pays_the_exact_pair_under_replace_one(sqlite_ledger: Ledger) -> None:
    """With and without the record both contributions lie in a ball of radius C: the pair of C / sigma."""
    q, sigma = 0.05, 20.0
    opened = sqlite_ledger.init("swap", 1.0, 1e-6, "replace_one")
    place = list(ORDERS).index(opened.order)
    add_remove = Events.of([Poisson(q).amplify(Gaussian(1.0, sigma))], adjacency="add_remove")
    sqlite_ledger.reserve("swap", add_remove).commit()
    cost = cost_of(sqlite_ledger, "swap")
    assert cost == pytest.approx(replaced_gaussian(ORDERS, 1.0 / sigma, q)[place], rel=1e-9)
    assert cost > 1.5 * add_remove.price()[place]
    assert sqlite_ledger.verify().ok


def test_a_budget_for_labels_takes_whole_sessions_at_their_replace_one_price(
    sqlite_ledger: Ledger, events
) -> None:
    opened = sqlite_ledger.init("clicks", 1.0, 1e-6, "replace_labels", unit="session_labels")
    for number, run in enumerate(
        [("replace_labels", "session_labels"), ("replace_one", "session")], start=1
    ):
        sqlite_ledger.reserve("clicks", events(50.0, 1, *run)).commit()
        assert cost_of(sqlite_ledger, "clicks") == pytest.approx(
            number * opened.order / (2 * 50.0**2), rel=1e-9
        )
    sqlite_ledger.reserve("clicks", events(50.0, 1, "add_remove", "session")).commit()
    assert cost_of(sqlite_ledger, "clicks") == pytest.approx(
        (2 + 4) * opened.order / (2 * 50.0**2), rel=1e-9
    )
    with pytest.raises(InputError, match="session_labels"):
        sqlite_ledger.init("other", 1.0, 1e-6, "replace_labels")


def test_a_period_is_trained_once(ledger: Ledger, events) -> None:
    ledger.init("east", 1.0, 1e-6, "add_remove")
    ledger.reserve("east", events(20.0), period="2026-W03").cancel()
    assert ledger.period_state("east", "2026-W03") is None
    ledger.reserve("east", events(20.0), period="2026-W03").commit()
    assert ledger.period_state("east", "2026-W03") == "committed"
    with pytest.raises(InputError, match="committed"):
        ledger.reserve("east", events(20.0), period="2026-W03")


def test_one_file_under_two_names_gives_a_warning(
    ledger: Ledger, events, tmp_path: Path, caplog
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    for name in ("east", "west"):
        ledger.init(name, 1.0, 1e-6, "add_remove")
    mark = ledger.fingerprint([table])
    assert ledger.reserve("east", events(20.0), fingerprint=mark).notes == ()
    [note] = ledger.reserve("west", events(20.0), fingerprint=mark).notes
    assert "'east'" in note and note in caplog.text
    table.write_text("a,b\n1,3\n")
    assert ledger.reserve("west", events(20.0), fingerprint=ledger.fingerprint([table])).notes == ()


def test_ten_spends_of_a_tenth_fit_and_an_eleventh_does_not(
    ledger: Ledger, events, shared: Path
) -> None:
    """Case 08, expectation 7, with every price at the order of the data set equal to the spend."""
    case = json.loads((shared / "cases" / "08-ledger-retraining" / "pure_spends.json").read_text())
    order = 32.0
    opened = ledger.init(
        "pure", case["limit"] + 11.5129254649702 / 31, 1e-5, "add_remove", "record", "prop21", order
    )
    assert opened.budget == pytest.approx(case["limit"], rel=1e-12)
    for spend in case["spends"]:
        ledger.reserve("pure", events((order / 2 / spend) ** 0.5))
    with pytest.raises(BudgetExceeded):
        ledger.reserve("pure", events((order / 2 / 0.1) ** 0.5))
    assert ledger.spent("pure")["all"] / UNIT == pytest.approx(1.0, rel=1e-9)
