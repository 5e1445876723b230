"""OpenSSF model signing: a foreign tool and ours read the same bundle, and refuse the same ones."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from dpcore.errors import InputError
from flows.cli import run
from flows.commands import verify
from tasks.release import openssf
from tasks.release.bundle import Bundle, open_bundle, read_bundle
from tasks.release.keys import OPENSSF_PASSPHRASE, OPENSSF_VARIABLE, load_openssf_key
from tasks.release.manifest import MANIFEST, ONNX, OPENSSF, SIGNATURE, Manifest
from tasks.release.verify import verify_files
from tests.release_fixtures import write_key
from tests.tasks.release.runs import World
from tests.tasks.release.test_tampered_bundles import UNSIGNED, Files, drop, put, resign, swap

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def sealed(
    shared_world: World, trained: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A bundle with both signatures, and the public half of the second key."""
    folder = tmp_path_factory.mktemp("sealed")
    key, second = write_key(folder / "key.pem"), folder / "openssf.pem"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFLOWS_HOME", str(shared_world.home.root))
        assert run(["key", "new", str(second), "--openssf"]) == 0
        call = ["release", trained, "--to", "sealed", "--approved-by", "A. Person"]
        call += ["--key", str(key), "--openssf-key", str(second), "-o", str(folder / "bundle")]
        call += ["--contact", "models@example.org", "--export", "onnx"]
        assert run([*call, "--ledger", shared_world.ledger_url]) == 0
    return folder / "bundle", folder / "openssf.pub.pem"


def theirs(bundle: Path, public: Path) -> bool:
    """What ``model_signing verify key`` answers, called as its command line is."""
    from click.testing import CliRunner

    program = pytest.importorskip("model_signing._cli")
    program.tracer = program.NoOpTracer()
    call = ["verify", "key", str(bundle), "--signature", str(bundle / OPENSSF)]
    done = CliRunner().invoke(program.main, [*call, "--public_key", str(public)])
    assert done.exit_code in (0, 1, 2), done.output
    return done.exit_code == 0


def ours(bundle: Path, signer: str) -> bool:
    try:
        return verify_files(open_bundle(bundle), signer).ok
    except InputError:
        return False


def in_envelope(change: Callable[[dict], None]) -> Callable[[Files], None]:
    """Change the file of the second signature."""

    def do(files: Files) -> None:
        stored = json.loads(files[OPENSSF])
        change(stored)
        files[OPENSSF] = json.dumps(stored).encode()

    return do


def in_payload(change: Callable[[dict], None]) -> Callable[[Files], None]:
    """Change what the second signature is about, without its key."""

    def do(stored: dict) -> None:
        inner = json.loads(base64.b64decode(stored["dsseEnvelope"]["payload"]))
        change(inner)
        stored["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(inner).encode()).decode()

    return in_envelope(do)


def another_key(files: Files) -> None:
    """Sealed again by whoever has a key of their own."""
    manifest = Manifest.model_validate_json(files[MANIFEST])
    files[OPENSSF] = openssf.seal(files, manifest, ec.generate_private_key(ec.SECP256R1())).encode()


def flipped(stored: dict) -> None:
    [one] = stored["dsseEnvelope"]["signatures"]
    data = bytearray(base64.b64decode(one["sig"]))
    data[-1] ^= 1
    one["sig"] = base64.b64encode(bytes(data)).decode()


# Of the second signature's own; the others are those that ours is tried with.
SECOND: dict[str, Callable[[Files], None]] = {
    "no second signature": drop(OPENSSF),
    "an empty second signature": put(OPENSSF, b""),
    "nested too deeply": put(OPENSSF, b"[" * 100_000),
    "a bit of the second signature": in_envelope(flipped),
    "another key's seal": another_key,
    "another media type": in_envelope(lambda one: one.update(mediaType="x")),
    "another payload type": in_envelope(lambda one: one["dsseEnvelope"].update(payloadType="x")),
    "no signature in the envelope": in_envelope(
        lambda one: one["dsseEnvelope"].update(signatures=[])
    ),
    "another key named": in_envelope(
        lambda one: one["verificationMaterial"]["publicKey"].update(hint="0" * 64)
    ),
    "a file left out of the list": in_payload(lambda one: one["predicate"]["resources"].pop()),
    "a path to ignore": in_payload(
        lambda one: one["predicate"]["serialization"]["ignore_paths"].append("model")
    ),
    "another commit": in_payload(lambda one: one["predicate"].update(provenance={})),
    "another subject": in_payload(lambda one: one["subject"][0].update(name="better")),
    "a second file of signatures": put("other.sig", b"{}"),
    "a file in a folder": put("model/more/notes.txt", b""),
    "two signatures": swap(SIGNATURE, OPENSSF),
}
TAMPERINGS = {**{name: change for name, (change, _) in UNSIGNED.items()}, **SECOND}


def written(files: Files, folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_a_foreign_tool_and_ours_refuse_the_same_tamperings(
    sealed: tuple[Path, Path], tmp_path: Path
) -> None:
    bundle, public = sealed
    signer = str(json.loads((bundle / SIGNATURE).read_text())["fingerprint"])
    assert ours(bundle, signer) and theirs(bundle, public)
    assert len(TAMPERINGS) >= 30
    taken = {}
    for number, (name, change) in enumerate(TAMPERINGS.items()):
        files = read_bundle(bundle)
        change(files)
        place = written(files, tmp_path / str(number))
        taken[name] = (ours(place, signer), theirs(place, public))
    (link := tmp_path / "0" / "link").symlink_to("/etc/hostname")
    taken["a link"] = (ours(link.parent, signer), theirs(link.parent, public))
    assert {name: found for name, found in taken.items() if any(found)} == {}


def test_who_has_the_first_key_alone_cannot_seal(sealed: tuple[Path, Path]) -> None:
    """The manifest and its signature are files of the second signature."""
    bundle, _ = sealed
    files = read_bundle(bundle)
    files["README.md"] = b"# A better model\n"
    seal = files.pop(OPENSSF)
    resign(files, bundle.parent / "key.pem")
    assert verify_files(files).names == {"openssf_missing"}
    files[OPENSSF] = seal
    assert verify_files(files).names == {"openssf_wrong"}
    another_key(files)
    assert verify_files(files).names == {"openssf_wrong"}
    key = load_openssf_key(bundle.parent / "openssf.pem")
    assert key is not None
    files[OPENSSF] = openssf.seal(
        files, Manifest.model_validate_json(files[MANIFEST]), key
    ).encode()
    assert verify_files(files).ok


def test_the_code_of_the_card_runs(sealed: tuple[Path, Path], tmp_path: Path) -> None:
    """As shown, in the folder of the bundle: the verified model and the graph give the same."""
    bundle = sealed[0]
    card = (bundle / "README.md").read_text()
    assert "Contact: models@example.org." in card
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    assert len(blocks) == 2
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DPFLOWS_HOME": str(tmp_path),
                   "DPFLOWS_TRUSTED_KEYS": json.loads((bundle / SIGNATURE).read_text())["fingerprint"]}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*blocks, "print(list(scorer.predict(None, rows).score))"])],
        cwd=bundle, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    found = re.search(r"'score': array\(\[(.*?)\]\)", done.stdout, flags=re.S)
    assert found is not None
    assert [float(one) for one in found[1].split(",")] == pytest.approx(last, rel=1e-7)


def resealed(files: Files, folder: Path) -> None:
    """Both signatures again, by whoever has both keys."""
    files.pop(OPENSSF)
    resign(files, folder / "key.pem")
    key = load_openssf_key(folder / "openssf.pem")
    assert key is not None
    manifest = Manifest.model_validate_json(files[MANIFEST])
    files[OPENSSF] = openssf.seal(files, manifest, key).encode()


def regraphed(change: Callable[[Any], None]) -> Callable[[Files], None]:
    """Change the exported graph."""

    def do(files: Files) -> None:
        import onnx

        graph = onnx.load_model_from_string(files[ONNX])
        change(graph)
        files[ONNX] = graph.SerializeToString(deterministic=True)

    return do


def doubled(graph: Any) -> None:
    """Every number of the graph, those of its weights among them."""
    for one in graph.graph.initializer:
        if one.data_type == 11:  # double
            one.raw_data = (2.0 * np.frombuffer(one.raw_data)).tobytes()


def of_another_version(graph: Any) -> None:
    graph.producer_version = "0.0.1"


@pytest.mark.parametrize(
    ("change", "known", "without", "failed", "said"),
    [
        (lambda files: None, False, (), False, "byte for byte"),
        (lambda files: None, True, ("onnx",), False, "nothing here reads it"),
        (regraphed(doubled), True, (), True, "answers made-up rows otherwise"),
        (regraphed(doubled), False, (), False, "run for a known signer alone"),
        (regraphed(doubled), True, ("onnxruntime",), False, "run for a known signer alone"),
        (regraphed(of_another_version), True, (), False, "answers 64 made-up rows as the model"),
        (put(ONNX, b"not a graph"), True, (), True, "cannot be read"),
    ],
)  # fmt: skip
def test_the_graph_of_a_bundle_is_compared_with_its_weights(
    sealed: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Files], None],
    known: bool,
    without: tuple[str, ...],
    failed: bool,
    said: str,
) -> None:
    """The signer of a false graph is seen where there is something to read it with; elsewhere it is
    said that nobody looked."""
    files = read_bundle(sealed[0])
    change(files)
    resealed(files, sealed[0].parent)
    bundle, signer = Bundle.of(files), json.loads(files[SIGNATURE])["fingerprint"]
    report = verify_files(bundle, signer if known else None)
    assert report.ok
    found = importlib.util.find_spec
    monkeypatch.setattr(verify, "find_spec", lambda name: None if name in without else found(name))
    verify.check_graph(bundle, report)
    assert report.names == ({"graph_changed"} if failed else set())
    lines = [*report.verified, *report.not_shown, *(what for _, what in report.problems)]
    assert [said in line for line in lines].count(True) == 1, lines


def test_provenance_names_what_the_model_was_made_of(sealed: tuple[Path, Path]) -> None:
    files = read_bundle(sealed[0])
    envelope = json.loads(files[OPENSSF])["dsseEnvelope"]
    stated = json.loads(base64.b64decode(envelope["payload"]))
    found = stated["predicate"]["provenance"]
    manifest = Manifest.model_validate_json(files[MANIFEST])
    assert manifest.ledger is not None
    listed = manifest.files
    build, ran = found["buildDefinition"], found["runDetails"]
    assert build["externalParameters"]["config"]["sha256"] == listed["config.json"].sha256
    code = build["resolvedDependencies"][0]["digest"]["gitCommit"]
    assert code == json.loads(files["privacy/statement.json"])["git_commit"]
    statement, ledger = ran["byproducts"]
    assert statement["digest"]["sha256"] == listed["privacy/statement.json"].sha256
    assert ledger["content"] == {"head": manifest.ledger.head, "seq": manifest.ledger.seq}
    assert ran["metadata"]["invocationId"] == manifest.run_id


def test_a_bundle_without_a_second_key_is_as_it_was(sealed: tuple[Path, Path]) -> None:
    """Its manifest has no field that an older version would refuse; a seal that somebody adds is
    a file that the manifest does not list."""
    manifest = Manifest.model_validate_json((sealed[0] / MANIFEST).read_bytes())
    assert "openssf" in json.loads(manifest.to_json())
    assert "openssf" not in json.loads(manifest.model_copy(update={"openssf": None}).to_json())
    files = read_bundle(sealed[0])
    stated = json.loads(files[MANIFEST])
    del stated["openssf"]
    files[MANIFEST] = json.dumps(stated).encode()
    seal = files.pop(OPENSSF)
    resign(files, sealed[0].parent / "key.pem")
    assert verify_files(files).ok
    files[OPENSSF] = seal
    assert verify_files(files).names == {"file_added"}


def test_a_key_for_the_second_signature_is_its_owners_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "openssf.pem"
    monkeypatch.setenv(OPENSSF_PASSPHRASE, "correct horse")
    assert run(["key", "new", str(path), "--openssf", "--passphrase", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and b"ENCRYPTED" in path.read_bytes()
    assert made["fingerprint"] == openssf.fingerprint(Path(made["public"]).read_text())
    key = load_openssf_key(path)
    assert key is not None and key.curve.name == "secp256r1"
    monkeypatch.setenv(OPENSSF_VARIABLE, str(path))
    monkeypatch.delenv(OPENSSF_PASSPHRASE)
    with pytest.raises(InputError, match=OPENSSF_PASSPHRASE):
        load_openssf_key(None)
    with pytest.raises(InputError, match="its passphrase"):
        load_openssf_key(None, lambda: "another")
    assert load_openssf_key(None, lambda: "correct horse") is not None
    monkeypatch.delenv(OPENSSF_VARIABLE)
    assert load_openssf_key(None) is None
    with pytest.raises(InputError, match="NIST curve"):
        load_openssf_key(write_key(tmp_path / "ed.pem"))
    assert run(["key", "new", str(path), "--openssf"]) == 2
