"""The gate on real runs: search charged, policy kept, one version in front, a way back, metrics
with noise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting.events import Events
from dpcore.errors import BudgetExceeded
from flows.cli import run
from flows.commands.release import _table
from tasks.ledger import Ledger
from tasks.options.noisy_metric import from_counts
from tasks.release import registry
from tasks.release.manifest import ONNX
from tasks.release.trials import charged, search_epsilon
from tests.release_fixtures import write_key
from tests.tasks.release.runs import World
from tests.tasks.release.runs import release as command

CHARGED = {"release": {"metric": "accuracy", "epsilon": 0.05}}


def release(
    world: World, run_id: str, name: str, key: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict]:
    return command(run_id, name, key, capsys, *more)


def policy(folder: Path, **fields: object) -> str:
    path = folder / "policy.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in fields.items()))
    return str(path)


def test_search_is_charged_and_the_one_before_stays(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = world.train()
    code, answer = release(world, first, "champion", key, capsys)
    assert (code, answer["version"], answer["changed"]) == (0, "1", True)
    assert answer["epsilon"] == pytest.approx(1.0, abs=1e-3)
    second, third = world.train(), world.train()
    with Ledger(world.ledger_url) as ledger:
        both = [one.events for one in charged(ledger, "small")][1:]
    whole = search_epsilon(both, "add_remove", 1e-4)
    code, answer = release(
        world, third, "champion", key, capsys, "--policy", policy(tmp_path, max_epsilon=1.2)
    )
    assert code == 4
    assert f"{whole:.4f} > 1.2" in answer["error"]
    assert registry.aliases(world.client, "champion") == {"released": "1"}
    code, answer = release(world, third, "champion", key, capsys)
    assert code == 0
    assert answer["epsilon"] == pytest.approx(whole)
    assert registry.aliases(world.client, "champion") == {"released": "2", "previous": "1"}
    tags = world.client.get_model_version("champion", "2").tags
    assert (tags["epsilon"], tags["delta"], tags["approved_by"]) == (
        f"{whole:.6g}",
        "0.0001",
        "A. Person",
    )
    assert (
        run(["verify", answer["bundle"], "--key", answer["signer"], "--expect", "champion@2"]) == 0
    )
    capsys.readouterr()
    assert release(world, third, "champion", key, capsys)[1]["changed"] is False
    assert release(world, first, "champion", key, capsys)[1]["changed"] is True
    assert registry.aliases(world.client, "champion") == {"released": "1", "previous": "2"}
    alone = policy(tmp_path, tuning="run")
    code, answer = release(world, second, "champion", key, capsys, "--policy", alone)
    assert answer["epsilon"] == pytest.approx(1.0, abs=1e-3)


def test_a_graph_is_not_left_out_of_a_bundle_without_a_word(
    world: World, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    run_id = world.train()
    assert release(world, run_id, "plain", key, capsys)[0] == 0
    code, answer = release(world, run_id, "plain", key, capsys, "--export", "onnx")
    assert code == 2 and "released as plain@1 without a graph" in answer["error"]
    code, answer = release(world, run_id, "graph", key, capsys, "--export", "onnx")
    assert code == 0 and (Path(answer["bundle"]) / ONNX).is_file()
    again = release(world, run_id, "graph", key, capsys, "--export", "onnx")
    assert (again[0], again[1]["changed"]) == (0, False)


def test_a_second_place_for_a_bundle_is_not_left_out_without_a_word(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_id = world.train()
    first = release(world, run_id, "placed", key, capsys)[1]["bundle"]
    code, answer = release(world, run_id, "placed", key, capsys, "-o", str(tmp_path / "other"))
    assert code == 2 and f"in {first}" in answer["error"] and not (tmp_path / "other").exists()
    assert release(world, run_id, "placed", key, capsys, "-o", first)[1]["changed"] is False


def test_moved_alias_is_seen(world: World, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = world.train()
    assert release(world, run_id, "moved", key, capsys)[0] == 0
    assert run(["audit", "moved"]) == 0
    other = world.train()
    uri = world.client.get_run(other).data.tags["dpflows.model"]
    version = world.client.create_model_version("moved", uri, other).version
    world.client.set_registered_model_alias("moved", "released", version)
    capsys.readouterr()
    assert run(["audit", "moved", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [item["code"] for item in found] == ["alias_moved"]


def test_required_metric_has_to_be_released(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rules = policy(tmp_path, metric="accuracy", min_value=0.0)
    code, answer = release(world, world.train(), "measured", key, capsys, "--policy", rules)
    assert code == 4
    assert "no released metric 'accuracy'" in answer["error"]
    run_id = world.train(world.config(evaluate=CHARGED))
    code, answer = release(world, run_id, "measured", key, capsys, "--policy", rules)
    assert code == 0
    bundle = Path(answer["bundle"])
    [metric] = json.loads((bundle / "manifest.json").read_text())["metrics"]
    assert metric["source"] == "charged mechanism"
    assert metric["standard_error"] > 0
    stored = json.loads((bundle / "privacy/metrics.json").read_text())
    events = Events.from_json(json.dumps(stored["mechanisms"]))
    assert [item.pure_epsilon for item in events] == pytest.approx([0.05])
    assert stored["ledger_entry"]
    card = (bundle / "README.md").read_text()
    assert "internal" not in card
    assert "## What the model says" in card and "| age |" in card and "](terms.svg)" in card
    assert (bundle / "terms.svg").read_text().startswith("<svg")


def test_noisy_metrics_must_fit_the_ledger_before_training(world: World) -> None:
    with pytest.raises(BudgetExceeded, match=r"training and evaluate\.release"):
        world.train(world.config(evaluate={"release": {"metric": "accuracy", "epsilon": 30.0}}))
    with Ledger(world.ledger_url) as ledger:
        assert charged(ledger, "small") == []


def test_metrics_follow_from_noisy_counts() -> None:
    """The standard error is that of the ratio: 4,000 draws agree with it within 10 %."""
    counts, scale = np.array([[300.0, 100.0], [500.0, 100.0]]), 5.0
    values, errors = from_counts(counts, scale)
    assert values["accuracy"] == 0.8
    assert values["balanced_accuracy"] == pytest.approx((0.75 + 5 / 6) / 2)
    rng = np.random.default_rng(0)
    drawn = [
        from_counts(counts + rng.laplace(scale=scale, size=(2, 2)), scale)[0] for _ in range(4000)
    ]
    for name, error in errors.items():
        assert np.std([one[name] for one in drawn]) == pytest.approx(error, rel=0.1)


@pytest.mark.parametrize(
    "given", ["", "no such file", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"]
)
def test_release_needs_a_key(world: World, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("DPFLOWS_SIGNING_KEY", given)
    assert run(["release", "0" * 32, "--to", "x", "--approved-by", "A. Person"]) == 2


def test_key_from_the_environment(
    world: World, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPFLOWS_SIGNING_KEY", key.read_text())
    assert (
        run(["release", world.train(), "--to", "by environment", "--approved-by", "A. Person"]) == 0
    )


def test_blocked_run_is_not_released(
    world: World, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = world.train()
    world.client.log_metric(run_id, "internal.accuracy", 0.999)
    code, answer = release(world, run_id, "blocked", key, capsys)
    assert code == 4
    assert "metric_changed" in answer["error"]
    assert registry.aliases(world.client, "blocked") == {}


@pytest.mark.slow
def test_two_gates_at_once_leave_one_champion(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes release two runs to one name, twice; it takes about 15 s."""
    key = write_key(tmp_path / "key.pem")
    runs = [world.train(), world.train()]
    for _ in range(2):
        calls = [
            [
                sys.executable,
                "-m",
                "flows.cli",
                "release",
                run_id,
                "--to",
                "twice",
                "--approved-by",
                "A",
                "--key",
                str(key),
            ]
            for run_id in (runs[0], runs[0], runs[1])
        ]
        root = Path(__file__).resolve().parents[3]
        started = [
            subprocess.Popen(call, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for call in calls
        ]
        assert [process.wait(timeout=300) for process in started] == [0, 0, 0]
        versions = world.client.search_model_versions("name = 'twice'")
        assert sorted(one.version for one in versions) in (["1", "2"], [1, 2])
        aliases = registry.aliases(world.client, "twice")
        assert set(aliases) == {"released", "previous"}
        assert (
            aliases["released"] == registry.in_front(world.client, "twice") != aliases["previous"]
        )


def test_a_first_release_says_that_there_is_none_before_it() -> None:
    answer = {"version": "1", "epsilon": 0.25, "previous": None, "changed": True, "notes": ["n"]}
    columns = [list(column.cells) for column in _table(answer).columns]
    assert columns == [
        ["version", "epsilon", "previous", "changed", "note"],
        ["1", "0.25", "none", "yes", "n"],
    ]
