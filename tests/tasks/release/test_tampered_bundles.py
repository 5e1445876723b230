"""Bundles that somebody changed: each is caught, by name."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from dpcore.accounting import Events
from dpcore.errors import InputError
from flows.cli import run
from flows.commands.verify import words
from tasks.release.bundle import read_bundle
from tasks.release.keys import load_key, sign
from tasks.release.manifest import MANIFEST, SIGNATURE
from tasks.release.verify import Verified, verify_files
from tests.release_fixtures import write_key
from tests.tasks.release.runs import World

Files = dict[str, bytes]
STATEMENT, MECHANISMS, TUNING, METRICS = (
    "privacy/statement.json",
    "privacy/mechanisms.json",
    "privacy/tuning.json",
    "privacy/metrics.json",
)


@pytest.fixture(scope="session")
def released(
    shared_world: World, trained: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A bundle and the key that signed it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DPFLOWS_HOME", str(shared_world.home.root))
    folder = tmp_path_factory.mktemp("bundles")
    key = write_key(folder / "key.pem")
    try:
        arguments = [
            "release",
            trained,
            "--to",
            "tampered",
            "--approved-by",
            "A. Person",
            "--key",
            str(key),
        ]
        assert (
            run([*arguments, "-o", str(folder / "bundle"), "--ledger", shared_world.ledger_url])
            == 0
        )
    finally:
        patch.undo()
    return folder / "bundle", key


@pytest.fixture
def files(released: tuple[Path, Path]) -> Files:
    return read_bundle(released[0])


@pytest.fixture
def signer(released: tuple[Path, Path]) -> str:
    return str(json.loads((released[0] / SIGNATURE).read_text())["fingerprint"])


def edit(name: str, change: Callable[[dict], None]) -> Callable[[Files], None]:
    """Change a JSON file of the bundle."""

    def do(files: Files) -> None:
        stored = json.loads(files[name])
        change(stored)
        files[name] = json.dumps(stored, indent=1, sort_keys=True).encode()

    return do


def own_run_left_out(files: Files) -> None:
    """The runs behind the release without the released one, wherever it stands among them."""
    own = Events.from_json(json.dumps(json.loads(files[STATEMENT])["mechanisms"]))
    stored = json.loads(files[TUNING])
    trials = [one for one in stored["trials"] if Events.from_json(json.dumps(one)) != own]
    assert len(trials) < len(stored["trials"])
    files[TUNING] = json.dumps(stored | {"trials": trials}, indent=1, sort_keys=True).encode()


def weights(files: Files) -> None:
    with np.load(io.BytesIO(files["model/weights.npz"])) as arrays:
        changed = arrays["weights"] * 1.01
    sink = io.BytesIO()
    np.savez(sink, weights=changed)
    files["model/weights.npz"] = sink.getvalue()


def put(name: str, data: bytes) -> Callable[[Files], None]:
    return lambda files: files.__setitem__(name, data)


def drop(name: str) -> Callable[[Files], None]:
    return lambda files: files.__delitem__(name) or None


def swap(first: str, second: str) -> Callable[[Files], None]:
    def do(files: Files) -> None:
        files[first], files[second] = files[second], files[first]

    return do


def nested(*path: str | int, value: object) -> Callable[[dict], None]:
    def do(stored: dict) -> None:
        inner = stored
        for part in path[:-1]:
            inner = inner[part]  # type: ignore[index]
        inner[path[-1]] = value  # type: ignore[index]

    return do


def bomb() -> bytes:
    """Weights of a few hundred bytes that say they are 8 TB."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive, archive.open("weights.npy", "w") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
        )
    return sink.getvalue()


# What was done without the key, and the check that names it.
UNSIGNED: dict[str, tuple[Callable[[Files], None], str]] = {
    "a weight": (weights, "file_changed"),
    "the statement's epsilon": (
        edit(STATEMENT, nested("guarantee", "epsilon", value=0.1)),
        "file_changed",
    ),
    "the statement's delta": (
        edit(STATEMENT, nested("guarantee", "delta", value=1e-3)),
        "file_changed",
    ),
    "the statement's adjacency": (
        edit(STATEMENT, nested("guarantee", "adjacency", value="replace_one")),
        "file_changed",
    ),
    "a mechanism of the statement": (
        edit(STATEMENT, nested("mechanisms", "mechanisms", 0, "sigma", value=9.9)),
        "file_changed",
    ),
    "the curve": (edit(STATEMENT, nested("renyi", "curve", 3, value=0.001)), "file_changed"),
    "a field of the statement": (edit(STATEMENT, nested("surprise", value=1)), "file_changed"),
    "the mechanisms": (edit(MECHANISMS, nested("order", 0, 1, value=1)), "file_changed"),
    "the configuration": (edit("config.json", nested("seed", value=5)), "file_changed"),
    "the preprocessing": (put("model/encoder.json", b"{}"), "file_changed"),
    "the metric": (edit(METRICS, nested("values", "accuracy", value=0.99)), "file_changed"),
    "the runs behind it": (edit(TUNING, lambda stored: stored["trials"].pop()), "file_changed"),
    "the card": (put("README.md", b"# A better model\n"), "file_changed"),
    "the manifest's epsilon": (
        edit(MANIFEST, nested("price", "epsilon", value=0.5)),
        "signature_wrong",
    ),
    "the manifest's metric": (
        edit(MANIFEST, nested("metrics", 0, "value", value=0.99)),
        "signature_wrong",
    ),
    "the approval": (
        edit(MANIFEST, nested("approval", "who", value="B. Other")),
        "signature_wrong",
    ),
    "the version": (edit(MANIFEST, nested("version", value="7")), "signature_wrong"),
    "two files": (swap("model/encoder.json", "model/model.json"), "file_changed"),
    "a missing file": (drop(STATEMENT), "file_missing"),
    "an added program": (put("model/scoring.py", b"print()"), "executable_file"),
    "an added file": (put("notes.txt", b"trust me"), "file_added"),
    "no signature": (drop(SIGNATURE), "signature_missing"),
    "no manifest": (drop(MANIFEST), "manifest_missing"),
    "a damaged archive": (put("model/weights.npz", b"PK\x03\x04 nothing"), "file_changed"),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_changed_bundle_is_caught_by_name(files: Files, signer: str, name: str) -> None:
    change, expected = UNSIGNED[name]
    assert verify_files(files, signer).ok
    change(files)
    report = verify_files(files, signer)
    assert expected in report.names, report.problems


def resign(files: Files, key: Path) -> None:
    """What somebody with another key can do: new checksums, new signature."""
    manifest = json.loads(files[MANIFEST])
    listed = {name: data for name, data in files.items() if name not in (MANIFEST, SIGNATURE)}
    manifest["files"] = {
        n: {"sha256": sha256(d).hexdigest(), "bytes": len(d)} for n, d in listed.items()
    }
    files[MANIFEST] = json.dumps(manifest, indent=1, sort_keys=True).encode()
    files[SIGNATURE] = sign(load_key(key), files[MANIFEST]).encode()


def test_foreign_key_is_caught(files: Files, signer: str, tmp_path: Path) -> None:
    resign(files, write_key(tmp_path / "foreign.pem"))
    assert verify_files(files).ok
    assert "foreign_key" in verify_files(files, signer).names


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (weights, "weights_changed"),
        (edit(STATEMENT, nested("guarantee", "delta", value=1e-3)), "epsilon_recomputed"),
        (
            edit(STATEMENT, nested("guarantee", "adjacency", value="replace_one")),
            "relation_changed",
        ),
        (
            edit(STATEMENT, nested("mechanisms", "mechanisms", 0, "sigma", value=9.9)),
            "mechanisms_changed",
        ),
        (edit(STATEMENT, nested("renyi", "curve", 3, value=0.001)), "curve_changed"),
        (edit(STATEMENT, nested("surprise", value=1)), "statement_schema"),
        (edit(STATEMENT, nested("schema_version", value=True)), "statement_schema"),
        (edit(MANIFEST, nested("schema_version", value=True)), "manifest_schema"),
        (edit(MECHANISMS, nested("order", 0, 1, value=1)), "mechanisms_changed"),
        (edit("config.json", nested("seed", value=5)), "config_changed"),
        (edit(METRICS, nested("values", "accuracy", value=0.99)), "metric_changed"),
        (edit(TUNING, lambda stored: stored["trials"].pop()), "release_epsilon"),
        (edit(MANIFEST, nested("metrics", 0, "value", value=0.99)), "metric_changed"),
        (put("model/weights.npz", b"PK\x03\x04 nothing"), "weights_unreadable"),
        (put("model/encoder.json", b"{}"), "text_changed"),
        (put("privacy/statement.md", b"# Nothing is private\n"), "text_changed"),
        (put(STATEMENT, b"[" * 100_000), "statement_schema"),
        (put("model/model.json", b"[" * 100_000), "unreadable"),
        (put(TUNING, b"[" * 100_000), "unreadable"),
        (put("model/weights.npz", bomb()), "weights_unreadable"),
        (edit(STATEMENT, nested("guarantee", "epsilon", value=0.1)), "epsilon_recomputed"),
        (edit(STATEMENT, nested("releasable", value=False)), "not_releasable"),
        (edit(MANIFEST, nested("price", "epsilon", value=0.5)), "release_epsilon"),
        (own_run_left_out, "tuning_incomplete"),
        (
            edit(METRICS, nested("mechanisms", "mechanisms", 0, "scale", value=50.0)),
            "metric_unpaid",
        ),
    ],
)
def test_signed_by_the_key_but_untrue(
    files: Files,
    released: tuple[Path, Path],
    signer: str,
    change: Callable[[Files], None],
    expected: str,
) -> None:
    """A signature says who, not that the price is right: that is computed again."""
    change(files)
    resign(files, released[1])
    report = verify_files(files, signer)
    assert report.known_signer
    assert expected in report.names, report.problems


def test_of_a_bundle_by_nobody_known_no_more_is_said_than_was_looked_at() -> None:
    unknown = Verified(problems=[("signer_unknown", "no key is trusted here")])
    assert words(unknown).startswith("Bundle (its manifest was not read)\n  FAILED  signer_unknown")


def test_older_bundle_is_caught_by_the_expected_version(files: Files, signer: str) -> None:
    assert verify_files(files, signer, "tampered@1").ok
    assert verify_files(files, signer, "tampered@2").names == {"other_release"}
    assert verify_files(files, signer, "other@1").names == {"other_release"}


def test_without_a_key_it_is_intact_and_the_signer_unknown(files: Files) -> None:
    report = verify_files(files)
    assert report.ok
    assert not report.known_signer
    assert any("signer unknown" in text for text in report.verified)


def test_weights_that_would_unpickle_are_refused(files: Files, released: tuple[Path, Path]) -> None:
    sink = io.BytesIO()
    np.savez(sink, weights=np.array([{}], dtype=object))
    files["model/weights.npz"] = sink.getvalue()
    resign(files, released[1])
    assert "weights_unreadable" in verify_files(files).names


def test_commands_speak_plainly_and_end_with_4(
    released: tuple[Path, Path], signer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(released[0], copy)
    assert run(["verify", str(copy), "--key", signer[:20], "--expect", "tampered@1"]) == 0
    said = capsys.readouterr().out
    assert "by the expected key" in said
    assert "A bundle cannot show" in said
    (copy / "README.md").write_text("x")
    assert run(["verify", str(copy), "--key", signer, "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert [item["check"] for item in answer["problems"]] == ["file_changed"]
    assert run(["verify", str(copy), "--key", "ab"]) == 2
    assert run(["verify", str(tmp_path / "nothing")]) == 2


def test_zip_of_a_bundle_is_read_and_links_are_not(
    released: tuple[Path, Path], tmp_path: Path
) -> None:
    path = Path(shutil.make_archive(str(tmp_path / "bundle"), "zip", released[0].parent, "bundle"))
    assert verify_files(read_bundle(path)).ok
    evil = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("../outside", "x")
    with pytest.raises(InputError, match="plain names"):
        read_bundle(evil)
    copy = tmp_path / "copy"
    shutil.copytree(released[0], copy)
    (copy / "link").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="the link"):
        read_bundle(copy)


def test_a_folder_that_is_no_bundle_is_refused_before_it_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def walk(*_: object) -> None:
        raise AssertionError("the folder was walked")

    (tmp_path / "README.md").write_text("x")
    (tmp_path / "config.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rglob", walk)
        assert run(["verify", str(tmp_path)]) == 2
    err = capsys.readouterr().err.strip()
    assert "which has no manifest.json" in err and len(err.splitlines()) == 1
    (tmp_path / "manifest.json").write_text("{}")
    for number in range(401):
        (tmp_path / f"{number}").touch()
    with pytest.raises(InputError, match="at most 200 files"):
        read_bundle(tmp_path)


def test_a_bundle_without_its_manifest_is_no_bundle_that_verifies(
    released: tuple[Path, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "outer" / "copy"
    shutil.copytree(released[0], copy)
    assert verify_files(read_bundle(copy.parent)).ok
    (copy / MANIFEST).unlink()
    (copy / SIGNATURE).unlink()
    assert run(["verify", str(copy)]) == 4
