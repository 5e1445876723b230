"""Verification of a bundle from its bytes alone: no data, no ledger, no server, and nothing of it
is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite
from typing import Any

from pydantic import ValidationError

from dpcore.accounting.events import Events
from dpcore.errors import DPFlowsError, InputError
from tasks.audit.recompute import price_of
from tasks.audit.rules_content import state_fault
from tasks.record.statement import Statement
from tasks.record.wording import RENDERED
from tasks.release.bundle import Bundle, Problem, manifest_of, weight_problems
from tasks.release.keys import same_key, verify_signature
from tasks.release.manifest import (
    CARD,
    CONFIG,
    ENCODER,
    MANIFEST,
    MECHANISMS,
    METRICS,
    OPENSSF,
    REQUIRED,
    SIGNATURE,
    STATEMENT,
    TUNING,
    WEIGHTS,
    Manifest,
)
from tasks.release.openssf import seal_faults, sealed
from tasks.release.trials import metric_problems, search_problems, whole_epsilon

CANNOT_SHOW = (
    "that the ledger lists every run on these records",
    "that the records were as the schema declares them",
    "that the code which ran was the one named, with noise that nobody kept",
    "that a person behind several records is covered more than once",
    "that metrics of public data are right: nobody vouches for them, and anybody can compute them "
    "on the same rows",
)
UNNAMED = (
    "no hash of the readable statement is kept in this older bundle: its signature alone vouches "
    "for that text"
)
# Files of a bundle by the name of their hash in the ledger's commit record.
COMMITTED = {
    WEIGHTS: "weights",
    ENCODER: "encoder",
    CARD: "model",
    STATEMENT: "statement",
    MECHANISMS: "mechanisms",
    CONFIG: "config",
    METRICS: "metrics",
}
EXECUTABLE = (
    ".py",
    ".pyc",
    ".pkl",
    ".pickle",
    ".joblib",
    ".skops",
    ".so",
    ".sh",
    ".pt",
    ".pth",
    ".dill",
)

Rule = Callable[[Bundle, Manifest], Iterator[Problem]]


@dataclass
class Verified:
    """What was found: ``problems`` by name, ``verified`` in words, ``signer`` the fingerprint of
    the signing key.
    """

    name: str = ""
    version: str = ""
    signer: str = ""
    known_signer: bool = False
    epsilon: float | None = None
    delta: float | None = None
    manifest: Manifest | None = None
    problems: list[Problem] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=lambda: list(CANNOT_SHOW))

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.problems}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "schema_version": 1,
            "verified": self.ok,
            "name": self.name,
            "version": self.version,
            "signer": self.signer,
            "known_signer": self.known_signer,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "problems": [{"check": name, "what": what} for name, what in self.problems],
            "checked": self.verified,
            "not_shown_by_a_bundle": self.not_shown,
        }


def verify_files(
    files: Mapping[str, bytes],
    key: str | None = None,
    expect: str | None = None,
    trusted: Sequence[str] | None = None,
) -> Verified:
    """Check a bundle. ``key`` is the fingerprint that must have signed, ``expect`` the NAME@VERSION
    that it must be.

    Without ``key`` the signer must be one of ``trusted``; None takes any. Signature first, then
    sizes and checksums: nothing else is parsed, or even read, before they passed.
    """
    report = Verified()
    bundle = Bundle.of(files)
    text, signature = manifest_of(bundle)
    if not _signature(
        text, signature, bundle, (key,) if key is not None else trusted, key is None, report
    ):
        return report
    manifest = _manifest(text, report)
    if manifest is None:
        return report
    report.manifest = manifest
    report.name, report.version = manifest.name, manifest.version
    report.epsilon, report.delta = manifest.price.epsilon, manifest.price.delta
    _expected(manifest, expect, report)
    checks: tuple[tuple[Rule, str], ...] = (
        (
            _checksums,
            f"all {len(manifest.files)} files are those of the manifest{sealed(manifest)}",
        ),
        (
            _contents,
            "the statement follows its schema and belongs to weights, mechanisms and configuration",
        ),
        (
            _texts,
            "the readable statement and the model are those that the ledger's commit record names",
        ),
        (
            _price,
            "epsilon was computed again from the mechanisms, for the run and for the release with "
            "its search",
        ),
        (
            _model,
            "weights are finite numbers, preprocessing is plain JSON, nothing can be executed",
        ),
    )
    for rule, words in checks:
        found = list(_guarded(rule, bundle, manifest))
        report.problems += found
        if found and rule is _checksums:
            break
        if not found:
            report.verified.append(words if rule is not _texts or manifest.ledger else UNNAMED)
    report.problems = list(dict.fromkeys(report.problems))
    return report


def _guarded(rule: Rule, bundle: Bundle, manifest: Manifest) -> Iterator[Problem]:
    """The problems that a rule finds; a file that breaks its reader is one."""
    try:
        yield from list(rule(bundle, manifest))
    except Exception as error:  # whatever a hostile file does to a parser
        what = f"a file cannot be read ({type(error).__name__})"
        yield "unreadable", str(error).rstrip(".") if isinstance(error, InputError) else what


def _manifest(text: bytes, report: Verified) -> Manifest | None:
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        report.problems.append(
            (
                "manifest_schema",
                f"the manifest does not follow its schema at {where or 'its start'}",
            )
        )
        return None


def _signature(
    text: bytes,
    signature: bytes,
    bundle: Bundle,
    wanted: Sequence[str] | None,
    any_of: bool,
    report: Verified,
) -> bool:
    """Whether the manifest is signed by a key that is believed: one of ``wanted``, or any where
    that is None.
    """
    if MANIFEST not in bundle:
        report.problems.append(
            ("manifest_missing", "there is no manifest: this is no bundle, or a file is missing")
        )
    if SIGNATURE not in bundle:
        report.problems.append(("signature_missing", "the bundle is not signed"))
    if report.problems:
        return False
    try:
        report.signer = verify_signature(signature, text)
    except (ValueError, TypeError):
        report.problems.append(
            ("signature_wrong", "the signature does not belong to the manifest: one was changed")
        )
        return False
    short = f"{report.signer[:16]}..."
    if wanted is None:
        report.verified.append("the signature belongs to the manifest: intact, signer unknown")
        return True
    if any(same_key(one, report.signer) for one in wanted):
        report.known_signer = True
        report.verified.append(
            f"the signature is by {'a trusted' if any_of else 'the expected'} key"
        )
        return True
    if wanted:
        report.problems.append(("foreign_key", f"it was signed by another key ({short})"))
    else:
        report.problems.append(
            (
                "signer_unknown",
                f"it was signed by {short}, and no key is trusted here: name it with --key, in "
                "trusted_keys of conf/release.yaml or in DPFLOWS_TRUSTED_KEYS, or take "
                "--any-signer",
            )
        )
    return False


def _expected(manifest: Manifest, expect: str | None, report: Verified) -> None:
    if expect is None:
        return
    name, at, version = expect.rpartition("@")
    if not at or not name or not version:
        raise InputError(
            f"Expected NAME@VERSION for --expect, got {expect!r}; for example visits@3."
        )
    if (name, version) == (manifest.name, manifest.version):
        report.verified.append(f"it is {expect}")
    else:
        report.problems.append(
            ("other_release", f"it is {manifest.name}@{manifest.version}, not {expect}")
        )


def _checksums(files: Bundle, manifest: Manifest) -> Iterator[Problem]:
    """Sizes first: no file is read that is not of the manifest's size."""
    for name in sorted({*REQUIRED} - set(manifest.files)):
        yield "file_unlisted", f"the manifest does not list {name}"
    for name, stated in manifest.files.items():
        if name not in files:
            yield "file_missing", f"{name} is missing"
        elif files.sizes[name] != stated.bytes or sha256(files[name]).hexdigest() != stated.sha256:
            yield "file_changed", f"{name} is not the file of the manifest"
    own = {MANIFEST, SIGNATURE} | ({OPENSSF} if manifest.openssf else set())
    for name in sorted(set(files) - set(manifest.files) - own):
        yield "file_added", f"{name} is not in the manifest"
        if name.lower().endswith(EXECUTABLE):
            yield "executable_file", f"{name} could be run; a bundle holds plain data only"
    yield from seal_faults(files, manifest)


def _statement(files: Mapping[str, bytes]) -> Statement | None:
    try:
        return Statement.model_validate_json(files[STATEMENT])
    except (KeyError, ValidationError):
        return None


def _contents(files: Mapping[str, bytes], manifest: Manifest) -> Iterator[Problem]:
    found = _statement(files)
    if found is None:
        yield "statement_schema", "the privacy statement is missing or does not follow its schema"
        return
    pairs = {
        "weights_changed": (WEIGHTS, found.weights_sha256),
        "config_changed": (CONFIG, found.config_sha256),
        "mechanisms_changed": (MECHANISMS, found.mechanisms_sha256),
    }
    for name, (path, stated) in pairs.items():
        if path in files and sha256(files[path]).hexdigest() != stated:
            yield name, f"{path} is not the file that the statement names"
    if not found.releasable:
        yield (
            "not_releasable",
            f"the statement says that it must not be released: {'; '.join(found.reasons)}",
        )
    if (found.guarantee.unit, found.guarantee.adjacency) != (
        manifest.price.unit,
        manifest.price.adjacency,
    ):
        yield "relation_changed", "manifest and statement are about different neighbours"


def _texts(files: Mapping[str, bytes], manifest: Manifest) -> Iterator[Problem]:
    """Files by the hashes of the ledger's commit record; the text for people is made again where it
    has none.
    """
    named = {} if manifest.ledger is None else manifest.ledger.hashes
    for path, key in (*COMMITTED.items(), *((name, name) for name in RENDERED)):
        if path in files and key in named and sha256(files[path]).hexdigest() != named[key]:
            yield (
                "text_changed",
                f"{path} is not the file whose hash the ledger's commit record holds",
            )
    for path in RENDERED:
        if manifest.ledger is not None and path not in files:
            yield "file_missing", f"{path} is missing"


def _price(files: Mapping[str, bytes], manifest: Manifest) -> Iterator[Problem]:
    found = _statement(files)
    if found is None:
        return
    for finding in price_of(found):
        yield finding.code, finding.what
    price = manifest.price
    if not isfinite(price.epsilon):
        yield "release_epsilon", "the release has no finite epsilon"
        return
    try:
        stored = json.loads(files[TUNING])
        trials = [Events.from_json(json.dumps(item)) for item in stored["trials"]]
        whole = whole_epsilon(trials, found, manifest)
    except (KeyError, ValueError, TypeError, DPFlowsError) as error:
        yield (
            "tuning_unreadable",
            f"the runs behind the release cannot be priced ({type(error).__name__})",
        )
        return
    yield from search_problems(found, price, trials, whole)
    yield from metric_problems(files, manifest, trials)


def _model(files: Mapping[str, bytes], manifest: Manifest) -> Iterator[Problem]:
    for name in files:
        if name.lower().endswith(EXECUTABLE):
            yield "executable_file", f"{name} could be run; a bundle holds plain data only"
    if WEIGHTS in files:
        yield from weight_problems(files[WEIGHTS])
    fault = state_fault({name.removeprefix("model/"): data for name, data in files.items()})
    if fault:
        yield "state_changed", fault
    for name in (ENCODER, "model/model.json", CONFIG):
        if name in files:
            try:
                json.loads(files[name])
            except ValueError:
                yield "json_unreadable", f"{name} is no JSON"
