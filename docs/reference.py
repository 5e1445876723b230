"""Make the pages of ``docs/reference`` from the code: ``python docs/reference.py [--check]``.

Commands from the program itself, configuration keys from the models that check them, algorithms
from the registry, stored files from their JSON schemas, the Python interface from signatures and
docstrings. ``--check`` writes nothing and ends with 1 where a page is not what the code says.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

PUBLIC = {
    "dpcore.estimators": ("DPClassifier", "DPRegressor", "DPRanker"),
    "dpcore.train": ("plan", "run"),
    "dpcore.accounting": ("Target", "Allowance", "epsilon", "delta", "calibrate"),
    "dpcore.problem": ("Problem",),
    "dpcore.objective": ("LinearObjective",),
    "dpcore.losses": ("make_loss",),
    "dpcore.metrics": ("accuracy", "balanced_accuracy", "mean_average_precision", "ndcg"),
    "dpcore.audit": ("audit",),
    "tasks.config": ("load_config",),
    "tasks.record.stored": ("predict_fn",),
}
CONFIGURATIONS = {
    "train": "A training: `dpflows train`, `plan`, `crossval`.",
    "retrain": "A schedule: `dpflows retrain`.",
    "compare": "A comparison: `dpflows compare`, `bench`.",
    "release": "A release policy: `dpflows release --policy`.",
    "data": "A data schema: `conf/data/NAME.yaml`.",
}


def cell(text: object) -> str:
    """Text that can stand in a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: double backticks become single ones, formulas stay blocks."""
    text = inspect.cleandoc(docstring or "").replace("``", "`")
    return re.sub(r"(?m)^( {4,})(?=\S)", lambda found: found.group(1), text)


def table(headings: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"


# ---------------------------------------------------------------------------------------- commands


def parameter_row(item: Any) -> tuple[str, str, str]:
    option = item.param_type_name == "option"
    name = ", ".join(item.opts) if option else item.name
    flag = option and item.is_flag
    value = item.default if isinstance(item.default, int | float | str) else None
    default = "" if flag or value is None else f" Default: {value}."
    kind = "" if flag else (item.metavar or kind_of(item.type_descriptor.annotation))
    return (f"`{name}`", kind, (item.help or "") + default)


def command_part(path: str, command: Any) -> Iterator[str]:
    from flows.help import EXAMPLES

    yield f"## {path}\n"
    yield " ".join((command.help or "").split("\b")[0].split()) + "\n"
    rows = [parameter_row(one) for one in command.params if "--help" not in one.opts]
    if rows:
        yield table(("argument or option", "takes", "meaning"), rows)
    examples = EXAMPLES.get(path.removeprefix("dpflows "), ())
    if examples:
        yield "```text\n" + "\n".join(examples) + "\n```\n"


def commands() -> str:
    from flows.cli import GROUPS, build
    from flows.help import ENVIRONMENT, EXIT_CODES

    parts = ["# Commands\n", "`dpflows COMMAND --help` says the same.\n"]
    whole: Any = typer.main.get_command(build(None))
    for name, command in sorted(whole.commands.items()):
        if name not in GROUPS:
            parts += command_part(f"dpflows {name}", command)
            continue
        group: Any = typer.main.get_command(import_module(GROUPS[name][0]).app)
        for inner, one in sorted(group.commands.items()):
            parts += command_part(f"dpflows {name} {inner}", one)
    parts += ["## Exit codes\n", table(("code", "meaning"), list(EXIT_CODES))]
    rows: list[tuple[object, ...]] = [(f"`{name}`", text) for name, text in ENVIRONMENT]
    parts += ["## Environment\n", table(("variable", "meaning"), rows)]
    return "\n".join(parts)


# ----------------------------------------------------------------------------------- configuration


def kind_of(annotation: Any) -> str:
    """A type in words: ``number``, ``one of a, b``, ``list of text``, with ``null`` where it may be
    left out."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind_of(inner[0])
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(
            dict.fromkeys("null" if one is type(None) else kind_of(one) for one in inner)
        )
    if origin in (tuple, list):
        return f"list of {kind_of(inner[0])}" if inner else "list"
    if origin is dict or annotation is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(str(one.value) for one in annotation)
    names = {float: "number", int: "whole number", str: "text", Path: "path", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", "any"))


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from sections_in(inner)


def default_of(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "its own defaults"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple) and any(isinstance(one, BaseModel) for one in value):
        return ", ".join(str(getattr(one, "name", one)) for one in value)
    return f"`{json.dumps(value, default=str)}`"


def keys_of(model: type[BaseModel], prefix: str = "", seen: tuple[Any, ...] = ()) -> Iterator[Any]:
    """(key, kind, default, what to write) of every key, those of inner sections after their own."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        inner = [one for one in sections_in(field.annotation) if one not in seen]
        kind = "section" if inner else kind_of(field.annotation)
        yield (f"`{key}`", kind, default_of(field), field.description or "")
        many = typing.get_origin(field.annotation) in (tuple, list, dict)
        for one in inner:
            yield from keys_of(one, f"{key}{'[]' if many else ''}.", (*seen, one))


def about_sections(model: type[BaseModel], seen: set[type]) -> Iterator[str]:
    if model in seen:
        return
    seen.add(model)
    if model.__doc__ and model.__module__.startswith("tasks."):
        yield f"- **{model.__name__}.** {' '.join(prose(model.__doc__).split())}"
    for field in model.model_fields.values():
        for inner in sections_in(field.annotation):
            yield from about_sections(inner, seen)


def configuration() -> str:
    from flows.commands.about import _models

    parts = [
        "# Configuration\n",
        "Every key, with what it takes and its default. Keys that are not listed are refused. "
        "`--set KEY=VALUE` writes one from the command line; `extends: OTHER.yaml` takes another "
        "file first. Parameters of algorithms stand in [Algorithms](algorithms.md), what goes with "
        "what in [Options](../options.md).\n",
    ]
    for kind, words in CONFIGURATIONS.items():
        model = _models()[kind]()
        parts += [f"## {kind}\n", words + "\n"]
        parts.append(table(("key", "takes", "default", "what to write"), list(keys_of(model))))
        parts.append("\n".join(about_sections(model, set())) + "\n")
    return "\n".join(parts)


# -------------------------------------------------------------------------------------- algorithms


def algorithms() -> str:
    from dpcore.algorithms import registry
    from flows.commands.about import facts_of

    parts = [
        "# Algorithms\n",
        "`algorithm.name` in a configuration, `DPClassifier(algorithm=...)` in Python. A parameter "
        "whose default is *left out* is off or follows from n, the price and the loss, as the text "
        "of its algorithm says, never from a record. `auto` picks one of these and says why.\n",
    ]
    for name in sorted(registry):
        one = facts_of(registry[name])
        also = f" (also {', '.join(one['aliases'])})" if one["aliases"] else ""
        parts += [f"## {name}{also}\n", prose(one["text"]) + "\n"]
        facts: list[tuple[object, ...]] = [
            ("adjacency", ", ".join(one["adjacencies"]) or "no privacy: a baseline"),
            ("data", one["data"]),
            ("losses", ", ".join(one["losses"]) or "those of rankings"),
            ("what leaves", one["releases"]),
            *([("why private", one["argument"])] if one["argument"] else []),
            *(
                (f"preset `{preset}`", ", ".join(f"{k} {v}" for k, v in values.items()))
                for preset, values in one["presets"].items()
            ),
            ("example", f"`{one['example']}`"),
        ]
        parts.append(table(("", ""), facts))
        rows: list[tuple[object, ...]] = [
            (f"`{key}`", "left out" if value is None else f"`{value}`", f"`{kind}`")
            for key, (value, kind) in one["parameters"].items()
        ]
        parts.append(table(("parameter", "default", "type"), rows) if rows else "")
    return "\n".join(parts)


def presets() -> str:
    from dpcore.algorithms import registry
    from dpcore.algorithms.base import NOT_PRINTED, OURS

    parts = [
        "# Presets\n",
        "`algorithm.preset` fills in several parameters of `algorithm.name`; what is written "
        "beside it wins. `paper` is the setting of a source, with section and page of each value "
        f"that is printed. Where no text prints it, it says *{NOT_PRINTED.strip('; ')}* and what "
        "was taken instead. Noise is no part of a preset: it follows from the budget by a sound "
        "price, so at equal epsilon it differs from the source's. Pages are those of the tables "
        "of contents: a section has the pages of the part that it stands in.\n",
    ]
    for name in sorted(registry):
        rows: list[tuple[object, ...]] = [
            (f"`{preset}`", f"`{key}`", f"`{value}`", preset_source)
            for preset, values in registry[name].presets.items()
            for key, value in values.items()
            if (preset_source := values.sources[key])
        ]
        if rows:
            parts += [f"## {name}\n", table(("preset", "parameter", "value", "where"), rows)]
    printed = [
        source
        for one in registry.values()
        for preset in one.presets.values()
        for source in preset.sources.values()
    ]
    missing = sum(source.startswith(NOT_PRINTED) for source in printed)
    own = sum(source.startswith(OURS) for source in printed)
    parts.append(
        f"Of {len(printed)} values {len(printed) - missing - own} are printed, {missing} are not, "
        f"{own} are ours.\n"
    )
    return "\n".join(parts)


# ------------------------------------------------------------------------------------ stored files


def schema_rows(part: dict[str, Any], whole: dict[str, Any], prefix: str = "") -> Iterator[Any]:
    for name, inner in part.get("properties", {}).items():
        choices = [inner, *inner.get("anyOf", [])]
        target = next((one["$ref"] for one in choices if "$ref" in one), None)
        kinds = [str(one.get("type")) for one in choices if one.get("type")]
        found = whole["$defs"][target.rsplit("/", 1)[1]] if target else inner
        yield (f"`{prefix}{name}`", " or ".join(kinds) or "object", inner.get("description", ""))
        yield from schema_rows(found, whole, f"{prefix}{name}.")


def stored() -> str:
    parts = [
        "# Stored files\n",
        "The JSON schemas lie in `conf/schemas`; this is what they say. Fields are added, never "
        "renamed or removed.\n",
    ]
    for path in sorted((ROOT / "conf" / "schemas").glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## {path.name}\n", " ".join(schema.get("description", "").split()) + "\n"]
        parts.append(table(("field", "type", "meaning"), list(schema_rows(schema, schema))))
    return "\n".join(parts)


# ---------------------------------------------------------------------------------- Python


def signature_of(name: str, value: Any) -> str:
    text = f"{name}{inspect.signature(value)}"
    return re.sub(r"<[^>]*>", "...", text)


def python() -> str:
    parts = [
        "# Python\n",
        "What others may build on. Everything else may change without notice.\n",
    ]
    for module, names in PUBLIC.items():
        parts.append(f"## {module}\n")
        for name in names:
            value = getattr(import_module(module), name)
            parts += [f"### {name}\n", f"```text\n{signature_of(name, value)}\n```\n"]
            parts.append(prose(inspect.getdoc(value)) + "\n")
    return "\n".join(parts)


PAGES = {
    "commands": commands,
    "configuration": configuration,
    "algorithms": algorithms,
    "presets": presets,
    "stored": stored,
    "python": python,
}


def pages() -> dict[Path, str]:
    """Every page by its path."""
    folder = HERE / "reference"
    return {folder / f"{name}.md": make().rstrip() + "\n" for name, make in PAGES.items()}


def main(arguments: list[str]) -> int:
    made = pages()
    if arguments == ["--check"]:
        stale = [
            path.name
            for path, text in made.items()
            if not path.is_file() or path.read_text(encoding="utf-8") != text
        ]
        sys.stdout.write(f"not what the code says: {', '.join(stale)}\n" if stale else "")
        return bool(stale)
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
