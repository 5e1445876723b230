"""A store with one released model for the tests of audit, release and verification."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tasks.home import Home
from tasks.release.bundle import TRUSTED, load_key, own_fingerprint
from tests.flow_fixtures import HOME
from tests.release.runs import World, make_world


def write_key(path: Path) -> Path:
    """A new Ed25519 private key as PEM."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


@pytest.fixture(scope="session")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One world for tests that only read."""
    return make_world(HOME, tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def trained(shared_world: World) -> str:
    """The id of a finished run with a noisy metric; nothing of it may be changed."""
    return shared_world.train(shared_world.config(evaluate={"release": {"metric": "accuracy", "epsilon": 0.5}}))


@pytest.fixture
def world(home: Home, tmp_path: Path) -> World:
    return make_world(home, tmp_path)


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A signing key that is trusted here."""
    path = write_key(tmp_path / "key.pem")
    monkeypatch.setenv(TRUSTED, own_fingerprint(load_key(path)))
    return path
