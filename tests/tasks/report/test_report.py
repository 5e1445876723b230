"""The report of a run: self-contained, readable without its pictures, whole for every kind of run,
and internal.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flows.cli import run
from flows.commands import ui as command
from tasks import report, training
from tasks.drawing import number
from tasks.ledger import Ledger
from tasks.report.facts import Facts, Share, Step, read_facts, share_of
from tasks.report.page import (
    PUBLIC,
    WARNING,
    _parameters,
    quality_rows,
    quality_table,
    run_report,
)
from tests.tasks.release.runs import World


class Page(HTMLParser):
    """What a reader who sees no picture gets, and what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.alts: list[str] = []
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.language = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.sources += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")
        ]
        self.language = found.get("lang") or self.language
        if tag == "img":
            self.alts.append(found.get("alt") or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def facts(shared_world: World, trained: str, tmp_path: Path) -> Facts:
    run_ = shared_world.client.get_run(trained)
    folder = Path(shared_world.client.download_artifacts(trained, "", str(tmp_path)))
    with Ledger(shared_world.ledger_url) as ledger:
        entry = json.loads((folder / "privacy/statement.json").read_text())["ledger"]
        share = share_of(ledger, "small", entry["blocks"], [entry["entry"]])
    return read_facts(folder, trained, "a run", run_.data.metrics, [], share)


def test_every_run_has_its_report_in_mlflow(
    shared_world: World, trained: str, tmp_path: Path
) -> None:
    path = Path(shared_world.client.download_artifacts(trained, report.REPORT, str(tmp_path)))
    page = Page(path.read_text(encoding="utf-8"))
    assert WARNING in page.text
    for part in (
        "What an attacker may learn",
        "Budget",
        "How good the model is",
        "What the model says",
        "Steps",
        "Limits",
        trained,
    ):
        assert part in page.text


def test_a_noisy_metric_is_named_with_its_own_price(facts: Facts) -> None:
    """The guarantee of the weights says nothing about it: statement and report name the epsilon and
    whose it is.
    """
    [words] = [
        words for words in facts.statement.released if words.startswith("accuracy with noise")
    ]
    assert "epsilon 0.5 more (delta 0)" in words
    text = Page(run_report(facts)).text
    assert "adds epsilon 0.5 for one record of the" in text and "at epsilon 0.5 of its own" in text


def test_page_needs_nothing_from_elsewhere_and_can_be_read_without_pictures(facts: Facts) -> None:
    text = run_report(facts)
    page = Page(text)
    assert page.sources and all(
        source.startswith(("data:image/png;base64,", "data:image/svg+xml;base64,"))
        for source in page.sources
    )
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert "@import" not in text and "url(" not in text
    assert page.language == "en" and page.tags.count("h1") == 1 and 'name="viewport"' in text
    assert len(page.alts) >= 5 and all(len(alt) > 40 and re.search(r"\d", alt) for alt in page.alts)
    assert len(set(page.alts)) == len(page.alts)


def test_colours_can_be_read_by_day_and_by_night(facts: Facts) -> None:
    """Contrast of every text colour of the page against its grounds is at least 4.5 (WCAG 2, AA),
    and no other colour of a text is named.
    """
    style = run_report(facts).split("<style>")[1].split("</style>")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for part in (light, dark.split("} }")[0]):
        named = dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})", part))
        for text in ("ink", "soft", "link"):
            for ground in ("paper", "tile"):
                assert contrast(named[text], named[ground]) >= 4.5, (text, ground)
    assert not re.findall(r"(?<![-\w])color: (?!var|inherit)", style)


def contrast(first: str, second: str) -> float:
    levels = []
    for colour in (first, second):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        light = [
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        levels.append(0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2])
    return (max(levels) + 0.05) / (min(levels) + 0.05)


def test_numbers_of_the_page_are_those_of_the_run(facts: Facts) -> None:
    text = Page(run_report(facts)).text
    internal = facts.internal
    for key in ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "brier_score"):
        assert number(internal[key]) in text and number(internal[f"non_private_{key}"]) in text
    assert number(internal["majority_accuracy"]) in text
    assert facts.statement.guarantee.epsilon == pytest.approx(1.0, abs=1e-4) and "73.1 %" in text
    share = facts.share
    assert share is not None and 0 < share.own < 1 and f"{number(100 * share.own)} %" in text
    assert facts.noisy is not None and number(facts.noisy["values"]["accuracy"]) in text


def test_one_draw_has_no_spread_and_several_have_one(facts: Facts) -> None:
    assert "One draw of the noise has no spread" in Page(run_report(facts)).text
    several = replace(
        facts, metrics={"internal.accuracy": 0.5}, draws=[{"accuracy": 0.6}, {"accuracy": 0.7}, {}]
    )
    head, lines = quality_table(quality_rows(several.internal, several.draws))
    assert head == ["metric", "this run", "mean", "standard deviation", "lowest to highest"]
    assert lines == [["accuracy", "0.5000", "0.6000", "0.1000", "0.5000 to 0.7000"]]
    text = Page(run_report(several)).text
    assert "3 other finished runs of the same configuration" in text and "0.5000 to 0.7000" in text


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
RANKING = {
    "map": 0.7,
    "ndcg_at_2": 0.6,
    "random_map": 0.3,
    "best_feature_map": 0.5,
    "non_private_map": 0.8,
}
KINDS: dict[str, tuple[Callable[[Facts], Facts], str]] = {
    "no trace": (lambda f: replace(f, trace=[]), "no trace, so when epsilon was spent"),
    "one release": (lambda f: replace(f, trace=f.trace[:1]), "spent at once"),
    "no baselines": (
        lambda f: replace(f, metrics={"internal.accuracy": 0.8}),
        "No baselines were measured",
    ),
    "no metrics": (lambda f: replace(f, metrics={}), "No metric was measured"),
    "no ledger": (lambda f: replace(f, share=None), "no ledger to ask"),
    "a ranking": (
        lambda f: replace(f, metrics={f"internal.{k}": v for k, v in RANKING.items()}),
        "NDCG@2",
    ),
    "a regression": (
        lambda f: replace(
            f,
            metrics={
                "internal.mean_squared_error": 0.2,
                "internal.non_private_mean_squared_error": 0.1,
            },
        ),
        "mean squared error, scaled label (lower is better)",
    ),
    "public data": (
        lambda f: replace(f, share=Share("small", False, ""), statement=_data(f, public=True)),
        PUBLIC,
    ),
    "an overspent block": (
        lambda f: replace(
            f,
            share=Share(
                "small",
                True,
                "a promise",
                "2026",
                [Step("2026-01-01", 0.8, k == 1, "committed") for k in (0, 1)],
            ),
        ),
        "block",
    ),
    "huge numbers": (
        lambda f: replace(
            f,
            metrics={"internal.mean_squared_error": 1e300, "internal.odd": float("inf")},
            trace=[
                {"release": k + 1, "spent_epsilon": 10.0 ** (100 * k), "step_size": 1e-300 * k}
                for k in range(3)
            ],
            statement=_promise(f, epsilon=1e6, target_epsilon=1e6),
        ),
        "promises next to nothing",
    ),
    "not for release": (
        lambda f: replace(
            f,
            statement=f.statement.model_copy(
                update={"releasable": False, "reasons": ["fixed noise"]}
            ),
        ),
        "must not be released: fixed noise",
    ),
    "labels alone": (
        lambda f: replace(
            f, statement=_promise(f, adjacency="replace_labels", unit="session_labels")
        ),
        "the same but for the labels of one session",
    ),
    "markup in names": (
        lambda f: replace(f, name="<script>alert(1)</script>"),
        "<script>alert(1)</script>",
    ),
    "no curve": (
        lambda f: replace(
            f,
            statement=f.statement.model_copy(
                update={
                    "renyi": f.statement.renyi.model_copy(
                        update={"curve": [None] * len(f.statement.renyi.curve)}
                    )
                }
            ),
        ),
        "What an attacker may learn",
    ),
    "groups": (
        lambda f: replace(
            f,
            subgroups={
                "column": "city",
                "least": 50,
                "metric": "accuracy",
                "groups": [{"group": "a & b", "rows": 60, "value": 0.75}],
            },
        ),
        "a & b",
    ),
    "a curve": (
        lambda f: replace(
            f,
            pictures={"figures/ranking/map.png": PIXEL},
            curve=[{"iteration": 1, "map": 0.25}, {"iteration": 9, "map": 0.5}],
            conventions={"ties": "average", "relevant_from": 1.0},
        ),
        "Conventions of the ranking metrics: ties: average; relevant from: 1.0.",
    ),
    "no group": (
        lambda f: replace(
            f, subgroups={"column": "city", "least": 50, "metric": "accuracy", "groups": []}
        ),
        "No group has the 50 records",
    ),
}


def test_a_stored_curve_is_told_by_its_ends(facts: Facts) -> None:
    change, _ = KINDS["a curve"]
    told = "MAP over the iterations of the training: 0.2500 at iteration 1, 0.5000 at iteration 9."
    assert told in Page(run_report(change(facts))).alts


def _data(facts: Facts, **changes: Any) -> Any:
    return facts.statement.model_copy(
        update={"data": facts.statement.data.model_copy(update=changes)}
    )


def _promise(facts: Facts, **changes: Any) -> Any:
    return facts.statement.model_copy(
        update={"guarantee": facts.statement.guarantee.model_copy(update=changes)}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_renders(facts: Facts, kind: str) -> None:
    change, expected = KINDS[kind]
    page = Page(run_report(change(facts)))
    assert expected in page.text
    assert all(page.alts) and "script" not in page.tags and "nan" not in page.text.split()


def test_share_counts_what_was_charged_before_by_and_after_a_run(world: World) -> None:
    events = training.plan_training(training.prepare(world.config())).events
    with Ledger(world.ledger_url) as ledger:
        entries = [ledger.reserve("small", events) for _ in range(4)]
        entries[3].cancel()
        found = share_of(ledger, "small", ["all"], [entries[1].entry_id])
        total = ledger.dataset("small")
        spent = sum(ledger.spent("small").values()) / 2**40
    assert found is not None and total.budget is not None and spent > 0
    assert [step.own for step in found.steps] == [False, True, False]
    assert found.before == pytest.approx(found.own) == pytest.approx(found.after)
    assert 1 - found.left == pytest.approx(spent / total.budget, rel=1e-9)


def test_share_without_a_budget(tmp_path: Path) -> None:
    with Ledger(tmp_path / "none.db") as ledger:
        assert share_of(ledger, "small", ["all"], ["x"]) is None


def test_a_report_that_cannot_be_made_does_not_end_a_paid_run(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(facts: Facts) -> str:
        raise RuntimeError("no font")

    monkeypatch.setattr("tasks.report.page.run_report", fail)
    run_id = world.train()
    assert world.client.get_run(run_id).info.status == "FINISHED"
    assert not [
        item
        for item in world.client.list_artifacts(run_id, "report")
        if item.path.endswith(".html")
    ]
    assert "was not written (RuntimeError: no font)" in caplog.text


def test_command_writes_the_latest_report_with_other_draws_and_prints_where(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    first, second = world.train(), world.train()
    [draw] = report.draws_of(world.client, world.client.get_run(first))
    assert draw == world.client.get_run(second).data.metrics and "internal.accuracy" in draw
    assert run(["ui", "--report", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    path = Path(answer["report"])
    assert answer["run_id"] == second and path.is_relative_to(world.home.root)
    assert (
        second in path.read_text()
        and "another finished run of the same configuration" in path.read_text()
    )
    monkeypatch.setattr(command, "has_display", lambda: False)
    assert run(["ui", first, "--report"]) == 0
    shown = path.with_name(f"{first}.html")
    assert capsys.readouterr().out.strip() == str(shown) and not opened
    monkeypatch.setattr(command, "has_display", lambda: True)
    assert run(["ui", "--report", first]) == 0
    assert opened == [shown.as_uri()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ui", "--report", "0" * 32], "Expected a run of"),
        (["ui", "0" * 32], "Expected --report with a run"),
    ],
)
def test_command_refuses_in_words(
    shared_world: World, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_run_without_statement_has_no_report(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = world.client.create_experiment("without a statement")
    run_id = world.client.create_run(experiment).info.run_id
    assert run(["ui", "--report", run_id]) == 2
    assert "a run with a privacy statement" in capsys.readouterr().err


def test_parameters_without_a_value_and_long_ones_take_no_room() -> None:
    given = {"steps": 8, "clip_norm": 0.4, "start": None, "offsets": [0.5] * 500, "two": [1, 2]}
    assert list(_parameters(given)) == [
        "steps 8",
        "clip_norm 0.4",
        "offsets of 500 numbers",
        "two [1, 2]",
    ]
