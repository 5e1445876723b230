"""Which version of a name is in front, signed: MLflow's aliases and tags show it, but anybody can
write them.

``releases/NAME/front.json`` is written by the gate with its key. Without it (homes from before it
was kept) the alias says which version to look at; what is believed of a version is in every case
its own signed bundle.

Rules for a registered model: its aliases point where the gate put them, at a bundle that
verifies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcore.errors import InputError, VerificationFailed
from tasks.audit.findings import Finding, block
from tasks.audit.subject import Subject
from tasks.release import registry
from tasks.release.bundle import Bundle, open_bundle, plain_json
from tasks.release.keys import same_key, sign, verify_signature
from tasks.release.manifest import CONFIG, METRICS, STATEMENT, WEIGHTS, Manifest
from tasks.release.verify import verify_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from mlflow import MlflowClient


FILE = "front.json"
LARGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Front:
    """The decision that put ``version`` in front; ``serial`` counts the decisions of a name."""

    name: str
    version: str
    serial: int
    bundle: str  # where it lies, from the folder of the name
    approved_by: str
    approved_at: str


@dataclass(frozen=True, slots=True)
class Released:
    """A released version as its own bundle states it, signed by a key that is believed."""

    manifest: Manifest
    bundle: Bundle
    folder: Path

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def entries(self) -> list[str]:
        """Entries of the ledger that the run itself has: its training, and its noisy metrics."""
        statement: Any = plain_json(self.bundle[STATEMENT])
        own = [str(statement["ledger"]["entry"])]
        if METRICS in self.bundle:
            stored: Any = plain_json(self.bundle[METRICS])
            own.append(str(stored["ledger_entry"]))
        return own

    @property
    def dataset(self) -> str:
        statement: Any = plain_json(self.bundle[STATEMENT])
        return str(statement["ledger"]["dataset"])

    def metrics(self) -> dict[str, float]:
        return {one.name: one.value for one in self.manifest.metrics}

    def differs(self, run: Subject) -> str:
        """Which file of the run is not the one that was released; empty where all are."""
        pairs = {
            STATEMENT: run.files.get(STATEMENT),
            CONFIG: run.files.get(CONFIG),
            METRICS: run.files.get(METRICS),
            WEIGHTS: run.model.get("weights.npz"),
            "model/encoder.json": run.model.get("encoder.json"),
            "model/model.json": run.model.get("model.json"),
        }
        return next((name for name, data in pairs.items() if self.bundle.get(name) != data), "")


def write_front(folder: Path, front: Front, key: Ed25519PrivateKey) -> None:
    """Replace the pointer of a name at once."""
    text = json.dumps({"schema_version": 1, **asdict(front)}, sort_keys=True)
    stored = {"schema_version": 1, "front": text, "signature": json.loads(sign(key, text.encode()))}
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{FILE}.{os.getpid()}"
    draft.write_text(json.dumps(stored, indent=1, sort_keys=True), encoding="utf-8")
    draft.replace(folder / FILE)


def read_front(folder: Path, name: str, trusted: Sequence[str] | None) -> Front | None:
    """The signed pointer of ``name``, None where there is none. Raises ``VerificationFailed`` for
    one not believed.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        stored: Any = plain_json(path.read_bytes()[:LARGEST])
        text = str(stored["front"])
        signer = verify_signature(json.dumps(stored["signature"]).encode(), text.encode())
        fields: Any = plain_json(text.encode())
        front = Front(**{key: value for key, value in fields.items() if key != "schema_version"})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerificationFailed(
            f"Expected {path} as the gate signed it, got {type(error).__name__}; restore it, or "
            "release to another name."
        ) from None
    known = trusted is None or any(same_key(one, signer) for one in trusted)
    if front.name != name or not known:
        raise VerificationFailed(
            f"Expected {path} of {name!r} signed by a trusted key, got {front.name!r} by "
            f"{signer[:16]}...; restore it, or list the key in trusted_keys of conf/release.yaml "
            "if it is an old one of yours."
        )
    return front


def released(
    client: MlflowClient,
    folder: Path,
    name: str,
    version: str,
    trusted: Sequence[str] | None,
    bundle: str | None = None,
) -> Released:
    """A version by its bundle: where the pointer or MLflow says that it lies, else in ``folder``.

    Raises ``VerificationFailed`` unless a bundle of exactly this version, signed by a trusted key,
    is there.
    """
    place = folder / (
        bundle or registry.tag_of(client, name, version, registry.DONE_TAG) or version
    )
    if not place.exists():
        place = folder / version  # a home that was moved
    try:
        found = open_bundle(place)
        report = verify_files(found, None, f"{name}@{version}", trusted)
    except InputError as error:
        raise VerificationFailed(
            f"Expected the bundle of {name}@{version} at {place}, which is what is believed of it: "
            f"{error} Restore it, or release to another name."
        ) from None
    if not report.ok or report.manifest is None:
        raise VerificationFailed(
            f"Expected the bundle of {name}@{version} at {place} to verify, got "
            f"{', '.join(sorted(report.names))}: {report.problems[0][1]}; restore it, or release "
            "to another name."
        )
    return Released(report.manifest, found, place)


def released_before(
    client: MlflowClient, folder: Path, name: str, run: str, trusted: Sequence[str]
) -> Released | None:
    """The release of ``run`` to ``name`` by its signed bundle, None where there was none.

    Raises ``VerificationFailed`` where MLflow shows one and no bundle proves it.
    """
    done = registry.version_of(client, name, run)
    if done is None:
        return None
    version = str(done.version)
    shown = registry.AT_TAG in done.tags or registry.DONE_TAG in done.tags
    if not shown and not (folder / version).exists():
        return None  # an interrupted release left the version alone
    return released(client, folder, name, version, trusted)


def _require_newest(folder: Path, name: str, front: Front, trusted: Sequence[str] | None) -> None:
    """Raise ``VerificationFailed`` where a bundle beside the pointer is of a later release."""
    for version in _bundles(folder):
        if version != front.version and _newer(folder, version, name, front, trusted):
            raise VerificationFailed(
                f"Expected {folder / FILE} of the last release, got one from before "
                f"{name}@{version}; restore the newest."
            )


def in_front(
    client: MlflowClient, folder: Path, name: str, trusted: Sequence[str] | None
) -> tuple[Front | None, Released | None]:
    """The pointer and the version in front; (None, None) for a name that was never released to.

    Raises ``VerificationFailed`` where something says that there was a release and no signed bundle
    shows it.
    """
    front = read_front(folder, name, trusted)
    if front is not None:
        found = released(client, folder, name, front.version, trusted, front.bundle)
        _require_newest(folder, name, front, trusted)
        return front, found
    shown = registry.aliases(client, name).get(registry.RELEASED) or registry.in_front(client, name)
    version = shown or max(_bundles(folder), key=int, default=None)
    if version is None:
        return None, None
    found = released(client, folder, name, version, trusted)
    if shown is not None and found.manifest.serial is not None:
        raise VerificationFailed(
            f"Expected {folder / FILE}, which the release of {name}@{version} wrote, got none: it "
            "was removed; restore it, or release to another name."
        )
    return None, found


def _bundles(folder: Path) -> list[str]:
    """Versions that have a folder among the releases of a name."""
    return (
        [path.name for path in folder.glob("*") if path.name.isdecimal()] if folder.is_dir() else []
    )


def _newer(
    folder: Path, version: str, name: str, front: Front, trusted: Sequence[str] | None
) -> bool:
    """Whether the bundle of a version was decided on after ``front``."""
    try:
        report = verify_files(open_bundle(folder / version), None, None, trusted)
    except InputError:
        return False
    found = report.manifest
    return found is not None and found.name == name and (found.serial or 0) > front.serial


AGAIN = "Run `dpflows release` again for the version that shall be in front"


def where_released(
    client: MlflowClient, folder: Path, name: str, trusted: Sequence[str] | None
) -> tuple[Released, list[Finding]]:
    """The version of ``name`` in front by its signed bundle, and what MLflow shows otherwise.

    Raises ``InputError`` where no version was released, ``VerificationFailed`` where no bundle
    proves one.
    """
    _, found = in_front(client, folder, name, trusted)
    if found is None:
        raise InputError(
            f"Expected a model with a released version, got {name!r}; release a run to it first."
        )
    return found, list(_shown(client, name, found))


def _shown(client: MlflowClient, name: str, found: Released) -> Sequence[Finding]:
    """Differences between MLflow's registry and the signed bundle."""
    where, problems = f"{name}/{found.version}", []
    alias, shown = (
        registry.aliases(client, name).get(registry.RELEASED),
        registry.in_front(client, name),
    )
    if alias != found.version or shown != found.version:
        problems.append(
            block(
                "alias_moved",
                f"{name}@{registry.RELEASED}",
                f"the alias points at version {alias or 'none'}, the gate put version "
                f"{found.version} in front",
                "Who loads the alias gets a model that did not pass the gate",
                AGAIN,
            )
        )
    version = registry.find_version(client, name, found.version)
    if version is None:
        return [
            *problems,
            block(
                "version_missing",
                where,
                "MLflow does not hold the version",
                "It was deleted",
                AGAIN,
            ),
        ]
    run = found.manifest.run_id
    if version.run_id != run or version.tags.get(registry.RUN_TAG) != run:
        problems.append(
            block(
                "version_run",
                where,
                "version and bundle are of other runs",
                "It was changed",
                AGAIN,
            )
        )
    if version.tags.get("epsilon") != f"{found.manifest.price.epsilon:.6g}":
        problems.append(
            block(
                "version_epsilon",
                where,
                "the version shows another epsilon than its bundle",
                "It was changed",
                AGAIN,
            )
        )
    return problems


def same_run(found: Released, run: Subject) -> list[Finding]:
    """The run as it is now is the one that was released."""
    other = found.differs(run)
    if not other:
        return []
    what = f"the bundle holds another {other} than the run"
    return [
        block(
            "bundle_of_another_run",
            str(found.folder),
            what,
            "It was changed after the release",
            AGAIN,
        )
    ]


def same_chain(found: Released, ledger: str) -> list[Finding]:
    """The ledger goes on from the head that the bundle states."""
    from tasks.ledger import Ledger
    from tasks.release.trials import require_chain

    with Ledger(ledger) as opened:
        try:
            require_chain(opened, f"{found.manifest.name}@{found.version}", found.manifest.ledger)
        except VerificationFailed as error:
            fix = "Restore the newest copy of the ledger"
            return [
                block(
                    "ledger_rolled_back",
                    "ledger",
                    str(error).rstrip("."),
                    "Budget was given back",
                    fix,
                )
            ]
    return []
