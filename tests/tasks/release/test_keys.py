"""Signing keys: made for their owner alone, never replaced, and asked for after everything else."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from dpcore.errors import InputError
from flows.cli import run
from tasks.release.keys import PASSPHRASE, VARIABLE, load_key, own_fingerprint, sign
from tasks.release.keys import verify_signature as signer

SECRET = "correct horse"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(PASSPHRASE, raising=False)


def test_a_new_key_signs_and_is_its_owners_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "release.pem"
    assert run(["key", "new", str(path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = load_key(path)
    assert made["fingerprint"] == own_fingerprint(key) == signer(sign(key, b"m").encode(), b"m")
    monkeypatch.setenv(VARIABLE, str(path))
    assert run(["key", "show"]) == 0
    assert capsys.readouterr().out.strip() == made["fingerprint"]


def test_a_key_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "release.pem"
    assert run(["key", "new", str(path)]) == 0
    before = path.read_bytes()
    assert run(["key", "new", str(path)]) == 2
    assert "which exists" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert run(["key", "new", str(tmp_path / "nowhere" / "release.pem")]) == 2
    assert "name another" in capsys.readouterr().err


def test_an_encrypted_key_needs_its_passphrase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "release.pem"
    monkeypatch.setenv(PASSPHRASE, SECRET)
    assert run(["key", "new", str(path), "--passphrase"]) == 0
    assert SECRET not in capsys.readouterr().out
    assert b"ENCRYPTED" in path.read_bytes()
    known = own_fingerprint(load_key(path))
    monkeypatch.setenv(PASSPHRASE, "another")
    with pytest.raises(InputError, match="with its passphrase"):
        load_key(path)
    monkeypatch.delenv(PASSPHRASE)
    with pytest.raises(InputError, match=PASSPHRASE):
        load_key(path)
    assert own_fingerprint(load_key(path, lambda: SECRET)) == known


def test_keys_of_other_tools_are_read(tmp_path: Path) -> None:
    path = tmp_path / "release.pem"
    command = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    assert len(own_fingerprint(load_key(path))) == 64
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n")
    with pytest.raises(InputError, match="Ed25519 private key"):
        load_key(path)


def test_run_and_policy_are_asked_for_before_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path / "home"))
    words = ["release", "0" * 32, "--to", "m", "--approved-by", "A. Person"]
    assert run([*words, "--policy", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err
    assert run(words) == 2
    assert "Expected a run of" in capsys.readouterr().err
