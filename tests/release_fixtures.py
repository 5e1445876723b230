"""A store with one released model for the tests of audit, release and verification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flows.cli import run
from tasks.home import Home
from tasks.release.keys import TRUSTED, load_key, own_fingerprint
from tests.flow_fixtures import HOME
from tests.tasks.release.runs import World, make_world
from tests.tasks.release.scene import Scene


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
    return shared_world.train(
        shared_world.config(evaluate={"release": {"metric": "accuracy", "epsilon": 0.5}})
    )


@pytest.fixture(scope="session")
def prepared(shared_world: World, trained: str, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The shared run, released, and another one; who changes anything of it puts it back."""
    folder, name = tmp_path_factory.mktemp("prepared"), "walked"
    key, attacker = write_key(folder / "key.pem"), write_key(folder / "attacker.pem")
    asked = {"release": {"metric": "accuracy", "epsilon": 0.5}}
    other = shared_world.train(
        shared_world.config(evaluate=asked, algorithm={"name": "dp_sgd", "steps": 9})
    )
    with pytest.MonkeyPatch.context() as patch:
        at_home(patch, shared_world, key)
        for run_id, to in ((other, f"{name} other"), (trained, name)):
            assert (
                run(
                    ["release", run_id, "--to", to, "--approved-by", "A. Person", "--key", str(key)]
                )
                == 0
            )
    releases = shared_world.home.root / "releases"
    return Scene(
        shared_world,
        name,
        trained,
        other,
        releases / name / "1",
        releases / f"{name} other" / "1",
        attacker,
    )


def at_home(patch: pytest.MonkeyPatch, world: World, key: Path) -> None:
    """The environment of whoever releases in ``world`` with ``key``."""
    patch.setenv("DPFLOWS_HOME", str(world.home.root))
    patch.setenv("DPFLOWS_LEDGER", world.ledger_url)
    patch.setenv(TRUSTED, own_fingerprint(load_key(key)))


@pytest.fixture
def scene(prepared: Scene) -> Iterator[Scene]:
    """The prepared world with the environment of who released there."""
    with pytest.MonkeyPatch.context() as patch:
        at_home(patch, prepared.world, prepared.attacker.with_name("key.pem"))
        yield prepared


@pytest.fixture
def world(home: Home, tmp_path: Path) -> World:
    return make_world(home, tmp_path)


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A signing key that is trusted here."""
    path = write_key(tmp_path / "key.pem")
    monkeypatch.setenv(TRUSTED, own_fingerprint(load_key(path)))
    return path
