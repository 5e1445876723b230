"""What a release believes of earlier ones: their signed bundles, and nothing that MLflow's tags and
aliases say.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dpcore.errors import InputError, VerificationFailed
from flows.cli import run
from tasks.ledger import Ledger
from tasks.release.bundle import require_place
from tasks.release.front import FILE
from tests.release_fixtures import write_key
from tests.tasks.release.runs import World, make_world, release


@pytest.fixture
def champion(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Any:
    """A name of this test with a released run."""
    name = f"champion {sha256(request.node.nodeid.encode()).hexdigest()[:10]}"
    run_id = world.train()
    code, answer = release(run_id, name, key, capsys)
    assert code == 0, answer
    return name, run_id, Path(answer["bundle"])


def test_tags_do_not_move_where_a_search_starts(
    world: World, key: Path, champion: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = champion[0]
    second, third = world.train(), world.train()
    world.client.set_model_version_tag(name, "1", "dpflows.ledger_seq", "999999")
    world.client.set_model_version_tag(name, "1", "dpflows.serial", "7")
    code, answer = release(third, name, key, capsys)
    assert code == 0
    tuning = json.loads((Path(answer["bundle"]) / "privacy/tuning.json").read_text())
    assert len(tuning["trials"]) == 2
    assert release(second, name, key, capsys)[0] == 0


def test_a_run_that_was_refused_is_refused_where_tags_call_it_released(
    world: World, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = world.train(world.config().model_copy(update={"unsafe_fixed_noise_seed": 3}))
    client = world.client
    client.create_registered_model("called-released")
    tags = {
        "dpflows.run_id": bad,
        "dpflows.released_at": "2026-01-01T00:00:00",
        "epsilon": "0.01",
        "delta": "1e-9",
        "dpflows.bundle": str(world.folder),
    }
    client.create_model_version(
        "called-released", client.get_run(bad).data.tags["dpflows.model"], bad, tags=tags
    )
    code, answer = release(bad, "called-released", key, capsys)
    assert code == 4, answer


def test_a_changed_run_is_not_put_back_in_front(
    world: World, key: Path, champion: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name, first, _ = champion
    assert release(world.train(), name, key, capsys)[0] == 0
    world.client.log_text(first, "# Nothing is private\n", "privacy/statement.md")
    code, answer = release(first, name, key, capsys)
    assert code == 4 and "text_changed" in answer["error"]


def test_a_way_back_says_what_everything_since_costs(
    world: World, key: Path, champion: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name, first, _ = champion
    assert release(world.train(), name, key, capsys)[0] == 0
    code, answer = release(first, name, key, capsys)
    assert code == 0 and answer["changed"] is True
    assert answer["epsilon_with_runs_since"] > answer["epsilon"] * 1.2
    assert release(first, name, key, capsys)[1]["changed"] is False


# Each trains a champion and a candidate; the one that needs no trace of tampering stands for the
# others by default.
OTHERS = ("deleted", "pointer", "older pointer", "edited", "no alias")


@pytest.mark.parametrize(
    "what", ["foreign bundle", *(pytest.param(what, marks=pytest.mark.slow) for what in OTHERS)]
)
def test_a_champion_without_its_signed_bundle_stops_the_gate(
    world: World,
    key: Path,
    champion: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    what: str,
) -> None:
    name, _, bundle = champion
    pointer = bundle.parent / FILE
    other = world.train()
    if what == "deleted":
        shutil.rmtree(bundle)
    elif what == "pointer":
        pointer.write_text(pointer.read_text().replace(name, "another"))
    elif what == "older pointer":
        old = pointer.read_text()
        assert release(other, name, key, capsys)[0] == 0
        pointer.write_text(old)
        other = world.train()
    elif what == "foreign bundle":
        stranger = write_key(tmp_path / "stranger.pem")
        assert release(world.train(), "strangers own", stranger, capsys)[0] == 0
        shutil.rmtree(bundle)
        shutil.copytree(bundle.parents[1] / "strangers own" / "1", bundle)
        shutil.rmtree(bundle.parents[1] / "strangers own")
        world.client.delete_registered_model("strangers own")
    elif what == "edited":
        manifest = bundle / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"seq": ', '"seq": 9'))
    else:
        world.client.delete_registered_model_alias(name, "released")
        (bundle / "README.md").write_text("x")
    code, answer = release(other, name, key, capsys)
    assert code == 4, answer
    assert len(answer["error"].strip().splitlines()) == 1


def test_a_ledger_that_was_put_back_is_named_by_the_next_release(
    world: World, key: Path, champion: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name, first, bundle = champion
    stated = json.loads((bundle / "manifest.json").read_text())["ledger"]
    assert stated["hashes"]["privacy/statement.md"]
    with Ledger(world.ledger_url) as ledger:
        assert stated["head"] == ledger.head()
    (tmp_path / "other").mkdir()
    fresh = make_world(world.home, tmp_path / "other")
    config = world.config().model_copy(
        update={"data": fresh.config().data, "ledger": fresh.config().ledger}
    )
    second = fresh.train(config)
    code, answer = release(second, name, key, capsys)
    assert code == 4 and "records were removed or rewritten" in answer["error"]
    assert run(["audit", name, "--ledger", world.ledger_url]) == 0
    capsys.readouterr()
    assert run(["audit", name, "--ledger", fresh.ledger_url, "--json"]) == 4
    assert "ledger_rolled_back" in capsys.readouterr().out
    head = stated["head"].upper()
    assert release(first, name, key, capsys, "--head", head[:20])[0] == 0
    assert release(first, name, key, capsys, "--head", "ab" * 10)[0] == 4
    assert release(first, name, key, capsys, "--head", "short")[0] == 2


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("work", "with other files"),
        ("work/sub/..", "with other files"),
        ("link", "a folder"),
        ("taken", "which holds"),
    ],
)
def test_nothing_of_others_is_ever_removed(
    champion: Any,
    world: World,
    key: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    place: str,
    said: str,
) -> None:
    (tmp_path / "work/sub").mkdir(parents=True)
    (tmp_path / "work/thesis.txt").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "work")
    shutil.copytree(champion[2], tmp_path / "taken")
    code, answer = release(champion[1], "elsewhere", key, capsys, "-o", str(tmp_path / place))
    assert code == 2 and said in answer["error"]
    assert (tmp_path / "work/thesis.txt").read_text() == "x"
    assert world.client.search_model_versions("name = 'elsewhere'") == []


def test_an_earlier_try_of_the_same_bundle_is_replaced(champion: Any, tmp_path: Path) -> None:
    name, _, bundle = champion
    assert require_place(bundle, name, "1") == bundle
    with pytest.raises(InputError, match="which holds"):
        require_place(bundle, name, "2")
    (bundle / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="with other files"):
        require_place(bundle, name, "1")


@pytest.mark.parametrize(
    "option",
    [
        ["--approved-by", "A\n## Approved by everybody"],
        ["--note", "x\r\ny"],
        ["--to", "vis\u0456ts"],
        ["--to", ".."],
        ["--to", "a/b"],
    ],
)
def test_text_that_misleads_is_refused(
    key: Path, capsys: pytest.CaptureFixture[str], world: World, option: list[str]
) -> None:
    asked = {"--to": "plain", "--approved-by": "A. Person", "--key": str(key), **dict([option])}
    assert run(["release", "0" * 32, *(part for pair in asked.items() for part in pair)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_names_that_look_alike_are_refused(
    champion: Any, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = release(champion[1], champion[0].upper().replace(" ", "-"), key, capsys)
    assert code == 2 and "looks like" in answer["error"]


def test_signers_are_believed_only_where_they_are_listed(
    champion: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, _, bundle = champion
    signer = json.loads((bundle / "signature.json").read_text())["fingerprint"]
    assert run(["verify", str(bundle)]) == 0 and run(["audit", name]) == 0
    monkeypatch.delenv("DPFLOWS_TRUSTED_KEYS")
    assert run(["verify", str(bundle)]) == 4 and run(["audit", name]) == 4
    assert (
        run(["verify", str(bundle), "--any-signer"]) == 0
        and run(["audit", name, "--any-signer"]) == 0
    )
    assert run(["verify", str(bundle), "--any-signer", "--key", signer]) == 2
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/release.yaml").write_text(f"trusted_keys: [{signer}]\n")
    assert run(["verify", str(bundle)]) == 0 and run(["audit", name]) == 0


def hostile(folder: Path, what: str) -> Path:
    path = folder / "bundle.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("signature.json", "[" * 100_000 if what == "deep" else "{}")
        archive.writestr("manifest.json", "[" * 100_000)
        if what == "zeros":
            with archive.open("model/weights.npz", "w", force_zip64=True) as file:
                for _ in range(1500):
                    file.write(bytes(1 << 20))
    data = bytearray(path.read_bytes())
    if what == "encrypted":
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = data.find(mark)
            while at >= 0:
                data[at + offset] |= 1
                at = data.find(mark, at + 1)
    if what == "cut":
        del data[40:60]
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "what", ["deep", "encrypted", "cut", pytest.param("zeros", marks=pytest.mark.slow)]
)
def test_a_hostile_bundle_is_unreadable_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, world: World
) -> None:
    assert run(["verify", str(hostile(tmp_path, what)), "--any-signer"]) == 4
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and "Traceback" not in said


def test_deleted_run_is_refused_in_one_line(
    world: World, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = world.train()
    world.client.delete_run(run_id)
    assert run(["audit", run_id]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    code, answer = release(run_id, "deleted", key, capsys)
    assert code == 2 and "deleted" in answer["error"]


def test_a_version_that_holds_another_model_is_not_taken(
    world: World, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = world.train(), world.train()
    client = world.client
    client.create_registered_model("taken over")
    other = client.get_run(second).data.tags["dpflows.model"]
    client.create_model_version("taken over", other, first, tags={"dpflows.run_id": first})
    code, answer = release(first, "taken over", key, capsys)
    assert code == 4 and "version_source" in answer["error"]


def test_interrupted_release_is_finished(
    world: World, key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the bundle, or before it: the same command again ends it."""
    run_id = world.train()

    def stop(*_: object) -> None:
        raise VerificationFailed("stopped")

    for place in ("write_bundle", "_put_in_front"):
        with monkeypatch.context() as patch:
            patch.setattr(f"flows.commands.release.{place}", stop)
            assert release(run_id, "interrupted", key, capsys)[0] == 4
    code, answer = release(run_id, "interrupted", key, capsys)
    assert (code, answer["version"]) == (0, "1")
    assert run(["audit", "interrupted"]) == 0


def test_registry_row_that_was_edited_is_seen(
    world: World, champion: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, _ = champion
    with sqlite3.connect(world.home.root / "mlflow.db") as connection:
        connection.execute("update model_versions set run_id = ? where name = ?", ("0" * 32, name))
    assert run(["audit", name, "--json"]) == 4
    assert "version_run" in capsys.readouterr().out
