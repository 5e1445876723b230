"""What the command line says of itself and of algorithms: help, pages, schemas, formats, refusals."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
import warnings
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from dpcore.algorithms import registry
from dpcore.losses import losses
from flows import help as texts
from flows.cli import COMMANDS, GROUPS, run
from flows.commands.about import _models, config_schema, losses_of
from flows.exit_codes import begin, hear_warnings, other
from flows.terminal import Terminal
from tasks.config import TrainConfig, load_config
from tasks.config.read import KINDS, extended, load_yaml
from tasks.drawing import number
from tasks.home import CONF, Home

ROOT = Path(__file__).resolve().parents[2]
RENEW = "for kind in {kinds}; do dpflows config --schema $kind > conf/schemas/$kind.json; done"


def summary(run_id: str, **changes: Any) -> dict[str, Any]:
    """The parts of a training's summary that the list keeps."""
    return {
        "schema_version": 1,
        "run_id": run_id,
        "data": "visits",
        "public_n": 1000,
        "algorithm": "scaled_gd",
        "parameters": {"steps": 8, "start": [0.5] * 500},
        "unit": "record",
        "adjacency": "add_remove",
        "epsilon_asked": 0.5,
        "epsilon_spent": 0.499993,
        "delta": 1e-6,
        "accountant": "gdp",
        "internal": {"accuracy": 0.8609, "rows_test": 200},
        "released": {},
        "releasable": True,
        "reasons": [],
        "ledger_entry": "e1",
        "model": "models:/m-1",
    } | changes


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path))
    return Home(tmp_path)


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert re.fullmatch(r"dpflows \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("name", [command.__name__ for command in COMMANDS] + list(GROUPS))
def test_help_of_every_command_has_examples_that_exist_and_fits_80_letters(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "-h"]) == 0
    shown = capsys.readouterr().out
    examples = texts.EXAMPLES[name]
    assert examples
    assert all(f"\n    {line}\n" in shown for line in examples)
    assert max(map(len, shown.splitlines())) <= 80
    for option in re.findall(
        r"(?<= )--[a-z-]+", " ".join(part for line in examples for part in line.split("  ")[-1:])
    ):
        assert option in shown or name == "ledger" or option in ("--set",), option


def test_help_lists_commands_whole_with_exit_codes_and_variables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["-h"]) == 0
    shown = capsys.readouterr().out
    assert "..." not in shown.replace("[ARGS]...", "")
    assert max(map(len, shown.splitlines())) <= 80
    assert set(texts.LINES) == {command.__name__ for command in COMMANDS} | set(GROUPS)
    read = {
        found
        for package in ("dpcore", "tasks", "flows")
        for path in (ROOT / package).rglob("*.py")
        for found in re.findall(
            r"environ(?:\.get\(|\[)\"(DPFLOWS_[A-Z_]+)", path.read_text(encoding="utf-8")
        )
    }
    assert read <= {name for name, _ in texts.ENVIRONMENT}
    assert all(name in shown for name, _ in texts.ENVIRONMENT)
    assert all(f"\n    {code:<4} " in shown for code, _ in texts.EXIT_CODES)


def test_the_shell_completes_commands_and_those_of_a_group() -> None:
    for words, wanted in (("dpflows ret", "retrain"), ("dpflows ledger ver", "verify")):
        environment = os.environ | {
            "_DPFLOWS_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-c", "from flows.cli import main; main([])"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert wanted in done.stdout.split(), done.stderr


def test_the_first_line_comes_before_anything_heavy_is_loaded() -> None:
    """At a terminal; whoever reads a pipe is told only what must be said."""
    code = (
        "import sys, flows.cli, flows.exit_codes as exit_codes\nheavy = {'numpy', 'pandas', "
        "'mlflow', 'prefect', 'sqlalchemy', 'rich', 'yaml'} & "
        "set(sys.modules)\nexit_codes.begin('training: loading')\nprint(sorted(heavy))\n"
    )
    master, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        timeout=300,
    )
    os.close(terminal)
    assert os.read(master, 1000).decode().startswith("dpflows training: loading")
    os.close(master)
    assert done.stdout == "[]\n"


def test_a_pipe_hears_no_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    begin("training: loading")
    assert capsys.readouterr().err == ""


def test_a_step_without_a_total_pulses_after_one_that_had_a_total() -> None:
    from rich.console import Console

    with Terminal(Console(force_terminal=True, file=StringIO())) as terminal:
        terminal.step("fit")
        terminal.progress(30, 60)
        assert terminal._bar.tasks[0].total == 60
        terminal.step("evaluate")
        [task] = terminal._bar.tasks
        assert (task.description, task.total, task.completed) == ("evaluate", None, 0)


def test_every_algorithm_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["algorithms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["algorithms"]
    assert {one["name"] for one in found} == set(registry)
    for one in found:
        assert one["does"], one["name"]
        assert "noise_multiplier" in one["parameters"]
        assert one["losses"] or one["data"] == "search sessions", one["name"]
    assert run(["algorithms", "sgd_ma"]) == 0
    assert capsys.readouterr().out.startswith("dp_sgd (also ")
    assert run(["algorithms", "dp_sdg"]) == 2
    assert "did you mean 'dp_sgd'" in capsys.readouterr().err


def test_losses_are_those_that_the_proof_covers() -> None:
    assert "hinge" not in losses_of(registry["output_gd"])
    assert set(losses_of(registry["dp_sgd"])) >= {"hinge", "logistic", "squared"}


@pytest.mark.parametrize("name", sorted(registry))
def test_the_example_of_an_algorithm_is_planned(name: str) -> None:
    """Its command is a configuration that the algorithm's proof covers."""
    import shlex

    from flows.commands.about import example_of
    from tasks import training

    words = shlex.split(example_of(registry[name]))
    if words[1] != "train":
        assert not registry[name].private
        return
    file = next((word for word in words[2:] if word.endswith(".yaml")), None)
    overrides = [word for before, word in pairwise(words) if before == "--set"]
    config = load_config(None if file is None else str(CONF / Path(file).name), overrides)
    assert training.plan_training(training.prepare(config)).name == name


def kind_of(path: Path) -> str | None:
    """The kind of a packaged file, as its own first line says it."""
    found = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text(encoding="utf-8"))
    if found is None:
        return None
    assert (path.parent / found[1]).is_file()
    return Path(found[1]).stem


@pytest.mark.parametrize("kind", sorted(_models()))
def test_published_schema_is_the_one_of_the_code(kind: str) -> None:
    published = json.loads((CONF / "schemas" / f"{kind}.json").read_text(encoding="utf-8"))
    assert published == config_schema(kind), RENEW.format(kinds=" ".join(_models()))
    jsonschema.Draft202012Validator.check_schema(published)


def test_packaged_files_name_their_schema_and_hold_to_it() -> None:
    checks = {kind: jsonschema.Draft202012Validator(config_schema(kind)) for kind in _models()}
    for path in [*CONF.glob("*.yaml"), *(CONF / "data").glob("*.yaml")]:
        kind = kind_of(path)
        if path.name == "prefect.yaml":
            continue
        values = load_yaml(path.read_text(encoding="utf-8"), path.name)
        assert kind == expected_kind(path, values), path.name
        checks[str(kind)].validate(values)


def expected_kind(path: Path, values: dict[str, Any]) -> str:
    if path.parent.name == "data":
        return "data"
    if path.name == "release.yaml":
        return "release"
    whole = extended(
        str(path),
        path.read_text(encoding="utf-8"),
        lambda name, where: (name, (CONF / name).read_text()),
    )
    return next(kind for kind, (key, form) in KINDS.items() if isinstance(whole.get(key), form))


@pytest.mark.parametrize(
    "values",
    [
        {"privacy": {"epsilon": -1}},
        {"privcy": {}},
        {"data": {"nam": "adult"}},
        {"algorithm": {"name": 3.5}},
    ],
)
def test_an_editor_sees_what_a_command_would_refuse(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, config_schema("train"))


def test_choices_in_comments_are_those_of_the_fields() -> None:
    """``normalise: null  # none | cap | unit: ...`` names every choice of the field, and no
    other.
    """
    for file, model in (("train.yaml", TrainConfig), ("retrain.yaml", _models()["retrain"]())):
        text = (CONF / file).read_text(encoding="utf-8")
        section: Any = model
        for line in text.splitlines():
            if not (found := re.match(r"( *)([a-z_0-9]+):(?: [^#]*)?(?:# *(.*))?$", line)):
                continue
            indent, key, comment = found.groups()
            section = section if indent else model
            field = section.model_fields.get(key)
            assert field is not None, f"{file}: {key}"
            if not indent and isinstance(field.default, BaseModel):
                section = type(field.default)
            options = choices(field.annotation, key)
            named = re.match(r"((?:[\w()]+ \| )+[\w()]+)", comment or "")
            if options and named:
                assert set(named[1].split(" | ")) == options, f"{file}: {key}"


def choices(annotation: Any, key: str) -> set[str]:
    from enum import Enum
    from typing import Literal, get_args, get_origin

    if key == "loss":
        return set(losses) | {"softmax"}
    parts = [annotation, *get_args(annotation)]
    for part in parts:
        if get_origin(part) is Literal:
            return {str(one) for one in get_args(part)}
        if isinstance(part, type) and issubclass(part, Enum):
            return {str(one.value) for one in part}
    return set()


def test_a_configuration_is_shown_with_its_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--set", "privacy.epsilon=0.3"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["privacy"]["epsilon"] == 0.3
    assert TrainConfig.model_validate(found)
    assert run(["config", "--schema", "trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.861, "0.8610"),
        (12.3, "12.30"),
        (32000.0, "32000"),
        (1e-6, "1e-06"),
        (0.0, "0"),
        (123456.7, "123457"),
    ],
)
def test_numbers_have_one_format(value: float, text: str) -> None:
    assert number(value) == text


def test_an_unknown_data_set_says_how_one_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--set", "data.name=visits"]) == 2
    assert "`dpflows profile FILE -o conf/data/visits.yaml`" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["error"]])
def test_a_deprecated_name_is_one_line_and_libraries_end_nothing(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with warnings as errors, which stop at names of ours alone."""
    words = ["plan", "--set", "data.name=census", "--set", "algorithm.name=output_gd"]
    words += ["--set", "algorithm.pace=paper", "--set", "privacy.adjacency=replace_one"]
    words += ["--set", f"privacy.epsilon={0.71 + len(options)}"]  # plans are kept
    monkeypatch.setattr(sys, "warnoptions", options)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if options else "ignore", DeprecationWarning)
        hear_warnings()
        code = run(words)
        exec(compile("import warnings; warnings.warn('x', DeprecationWarning)", "m.py", "exec"), {})
    lines = [line for line in capsys.readouterr().err.splitlines() if "step_rule now" in line]
    assert len(lines) == 1 and lines[0].startswith("dpflows: ")
    assert code == (2 if options else 0)
    assert lines[0].startswith("dpflows: Warning: ") == (not options)


@pytest.mark.slow
def test_a_training_ends_with_warnings_as_errors(small: Path, tmp_path: Path) -> None:
    """MLflow, SQLAlchemy and Prefect have deprecations of their own; none of ours is left."""
    ledger = ["ledger", "init", str(small), "--epsilon", "3", "--delta", "1e-4"]
    train = ["train", "--set", f"data.name={small}", "--set", "privacy.delta=1e-5"]
    for words in (ledger, train):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "flows.cli", *words],
            env={**os.environ, "DPFLOWS_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["bench", "--speed", "mine.yaml"], "Expected --speed alone, got CONFIG"),
        (["bench", "--speed", "--set", "seed=1"], "Expected --speed alone, got --set"),
        (["bench", "--speed", "--fresh"], "Expected --speed alone, got --fresh"),
        (["retrain", "--unlock", "--serve"], "Expected --unlock alone, got --serve"),
        (["retrain", "--unlock", "--at", "2026-01-01"], "Expected --unlock alone, got --at"),
        (["ui", "--report", "--prefect"], "Expected --report alone, got --prefect"),
        (["profile", "a.csv", "--epsilon", "1"], "Expected --private with --epsilon=1.0"),
        (["profile", "a.csv", "--delta", "1e-6"], "Expected --private with --delta=1e-06"),
        (["profile", "a.csv", "--adjacency", "replace_one"], "Expected --private with --adjacency"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    own_home: Home, given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and words in shown.err and shown.err.count("\n") == 1


@pytest.mark.parametrize("given", [["init", "/dev/null/there"], ["config", "/"]])
def test_a_path_that_the_system_refuses_is_one_line(
    own_home: Home, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given) == 2
    shown = capsys.readouterr()
    assert "Expected" in shown.err and shown.err.count("\n") == 1, shown.err


def test_a_disk_that_is_full_in_mid_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert other(OSError(errno.ENOSPC, "No space left on device", "/srv/rows.bin")) == 2
    said = capsys.readouterr().err
    assert "'/srv/rows.bin': No space left on device" in said and said.count("\n") == 1
    assert other(OSError(errno.EIO, "Input/output error", "/srv/rows.bin")) == 1
    assert "this is a fault" in capsys.readouterr().err
