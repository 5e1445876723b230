"""One table says what goes with what: each of its sentences is seen, and the page for readers is
the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import run
from tasks.options import rules
from tasks.options.rules import ABSENT, DECLARED, RULES, Rule

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = {
    "age": {"kind": "numeric", "low": 0, "high": 100},
    "city": {"kind": "categorical", "levels": ["a", "b"]},
}
LABELS: dict[str, dict[str, Any]] = {
    "binary": {"positive": "yes", "negative": "no"},
    "regression": {"low": 0, "high": 1},
    "classes": {"levels": ["a", "b", "c"]},
    "relevance": {"low": 0, "high": 4},
}
# Every value that a fact has, and how a person asks for an option.
VALUES = {
    "undeclared": ("some", "none"),
    "label": tuple(LABELS),
    "unit": ("record", "user", "session", "session_labels"),
    "bounds": (DECLARED, "private", "from_data"),
    "kind": ("table", "sessions", "network"),
    "command": ("train", "compare"),
    "privacy.accountant": ("auto", "rdp", "pld", "gdp", "profile", "pure", "advanced"),
}
ASKED: dict[str, Any] = {
    "model": {"kind": "mlp"},
    "ranking": {},
    "select": {"keep": 1},
    "tune": {"grid": {"algorithm.learning_rate": [1, 4]}},
    "tune.grid": {"preprocess.numeric": ["minmax", "log"]},
    "audit": {},
    "evaluate.release": {"epsilon": 0.1},
    "evaluate.release.against": [0.5],
    "evaluate.subgroup": "city",
    "evaluate.release.metric": "balanced_accuracy",
    "algorithm.noise_multiplier": 3.0,
    "drift.epsilon": 0.1,
    "champion.data": "published.yaml",
    "engine": {"kind": "memory"},
}


def breaking(rule: Rule) -> Iterator[dict[str, str]]:
    """Facts that break a rule: its option is asked for, and its fact has a value that is not
    allowed.
    """
    name, _, value = rule.option.partition("=")
    for found in VALUES.get(rule.fact, (ABSENT, "present")):
        if found not in rule.allowed:
            yield {name: value or "present", rule.fact: found}


def put(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def schema_of(facts: dict[str, str]) -> dict[str, Any]:
    """A schema that declares ``facts``; without a table to read."""
    label = "relevance" if facts.get("kind") == "sessions" else facts.get("label", "binary")
    unit = facts.get("unit", "session" if label == "relevance" else "record")
    columns = {name: dict(column) for name, column in COLUMNS.items()}
    public: dict[str, Any] = {"n": 300}
    if unit == "user":
        columns["who"] = {"kind": "user"}
        public["rows_per_user"] = 3
    bounds = facts.get("bounds", DECLARED).replace("present", "private")
    if bounds != DECLARED and facts.get("undeclared") != "none":
        columns["age"] = {"kind": "numeric"}
    return {
        "schema_version": 1,
        "name": "facts",
        "unit": unit,
        "public": public,
        "columns": columns,
        "label": {"column": "y", "kind": label, **LABELS[label]},
        "bounds": bounds,
    }


def config_of(facts: dict[str, str]) -> dict[str, Any]:
    """A training that asks for the options of ``facts``."""
    values: dict[str, Any] = {
        "data": {"name": "facts.yaml", "path": "absent.csv"},
        "ledger": {"url": "sqlite:///ledger.db"},
        "privacy": {"delta": 1e-5},
    }
    if facts.get("kind") == "network":
        values["model"] = ASKED["model"]
    for name, value in facts.items():
        if name in ("privacy.accountant", "privacy.adjacency", "engine.kind", "evaluate.goal"):
            put(values, name, value)
        elif name in ASKED and value != ABSENT and name not in ("drift.epsilon", "champion.data"):
            put(values, name, ASKED[name])
    return values


def refused(folder: Path, facts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a person reads who asks for ``facts`` by the command that they are for; one line."""
    (folder / "facts.yaml").write_text(yaml.safe_dump(schema_of(facts)))
    (folder / "published.yaml").write_text(
        yaml.safe_dump({**schema_of({}), "public": {"n": 300, "public": True}})
    )
    training, command = config_of(facts), facts.get("command", "train")
    file = folder / "config.yaml"
    if {"drift.epsilon", "champion.data"} & facts.keys():
        asked = {name: ASKED[name] for name in ("drift.epsilon", "champion.data") if name in facts}
        values: dict[str, Any] = {
            "training": training,
            "window": {"last": None},
            "warm_start": "none",
        }
        for name, value in asked.items():
            put(values, name, value)
        file.write_text(json.dumps(values))
        given = ["retrain", str(file)]
    else:
        file.write_text(json.dumps(training))
        given = ["crossval" if command == "compare" else command, str(file)]
    before = sorted(folder.rglob("*"))
    assert run(given) != 0
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1, shown.err
    assert sorted(folder.rglob("*")) == before, "a refusal writes nothing, and no ledger"
    return shown.err.strip()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.option}-{rule.fact}")
def test_every_sentence_is_read_by_whoever_breaks_its_rule(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On one line, before a file of the data is opened (there is none) and before anything is
    spent.

    Where values break an earlier rule as well, that one is said; one value at least is this rule's
    alone.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path / "home"))
    lines = [(facts, refused(tmp_path, facts, capsys)) for facts in breaking(rule)]
    assert any(line.endswith(f": {said(rule, facts)}.") for facts, line in lines), lines
    for facts, line in lines:
        assert any(line.endswith(f": {said(one, facts)}.") for one in RULES), line


def said(rule: Rule, facts: dict[str, str]) -> str:
    """The end of its sentence, as the schema of the test has the facts that it names."""
    schema = schema_of(facts)
    return rule.because.format(label=schema["label"]["kind"], unit=schema["unit"])


def test_rules_speak_of_known_facts_and_end_without_a_full_stop() -> None:
    for rule in RULES:
        assert rule.fact in VALUES or rule.allowed == (ABSENT,)
        assert set(rule.allowed) <= {*VALUES.get(rule.fact, ()), ABSENT}
        assert (
            "\n" not in rule.because
            and not rule.because.endswith((".", ";"))
            and ";" in rule.because + ";"
        )


def test_the_page_is_the_table() -> None:
    """The first lines of ``tasks/options/rules.py`` say how it is written."""
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == rules.page()


def test_the_first_of_several_broken_rules_is_said() -> None:
    facts = {"tune": "present", "label": "regression", "unit": "user", "data": "x"}
    broken = [rule for rule in RULES if rule.broken(facts)]
    assert len(broken) == 2
    with pytest.raises(Exception, match="which a label of kind regression has not"):
        rules.check_facts(facts)
