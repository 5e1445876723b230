"""What stands beside a released statement for reviewers, registries and data protection officers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tasks.release.bundle import read_bundle
from tasks.release.manifest import Manifest
from tasks.release.sheet import NOT_SAID, evaluation_sheet, points, registry_entry
from tasks.release.verify import verify_files
from tests.tasks.release.runs import World
from tests.tasks.release.test_release import release

ASKED = (
    "Epsilon and delta",
    "Unit of privacy and neighbours",
    "Composition over releases",
    "Mechanisms",
    "Sensitivity",
    "Bounds and clipping",
    "What was tuned",
    "Trust model",
    "Floating point and random numbers",
    "Side channels",
    "Utility",
    "Data bias, and accuracy for groups",
    "Data security and exposure",
    "What a reader must not conclude",
)


def test_a_release_has_a_sheet_an_entry_and_a_card_with_its_licence(
    world: World, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = world.train()
    code, answer = release(world, run_id, "sheet", key, capsys, "--licence", "cc-by-4.0")
    assert code == 0, answer
    files = read_bundle(Path(answer["bundle"]))
    assert verify_files(files).problems == []
    manifest = Manifest.model_validate_json(files["manifest.json"])

    sheet = files["privacy/evaluation.md"].decode()
    for title in ASKED:
        _, _, rest = sheet.partition(f"\n## {title}\n\n- ")
        assert rest, title
    assert f"epsilon = {manifest.price.epsilon:.6g}" in sheet
    assert sheet.partition("## Data bias")[2].partition("\n## ")[0].strip().endswith(NOT_SAID)

    entry = json.loads(files["privacy/registry.json"])
    assert entry["privacy_loss"]["parameters"]["epsilon"] == manifest.price.epsilon
    assert entry["deployment"]["data_curator"] is None  # nobody said it: for people to fill in

    front, _, text = files["README.md"].decode().removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(front)["license"] == "cc-by-4.0"
    assert "dpflows verify . --key FINGERPRINT" in text

    code, answer = release(world, run_id, "sheet", key, capsys, "--licence", "a\nb: c")
    assert code != 0
    assert "--licence" in answer["error"]


def test_every_point_is_there_when_the_statement_says_nothing_of_it() -> None:
    from tasks.record.statement import Statement

    stored = read_bundle(Path(__file__).parent / "fixtures" / "bundle-1")
    manifest = Manifest.model_validate_json(stored["manifest.json"])
    old = Statement.model_validate_json(stored["privacy/statement.json"])
    bare = old.model_copy(update={"limits": [], "sensitivity": "", "not_released": []})
    found = dict(points(bare, manifest.price, [], manifest.approval))
    assert set(ASKED) <= set(found)
    assert found["Side channels"] == found["Utility"] == []
    args = (manifest.name, manifest.version, bare, manifest.price, [], manifest.approval)
    assert evaluation_sheet(*args).count(NOT_SAID) >= 4
    assert json.loads(registry_entry(*args))["tier"] == 3
