"""Trainings that are killed between the ledger's commit and MLflow: ``dpflows recover`` stores what
was paid for.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpcore.errors import InputError
from flows import server
from flows.cli import run
from flows.commands import recover
from flows.commands.audit import read
from flows.compare import reserve_all
from flows.retrain import _steps
from tasks import training
from tasks.audit import audit
from tasks.home import Home
from tasks.ledger import Ledger, Reservation
from tasks.ledger.reservation import _started, this_process
from tasks.options.noisy_metric import mechanism_of
from tasks.record import MODEL, OWNER, outbox, tracking
from tasks.record import run as record_run
from tasks.retraining import RetrainConfig
from tests.tasks.release.runs import World

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

ROOT = Path(__file__).resolve().parents[2]
# Where a training is killed: what is called there, and what recovery says of it.
POINTS: dict[str, tuple[Any, str]] = {
    "before the commit": (Reservation, "commit"),
    "after the commit": (training, "measure"),
    "with half of the metrics": (tracking, "log_metrics"),
    "before the model": (record_run, "log_model"),
    "before the folder is removed": (outbox, "remove"),
    "before the run is closed": (tracking, "close_run"),
}


@pytest.fixture(autouse=True)
def nothing_waits(world: World) -> None:
    """Tests of other files share the home, and this process, which lives, may own what they left."""
    for folder in world.home.outbox.iterdir():
        shutil.rmtree(folder)


def killed_training(world: World, place: tuple[Any, str], metric: bool, call: int) -> None:
    goes_on = getattr(*place)
    left = [call]

    def die(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0]:
            return goes_on(*given, **named)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(*place, die)
    world.train(
        world.config(
            **({"evaluate": {"release": {"metric": "accuracy", "epsilon": 0.5}}} if metric else {})
        )
    )


def run_and_kill(world: World, place: tuple[Any, str], metric: bool = False, call: int = 1) -> str:
    """The run of a training that was killed when it came to ``place`` for the ``call``-th time."""
    before = {path.name for path in world.home.outbox.iterdir()}
    child = multiprocessing.get_context("fork").Process(
        target=killed_training, args=(world, place, metric, call)
    )
    child.start()
    child.join(timeout=300)
    assert child.exitcode == -signal.SIGKILL
    left = {path.name for path in world.home.outbox.iterdir()} - before
    if left:
        return left.pop()
    client = world.client
    experiment = client.get_experiment_by_name("tests of releases").experiment_id
    return str(client.search_runs([experiment], max_results=1)[0].info.run_id)


def recovered(world: World, run_id: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["recover", run_id, "--json"]) == 0
    [answer] = json.loads(capsys.readouterr().out)["runs"]
    return answer


def require_whole(world: World, run_id: str) -> None:
    """The run is as one that nobody killed."""
    found = world.client.get_run(run_id)
    assert found.info.status == "FINISHED"
    assert not (world.home.outbox / run_id).exists()
    report = audit(read(world.client, run_id, world.ledger_url))
    assert not report.blocked, [finding.line() for finding in report.findings]
    for key in found.data.metrics:
        steps = [point.step for point in world.client.get_metric_history(run_id, key)]
        assert len(steps) == len(set(steps)), f"{key} was written twice"


def check(
    world: World, point: str, capsys: pytest.CaptureFixture[str], metric: bool = False
) -> None:
    run_id = run_and_kill(world, POINTS[point], metric)
    if point == "before the run is closed":
        assert run_id not in outbox.words(world.home)  # others may wait there
        tracking.close_stale_runs(world.client)
        # A run of the helper has no tag of its process; one of the flow has.
        require_whole(world, run_id)
        return
    assert run_id in outbox.words(world.home)
    answer = recovered(world, run_id, capsys)
    assert answer["outcome"] == "recovered"
    assert ("committed now" in answer["note"]) == (point == "before the commit")
    if metric and point == "after the commit":
        # The noisy metric was never drawn: the model is stored, and can be released without it.
        assert (
            "never drawn (nothing was reserved for it): the model can be released without it"
            in answer["note"]
        )
        findings = audit(read(world.client, run_id, world.ledger_url)).findings
        assert "metric_not_drawn" in {finding.code for finding in findings}
    require_whole(world, run_id)


@pytest.mark.parametrize(
    "point", [pytest.param("before the commit", marks=pytest.mark.slow), "before the model"]
)
def test_what_was_paid_for_is_stored(
    world: World, point: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(world, point, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [point for point in POINTS if point not in ("before the commit", "before the model")]
)
@pytest.mark.parametrize("metric", [False, True])
def test_what_was_paid_for_is_stored_wherever_it_was_killed(
    world: World, point: str, metric: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    check(world, point, capsys, metric)


@pytest.mark.slow
def test_a_later_training_keeps_what_waits_and_says_so(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_and_kill(world, POINTS["before the commit"])
    world.train()
    with Ledger(world.ledger_url) as ledger:
        assert len(ledger.open_entries()) == 1, (
            "an entry whose result lies on disk is not forfeited"
        )
    assert "dpflows recover" in outbox.words(world.home)
    assert recovered(world, run_id, capsys)["outcome"] == "recovered"
    require_whole(world, run_id)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model/weights.npz", "privacy/statement.json", "config.json"])
def test_a_changed_file_is_kept_and_named(
    world: World, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_and_kill(world, POINTS["after the commit"])
    path = world.home.outbox / run_id / name
    path.write_bytes(path.read_bytes() + b" ")
    assert run(["recover", run_id]) == 1
    assert f"{run_id}: kept: Expected {name} as the training wrote it" in capsys.readouterr().out
    assert path.exists()
    outbox.remove(world.home.outbox / run_id)


def test_an_unfinished_folder_is_named_and_left(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world.home.outbox / "half"
    (folder / "model").mkdir(parents=True)
    assert run(["recover"]) == 0
    assert "half: not finished" in capsys.readouterr().out
    assert run(["recover", "half"]) == 2
    (folder / "model").rmdir()
    folder.rmdir()


def test_a_noisy_metric_that_lies_on_disk_is_committed_and_not_drawn_again(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_and_kill(world, (Reservation, "commit"), metric=True, call=2)
    with Ledger(world.ledger_url) as ledger:
        [open_] = ledger.open_entries()
        before = ledger.spent("small")
        ledger.reap(kept=outbox.entries())
        assert ledger.state_of(open_.entry) == "reserved"
    answer = recovered(world, run_id, capsys)
    assert answer["note"].startswith("its noisy metric is committed now")
    with Ledger(world.ledger_url) as ledger:
        assert ledger.state_of(open_.entry) == "committed" and ledger.spent("small") == before
    require_whole(world, run_id)
    assert "released.accuracy" in world.client.get_run(run_id).data.metrics


@pytest.mark.parametrize("metric", [False, True])
def test_an_interruption_before_a_commit_loses_nothing_that_is_paid_for(
    world: World,
    metric: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real, calls = Reservation.commit, list[str]()

    def stopped(self: Reservation, hashes: dict[str, str] | None = None) -> str:
        calls.append(self.entry_id)
        if len(calls) == 1 + metric:
            raise KeyboardInterrupt
        return real(self, hashes)

    evaluate = {"release": {"metric": "accuracy", "epsilon": 0.5}} if metric else {}
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Reservation, "commit", stopped)
        world.train(world.config(evaluate=evaluate))
    with Ledger(world.ledger_url) as ledger:
        assert [ledger.state_of(entry) for entry in calls] == ["committed"] * (2 + metric)
        assert len(set(calls)) == 1 + metric
    [folder] = [path for path, one in outbox.waiting(world.home) if one.entry == calls[0]]
    assert recovered(world, folder.name, capsys)["outcome"] == "recovered"
    require_whole(world, folder.name)


def test_an_interruption_before_the_block_gives_the_budget_back(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger(world.ledger_url) as ledger:
        before = sum(ledger.spent("small").values())

    def stopped(self: Reservation) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Reservation, "__enter__", stopped)
        world.train()
    with Ledger(world.ledger_url) as ledger:
        assert ledger.open_entries() == []
        assert sum(ledger.spent("small").values()) == before
    assert "nothing was drawn, so nothing was spent" in caplog.text


def said(capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["recover"]) == 0
    return capsys.readouterr().out


def test_half_a_result_is_settled_once_and_removed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_and_kill(world, (outbox.Pending, "write"))
    begun = outbox.Begun.read(world.home.outbox / run_id)
    assert begun is not None
    told = said(capsys)
    assert f"{run_id}: removed: its process ended before its result was whole" in told
    assert f"entry {begun.entry} of 'small' is forfeited and stays charged in full" in told
    assert not (world.home.outbox / run_id).exists()
    with Ledger(world.ledger_url) as ledger:
        assert ledger.state_of(begun.entry) == "forfeited"
    assert said(capsys) == "Nothing waits to be recovered.\n"


def test_a_whole_result_whose_entry_is_forfeited_is_named_once_and_left(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_and_kill(world, POINTS["before the commit"])
    with Ledger(world.ledger_url) as ledger:
        [entry] = ledger.reap(kept=())  # as one does that has another home
    assert run_id in outbox.words(world.home)
    told = said(capsys)
    assert f"{run_id}: forfeited: entry {entry} of 'small' is forfeited: it stays charged" in told
    assert said(capsys) == "Nothing waits to be recovered.\n"
    assert run_id not in outbox.words(world.home)
    assert (world.home.outbox / run_id / "model" / "weights.npz").is_file()
    with Ledger(world.ledger_url) as ledger:
        assert ledger.state_of(entry) == "forfeited"
    shutil.rmtree(world.home.outbox / run_id)


def reserved_by_comparison(world: World) -> None:
    job = training.prepare(world.config())
    made: Any = SimpleNamespace(
        config=SimpleNamespace(model_dump_json=lambda: "{}"),
        private_jobs={"small": job},
        rows=SimpleNamespace(read_of=lambda name: None),
    )
    charge: Any = SimpleNamespace(parts=[])
    with ExitStack() as stack:
        reserve_all(stack, made, {"small": charge}, world.home)


def looked_at_by_retraining(world: World) -> None:
    config = RetrainConfig.model_validate(
        {
            "schema_version": 1,
            "training": world.config().model_dump(exclude_unset=True),
            "schedule": {"every": "day"},
        }
    )
    with suppress(InputError):  # after its first look at the ledger: data without days
        _steps(config, datetime(2026, 1, 1, tzinfo=UTC), world.home)


def test_recoveries_of_a_home_take_turns(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What waits is looked up by the one whose turn it is: two would store one model twice."""
    order: list[Any] = []

    @contextmanager
    def turn(home: Home, what: str) -> Any:
        order.append((home, what))
        yield
        order.append("over")

    monkeypatch.setattr(recover, "one_at_a_time", turn)
    monkeypatch.setattr(recover, "asked", lambda home, run: order.append("asked") or [])
    assert run(["recover"]) == 0
    assert order == [(world.home, "recover"), "asked", "over"]


def test_an_entry_that_the_statement_does_not_name_is_not_committed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (run_and_kill(world, POINTS["before the commit"]) for _ in range(2))
    folder = world.home.outbox / first
    own, other = (outbox.Pending.read(world.home.outbox / one) for one in (first, second))
    assert own is not None and other is not None
    replace(own, entry=other.entry).write(folder)
    assert run(["recover", first]) == 1
    assert "Expected the entry that the statement names" in capsys.readouterr().out
    with Ledger(world.ledger_url) as ledger:
        assert ledger.state_of(other.entry) == "reserved"
    own.write(folder)
    for one in (first, second):
        recovered(world, one, capsys)
        require_whole(world, one)


@pytest.mark.parametrize("other", [reserved_by_comparison, looked_at_by_retraining])
def test_what_waits_to_be_recovered_is_forfeited_by_nobody(
    world: World, capsys: pytest.CaptureFixture[str], other: Callable[[World], None]
) -> None:
    run_id = run_and_kill(world, POINTS["before the commit"])
    pending = outbox.Pending.read(world.home.outbox / run_id)
    other(world)
    with Ledger(world.ledger_url) as ledger:
        assert ledger.state_of(pending.entry) == "reserved"
    recovered(world, run_id, capsys)
    require_whole(world, run_id)


def test_folders_that_say_nothing_of_themselves_are_judged_by_their_run(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of comparisons, and of earlier versions: the run knows its process."""
    client = world.client
    experiment = tracking.ensure_experiment(client, world.home, "folders")
    alive, dead, stored = (tracking.open_run(client, experiment, None, {}) for _ in range(3))
    for name in (dead, stored):
        client.set_tag(name, OWNER, json.dumps(this_process() | {"started": "1"}))
    client.set_tag(stored, MODEL, "models:/m-1")
    for name in (alive, dead, stored):
        (world.home.outbox / name).mkdir()
    told = said(capsys)
    assert f"{dead}: removed: its process ended before its result was whole; what it was" in told
    assert f"{stored}: removed: everything of it is in MLflow" in told
    assert f"{alive}: not finished" in told
    assert said(capsys).startswith(f"{alive}: not finished")
    (world.home.outbox / dead).mkdir()
    (world.home.outbox / dead / outbox.PENDING).write_text('{"schema_version": 2}')
    assert f"{dead}: not finished" in said(capsys), "a result of another version may be whole"
    for name in (alive, dead):
        shutil.rmtree(world.home.outbox / name)


def test_half_a_result_whose_ledger_does_not_answer_is_kept(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world.home.outbox / "gone"
    owner = this_process() | {"started": "1"}
    config = json.loads(world.config().canonical())
    config["data"]["name"] = str(world.folder / "lost.yaml")
    outbox.Begun("entry", "small", owner, config).write(folder)
    assert run(["recover"]) == 1
    assert "gone: kept: " in capsys.readouterr().out
    shutil.rmtree(folder)


def test_a_run_that_goes_on_is_left_alone(world: World) -> None:
    """The parent of the tests lives as long as they do."""
    parent = this_process() | {"pid": os.getppid(), "started": _started(os.getppid())}
    folder = world.home.outbox / "alive"
    folder.mkdir()
    for owner, waits in ((parent, False), (parent | {"started": "1"}, True)):
        outbox.Pending("entry", "small", "title", 1e-6, 1.0, 1, {}, {}, {}, owner).write(folder)
        assert (folder in [path for path, _ in outbox.waiting(world.home)]) is waits
    outbox.remove(folder)


def test_a_metric_that_was_never_drawn_is_told_from_one_that_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry holds the hash of the weights that it is about, and the first draw is a record."""
    monkeypatch.setattr("tests.tasks.release.runs.release_metrics", lambda *_: {})
    config = world.config(evaluate={"release": {"metric": "accuracy", "epsilon": 0.5}})
    run_id = world.train(config)

    def found() -> dict[str, str]:
        return {
            one.code: one.what
            for one in audit(read(world.client, run_id, world.ledger_url)).findings
        }

    assert "nothing was reserved" in found()["metric_not_drawn"]
    job = training.prepare(config)
    statement = read(world.client, run_id, world.ledger_url).statement
    assert statement is not None
    charge = replace(training.charge_of(job), weights_sha256=statement.weights_sha256)
    with Ledger(world.ledger_url) as ledger:
        reservation = charge.reserve(ledger, charge.events(mechanism_of(job)))
        assert "not drawn on (reserved)" in found()["metric_not_drawn"]
        other = replace(charge, weights_sha256="0" * 64).reserve(
            ledger, charge.events(mechanism_of(job))
        )
        other.on_charge()
        assert set(found()) == {"metric_not_drawn"}, "that of another model"
        reservation.on_charge()
        assert set(found()) == {"metrics_missing"}
        reservation.forfeit("lost")
        assert set(found()) == {"metrics_missing"}


def test_entries_of_an_earlier_version_do_not_say_what_a_metric_was_about(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.tasks.release.runs.release_metrics", lambda *_: {})
    config = world.config(evaluate={"release": {"metric": "accuracy", "epsilon": 0.5}})
    run_id = world.train(config)
    job = training.prepare(config)
    with Ledger(world.ledger_url) as ledger:
        charge = training.charge_of(job)
        charge.reserve(ledger, charge.events(mechanism_of(job))).on_charge()
    assert audit(read(world.client, run_id, world.ledger_url)).codes == {"metrics_missing"}


def test_a_flow_that_was_killed_before_it_opened_a_run_is_ended(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setattr(server, "get_json", lambda url, body: told.append(url))
    code = (
        "import os; from flows.server import living; from tasks.home import Home\n"
        "with living(Home.find(), 'killed'): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    with server.living(home, "mine"):
        assert server.end_gone(home) == ["killed"]
        assert told == ["http://127.0.0.1:1/api/flow_runs/killed/set_state"]
        assert [path.stem for path in (home.root / server.FLOWS).iterdir()] == ["mine"]
    assert not list((home.root / server.FLOWS).iterdir())


def test_a_server_that_does_not_answer_is_told_the_next_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(url: str, body: object) -> None:
        raise OSError("refused")

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setattr(server, "get_json", silent)
    place = home.root / server.FLOWS / "killed.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(this_process() | {"boot": "an earlier one"}))
    assert server.end_gone(home) == [] and place.exists()
    place.unlink()
