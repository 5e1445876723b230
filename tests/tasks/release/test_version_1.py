"""What was published stays readable: the schemas of version 1, and a statement and bundle that
verify for ever.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dpcore.accounting.curves import epsilon_of
from dpcore.accounting.events import Events
from flows.cli import run
from tasks.home import CONF
from tasks.record.statement import Statement
from tasks.record.wording import to_html, to_markdown
from tasks.release.bundle import read_bundle
from tasks.release.manifest import Manifest
from tasks.release.verify import verify_files

BUNDLE = Path(__file__).parent / "fixtures" / "bundle-1"
SIGNER = "336c749a7b3e29821a2a57119220051e6e59373e6e024f1bf7cd07b8b8539a3b"


def test_bundle_of_version_1_verifies() -> None:
    report = verify_files(read_bundle(BUNDLE), SIGNER, "payers@1")
    assert report.problems == []
    assert report.known_signer
    assert run(["verify", str(BUNDLE), "--key", SIGNER, "--expect", "payers@1"]) == 0


def test_statement_of_version_1_gives_its_epsilon() -> None:
    found = Statement.model_validate_json((BUNDLE / "privacy" / "statement.json").read_bytes())
    curve = Events.from_json(json.dumps(found.mechanisms)).price()
    assert epsilon_of(curve, found.guarantee.delta, found.guarantee.conversion) == pytest.approx(
        found.guarantee.epsilon, rel=1e-6
    )


def unwrapped(schema: Any) -> Any:
    """A schema whose texts do not depend on how a docstring is wrapped; ``$`` keys left out."""
    if isinstance(schema, dict):
        return {
            key: unwrapped(part)
            for key, part in schema.items()
            if key == "$defs" or not key.startswith("$") or key == "$ref"
        }
    if isinstance(schema, list):
        return [unwrapped(part) for part in schema]
    return " ".join(schema.split()) if isinstance(schema, str) else schema


@pytest.mark.parametrize(("name", "kind"), [("statement-1", Statement), ("bundle-1", Manifest)])
def test_published_schema_is_the_one_that_is_checked(name: str, kind: type[BaseModel]) -> None:
    published = json.loads((CONF / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    assert unwrapped(published) == unwrapped(kind.model_json_schema())


def test_statement_reads_as_markdown_and_html() -> None:
    """The points of NIST SP 800-226: parameters, unit, neighbours, trust, mechanisms, composition,
    implementation.
    """
    found = Statement.model_validate_json((BUNDLE / "privacy" / "statement.json").read_bytes())
    text, page = to_markdown(found), to_html(found)
    points = (
        "unit of privacy",
        "neighbours",
        "trust model",
        "sampler",
        "sensitivity",
        "composition",
        "tuning",
        "noise",
    )
    facts = (
        found.ledger.head,
        found.weights_sha256,
        f"{found.guarantee.epsilon:.6g}",
        *found.limits,
    )
    for words in (*points, *facts):
        assert words in text
        assert words in page
    assert "src=" not in page
    assert "<script" not in page
    assert "http" not in page
    assert '<html lang="en">' in page
