"""Ed25519 keys that sign a bundle's manifest: made, read, and known by their fingerprints.

Keys of a NIST curve sign for OpenSSF's tools (``tasks.release.openssf``), which take no others.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from dpcore.errors import InputError

VARIABLE = "DPFLOWS_SIGNING_KEY"
TRUSTED = "DPFLOWS_TRUSTED_KEYS"
PASSPHRASE = "DPFLOWS_SIGNING_KEY_PASSPHRASE"
OPENSSF_VARIABLE = "DPFLOWS_OPENSSF_KEY"
OPENSSF_PASSPHRASE = "DPFLOWS_OPENSSF_KEY_PASSPHRASE"
CURVES: dict[str, type[hashes.HashAlgorithm]] = {
    "secp256r1": hashes.SHA256,
    "secp384r1": hashes.SHA384,
    "secp521r1": hashes.SHA512,
}
HOW_OPENSSF = "make one with `dpflows key new openssf.pem --openssf`"
HOW = "make one with `dpflows key new release.pem` and keep it safe"
# Fewer digits of a fingerprint could be met by trying.
SHORTEST_FINGERPRINT = 16


def load_key(path: Path | None, ask: Callable[[], str] | None = None) -> Ed25519PrivateKey:
    """The private key in a PEM file, or in the environment (the PEM itself, or the path of a
    file). The passphrase of a key that has one is in DPFLOWS_SIGNING_KEY_PASSPHRASE, else ``ask``
    is called for it.

    Raises ``InputError`` for no key, another kind of key, and a passphrase that is not the key's.
    """
    given = os.environ.get(VARIABLE, "")
    where = str(path) if path is not None else VARIABLE
    if path is None and not given:
        raise InputError(f"Expected a signing key, got neither --key nor {VARIABLE}; {HOW}.")
    try:
        inside = path is None and "PRIVATE KEY" in given
        data = given.encode() if inside else Path(path or given).read_bytes()
        key = load_pem_private_key(data, password=_passphrase(data, where, ask, PASSPHRASE))
    except InputError:
        raise
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            "Expected an Ed25519 private key as PEM, with its passphrase where it has one, in "
            f"{where}, got none; {HOW}."
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"Expected an Ed25519 key in {where}, got another kind; {HOW}.")
    return key


def load_openssf_key(
    path: Path | None, ask: Callable[[], str] | None = None
) -> ec.EllipticCurvePrivateKey | None:
    """The private key of a NIST curve in a PEM file, or in the file that DPFLOWS_OPENSSF_KEY names;
    None where neither is given. Its passphrase is in DPFLOWS_OPENSSF_KEY_PASSPHRASE, else ``ask``
    is called.

    Raises ``InputError`` for another kind of key, and for a passphrase that is not the key's.
    """
    place = path or (Path(given) if (given := os.environ.get(OPENSSF_VARIABLE)) else None)
    if place is None:
        return None
    try:
        data = place.read_bytes()
        words = _passphrase(data, str(place), ask, OPENSSF_PASSPHRASE)
        key = load_pem_private_key(data, password=words)
    except InputError:
        raise
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"Expected a private key of a NIST curve as PEM, with its passphrase where it has one, "
            f"in {place}, got none; {HOW_OPENSSF}."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        raise InputError(
            f"Expected a key of a NIST curve (P-256) in {place}, got another kind; {HOW_OPENSSF}."
        )
    return key


def _passphrase(
    data: bytes, where: str, ask: Callable[[], str] | None, variable: str
) -> bytes | None:
    if b"ENCRYPTED" not in data:
        return None
    if given := os.environ.get(variable, ""):
        return given.encode()
    if ask is None:
        raise InputError(f"Expected the passphrase of {where} in {variable}, got none; set it.")
    return ask().encode()


def new_key(path: Path, passphrase: str = "") -> Ed25519PrivateKey:
    """Make an Ed25519 key and write it to the new file ``path``, readable by its owner alone.

    PKCS #8 as PEM, encrypted where there is a ``passphrase``. Raises ``InputError`` where a file
    is there already (a key that signed something is never replaced) or none can be written.
    """
    key = Ed25519PrivateKey.generate()
    _write_new(path, _private_pem(key, passphrase), 0o600)
    return key


def new_openssf_key(path: Path, passphrase: str = "") -> tuple[ec.EllipticCurvePrivateKey, Path]:
    """Make a key of the curve P-256 and write it as ``new_key`` does; its public half, which
    ``model_signing verify key`` asks for, goes to a new file beside it, whose name is returned.
    """
    public = path.with_suffix(f".pub{path.suffix}")
    if public.exists():
        raise InputError(f"Expected no file {str(public)!r} yet, got one; name another key.")
    key = ec.generate_private_key(ec.SECP256R1())
    _write_new(path, _private_pem(key, passphrase), 0o600)
    _write_new(public, public_pem(key.public_key()).encode(), 0o644)
    return key, public


def public_pem(key: ec.EllipticCurvePublicKey) -> str:
    """The public half of a key as PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _private_pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, passphrase: str) -> bytes:
    cover = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cover)


def _write_new(path: Path, text: bytes, mode: int) -> None:
    """Write the new file ``path``; raises ``InputError`` where one is there or none can be."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InputError(
            f"Expected a new file for the key, got {str(path)!r}, which exists; name another: a "
            "key that signed something is needed for ever."
        ) from None
    except OSError as error:
        raise InputError(
            f"Expected a place that can be written for the key, got {str(path)!r} "
            f"({error.strerror}); name another."
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def fingerprint(public: bytes) -> str:
    """SHA-256 of the 32 bytes of a public key."""
    return sha256(public).hexdigest()


def sign(key: Ed25519PrivateKey, message: bytes) -> str:
    """JSON with the signature of ``message`` and the public key that checks it."""
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    stored = {
        "schema_version": 1,
        "algorithm": "Ed25519",
        "public_key": base64.b64encode(public).decode(),
        "fingerprint": fingerprint(public),
        "signature": base64.b64encode(key.sign(message)).decode(),
    }
    return json.dumps(stored, indent=1, sort_keys=True)


def verify_signature(text: bytes, message: bytes) -> str:
    """The fingerprint of the key whose signature of ``message`` is in ``text``; raises
    ``ValueError`` for none.
    """
    try:
        stored = json.loads(text)
    except RecursionError:
        stored = None
    version = stored.get("schema_version") if isinstance(stored, dict) else None
    if (
        not isinstance(stored, dict)
        or type(version) is not int
        or version != 1
        or stored.get("algorithm") != "Ed25519"
    ):
        raise ValueError("the signature is not an Ed25519 signature of version 1")
    try:
        public = base64.b64decode(stored["public_key"], validate=True)
        Ed25519PublicKey.from_public_bytes(public).verify(
            base64.b64decode(stored["signature"], validate=True), message
        )
    except (KeyError, TypeError, InvalidSignature) as error:
        raise ValueError("the signature does not belong to the manifest") from error
    return fingerprint(public)


def own_fingerprint(key: Ed25519PrivateKey) -> str:
    """The fingerprint under which others know ``key``."""
    return fingerprint(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def trusted_keys(listed: Iterable[str] = ()) -> tuple[str, ...]:
    """Fingerprints whose signatures are believed here: ``listed``, those in DPFLOWS_TRUSTED_KEYS,
    our own key's.

    Keys that were replaced stay listed, for what they signed. Raises ``InputError`` for what is no
    fingerprint.
    """
    named = [*listed, *os.environ.get(TRUSTED, "").replace(",", " ").split()]
    for one in named:
        same_key(one, "", TRUSTED)
    try:
        own = [own_fingerprint(load_key(None))] if os.environ.get(VARIABLE) else []
    except InputError:  # a key that cannot be read is said where it is needed to sign
        own = []
    return (*named, *own)


def same_key(expected: str, found: str, where: str = "--key") -> bool:
    """Whether ``found`` is the key called ``expected``, a fingerprint or its first digits. Raises
    ``InputError``.
    """
    digits = expected.lower().replace(":", "").strip()
    if len(digits) < SHORTEST_FINGERPRINT or set(digits) - set("0123456789abcdef"):
        raise InputError(
            f"Expected at least {SHORTEST_FINGERPRINT} hex digits of a fingerprint for {where}, "
            f"got {expected!r}; `dpflows release` prints it."
        )
    return found.startswith(digits)
