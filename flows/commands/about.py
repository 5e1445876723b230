"""``dpflows algorithms`` and ``dpflows config``: what may be written into a configuration."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any

import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpcore.errors import AssumptionNotMet, InputError, unknown_name
from flows.terminal import print_part, print_whole
from tasks.config.read import KINDS, extended, find_config, parse
from tasks.config.read import override as put


def show_algorithms(name: str | None, as_json: bool) -> None:
    """Print all algorithms, or one of them with its parameters."""
    from dpcore.algorithms import registry

    if name is not None and not registry.knows(name) and name != "auto":
        raise unknown_name("algorithm", name, [*registry, *registry.aliases])
    if name == "auto":
        name = None
    found = (
        [facts_of(registry[name])]
        if name is not None
        else [facts_of(one) for one in registry.values()]
    )
    if as_json:
        answer = {"schema_version": 1, "algorithms": found}
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
    elif name is None:
        print_whole(Console(), overview(found))
    else:
        for part in page_of(found[0]):
            print_part(Console(), part)


def facts_of(algorithm: Any) -> dict[str, Any]:
    """What is known of an algorithm without any data: from its class alone."""
    from dpcore.algorithms import registry

    text = inspect.getdoc(algorithm) or ""
    return {
        "name": algorithm.name,
        "aliases": sorted(
            alias for alias, name in registry.aliases.items() if name == algorithm.name
        ),
        "does": text.split("\n\n")[0].replace("\n", " ").replace("``", "`"),
        "text": text,
        "private": algorithm.private,
        "adjacencies": sorted(map(str, algorithm.adjacencies)) if algorithm.private else [],
        "losses": losses_of(algorithm),
        "data": "search sessions" if algorithm.requires.ranking else "rows",
        "releases": algorithm.releases,
        "argument": algorithm.argument,
        "parameters": {item.name: (_default(item), str(item.type)) for item in fields(algorithm)},
        "presets": {name: dict(preset) for name, preset in algorithm.presets.items()},
        "preset_sources": {name: preset.sources for name, preset in algorithm.presets.items()},
        "example": example_of(algorithm),
    }


def losses_of(algorithm: Any) -> list[str]:
    """Losses of single rows that its proof covers, by its own rules, with a ridge where it needs
    one.
    """
    from dpcore.losses import losses, make_loss
    from dpcore.problem import Problem

    covered = []
    for name in sorted(losses):
        problem = Problem(n=1000, dimension=5, norm_bound=1.0, loss=make_loss(name), l2=0.1)
        try:
            algorithm.requires.check(algorithm.name, problem)
        except AssumptionNotMet:
            continue
        covered.append(name)
    return covered


def _default(item: Any) -> Any:
    if item.default is not MISSING:
        return item.default
    return None if item.default_factory is MISSING else item.default_factory()


def example_of(algorithm: Any) -> str:
    """A command that trains with it."""
    if algorithm.requires.ranking:
        return f"dpflows train conf/ranking.yaml --set algorithm.name={algorithm.name}"
    if not algorithm.private:
        return f"dpflows compare --set 'algorithms=[{algorithm.name}, auto]'"
    adjacency = (
        ""
        if "add_remove" in map(str, algorithm.adjacencies)
        else " --set privacy.adjacency=replace_one"
    )
    loss = (
        ""
        if "logistic" in (known := losses_of(algorithm)) or not known
        else f" --set objective.loss={known[0]}"
    )
    ridge = (
        " --set objective.l2=0.01"
        if algorithm.requires.strongly_convex and not algorithm.default_l2
        else ""
    )
    return f"dpflows train --set algorithm.name={algorithm.name}{adjacency}{loss}{ridge}"


def overview(found: list[dict[str, Any]]) -> Table:
    """One line an algorithm."""
    table = Table(
        title="Algorithms (auto picks from public facts)",
        caption="`dpflows algorithms NAME` says parameters, losses and source.",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("name", "adjacency", "what it does"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for one in found:
        adjacency = "\n".join(one["adjacencies"]) or "no privacy"
        table.add_row(one["name"], adjacency, one["does"])
    return table


def page_of(one: dict[str, Any]) -> Iterator[Table | Text]:
    """The page of one algorithm."""
    yield Text(
        one["name"] + (f" (also {', '.join(one['aliases'])})" if one["aliases"] else ""),
        style="bold",
    )
    paragraphs = (" ".join(part.split()) for part in one["text"].split("\n\n"))
    yield Text("\n" + "\n\n".join(paragraphs).replace("``", "`") + "\n")
    facts = Table(show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("adjacency", ", ".join(one["adjacencies"]) or "no privacy: a baseline")
    facts.add_row("data", one["data"])
    facts.add_row("losses", ", ".join(one["losses"]) or "those of rankings")
    facts.add_row("what leaves", one["releases"])
    if one["argument"]:
        facts.add_row("why private", one["argument"])
    for name, values in one["presets"].items():
        facts.add_row(
            f"preset {name}", ", ".join(f"{key} {value}" for key, value in values.items())
        )
    facts.add_row("example", one["example"])
    yield facts
    yield parameters_of(one)


def parameters_of(one: dict[str, Any]) -> Table:
    """The parameters of one algorithm with default and type."""
    table = Table(title="Parameters (algorithm.NAME)", title_justify="left")
    for heading in ("parameter", "default", "type"):
        table.add_column(heading, overflow="fold")
    for name, (default, kind) in one["parameters"].items():
        table.add_row(name, "left out" if default is None else str(default), kind)
    return table


def _models() -> dict[str, Callable[[], type[BaseModel]]]:
    """The kinds of configuration, each imported when it is asked for."""

    def train() -> type[BaseModel]:
        from tasks.config import TrainConfig

        return TrainConfig

    def retrain() -> type[BaseModel]:
        from tasks.retraining import RetrainConfig

        return RetrainConfig

    def compare() -> type[BaseModel]:
        from tasks.compare.config import CompareConfig

        return CompareConfig

    def release() -> type[BaseModel]:
        from tasks.release.gate import Policy

        return Policy

    def data() -> type[BaseModel]:
        from tasks.schema import Schema

        return Schema

    return {
        "train": train,
        "retrain": retrain,
        "compare": compare,
        "release": release,
        "data": data,
    }


def config_schema(kind: str) -> dict[str, Any]:
    """The JSON schema of a kind of configuration, for editors: what a file may hold before
    ``extends`` is applied.

    Raises ``InputError`` for a kind that is none.
    """
    models = _models()
    if kind not in models:
        raise unknown_name("kind of configuration", kind, models)
    schema = models[kind]().model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"dpflows configuration: {kind}"
    for own in (schema, *schema.get("$defs", {}).values()):
        own.pop("required", None)  # a file that this one extends may give it
        if "description" in own:
            own["description"] = " ".join(own["description"].split())
        own["properties"] = {
            name: as_written(part, name) for name, part in own.get("properties", {}).items()
        }
        if not own["properties"]:
            own.pop("properties")
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "a file over whose keys those of this one go",
    }
    return schema


ONE = ["string", "number", "boolean"]
NAMED = ("protocol",)  # sections that may be named by a text


def as_written(part: dict[str, Any], name: str) -> dict[str, Any]:
    """A field as people write it: one item in place of a list, a number in place of a text, a name
    in place of a section with that name; null takes away what an extended file says."""
    outer: dict[str, Any] = {key: part[key] for key in ("description", "default") if key in part}
    inner = {key: value for key, value in part.items() if key not in (*outer, "title")}
    choices = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
    found = [wide for choice in choices for wide in widened(choice)]
    found += [{"type": "string"}] * (name in NAMED) + [{"type": "null"}]
    return {**outer, "anyOf": [one for index, one in enumerate(found) if one not in found[:index]]}


def widened(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """A list with wider items, and one item alone; what is no list stays."""
    if choice.get("type") != "array":
        return [choice]
    items = choice.get("items", {})
    if items == {"type": "string"}:
        items = {"type": ONE}
    elif "$ref" in items:
        items = {"anyOf": [items, {"type": "string"}]}
    return [{**choice, "items": items}, *([items] if items else [])]


def show_config(name: str | None, overrides: list[str], schema: str | None, as_json: bool) -> None:
    """Print the JSON schema of a kind, or a configuration as it is understood: with all
    defaults.
    """
    if schema is not None:
        if name is not None or overrides:
            raise InputError(
                "Expected --schema alone, got a file or --set beside it; leave one out."
            )
        sys.stdout.write(json.dumps(config_schema(schema), indent=1) + "\n")
        return
    from tasks.config.read import _base_config

    where, text = find_config(name)
    values = extended(where, text, _base_config)
    kind = next(
        (one for one, (key, form) in KINDS.items() if isinstance(values.get(key), form)), "train"
    )
    for one in overrides:
        put(values, one)
    answer = parse(_models()[kind](), values, where, overrides).model_dump(mode="json")
    if as_json:
        sys.stdout.write(
            json.dumps({"schema_version": 1, "kind": kind, "configuration": answer}) + "\n"
        )
    else:
        sys.stdout.write(f"# {where}, with all defaults\n{yaml.safe_dump(answer, sort_keys=False)}")
