"""OpenSSF model signing: a second signature over every file of a bundle, which tools of others
verify.

``model.sig`` is what ``model_signing sign key`` writes: a Sigstore bundle around a DSSE envelope
around an in-toto statement (predicate ``https://model_signing/signature/v1.0``), signed by ECDSA
with a NIST curve. Its ``resources`` are the SHA-256 of all files but itself, our manifest and its
signature among them; ``provenance`` beside them, which that predicate leaves to others, names what
the model was made of, as SLSA does. ``model_signing verify key`` and ``dpflows verify`` read it;
neither trusts the other.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from tasks.release.keys import CURVES, public_pem
from tasks.release.manifest import CONFIG, OPENSSF, STATEMENT, Manifest

MEDIA = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD = "application/vnd.in-toto+json"
STATED = "https://in-toto.io/Statement/v1"
PREDICATE = "https://model_signing/signature/v1.0"
# How the files were listed: each by its SHA-256, no links, none left out but the signature itself.
SERIALIZATION = {
    "method": "files",
    "hash_type": "sha256",
    "allow_symlinks": False,
    "ignore_paths": [OPENSSF],
}


def seal(files: Mapping[str, bytes], manifest: Manifest, key: ec.EllipticCurvePrivateKey) -> str:
    """The text of ``model.sig`` for ``files``, the manifest and its signature among them."""
    payload = json.dumps(in_toto(files, manifest), sort_keys=True).encode()
    signature = key.sign(_authenticated(payload), ec.ECDSA(_digest(key.curve)))
    return json.dumps(
        {
            "mediaType": MEDIA,
            "verificationMaterial": {
                "publicKey": {"hint": fingerprint(public_pem(key.public_key()))},
                "tlogEntries": [],
            },
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD,
                "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
            },
        },
        indent=1,
        sort_keys=True,
    )


def in_toto(files: Mapping[str, bytes], manifest: Manifest) -> dict[str, Any]:
    """The in-toto statement about ``files``: one subject, whose digest is that of all digests."""
    digests = {name: sha256(files[name]) for name in sorted(files) if name != OPENSSF}
    whole = sha256(b"".join(one.digest() for one in digests.values()))
    return {
        "_type": STATED,
        "subject": [{"name": manifest.name, "digest": {"sha256": whole.hexdigest()}}],
        "predicateType": PREDICATE,
        "predicate": {
            "serialization": SERIALIZATION,
            "resources": [
                {"name": name, "algorithm": "sha256", "digest": one.hexdigest()}
                for name, one in digests.items()
            ],
            "provenance": provenance(files, manifest),
        },
    }


def provenance(files: Mapping[str, bytes], manifest: Manifest) -> dict[str, Any]:
    """What the model was made of, in the words of SLSA's provenance: configuration, code, privacy
    statement, and where the ledger stood.
    """
    stated = json.loads(files[STATEMENT])
    ledger = (
        None if manifest.ledger is None else manifest.ledger.model_dump(include={"seq", "head"})
    )
    return {
        "buildDefinition": {
            "buildType": "dpflows/training/v1",
            "externalParameters": {"config": {"sha256": sha256(files[CONFIG]).hexdigest()}},
            "resolvedDependencies": [
                {"name": "dpflows", "digest": {"gitCommit": stated["git_commit"]}},
                {"name": "lock", "digest": {"sha256": stated["lock_sha256"]}},
            ],
        },
        "runDetails": {
            "builder": {"id": "dpflows", "version": dict(stated["versions"])},
            "metadata": {"invocationId": manifest.run_id, "finishedOn": manifest.created},
            "byproducts": [
                {
                    "name": STATEMENT,
                    "digest": {"sha256": sha256(files[STATEMENT]).hexdigest()},
                },
                {"name": "ledger", "content": ledger},
            ],
        },
    }


def sealed(manifest: Manifest) -> str:
    """What is said of a bundle whose second signature was checked; nothing of one without."""
    return "" if manifest.openssf is None else f", and {OPENSSF} signs each (OpenSSF model signing)"


def seal_faults(files: Mapping[str, bytes], manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Problems of the second signature by name, where the manifest names a key for it."""
    if manifest.openssf is None:
        return
    if OPENSSF not in files:
        yield "openssf_missing", f"{OPENSSF}, which the manifest names a key for, is missing"
        return
    for fault in faults(files, manifest):
        yield "openssf_wrong", f"{OPENSSF} {fault}"


def faults(files: Mapping[str, bytes], manifest: Manifest) -> Iterator[str]:
    """What is wrong with ``model.sig`` of a bundle whose manifest names a key for it.

    The statement is made again from the files and compared as a whole, so nothing in it is taken on
    trust. Raises what parsing a hostile file raises.
    """
    stored = json.loads(files[OPENSSF])
    envelope, material = stored["dsseEnvelope"], stored["verificationMaterial"]
    pem = str(manifest.openssf)
    if stored["mediaType"] != MEDIA or envelope["payloadType"] != PAYLOAD:
        yield "is no Sigstore bundle of an in-toto statement"
        return
    if material["publicKey"].get("hint") != fingerprint(pem):
        yield "names another key than the manifest"
        return
    [signature] = envelope["signatures"]
    payload = base64.b64decode(envelope["payload"], validate=True)
    public = load_pem_public_key(pem.encode())
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name not in CURVES:
        yield "is not by a key of a curve that it may have"
        return
    try:
        proof = base64.b64decode(signature["sig"], validate=True)
        public.verify(proof, _authenticated(payload), ec.ECDSA(_digest(public.curve)))
    except InvalidSignature:
        yield "is not signed by the key that the manifest names"
        return
    if json.loads(payload) != in_toto(files, manifest):
        yield "is about other files, or about another making of them"


def fingerprint(pem: str) -> str:
    """How others name the key: SHA-256 of its public half as PEM."""
    return sha256(pem.encode()).hexdigest()


def _authenticated(payload: bytes) -> bytes:
    """DSSE's encoding before the signature, version 1: type and body with their lengths."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def _digest(curve: ec.EllipticCurve) -> hashes.HashAlgorithm:
    return CURVES[curve.name]()
