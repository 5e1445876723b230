"""YAML as people expect it: only true and false are booleans, dates and clock times stay text, no key twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dpcore.errors import InputError


class PlainLoader(yaml.SafeLoader):
    """The safe loader without YAML 1.1's surprises (``no``, ``on``, ``2011-01-01``, ``1:30``)."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag.endswith((":null", ":merge"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$"),
    list("-+0123456789."),
)


def _mapping(loader: PlainLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands there twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


def _number(loader: PlainLoader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))


def _integer(loader: PlainLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node).replace("_", ""))


PlainLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
PlainLoader.add_constructor("tag:yaml.org,2002:float", _number)
PlainLoader.add_constructor("tag:yaml.org,2002:int", _integer)


def load_yaml(text: str, where: str) -> dict[str, Any]:
    """Parse a YAML mapping; raises ``InputError`` with file, line and problem on one line."""
    try:
        values = yaml.load(text, PlainLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: not readable as YAML: {error.problem}; correct the file.") from None
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not readable as YAML: {' '.join(str(error).split())}; correct the file.") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected keys with values, got {type(values).__name__}; see `dpflows init`.")
    return values
